"""Read single records, and those of one key, for interactive use: bounded, and cancellable.

A partition's index has offsets and times, but no keys. So a key's records are found by reading the newest
part of its partition, or of all partitions if the key's partition is unknown. The result includes how much
was read, and whether that was everything.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from bwtui.errors import ConnectionFailed
from bwtui.kafka.client import (
    QUICK_SECONDS,
    READING,
    REQUEST_SECONDS,
    Config,
    LastClientError,
    headers_of,
    new_client,
    plain_kafka_error,
)
from bwtui.kafka.scan import is_damage
from bwtui.model.headers import LSN, OPERATION

#: Maximum number of offsets that a search reads over all partitions, and of records kept: the newest ones.
MOST_OFFSETS, KEPT = 50_000, 1_000
#: Maximum total size of the kept values in bytes.
_KEPT_BYTES = 16 << 20
#: Seconds between two checks for cancellation.
_TRY_SECONDS = 0.5
#: A broker that requires TLS closes connections sooner; for a frozen one librdkafka reports the same later.
_HANGS_UP_SECONDS = 5.0
#: Messages per read: the thread of the screens waits meanwhile.
_AT_A_TIME = 1_000
_NO_ANSWER = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})
#: Events that end the read of a partition: its end, or that its beginning was deleted meanwhile.
_ENDS = frozenset({KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_SETTINGS: Mapping[str, Any] = {
    **READING,
    "auto.offset.reset": "error",
    "check.crcs": True,
    "isolation.level": "read_uncommitted",
    "queued.max.messages.kbytes": 16_384,
    # A partition without more messages would delay the next one.
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 10,
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 1_000,
}

T = TypeVar("T")


class StoredRecord(NamedTuple):
    """A record in a partition; ``timestamp`` is in Unix milliseconds."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(slots=True)
class KeyRecords:
    """The result of a search for the records of a key."""

    #: The newest ones, in order within each partition; a key that has moved is in two partitions.
    records: deque[StoredRecord] = field(default_factory=lambda: deque(maxlen=KEPT))
    #: Number of all records found, including those not kept.
    count: int = 0
    #: Number of offsets read; ``is_cut`` if older ones were not read.
    scanned: int = 0
    is_cut: bool = False
    #: True if some records were unreadable because of a wrong checksum.
    is_damaged: bool = False

    @property
    def newest(self) -> StoredRecord | None:
        """The newest record of the key; if it is in two partitions, the one with the latest time."""
        return max(self.records, key=lambda one: (one.timestamp, one.partition, one.offset), default=None)

    def at(self, partition: int, offset: int) -> StoredRecord | None:
        """Return the record at an offset of a partition, if it was found."""
        place = (partition, offset)
        return next((one for one in self.records if (one.partition, one.offset) == place), None)


