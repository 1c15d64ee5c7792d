"""Pin the state of topics before a scan starts: offsets, settings, and the cluster.

::

    pinned = pin(config, ["shop.orders", "shop.items"])
    pinned.offsets["shop.orders", 0]       # (low, high): the log's start, and after its last record
    pinned.topics["shop.orders"].compacts  # and every other setting that explains missing records
    pinned.cluster_id

Offsets cover everything that was written, including uncommitted transactions (read_uncommitted).
"""

import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from bwtui.kafka.client import (
    REQUEST_SECONDS,
    WITHOUT_LEADER,
    Config,
    LastClientError,
    cluster_metadata,
    missing_topic,
    new_client,
    plain_kafka_error,
)

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
    names = sorted(set(topics))
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
