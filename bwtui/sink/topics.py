"""Create topics before the first message, and read their limits."""

import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import Message as ConsumerMessage
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec, ResourceType, TopicDescription

from bwtui.errors import ConnectionFailed, RefusedError, ServiceRefused
from bwtui.kafka.client import (
    AUTHENTICATION_ERRORS,
    MISSING_TOPIC,
    QUICK_SECONDS,
    WITHOUT_LEADER,
    LastClientError,
    authentication_failed,
    cluster_metadata,
    headers_of,
    missing_topic,
    new_client,
    unreachable,
)
from bwtui.kafka.commands import LoggedAdmin, ready_client
from bwtui.model.headers import SESSION
from bwtui.sink.destination import (
    UNKNOWN_END,
    KeyRecord,
    Limits,
    Offsets,
    PresentTopic,
    PresentTopics,
    TopicEnd,
    TopicLimits,
    TopicScanner,
)

#: Errors that no retry fixes: the cluster's settings or the user's rights forbid it. A table's rows are not
#: dropped for that. Every other error counts as an outage, which is waited for, except for an invalid topic
#: name.
_REFUSALS = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICA_ASSIGNMENT,
        KafkaError.INVALID_REQUEST,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError.SECURITY_DISABLED,
        KafkaError._INVALID_ARG,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError._NOT_IMPLEMENTED,
    }
)
_REQUEST_SECONDS = 10.0
_KEPT_FOR_GOOD = {"cleanup.policy": "delete", "retention.ms": "-1"}


