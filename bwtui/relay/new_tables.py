"""Tells of what the publications leave out, such as tables that were made while the relay runs."""

import time

from bwtui.errors import RefusedError
from bwtui.relay.report import Report
from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection
from bwtui.source.coverage import shortfalls

_SECONDS = 10.0


class NewTables:
    """Looks for them now and then; the sampler's thread owns it."""

    def __init__(self, settings: RelaySettings, report: Report) -> None:
        self._settings = settings
        self._report = report
        self._looked_at = 0.0

    def look(self, connection: Connection) -> None:
        """Look, if it is time to: at the beginning too, for a run may end before the next look."""
        now = time.monotonic()
        if self._looked_at and now - self._looked_at < _SECONDS:
            return
        self._looked_at = now
        for found in shortfalls(connection, self._settings):
            error = RefusedError(f"{found.subject} {found.says}", found.hint)
            self._report.error("notice", error, found.table)
