"""The policy for rows that can't be relayed: --on-error exit or log.

Exit: the relay stops with the slot at the last good transaction, so that a restart repeats the failing row.
Log: only this row is dropped, after it was written to the dead letters, counted and shown. A service that is
down, or that lacks a right or a setting, is never a reason to drop a row.
"""

import json
import time
from typing import Any

from bwtui.errors import BwtuiError, RowError, ServiceRefused
from bwtui.file_errors import file_failed
from bwtui.model.delivery import DeliverySpan
from bwtui.model.lsn import format_lsn
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.sink.dead_letters import DeadLetterWriter, DroppedRow
from bwtui.sink.destination import DeliveryFailure, Message, Sink

#: Maximum number of dropped rows that are remembered, to recognize them when they are read again.
_REMEMBERED = 20_000


#: A row's commit LSN and ordinal, its operation and table.
_Change = tuple[int, int, str, str]


def cut(letter: dict[str, Any]) -> dict[str, Any]:
    """Return a dead letter without its row."""
    return {**letter, "before": None, "after": None, "cut": True}


class RowTooLarge(RowError):
    """A message exceeds its topic's maximum size."""


class RowPolicy:
    """Applies --on-error."""

    def __init__(
        self, settings: RelaySettings, report: RunState, letters: DeadLetterWriter, sink: Sink
    ) -> None:
        self._settings = settings
        self._report = report
        self._letters = letters
        self._sink = sink
        #: The time at which each row was dropped.
        self._dropped: dict[_Change, str] = {}
        #: The error of a topic that rejects all messages; it ends the relay, wherever it is noticed first.
        self.shut: ServiceRefused | None = None

    def forget(self) -> None:
        """Forget which rows were dropped: rows from now on have the LSNs of a different history."""
        self._dropped.clear()

    def refuse(self, route: TableRoute, row: DroppedRow, error: BwtuiError, span: DeliverySpan) -> None:
        """Drop ``row`` and keep it as a dead letter, or raise RowError under --on-error exit.

        A dead letter for --dead-letter-topic counts in ``span``, like any message. A row that is read again
        after a failed delivery is kept only once.
        """
        identity = row.identity
        change = (identity.commit_lsn, identity.ordinal, row.operation, row.table)
        # Rows outside a transaction (snapshot, backfill) are read once, and two of them may have one number.
        is_new = not identity.xid or change not in self._dropped
        if is_new:
            route.counters.errors += 1
            self._report.error("row", error, row.table)
        place = f"{row.operation} on {row.table} at {format_lsn(identity.commit_lsn)} #{identity.ordinal}"
        if self._settings.on_error == "exit":
            raise RowError(f"{place}: {error.message}", error.hint) from error
        letter = self._letters.letter(row, error.message, type(error.__cause__ or error).__name__)
        if is_new:
            try:
                with self._report.clock.during("state"):
                    self._letters.keep(letter)
            except OSError as failure:
                raise file_failed(
                    f"{place}: the dead letter can't be written", failure, RowError
                ) from failure
            route.counters.dead_letters += 1
            if identity.xid:
                self._remember(change, letter["time"])
        else:
            # The topic gets the same dead letter once more.
            letter["time"] = self._dropped[change]
        topic = self._settings.dead_letter_topic
        fitting = self._fitting(letter)
        if topic and fitting is not None:
            value = json.dumps(fitting).encode()
            if not span.sealed:
                # A sealed span's size was already added to the total.
                span.size += len(value)
            self._sink.send(topic, [Message(row.table.encode(), value, int(time.time() * 1000))], span)

    def keep(self, letter: dict[str, Any]) -> None:
        """Store, durably, the dead letter of a row that was dropped in another process. Raises OSError."""
        self._letters.keep(letter)

    def undelivered(self, failures: list[DeliveryFailure]) -> list[DeliveryFailure]:
        """Handle dead letters that --dead-letter-topic refuses, and return the other failures.

        A dead letter contains the row, so it is easily too large itself; without the row it is not. Raises
        ServiceRefused if a topic rejects all messages: that is not the fault of a row.
        """
        self._check_setup(failures)
        topic = self._settings.dead_letter_topic
        undelivered = []
        for failure in failures:
            if failure.topic == topic and not failure.is_outage:
                self._shorten(failure)
            else:
                undelivered.append(failure)
        return undelivered

    def _check_setup(self, failures: list[DeliveryFailure]) -> None:
        for failure in failures:
            # A transaction's BEGIN or END message is not a row, so it can't be dropped.
            is_metadata = failure.topic == self._settings.transaction_topic and not failure.is_outage
            if failure.is_setup or is_metadata:
                self.shut = self.shut or ServiceRefused(failure.reason, failure.hint)
        if self.shut is not None:
            raise self.shut

    def _fitting(self, letter: dict[str, Any]) -> dict[str, Any] | None:
        """Return the dead letter as it is sent to the topic, or None to send nothing."""
        return letter

    def _shorten(self, failure: DeliveryFailure) -> None:
        """Send a dead letter again without its row; if that is refused too, only the file has it."""
        message, span = failure.message, failure.span
        assert message is not None and span is not None
        span.settle_failed()
        letter = json.loads(message.value or b"{}")
        if letter.get("cut"):
            self._note_lost(letter, failure)
            return
        self._sink.send(failure.topic, [message._replace(value=json.dumps(cut(letter)).encode())], span)

    def _note_lost(self, letter: dict[str, Any], failure: DeliveryFailure) -> None:
        reason = f"a dead letter could not be sent to topic {failure.topic}: {failure.reason}"
        error = RowError(reason, "it is stored in the relay's dead-letters.jsonl")
        self._report.error("delivery", error, letter["table"])

    def _remember(self, change: _Change, time: str) -> None:
        self._dropped[change] = time
        if len(self._dropped) > _REMEMBERED:
            del self._dropped[next(iter(self._dropped))]
