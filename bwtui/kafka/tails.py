"""The newest part of topics: what was sent from a commit on, as the headers of --headers tell.

Records stand in a partition as they were sent, and what is read again is sent again: an old commit may
stand behind a newer one. But a record's timestamp is the time of its commit, whenever it is sent, and
Kafka's index of times knows the first record that is as new. So the time of an older commit is where to
begin.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message, TopicPartition

from bwtui.kafka.client import headers_of
from bwtui.kafka.damage import is_damage
from bwtui.kafka.key_reader import KeyReader
from bwtui.model.headers import LSN, OPERATION

#: Records that are first looked at in a partition, and how many times more then.
_FIRST, _MORE = 1_000, 8
#: A commit that comes later in the WAL may be told to be so much earlier (milliseconds).
_UNORDERED_MS = 60_000


@dataclass(frozen=True, slots=True)
class Sent:
    """The last record of a key, among those that were asked for."""

    partition: int
    offset: int
    lsn: int
    operation: str
    is_tombstone: bool


@dataclass(slots=True)
class SentSince:
    """What was sent from a commit on."""

    #: By the bytes of the key.
    sent: dict[bytes, Sent] = field(default_factory=dict)
    #: Records of which nothing tells whether they are older, and of which no key tells whose they are.
    unknown: int = 0
    keyless: int = 0


class TailReader(KeyReader):
    """For one thread."""

    def sent_since(self, topic: str, ends: Mapping[int, int], lsn: int) -> SentSince:
        """Return what was sent before ``ends`` of commits whose record begins at ``lsn`` or behind it.

        Raises BwtuiError.
        """
        tail = SentSince()
        for partition, end in ends.items():
            begin = self._first(topic, partition, end, lsn)
            for message in self._read(topic, {partition: (begin, end)}):
                _take(tail, message, lsn)
        return tail

    def _first(self, topic: str, partition: int, end: int, lsn: int) -> int:
        """Return an offset before which nothing can be of these commits."""
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
                        # The time of its sending says nothing of its commit.
                        return low
                    oldest = time if oldest is None else min(oldest, time)
            if not known:
                # Whoever wrote that wrote no headers: what lies before tells nothing either.
                return begin
        if oldest is None:
            return begin
        at = TopicPartition(topic, partition, oldest - _UNORDERED_MS)
        (place,) = self._patiently(
            lambda seconds: self._consumer.offsets_for_times([at], timeout=seconds), topic
        )
        return min(begin, int(place.offset)) if place.offset >= 0 else begin


def _take(tail: SentSince, message: Message, lsn: int) -> None:
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
        tail.sent[key] = Sent(*place, found, operation, message.value() is None)


def _lsn(message: Message) -> int | None:
    value = dict(headers_of(message)).get(LSN)
    return int.from_bytes(value) if value else None
