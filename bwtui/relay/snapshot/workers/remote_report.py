"""Forward a worker's errors and dead letters to the engine, whose report is the relay's."""

from pathlib import Path
from typing import Any

from bwtui.errors import BwtuiError
from bwtui.relay.run_state import RunState
from bwtui.relay.snapshot.workers.engine_channel import EngineChannel
from bwtui.relay.snapshot.workers.messages import (
    DeadLetterMessage,
    DeadLetterStored,
    DependencyRecovered,
    ErrorReported,
    SerializedError,
)
from bwtui.sink.dead_letter_writer import DeadLetterWriter


class RemoteReport(RunState):
    """The worker's report; counters are sent with its heartbeats."""

    def __init__(self, on_error: str) -> None:
        super().__init__()
        self.line: EngineChannel | None = None
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
            self.line.send(ErrorReported(kind, SerializedError.of(error), table, dependency))

    def outage(self, sentence: str | None, service: str = "Kafka") -> None:
        """Do nothing: heartbeats report outages, and the engine combines those of its workers."""

    def recovered(self, dependency: str) -> None:
        """Report to the engine that a dependency works again."""
        if self.line is not None:
            self.line.send(DependencyRecovered(dependency))


class RemoteDeadLetters(DeadLetterWriter):
    """Dead letters that the engine stores, each once however often its range is read."""

    def __init__(self, line: EngineChannel, report: RemoteReport) -> None:
        super().__init__(Path())
        self._line = line
        self._report = report

    def keep(self, letter: dict[str, Any]) -> None:
        """Let the engine store the dead letter, and wait for that."""
        self._line.ask(DeadLetterMessage(letter, self._report.hint), DeadLetterStored)
