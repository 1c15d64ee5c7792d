"""Having standbys take the relay's slot along, before a session of it streams.

A slot that bwtui makes becomes a failover slot. One that was there is somebody's decision, and stays as it
is unless several hosts are named, or --failover is given: the server sends a failover slot nothing while a
standby of synchronized_standby_slots is down.
"""

import logging

from psycopg import pq

from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.model.events import event
from bwtui.relay.memory import SlotMemory
from bwtui.relay.report import Report
from bwtui.settings import RelaySettings
from bwtui.source.failover.hosts import names_several
from bwtui.source.raw.session import ServerError, execute_raw
from bwtui.source.raw.timeline import Server
from bwtui.source.slot import SlotState, make_failover

_log = logging.getLogger(__name__)
_AWAITED_SQL = "select pg_catalog.current_setting('synchronized_standby_slots', true)"


class FailoverSlot:
    """Makes the slot a failover slot; one for each run, in which it is tried until it fails once."""

    def __init__(self) -> None:
        self._is_new = False
        self._was_refused = False

    def is_wanted(self, settings: RelaySettings, memory: SlotMemory, server: Server, slot: SlotState) -> bool:
        """Say whether ``slot`` is to be made one, and can be; to be asked before `SlotMemory.take_over`."""
        # A session that ends before it could be made one leaves it as new to the next one.
        self._is_new = self._is_new or memory.is_unread
        if slot.failover is not False or server.in_recovery or self._was_refused:
            return False
        if settings.failover is not None:
            return settings.failover
        return self._is_new or names_several(settings.postgres)

    def make(self, connection: pq.abc.PGconn, name: str, report: Report) -> None:
        """Make slot ``name`` one. That it can't be is told, and the stream goes on without.

        Raises ConnectionFailed where the session ended over it: what stands between, or the server, may end
        every one that asks for that.
        """
        try:
            awaited = execute_raw(connection, _AWAITED_SQL)[0][0]
        except ServerError as error:
            raise ConnectionFailed(error.message, "check PostgreSQL's log") from error
        # First: whatever becomes of it, it would become the same of the next one.
        self._was_refused = True
        try:
            make_failover(connection, name)
        except ServerError as error:
            note = f"slot {name} can't be made a failover slot: {error.message}"
            hint = "a promoted standby will lack it; --no-failover leaves it as it is"
            report.error("notice", RefusedError(note, hint))
            if connection.status != pq.ConnStatus.OK:
                raise ConnectionFailed(error.message, "check PostgreSQL's log") from error
            return
        self._was_refused = False
        text = "slot %s is a failover slot now: standbys take it along"
        _log.info(text, name, extra=event("failover_slot"))
        if awaited:
            note = f"slot {name} is a failover slot now: it gets nothing while a standby of "
            note += f"synchronized_standby_slots ({awaited}) is down"
            hint = "'bwtui doctor' says which one is; take its slot out of the setting until it is back"
            report.error("notice", RefusedError(note, hint))