class TopicAdmin:
    """Creates topics and reads their settings."""

    def __init__(self, config: dict[str, Any], max_message_bytes: int, ordered: str = "") -> None:
        """Take ``ordered``, a topic with a single partition, whose messages expire by the brokers'
        defaults.
        """
        self._ordered = ordered
        self._heard = LastClientError()
        self._client = new_client(LoggedAdmin, {**config, "error_cb": self._heard})
        self._max_message_bytes = max_message_bytes
        self._broker = str(config["bootstrap.servers"])

    def check(self, patience: float = QUICK_SECONDS) -> dict[str, Any]:
        """Return the cluster's ID and number of brokers. Raises ConnectionFailed.

        Brokers that are down have ``patience`` seconds to come back.
        """
        try:
            cluster = cluster_metadata(self._ready_client(), self._heard, self._broker, patience)
        except KafkaException as error:
            raise self._failed(error.args[0]) from error
        return {"cluster_id": cluster.cluster_id, "brokers": len(cluster.brokers)}

    def ensure(self, topic: str, *, keyed: bool) -> TopicLimits:
        """Create one topic like `ensure_all`, and return its limits. Raises RefusedError as well."""
        limits = self.ensure_all({topic: keyed})[topic]
        if isinstance(limits, RefusedError):
            raise limits
        return limits

    def ensure_all(self, topics: Mapping[str, bool]) -> Limits:
        """Create the topics that are missing, and return the limits of all, or why one is refused.

        ``topics`` says which of them are keyed. A topic created here keeps every key's latest row without a
        time limit: keyed ones are compacted, and unkeyed ones, which can't be, have unlimited retention.
        Partitions and replicas are the broker's defaults. The refusal is ServiceRefused if someone has to fix
        something first, and RefusedError if no topic can have that name. Raises ConnectionFailed if a retry
        may help; the retry then finds the topics created so far.
        """
        existing = self.present(list(topics))
        missing = [topic for topic in topics if topic not in existing]
        if missing:
            existing |= self._create({topic: topics[topic] for topic in missing})
            # Another client created these at the same moment, possibly with different settings.
            existing |= self.present([topic for topic in missing if topic not in existing])
        limits = {topic: existing.get(topic) or self._ours(keyed) for topic, keyed in topics.items()}
        return self._with_partitions(limits)

    def existing(self, topics: Sequence[str]) -> Limits:
        """Return the limits of ``topics`` like `ensure_all`, without creating any."""
        limits = self.present(topics)
        return self._with_partitions({topic: limits.get(topic) or missing_topic(topic) for topic in topics})

    def _with_partitions(self, limits: Limits) -> Limits:
        usable = [topic for topic, one in limits.items() if isinstance(one, TopicLimits)]
        for topic, described in self._partitions(usable).items():
            one = limits[topic]
            if isinstance(described, RefusedError):
                limits[topic] = described
            elif isinstance(one, TopicLimits):
                limits[topic] = replace(one, partitions=described.partitions, id=described.id)
        return limits

    def _ours(self, keyed: bool) -> TopicLimits:
        return TopicLimits(self._max_message_bytes, compacted=keyed)

    def _partitions(self, topics: Sequence[str]) -> dict[str, PresentTopic | RefusedError]:
        """Return the ID and partitions of each topic; one partition if the user may not see them.

        Raises ConnectionFailed.
        """
        counts: dict[str, PresentTopic | RefusedError] = {}
        # A broker may learn of a topic slightly after the controller has created it.
        until = time.monotonic() + _REQUEST_SECONDS
        while pending := [topic for topic in topics if topic not in counts]:
            futures = self._ready_client().describe_topics(
                TopicCollection(pending), request_timeout=_REQUEST_SECONDS
            )
            for topic, future in futures.items():
                try:
                    described = future.result()
                    counts[topic] = PresentTopic(topic_id(described), len(described.partitions))
                except KafkaException as error:
                    code = error.args[0].code()
                    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                        counts[topic] = PresentTopic("", 1)
                    elif code != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > until:
                        counts[topic] = self._refused(error, topic)
            if len(counts) < len(topics):
                time.sleep(0.02)
        return counts

    def _create(self, keyed_topics: Mapping[str, bool]) -> Limits:
        """Create topics; the result leaves out those that another client has created meanwhile."""
        topics = [self._new(topic, keyed) for topic, keyed in keyed_topics.items()]
        limits: Limits = {}
        futures = self._ready_client().create_topics(topics, request_timeout=_REQUEST_SECONDS)
        for topic, future in futures.items():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    limits[topic] = self._refused(error, topic)
            else:
                limits[topic] = replace(self._ours(keyed_topics[topic]), is_new=True)
        return limits

    def _new(self, topic: str, keyed: bool) -> NewTopic:
        if topic == self._ordered:
            return NewTopic(topic, 1, -1, config={"max.message.bytes": str(self._max_message_bytes)})
        config = {"cleanup.policy": "compact"} if keyed else _KEPT_FOR_GOOD
        config = {**config, "max.message.bytes": str(self._max_message_bytes)}
        return NewTopic(topic, -1, -1, config=config)

    def present(self, topics: Sequence[str]) -> Limits:
        """Return the limits of those of ``topics`` that exist; of their partitions, nothing is read.

        Raises ConnectionFailed.
        """
        if not topics:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        futures = self._ready_client().describe_configs(resources, request_timeout=_REQUEST_SECONDS)
        limits: Limits = {}
        for resource, future in futures.items():
            topic = str(resource.name)
            try:
                policy = future.result()["cleanup.policy"].value
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    # Without the right to describe it, only the broker's rejection of a message remains.
                    limits[topic] = self._ours(keyed=False)
                elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    limits[topic] = self._refused(error, topic)
            else:
                limits[topic] = self._ours("compact" in policy)
        return limits

    def _refused(self, error: KafkaException, topic: str) -> RefusedError:
        """Return the error for one topic. Raises ConnectionFailed if a retry may help."""
        failed = self._failed(error.args[0], topic)
        if isinstance(failed, RefusedError):
            return failed
        raise failed from error

    def _ready_client(self) -> LoggedAdmin:
        return ready_client(self._client, self._heard)

    def _failed(self, error: KafkaError, topic: str | None = None) -> Exception:
        self._client.poll(0)
        error = self._heard.instead_of(error)
        place = f"topic {topic}" if topic else f"Kafka at {self._broker}"
        if error.code() == KafkaError.TOPIC_EXCEPTION:
            hint = "rename the table, or choose a different --topic-prefix: Kafka rejects this topic name"
            return RefusedError(f"{place}: {error.str()}", hint)
        if error.code() in _REFUSALS:
            return ServiceRefused(
                f"{place}: {error.str()}", "create the topic manually, or check the user's rights (ACLs)"
            )
        if error.code() in AUTHENTICATION_ERRORS:
            return authentication_failed("Kafka", error)
        return unreachable(self._broker, error)


