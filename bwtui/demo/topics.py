"""Read topics like any other consumer: with Confluent's own consumer and Avro deserializer.

This uses nothing of bwtui's encoder or decoder, because a reader that shares their faults can't detect them.
The offsets of every partition are pinned before the first record is read, and each is accounted for: a client
skips holes in a log silently.
"""

import struct
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError

from bwtui.demo.logs import log_hint
from bwtui.errors import Indeterminate
from bwtui.kafka.client import WITHOUT_LEADER, log

_TIMEOUT = 10.0
_LEADER_SECONDS = 10.0
#: Maximum wait for a record while some are outstanding; then the comparison is indeterminate.
_PATIENCE = 30.0
_BATCH = 2_000

#: Exceptions of a deserializer for bytes that do not match their schema.
_UNREADABLE = (
    SerializationError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    struct.error,
)

Place = tuple[str, int]
T = TypeVar("T")


@dataclass(slots=True)
class TopicContents:
    """The contents of a topic, folded to the latest value of each key if its table has one."""

    topic: str
    #: Key columns of the table; empty if the records have no key.
    key: tuple[str, ...]
    messages: int = 0
    #: Number of offsets in [low, high) without a record.
    holes: int = 0
    #: Number of records that can't be decoded, or that have a key, or none, contrary to the table.
    unreadable: int = 0
    latest: dict[tuple[Any, ...], Mapping[str, Any]] = field(default_factory=dict)
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    _homes: dict[tuple[Any, ...], tuple[int | None, bytes | None]] = field(default_factory=dict)
    _split: set[tuple[Any, ...]] = field(default_factory=set)

    @property
    def split_keys(self) -> int:
        """Number of keys in two partitions, or with two byte strings: a compaction keeps both."""
        return len(self._split)

    def add(self, key: Any, value: Any, partition: int | None, key_bytes: bytes | None) -> None:
        """Add a decoded record; records of a partition must arrive in the order of their offsets."""
        if not self.key:
            if key is not None or value is None:
                self.unreadable += 1
            else:
                self.rows.append(value)
            return
        if not isinstance(key, dict) or set(key) != set(self.key):
            self.unreadable += 1
            return
        identity = tuple(key[name] for name in self.key)
        if self._homes.setdefault(identity, (partition, key_bytes)) != (partition, key_bytes):
            self._split.add(identity)
        if value is None:
            self.latest.pop(identity, None)
        else:
            self.latest[identity] = value


class DemoTopicReader:
    """Reads whole topics once, from the first offset to the last one at the start of the read."""

    def __init__(self, broker: str, registry: str, timeout: float = _TIMEOUT) -> None:
        self._timeout = timeout
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker,
                "group.id": f"bwtui-demo-{uuid.uuid4()}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "check.crcs": True,
            },
            logger=log,
        )
        self._registry = SchemaRegistryClient({"url": registry})
        # The default strategy may request associations, which not every registry has.
        conf = {"subject.name.strategy.type": "TOPIC"}
        self._deserialize = AvroDeserializer(self._registry, conf=conf)

    def close(self) -> None:
        """Disconnect from the broker and the registry."""
        self._consumer.close()
        self._registry.close()

    def topics(self, prefix: str) -> set[str]:
        """Return the names of all topics that start with ``prefix`` and a dot."""
        cluster = _decided(lambda: self._consumer.list_topics(timeout=self._timeout), "list the topics")
        return {name for name in cluster.topics if name.startswith(f"{prefix}.")}

    def read(self, contents: Iterable[TopicContents], progress: Callable[[int, int], None]) -> None:
        """Fill ``contents``; ``progress`` is called regularly with the offsets read, and all offsets."""
        by_topic = {content.topic: content for content in contents}
        pinned = self._pin(by_topic)
        total = sum(high - low for low, high in pinned.values())
        at = {place: low for place, (low, high) in pinned.items() if high > low}
        self._consumer.assign([TopicPartition(*place, offset) for place, offset in at.items()])
        received_at = time.monotonic()
        done = 0
        while at:
            batch = _decided(lambda: self._consumer.consume(_BATCH, 1.0), "read the topics")
            for message in batch:
                self._take(message, by_topic, pinned, at)
                done += 1
            progress(min(done, total), total)
            if batch:
                received_at = time.monotonic()
            elif time.monotonic() - received_at > _PATIENCE:
                raise Indeterminate(
                    f"the broker sent no record for {_PATIENCE:.0f} s before the end of the topics",
                    log_hint("kafka"),
                )
        self._consumer.unassign()

    def _pin(self, by_topic: dict[str, TopicContents]) -> dict[Place, tuple[int, int]]:
        def look() -> dict[Place, tuple[int, int]]:
            pinned = {}
            for topic in by_topic:
                for partition in self._consumer.list_topics(topic, self._timeout).topics[topic].partitions:
                    place = TopicPartition(topic, partition)
                    pinned[topic, partition] = self._consumer.get_watermark_offsets(place, self._timeout)
            return pinned

        return _decided(look, "pin the offsets")

    def _take(
        self,
        message: Message,
        by_topic: dict[str, TopicContents],
        pinned: dict[Place, tuple[int, int]],
        at: dict[Place, int],
    ) -> None:
        """Account for one record, or for the end of a partition."""
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            problem = f"the topics can't be read to their end: {error.str()}"
            raise Indeterminate(problem, log_hint("kafka"))
        topic, offset = message.topic() or "", message.offset() or 0
        place = (topic, message.partition() or 0)
        if place not in at:
            return
        high, content = pinned[place][1], by_topic[topic]
        content.holes += max(0, min(offset, high) - at[place])
        at[place] = max(at[place], offset if error is not None else offset + 1)
        if error is None and offset < high:
            content.messages += 1
            self._decode(message, content)
        if at[place] >= high:
            del at[place]

    def _decode(self, message: Message, content: TopicContents) -> None:
        topic, key, value = content.topic, message.key(), message.value()
        try:
            decoded_key = self._deserialize(key, SerializationContext(topic, MessageField.KEY))
            decoded = self._deserialize(value, SerializationContext(topic, MessageField.VALUE))
        except SchemaRegistryError as error:
            if error.http_status_code != 404:
                raise Indeterminate(
                    f"the schema registry did not answer for topic {topic}: {error.error_message}",
                    log_hint("registry"),
                ) from error
            content.unreadable += 1
        except _UNREADABLE:
            content.unreadable += 1
        except Exception as error:
            # The remaining errors are about the connection to the registry, from a library that may change.
            raise Indeterminate(
                f"the schema registry can't be reached ({type(error).__name__})", log_hint("registry")
            ) from error
        else:
            content.add(decoded_key, decoded, message.partition(), key)


def _decided(call: Callable[[], T], action: str) -> T:
    until = time.monotonic() + _LEADER_SECONDS
    while True:
        try:
            return call()
        except KafkaException as error:
            if error.args[0].code() in WITHOUT_LEADER and time.monotonic() < until:
                time.sleep(0.1)
                continue
            raise Indeterminate(
                f"the comparison could not {action}: {error.args[0].str()}", log_hint("kafka")
            ) from error
