"""Send the messages of a replay: tasks that report to a coordinator, and their progress, which is saved."""

import contextlib
import hashlib
import json
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from bwtui.durable_files import locked, write_durably
from bwtui.encode.names import subject_names
from bwtui.errors import BwtuiError, ConnectionFailed, Interrupted, RefusedError, StateFailed, UsageError
from bwtui.kafka.client import AUTHENTICATION_ERRORS, REQUEST_SECONDS, Config, new_client, plain_kafka_error
from bwtui.kafka.scan import PinnedTopics, Split, SplitScan, pin
from bwtui.recording.query_language import ChangeSelection
from bwtui.recording.sealed import SealedRecording
from bwtui.replay.rows import Hash, MessageCount, PartitionSurvey, ReplayRoute, RowPlacement, share_out
from bwtui.replay.send import Coordinator, LaneCutoff, LaneDone, LaneResult, TaskSettings, count_duplicates
from bwtui.state_folder import STATE_HOME_HINT

if TYPE_CHECKING:
    from bwtui.encode.registry import SchemaRegistry


# Map the schema ids of a recording to those of the target's registry.


@dataclass(slots=True)
class SchemaUse:
    """One schema that messages refer to, and its new id."""

    recorded_topic: str
    part: Literal["key", "value"]
    recorded_id: int
    subject: str
    text: str
    messages: int
    #: The id in the target's registry; None until it is registered.
    id: int | None = None
    is_new: bool = False


@dataclass(slots=True)
class SchemaMap:
    """All schemas in use."""

    uses: list[SchemaUse] = field(default_factory=list)

    def ids(self, topic: str, part: str) -> dict[int, int]:
        """Return recorded id → written id for a recorded topic, without the unregistered ones."""
        return {
            use.recorded_id: use.id
            for use in self.uses
            if use.recorded_topic == topic and use.part == part and use.id is not None
        }

    def changes_keys(self, topic: str) -> bool:
        """Return whether the key bytes of a recorded topic change."""
        return any(
            use.id != use.recorded_id
            for use in self.uses
            if use.recorded_topic == topic and use.part == "key"
        )

    @property
    def new(self) -> list[SchemaUse]:
        """Schemas that must be registered."""
        return [use for use in self.uses if use.is_new]


def used_schemas(
    sealed: SealedRecording, topics: Mapping[str, str], used: Mapping[tuple[str, str], Mapping[int, int]]
) -> SchemaMap:
    """Return every schema in use, oldest first.

    ``topics`` maps recorded to target topics, ``used`` maps (recorded topic, part) to messages by id. Raises
    RefusedError when the recording does not have a schema's text.
    """
    texts: dict[tuple[str, int], str] = {}
    for path in sealed.paths("schemas"):
        with pq.ParquetFile(path) as file:
            for row in file.read(["subject", "id", "schema"]).to_pylist():
                texts.setdefault((row["subject"], row["id"]), row["schema"])
    uses: list[SchemaUse] = []
    order = {name: number for number, name in enumerate(texts)}
    for (recorded, part), ids in used.items():
        which = 0 if part == "key" else 1
        subject = subject_names(recorded)[which]
        for number, messages in ids.items():
            text = texts.get((subject, number))
            if text is None:
                hint = "exclude that topic's table with --table, or restore the recording from a backup"
                raise RefusedError(f"the recording lacks schema {number} of subject {subject}", hint)
            named = subject_names(topics[recorded])[which]
            kind: Literal["key", "value"] = "key" if part == "key" else "value"
            uses.append(SchemaUse(recorded, kind, number, named, text, messages))
    # Register a subject's versions in their original order, since each must be compatible with the one
    # before.
    uses.sort(key=lambda use: order[subject_names(use.recorded_topic)[use.part == "value"], use.recorded_id])
    return SchemaMap(uses)


