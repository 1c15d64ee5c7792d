"""Forward a worker's errors and dead letters to the engine, whose report is the relay's."""

from pathlib import Path
from typing import Any

from bwtui.errors import BwtuiError
from bwtui.relay.report import Report
from bwtui.relay.snapshot.workers.line import Line
from bwtui.relay.snapshot.workers.words import Fault, Kept, Letter, Recovered, Told
from bwtui.sink.dead_letter import DeadLetters


class TellingReport(Report):
    """The worker's report; counters are sent with its heartbeats."""

    def __init__(self, on_error: str) -> None:
        super().__init__()
        self.line: Line | None = None
        self._keeps_rows = on_error == "log"
        #: The hint for the last refused row.
        self.hint = ""

    def error(
        self, kind: str, error: BwtuiError, table: str | None = None, dependency: str = "", since: float = 0
    ) -> None:
        """Send an error to the engine; a dropped row is reported with its dead letter instead."""
        if kind == "row" and self._keeps_rows:
            self.hint = error.hint
        elif self.line is not None:
            self.line.tell(Told(kind, Fault.of(error), table, dependency))

    def outage(self, sentence: str | None, service: str = "Kafka") -> None:
        """Do nothing: heartbeats report outages, and the engine combines those of its workers."""

    def recovered(self, dependency: str) -> None:
        """Report to the engine that a dependency works again."""
        if self.line is not None:
            self.line.tell(Recovered(dependency))


class TellingLetters(DeadLetters):
    """Dead letters that the engine stores, each once however often its range is read."""

    def __init__(self, line: Line, report: TellingReport) -> None:
        super().__init__(Path())
        self._line = line
        self._report = report

    def keep(self, letter: dict[str, Any]) -> None:
        """Let the engine store the dead letter, and wait for that."""
        self._line.ask(Letter(letter, self._report.hint), Kept)
