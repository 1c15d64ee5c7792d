"""The bytes of a topic, as they are."""

import uuid
from contextlib import closing

from confluent_kafka import Consumer, TopicPartition

from bwtui.sandbox.supervisor import Services
from tests.waiting import eventually

RawMessage = tuple[bytes | None, bytes | None]


def raw_messages(services: Services, topic: str) -> list[RawMessage]:
    """Return key and value of every message of ``topic``, partition by partition; none when it is missing."""
    settings = {"bootstrap.servers": services.broker, "group.id": uuid.uuid4().hex}
    with closing(Consumer(settings | {"enable.auto.commit": False})) as consumer:
        known = consumer.list_topics(timeout=30).topics
        if topic not in known:
            return []
        found: list[RawMessage] = []
        for partition in known[topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)
            consumer.assign([TopicPartition(topic, partition, low)])
            want = len(found) + high - low

            def read(want: int = want) -> bool:
                messages = consumer.consume(want - len(found), 0.2) if len(found) < want else []
                assert not any(message.error() for message in messages)
                found.extend((message.key(), message.value()) for message in messages)
                return len(found) == want

            eventually(f"all of {topic}", read, 60)
        return found