def find_ids(schemas: SchemaMap, registry: "SchemaRegistry", same: Iterable[str], *, keep: bool) -> None:
    """Look up the schemas' ids in the registry, without registering anything.

    ``same`` has the recorded topics that are also targets; their bytes stay unchanged if the registry has the
    recorded ids. With ``keep`` no byte may change: raises RefusedError when the registry lacks an id.
    """
    same = set(same)
    for use in schemas.uses:
        if keep or use.recorded_topic in same:
            text = registry.schema_text(use.recorded_id)
            if text is not None and _is_same(text, use.text):
                use.id = use.recorded_id
                continue
            if keep:
                schema = "no schema" if text is None else "a different schema"
                raise RefusedError(
                    f"the registry at {registry.url_without_user} has {schema} under id {use.recorded_id}, "
                    f"to which messages of {use.recorded_topic} refer",
                    "leave out --keep-ids; the replay then registers the schemas and maps their ids",
                )
        use.id = registry.schema_id(use.subject, use.text)
        use.is_new = use.id is None


def register(schemas: SchemaMap, registry: "SchemaRegistry") -> None:
    """Register the new schemas. Raises SchemaRefused or ConnectionFailed."""
    for use in schemas.uses:
        if use.is_new:
            use.id = registry.register_id(use.subject, use.text)


def _is_same(first: str, second: str) -> bool:
    try:
        return bool(json.loads(first) == json.loads(second))
    except ValueError:
        return first == second


# The target Kafka of a replay: names of topics, and the messages they already have in the time window.

_TOPIC = re.compile(r"(?!\.{1,2}$|__)[A-Za-z0-9._-]{1,249}")
#: Size of a batch's headers in bytes, rounded up.
_BATCH_OVERHEAD = 100
#: librdkafka's default limit on a batch.
_BATCH_SIZE = 1_000_000
_HASHES: Mapping[str, Hash] = {
    "murmur2": "murmur2",
    "murmur2_random": "murmur2",
    "consistent": "crc32",
    "consistent_random": "crc32",
}


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """The Kafka cluster and registry that a replay writes to."""

    #: Settings of all clients: brokers and security.
    client: Mapping[str, Any] = field(repr=False)
    producer: Mapping[str, Any] = field(repr=False)
    #: Creates a topic, given its name and whether all its messages have keys.
    make_topic: Callable[[str, bool], None]
    registry: "SchemaRegistry | None" = None

    def close(self) -> None:
        """Close the registry's client; the creator of the target calls this after its replays have ended."""
        if self.registry is not None:
            self.registry.close()

    @property
    def hash(self) -> Hash:
        """The hash function of the partitioner. Raises UsageError."""
        name = str(self.producer.get("partitioner", "murmur2_random"))
        if name not in _HASHES:
            raise UsageError(
                f"a replay does not support the partitioner {name}", f"use one of {', '.join(_HASHES)}"
            )
        return _HASHES[name]


def target_topic(recorded: str, recorded_prefix: str, prefix: str | None) -> str:
    """Return the topic's name with ``prefix`` instead of the recorded prefix; None keeps the recorded name.

    Raises UsageError for a name that Kafka does not accept.
    """
    if prefix is None:
        return recorded
    bare = recorded.removeprefix(f"{recorded_prefix}.") if recorded_prefix else recorded
    name = f"{prefix}.{bare}" if prefix else bare
    if not _TOPIC.fullmatch(name):
        raise UsageError(f"{name!r} is not a valid topic name", "choose a different --topic-prefix")
    return name


def topic_ids(config: Config, topics: Iterable[str]) -> dict[str, str]:
    """Return the id of each topic, which changes when a topic is recreated; "" if the broker has no ids.

    Raises ConnectionFailed, or RefusedError for a topic that does not exist.
    """
    names = sorted(set(topics))
    ids: dict[str, str] = {}
    # Keep the client: its futures complete only while it exists.
    admin = new_client(AdminClient, config)
    for name, answer in admin.describe_topics(TopicCollection(names)).items() if names else ():
        try:
            number = answer.result(REQUEST_SECONDS).topic_id
        except KafkaException as error:
            raise plain_kafka_error(error.args[0], config, name) from error
        has_id = bool(number.get_most_significant_bits() or number.get_least_significant_bits())
        ids[name] = str(number) if has_id else ""
    return ids


