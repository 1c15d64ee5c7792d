"""Recordings to replay, and the topics expected after it, computed by the recording's plain reader."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Message
from pyspark.sql import SparkSession

from bwtui.cli.replay import target
from bwtui.encode.registry import SchemaRegistry
from bwtui.errors import UsageError
from bwtui.model.status import SchemaEntry
from bwtui.pgoutput.messages import Relation
from bwtui.recording.query_language import ChangeSelection
from bwtui.recording.reader import open_recording
from bwtui.recording.sealed import open_sealed
from bwtui.relay.routes.route import TableRoute
from bwtui.replay.replay import Replay, ReplayJob, ReplayObserver, ReplayOptions, ReplayOutcome, ReplayPlan
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.seal.sealing import seal
from bwtui.settings import RelaySettings
from tests.raw_topic import raw_records
from tests.recorded_stream import Stream, table

KEY_SCHEMA, VALUE_SCHEMA = '"bytes"', '"string"'


class Sent(NamedTuple):
    """A message without its place."""

    key: bytes | None
    value: bytes | None
    stamp: int
    headers: tuple[tuple[str, bytes], ...]


def framed(number: int, content: bytes) -> bytes:
    """Prepend a schema id to ``content``."""
    return b"\0" + number.to_bytes(4, "big") + content


@dataclass
class FramedStream(Stream):
    """A stream whose messages carry the schema ids ``ids`` of key and value."""

    ids: tuple[int, int] = (11, 12)

    def _route(self, relation: Relation) -> TableRoute:
        is_known = relation in self._routes
        route = super()._route(relation)
        if not is_known:
            del self.report.schemas[f"{route.topic}-value", route.value_schema_id or 0]
            route.key_schema_id, route.value_schema_id = self.ids
            for part, number, text in zip(
                ("key", "value"), self.ids, (KEY_SCHEMA, VALUE_SCHEMA), strict=True
            ):
                entry = (f"{route.topic}-{part}", number, 1, relation.qualified_name, route.topic, part, text)
                self.report.schemas[entry[0], number] = SchemaEntry(*entry, 0.0)
        return route

    def _add(self, route: TableRoute, key: bytes | None, value: bytes | None) -> None:
        key = None if key is None else framed(self.ids[0], key)
        super()._add(route, key, None if value is None else framed(self.ids[1], value))


def recorded(
    folder: Path,
    topic: str,
    changes: int,
    ids: tuple[int, int],
    *,
    keys: int = 20,
    body: bytes = b"",
    batch: int = 1_000,
) -> Path:
    """Record inserts, updates and deletes of one table, transactions of ten, and end the recording."""
    stream = FramedStream(folder, ids=ids)
    stream.begin_pass()
    relation = table(1, topic)
    for number in range(changes):
        what = "delete" if number % 17 == 5 else "insert" if number < keys else "update"
        stream.change(what, relation, number % keys, body + b"%d" % number)
        if number % 10 == 9:
            stream.commit()
        if number % batch == batch - 1:
            stream.flush()
            stream.deliver()
    stream.commit()
    stream.stop()
    return folder


def registered(services: ServiceAddresses, topic: str) -> tuple[int, int]:
    """Register the schemas of `FramedStream` for a topic, and return their ids."""
    with contextlib.closing(SchemaRegistry(services.schema_registry)) as registry:
        return (
            registry.register_id(f"{topic}-key", KEY_SCHEMA),
            registry.register_id(f"{topic}-value", VALUE_SCHEMA),
        )


def expected(folder: Path) -> dict[str, list[Sent]]:
    """Return the messages of a recording, by topic, in order."""
    found: defaultdict[str, list[Sent]] = defaultdict(list)
    with contextlib.closing(open_recording(folder)) as view:
        for change in view.changes():
            if not change.is_repeat:
                for one in change.messages:
                    stamp = change.commit_time // 1000
                    found[one.topic].append(Sent(one.key, one.value, stamp, one.headers))
    return dict(found)


def with_ids(sent: Sent, keys: Mapping[int, int], values: Mapping[int, int]) -> Sent:
    """Return a message with different schema ids, inserted without the code under test."""

    def mapped(content: bytes | None, ids: Mapping[int, int]) -> bytes | None:
        if content is None:
            return None
        return content[:1] + ids[int.from_bytes(content[1:5], "big")].to_bytes(4, "big") + content[5:]

    return sent._replace(key=mapped(sent.key, keys), value=mapped(sent.value, values))


def topic_content(services: ServiceAddresses, topic: str) -> dict[int, list[Sent]]:
    """Return the contents of a topic, by partition."""
    found = raw_records(services, [topic])
    assert found, f"there is no topic {topic}"
    return {partition: [_as_sent(one) for one in messages] for (_, partition), messages in found.items()}


def _as_sent(message: Message) -> Sent:
    headers: Any = message.headers() or ()
    return Sent(message.key(), message.value(), message.timestamp()[1], tuple(headers))


def by_key(messages: Iterator[Sent] | list[Sent]) -> dict[bytes | None, list[Sent]]:
    """Return the messages of each key, in order."""
    found: defaultdict[bytes | None, list[Sent]] = defaultdict(list)
    for one in messages:
        found[one.key].append(one)
    return dict(found)


def all_of(content: Mapping[int, list[Sent]]) -> list[Sent]:
    """Return the messages of all partitions."""
    return [one for number in sorted(content) for one in content[number]]


@dataclass
class Looking(ReplayObserver):
    """Records all reports; `stop_at` cancels when that number of messages is durable."""

    stop_at: int | None = None
    plans: list[ReplayPlan] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    told: list[tuple[int, int]] = field(default_factory=list)
    at_progress: Callable[[int], None] = lambda done: None
    #: By phase.
    counts: defaultdict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def phase(self, name: str) -> None:
        self.phases.append(name)

    def count(self, done: int, total: int) -> None:
        self.counts[self.phases[-1]].append((done, total))

    def progress(self, done: int, total: int, rate: float, left: float | None) -> None:
        self.told.append((done, total))
        self.at_progress(done)

    def confirm(self, plan: ReplayPlan) -> None:
        self.plans.append(plan)

    def is_cancelled(self) -> bool:
        return self.stop_at is not None and bool(self.told) and self.told[-1][0] >= self.stop_at


@dataclass
class Replays:
    """Runs replays in one Spark session, or without Spark if that is not wanted."""

    spark: SparkSession
    services: ServiceAddresses
    state: Path
    #: Properties of librdkafka, as -C gives them.
    kafka_config: tuple[tuple[str, str], ...] = ()
    on_spark: bool = False

    def job(self, folder: Path, selection: ChangeSelection | None = None, **options: Any) -> ReplayJob:
        """Return a job into the run's Kafka."""
        settings = RelaySettings(
            broker=self.services.broker,
            schema_registry=self.services.schema_registry,
            kafka_config=self.kafka_config,
        )
        return ReplayJob(
            folder, target(settings), selection or ChangeSelection(), self.state, ReplayOptions(**options)
        )

    def run(
        self,
        folder: Path,
        watch: ReplayObserver | None = None,
        selection: ChangeSelection | None = None,
        **options: Any,
    ) -> ReplayOutcome:
        """Run one."""
        job = self.job(folder, selection, **options)
        with contextlib.closing(job.target):
            return self.started(job, watch)

    def started(self, job: ReplayJob, watch: ReplayObserver | None = None) -> ReplayOutcome:
        """Run a job."""
        session = contextlib.nullcontext(self.spark)
        return Replay(job, watch).run(lambda: session, with_spark=self.on_spark)

    def master(self, name: str) -> list[str]:
        """Return the command-line options for the same way of running."""
        return ["--spark-master", name] if self.on_spark else []

    def sealed(self, folder: Path) -> None:
        """Seal a recording, unless it is sealed already."""
        with contextlib.suppress(UsageError):
            if not open_sealed(folder).behind:
                return
        seal(folder, lambda: contextlib.nullcontext(self.spark))


def fresh(name: str) -> str:
    """Return a name that no topic has."""
    return f"{name}-{time.monotonic_ns():x}"
