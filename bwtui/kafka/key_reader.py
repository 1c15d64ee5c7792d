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

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

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
from bwtui.kafka.damage import is_damage

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
    looked: int = 0
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
            result.looked += high - begin
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

    def _patiently(self, ask: Callable[[float], T], topic: str | None = None) -> T:
        """Repeat a request until it succeeds or its time limit is over. Raises BwtuiError."""
        begun = time.monotonic()
        self._heard.forget()
        while True:
            self._look_around()
            try:
                answer = ask(_TRY_SECONDS)
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
                self._look_around()
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

    def _look_around(self) -> None:
        if self._stopped():
            raise ConnectionFailed(
                "the read was cancelled", "no action needed: its result is no longer required"
            )


def _stored(message: Message) -> StoredRecord:
    headers = tuple((name, value or b"") for name, value in headers_of(message))
    place = (message.partition() or 0, message.offset() or 0)
    return StoredRecord(*place, message.timestamp()[1], message.key(), message.value(), headers)