# Read the present state of topics: identity, partitions, and how many records they have lost.

_REQUEST_SECONDS = 10.0
#: Maximum number of partitions whose offsets one request asks for.
_AT_ONCE = 300
#: No broker has responded, whatever the topic.
_NO_ANSWER = frozenset({KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN})
#: The ID from a broker older than Kafka 2.8, which has none.
_NO_ID = "A" * 22


class TopicInspector:
    """Queries Kafka for the state of topics."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._heard = LastClientError()
        self._config = config
        self._broker = str(config["bootstrap.servers"])

    def cluster(self) -> str:
        """Return the cluster's ID. Raises ConnectionFailed."""
        try:
            future = self._ready_client().describe_cluster(request_timeout=_REQUEST_SECONDS)
            return str(future.result().cluster_id or "")
        except KafkaException as error:
            raise unreachable(self._broker, self._heard.instead_of(error.args[0])) from error

    def describe(self, topics: Collection[str], *, with_beginnings: bool) -> PresentTopics:
        """Return the state of ``topics``, None for a missing one, without those that can't be determined.

        ``with_beginnings``: include how many records they have lost. Raises ConnectionFailed.
        """
        if not topics:
            return {}
        try:
            described, missing = self._described(topics)
            return dict.fromkeys(missing) | self._present(described, with_beginnings)
        except KafkaException as error:
            raise unreachable(self._broker, self._heard.instead_of(error.args[0])) from error

    def ends(self, topics: Collection[str]) -> dict[str, TopicEnd]:
        """Return the end offset of each partition of ``topics``; see `Service.ends`. Raises
        ConnectionFailed.
        """
        if not topics:
            return {}
        try:
            described, _ = self._described(topics)
            ends = {
                topic: TopicEnd(topic_id(now), {one.id: UNKNOWN_END for one in now.partitions})
                for topic, now in described.items()
            }
            for place, offset in self._offsets(described, OffsetSpec.latest()):
                ends[place.topic].offsets[place.partition] = offset
            return ends
        except KafkaException as error:
            raise unreachable(self._broker, self._heard.instead_of(error.args[0])) from error

    def _described(self, topics: Collection[str]) -> tuple[dict[str, TopicDescription], list[str]]:
        """Return those of ``topics`` that exist, and the names of those that do not."""
        futures = self._ready_client().describe_topics(
            TopicCollection(list(topics)), request_timeout=_REQUEST_SECONDS
        )
        described: dict[str, TopicDescription] = {}
        missing = []
        for topic, future in futures.items():
            try:
                described[topic] = future.result()
            except KafkaException as error:
                code = error.args[0].code()
                if code in MISSING_TOPIC:
                    missing.append(topic)
                elif code in _NO_ANSWER:
                    raise
        return described, missing

    @cached_property
    def _client(self) -> LoggedAdmin:
        return new_client(LoggedAdmin, {**self._config, "error_cb": self._heard})

    def _ready_client(self) -> LoggedAdmin:
        return ready_client(self._client, self._heard)

    def _present(self, described: dict[str, TopicDescription], with_beginnings: bool) -> PresentTopics:
        lost, counted = dict.fromkeys(described, 0), dict.fromkeys(described, 0)
        if with_beginnings:
            for place, offset in self._offsets(described, OffsetSpec.earliest()):
                lost[place.topic] += offset
                counted[place.topic] += 1
        # Kafka deletes no records from the start of a topic that is only compacted: compaction moves no first
        # offset.
        deleting = self._deleting([topic for topic in lost if lost[topic]])
        return {
            topic: PresentTopic(
                topic_id(now),
                len(now.partitions),
                lost[topic] if counted[topic] == len(now.partitions) else None,
                topic in deleting,
            )
            for topic, now in described.items()
        }

    def _deleting(self, topics: Collection[str]) -> set[str]:
        """Return those of ``topics`` that delete records, without those whose settings can't be read."""
        if not topics:
            return set()
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        futures = self._client.describe_configs(resources, request_timeout=_REQUEST_SECONDS)
        deleting = set()
        for resource, future in futures.items():
            try:
                if "delete" in future.result()["cleanup.policy"].value:
                    deleting.add(str(resource.name))
            except KafkaException as error:
                if error.args[0].code() not in (*MISSING_TOPIC, KafkaError.TOPIC_AUTHORIZATION_FAILED):
                    raise
        return deleting

    def _offsets(
        self, described: dict[str, TopicDescription], which: OffsetSpec
    ) -> Iterator[tuple[TopicPartition, int]]:
        """Yield the ``which`` offset of each partition; partitions without a leader are left out."""
        places = [TopicPartition(topic, one.id) for topic, now in described.items() for one in now.partitions]
        # In batches: confluent-kafka 2.16 corrupts memory if a call for many partitions is slow.
        for begin in range(0, len(places), _AT_ONCE):
            request = dict.fromkeys(places[begin : begin + _AT_ONCE], which)
            futures = self._client.list_offsets(
                request, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_REQUEST_SECONDS
            )
            for place, future in futures.items():
                try:
                    yield place, future.result().offset
                except KafkaException as error:
                    if error.args[0].code() in _NO_ANSWER:
                        raise


