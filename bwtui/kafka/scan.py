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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from bwtui.command_log import COMMANDS, KAFKA
from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.kafka.client import (
    MISSING_TOPIC,
    READING,
    REQUEST_SECONDS,
    WITHOUT_LEADER,
    Config,
    LastClientError,
    cluster_metadata,
    missing_topic,
    new_client,
    plain_kafka_error,
)

# Pin the state of topics before a scan starts: offsets, settings, and the cluster.
#
# ::
#
#     pinned = pin(config, ["shop.orders", "shop.items"])
#     pinned.offsets["shop.orders", 0]       # (low, high): the log's start, and after its last record
#     pinned.topics["shop.orders"].compacts  # and every other setting that explains missing records
#     pinned.cluster_id
#
# Offsets cover everything that was written, including uncommitted transactions (read_uncommitted).

_LEADER_SECONDS = 0.1

#: Topic and partition number.
Place = tuple[str, int]
#: ``[low, high)``
Range = tuple[int, int]

#: The settings of a topic that determine which records may legitimately be missing from it.
SETTINGS = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "delete.retention.ms",
    "segment.ms",
    "message.timestamp.type",
    "min.insync.replicas",
)


@dataclass(frozen=True, slots=True)
class TopicState:
    """The pinned state of one topic."""

    name: str
    partitions: int
    #: Values in Kafka's notation; None without the right to see them.
    settings: Mapping[str, str] | None

    @property
    def compacts(self) -> bool | None:
        """Return whether the topic is compacted; None if unknown."""
        return None if self.settings is None else "compact" in self.settings["cleanup.policy"]

    @property
    def deletes(self) -> bool | None:
        """Return whether the topic deletes old segments; None if unknown."""
        return None if self.settings is None else "delete" in self.settings["cleanup.policy"]


@dataclass(frozen=True, slots=True)
class PinnedTopics:
    """The pinned state for a scan."""

    cluster_id: str
    offsets: Mapping[Place, Range]
    topics: Mapping[str, TopicState]

    @property
    def messages(self) -> int:
        """Total number of offsets in the ranges, an upper bound on the number of messages."""
        return sum(high - low for low, high in self.offsets.values())


def pin(config: Config, topics: Iterable[str], *, some_may_lack: bool = False) -> PinnedTopics:
    """Return the current start and end of each partition of ``topics``, and their settings.

    With ``some_may_lack``, missing topics are left out, unless all are missing. Raises RefusedError for a
    missing topic, ConnectionFailed when Kafka does not answer or rejects the login, UsageError for an invalid
    property.
    """
    with COMMANDS.issued(KAFKA, "look up topics, their settings and offsets"):
        return _pin(config, sorted(set(topics)), some_may_lack=some_may_lack)


def _pin(config: Config, names: Sequence[str], *, some_may_lack: bool) -> PinnedTopics:
    metadata = _metadata(config)
    admin = new_client(AdminClient, config)
    existing = {name: metadata.topics[name].partitions for name in names if name in metadata.topics}
    for name in names:
        if name not in existing and not (existing and some_may_lack):
            raise missing_topic(name)
    names = sorted(existing)
    places = [(name, number) for name in names for number in sorted(existing[name])]
    settings = _settings(admin, config, names)
    states = {name: TopicState(name, len(existing[name]), settings[name]) for name in names}
    return PinnedTopics(metadata.cluster_id or "", _bounds(admin, config, places), states)


def partitions(config: Config) -> tuple[str, dict[str, int]]:
    """Return the cluster's id, and the number of partitions of each topic; raises as `pin` does."""
    metadata = _metadata(config)
    counts = {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.partitions}
    return metadata.cluster_id or "", counts


def ends(config: Config, place: Place) -> tuple[int, int, int]:
    """Return the current start, stable end and end of one partition's log."""
    admin = new_client(AdminClient, config)
    low = _list(admin, config, [place], OffsetSpec.earliest())[place]
    stable = _list(admin, config, [place], OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)[place]
    high = _list(admin, config, [place], OffsetSpec.latest())[place]
    return low, stable, high


def _metadata(config: Config) -> ClusterMetadata:
    heard = LastClientError()
    admin = new_client(AdminClient, {**config, "error_cb": heard})
    try:
        return cluster_metadata(admin, heard, str(config["bootstrap.servers"]))
    except KafkaException as error:
        raise plain_kafka_error(error.args[0], config) from error


def _bounds(admin: AdminClient, config: Config, places: list[Place]) -> dict[Place, Range]:
    low = _list(admin, config, places, OffsetSpec.earliest())
    high = _list(admin, config, places, OffsetSpec.latest())
    return {place: (low[place], high[place]) for place in places}


