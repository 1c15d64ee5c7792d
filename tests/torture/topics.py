"""Topics as an independent client reads them: its own consumer, and fastavro with the registry's schemas.

It uses no code of bwtui, so it can't share a mistake. It continues where it stopped, and reads only committed
records.
"""

import io
import json
import time
import urllib.request
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.raw_topic import place_of

_PATIENCE = 60.0
_MAGIC = 0


@dataclass(slots=True)
class Record:
    topic: str
    partition: int
    offset: int
    key: dict[str, Any]
    #: None for a tombstone.
    value: dict[str, Any] | None


class Decoder:
    """Decodes keys and values with the registry's schemas."""

    def __init__(self, services: ServiceAddresses) -> None:
        self._registry = services.schema_registry
        self._schemas: dict[int, Any] = {}

    def decode(self, data: bytes | None) -> dict[str, Any] | None:
        """Return the record in ``data``, or None if ``data`` is None."""
        if data is None:
            return None
        assert data[0] == _MAGIC
        schema = self._schema(int.from_bytes(data[1:5]))
        found = fastavro.schemaless_reader(io.BytesIO(data[5:]), schema, None)
        assert isinstance(found, dict)
        return found

    def _schema(self, number: int) -> Any:
        if number not in self._schemas:
            # A proxy from the environment must not be used for loopback.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"{self._registry}/schemas/ids/{number}", timeout=30) as answer:
                self._schemas[number] = fastavro.parse_schema(json.loads(json.load(answer)["schema"]))
        return self._schemas[number]


class Topics:
    """Several topics, each read once from its first offset."""

    def __init__(self, services: ServiceAddresses, names: Iterable[str]) -> None:
        self._services = services
        self._names = list(names)
        self._decoder = Decoder(services)
        self._at: dict[tuple[str, int], int] = {}

    def read(self) -> Iterator[Record]:
        """Yield the committed records not yet yielded; the order holds within a partition."""
        with closing(Consumer(self._settings())) as consumer:
            known = consumer.list_topics(timeout=30).topics
            due = {(name, part) for name in self._names if name in known for part in known[name].partitions}
            consumer.assign([TopicPartition(*place, self._at.get(place, 0)) for place in due])
            heard = time.monotonic()
            while due:
                batch = consumer.consume(5_000, 0.2)
                if batch:
                    heard = time.monotonic()
                assert time.monotonic() - heard < _PATIENCE, f"the broker is silent, with {due} to be read"
                for message in batch:
                    error = message.error()
                    if error is None:
                        yield self._record(message)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        due.discard((message.topic() or "", message.partition() or 0))
                    elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                        raise KafkaException(error)

    def ends(self) -> dict[tuple[str, int], int]:
        """Return the end offsets of the partitions. Raises KafkaException while no broker answers."""
        with closing(Consumer(self._settings())) as consumer:
            known = consumer.list_topics(timeout=1).topics
            places = [
                (name, part) for name in self._names if name in known for part in known[name].partitions
            ]
            return {
                place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=1)[1]
                for place in places
            }

    def _settings(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._services.broker,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "log_level": 0,
        }

    def _record(self, message: Message) -> Record:
        topic, partition, offset = place_of(message)
        assert offset >= self._at.get((topic, partition), 0)
        self._at[topic, partition] = offset + 1
        key, value = self._decoder.decode(message.key()), self._decoder.decode(message.value())
        assert key is not None
        return Record(topic, partition, offset, key, value)
