"""Find dead letters in their topic: each is identified by its contents, among other records in the topic.

The end of each partition is read once, and then only what is new. Nothing is committed, and no group is
joined.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from bwtui.command_log import COMMANDS, KAFKA
from bwtui.errors import BwtuiError
from bwtui.kafka.client import (
    MISSING_TOPIC,
    READING,
    REQUEST_SECONDS,
    Config,
    LastClientError,
    new_client,
    plain_kafka_error,
)
from bwtui.model.service_views import DeadLetterPosition, DeadLetterTopic

#: Maximum number of records read from a partition's end, and of changes whose dead letters are remembered.
_RECORDS, _REMEMBERED = 20_000, 50_000
#: Maximum number of positions per change, the newest: each retry of a row adds a dead letter.
_PLACES = 5
#: Maximum duration of one poll, and bytes that it reads; the next poll reads the rest. Dead letters are
#: parsed in the engine's process, whose relay waits meanwhile.
_LOOK_SECONDS = 2.0
_LOOK_BYTES, _AT_ONCE = 16 << 20, 50
#: Seconds without a poll after which everything is forgotten.
_KEPT_SECONDS = 300.0
_CONFIG = {
    **READING,
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 10,
    "fetch.max.bytes": 4 << 20,
    "queued.max.messages.kbytes": 4_096,
}


class DeadLetterTopicReader:
    """Polls the topic with a client that lives from the first poll to `close`; for one thread."""

    def __init__(
        self, config: Config, topic: str, on_letter: Callable[[bytes], None] = lambda _: None
    ) -> None:
        """``on_letter`` is called with the bytes of each dead letter."""
        self._config = config
        self._topic = topic
        self._on_letter = on_letter
        self._heard = LastClientError()
        self._consumer: Consumer | None = None
        self._lock = threading.Lock()
        self._forgetting: threading.Timer | None = None
        self._forget()

    def _forget(self) -> None:
        #: True if a poll has ended since everything was forgotten.
        self.has_read = False
        #: True if the last poll has reached the end of all partitions.
        self.is_through = False
        #: The next offset to read, by partition.
        self._next: dict[int, int] = {}
        self._places: dict[str, tuple[DeadLetterPosition, ...]] = {}
        self._records = self._foreign = self._skipped = 0

    def places(self, about: Sequence[str]) -> tuple[DeadLetterPosition, ...]:
        """Return the positions of dead letters by `identity`, as far as read; any thread may call this."""
        return tuple(place for one in about for place in self._places.get(one, ()))

    def poll(self) -> DeadLetterTopic:
        """Read what is new; `places` returns the positions separately."""
        self._keep()
        if not self._topic:
            return DeadLetterTopic(time.time())
        try:
            self._read()
            self.has_read = True
        except KafkaException as error:
            reason = self._heard.instead_of(error.args[0])
            topic = self._topic if reason.code() in MISSING_TOPIC else None
            return self._failed(plain_kafka_error(reason, self._config, topic))
        except BwtuiError as error:
            return self._failed(error)
        return DeadLetterTopic(time.time(), "", (), self._topic, self._records, self._foreign, self._skipped)

    def close(self) -> None:
        """Disconnect; the next poll continues, unless there is none for minutes."""
        self._keep()
        if self._next:
            with self._lock:
                self._forgetting = threading.Timer(_KEPT_SECONDS, self._forget_unlooked)
                self._forgetting.daemon = True
                self._forgetting.start()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _keep(self) -> None:
        """Cancel a pending forget."""
        with self._lock:
            if self._forgetting is not None:
                self._forgetting.cancel()
            self._forgetting = None

    def _forget_unlooked(self) -> None:
        with self._lock:
            # A poll may have happened between the timer's end and this line.
            if self._forgetting is threading.current_thread():
                self._forgetting = None
                self._forget()

    def _failed(self, error: BwtuiError) -> DeadLetterTopic:
        return DeadLetterTopic(time.time(), error.message, (), self._topic)

    def _read(self) -> None:
        if self._consumer is None:
            self._consumer = new_client(Consumer, {**self._config, **_CONFIG, "error_cb": self._heard})
        consumer, until, remaining = self._consumer, time.monotonic() + _LOOK_SECONDS, _LOOK_BYTES
        with COMMANDS.issued(KAFKA, f"read the end of {self._topic}"):
            ends = self._ends(consumer)
            open_ends = {number: end for number, end in ends.items() if self._next[number] < end}
            self.is_through = not open_ends
            if not open_ends:
                return
            consumer.assign([TopicPartition(self._topic, n, self._next[n]) for n in open_ends])
            try:
                while open_ends and remaining > 0 and time.monotonic() < until:
                    for message in consumer.consume(_AT_ONCE, 0.1):
                        remaining -= self._take(message, open_ends)
            finally:
                consumer.unassign()
            self.is_through = not open_ends

    def _ends(self, consumer: Consumer) -> dict[int, int]:
        """Return the end of each partition, and start with new partitions. Raises KafkaException."""
        metadata = consumer.list_topics(self._topic, timeout=REQUEST_SECONDS).topics[self._topic]
        self._heard.has_answered = True
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        ends = {}
        for number in metadata.partitions:
            place = TopicPartition(self._topic, number)
            low, high = consumer.get_watermark_offsets(place, timeout=REQUEST_SECONDS)
            if high < self._next.get(number, 0):
                # The topic was recreated.
                self._forget()
                return self._ends(consumer)
            if number not in self._next:
                self._next[number] = max(low, high - _RECORDS)
                self._skipped += self._next[number] - low
            ends[number] = high
        return ends

    def _take(self, message: Message, open_ends: dict[int, int]) -> int:
        """Process a record or another event of the consumer; return its bytes. Raises KafkaException."""
        number, offset, error = message.partition() or 0, message.offset() or 0, message.error()
        if number not in open_ends:
            return 0
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        size = 0
        if error is None:
            self._next[number] = offset + 1
            self._records += 1
            value = message.value()
            size = len(message.key() or b"") + len(value or b"")
            which = _identity(value)
            if which is None:
                self._foreign += 1
            else:
                self._remember(which, number, offset)
                self._on_letter(value or b"")
            while len(self._places) > _REMEMBERED:
                del self._places[next(iter(self._places))]
        else:
            # Only transaction markers may follow the last record.
            self._next[number] = max(self._next[number], offset)
        if self._next[number] >= open_ends[number]:
            del open_ends[number]
        return size

    def _remember(self, which: str, partition: int, offset: int) -> None:
        before = self._places.get(which, ())
        number = before[-1].before + 1 if before else 0
        self._places[which] = (*before[1 - _PLACES :], DeadLetterPosition(which, partition, offset, number))


def _identity(value: bytes | None) -> str | None:
    """Return the identity of the change that a dead letter is about; None if it is not a dead letter."""
    try:
        letter: Any = json.loads(value or b"")
        names = (letter["table"], letter["operation"], letter["commit_lsn"], letter["ordinal"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return identity(*names) if all(isinstance(name, str | int) for name in names) else None


def identity(table: str, operation: str, commit_lsn: str, ordinal: int) -> str:
    """Return the identity of a change as text; a change that was read again has several dead letters."""
    return f"{table} {operation} {commit_lsn} {ordinal}"