class KeyReader:
    """A consumer without a group that commits nothing; for one thread."""

    def __init__(self, config: Config, stopped: Callable[[], bool] = lambda: False) -> None:
        """``stopped`` returns True to cancel."""
        self._config = config
        self._stopped = stopped
        self._heard = LastClientError()
        self._client: Consumer | None = None

    def record(self, topic: str, partition: int, offset: int) -> StoredRecord | str:
        """Return the record at an offset, or the kind of hole there.

        The kind is "gap", "expired", "truncated" or "damaged" (see `bwtui.kafka.scan`). Raises BwtuiError.
        """
        low, high = self._bounds(topic, partition)
        if not low <= offset < high:
            return "expired" if offset < low else "truncated"
        for message in self._read(topic, {partition: (offset, offset + 1)}):
            return "damaged" if is_damage(message) else _stored(message)
        return "gap"

    def of_key(self, topic: str, is_key: Callable[[bytes], bool], partition: int | None = None) -> KeyRecords:
        """Return the newest records of the key whose bytes ``is_key`` recognizes. Raises BwtuiError.

        ``partition`` is the key's partition, if known.
        """
        numbers = self._partitions(topic) if partition is None else [partition]
        result = KeyRecords()
        ranges: dict[int, tuple[int, int]] = {}
        for number in numbers:
            low, high = self._bounds(topic, number)
            begin = max(low, high - MOST_OFFSETS // len(numbers))
            result.is_cut |= begin > low
            result.scanned += high - begin
            ranges[number] = (begin, high)
        size = 0
        for message in self._read(topic, ranges):
            if is_damage(message):
                result.is_damaged = True
                continue
            key = message.key()
            if key is None or not is_key(key):
                continue
            result.count += 1
            size += len(message.value() or b"")
            if len(result.records) == KEPT:
                size -= len(result.records.popleft().value or b"")
            result.records.append(_stored(message))
            while size > _KEPT_BYTES and len(result.records) > 1:
                size -= len(result.records.popleft().value or b"")
        return result

    def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def _consumer(self) -> Consumer:
        if self._client is None:
            self._client = new_client(Consumer, {**self._config, **_SETTINGS, "error_cb": self._heard})
        return self._client

    def _partitions(self, topic: str) -> list[int]:
        metadata = self._patiently(lambda seconds: self._consumer.list_topics(topic, timeout=seconds))
        described = metadata.topics[topic]
        if described.error is not None:
            raise plain_kafka_error(described.error, self._config, topic)
        return sorted(described.partitions)

    def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        low, high = self._patiently(
            lambda seconds: self._consumer.get_watermark_offsets(place, timeout=seconds), topic
        )
        return int(low), int(high)

    def _patiently(self, request: Callable[[float], T], topic: str | None = None) -> T:
        """Repeat a request until it succeeds or its time limit is over. Raises BwtuiError."""
        begun = time.monotonic()
        self._heard.forget()
        while True:
            self._poll_events()
            try:
                answer = request(_TRY_SECONDS)
            except KafkaException as error:
                # The client reports the errors of its brokers only when it is polled.
                self._consumer.poll(0)
                waited = time.monotonic() - begun
                is_down = self._heard.is_refusal or (self._heard.all_failed and waited > QUICK_SECONDS)
                if error.args[0].code() not in _NO_ANSWER or is_down or waited > REQUEST_SECONDS:
                    reason = self._heard.instead_of(error.args[0])
                    is_silent = self._heard.is_summary and error.args[0].code() in _NO_ANSWER
                    if is_silent and waited > _HANGS_UP_SECONDS:
                        raise self._silence(topic) from error
                    raise plain_kafka_error(reason, self._config, topic) from error
            else:
                self._heard.has_answered = True
                return answer

    def _read(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Message]:
        """Yield the records in these ranges, or for a damaged partition the damage. Raises BwtuiError."""
        ends = {number: bounds[1] for number, bounds in ranges.items() if bounds[1] > bounds[0]}
        consumer, heard_at = self._consumer, time.monotonic()
        consumer.assign([TopicPartition(topic, number, ranges[number][0]) for number in ends])
        try:
            while ends:
                self._poll_events()
                for message in consumer.consume(_AT_A_TIME, _TRY_SECONDS):
                    heard_at = time.monotonic()
                    number, offset = message.partition(), message.offset() or 0
                    if number is None or number not in ends or not self._is_news(message, topic):
                        continue
                    is_whole = message.error() is None
                    if is_damage(message) or (is_whole and offset < ends[number]):
                        yield message
                    if not is_whole or offset >= ends[number] - 1:
                        del ends[number]
                if time.monotonic() - heard_at > REQUEST_SECONDS:
                    raise self._silence(topic)
        except KafkaException as error:
            raise plain_kafka_error(error.args[0], self._config, topic) from error
        finally:
            consumer.unassign()

    def _is_news(self, message: Message, topic: str) -> bool:
        """Return whether it is a record or ends its partition. Raises BwtuiError for permanent errors."""
        error = message.error()
        if error is None or error.code() in _ENDS or is_damage(message):
            return True
        if error.fatal() or not error.retriable():
            raise plain_kafka_error(error, self._config, topic)
        return False

    def _silence(self, topic: str | None) -> ConnectionFailed:
        problem = f"sends no data of topic {topic}" if topic else "does not respond"
        return ConnectionFailed(
            f"Kafka at {self._config.get('bootstrap.servers', '')} {problem}",
            "check that the broker is running and not suspended",
        )

    def _poll_events(self) -> None:
        if self._stopped():
            raise ConnectionFailed(
                "the read was cancelled", "no action needed: its result is no longer required"
            )


def _stored(message: Message) -> StoredRecord:
    headers = tuple((name, value or b"") for name, value in headers_of(message))
    place = (message.partition() or 0, message.offset() or 0)
    return StoredRecord(*place, message.timestamp()[1], message.key(), message.value(), headers)


# Read the newest part of topics: records sent since a commit, according to the headers of --headers.
#
# Records are in a partition in the order of sending, and rows that are read again are sent again: an old
# commit may follow a newer one. But a record's timestamp is the time of its commit, whenever it is sent,
# and Kafka's time index finds the first record at or after a time. So the scan begins at the time of an
# older commit.

#: Number of records in the first step into a partition's past, and the factor of each further step.
_FIRST, _MORE = 1_000, 8
#: Maximum amount by which a later commit in the WAL may have an earlier time (milliseconds).
_UNORDERED_MS = 60_000


@dataclass(frozen=True, slots=True)
class RecentRecord:
    """The last record of a key in the scanned range."""

    partition: int
    offset: int
    lsn: int
    operation: str
    is_tombstone: bool


@dataclass(slots=True)
class RecentRecords:
    """Records sent since a commit."""

    #: By the bytes of the key.
    sent: dict[bytes, RecentRecord] = field(default_factory=dict)
    #: Number of records without a header, whose age is unknown, and of those without a key.
    unknown: int = 0
    keyless: int = 0


class RecentRecordReader(KeyReader):
    """Reads the records sent since a commit; for one thread."""

    def sent_since(self, topic: str, ends: Mapping[int, int], lsn: int) -> RecentRecords:
        """Return the records before ``ends`` of commits whose WAL record begins at or after ``lsn``.

        Raises BwtuiError.
        """
        tail = RecentRecords()
        for partition, end in ends.items():
            begin = self._first(topic, partition, end, lsn)
            for message in self._read(topic, {partition: (begin, end)}):
                _take(tail, message, lsn)
        return tail

    def _first(self, topic: str, partition: int, end: int, lsn: int) -> int:
        """Return an offset before which there is no record of these commits."""
        low, _ = self._bounds(topic, partition)
        begin, count, oldest = end, _FIRST, None
        while begin > low and oldest is None:
            begin, before = max(low, begin - count), begin
            count *= _MORE
            with_lsn = 0
            for message in self._read(topic, {partition: (begin, before)}):
                record_lsn = None if is_damage(message) else _lsn(message)
                with_lsn += record_lsn is not None
                if record_lsn is not None and record_lsn < lsn:
                    kind, time = message.timestamp()
                    if kind == TIMESTAMP_LOG_APPEND_TIME:
                        # LogAppendTime is unrelated to the commit.
                        return low
                    oldest = time if oldest is None else min(oldest, time)
            if not with_lsn:
                # The writer of these records adds no headers, so earlier ones don't help either.
                return begin
        if oldest is None:
            return begin
        at = TopicPartition(topic, partition, oldest - _UNORDERED_MS)
        (place,) = self._patiently(
            lambda seconds: self._consumer.offsets_for_times([at], timeout=seconds), topic
        )
        return min(begin, int(place.offset)) if place.offset >= 0 else begin


def _take(tail: RecentRecords, message: Message, lsn: int) -> None:
    key = None if is_damage(message) else message.key()
    headers = {} if is_damage(message) else dict(headers_of(message))
    record_lsn = int.from_bytes(headers[LSN] or b"") if LSN in headers else None
    if record_lsn is None:
        tail.unknown += 1
    elif record_lsn >= lsn and key is None:
        tail.keyless += 1
    elif record_lsn >= lsn and key is not None:
        operation = (headers.get(OPERATION) or b"").decode("ascii", "replace")
        place = (message.partition() or 0, message.offset() or 0)
        tail.sent[key] = RecentRecord(*place, record_lsn, operation, message.value() is None)


def _lsn(message: Message) -> int | None:
    value = dict(headers_of(message)).get(LSN)
    return int.from_bytes(value) if value else None
