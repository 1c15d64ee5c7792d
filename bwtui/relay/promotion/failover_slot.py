"""Make standbys synchronize the relay's slot, before a session streams from it.

A slot that bwtui creates becomes a failover slot. An existing slot is somebody's decision, so it stays as it
is unless several hosts are named, or --failover is given: the server sends nothing to a failover slot while a
standby of synchronized_standby_slots is down.
"""

import logging

from psycopg import pq

from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.model.events import event
from bwtui.relay.run_state import RunState
from bwtui.relay.slot_checkpoint import SlotCheckpointStore
from bwtui.settings import RelaySettings
from bwtui.source.failover.hosts import names_several
from bwtui.source.raw.session import ServerError, execute_raw
from bwtui.source.raw.timeline import ServerIdentity
from bwtui.source.slot import SlotState, make_failover

_log = logging.getLogger(__name__)
_AWAITED_SQL = "select pg_catalog.current_setting('synchronized_standby_slots', true)"


class FailoverSlot:
    """Makes the slot a failover slot; there is one object per run, which stops trying after one failure."""

    def __init__(self) -> None:
        self._is_new = False
        self._was_refused = False

    def is_wanted(
        self,
        settings: RelaySettings,
        checkpoint: SlotCheckpointStore,
        server: ServerIdentity,
        slot: SlotState,
    ) -> bool:
        """Return whether to make ``slot`` a failover slot; call it before `SlotCheckpointStore.take_over`."""
        # If a session ends before it could convert a new slot, the next session still treats the slot as new.
        self._is_new = self._is_new or checkpoint.is_unread
        if slot.failover is not False or server.in_recovery or self._was_refused:
            return False
        if settings.failover is not None:
            return settings.failover
        return self._is_new or names_several(settings.postgres)

    def make(self, connection: pq.abc.PGconn, name: str, report: RunState) -> None:
        """Make slot ``name`` a failover slot. A refusal is reported, and the stream continues without.

        Raises ConnectionFailed if the session ended because of the command: a proxy, or the server, may end
        every session that sends it.
        """
        try:
            awaited = execute_raw(connection, _AWAITED_SQL)[0][0]
        except ServerError as error:
            raise ConnectionFailed(error.message, "check PostgreSQL's log") from error
        # Set this first: if this attempt fails in whatever way, the next one would fail in the same way.
        self._was_refused = True
        try:
            make_failover(connection, name)
        except ServerError as error:
            note = f"slot {name} can't be made a failover slot: {error.message}"
            hint = "a promoted standby will lack the slot; --no-failover leaves the slot unchanged"
            report.error("notice", RefusedError(note, hint))
            if connection.status != pq.ConnStatus.OK:
                raise ConnectionFailed(error.message, "check PostgreSQL's log") from error
            return
        self._was_refused = False
        text = "slot %s is now a failover slot: standbys synchronize it"
        _log.info(text, name, extra=event("failover_slot"))
        if awaited:
            note = f"slot {name} is now a failover slot: it receives nothing while a standby of "
            note += f"synchronized_standby_slots ({awaited}) is down"
            hint = (
                "'bwtui doctor' shows which standby is down; remove its slot from the setting until "
                "it is back"
            )
            report.error("notice", RefusedError(note, hint))
