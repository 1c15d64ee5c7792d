"""Random tables of every type through the whole relay and Kafka, and back into PostgreSQL, byte for byte.

``BWTUI_RANDOM_TABLES=500`` is the long run: 10,000 rows.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.source.connection import connect
from tests.attempts import Attempts
from tests.integration.random_tables import RandomTable, draw_table
from tests.integration.test_random_types import insert_rows
from tests.integration.type_relay import record_texts
from tests.integration.type_samples import SETUP
from tests.raw_topic import RawMessage, raw_topics

pytestmark = pytest.mark.services

TABLES = int(os.environ.get("BWTUI_RANDOM_TABLES", "8"))
ROWS = 20
#: Number of tables of one relay.
BATCH = 25
# Different seeds than other tests; seeds that failed once stay here.
SEEDS = [*range(10_000, 10_000 + TABLES)]
Connection = psycopg2.extensions.connection


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with closing(connect(database)) as found, found.cursor() as cursor:
        cursor.execute(SETUP)
        yield found


@pytest.mark.timeout(3600)
def test_random_tables_come_back_from_kafka(
    services: ServiceAddresses, connection: Connection, database: str, tmp_path: Path
) -> None:
    for at in range(0, len(SEEDS), BATCH):
        tables = {f"s{n}": draw_table(n, ROWS, connection.server_version) for n in SEEDS[at : at + BATCH]}
        attempts = Attempts(services, tmp_path / str(at))
        (tmp_path / str(at)).mkdir()
        for schema, differences in _round_trip(connection, database, attempts, tables).items():
            assert not differences, f"seed {schema[1:]}"


def _round_trip(
    connection: Connection, database: str, attempts: Attempts, tables: dict[str, RandomTable]
) -> dict[str, list[object]]:
    """Return the ids of rows that differ from the stored ones afterwards, by schema.

    Half of the rows are in the snapshot; then every one of them is updated, which must not change a byte.
    """
    with connection.cursor() as cursor:
        for schema, table in tables.items():
            _create(cursor, schema, table)
            insert_rows(cursor, f"{schema}.{table.name}", table, table.rows[::2])
        attempts.succeed(database)
        for schema, table in tables.items():
            insert_rows(cursor, f"{schema}.{table.name}", table, table.rows[1::2])
            cursor.execute(f"update {schema}.{table.name} set id = id")
        status = attempts.succeed(database).status
        topics = {name.partition(".")[0]: entry["topic"] for name, entry in status["tables"].items()}
        found = raw_topics(attempts.services, list(topics.values()))
        differences = {}
        with closing(SchemaRegistryClient({"url": attempts.services.schema_registry})) as registry:
            for schema, table in tables.items():
                rows = _rows(registry, found[topics[schema]])
                assert len(rows) == ROWS
                insert_rows(cursor, f"{schema}.returned", table, rows)
                differences[schema] = _differences(cursor, schema, table)
        cursor.execute("set client_min_messages = warning")
        for schema in tables:
            cursor.execute(f"drop schema {schema} cascade")
        cursor.execute(f"drop publication bwtui_{attempts.name}")
        cursor.execute("select pg_catalog.pg_drop_replication_slot(%s)", [attempts.name])
    return differences


def _create(cursor: "psycopg2.extensions.cursor", schema: str, table: RandomTable) -> None:
    definition = ", ".join(f"{name} {declaration}" for name, declaration in table.columns)
    cursor.execute(f"create schema {schema}")
    cursor.execute(f"create table {schema}.{table.name} ({definition})")
    cursor.execute(f"alter table {schema}.{table.name} add primary key (id)")
    # Unlogged, so that the relay ignores it.
    cursor.execute(f"create unlogged table {schema}.returned (like {schema}.{table.name})")


def _rows(registry: SchemaRegistryClient, messages: list[RawMessage]) -> list[list[str | None]]:
    """Return the texts of each key's row; all messages of a key must be equal, byte for byte."""
    values: dict[bytes | None, bytes | None] = {}
    for key, value in messages:
        assert values.setdefault(key, value) == value
    rows = []
    for value in values.values():
        assert value is not None
        schema = registry.get_schema(int.from_bytes(value[1:5], "big")).schema_str
        assert schema is not None
        rows.append(record_texts(schema, value[5:]))
    return rows


def _differences(cursor: "psycopg2.extensions.cursor", schema: str, table: RandomTable) -> list[object]:
    cursor.execute(
        f"""
        select coalesce("a row".id, "b row".id)
          from {schema}.{table.name} "a row" full join {schema}.returned "b row" using (id)
         where pg_catalog.record_send("a row") is distinct from pg_catalog.record_send("b row")
        """
    )
    return [row[0] for row in cursor.fetchall()]
