"""librdkafka's settings: defaults, the user's, and those that bwtui's guarantees depend on."""

from collections.abc import Mapping
from typing import Any

from bwtui.errors import UsageError
from bwtui.setting_origins import OfProperty, usual_place
from bwtui.settings import RelaySettings

#: Messages larger than Kafka's default of 1 MiB are ordinary in change data capture.
DEFAULT_MAX_MESSAGE_BYTES = 67_108_864

#: Defaults that -C and -T may override.
DEFAULTS: Mapping[str, Any] = {
    "client.id": "bwtui",
    # The relay batches rows itself.
    "linger.ms": 0,
    # Otherwise it would follow linger.ms=0, and rows without a key would scatter over partitions.
    "sticky.partitioning.linger.ms": 10,
    "batch.num.messages": 10_000,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",
    "message.max.bytes": DEFAULT_MAX_MESSAGE_BYTES,
    "socket.keepalive.enable": True,
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 2_000,
    "topic.metadata.refresh.fast.interval.ms": 100,
}

#: Defaults for bulk transfers, where throughput matters more than latency: a snapshot, a replay.
IN_BULK: Mapping[str, Any] = {**DEFAULTS, "linger.ms": 5}

#: Prevents that later rows overtake one that Kafka has rejected. By default librdkafka continues after a
#: rejected request with a new epoch, so that a key's later row is written before its earlier one, which is
#: then retried. With this setting the producer ends instead. See also `bwtui.sink.first_requests`.
IN_ORDER: Mapping[str, Any] = {"enable.gapless.guarantee": True}

#: Settings that the user can't change, each with the harmless values and the reason.
FIXED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "enable.idempotence": (("true", "1"), "without it, a retry can duplicate or reorder rows"),
    "acks": (("all", "-1"), "a row is durable only when every in-sync replica has it"),
    "request.required.acks": (("all", "-1"), "a row is durable only when every in-sync replica has it"),
    "message.timeout.ms": (("0",), "bwtui waits for the end of an outage and never drops rows"),
    "delivery.timeout.ms": (("0",), "bwtui waits for the end of an outage and never drops rows"),
    "queue.buffering.max.messages": ((), "bwtui itself limits the messages in flight"),
    "queue.buffering.max.kbytes": ((), "bwtui itself limits the messages in flight"),
    "delivery.report.only.error": (("false", "0"), "bwtui counts every acknowledgement"),
    "produce.offset.report": (("true", "1"), "bwtui counts every acknowledgement"),
    "queuing.strategy": (("fifo",), "rows of one key must stay in commit order"),
    "partitioner": (
        ("murmur2_random", "murmur2", "consistent", "consistent_random", "fnv1a", "fnv1a_random"),
        "rows of one key must stay in one partition",
    ),
    "enable.gapless.guarantee": ((), "bwtui enables it while streaming, and disables it in a snapshot"),
    "allow.auto.create.topics": (("false", "0"), "bwtui creates its topics itself, with their settings"),
    "transactional.id": ((), "--exactly-once sets it"),
    "bootstrap.servers": ((), "-b/--broker sets it"),
    "metadata.broker.list": ((), "-b/--broker sets it"),
}


def client_config(settings: RelaySettings) -> dict[str, Any]:
    """Return the settings of every Kafka client of the relay: brokers and the user's security settings."""
    security = ("security.", "sasl.", "ssl.", "enable.ssl.", "socket.", "client.", "broker.", "debug")
    config: dict[str, Any] = {"bootstrap.servers": settings.broker}
    config |= {key: value for key, value in settings.kafka_config if key.startswith(security)}
    return config


def producer_config(
    settings: RelaySettings, place: OfProperty = usual_place, defaults: Mapping[str, Any] = DEFAULTS
) -> dict[str, Any]:
    """Return the producer's configuration.

    Raises UsageError for a setting that would break a guarantee; ``place`` says where it was set.
    """
    config: dict[str, Any] = dict(defaults)
    entries = [("kafka-config", *pair) for pair in settings.kafka_config]
    entries += [("topic-config", *pair) for pair in settings.topic_config]
    for option, key, value in entries:
        allowed, reason = FIXED.get(key, (None, ""))
        if allowed is not None and value.lower() not in allowed:
            raise UsageError(
                f"{place(option, key)}: {key}={value} is not allowed: {reason}", "omit this setting"
            )
        config[key] = value
    if config["client.id"] == "bwtui":
        config["client.id"] = f"bwtui-{settings.slot}"
    return config | {
        "bootstrap.servers": settings.broker,
        # A deleted topic must not be recreated unnoticed, with the broker's defaults.
        "allow.auto.create.topics": False,
        "enable.idempotence": True,
        "acks": "all",
        "message.timeout.ms": 0,
        "queue.buffering.max.messages": 10_000_000,
        "queue.buffering.max.kbytes": 2_097_151,
    }
