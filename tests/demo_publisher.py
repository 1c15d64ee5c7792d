"""Write tables into topics with Confluent's own serializer, as a correct relay would leave them."""

import datetime
import json
import uuid
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from psycopg2.extensions import connection as Connection

from bwtui.demo.shop import DemoTable

_AVRO: dict[str, Any] = {
    "int8": "long",
    "int4": "int",
    "bool": "boolean",
    "float4": "float",
    "float8": "double",
    "bytea": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp": {"type": "long", "logicalType": "local-timestamp-micros"},
    "uuid": {"type": "string", "logicalType": "uuid"},
    "numeric": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
}
_ESCAPED = {"name": "__escaped", "type": ["null", {"type": "map", "values": "string"}], "default": None}


class Publisher:
    """Publishes rows under a prefix, according to the relay's contract."""

    def __init__(self, broker: str, registry: str, prefix: str) -> None:
        self.prefix = prefix
        self.producer = Producer({"bootstrap.servers": broker, "partitioner": "murmur2_random"})
        self._registry = SchemaRegistryClient({"url": registry})
        self._columns: dict[DemoTable, dict[str, str]] = {}
        self._serializers: dict[str, AvroSerializer] = {}

    def close(self) -> None:
        """Close the producer and the registry client."""
        self.flush()
        self._registry.close()

    def publish(self, connection: Connection, tables: Iterable[DemoTable]) -> None:
        """Send every row of every table."""
        for table in tables:
            for row in self.rows(connection, table):
                self.send(table, row)
        self.flush()

    def rows(self, connection: Connection, table: DemoTable, where: str = "true") -> list[dict[str, Any]]:
        """Convert rows into the records that must equal them."""
        columns = self._load_columns(connection, table)
        expressions = ", ".join(map(_expression, columns.items()))
        with connection, connection.cursor() as cursor:
            cursor.execute(f"select {expressions} from {table.full_name} where {where}")
            found = cursor.fetchall()
        return [
            {name: _plain(kind, value) for (name, kind), value in zip(columns.items(), row, strict=True)}
            for row in found
        ]

    def send(self, table: DemoTable, row: dict[str, Any], *, partition: int = -1) -> None:
        """Send one row."""
        value = self._bytes(table, "value", row)
        self.producer.produce(table.topic(self.prefix), value, self._key(table, row), partition)
        self.producer.poll(0)

    def send_tombstone(self, table: DemoTable, row: dict[str, Any]) -> None:
        """Send the deletion of one row."""
        self.producer.produce(table.topic(self.prefix), None, self._key(table, row))

    def flush(self) -> None:
        """Wait until the broker has everything."""
        assert self.producer.flush(30) == 0

    def _load_columns(self, connection: Connection, table: DemoTable) -> dict[str, str]:
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "select column_name, udt_name from information_schema.columns"
                " where table_schema = %s and table_name = %s order by ordinal_position",
                [table.schema, table.name],
            )
            self._columns[table] = dict(cursor.fetchall())
        return self._columns[table]

    def _key(self, table: DemoTable, row: dict[str, Any]) -> bytes | None:
        return self._bytes(table, "key", {name: row[name] for name in table.key}) if table.key else None

    def _bytes(self, table: DemoTable, part: str, value: dict[str, Any]) -> bytes:
        topic = table.topic(self.prefix)
        subject, columns = f"{topic}-{part}", self._columns[table]
        if subject not in self._serializers:
            fields = [
                {"name": name, "type": ["null", _AVRO.get(columns[name], "string")], "default": None}
                for name in value
            ]
            fields += [_ESCAPED] if part == "value" else []
            schema = {"type": "record", "name": part, "fields": fields}
            conf = {"subject.name.strategy.type": "TOPIC"}
            self._serializers[subject] = AvroSerializer(self._registry, json.dumps(schema), conf=conf)
        field = MessageField.KEY if part == "key" else MessageField.VALUE
        data = self._serializers[subject](value, SerializationContext(topic, field))
        assert data is not None
        return data


def _expression(column: tuple[str, str]) -> str:
    name, kind = column
    return {"jsonb": f"{name}::text", "float4": f"{name}::float8", "uuid": f"{name}::text"}.get(kind, name)


def _plain(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == "uuid":
        return uuid.UUID(value)
    if kind == "timestamptz":
        return value.astimezone(datetime.UTC)
    return bytes(value) if kind == "bytea" else value