def fitting(config: Config, producer: Mapping[str, Any], topics: Iterable[str]) -> dict[str, Any]:
    """Return the producer's settings with a batch size that every topic accepts.

    A broker rejects a whole batch that is larger than the topic's ``max.message.bytes``, however small its
    messages are. A single message that is too large forms a batch of its own, which is rejected alone.
    """
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(set(topics))]
    admin = new_client(AdminClient, config)
    size = int(producer.get("batch.size", _BATCH_SIZE))
    for resource, answer in admin.describe_configs(resources, request_timeout=REQUEST_SECONDS).items():
        try:
            limit = answer.result()["max.message.bytes"].value
        except KafkaException as error:
            # Without the right to read the limit, too large batches are only noticed when the broker rejects
            # them.
            if error.args[0].code() in AUTHENTICATION_ERRORS:
                continue
            raise plain_kafka_error(error.args[0], config, resource.name) from error
        size = min(size, max(1, int(limit) - _BATCH_OVERHEAD))
    return {**producer, "batch.size": size}


def held(
    config: Config, pinned: PinnedTopics, windows: Mapping[str, tuple[int, int]]
) -> dict[str, dict[int, int]]:
    """Return, by topic and partition, how many messages may already be there within the time window.

    ``windows`` has the first and the last millisecond that will be written into each topic. The count is from
    the first offset at or after the window's beginning to the first offset after its end. With LogAppendTime
    the whole partition counts. Only if this finds nothing, the messages after the window are read too: the
    window may have been sent after later messages.
    """
    places = [place for place, (low, high) in pinned.offsets.items() if place[0] in windows and high > low]
    first = _offsets(config, {place: windows[place[0]][0] for place in places})
    ends = _offsets(config, {place: windows[place[0]][1] + 1 for place in places})
    counts: dict[str, dict[int, int]] = {}
    for topic, partition in places:
        low, high = pinned.offsets[topic, partition]
        settings = pinned.topics[topic].settings or {}
        start, end = first[topic, partition], ends[topic, partition]
        if settings.get("message.timestamp.type") == "LogAppendTime":
            start, end = low, high
        start, end = (high if start < 0 else start), (high if end < 0 else end)
        if end > start:
            counts.setdefault(topic, {})[partition] = end - start
    later = [Split(*place, ends[place], pinned.offsets[place][1]) for place in places if ends[place] >= 0]
    return counts | _held_behind(config, [split for split in later if split.topic not in counts], windows)


def _held_behind(
    config: Config, splits: Iterable[Split], windows: Mapping[str, tuple[int, int]]
) -> dict[str, dict[int, int]]:
    counts: dict[str, dict[int, int]] = {}
    for split in splits:
        first, last = windows[split.topic]
        messages = sum(
            first <= message.timestamp()[1] <= last
            for part in SplitScan(config, split, "read_uncommitted", patience=1.0)
            for message in part.messages
        )
        if messages:
            counts.setdefault(split.topic, {})[split.partition] = messages
    return counts


