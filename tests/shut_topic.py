"""A topic that lets nothing in, as one does for which a right is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType


@contextmanager
def shut(broker: str, topic: str) -> Iterator[None]:
    """Have Kafka refuse every message that is older than the moment in which it comes."""
    admin = AdminClient({"bootstrap.servers": broker})

    def alter(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("message.timestamp.before.max.ms", "0", incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result()

    alter(AlterConfigOpType.SET)
    try:
        yield
    finally:
        alter(AlterConfigOpType.DELETE)