def _list(
    admin: AdminClient,
    config: Config,
    places: list[Place],
    where: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[Place, int]:
    if not places:
        return {}
    offsets: dict[Place, int] = {}
    deadline = time.monotonic() + REQUEST_SECONDS
    while True:
        request = {TopicPartition(*place): where for place in places if place not in offsets}
        answers = admin.list_offsets(request, isolation_level=isolation, request_timeout=REQUEST_SECONDS)
        for at, answer in answers.items():
            if _failed_with(answer, WITHOUT_LEADER) and time.monotonic() < deadline:
                continue
            offsets[at.topic, at.partition] = int(_result(answer, config, at.topic).offset)
        if len(offsets) == len(set(places)):
            return offsets
        time.sleep(_LEADER_SECONDS)


def _settings(admin: AdminClient, config: Config, topics: list[str]) -> dict[str, dict[str, str] | None]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    answers = admin.describe_configs(resources, request_timeout=REQUEST_SECONDS) if resources else {}
    settings: dict[str, dict[str, str] | None] = {}
    for resource, answer in answers.items():
        if _failed_with(answer, {KafkaError.TOPIC_AUTHORIZATION_FAILED}):
            settings[resource.name] = None
        else:
            entries = _result(answer, config, resource.name)
            settings[resource.name] = {key: entries[key].value for key in SETTINGS if key in entries}
    return settings


def _failed_with(answer: "Future[Any]", codes: Collection[int]) -> bool:
    error = answer.exception()
    return isinstance(error, KafkaException) and error.args[0].code() in codes


def _result(answer: "Future[Any]", config: Config, topic: str) -> Any:
    try:
        return answer.result()
    except KafkaException as error:
        raise plain_kafka_error(error.args[0], config, topic) from error


# Ranges of offsets, divided into splits for parallel reading.

#: A consumer prefetches tens of thousands of messages, which are wasted at the end of a split.
SMALLEST = 50_000
#: Limits the holes that one task keeps, and the cost of a lost executor.
LARGEST = 2_000_000
_SPLITS_A_CORE = 2


class Split(NamedTuple):
    """The offsets ``[low, high)`` of one partition, or a part of them."""

    topic: str
    partition: int
    low: int
    high: int


class Hole(NamedTuple):
    """Offsets ``[low, high)`` that were not delivered; `bwtui.kafka.scan` has the kinds."""

    kind: str
    low: int
    high: int


def split(
    offsets: Mapping[Place, Range], cores: int, smallest: int = SMALLEST, largest: int = LARGEST
) -> list[Split]:
    """Divide ``offsets`` into splits of similar size, a few per core; empty ranges yield none."""
    total = sum(high - low for low, high in offsets.values())
    size = min(max(-(-total // (cores * _SPLITS_A_CORE)), smallest), largest)
    return [
        Split(*place, low + (high - low) * number // count, low + (high - low) * (number + 1) // count)
        for place, (low, high) in sorted(offsets.items())
        # A partition that is only a little larger is not split.
        for count in [max(round((high - low) / size), -(-(high - low) // largest), int(high > low))]
        for number in range(count)
    ]


# Find where a log is readable again after a damaged batch.
#
# A batch has one checksum. librdkafka reports where a batch with a wrong checksum begins, and the rest of
# the broker's answer is unusable. The broker sends the batch again for every offset within it; so the batch
# ends at the first offset for which it does not. The search for that offset doubles its steps, then halves
# them, with a new assignment for each.

#: librdkafka's errors for bytes that are not a batch, and a broker's error for a log that it can't read
#: itself.
_DAMAGE = frozenset(
    {
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError._UNDERFLOW,
        KafkaError.INVALID_MSG,
    }
)
_WAIT_SECONDS = 0.1
#: For a batch of an unknown version librdkafka reports nothing, except for its first offset.
_STALL_SECONDS = 1.5
#: Timeout for a broker to report that nothing follows the log's end.
_ANSWER_SECONDS = 10.0
#: Maximum requests for an offset that the broker claims not to have.
_ASTRAY = 3


def is_damage(event: Message) -> bool:
    """Return whether ``event`` reports an unreadable batch."""
    error = event.error()
    return error is not None and error.code() in _DAMAGE


def damaged_batch_start(event: Message) -> int | None:
    """Return where the damaged batch of ``event`` begins, or None if unknown."""
    error = event.error()
    has_start = error is not None and error.code() in (KafkaError._BAD_MSG, KafkaError._NOT_IMPLEMENTED)
    return event.offset() if has_start else None


def is_always_reported(event: Message) -> bool:
    """Return whether requests for any offset of the damaged batch of ``event`` report the damage."""
    error = event.error()
    return error is not None and error.code() == KafkaError._BAD_MSG


def readable_after(
    consumer: Consumer, split: Split, at: int, batch: int | None, *, always_reported: bool = False
) -> int:
    """Return where the batch that begins at ``batch`` and has offset ``at`` ends, at most ``split.high``.

    ``batch`` may be unknown; then the result covers all damage from ``at`` on, until a different batch
    begins. Raises TimeoutError when the broker is silent; if the damage is ``always_reported``, silence does
    not count as damage.
    """

    def holds(offset: int) -> bool:
        event = _answer(consumer, split, offset, always_reported=always_reported)
        if event is None:
            return True
        start = damaged_batch_start(event)
        if batch is not None:
            # The damage of a different batch means that this one has ended.
            return is_damage(event) and start in (None, batch)
        # An event after the requested offset follows a gap, or is the report of the damage.
        return is_damage(event) and not (start is not None and at < start <= offset)

    low, step = at, 1
    while (high := min(at + step, split.high)) < split.high and holds(high):
        low, step = high, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return high


def is_within(consumer: Consumer, split: Split, offset: int) -> bool:
    """Return whether the broker answers a request for ``offset`` with a damaged batch.

    Raises TimeoutError when it does not answer.
    """
    event = _answer(consumer, split, offset, always_reported=False)
    return event is None or is_damage(event)


def _answer(consumer: Consumer, split: Split, offset: int, *, always_reported: bool) -> Message | None:
    """Return the event for ``offset``; None if there is none although the broker reports the log's end."""
    event = _first_event(consumer, split, offset, _ANSWER_SECONDS if always_reported else _STALL_SECONDS)
    if event is not None:
        return event
    if always_reported:
        raise TimeoutError
    place = TopicPartition(split.topic, split.partition)
    try:
        _, end = consumer.get_watermark_offsets(place, _ANSWER_SECONDS)
    except KafkaException as error:
        raise TimeoutError from error
    if _first_event(consumer, split, end, _ANSWER_SECONDS) is None:
        raise TimeoutError
    return None


def _first_event(consumer: Consumer, split: Split, offset: int, seconds: float) -> Message | None:
    """Return the record at ``offset``, or the event for the log's end; None when the broker sends nothing."""
    place = TopicPartition(split.topic, split.partition, offset)
    consumer.assign([place])
    deadline, astray = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        for event in consumer.consume(1, _WAIT_SECONDS):
            error = event.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF or is_damage(event):
                return event
            if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                # The answer to an earlier assignment may have moved the position to an offset that never
                # existed.
                astray += 1
                if astray > _ASTRAY:
                    return event
                consumer.assign([place])
            elif not error.retriable():
                raise KafkaException(error)
    return None


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
        #: Ends the entry of the command log for the present silence.
        self._end_silence: Callable[[str], None] | None = None
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
            self._note_silence(is_silent=False)
            self._consumer.close()

    def _note_silence(self, *, is_silent: bool) -> None:
        if is_silent and self._end_silence is None:
            self._end_silence = COMMANDS.begin(KAFKA, f"read {self._place()}")
        elif not is_silent and self._end_silence is not None:
            self._end_silence("")
            self._end_silence = None

    def _read(self) -> Iterator[ScannedMessages]:
        heard_at = time.monotonic()
        while self._next < self._split.high:
            self._check()
            count = min(self._count, self._split.high - self._next)
            events = self._consumer.consume(count, _WAIT_SECONDS)
            messages = _without_errors(events)
            self._note_silence(is_silent=not messages)
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
                yield from self._check_end()
            if time.monotonic() - heard_at > _SILENCE_SECONDS:
                yield from self._check_silence()
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
        batch = damaged_batch_start(event)
        if batch is not None and batch >= self._ends()[2]:
            # The batch's offset is damaged too: no batch begins after the log's end.
            batch = None
        if batch is not None:
            yield from self._skip("gap", min(batch, self._split.high))
        if self._next < self._split.high:
            try:
                end = readable_after(
                    self._consumer, self._split, self._next, batch, always_reported=is_always_reported(event)
                )
            except TimeoutError as error:
                raise self._silence() from error
            yield from self._skip("damaged", end)
            self._assign(end)

    def _check_silence(self) -> Iterator[ScannedMessages]:
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

    def _check_end(self) -> Iterator[ScannedMessages]:
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


# Read a partition at offsets that are far apart, by seeking instead of reading what is in between.

#: Maximum distance in messages that is read rather than skipped by a seek.
LEAP = 2_000


class SeekingScan(SplitScan):
    """Reads a partition at ascending ``offsets``; it may also deliver messages between them."""

    #: The broker sends whole batches anyway, and nothing after them is needed.
    tuned: ClassVar[Config] = {"queued.min.messages": 1, "fetch.message.max.bytes": 16_384}

    def __init__(
        self,
        config: Config,
        place: tuple[str, int],
        offsets: Sequence[int],
        isolation: Isolation,
        patience: float,
    ) -> None:
        """Create the consumer; ``place`` is topic and partition, ``patience`` as in `SplitScan`."""
        split = Split(*place, offsets[0], offsets[-1] + 1)
        super().__init__(config, split, isolation, patience)
        self._offsets = offsets
        self._leap()

    def _take(self, messages: list[Message]) -> ScannedMessages:
        delivered = super()._take(messages)
        if (to := self._leap()) is not None:
            self._assign(to)
        return delivered

    def _leap(self) -> int | None:
        """Seek to the next offset if it is far away, and limit the read to offsets close together."""
        at = bisect_left(self._offsets, self._next)
        if at == len(self._offsets):
            return None
        is_far = self._offsets[at] - self._next > LEAP
        if is_far:
            self._next = self._offsets[at]
        end = at
        while end + 1 < len(self._offsets) and self._offsets[end + 1] - self._offsets[end] <= LEAP:
            end += 1
        self._count = min(self._count if not is_far else LEAP, self._offsets[end] + 1 - self._next)
        return self._next if is_far else None
