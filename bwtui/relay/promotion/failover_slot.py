"""Having standbys take the relay's slot along, before a session of it streams."""

import logging

from psycopg import pq

from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.relay.report import Report
from bwtui.settings import RelaySettings
from bwtui.source.connection import ServerError
from bwtui.source.slot import SlotState, make_failover
from bwtui.source.timeline import Server

_log = logging.getLogger(__name__)


class FailoverSlot:
    """Makes the slot a failover slot; one for each run, in which it is tried until it fails once."""

    def __init__(self) -> None:
        self._was_refused = False

    def is_wanted(self, settings: RelaySettings, server: Server, slot: SlotState) -> bool:
        """Say whether ``slot`` is to be made one, and can be."""
        is_possible = slot.failover is False and not server.in_recovery
        return settings.failover and is_possible and not self._was_refused

    def make(self, connection: pq.abc.PGconn, name: str, report: Report) -> None:
        """Make slot ``name`` one. That it can't be is told, and the stream goes on without.

        Raises ConnectionFailed where the session ended over it: what stands between, or the server, may end
        every one that asks for that.
        """
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
        _log.info("slot %s is a failover slot now: standbys take it along", name)
