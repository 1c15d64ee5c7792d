"""The Kafka sink of --exactly-once: messages become durable when their Kafka transaction commits.

Each transaction contains a record with the stream's position (`bwtui.sink.transactions`), so that a restart
skips what was committed. The relay marks where a transaction may end, and the sink ends it: between two
transactions of PostgreSQL once it is due, or within one that is too large. A commit takes several round
trips, in a thread; messages sent meanwhile wait for the next transaction. See
docs/adr/0012-commit-the-position-with-the-rows.md.
"""

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec, ResourceType

from bwtui.errors import BwtuiError, ConnectionFailed, PositionHidden, RefusedError, ServiceRefused
from bwtui.kafka.client import (
    AUTHENTICATION_ERRORS,
    READING,
    WITHOUT_LEADER,
    authentication_failed,
    client_config,
    new_client,
    unreachable,
)
from bwtui.kafka.commands import LoggedAdmin
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.model.position import Position
from bwtui.model.status import ExactlyOnceStatus
from bwtui.settings import RelaySettings
from bwtui.sink.delivery import DeliveryReports, OutboxEntry, delivery_failure, held_back
from bwtui.sink.destination import (
    DeliveryFailure,
    Destination,
    Message,
    MessageTuple,
    Precondition,
    Sink,
    SinkService,
)
from bwtui.sink.kafka import KafkaService, KafkaSink, destination_of, present_limits
from bwtui.sink.kafka import preconditions as of_kafka
from bwtui.sink.topics import TopicAdmin

# The checks of the brokers for --exactly-once by doctor; they create and change nothing.
#
# They don't check that the relay's user may write under its transactional.id: the only way would be to begin
# a
# transaction, which fences any relay that has one open. The relay reports it when it starts.

_WAIT_SECONDS = 10.0
_LONGEST, _MIN_ISR, _REPLICAS = (
    "transaction.max.timeout.ms",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
)


def preconditions(settings: RelaySettings) -> Sequence[Precondition]:
    """Return the checks that Kafka and the schema registry respond, and that transactions work."""

    def transactions() -> str:
        limits, brokers = _broker_limits(settings)
        timeout = int(dict(settings.kafka_config).get("transaction.timeout.ms", 0)) or None
        return judged(settings, limits, brokers, timeout)

    return (*of_kafka(settings), ("Kafka transactions", transactions))


def judged(settings: RelaySettings, limits: dict[str, int], brokers: int, timeout: int | None) -> str:
    """Return the result in a few words. Raises ServiceRefused if transactions are not possible.

    ``timeout`` is the given transaction.timeout.ms (milliseconds). Settings that the brokers do not show are
    missing from ``limits``.
    """
    longest = limits.get(_LONGEST)
    if longest is not None and timeout is not None and timeout > longest:
        raise ServiceRefused(
            f"transaction.timeout.ms is {timeout}, but the brokers allow at most {longest}",
            f"set -C transaction.timeout.ms={longest} or less, or raise {_LONGEST} on the brokers",
        )
    if brokers < limits.get(_MIN_ISR, 0):
        raise ServiceRefused(
            f"transactions need {limits[_MIN_ISR]} in-sync replicas ({_MIN_ISR}); brokers up: {brokers}",
            f"start more brokers, or lower {_MIN_ISR} on the brokers",
        )
    notes = [f"position in topic {positions_topic(settings)}"]
    if longest is not None:
        notes.append(f"a snapshot may take {min(longest, timeout or longest) // 1_000} s")
    if brokers > 1 and limits.get(_REPLICAS, brokers) == 1:
        notes.append(f"{_REPLICAS} is 1: the relay waits while that one broker is down")
    return ", ".join(notes)


