"""Read the newest part of topics: records sent since a commit, according to the headers of --headers.

Records are in a partition in the order of sending, and rows that are read again are sent again: an old commit
may follow a newer one. But a record's timestamp is the time of its commit, whenever it is sent, and Kafka's
time index finds the first record at or after a time. So the scan begins at the time of an older commit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message, TopicPartition

from bwtui.kafka.client import headers_of
from bwtui.kafka.damage import is_damage
from bwtui.kafka.key_reader import KeyReader
from bwtui.model.headers import LSN, OPERATION

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
            known = 0
            for message in self._read(topic, {partition: (begin, before)}):
                found = None if is_damage(message) else _lsn(message)
                known += found is not None
                if found is not None and found < lsn:
                    kind, time = message.timestamp()
                    if kind == TIMESTAMP_LOG_APPEND_TIME:
                        # LogAppendTime is unrelated to the commit.
                        return low
                    oldest = time if oldest is None else min(oldest, time)
            if not known:
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
    found = int.from_bytes(headers[LSN] or b"") if LSN in headers else None
    if found is None:
        tail.unknown += 1
    elif found >= lsn and key is None:
        tail.keyless += 1
    elif found >= lsn and key is not None:
        operation = (headers.get(OPERATION) or b"").decode("ascii", "replace")
        place = (message.partition() or 0, message.offset() or 0)
        tail.sent[key] = RecentRecord(*place, found, operation, message.value() is None)


def _lsn(message: Message) -> int | None:
    value = dict(headers_of(message)).get(LSN)
    return int.from_bytes(value) if value else None