def topic_id(topic: TopicDescription) -> str:
    """Return Kafka's own ID of a topic; "" if it has none."""
    text = str(topic.topic_id)
    return "" if text == _NO_ID else text


# Read keys back from topics: the end offset of each partition, and the keys between two offsets.

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
            "queued.max.messages.kbytes": 16_384,
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
        for message in self._records(topic, start, end, on_wait):
            if (key := message.key()) is not None:
                yield KeyRecord(key, message.value() is None, _session(message))

    def count(self, topic: str, start: Offsets, end: Offsets, on_wait: Callable[[], None]) -> int:
        return sum(1 for _ in self._records(topic, start, end, on_wait))

    def _records(
        self, topic: str, start: Offsets, end: Offsets, on_wait: Callable[[], None]
    ) -> Iterator[ConsumerMessage]:
        open_ends = self._assign(topic, start, end, on_wait)
        try:
            while open_ends:
                on_wait()
                for message in self._consumer.consume(_BATCH, timeout=0.5):
                    if self._take(message, topic, open_ends):
                        yield message
        finally:
            self._consumer.unassign()

    def close(self) -> None:
        """Close the connection; a consumer that is in use ends with the process."""
        if "_consumer" in vars(self) and self._asking.acquire(blocking=False):
            self._consumer.close()

    @staticmethod
    def _take(message: ConsumerMessage, topic: str, open_ends: dict[int, int]) -> bool:
        """Return whether a message is before its partition's end, and remove completed partitions."""
        number, offset, error = message.partition(), message.offset(), message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise _unreadable(topic, error)
        if number is None or offset is None or number not in open_ends:
            return False
        last = open_ends[number]
        if error is not None or offset >= last - 1:
            del open_ends[number]
        return error is None and offset < last

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


#: Number of records or keys that are processed together.
BATCH = 10_000
#: Size of the page cache in KiB: keys arrive in a different order than their pages have.
_CACHE = 32 << 10


@contextmanager
def keys_on_disk(table: str) -> Iterator[sqlite3.Connection]:
    """Yield a database with one ``table``, whose primary key is named ``key``, and remove it afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="bwtui-") as folder,
        closing(sqlite3.connect(Path(folder) / "keys.sqlite")) as database,
    ):
        database.execute("pragma synchronous = off")
        database.execute("pragma journal_mode = off")
        database.execute(f"pragma cache_size = -{_CACHE}")
        database.execute(f"create table {table} without rowid")
        yield database


def in_batches(records: Iterator[KeyRecord]) -> Iterator[list[KeyRecord]]:
    """Return the records in batches of up to `BATCH`."""
    return iter(lambda: list(islice(records, BATCH)), [])


def each(database: sqlite3.Connection, sql: str, keys: Iterable[bytes]) -> None:
    """Run a statement for each key, in the order of their pages, which halves the cost."""
    database.executemany(sql, ((key,) for key in sorted(keys)))