def _broker_limits(settings: RelaySettings) -> tuple[dict[str, int], int]:
    """Return the settings of one broker, and how many brokers are up. Raises ConnectionFailed."""
    admin = new_client(LoggedAdmin, client_config(settings))
    try:
        nodes = admin.describe_cluster(request_timeout=_WAIT_SECONDS).result().nodes
        resource = ConfigResource(ResourceType.BROKER, str(nodes[0].id))
        (future,) = admin.describe_configs([resource], request_timeout=_WAIT_SECONDS).values()
        entries = future.result()
    except KafkaException as error:
        reason = error.args[0]
        if reason.code() != KafkaError.CLUSTER_AUTHORIZATION_FAILED:
            raise unreachable(settings.broker, reason) from error
        raise ConnectionFailed(
            f"the brokers' settings can't be read: {reason.str()}",
            "grant the relay's user the right (ACL) DescribeConfigs on the cluster, or check them manually",
        ) from error
    values = {name: entries[name].value for name in (_LONGEST, _MIN_ISR, _REPLICAS) if name in entries}
    return {name: int(value) for name, value in values.items() if value is not None}, len(nodes)


# A transactional producer's threads, which commit or abort, and a placeholder for the producer.

#: Maximum duration of one call to the broker (seconds), after which other conditions are checked.
_CALL_SECONDS = 5.0
_INIT_SECONDS = 20.0
#: Pause between two checks whether a commit may begin.
_READY_SECONDS = 0.002
#: Period (seconds) and maximum number of commits for the statistics on commit durations.
_SECONDS, _RECENT = 10.0, 2_000
_REFUSALS = {
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "set -C transaction.timeout.ms=N to at most the brokers' "
    "transaction.max.timeout.ms",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "grant the relay's user the rights (ACLs) Write and "
    "Describe on its transactional.id, which begins with bwtui-",
    KafkaError._UNSUPPORTED_FEATURE: "upgrade the brokers to 2.5 or later, or omit --exactly-once",
    KafkaError.UNSUPPORTED_VERSION: "upgrade the brokers to 2.5 or later, or omit --exactly-once",
}


def begin_error(error: KafkaError, broker: str) -> BwtuiError:
    """Return the error for transactions that can't be started."""
    if error.code() in _REFUSALS:
        return ServiceRefused(f"Kafka rejects transactions: {error.str()}", _REFUSALS[error.code()])
    if error.code() in AUTHENTICATION_ERRORS:
        return authentication_failed("Kafka", error)
    if error.retriable():
        return unreachable(broker, error)
    return ConnectionFailed(
        f"Kafka can't begin a transaction: {error.str()}",
        "the relay retries; check the brokers' logs",
    )


def begin_producer(config: dict[str, Any], check: Callable[[], None]) -> Producer:
    """Return a producer that may begin transactions; see `TransactionalSink.connect`."""
    producer = new_client(Producer, config)
    check()
    try:
        producer.init_transactions(_INIT_SECONDS)
    except KafkaException as error:
        raise begin_error(error.args[0], config["bootstrap.servers"]) from error
    return producer


class ProducerPlaceholder:
    """Placeholder for the producer until a session has one, and after it has ended."""

    def __len__(self) -> int:
        return 0

    def poll(self, timeout: float) -> int:
        time.sleep(timeout)
        return 0

    def flush(self, timeout: float) -> int:
        return 0

    def list_topics(self, topic: str, timeout: float) -> None:
        """Do nothing: the next producer requests its topics itself."""

    def purge(self, in_queue: bool = True, in_flight: bool = True) -> None:
        """Do nothing: there are no messages."""

    def begin_transaction(self) -> None:
        """Refuse: nothing may be sent before the position is known."""
        held_back()

    def produce(self, *args: Any) -> None:
        held_back()


