"""Replay: write the messages of a recording into topics again, byte for byte, in the order of each key.

::

    job = Job(Path("recordings/shop"), target, Selection(), Options(prefix="again"))
    outcome = Replay(job, watch).run(lambda: spark_session(config=WRITE_ONCE))

A small replay runs without Spark, unless the caller requests it (``is_wanted``).

A `ReplayObserver` observes phases and progress, must confirm before anything is written, and may cancel;
screens pass their own. Progress is saved, so the next run resumes one that was cancelled or killed
(docs/replay.md, docs/adr/0023-seal-replay-and-audit-outside-the-jvm.md).
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Union

from bwtui.encode.names import colliding_topics
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, UsageError
from bwtui.kafka.scan import TopicState, partitions, pin
from bwtui.recording.folder import SegmentPath, existing_segments, segments
from bwtui.recording.query_language import to_sql
from bwtui.recording.sealed import SealedRecording, check_all, open_sealed, unsealed_bytes
from bwtui.recording.segment_reader import SegmentReader
from bwtui.replay.delivery import (
    ProgressFile,
    ReplayControl,
    ReplayDelivery,
    ReplayEngine,
    ReplayJob,
    ReplayObserver,
    ReplayOptions,
    ReplayOutcome,
    ReplayPlan,
    ReplayProgress,
    ReplayTarget,
    SchemaMap,
    TopicPlan,
    find_ids,
    held,
    refuse_changed,
    register,
    target_topic,
    topic_ids,
    used_schemas,
)
from bwtui.replay.rows import (
    FileRows,
    MessageCount,
    PartitionSurvey,
    ReplayRoute,
    TopicMessageCount,
    number_lanes,
)
from bwtui.replay.send import InProcessReplayEngine
from bwtui.seal.sealing import seal
from bwtui.spark.lazy_session import LazySparkSession, OpenSession
from bwtui.spark.scratch import scratch

if TYPE_CHECKING:
    from bwtui.replay.missing_messages import MissingMessages
    from bwtui.replay.spark_engine import FrameRows


# The topics that a replay may send to.

_OTHER = "choose a different --topic-prefix"
_HOUR, _DAY = 3_600_000, 86_400_000


def refuse_names(names: Mapping[str, str], existing: Mapping[str, int]) -> None:
    """Raise if names of target topics (by recorded one) collide, with each other or with ``existing``."""
    if len(set(names.values())) < len(names):
        raise UsageError("two recorded topics would be replayed to the same topic", _OTHER)
    new = set(names.values()) - existing.keys()
    for group in colliding_topics([*existing, *new]) if new else ():
        if new.intersection(group):
            raise RefusedError(
                f"the names of topics {' and '.join(group)} differ only in dots and underscores, "
                "which Kafka does "
                "not allow",
                _OTHER,
            )


def judge_topic(state: TopicState, count: TopicMessageCount) -> list[str]:
    """Return warnings about an existing topic. Raises RefusedError if it can't accept all messages."""
    if state.compacts and not state.deletes and count.without_key:
        has = "has" if count.without_key == 1 else "have"
        raise RefusedError(
            f"topic {state.name} is compacted, and {count.without_key:,} of its messages {has} no key",
            f"exclude them with --table or --where, or {_OTHER}",
        )
    retention_ms = int((state.settings or {}).get("retention.ms", -1))
    by_us = (state.settings or {}).get("message.timestamp.type") != "LogAppendTime"
    if state.deletes and by_us and 0 <= retention_ms < time.time() * 1000 - count.first_stamp:
        return [
            f"topic {state.name} keeps messages for {_span(retention_ms)}: Kafka will remove replayed "
            "messages that are "
            "older"
        ]
    return []


def _span(milliseconds: int) -> str:
    for size, name in ((_DAY, "day"), (_HOUR, "hour")):
        if milliseconds >= size and not milliseconds % size:
            return f"{milliseconds // size:,} {name}{'' if milliseconds == size else 's'}"
    return f"{milliseconds / 1000:,g} s"


#: The messages of a replay: selected ones, or those that an audit found missing.
Rows = Union[FileRows, "FrameRows"]

_TOPIC_SECONDS = 30.0
_LOOK_SECONDS = 0.1


def progress_file(
    job: ReplayJob, recording: str, cluster: str, missing: "MissingMessages | None"
) -> ProgressFile:
    """Return the progress file of this replay; its name is derived from what identifies the replay."""
    selection, options = job.selection, job.options
    identity = {
        "recording": recording,
        "cluster": cluster,
        "prefix": options.prefix,
        "keep_ids": options.keep_ids,
        # Not the text: a time like -5m means a different time when the recording has grown.
        "where": to_sql(selection.query) if selection.query is not None else None,
        "table": selection.table.pattern if selection.table is not None else None,
        "lsn": [selection.from_lsn, selection.to_lsn],
        "time": [selection.from_time, selection.to_time],
        "with_repeats": selection.with_repeats,
        "missing": missing.digest if missing is not None else None,
    }
    return ProgressFile(job.state, identity)


