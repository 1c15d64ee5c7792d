"""Tells of tables that the publication leaves out, such as those that were made while the relay runs."""

import time

from bwtui.errors import RefusedError
from bwtui.relay.report import Report
from bwtui.settings import RelaySettings
from bwtui.source import publication
from bwtui.source.connection import Connection
from bwtui.source.preflight import left_out

_SECONDS = 10.0


class NewTables:
    """Looks for them now and then; the sampler's thread owns it."""

    def __init__(self, settings: RelaySettings, report: Report) -> None:
        self._settings = settings
        self._report = report
        self._looked_at = 0.0

    def look(self, connection: Connection) -> None:
        """Look, if it is time to and the relay streams."""
        now = time.monotonic()
        if self._report.state != "streaming" or now - self._looked_at < _SECONDS:
            return
        self._looked_at = now
        for table in left_out(connection, self._settings):
            name = table.qualified_name
            hint = publication.add_statement(self._settings.publication_name, table)
            self._report.error("notice", RefusedError(f"table {name} is not in the publication", hint), name)
