"""The target Kafka of a replay: names of topics, and the messages they already have in the time window."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from bwtui.errors import UsageError
from bwtui.kafka.client import AUTHENTICATION_ERRORS, REQUEST_SECONDS, Config, new_client, plain_kafka_error
from bwtui.kafka.offsets import PinnedTopics
from bwtui.kafka.scan import SplitScan
from bwtui.kafka.splits import Split
from bwtui.replay.rows import Hash

if TYPE_CHECKING:
    from bwtui.encode.registry import SchemaRegistry

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