class ReplaySteps:
    """The steps of a run after its recording is sealed."""

    def __init__(
        self,
        job: ReplayJob,
        control: ReplayControl,
        spark: LazySparkSession,
        sealed: SealedRecording,
        cluster: str,
        topics: dict[str, int],
        missing: "MissingMessages | None",
    ) -> None:
        self._job = job
        self._control = control
        self._spark = spark
        self._sealed = sealed
        self._cluster = cluster
        self._topics = topics
        self._missing = missing
        self._file = progress_file(job, sealed.manifest.recording, cluster, missing)

    def run(self) -> ReplayOutcome:
        """Plan, confirm, and send."""
        if self._job.options.dry_run:
            return self._run()
        with self._file.locked():
            return self._run()

    def _run(self) -> ReplayOutcome:
        earlier = None if self._job.options.restart else self._file.load()
        if earlier is not None and earlier.is_finished:
            if self._missing is not None:
                raise RefusedError(
                    "the missing messages of this report were already replayed",
                    "verify again and give the new report, or use --restart",
                )
            earlier = None
        self._control.phase("selecting messages")
        plan, rows = self._plan(earlier)
        if earlier is not None:
            self._refuse_changed(plan, earlier)
        if self._job.options.dry_run:
            self._look_ahead(plan, rows, earlier)
            return ReplayOutcome(plan, "planned")
        if not plan.messages:
            raise UsageError("no message matches the selection", "check --where, --table and the range")
        if earlier is None:
            self._control.watch.confirm(plan)
        self._control.phase("preparing topics and schemas")
        routes = self._routes(plan, plan.topics, earlier, self._prepare(plan))
        surveys = self._place(plan, plan.topics, rows, routes, earlier)
        progress = earlier or ReplayProgress(self._file.what)
        delivery = ReplayDelivery(self._job, self._control.watch, self._engine(rows), self._file, progress)
        self._control.phase("sending")
        return delivery.run(plan, rows, routes, surveys, self._missing is not None)

    def _engine(self, rows: Rows) -> ReplayEngine:
        if isinstance(rows, FileRows) and self._spark.does_without(rows.count_read):
            return InProcessReplayEngine(rows)
        from bwtui.replay.spark_engine import SparkReplayEngine

        return SparkReplayEngine(self._spark.spark(), rows)

    # -- what there is to do -------------------------------------------------------------------------------

    def _plan(self, earlier: ReplayProgress | None) -> tuple[ReplayPlan, Rows]:
        """Return the plan, and the messages."""
        rows: Rows
        if self._missing is not None:
            rows, counted = self._look_for_missing(self._missing, earlier)
        else:
            rows = file_rows = FileRows(self._sealed, self._job.selection)
            counted = file_rows.count(self._control.count)
        prefix = str(self._sealed.manifest.source.get("topic_prefix") or "")
        requested_prefix = self._job.options.prefix
        names = {
            recorded: target_topic(recorded, prefix, requested_prefix) for recorded in sorted(counted.topics)
        }
        refuse_names(names, self._topics)
        plan = ReplayPlan(counted, missing=None if self._missing is None else self._missing.counts)
        for recorded, topic in names.items():
            count = counted.topics[recorded]
            exists, has_keys = topic in self._topics, not count.without_key
            plan.topics.append(TopicPlan(recorded, topic, count.messages, count.bytes, exists, has_keys))
        plan.schemas = self._schemas(counted, names)
        if earlier is not None:
            plan.is_resumed, plan.resumed = True, earlier.sent
        self._look_at_topics(plan)
        return plan, rows

    def _look_for_missing(
        self, missing: "MissingMessages", earlier: ReplayProgress | None
    ) -> tuple[Rows, MessageCount]:
        from bwtui.replay.spark_engine import FrameRows, messages

        missing.refuse_different(self._sealed.manifest.recording, self._cluster)
        # The report lists individual messages, which may be repeats.
        chosen = FileRows(self._sealed, self._job.selection)
        every = messages(self._spark.spark(), self._sealed)
        starts = {place: lane.start for place, lane in earlier.lanes.items()} if earlier else None
        missing.look(every, chosen, self._job.target.client, self._topics, starts)
        return FrameRows(missing.rows()), missing.count()

    def _schemas(self, counted: MessageCount, names: dict[str, str]) -> SchemaMap:
        used = {}
        for recorded, one in counted.topics.items():
            used[recorded, "key"], used[recorded, "value"] = one.key_ids, one.value_ids
        schemas = used_schemas(self._sealed, names, used)
        registry = self._job.target.registry
        if schemas.uses and registry is None:
            raise UsageError(
                "the messages contain schema ids, but no schema registry is given",
                "give the registry with -r",
            )
        if schemas.uses and registry is not None:
            registry.check()
            same = [recorded for recorded, topic in names.items() if recorded == topic]
            keep = self._job.options.keep_ids or self._missing is not None
            find_ids(schemas, registry, same, keep=keep)
        return schemas

    def _look_at_topics(self, plan: ReplayPlan) -> None:
        counts = {topic.topic: plan.count.topics[topic.recorded] for topic in plan.topics if topic.exists}
        windows = {topic: (count.first_stamp, count.last_stamp) for topic, count in counts.items()}
        pinned = pin(self._job.target.client, windows)
        held_by_topic = held(self._job.target.client, pinned, windows)
        for topic in plan.topics:
            topic.held = held_by_topic.get(topic.topic, {})
            if topic.exists:
                plan.notes += judge_topic(pinned.topics[topic.topic], counts[topic.topic])

    def _look_ahead(self, plan: ReplayPlan, rows: Rows, earlier: ReplayProgress | None) -> None:
        """Add messages by partition to the plan, for topics that exist with all schemas registered."""
        unregistered = {use.recorded_topic for use in plan.schemas.new}
        ready = [topic for topic in plan.topics if topic.exists and topic.recorded not in unregistered]
        if ready:
            routes = self._routes(plan, ready, earlier, self._topics)
            rows = rows.of_topics([topic.recorded for topic in ready])
            self._place(plan, ready, rows, routes, earlier)

    def _refuse_changed(self, plan: ReplayPlan, earlier: ReplayProgress) -> None:
        target = self._job.target
        ids = topic_ids(target.client, [topic.topic for topic in plan.topics if topic.exists])
        refuse_changed(earlier, plan, self._topics, ids, target.hash)

    # -- where it goes -------------------------------------------------------------------------------------

    def _prepare(self, plan: ReplayPlan) -> dict[str, int]:
        """Register schemas and create topics; return the number of partitions of each topic."""
        target = self._job.target
        if plan.schemas.new and target.registry is not None:
            register(plan.schemas, target.registry)
        # Topics may have changed while the recording was sealed or the user was asked.
        _, counts = partitions(target.client)
        for topic in plan.topics:
            if topic.topic not in counts:
                target.make_topic(topic.topic, topic.has_keys)
        return self._when_ready([topic.topic for topic in plan.topics])

    def _when_ready(self, topics: list[str]) -> dict[str, int]:
        """Return the number of partitions of all topics, once the brokers have the metadata of ``topics``."""
        deadline = time.monotonic() + _TOPIC_SECONDS
        while True:
            try:
                pin(self._job.target.client, topics)
                return partitions(self._job.target.client)[1]
            except (ConnectionFailed, UsageError):
                raise
            except BwtuiError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK_SECONDS)

    def _routes(
        self,
        plan: ReplayPlan,
        topics: list[TopicPlan],
        earlier: ReplayProgress | None,
        counts: dict[str, int],
    ) -> list[ReplayRoute]:
        """Return the topics' routes; ``counts`` has the number of partitions of each topic."""
        routes = []
        for topic in topics:
            keeps_partitions = self._missing is not None
            if earlier is not None:
                before = earlier.routes.get(topic.recorded)
                keeps_partitions = before is not None and before.keeps_partitions
            keys, values = (plan.schemas.ids(topic.recorded, part) for part in ("key", "value"))
            route = ReplayRoute(
                topic.recorded, topic.topic, counts[topic.topic], keys, values, keeps_partitions
            )
            route.hash = self._job.target.hash
            routes.append(route)
        number_lanes(routes)
        return routes

    def _place(
        self,
        plan: ReplayPlan,
        topics: list[TopicPlan],
        rows: Rows,
        routes: list[ReplayRoute],
        earlier: ReplayProgress | None,
    ) -> list[PartitionSurvey]:
        self._control.phase("choosing partitions")
        surveys = rows.survey(routes, self._control.count)
        if earlier is None and self._keep_partitions(plan, rows, routes, surveys):
            surveys = rows.survey(routes, self._control.count)
        for topic, route, survey in zip(topics, routes, surveys, strict=True):
            topic.partitions = survey.messages
            if route.keeps_partitions and (earlier is not None or self._missing is None):
                topic.placement = "recorded"
        return surveys

    def _keep_partitions(
        self, plan: ReplayPlan, rows: Rows, routes: list[ReplayRoute], surveys: list[PartitionSurvey]
    ) -> bool:
        """Keep recorded partitions where keys would choose different ones; return whether any are kept."""
        keeps_any = False
        for route, survey in zip(routes, surveys, strict=True):
            if survey.moved and self._can_keep(plan, route, rows):
                route.keeps_partitions = keeps_any = True
            elif survey.moved:
                of = f" of {route.topic}" if route.topic != route.recorded else ""
                plan.notes.append(
                    f"{survey.moved:,} messages of {route.recorded} go to different partitions{of} than "
                    "recorded: its keys are encoded differently, or it has a different number of partitions"
                )
        return keeps_any

    def _can_keep(self, plan: ReplayPlan, route: ReplayRoute, rows: Rows) -> bool:
        count = plan.count.topics[route.recorded]
        if count.unplaced or plan.schemas.changes_keys(route.recorded):
            return False
        if max(count.partitions) >= route.partitions:
            return False
        # A key in two partitions can't be kept in order there.
        return isinstance(rows, FileRows) and not rows.is_spread(route.recorded)


