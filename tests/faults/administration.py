"""Administrative changes to topics and subjects that break a running relay."""

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition
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
from tests.faults.relays import wait_for
from tests.fresh_topic import create_topic

INCOMPATIBLE = '{"type": "record", "name": "Other", "fields": [{"name": "id", "type": "boolean"}]}'


def make_topic(
    services: ServiceAddresses, topic: str, size: int, policy: str = "compact", **settings: str
) -> None:
    """Create ``topic`` before a relay does, with a maximum batch size of ``size`` bytes.

    The other settings are the relay's. Changing the limit later is too slow: it takes effect some time after
    Kafka acknowledges it, and rows could slip through.
    """
    admin = AdminClient({"bootstrap.servers": services.broker})
    config = {"cleanup.policy": policy, "max.message.bytes": str(size)} | settings
    create_topic(admin, NewTopic(topic, -1, -1, config=config))


def limit_topic(services: ServiceAddresses, topic: str, size: int) -> None:
    """Limit the batches of ``topic`` to ``size`` bytes."""
    configure_topic(services, topic, "max.message.bytes", str(size))


def configure_topic(services: ServiceAddresses, topic: str, setting: str, value: str) -> None:
    """Set one of the settings of ``topic``."""
    admin = AdminClient({"bootstrap.servers": services.broker})
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)


def empty_topic(admin: AdminClient, topic: str) -> None:
    """Delete every record of a topic, as kafka-delete-records does, once the broker knows its policy."""
    ends = [
        TopicPartition(topic, number, OFFSET_END)
        for number in admin.list_topics(topic, timeout=30).topics[topic].partitions
    ]

    def is_empty() -> bool:
        try:
            for deleted in admin.delete_records(ends).values():
                deleted.result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.POLICY_VIOLATION:
                raise
            return False
        return True

    wait_for(f"{topic} is empty", is_empty, every=0.1)


def occupy_subject(services: ServiceAddresses, subject: str, level: str = "BACKWARD") -> None:
    """Register a schema under ``subject`` that is incompatible with the schema of every table."""
    client = SchemaRegistryClient({"url": services.schema_registry})
    client.register_schema(subject, Schema(INCOMPATIBLE, "AVRO"))
    client.set_compatibility(subject, level)
    client.close()
