"""What happens to a row that can't be relayed: --on-error exit or log.

Exit: the relay stops with the slot at the last good transaction, so that a restart repeats the failing row.
Log: the row alone is dropped, after it was written to the dead letters, counted and shown. A service that is
down is never a reason to drop a row.
"""

import json
import time

from bwtui.errors import BwtuiError, RowError
from bwtui.lsn import format_lsn
from bwtui.relay.ack import Span
from bwtui.relay.report import Report
from bwtui.relay.routing import Route
from bwtui.settings import RelaySettings
from bwtui.sink.base import Message, Sink
from bwtui.sink.dead_letter import DeadLetters, DroppedRow


class RowTooLarge(RowError):
    """A message is larger than its topic takes."""


class RowPolicy:
    """Applies --on-error."""

    def __init__(self, settings: RelaySettings, report: Report, letters: DeadLetters, sink: Sink) -> None:
        self._settings = settings
        self._report = report
        self._letters = letters
        self._sink = sink

    def refuse(self, route: Route, row: DroppedRow, error: BwtuiError, span: Span) -> None:
        """Drop ``row`` and keep it as a dead letter, or raise RowError under --on-error exit.

        A dead letter for --dead-letter-topic counts in ``span``, like any message.
        """
        route.counters.errors += 1
        self._report.error("row", error, row.table)
        identity = row.identity
        place = f"{row.operation} on {row.table} at {format_lsn(identity.commit_lsn)} #{identity.ordinal}"
        if self._settings.on_error == "exit":
            hint = error.hint or "mend the cause, or drop such rows into the dead letters with --on-error log"
            raise RowError(f"{place}: {error.message}", hint) from error
        try:
            letter = self._letters.keep(row, error.message, type(error).__name__)
        except OSError as failure:
            reason = failure.strerror or str(failure)
            raise RowError(
                f"{place}: the dead letter can't be written: {reason}", "free disk space"
            ) from failure
        route.counters.dead_letters += 1
        topic = self._settings.dead_letter_topic
        if topic:
            value = json.dumps(letter).encode()
            self._sink.send(
                topic,
                [Message(row.table.encode(), value, int(time.time() * 1000))],
                span,
            )