__all__ = [
    "Replay",
    "ReplayJob",
    "ReplayObserver",
    "ReplayOptions",
    "ReplayOutcome",
    "ReplayPlan",
    "ReplayTarget",
    "TopicPlan",
]


class Replay:
    """One run of a replay."""

    def __init__(self, job: ReplayJob, watch: ReplayObserver | None = None) -> None:
        self._job = job
        self._watch = watch or ReplayObserver()
        self._control = ReplayControl(self._watch)

    def run(self, open_session: OpenSession, *, with_spark: bool = False) -> ReplayOutcome:
        """Run the replay. The session must have the configuration `bwtui.spark.session.WRITE_ONCE`.

        It is opened if the replay is large or ``with_spark`` is set.

        Raises UsageError, RefusedError, ConnectionFailed, DamagedRecording, StateFailed, SchemaRefused, or
        Interrupted if it was cancelled.
        """
        job = self._job
        first, *_ = existing_segments(job.recording)
        _ = job.target.hash
        if job.options.only_missing is not None and job.options.prefix is not None:
            raise UsageError(
                "--only-missing writes to the recording's own topics, so it can't be combined "
                "with --topic-prefix",
                "leave out --topic-prefix",
            )
        missing = self._missing()
        cluster, topics = partitions(job.target.client)
        if missing is not None:
            self._foresee(missing, first, cluster)
        spark = LazySparkSession(open_session, self._control.phase, is_required=with_spark)
        with spark.closing(), self._sealed(spark) as sealed:
            return ReplaySteps(job, self._control, spark, sealed, cluster, topics, missing).run()

    def _missing(self) -> "MissingMessages | None":
        if self._job.options.only_missing is None:
            return None
        from bwtui.replay.missing_messages import MissingMessages

        return MissingMessages(self._job.options.only_missing)

    def _foresee(self, missing: "MissingMessages", first: SegmentPath, cluster: str) -> None:
        """Check, before Spark starts, for reasons that would end the replay later."""
        job = self._job
        with contextlib.closing(SegmentReader(first)) as segment:
            recording = str(segment.head.get("recording", ""))
        if recording:
            missing.refuse_different(recording, cluster)
        # An interrupted run was confirmed when it began, so it resumes without another question.
        is_begun = not job.options.restart and progress_file(job, recording, cluster, missing).load()
        if not is_begun and not job.options.dry_run:
            self._watch.will_ask(missing.reported)

    @contextlib.contextmanager
    def _sealed(self, spark: LazySparkSession) -> Iterator[SealedRecording]:
        """Open the sealed recording, after sealing what is not sealed yet."""
        folder = self._job.recording
        sealed: SealedRecording | None = None
        with contextlib.suppress(UsageError):
            sealed = open_sealed(folder, check_files=False)
        if sealed is not None and not sealed.behind:
            self._check(sealed)
            yield sealed
            return
        with _sealable(folder) as place:
            # In a read-only folder nothing sealed can be extended: everything is sealed again elsewhere.
            session = spark.for_sealing(unsealed_bytes(place, sealed if place == folder else None))
            self._control.phase("sealing the recording")
            seal(place, lambda: session, self._watch.count)
            yield open_sealed(place, check_files=False)

    def _check(self, sealed: SealedRecording) -> None:
        self._control.phase("checking the recording")
        rows = sealed.manifest.rows
        # The check counts bytes, but progress is shown in rows everywhere.
        check_all(
            sealed.root,
            sealed.manifest.files,
            lambda done, all_: self._control.count(rows * done // all_, rows),
        )


@contextlib.contextmanager
def _sealable(folder: Path) -> Iterator[Path]:
    """Yield a folder to seal in: the recording's own, or one with links if that is read-only."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        with scratch("bwtui-sealed-") as place:
            for segment in segments(folder):
                (place / segment.path.name).symlink_to(segment.path.resolve())
            yield place
        return
    yield folder
