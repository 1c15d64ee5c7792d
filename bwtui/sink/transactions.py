"""The Kafka sink of --exactly-once: messages become durable when their Kafka transaction commits.

Each transaction contains a record with the stream's position (`bwtui.sink.position_topic`), so that a restart
skips what was committed. The relay marks where a transaction may end, and the sink ends it: between two
transactions of PostgreSQL once it is due, or within one that is too large. A commit takes several round
trips, in a thread; messages sent meanwhile wait for the next transaction. See
docs/adr/0012-commit-the-position-with-the-rows.md.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from confluent_kafka import KafkaError, KafkaException, Producer

from bwtui.errors import ServiceRefused
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.model.position import Position
from bwtui.model.status import ExactlyOnceStatus
from bwtui.settings import RelaySettings
from bwtui.sink.base import DeliveryFailure, Message, MessageTuple, Sink
from bwtui.sink.delivery_failures import delivery_failure, held_back
from bwtui.sink.delivery_reports import DeliveryReports
from bwtui.sink.destination import Destination, SinkService
from bwtui.sink.kafka import KafkaService, KafkaSink, destination_of
from bwtui.sink.outbox import OutboxEntry
from bwtui.sink.transaction_checks import preconditions
from bwtui.sink.transaction_commits import (
    AbortThread,
    CommitStatistics,
    PendingCommit,
    ProducerPlaceholder,
    begin_producer,
)

#: A transaction of PostgreSQL that exceeds this number of rows or bytes is split. The bytes are below the
#: maximum that the relay has in flight (`bwtui.relay.batch.IN_FLIGHT_BYTES`): it stops reading until they are
#: committed.
SPLIT_ROWS, SPLIT_BYTES = 200_000, 32 << 20
#: A transaction that takes longer than this share of Kafka's timeout is split too: Kafka would abort it, and
#: abort it again whenever it is reread.
_SHARE = 0.5
#: transaction.timeout.ms: how long Kafka keeps an inactive transaction open. That of a killed relay blocks
#: readers until then, or until the relay is started again. A snapshot is one transaction: it has Kafka's
#: maximum.
_STREAM_MS, _SNAPSHOT_MS = 60_000, 900_000
#: If nothing more is there to send, a transaction ends this share of the interval after the last one.
_IDLE_SHARE = 0.2
#: If messages wait longer for others (linger.ms, seconds), only a commit sends them.
_SHORT_LINGER = 0.02

__all__ = ["TransactionalSink", "open_destination", "preconditions"]


def open_destination(settings: RelaySettings) -> Destination:
    """Open Kafka and the schema registry, like `bwtui.sink.kafka`, for transactions."""
    return destination_of(settings, TransactionalSink(settings))


def open_service(settings: RelaySettings) -> tuple[Sink, SinkService]:
    """Open only Kafka, like `bwtui.sink.kafka`."""
    sink = TransactionalSink(settings)
    return sink, KafkaService(settings, sink)


class TransactionalSink(KafkaSink):
    """Sends messages in Kafka transactions: a `bwtui.sink.base.Sink`.

    A span has one additional pending count until the transaction with its messages is committed.
    """

    def __init__(self, settings: RelaySettings) -> None:
        #: Entries that wait for the next transaction.
        self._next: deque[OutboxEntry] = deque()
        self._forget()
        self._is_idle = False
        self._committed_at = time.monotonic()
        self._opened_at = 0.0
        #: Number of messages in committed transactions.
        self._durable = 0
        self._commit_rows = settings.commit_rows
        #: A recording needs each message's offset. Otherwise only failures are reported: a failure prevents
        #: the commit.
        self._is_recorded = bool(settings.record)
        super().__init__(settings)
        #: A transaction older than this (seconds) ends at the next place where it may.
        self._old = int(self._config.get("transaction.timeout.ms", _STREAM_MS)) / 1_000 * _SHARE
        self._commit_seconds = min(settings.commit_ms / 1_000, self._old)
        #: Messages that Kafka rejected in this session for reasons of the message.
        self.refused: list[DeliveryFailure] = []
        #: Whether to commit at each boundary at once.
        self.is_eager = False
        #: Called before a transaction of PostgreSQL is split, and may forbid it.
        self.may_split: Callable[[], bool] = lambda: True
        #: Returns the message about another relay that has replaced this one, or "".
        self.is_fenced: Callable[[], str] = str
        #: Called at the end of a transaction; returns a check whether all of it is recorded.
        self.promise: Callable[[], Callable[[], bool]] = lambda: lambda: True
        self.topic = ""
        self.identity = ""
        self._commits = CommitStatistics()
        self._in_order = False

    # -- sessions ------------------------------------------------------------------------------------------

    def connect(
        self,
        identity: str,
        *,
        snapshot: bool = False,
        one_by_one: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> Producer:
        """Return a new producer, which fences any earlier one with ``identity`` and aborts its transaction.

        Any thread may call it. ``one_by_one``: each message is a request. ``check`` is called before anything
        is fenced, and raises if the producer is not needed any more. Raises ConnectionFailed and
        ServiceRefused.
        """
        config = {**self._config, "transactional.id": identity, "error_cb": self._noticed}
        # It may not exceed the transaction's timeout, which librdkafka ensures on its own.
        del config["message.timeout.ms"]
        config.setdefault("transaction.timeout.ms", _SNAPSHOT_MS if snapshot else _STREAM_MS)
        config["delivery.report.only.error"] = not (snapshot or one_by_one or self._is_recorded)
        if one_by_one:
            config["batch.num.messages"] = 1
        return begin_producer(config, check)

    def begin(self, producer: Producer, *, snapshot: bool = False, one_by_one: bool = False) -> None:
        """Send by ``producer``, a result of `connect`, from now on; the previous one has nothing in
        flight.
        """
        self._forget()
        self.refused = []
        self._committed_at = time.monotonic()
        self._is_snapshot, self._is_quiet = snapshot, not (snapshot or one_by_one or self._is_recorded)
        self._producer = producer
        self._produce = producer.produce

    def discard(self, *, in_order: bool) -> None:
        """Drop everything that is not committed. Raises ServiceRefused if another relay has fenced this
        one.
        """
        fenced = self._ending.fenced if self._ending is not None else ""
        if self._commit is not None:
            self._commit.give_up()
        self._producer.purge()
        self._accepted = self._durable
        self._forget()
        self._producer = self._new_producer()
        self._produce = self._producer.produce
        if fenced:
            raise ServiceRefused(fenced, "keep that relay running, or stop it before you restart this one")

    def _forget(self) -> None:
        #: Batches of the open transaction.
        self._spans: list[DeliverySpan] = []
        self._failures = []
        self._next.clear()
        self._mark: tuple[Position, bool] | None = None
        self._commit: PendingCommit | None = None
        self._ending: AbortThread | None = None
        self._is_open = self._is_broken = self._is_snapshot = self._is_quiet = False
        self._rows = self._bytes = self._next_rows = 0
        # Messages sent by the previous producer are never reported.
        self._reports = DeliveryReports(self._failed)

    # -- sending -------------------------------------------------------------------------------------------

    def send(
        self, topic: str, messages: Sequence[MessageTuple], span: DeliverySpan, receipt: Receipt | None = None
    ) -> None:
        self._look()
        self._accepted += len(messages)
        self._mark = None
        if self._commit is not None:
            span.pending += len(messages)
            self._next.append(OutboxEntry(topic, messages, span, receipt))
            self._next_rows += len(messages)
            return
        self._hand_over(topic, messages, span, receipt)

    def _hand_over(
        self, topic: str, messages: Sequence[MessageTuple], span: DeliverySpan, receipt: Receipt | None
    ) -> None:
        if not self._is_open and not self._is_broken:
            self._open_transaction()
        # The rows of a snapshot are confirmed by their slot, which is created before the transaction commits.
        if not self._is_snapshot and (not self._spans or self._spans[-1] is not span):
            span.pending += 1
            self._spans.append(span)
            self._bytes += span.size
        self._rows += len(messages)
        super()._hand_over(topic, messages, span, receipt)
        if self._is_quiet:
            span.pending -= len(messages)

    def _open_transaction(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            self._break(error.args[0])
        self._is_open, self._opened_at = True, time.monotonic()

    @property
    def has_uncommitted(self) -> bool:
        """Whether messages were sent for which no commit has begun."""
        return (self._is_open and self._commit is None) or bool(self._next)

    @property
    def is_clean(self) -> bool:
        """Whether everything that was sent is committed."""
        return not self._is_open and not self._next

    @property
    def is_busy(self) -> bool:
        """True if a commit or a message is in flight."""
        if self._is_broken:
            # Its messages will not be delivered.
            return not self._end(0.0)
        return self._commit is not None or bool(len(self._producer))

    @property
    def wants_boundary(self) -> bool:
        """True if the transaction should end as soon as one of PostgreSQL's does."""
        return self._is_open and self._commit is None and self._is_due()

    def mark(self, position: Position, *, is_whole: bool, is_idle: bool = False) -> None:
        """Record that everything sent so far brings the stream to ``position``.

        ``is_whole``: that is between two transactions of PostgreSQL. ``is_idle``: nothing more is there to
        send.
        """
        self._mark, self._is_idle = (position, is_whole), is_idle

    def _is_due(self) -> bool:
        return self.is_eager or self._rows >= self._commit_rows or self._age() >= self._commit_seconds

    def _age(self) -> float:
        return time.monotonic() - self._opened_at

    def _is_too_large(self) -> bool:
        return self._rows >= SPLIT_ROWS or self._bytes >= SPLIT_BYTES or self._age() >= self._old

    def commit_when_due(self) -> None:
        """Begin a commit if one is due, and the relay has marked a position."""
        if self._mark is None or not self._is_open or self._is_broken or self._commit is not None:
            return
        _, is_whole = self._mark
        if is_whole:
            since = time.monotonic() - self._committed_at
            is_awaited = self._is_idle and since >= self._commit_seconds * _IDLE_SHARE
            if is_awaited or self._is_due():
                self._begin_commit()
        elif self._is_too_large() and self.may_split():
            self._begin_commit()

    def _begin_commit(self) -> None:
        assert self._mark is not None
        position = self._mark[0]
        # First the recording, then Kafka: what is committed is never read again, so the recording must have
        # it.
        is_recorded, is_idle = self.promise(), self._is_idle
        self._commit = PendingCommit(
            self._producer,
            self.topic,
            position.key,
            position.to_json(),
            int(time.time() * 1_000),
            lambda: (is_idle or self._is_reported()) and is_recorded(),
        )

    def _is_reported(self) -> bool:
        """Return whether every message of the transaction has its report, after handling the new ones.

        Otherwise a commit waits for reports in its thread, each time until a relay that lags releases the
        interpreter lock: 5 ms.
        """
        if self.lingers > _SHORT_LINGER:
            return True
        super().poll(0)
        return not len(self._producer)

    def commit_now(self, position: Position) -> PendingCommit:
        """Begin to commit the open transaction, whatever its content, and return the commit to wait for."""
        if not self._is_open:
            self._open_transaction()
        self._mark = position, True
        self._begin_commit()
        assert self._commit is not None
        return self._commit

    def _commit_ended(self, commit: PendingCommit) -> None:
        self._commit = None
        if commit.error is None:
            self._settle(commit)
        if commit.error is not None or self._is_broken:
            self._break(commit.error)
            return
        self._outage = None
        self._is_open = False
        while self._next:
            entry = self._next.popleft()
            entry.span.pending -= len(entry.messages)
            self._hand_over(*entry)

    def _settle(self, commit: PendingCommit) -> None:
        """Record that Kafka has committed the open transaction: its messages count, whatever happens next."""
        self._commits.note(commit.begun)
        self._committed_at = time.monotonic()
        spans, self._spans = self._spans, []
        self._durable += self._rows
        self._rows = self._bytes = self._next_rows = 0
        for span in spans:
            span.pending -= 1

    # -- waiting -------------------------------------------------------------------------------------------

    def poll(self, timeout: float) -> None:
        commit = self._commit
        if commit is None:
            super().poll(timeout)
            self.commit_when_due()
        elif commit.wait(timeout):
            self._commit_ended(commit)

    def flush(self, timeout: float) -> bool:
        until = time.monotonic() + timeout
        while not self._is_broken:
            if self._commit is None:
                if not self._is_open:
                    return True
                if self._mark is None:
                    # There is no position in the middle: a restart sends it again.
                    self._break(None)
                    break
                self._begin_commit()
            if (remaining := until - time.monotonic()) <= 0:
                return False
            self.poll(remaining)
        return self._end(max(0.0, until - time.monotonic()))

    def _end(self, timeout: float) -> bool:
        """Abort the open transaction, and find out whether another relay has replaced this one.

        A commit that succeeds at that moment counts: nothing sends its messages again.
        """
        until = time.monotonic() + timeout
        if self._ending is None:
            if self._commit is not None:
                self._commit.give_up()
            self._ending = AbortThread(self._producer, self.is_fenced)
        if not self._ending.wait(timeout):
            return False
        if (commit := self._commit) is not None:
            if not commit.is_over(max(0.0, until - time.monotonic())):
                return False
            if commit.error is None:
                self._commit = None
                self._settle(commit)
        return True

    def queued(self) -> int:
        # The messages of a broken transaction are read again.
        return 0 if self._is_broken else super().queued() + self._next_rows + len(self._spans)

    def answered(self) -> int:
        return super().answered() if self._is_snapshot else self._durable

    def outage(self) -> str | None:
        return self._outage if len(self._producer) or self._commit is not None else None

    def exactly_once(self) -> ExactlyOnceStatus:
        return self._commits.told(self.identity, self.topic)

    # -- failures ------------------------------------------------------------------------------------------

    def hold_back(self) -> None:
        self._is_broken = True
        super().hold_back()

    def close(self) -> None:
        """Release the producer; Kafka aborts the open transaction at the next start, or after the timeout."""
        if self._commit is not None:
            self._commit.give_up()
        super().close()

    def _new_producer(self) -> Producer:
        return cast(Producer, ProducerPlaceholder())

    def _break(self, error: KafkaError | None) -> None:
        """Send nothing more until a new session begins; ``error`` is the reason for a failed commit."""
        self._is_broken = True
        self._produce = held_back
        if error is not None:
            reason = f"Kafka did not commit a transaction: {error.str()}"
            self._failures.append(DeliveryFailure(self.topic, reason, is_outage=True))

    def _failed(
        self,
        topic: str,
        error: KafkaError,
        message: Message,
        span: DeliverySpan,
        receipt: Receipt | None = None,
        index: int = 0,
    ) -> None:
        self._break(None)
        span.failed += 1
        failure = delivery_failure(topic, error, message, span, receipt, index, ends=self._is_snapshot)
        self._failures.append(failure)
        if not failure.is_outage:
            self.refused.append(failure)