class PendingCommit:
    """One commit in progress.

    Its outcome is unknown if it is abandoned: the next session finds out.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        key: bytes,
        value: bytes,
        stamp: int,
        is_ready: Callable[[], bool],
    ) -> None:
        """Take the position to write to ``topic``: ``key`` and ``value``, at ``stamp`` in Unix milliseconds.

        The commit begins once ``is_ready`` returns True, which `wait` polls.
        """
        self._producer = producer
        self._record = topic, value, key, 0, None, None, stamp
        self._ended = threading.Event()
        self._is_given_up = False
        #: Why it has failed, once it has ended. Only Kafka's own confirmation sets it to None: if the thread
        #: ends in any other way, the transaction may or may not be committed.
        self.error: KafkaError | None = KafkaError(KafkaError._FAIL, "its thread ended before the commit did")
        self._is_ready = is_ready
        self._is_begun = False
        #: The end of its transaction by the monotonic clock.
        self.begun = time.monotonic()
        self._begin_if_ready()

    def wait(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds; return whether it has ended."""
        until = time.monotonic() + timeout
        while not self._begin_if_ready():
            if (remaining := until - time.monotonic()) <= 0:
                return False
            time.sleep(min(remaining, _READY_SECONDS))
        return self._ended.wait(max(0.0, until - time.monotonic()))

    def is_over(self, timeout: float) -> bool:
        """Return whether nothing of an abandoned commit is in progress; it may never have begun."""
        return not self._is_begun or self._ended.wait(timeout)

    def _begin_if_ready(self) -> bool:
        if not self._is_begun and not self._is_given_up and self._is_ready():
            self._is_begun = True
            threading.Thread(target=self._run, name="commit", daemon=True).start()
        return self._is_begun

    def give_up(self) -> None:
        """Stop retrying."""
        self._is_given_up = True

    def _run(self) -> None:
        try:
            self._producer.produce(*self._record)
            while not self._is_given_up:
                error = self._commit()
                if error is None or not error.retriable():
                    self.error = error
                    return
            self.error = KafkaError(KafkaError._TIMED_OUT)
        except (KafkaException, BufferError) as error:
            self.error = _reason(error)
        finally:
            self._ended.set()

    def _commit(self) -> KafkaError | None:
        return _error_of(self._producer.commit_transaction)


