"""Read one split to its very end, and account for every offset in it.

Each offset of ``[low, high)`` is returned once: with its message, or in a hole of one of these kinds.

``gap``
    The log continues after it: the record was compacted away, is a transaction marker, or belongs to an
    aborted transaction (with read_committed).
``expired``
    The log now starts after it: retention deleted it, perhaps during the scan.
``open``
    With read_committed: it follows the beginning of a transaction that has not ended.
``truncated``
    The log now ends before it, though it did not when the offsets were pinned: a broker lost the end, or the
    topic was recreated.
``damaged``
    The broker sent it with a wrong checksum.

Every wait has a limit: for the last offset, which may be a hole, and for a broker.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import ClassVar, Literal, NamedTuple, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.kafka.client import (
    MISSING_TOPIC,
    READING,
    Config,
    LastClientError,
    missing_topic,
    new_client,
    plain_kafka_error,
)
from bwtui.kafka.damage import begins, is_always_reported, is_damage, is_within, readable_after
from bwtui.kafka.offsets import ends
from bwtui.kafka.splits import Hole, Split

Isolation = Literal["read_committed", "read_uncommitted"]

_WAIT_SECONDS = 0.1
#: Maximum silence of a broker.
_SILENCE_SECONDS = 30.0
_MOST_MESSAGES = 10_000
_AIM_BYTES = 4 * 1024 * 1024
_SETTINGS = {
    **READING,
    "auto.offset.reset": "error",
    "check.crcs": True,
    # By default librdkafka waits a second after its queue was full before it fetches again.
    "fetch.queue.backoff.ms": 1,
    # Limits reading ahead, which takes memory and is useless at the end of a split.
    "queued.max.messages.kbytes": 16_384,
    "queued.min.messages": 50_000,
    "fetch.wait.max.ms": 100,
    # Metadata of a topic that existed when the offsets were pinned does not take long.
    "topic.metadata.propagation.max.ms": 3_000,
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 1_000,
}


class ScannedMessages(NamedTuple):
    """Messages of one read with their offsets, in the log's order, and the holes before and among them."""

    messages: list[Message]
    offsets: list[int]
    holes: list[Hole]


