"""Careful mode with --exactly-once: find rows that Kafka rejects, and skip them in the next session.

A rejected message aborts its Kafka transaction, although every other row in it is good. So the relay does not
re-send single messages. It sends each message in a request of its own, remembers the position of each
rejected row in the stream, and restarts the session from the last committed position.
"""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from bwtui.errors import BwtuiError, RowError
from bwtui.model.delivery import REFUSED, DeliverySpan
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows.batch_bisector import BatchBisector, RefusedRowPolicy, RestartFromConfirmed
from bwtui.relay.rows.policy import RowPolicy, cut
from bwtui.relay.rows.recorder import Recorder
from bwtui.sink.dead_letters import DroppedRow
from bwtui.sink.destination import DeliveryFailure
from bwtui.sink.transactions import TransactionalSink

_WAIT_SECONDS = 0.02
#: Commit LSN and ordinal of each change that Kafka rejects, with the reason and the hint.
Refused = dict[tuple[int, int], tuple[str, str]]


def _about(letter: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(letter[name] for name in ("commit_lsn", "ordinal", "xid", "operation", "table"))


class RejectedRowFinder(BatchBisector):
    """Waits for each batch, and stores the rows that Kafka rejects in ``refused``."""

    def __init__(
        self,
        sink: TransactionalSink,
        policy: RefusedRowPolicy,
        pulse: Callable[[], None],
        refused: Refused,
        recorder: Recorder,
    ) -> None:
        super().__init__(sink, policy, pulse)
        self._transactions = sink
        self._refused = refused
        self._recorder = recorder

    def check(self, commit_lsn: int, ordinal: int) -> None:
        if (why := self._refused.get((commit_lsn, ordinal))) is not None:
            raise RowError(*why)

    def settle(self, span: DeliverySpan) -> None:
        sink = self._transactions
        try:
            while sink.is_busy:
                sink.poll(_WAIT_SECONDS)
                # The commit may be waiting for the recording to reach the disk.
                self._recorder.settle(idle=True)
                self._pulse()
            failures = self._policy.undelivered(sink.take_failures())
            if failures:
                self._note(failures)
                raise RestartFromConfirmed(failures)
        finally:
            self._sent, self._rows, self._names = [], {}, {}

    def _note(self, failures: list[DeliveryFailure]) -> None:
        numbers = {id(section.receipt): number for number, section in enumerate(self._sent)}
        for failure in failures:
            if not failure.is_outage and failure.receipt is not None:
                rows = self._sent[numbers[id(failure.receipt)]].rows
                identity = rows[failure.index]
                self._refused[identity.commit_lsn, identity.ordinal] = failure.reason, failure.hint
                # Record it as rejected under --on-error exit, too: Kafka will never accept the row as it is.
                failure.receipt.partitions[failure.index] = REFUSED


class WholeTransactionPolicy(RowPolicy):
    """Applies --on-error; a row ends the relay only after everything before its transaction is committed.

    A dead letter for --dead-letter-topic is in the same Kafka transaction as the rows around its row. If
    Kafka rejects the dead letter, the transaction aborts, and the relay shortens the letter when it reads the
    row again. If Kafka rejects the shortened letter, too, the relay leaves it out.
    """

    #: Whether each source transaction has its own Kafka transaction, so that an open one belongs to the row
    #: alone.
    is_alone = False
    #: Whether such a row has made the session start again.
    is_sought = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: How often Kafka has rejected the dead letter of each row.
        self._refusals: Counter[tuple[Any, ...]] = Counter()

    def undelivered(self, failures: list[DeliveryFailure]) -> list[DeliveryFailure]:
        """Note rejected dead letters; the stream is read again for them, too. Raises ServiceRefused."""
        self._check_setup(failures)
        for failure in failures:
            if failure.topic == self._settings.dead_letter_topic and not failure.is_outage:
                assert failure.message is not None
                letter = json.loads(failure.message.value or b"{}")
                self._refusals[_about(letter)] += 1
                if letter.get("cut"):
                    self._note_lost(letter, failure)
        return failures

    def _fitting(self, letter: dict[str, Any]) -> dict[str, Any] | None:
        refusals = self._refusals[_about(letter)]
        return letter if not refusals else cut(letter) if refusals == 1 else None

    def refuse(self, route: TableRoute, row: DroppedRow, error: BwtuiError, span: DeliverySpan) -> None:
        if self._settings.on_error == "exit" and row.operation != "snapshot" and not self.is_alone:
            self.is_sought = True
            reason = f"a row of {row.table} can't be sent; the relay commits everything before it first"
            raise RestartFromConfirmed([DeliveryFailure(route.topic, reason, is_outage=False)])
        super().refuse(route, row, error, span)
