"""Read the present state of topics: identity, partitions, and how many records they have lost."""

from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType, TopicDescription

from bwtui.kafka.client import MISSING_TOPIC, LastClientError, new_client, unreachable
from bwtui.kafka.commands import LoggedAdmin, ready_client
from bwtui.sink.destination import PresentTopic, PresentTopics, TopicEnd

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
            future = self._asked().describe_cluster(request_timeout=_REQUEST_SECONDS)
            return str(future.result().cluster_id or "")
        except KafkaException as error:
            raise unreachable(self._broker, self._heard.instead_of(error.args[0])) from error

    def look(self, topics: Collection[str], *, with_beginnings: bool) -> PresentTopics:
        """Return the state of ``topics``, None for a missing one, without those that can't be determined.

        ``with_beginnings``: include how many records they have lost. Raises ConnectionFailed.
        """
        if not topics:
            return {}
        try:
            described, gone = self._described(topics)
            return dict.fromkeys(gone) | self._present(described, with_beginnings)
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
            ends = {topic: TopicEnd(topic_id(now), {}) for topic, now in described.items()}
            for place, offset in self._offsets(described, OffsetSpec.latest()):
                ends[place.topic].offsets[place.partition] = offset
            return ends
        except KafkaException as error:
            raise unreachable(self._broker, self._heard.instead_of(error.args[0])) from error

    def _described(self, topics: Collection[str]) -> tuple[dict[str, TopicDescription], list[str]]:
        """Return those of ``topics`` that exist, and the names of those that do not."""
        futures = self._asked().describe_topics(
            TopicCollection(list(topics)), request_timeout=_REQUEST_SECONDS
        )
        described: dict[str, TopicDescription] = {}
        gone = []
        for topic, future in futures.items():
            try:
                described[topic] = future.result()
            except KafkaException as error:
                code = error.args[0].code()
                if code in MISSING_TOPIC:
                    gone.append(topic)
                elif code in _NO_ANSWER:
                    raise
        return described, gone

    @cached_property
    def _client(self) -> LoggedAdmin:
        return new_client(LoggedAdmin, {**self._config, "error_cb": self._heard})

    def _asked(self) -> LoggedAdmin:
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
