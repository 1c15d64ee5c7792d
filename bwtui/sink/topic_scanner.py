"""Read keys back from topics: the end offset of each partition, and the keys between two offsets."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as ConsumerMessage

from bwtui.errors import ConnectionFailed
from bwtui.kafka.client import WITHOUT_LEADER, headers_of, new_client
from bwtui.model.headers import SESSION
from bwtui.sink.destination import KeyRecord, Offsets, TopicScanner

_REQUEST_SECONDS = 10.0
#: Timeout of one attempt, after which the caller may check other conditions.
_TRY_SECONDS = 1.0
_AGAIN = WITHOUT_LEADER | {KafkaError._TIMED_OUT, KafkaError._TRANSPORT}
#: For errors that are returned immediately.
_PAUSE_SECONDS = 0.1
_BATCH = 10_000


class KafkaTopicScanner(TopicScanner):
    """A consumer without a group: it commits nothing, and Kafka lists no group for it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        #: Held by `end_offsets`, which may block in a thread that its caller has abandoned.
        self._asking = threading.Lock()
        self._config = {
            **config,
            "group.id": "bwtui-unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            # Records of open transactions count: a snapshot's own is open while it looks for the remains of
            # an earlier one, and others may be committed at any time. End offsets are those of the log, too.
            "isolation.level": "read_uncommitted",
        }

    @cached_property
    def _consumer(self) -> Consumer:
        return new_client(Consumer, self._config)

    def end_offsets(self, topic: str) -> Offsets:
        with self._asking:
            try:
                metadata = self._consumer.list_topics(topic, timeout=_REQUEST_SECONDS).topics[topic]
            except KafkaException as error:
                raise _unreadable(topic, error.args[0]) from error
            if metadata.error is not None:
                raise _unreadable(topic, metadata.error)
            # Nothing to check meanwhile: another thread does that.
            return {n: self._watermarks(topic, n, lambda: None)[1] for n in metadata.partitions}

    def keys(
        self, topic: str, start: Offsets, end: Offsets, on_wait: Callable[[], None]
    ) -> Iterator[KeyRecord]:
        open_ends = self._assign(topic, start, end, on_wait)
        try:
            while open_ends:
                on_wait()
                for message in self._consumer.consume(_BATCH, timeout=0.5):
                    key = self._take(message, topic, open_ends)
                    if key is not None:
                        yield KeyRecord(key, message.value() is None, _session(message))
        finally:
            self._consumer.unassign()

    def close(self) -> None:
        """Close the connection; a consumer that is in use ends with the process."""
        if "_consumer" in vars(self) and self._asking.acquire(blocking=False):
            self._consumer.close()

    @staticmethod
    def _take(message: ConsumerMessage, topic: str, open_ends: dict[int, int]) -> bytes | None:
        """Return a message's key if it is before its partition's end, and remove completed partitions."""
        number, offset, error = message.partition(), message.offset(), message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise _unreadable(topic, error)
        if number is None or offset is None or number not in open_ends:
            return None
        last = open_ends[number]
        if error is not None or offset >= last - 1:
            del open_ends[number]
        return message.key() if error is None and offset < last else None

    def _assign(
        self, topic: str, start: Offsets, end: Offsets, on_wait: Callable[[], None]
    ) -> dict[int, int]:
        assigned, open_ends = [], {}
        for number, last in end.items():
            low, _ = self._watermarks(topic, number, on_wait)
            first = max(low, start.get(number, 0))
            if first < last:
                open_ends[number] = last
                assigned.append(TopicPartition(topic, number, first))
        self._consumer.assign(assigned)
        return open_ends

    def _watermarks(self, topic: str, number: int, on_wait: Callable[[], None]) -> tuple[int, int]:
        partition, until = TopicPartition(topic, number), time.monotonic() + _REQUEST_SECONDS
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(partition, timeout=_TRY_SECONDS)
            except KafkaException as error:
                if error.args[0].code() not in _AGAIN or time.monotonic() > until:
                    raise _unreadable(topic, error.args[0]) from error
                time.sleep(_PAUSE_SECONDS)
                on_wait()
            else:
                return int(low), int(high)


def _unreadable(topic: str, error: KafkaError) -> ConnectionFailed:
    return ConnectionFailed(
        f"topic {topic} can't be read: {error.str()}",
        "the relay reads its own topics: grant its user READ, and check that the brokers are up",
    )


def _session(message: ConsumerMessage) -> bytes | None:
    return dict(headers_of(message)).get(SESSION)
