"""Make a topic reject messages, as if a permission were missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType


@contextmanager
def shut(broker: str, topic: str) -> Iterator[None]:
    """Make Kafka reject every message that is older than its arrival."""
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