def _offsets(config: Config, times: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """Return the first offset at or after each time, -1 if there is none."""
    if not times:
        return {}
    settings = {**config, "group.id": "bwtui-unused", "enable.auto.commit": False}
    consumer = new_client(Consumer, settings)
    try:
        requests = [TopicPartition(*place, time) for place, time in times.items()]
        return {
            (at.topic, at.partition): at.offset
            for at in consumer.offsets_for_times(requests, timeout=REQUEST_SECONDS)
        }
    except KafkaException as error:
        raise plain_kafka_error(error.args[0], config) from error
    finally:
        consumer.close()


# A replay's job and options, its plan, its outcome, and the watch that observes it.


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The options of a replay."""

    #: Replaces the recorded topic prefix; None keeps the recorded topics.
    prefix: str | None = None
    keep_ids: bool = False
    rate: float | None = None
    pace: float | None = None
    dry_run: bool = False
    #: Start from scratch, ignoring the progress of an earlier run.
    restart: bool = False
    #: A report of `bwtui verify`: send only the messages that it reports as missing.
    only_missing: Path | None = None


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """A recording, a selection, and a target."""

    recording: Path
    target: ReplayTarget
    selection: ChangeSelection
    #: Folder in which progress is saved.
    state: Path
    options: ReplayOptions = field(default_factory=ReplayOptions)


@dataclass(slots=True)
class TopicPlan:
    """The messages for one topic."""

    recorded: str
    topic: str
    messages: int
    bytes: int
    exists: bool
    #: True if every message has a key, so that the topic may be compacted.
    has_keys: bool
    #: Messages by partition; empty while unknown.
    partitions: dict[int, int] = field(default_factory=dict)
    #: Number of messages by partition that the topic may already have within the time window.
    held: dict[int, int] = field(default_factory=dict)
    placement: str = "key"


class MissingCounts(TypedDict):
    """Number of messages that a report lists as missing, and how they are handled."""

    reported: int
    #: Number of these that are sent.
    messages: int
    #: Number sent after newer messages of their keys, and number of keys whose newest message is sent again.
    late: int
    sent_again: int
    #: Number that are in the topics again, and number for which the recording has no message.
    there: int
    without_message: int


@dataclass(slots=True)
class ReplayPlan:
    """The plan of a replay."""

    count: MessageCount
    topics: list[TopicPlan] = field(default_factory=list)
    schemas: SchemaMap = field(default_factory=SchemaMap)
    #: Number of messages that an earlier run has sent.
    resumed: int = 0
    is_resumed: bool = False
    #: Only with ``--only-missing``.
    missing: MissingCounts | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """Number of messages, sent or not."""
        return sum(topic.messages for topic in self.topics)

    @property
    def held(self) -> int:
        """Number of messages that the topics may already have within the time window."""
        return sum(sum(topic.held.values()) for topic in self.topics)


@dataclass(slots=True)
class ReplayOutcome:
    """The result of a replay."""

    plan: ReplayPlan
    state: str
    #: Number of messages sent by this run.
    sent: int = 0
    #: Number of messages that a killed run had written but not saved in its progress; not sent again.
    found: int = 0
    #: Maximum number of messages that are in a topic twice.
    doubled: int = 0
    done: int = 0
    seconds: float = 0.0


class ReplayObserver:
    """Observes a replay; its methods may be called from other threads."""

    def phase(self, name: str) -> None:
        """Report that a new phase begins."""

    def count(self, done: int, total: int) -> None:
        """Report the progress of a phase before sending."""

    def progress(self, done: int, total: int, rate: float, seconds_left: float | None) -> None:
        """Report the number of durable messages, the total, messages per second, and seconds left."""

    def will_ask(self, missing: int) -> None:
        """Raise if the user can't be asked to confirm this number of missing messages.

        This is called before any work begins, since ``--only-missing`` always needs a confirmation.
        """

    def confirm(self, plan: ReplayPlan) -> None:
        """Raise to prevent that anything is written."""

    def is_cancelled(self) -> bool:
        """Return True to stop; messages in flight become durable, and the next run resumes there."""
        return False


class ReplayControl:
    """Reports a run's progress to a watch, and ends the run between two steps if the watch cancels it."""

    def __init__(self, watch: ReplayObserver) -> None:
        self.watch = watch

    def phase(self, name: str) -> None:
        """Report a new phase. Raises Interrupted if the run was cancelled."""
        if self.watch.is_cancelled():
            raise Interrupted()
        self.watch.phase(name)

    def count(self, done: int, total: int) -> None:
        """Report the progress of a phase. Raises Interrupted if the run was cancelled."""
        if self.watch.is_cancelled():
            raise Interrupted()
        self.watch.count(done, total)


# The progress of a replay, in a file from which a later run resumes.
#
# It is in the state folder rather than next to the recording, because a recording may be read-only, and may
# be replayed into several clusters. The file is replaced as a whole. It may be some tenths of a second old:
# messages written since are found in the topics (`bwtui.replay.send`).

_FORMAT = 2


@dataclass(slots=True)
class LaneProgress:
    """The progress of one partition; offsets are those of the topic."""

    #: End of the log before the first run sent anything.
    start: int
    messages: int = 0
    position: int = -1
    part: int = 0
    last_offset: int = -1

    @property
    def tail(self) -> int:
        """The offset from which the topic may have messages that are missing from the progress."""
        return max(self.start, self.last_offset + 1)


@dataclass(slots=True)
class RouteProgress:
    """The target of a recorded topic, and the settings that determine the partitions of its messages."""

    topic: str
    #: Empty if the broker has no topic ids.
    topic_id: str
    partitions: int
    keeps_partitions: bool
    hash: str
    #: Recorded schema id → written schema id.
    keys: dict[int, int]
    values: dict[int, int]


@dataclass(slots=True)
class ReplayProgress:
    """The identity of a replay, and its progress."""

    #: Identity of the replay: recording, selection, cluster, names.
    what: dict[str, Any]
    #: By recorded topic.
    routes: dict[str, RouteProgress] = field(default_factory=dict)
    #: By "topic/partition" of the target.
    lanes: dict[str, LaneProgress] = field(default_factory=dict)
    total: int = 0
    runs: int = 0
    is_finished: bool = False

    @property
    def sent(self) -> int:
        """Number of durable messages."""
        return sum(lane.messages for lane in self.lanes.values())


class ProgressFile:
    """The file of one replay, locked while the replay runs."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.what = identity
        name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]
        self.path = folder / f"{name}.json"
        self._saving = threading.Lock()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the file against a second run of the same replay. Raises RefusedError or StateFailed."""
        in_use = RefusedError("another process is running this replay", "wait until it has ended")
        with contextlib.ExitStack() as stack:
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.enter_context(locked(self.path.with_suffix(".lock"), in_use))
            except OSError as error:
                raise self._failed(error) from error
            yield

    def load(self) -> ReplayProgress | None:
        """Return the progress of an earlier run, or None. Raises StateFailed."""
        try:
            content = json.loads(self.path.read_text())
            if content["format"] != _FORMAT:
                raise ValueError("another format")
            lanes = {place: LaneProgress(**lane) for place, lane in content["lanes"].items()}
            routes = {recorded: _route(one) for recorded, one in content["routes"].items()}
            return ReplayProgress(
                content["what"], routes, lanes,
                content["total"], content["runs"], content["is_finished"],
            )  # fmt: skip
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise StateFailed(
                f"the replay's progress in {self.path} can't be read",
                "use --restart to replay from the beginning; check first which messages the "
                "topics already have",
            ) from error

    def save(self, progress: ReplayProgress) -> None:
        """Write the progress; any thread may call this. Raises StateFailed."""
        try:
            with self._saving:
                write_durably(self.path, json.dumps({"format": _FORMAT, **asdict(progress)}))
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StateFailed:
        return StateFailed(
            f"the replay's progress can't be saved in {self.path.parent}: {error.strerror or error}",
            STATE_HOME_HINT,
        )


def _route(content: dict[str, Any]) -> RouteProgress:
    # JSON object keys are always strings.
    ids = {part: {int(one): id for one, id in content[part].items()} for part in ("keys", "values")}
    return RouteProgress(**{**content, **ids})


# Refuse to resume an interrupted replay if anything that it depends on has changed.
#
# The progress is kept by partition and position. With different key bytes, a different partitioner or a
# recreated topic, the same progress would skip messages that were never sent, and send others twice.

_RESTART = "use --restart to replay from the beginning"


def refuse_changed(
    earlier: ReplayProgress,
    plan: ReplayPlan,
    topics: Mapping[str, int],
    ids: Mapping[str, str],
    placed_by: Hash,
) -> None:
    """Raise RefusedError if the progress in ``earlier`` is no longer valid.

    ``topics`` has the number of partitions of each topic of the cluster, ``ids`` the ids of the target
    topics.
    """
    for topic in plan.topics:
        saved = earlier.routes.get(topic.recorded)
        if saved is None:
            continue
        if not topic.exists:
            raise RefusedError(
                f"topic {topic.topic} was deleted, with the messages that this replay had sent to it",
                _RESTART,
            )
        # A broker without topic ids reports none.
        if saved.topic_id != ids.get(topic.topic, saved.topic_id):
            raise RefusedError(
                f"topic {topic.topic} was recreated since this replay began: the messages sent to "
                "it are lost",
                _RESTART,
            )
        if saved.partitions != topics[topic.topic]:
            raise RefusedError(
                f"topic {topic.topic} has {topics[topic.topic]} partitions, but had "
                f"{saved.partitions} when this "
                "replay began: keys would move to different partitions",
                _RESTART,
            )
        if saved.hash != placed_by:
            raise RefusedError(
                f"this replay began with the partitioner hash {saved.hash}, not {placed_by}: keys "
                "would move to "
                "different partitions",
                f"give the same partitioner with -C as before, or {_RESTART}",
            )
        for use in plan.schemas.uses:
            if use.recorded_topic == topic.recorded:
                _refuse_different_id(use, saved)


def refuse_cut(progress: ReplayProgress, pinned: PinnedTopics) -> None:
    """Raise RefusedError if a topic ends before the messages that were sent to it."""
    for (topic, partition), (_, high) in pinned.offsets.items():
        lane = progress.lanes.get(f"{topic}/{partition}")
        if lane is not None and high <= lane.last_offset:
            raise RefusedError(
                f"topic {topic}, partition {partition}, ends at offset {high}, but the broker had "
                "acknowledged "
                f"messages of this replay up to offset {lane.last_offset}: it has lost the end of the log",
                _RESTART,
            )


def _refuse_different_id(use: SchemaUse, saved: RouteProgress) -> None:
    before = (saved.keys if use.part == "key" else saved.values).get(use.recorded_id)
    if before in (None, use.id):
        return
    now = "is not registered there" if use.id is None else f"would be under {use.id}"
    raise RefusedError(
        f"earlier messages refer to the schema of {use.subject} by id {before}, but it {now}",
        f"give the same registry with -r as before, or {_RESTART}",
    )


# Wait for the end of an outage of the target Kafka, up to a limit.

#: A longer outage ends the replay, which can be resumed; the relay, in contrast, waits without limit.
_SECONDS = 60.0
_LOOK_SECONDS = 0.1


class KafkaOutage:
    """Measures for how long Kafka has accepted no message."""

    def __init__(self, client: Config, topics: Sequence[str], is_stopped: Callable[[], bool]) -> None:
        self._client = client
        self._topics = topics
        self._is_stopped = is_stopped
        self._sent = -1
        self._since = 0.0

    def wait(self, sent: int) -> None:
        """Wait until Kafka answers or the replay is stopped; ``sent`` messages are durable so far.

        Raises ConnectionFailed when no message became durable for too long, RefusedError when a topic is
        missing.
        """
        if sent != self._sent:
            self._sent, self._since = sent, time.monotonic()
        while not self._is_stopped():
            is_over = time.monotonic() - self._since > _SECONDS
            try:
                pin(self._client, self._topics)
            except ConnectionFailed:
                if is_over:
                    raise
            else:
                if is_over:
                    silent = KafkaError(KafkaError._MSG_TIMED_OUT, "the brokers accept no messages")
                    raise plain_kafka_error(silent, self._client)
                return
            time.sleep(_LOOK_SECONDS)


_SAVE_SECONDS = 0.5
#: Timeout for the tasks of a cancelled replay to stop cleanly.
_END_SECONDS = 30.0
#: The reported rate is an average over this time.
_RATE_SECONDS = 5.0


class RowSource(Protocol):
    """The rows of a replay, from files or from Spark."""

    def received_at(self, position: int) -> int | None:
        """Return when a message at a position was received, in Unix microseconds."""


class ReplayEngine(Protocol):
    """Runs the tasks of `bwtui.replay.send`."""

    @property
    def host(self) -> str:
        """Address on which the tasks' coordinator listens."""

    @property
    def tasks(self) -> int:
        """Maximum number of tasks."""

    def send(self, placing: RowPlacement, work: TaskSettings) -> list[LaneResult]:
        """Send the messages, and return the result of each lane. Raises what a task raises."""

    def cancel(self) -> None:
        """Stop the tasks without waiting for Kafka."""

    def abandon(self, ended: threading.Event) -> None:
        """Stop the tasks without waiting, except for ``ended``. May raise KeyboardInterrupt."""


class ReplayDelivery:
    """Sends the messages of a plan."""

    def __init__(
        self,
        job: ReplayJob,
        watch: ReplayObserver,
        engine: ReplayEngine,
        file: ProgressFile,
        progress: ReplayProgress,
    ) -> None:
        self._job = job
        self._watch = watch
        self._engine = engine
        self._file = file
        self._progress = progress
        self._places: list[tuple[str, int]] = []
        self._cuts: dict[tuple[str, int], LaneCutoff] = {}
        #: Number of messages sent to each lane before this attempt.
        self._before: dict[int, int] = {}
        self._saved = 0.0
        self._failed: BwtuiError | None = None
        self._rates: deque[tuple[float, int]] = deque()

    def run(
        self,
        plan: ReplayPlan,
        rows: RowSource,
        routes: list[ReplayRoute],
        surveys: list[PartitionSurvey],
        raw: bool,
    ) -> ReplayOutcome:
        """Send the messages that no earlier run has sent. Raises Interrupted, or what a task raised."""
        is_resumed = self._progress.runs > 0
        self._begin(plan, routes)
        before, began = self._progress.sent, time.monotonic()
        outage = KafkaOutage(self._job.target.client, [route.topic for route in routes], self._is_stopped)
        results = self._send(plan, rows, self._placing(plan, routes, surveys, raw), is_resumed)
        already_there = sum(lane.found for lane in results)
        doubled = sum(lane.doubled for lane in results)
        while any(lane.unknown for lane in results):
            self._note_cuts(results)
            # As after a killed run, the topics show which of these messages were written.
            self._wait_for_kafka(outage)
            results = self._send(plan, rows, self._placing(plan, routes, surveys, raw), has_tails=True)
        self._finish(results)
        doubled += self._look_for_late()
        sent, seconds = self._progress.sent - before - already_there, time.monotonic() - began
        return ReplayOutcome(plan, "done", sent, already_there, doubled, self._progress.sent, seconds)

    def _note_cuts(self, results: list[LaneResult]) -> None:
        for row in results:
            if row.unknown:
                lane = self._lane(row.lane)
                cut = self._cuts.setdefault(self._places[row.lane], LaneCutoff(lane.tail, lane.messages))
                cut.unknown += row.unknown

    def _look_for_late(self) -> int:
        """Return the maximum number of messages doubled by requests that arrived after the search."""
        if not self._cuts:
            return 0
        self._watch.phase("checking for late duplicates")
        lanes = self._progress.lanes
        return count_duplicates(
            self._job.target.client, self._cuts, lambda place: lanes[f"{place[0]}/{place[1]}"].messages
        )

    def _send(
        self, plan: ReplayPlan, rows: RowSource, placing: RowPlacement, has_tails: bool
    ) -> list[LaneResult]:
        """Send the rest; with ``has_tails`` the topics may have messages that the progress lacks."""
        self._before = {lane: self._lane(lane).messages for lane in range(len(self._places))}
        options, target = self._job.options, self._job.target
        token = secrets.token_hex(16)
        with Coordinator(
            self._engine.host, token, options.rate, self._take_report, self._is_stopped
        ) as coordinator:
            tails = {lane: self._lane(lane).tail for lane in self._before} if has_tails else {}
            work = TaskSettings(
                fitting(target.client, target.producer, [route.topic for route in placing.routes]),
                dict(target.client),
                self._places,
                coordinator.address,
                options.pace,
                self._pace_from(plan, rows),
                tails,
            )
            return self._collect(lambda: self._engine.send(placing, work))

    def _wait_for_kafka(self, outage: KafkaOutage) -> None:
        self._watch.phase("waiting for Kafka")
        try:
            outage.wait(self._progress.sent)
        except BwtuiError:
            self._file.save(self._progress)
            raise
        if self._is_stopped():
            self._file.save(self._progress)
            raise self._interrupted(self._failed)
        self._watch.phase("sending")

    def _pace_from(self, plan: ReplayPlan, rows: RowSource) -> int:
        """Return the recorded time at which pacing starts: an earlier run has waited for what is before."""
        reached = max((lane.position for lane in self._progress.lanes.values()), default=-1)
        is_paced = self._job.options.pace is not None and reached >= 0
        return (rows.received_at(reached) if is_paced else None) or plan.count.first_received

    def _begin(self, plan: ReplayPlan, routes: list[ReplayRoute]) -> None:
        """Save the plan in the progress before anything is written."""
        progress = self._progress
        progress.runs += 1
        progress.total = plan.messages
        progress.is_finished = False
        pinned = pin(self._job.target.client, [route.topic for route in routes])
        refuse_cut(progress, pinned)
        ids = topic_ids(self._job.target.client, [route.topic for route in routes])
        for route in routes:
            progress.routes[route.recorded] = RouteProgress(
                route.topic,
                ids[route.topic],
                route.partitions,
                route.keeps_partitions,
                route.hash,
                {**route.keys},
                {**route.values},
            )
            for partition in range(route.partitions):
                self._places.append((route.topic, partition))
                end = pinned.offsets[route.topic, partition][1]
                progress.lanes.setdefault(f"{route.topic}/{partition}", LaneProgress(end))
        self._file.save(progress)

    def _placing(
        self, plan: ReplayPlan, routes: list[ReplayRoute], surveys: list[PartitionSurvey], raw: bool
    ) -> RowPlacement:
        counts = {
            route.first_lane + partition: messages
            for route, survey in zip(routes, surveys, strict=True)
            for partition, messages in survey.messages.items()
        }
        done = {
            lane: (one.position, one.part)
            for lane in range(len(self._places))
            for one in [self._lane(lane)]
            if one.position >= 0
        }
        tasks = share_out(counts, len(self._places), self._engine.tasks)
        return RowPlacement(routes, tasks, done, plan.count.with_headers, raw)

    def _lane(self, lane: int) -> LaneProgress:
        topic, partition = self._places[lane]
        return self._progress.lanes[f"{topic}/{partition}"]

    # -- the job -------------------------------------------------------------------------------------------

    def _collect(self, send: Callable[[], list[LaneResult]]) -> list[LaneResult]:
        """Run the job in a thread, so that it can stop cleanly when it is cancelled."""
        sent: list[LaneResult] = []
        failed: list[BaseException] = []
        # An event, because a thread whose join was interrupted counts as ended in Python 3.11 and 3.12.
        ended = threading.Event()

        def run() -> None:
            try:
                sent.extend(send())
            except BaseException as error:
                failed.append(error)
            finally:
                ended.set()

        thread = threading.Thread(target=run, name="replay", daemon=True)
        thread.start()
        try:
            self._wait(ended)
        except KeyboardInterrupt:
            # First let messages in flight become durable, and save that.
            self._failed = Interrupted()
            try:
                self._end(ended)
            except KeyboardInterrupt:
                self._engine.abandon(ended)
        if ended.is_set():
            # If the process ends while the thread is about to, the objects it refers to are never released.
            thread.join()
        if self._is_stopped():
            with contextlib.suppress(BwtuiError):
                self._file.save(self._progress)
            raise self._interrupted(self._failed)
        if failed:
            self._file.save(self._progress)
            raise failed[0]
        return sent

    def _wait(self, ended: threading.Event) -> None:
        while not ended.wait(_LOOK_SECONDS):
            if self._is_stopped():
                self._end(ended)
                return

    def _end(self, ended: threading.Event) -> None:
        deadline = time.monotonic() + _END_SECONDS
        while not ended.wait(_LOOK_SECONDS) and time.monotonic() < deadline:
            if not self._rates:
                # Nothing was sent yet: the tasks are still searching for their rows.
                self._engine.cancel()
        if not ended.is_set():
            self._engine.cancel()
            ended.wait(_END_SECONDS)

    def _is_stopped(self) -> bool:
        return self._failed is not None or self._watch.is_cancelled()

    def _interrupted(self, error: BwtuiError | None) -> BwtuiError:
        if error is not None and not isinstance(error, Interrupted):
            return error
        done, total = self._progress.sent, self._progress.total
        return Interrupted(
            f"interrupted after {done:,} of {total:,} messages", "run the same command again to resume"
        )

    # -- progress ------------------------------------------------------------------------------------------

    def _take_report(self, lanes: dict[int, LaneDone]) -> None:
        """Apply a task's report; reports arrive one at a time."""
        for lane, (messages, position, part, offset) in lanes.items():
            lane_progress = self._lane(lane)
            lane_progress.messages = self._before[lane] + messages
            if position >= 0:
                lane_progress.position, lane_progress.part, lane_progress.last_offset = position, part, offset
        now = time.monotonic()
        if now - self._saved >= _SAVE_SECONDS:
            self._saved = now
            try:
                self._file.save(self._progress)
            except BwtuiError as error:
                self._failed = error
        done = self._progress.sent
        self._rates.append((now, done))
        while len(self._rates) > 2 and now - self._rates[0][0] > _RATE_SECONDS:
            self._rates.popleft()
        since, before = self._rates[0]
        rate = (done - before) / (now - since) if now > since else 0.0
        seconds_left = (self._progress.total - done) / rate if rate else None
        self._watch.progress(done, self._progress.total, rate, seconds_left)

    def _finish(self, results: list[LaneResult]) -> None:
        for row in results:
            lane = self._lane(row.lane)
            lane.messages = self._before[row.lane] + row.sent + row.found
            if row.position >= 0:
                lane.position, lane.part, lane.last_offset = row.position, row.part, row.offset
        self._progress.is_finished = True
        self._file.save(self._progress)
        self._watch.progress(self._progress.sent, self._progress.total, 0.0, 0.0)