class CommitStatistics:
    """Statistics on commits: the main thread records them, any thread may read."""

    def __init__(self) -> None:
        self._count = 0
        self._recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)

    def note(self, begun: float) -> None:
        """Record a commit that has just ended; ``begin_producer`` is by the monotonic clock."""
        now = time.monotonic()
        self._count += 1
        self._recent.append((now, now - begun))

    def status(self, identity: str, topic: str) -> ExactlyOnceStatus:
        """Return the statistics, with the transactional id and the topic of positions."""
        recent, now = tuple(self._recent), time.monotonic()
        durations = sorted(seconds for at, seconds in recent if at >= now - _SECONDS)
        # If there were more commits than are kept, the period is that of those kept.
        since = min(_SECONDS, now - recent[0][0]) if len(recent) == _RECENT else _SECONDS
        return ExactlyOnceStatus(
            identity,
            topic,
            self._count,
            round(len(durations) / since, 1),
            round(durations[len(durations) // 2], 4) if durations else None,
            round(durations[len(durations) * 99 // 100], 4) if durations else None,
        )


class AbortThread:
    """Aborts a failed transaction, and finds out whether another relay has fenced this one."""

    def __init__(self, producer: Producer, is_fenced: Callable[[], str]) -> None:
        self._producer = producer
        self._is_fenced = is_fenced
        #: The message about the relay that has replaced this one, or "".
        self.fenced = ""
        self._thread = threading.Thread(target=self._run, name="abort", daemon=True)
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds; return whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._producer.purge()
        abort = getattr(self._producer, "abort_transaction", None)
        if abort is None:
            return
        _error_of(abort)
        # Whatever the result of the abort: Kafka also calls a producer fenced if its transaction took too
        # long, and is not contacted at all if nothing had been sent yet.
        with contextlib.suppress(BwtuiError):
            self.fenced = self._is_fenced()


def _error_of(call: Callable[[float], object]) -> KafkaError | None:
    """Call ``call``; return the error, or None on success."""
    try:
        call(_CALL_SECONDS)
    except KafkaException as error:
        return _reason(error)
    except SystemError:
        # Raised by a client if a fatal error is reported within a callback.
        return KafkaError(KafkaError._FENCED, fatal=True)
    return None


def _reason(error: KafkaException | BufferError) -> KafkaError:
    if isinstance(error, KafkaException):
        reason: KafkaError = error.args[0]
        return reason
    return KafkaError(KafkaError._QUEUE_FULL)


# The topic of positions: one record within each Kafka transaction has the stream's position.

#: Number of offsets to read at the end first, and the factor for each next step: a commit has two offsets.
_STEP, _FACTOR = 200, 32
_READ_SECONDS, _PAUSE_SECONDS = 10.0, 0.2
#: Maximum time for which an open transaction may hide a position: the commit of a live relay takes less.
_HIDDEN_SECONDS, _LOOK_SECONDS = 1.0, 0.02
#: One record per commit: small segments, which are compacted soon, keep the topic short.
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"}


def positions_topic(settings: RelaySettings) -> str:
    """Return the topic's name. It has more parts than a table's topic under the same prefix can have."""
    name = f"bwtui.position.{settings.slot}"
    return f"{settings.topic_prefix}.{name}" if settings.topic_prefix else name


class PositionTopic(TopicAdmin):
    """Creates the topic, and reads the last position in it."""

    def __init__(self, settings: RelaySettings, config: Mapping[str, Any]) -> None:
        super().__init__(dict(config), 1_048_576)
        self.topic = positions_topic(settings)
        self._config = {
            **config,
            **READING,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            # A start waits twice for the topic's end, each time half a second by the broker's default.
            "fetch.wait.max.ms": 10,
        }

    def prepare(self) -> None:
        """Create the topic if it is missing. Raises RefusedError and ConnectionFailed."""
        if not self.ensure(self.topic, keyed=True).compacted:
            raise RefusedError(
                f"topic {self.topic} is not compacted: the relay's position in it would expire",
                f"set cleanup.policy=compact on topic {self.topic}",
            )

    def _new(self, topic: str, keyed: bool) -> NewTopic:
        return NewTopic(topic, 1, -1, config=_CONFIG)

    def last(self, key: bytes) -> Position | None:
        """Return the newest committed position of ``key``, or None. Raises ConnectionFailed, RefusedError.

        A leader election is waited for, since it would fail a start. Relays of other servers with the same
        slot name and prefix write to the same partition, and a read_committed consumer sees nothing after the
        first record of an open transaction. Raises PositionHidden if a transaction stays open.
        """
        until = time.monotonic() + _READ_SECONDS
        while True:
            try:
                return self._last(key)
            except KafkaException as error:
                reason = error.args[0]
                if reason.code() not in WITHOUT_LEADER or time.monotonic() > until:
                    raise self._unreadable(reason) from error
            time.sleep(_PAUSE_SECONDS)

    def _last(self, key: bytes) -> Position | None:
        consumer = new_client(Consumer, self._config)
        place = TopicPartition(self.topic, 0)
        try:
            low, high = self._bounds(consumer, place)
            step = _STEP
            while True:
                start = max(low, high - step)
                value = self._read(consumer, start, key)
                if value is not None or start <= low:
                    return self._position(value)
                step *= _FACTOR
        finally:
            consumer.close()

    def _bounds(self, consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
        """Return the partition's first offset, and an end offset before which every transaction has ended."""
        request = {place: OffsetSpec.latest()}
        level = IsolationLevel.READ_UNCOMMITTED
        futures = self._ready_client().list_offsets(
            request, isolation_level=level, request_timeout=_READ_SECONDS
        )
        end = futures[place].result().offset
        until = time.monotonic() + _HIDDEN_SECONDS
        while True:
            low, stable = consumer.get_watermark_offsets(place, _READ_SECONDS)
            if stable >= end:
                return low, stable
            if time.monotonic() > until:
                raise PositionHidden(
                    f"an open Kafka transaction of another relay hides the position in topic {self.topic}",
                    "the relay resumes once that transaction ends, after its transaction.timeout.ms at the "
                    "latest; relays of different servers avoid this with different slot names or prefixes",
                )
            time.sleep(_LOOK_SECONDS)

    def _read(self, consumer: Consumer, start: int, key: bytes) -> bytes | None:
        """Return the newest committed value of ``key`` from offset ``start`` on."""
        consumer.assign([TopicPartition(self.topic, 0, start)])
        value = None
        while (record := consumer.poll(_READ_SECONDS)) is not None:
            error = record.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return value
            if error is not None:
                raise KafkaException(error)
            if record.key() == key:
                value = record.value()
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _position(self, value: bytes | None) -> Position | None:
        try:
            return Position.from_json(value) if value is not None else None
        except ValueError as error:
            raise RefusedError(
                f"the last record of topic {self.topic} is not a position of this relay",
                "choose a different slot or --topic-prefix, or omit --exactly-once",
            ) from error

    def _unreadable(self, error: KafkaError) -> ConnectionFailed:
        return ConnectionFailed(
            f"topic {self.topic} can't be read: {error.str()}",
            "the relay reads its position back: grant its user READ, and check that the brokers are up",
        )


#: A transaction of PostgreSQL that exceeds this number of rows or bytes is split. The bytes are below the
#: maximum that the relay has in flight (`bwtui.relay.rows.batch.IN_FLIGHT_BYTES`): it stops reading until
#: they are committed.
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

__all__ = ["TransactionalSink", "open_destination", "preconditions", "present_limits"]


def open_destination(settings: RelaySettings) -> Destination:
    """Open Kafka and the schema registry, like `bwtui.sink.kafka`, for transactions."""
    return destination_of(settings, TransactionalSink(settings))


def open_service(settings: RelaySettings) -> tuple[Sink, SinkService]:
    """Open only Kafka, like `bwtui.sink.kafka`."""
    sink = TransactionalSink(settings)
    return sink, KafkaService(settings, sink)


def _is_recorded() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class TransactionChecks:
    """The questions that the sink asks before it ends a transaction."""

    #: Returns the message about another relay that has replaced this one, or "".
    is_fenced: Callable[[], str] = str
    #: Called at the end of a transaction; returns a check whether all of it is recorded.
    promise: Callable[[], Callable[[], bool]] = lambda: _is_recorded
    #: Called before a transaction of PostgreSQL is split, and may forbid it.
    may_split: Callable[[], bool] = lambda: True


class TransactionalSink(KafkaSink):
    """Sends messages in Kafka transactions: a `bwtui.sink.destination.Sink`.

    A span has one additional pending count until the transaction with its messages is committed.
    """

    def __init__(self, settings: RelaySettings) -> None:
        #: Entries that wait for the next transaction.
        self._next: deque[OutboxEntry] = deque()
        self._touched: set[str] = set()
        self._transactions: Counter[str] = Counter()
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
        self._checks = TransactionChecks()
        #: The topic of positions.
        self.topic = positions_topic(settings)
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

    def begin(
        self,
        producer: Producer,
        checks: "TransactionChecks",
        *,
        snapshot: bool = False,
        one_by_one: bool = False,
    ) -> None:
        """Send by ``producer``, a result of `connect`, from now on; the previous one has nothing in
        flight.
        """
        self._forget()
        self._checks = checks
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
        self._before_sending()
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
        if topic not in self._touched:
            # Before the messages, so that the number is never too low for the records in the topic.
            self._transactions[topic] += 1
            self._touched.add(topic)
        super()._hand_over(topic, messages, span, receipt)
        if self._is_quiet:
            span.pending -= len(messages)

    def _open_transaction(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            self._break(error.args[0])
        self._is_open, self._opened_at = True, time.monotonic()
        self._touched.clear()

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
        elif self._is_too_large() and self._checks.may_split():
            self._begin_commit()

    def _begin_commit(self) -> None:
        assert self._mark is not None
        position = self._mark[0]
        # First the recording, then Kafka: what is committed is never read again, so the recording must have
        # it.
        is_recorded, is_idle = self._checks.promise(), self._is_idle
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
            self._ending = AbortThread(self._producer, self._checks.is_fenced)
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
        return self._commits.status(self.identity, self.topic)

    def transactions(self, topic: str) -> int:
        return self._transactions[topic]

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
