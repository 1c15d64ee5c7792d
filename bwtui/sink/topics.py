"""Topics: made before the first message, and asked for their limits."""

import logging
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from bwtui.errors import RefusedError
from bwtui.kafka_client import NOT_LET_IN, Heard, cluster_metadata, not_let_in, unreachable
from bwtui.sink.base import TopicLimits

#: What no further try mends: the topic itself, the cluster's settings or the user's rights stand against it.
#: All else counts as an outage, which is waited for, since a table that is refused loses its rows.
_REFUSALS = frozenset(
    {
        KafkaError.TOPIC_EXCEPTION,
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
_log = logging.getLogger("bwtui.kafka")


class TopicAdmin:
    """Makes topics and reads their settings."""

    def __init__(self, config: dict[str, Any], max_message_bytes: int) -> None:
        self._heard = Heard()
        settings: dict[str, Any] = {**config, "error_cb": self._heard}
        self._client = AdminClient(settings, logger=_log)
        self._max_message_bytes = max_message_bytes
        self._broker = str(config["bootstrap.servers"])

    def check(self) -> dict[str, Any]:
        """Return the cluster's id and number of brokers. Raises ConnectionFailed."""
        try:
            found = cluster_metadata(self._asked(), self._heard)
        except KafkaException as error:
            raise self._failed(error.args[0]) from error
        return {"cluster_id": found.cluster_id, "brokers": len(found.brokers)}

    def ensure(self, topic: str, *, keyed: bool) -> TopicLimits:
        """Make ``topic`` if it is missing, and return its limits.

        A topic of ours keeps every key's latest row for good: keyed ones are compacted, unkeyed ones (which
        can't be) are kept without a time limit. Partitions and replicas are the broker's defaults. Raises
        ConnectionFailed when another try may help, RefusedError otherwise.
        """
        limits = self._limits(topic)
        if limits is None:
            config = {"cleanup.policy": "compact"} if keyed else _KEPT_FOR_GOOD
            config = {**config, "max.message.bytes": str(self._max_message_bytes)}
            self._create(NewTopic(topic, -1, -1, config=config))
            # Somebody else may have made it at the same moment, with other settings.
            limits = self._limits(topic)
        return limits or TopicLimits(self._max_message_bytes, compacted=keyed)

    def partitions(self, topic: str) -> int:
        """Return how many partitions ``topic`` has, 1 if we may not know.

        Raises ConnectionFailed, RefusedError.
        """
        # A broker may learn of a topic a little after the controller has made it.
        until = time.monotonic() + _REQUEST_SECONDS
        while True:
            future = self._asked().describe_topics(TopicCollection([topic]), request_timeout=_REQUEST_SECONDS)
            try:
                return len(future[topic].result().partitions)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    return 1
                if code != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > until:
                    raise self._failed(error.args[0], topic) from error
                time.sleep(0.02)

    def _create(self, topic: NewTopic) -> None:
        future = self._asked().create_topics([topic], request_timeout=_REQUEST_SECONDS)[topic.topic]
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._failed(error.args[0], topic.topic) from error

    def _limits(self, topic: str) -> TopicLimits | None:
        """Return the limits of ``topic``, or None when there is no such topic."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        future = self._asked().describe_configs([resource], request_timeout=_REQUEST_SECONDS)[resource]
        try:
            found = future.result()
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                # Without the right to describe it, the broker's own refusal of a message is what is left.
                return TopicLimits(self._max_message_bytes, compacted=False)
            raise self._failed(error.args[0], topic) from error
        policy = found["cleanup.policy"].value
        return TopicLimits(self._max_message_bytes, "compact" in policy)

    def _asked(self) -> AdminClient:
        """Return the client; what it told of earlier connections is forgotten."""
        self._client.poll(0)
        self._heard.error = None
        return self._client

    def _failed(self, error: KafkaError, topic: str | None = None) -> Exception:
        self._client.poll(0)
        error = self._heard.instead_of(error)
        if error.code() in _REFUSALS:
            place = f"topic {topic}" if topic else f"Kafka at {self._broker}"
            return RefusedError(
                f"{place}: {error.str()}", "make the topic by hand, or check the user's rights (ACLs)"
            )
        if error.code() in NOT_LET_IN:
            return not_let_in("Kafka", error)
        return unreachable(self._broker, error)
