"""Deletes the first records of a topic's fullest partition, as a broker may: no retention explains it.

``python -m tests.docs.lost BROKER TOPIC COUNT``.
"""

import sys
from contextlib import closing

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType


def lose(broker: str, topic: str, count: int) -> None:
    """Delete the first ``count`` records."""
    admin = AdminClient({"bootstrap.servers": broker})
    # Kafka deletes records on request only from such a topic.
    for name, value in (("cleanup.policy", "compact,delete"), ("retention.ms", "-1")):
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result()
    with closing(Consumer({"bootstrap.servers": broker, "group.id": "lost"})) as reader:
        partitions = admin.list_topics(topic).topics[topic].partitions
        ends = {
            number: reader.get_watermark_offsets(TopicPartition(topic, number))[1] for number in partitions
        }
    place = TopicPartition(topic, max(ends, key=lambda number: ends[number]), count)
    admin.delete_records([place])[place].result()


if __name__ == "__main__":
    lose(sys.argv[1], sys.argv[2], int(sys.argv[3]))
