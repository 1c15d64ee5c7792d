"""What happens to rows and services in a worker, told to the engine: its report is the relay's."""

from pathlib import Path
from typing import Any

from bwtui.errors import BwtuiError
from bwtui.relay.report import Report
from bwtui.relay.snapshot.workers.line import Line
from bwtui.relay.snapshot.workers.words import Fault, Kept, Letter, Recovered, Told
from bwtui.sink.dead_letter import DeadLetters


class TellingReport(Report):
    """The worker's report; counters go with its beats."""

    def __init__(self, on_error: str) -> None:
        super().__init__()
        self.line: Line | None = None
        self._keeps_rows = on_error == "log"
        #: The hint of the row that was refused last.
        self.hint = ""

    def error(
        self, kind: str, error: BwtuiError, table: str | None = None, dependency: str = "", since: float = 0
    ) -> None:
        """Tell it; of a row that is dropped its letter does."""
        if kind == "row" and self._keeps_rows:
            self.hint = error.hint
        elif self.line is not None:
            self.line.tell(Told(kind, Fault.of(error), table, dependency))

    def outage(self, sentence: str | None, service: str = "Kafka") -> None:
        """Nothing: beats say it, and the engine puts together what its workers meet."""

    def recovered(self, dependency: str) -> None:
        """Tell it."""
        if self.line is not None:
            self.line.tell(Recovered(dependency))


class TellingLetters(DeadLetters):
    """Dead letters that the engine keeps, each once however often its range is read."""

    def __init__(self, line: Line, report: TellingReport) -> None:
        super().__init__(Path())
        self._line = line
        self._report = report

    def keep(self, letter: dict[str, Any]) -> None:
        """Have the engine write it down, and wait for that."""
        self._line.ask(Letter(letter, self._report.hint), Kept)
