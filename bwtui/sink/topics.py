"""Create topics before the first message, and read their limits."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

from bwtui.errors import RefusedError, ServiceRefused
from bwtui.kafka.client import (
    AUTHENTICATION_ERRORS,
    QUICK_SECONDS,
    LastClientError,
    authentication_failed,
    cluster_metadata,
    missing_topic,
    new_client,
    unreachable,
)
from bwtui.kafka.commands import LoggedAdmin, ready_client
from bwtui.sink.destination import Limits, PresentTopic, TopicLimits
from bwtui.sink.present_topics import topic_id

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
            cluster = cluster_metadata(self._asked(), self._heard, self._broker, patience)
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
        existing = self._limits(list(topics))
        missing = [topic for topic in topics if topic not in existing]
        if missing:
            existing |= self._create({topic: topics[topic] for topic in missing})
            # Another client created these at the same moment, possibly with different settings.
            existing |= self._limits([topic for topic in missing if topic not in existing])
        limits = {topic: existing.get(topic) or self._ours(keyed) for topic, keyed in topics.items()}
        return self._with_partitions(limits)

    def existing(self, topics: Sequence[str]) -> Limits:
        """Return the limits of ``topics`` like `ensure_all`, without creating any."""
        limits = self._limits(topics)
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
            futures = self._asked().describe_topics(
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
        futures = self._asked().create_topics(topics, request_timeout=_REQUEST_SECONDS)
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

    def _limits(self, topics: Sequence[str]) -> Limits:
        """Return the limits of those of ``topics`` that exist."""
        if not topics:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        futures = self._asked().describe_configs(resources, request_timeout=_REQUEST_SECONDS)
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

    def _asked(self) -> LoggedAdmin:
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
