"""Notices of what the publications leave out, such as tables that were made while the relay runs."""

import time

from bwtui.errors import RefusedError
from bwtui.relay.report import Report
from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection
from bwtui.source.coverage import shortfalls

_SECONDS = 10.0
#: Every status has them, and too many would push what else went wrong out of it.
_NOTICES = 20
_HINT_CHARACTERS = 1_000
_DOCTOR = "'bwtui doctor' with the relay's options says"


class NewTables:
    """Looks for them now and then; the sampler's thread owns it."""

    def __init__(self, settings: RelaySettings, report: Report) -> None:
        self._settings = settings
        self._report = report
        self._looked_at = 0.0
        #: The publications that the stream reads; none while there is no stream.
        self.reads: tuple[str, ...] = ()

    def look(self, connection: Connection) -> None:
        """Look, if it is time to: at the beginning too, for a run may end before the next look."""
        now = time.monotonic()
        if self._looked_at and now - self._looked_at < _SECONDS:
            return
        self._looked_at = now
        missing = list(shortfalls(connection, self._settings, self.reads))
        self._report.not_captured = tuple(item.table or "" for item in missing if not item.captured)
        for item in missing[:_NOTICES]:
            hint = item.hint if len(item.hint) <= _HINT_CHARACTERS else f"{_DOCTOR} what to run"
            self._report.error("notice", RefusedError(f"{item.subject} {item.says}", hint), item.table)
        if more := missing[_NOTICES:]:
            says = f"{len(more)} more such notices about the publication"
            self._report.error(
                "notice", RefusedError(says, f"{_DOCTOR} all; --table narrows what is relayed")
            )
