"""Decode a topic as an ordinary consumer does: with Confluent's deserializer for Avro, with json for JSON."""

import json
from contextlib import closing
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.raw_topic import RawMessage, raw_messages, raw_topics

#: A key's columns or None, and a row's columns or None for a tombstone.
Decoded = tuple[dict[str, Any] | None, dict[str, Any] | None]


def decoded_avro(services: ServiceAddresses, topic: str) -> list[Decoded]:
    """Return every message of ``topic``, in order within each partition."""
    return decoded_topics(services, [topic])[topic]


def decoded_topics(services: ServiceAddresses, topics: list[str]) -> dict[str, list[Decoded]]:
    """Return the result of `decoded_avro` for several topics, which are read at once."""
    with closing(SchemaRegistryClient({"url": services.schema_registry})) as registry:
        # The default strategy may ask the registry for associations, which not every registry has.
        deserialize = AvroDeserializer(registry, conf={"subject.name.strategy.type": "TOPIC"})

        def decode(topic: str, message: RawMessage) -> Decoded:
            key, value = message
            return (
                deserialize(key, SerializationContext(topic, MessageField.KEY)),
                deserialize(value, SerializationContext(topic, MessageField.VALUE)),
            )

        return {
            topic: [decode(topic, message) for message in messages]
            for topic, messages in raw_topics(services, topics).items()
        }


def decoded_json(services: ServiceAddresses, topic: str) -> list[Decoded]:
    """Return every message of ``topic``, in order within each partition."""
    return [
        (json.loads(key) if key else None, json.loads(value) if value else None)
        for key, value in raw_messages(services, topic)
    ]


def latest(messages: list[Decoded]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the newest row of each key, without deleted keys."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for key, value in messages:
        assert key is not None
        identity = tuple(key.values())
        found.pop(identity, None)
        if value is not None:
            found[identity] = value
    return found


def of_key(messages: list[Decoded], *key: Any) -> list[dict[str, Any] | None]:
    """Return the rows and tombstones that were sent for one key, in order."""
    return [value for found, value in messages if found is not None and tuple(found.values()) == key]
