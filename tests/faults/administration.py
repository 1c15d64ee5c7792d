"""What a careless administrator does to topics and subjects while a relay runs."""

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.fresh_topic import create_topic

INCOMPATIBLE = '{"type": "record", "name": "Other", "fields": [{"name": "id", "type": "boolean"}]}'


def make_topic(
    services: ServiceAddresses, topic: str, size: int, policy: str = "compact", **settings: str
) -> None:
    """Make ``topic`` before a relay does: as the relay would, but it takes no batch larger than ``size``.

    A limit that is set later holds a moment after Kafka says so, and what a relay sends may come in between.
    """
    admin = AdminClient({"bootstrap.servers": services.broker})
    config = {"cleanup.policy": policy, "max.message.bytes": str(size)} | settings
    create_topic(admin, NewTopic(topic, -1, -1, config=config))


def limit_topic(services: ServiceAddresses, topic: str, size: int) -> None:
    """Let ``topic`` take no batch larger than ``size`` bytes."""
    configure_topic(services, topic, "max.message.bytes", str(size))


def configure_topic(services: ServiceAddresses, topic: str, setting: str, value: str) -> None:
    """Set one of the settings of ``topic``."""
    admin = AdminClient({"bootstrap.servers": services.broker})
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)


def occupy_subject(services: ServiceAddresses, subject: str, level: str = "BACKWARD") -> None:
    """Register a schema under ``subject`` with which no table's schema is compatible."""
    client = SchemaRegistryClient({"url": services.schema_registry})
    client.register_schema(subject, Schema(INCOMPATIBLE, "AVRO"))
    client.set_compatibility(subject, level)
    client.close()