class SplitScan:
    """A single scan of one split."""

    #: librdkafka properties that a subclass needs.
    tuned: ClassVar[Config] = {}

    def __init__(
        self,
        config: Config,
        split: Split,
        isolation: Isolation,
        patience: float,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the consumer; ``patience`` is the number of seconds to wait for a log that ends too early.

        ``check`` is called before each read, and may raise to end the scan.
        """
        self._config = config
        self._split = split
        self._isolation = isolation
        self._patience = patience
        self._check = check
        #: The next offset to account for.
        self._next = split.low
        self._count = 1_000
        # The partition is known to exist: pinning has reached the cluster.
        self._heard = LastClientError(has_answered=True)
        self._short_since: float | None = None
        settings = {
            **config,
            **_SETTINGS,
            **self.tuned,
            "isolation.level": isolation,
            "error_cb": self._heard,
        }
        self._consumer = new_client(Consumer, settings)

    def __iter__(self) -> Iterator[ScannedMessages]:
        """Yield all messages and holes. Raises ConnectionFailed, and RefusedError for a missing topic."""
        try:
            self._assign(self._split.low)
            yield from self._read()
        except KafkaException as error:
            raise plain_kafka_error(error.args[0], self._config, self._split.topic) from error
        finally:
            self._consumer.close()

    def _read(self) -> Iterator[ScannedMessages]:
        heard_at = time.monotonic()
        while self._next < self._split.high:
            self._check()
            count = min(self._count, self._split.high - self._next)
            events = self._consumer.consume(count, _WAIT_SECONDS)
            messages = _without_errors(events)
            if len(messages) < len(events):
                # Nothing after a damaged batch in the same answer is reliable.
                events, messages = _until_damage(events)
            if messages:
                heard_at, self._short_since = time.monotonic(), None
                yield self._take(messages)
            for event in events if len(messages) < len(events) else ():
                heard_at = time.monotonic() if is_damage(event) else heard_at
                yield from self._react(event)
            if self._short_since is not None:
                heard_at = time.monotonic()
                yield from self._look_at_the_end()
            if time.monotonic() - heard_at > _SILENCE_SECONDS:
                yield from self._look_at_silence()
                heard_at = time.monotonic()
            self._give_up_if_refused()

    def _take(self, messages: list[Message]) -> ScannedMessages:
        # Consumed messages always have an offset.
        offsets = cast(list[int], list(map(Message.offset, messages)))
        end = self._split.high
        if offsets[-1] >= end:
            inside = bisect_left(offsets, end)
            holes = self._holes([*offsets[:inside], end])
            self._next = end
            return ScannedMessages(messages[:inside], offsets[:inside], holes)
        holes = self._holes(offsets)
        self._next = offsets[-1] + 1
        self._count = self._aim(messages)
        return ScannedMessages(messages, offsets, holes)

    def _holes(self, offsets: list[int]) -> list[Hole]:
        """Return the holes between the current offset and the last of ``offsets``, which are ascending."""
        expected = self._next
        if offsets[0] == expected and offsets[-1] - expected + 1 == len(offsets):
            return []
        holes = []
        for offset in offsets:
            if offset > expected:
                holes.append(Hole("gap", expected, offset))
            elif offset < expected:
                raise BwtuiError(
                    f"{self._place()} was recreated while it was being read", "run the command again"
                )
            expected = offset + 1
        return holes

    def _aim(self, messages: list[Message]) -> int:
        """Return the number of messages to request, so that a read has a few megabytes at most."""
        sample = messages[:: max(1, len(messages) // 100)]
        size = sum(len(message) for message in sample) // len(sample) + 100
        return max(1, min(_MOST_MESSAGES, _AIM_BYTES // size, 8 * self._count))

    def _react(self, event: Message) -> Iterator[ScannedMessages]:
        error = event.error()
        code = error.code() if error is not None else None
        if error is None or self._next >= self._split.high:
            return
        if code == KafkaError._PARTITION_EOF:
            yield from self._at_end(event.offset() or 0)
        elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            yield from self._out_of_range()
        elif is_damage(event):
            yield from self._pass_over(event)
        elif code in MISSING_TOPIC:
            raise missing_topic(self._split.topic)
        elif error.fatal() or not error.retriable():
            raise plain_kafka_error(error, self._config, self._split.topic)

    def _pass_over(self, event: Message) -> Iterator[ScannedMessages]:
        """Continue after a damaged batch."""
        batch = begins(event)
        if batch is not None and batch >= self._ends()[2]:
            # The batch's offset is damaged too: no batch begins after the log's end.
            batch = None
        if batch is not None:
            yield from self._skip("gap", min(batch, self._split.high))
        if self._next < self._split.high:
            try:
                end = readable_after(
                    self._consumer, self._split, self._next, batch, always_told=is_always_reported(event)
                )
            except TimeoutError as error:
                raise self._silence() from error
            yield from self._skip("damaged", end)
            self._assign(end)

    def _look_at_silence(self) -> Iterator[ScannedMessages]:
        """Skip a range that the broker does not send although it answers. Raises ConnectionFailed."""
        if self._heard.error is not None:
            raise self._silence()
        end = self._next
        try:
            if is_within(self._consumer, self._split, end):
                end = readable_after(self._consumer, self._split, end, None)
        except TimeoutError as error:
            raise self._silence() from error
        yield from self._skip("damaged", end)
        self._assign(end)

    def _at_end(self, offset: int) -> Iterator[ScannedMessages]:
        """Handle the end of the log, or of its stable part; ``offset`` would be next."""
        if offset < self._split.high:
            self._short_since = self._short_since or time.monotonic()
        yield from self._skip("gap", min(offset, self._split.high))

    def _out_of_range(self) -> Iterator[ScannedMessages]:
        low, _, high = self._ends()
        if self._next < low:
            yield from self._skip("expired", min(low, self._split.high))
        if self._next > high:
            yield from self._skip("truncated", self._split.high)
        if self._next < self._split.high:
            self._assign(self._next)

    def _look_at_the_end(self) -> Iterator[ScannedMessages]:
        """Wait a while if the log ends before the split, then report why."""
        _, stable, high = self._ends()
        readable = stable if self._isolation == "read_committed" else high
        if readable >= self._split.high:
            self._short_since = None
        elif time.monotonic() - (self._short_since or 0.0) > self._patience:
            if self._next < high:
                yield from self._skip("open", min(high, self._split.high))
            yield from self._skip("truncated", self._split.high)

    def _skip(self, kind: str, to: int) -> Iterator[ScannedMessages]:
        if to > self._next:
            hole = Hole(kind, self._next, to)
            self._next = to
            yield ScannedMessages([], [], [hole])

    def _ends(self) -> tuple[int, int, int]:
        return ends(self._config, (self._split.topic, self._split.partition))

    def _assign(self, offset: int) -> None:
        self._consumer.assign([TopicPartition(self._split.topic, self._split.partition, offset)])

    def _give_up_if_refused(self) -> None:
        error = self._heard.error
        if error is not None and (self._heard.is_refusal or error.code() in MISSING_TOPIC):
            raise plain_kafka_error(
                error, self._config, self._split.topic if error.code() in MISSING_TOPIC else None
            )

    def _silence(self) -> BwtuiError:
        if self._heard.error is not None:
            return plain_kafka_error(self._heard.error, self._config)
        return ConnectionFailed(f"Kafka no longer sends data of {self._place()}", "check the broker's log")

    def _place(self) -> str:
        return f"topic {self._split.topic}, partition {self._split.partition}"


def _without_errors(events: list[Message]) -> list[Message]:
    """Return the events that are messages, usually all of them."""
    if not any(map(Message.error, events)):
        return events
    return [event for event in events if event.error() is None]


def _until_damage(events: list[Message]) -> tuple[list[Message], list[Message]]:
    """Return the events up to the first that reports damage, and the messages among them."""
    end = next((number for number, event in enumerate(events, 1) if is_damage(event)), len(events))
    return events[:end], _without_errors(events[:end])
