"""Random tables of every type, through pgoutput and COPY, Avro, and back into PostgreSQL, byte for byte.

``BWTUI_RANDOM_TABLES=500 pytest tests/integration/test_random_types.py`` is the long run: 10,000 rows.
"""

import os
from collections.abc import Iterator
from contextlib import closing

import psycopg2
import pytest

from bwtui.encode.avro import build_encoder
from bwtui.pgoutput import messages as m
from bwtui.source.catalog import load_types
from bwtui.source.connection import connect
from tests.integration.random_tables import RandomTable, draw_table
from tests.integration.type_relay import consumed, copied, streamed
from tests.integration.type_samples import SETUP

pytestmark = pytest.mark.services

TABLES = int(os.environ.get("BWTUI_RANDOM_TABLES", "25"))
ROWS = 20
# Seeds that failed once stay here.
SEEDS = [*range(TABLES)]
SLOT = "random_types"
Connection = psycopg2.extensions.connection


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with closing(connect(database)) as found, found.cursor() as cursor:
        cursor.execute(SETUP)
        cursor.execute(f"create publication {SLOT} for all tables")
        cursor.execute("select pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        yield found


def test_random_tables_come_back(connection: Connection) -> None:
    for seed in SEEDS:
        differences = _round_trip(connection, draw_table(seed, ROWS, connection.server_version))
        assert not differences, f"seed {seed}"


def _round_trip(connection: Connection, table: RandomTable) -> list[tuple[object, ...]]:
    """Return the ids of rows that differ from the stored ones afterwards."""
    with connection.cursor() as cursor:
        stored, returned = f"stored.{table.name}", f"returned.{table.name}"
        definition = ", ".join(f"{name} {declaration}" for name, declaration in table.columns)
        cursor.execute("create schema stored; create schema returned")
        cursor.execute(f"create table {stored.replace('%', '%%')} ({definition.replace('%', '%%')})", ())
        cursor.execute(f"alter table {stored} add primary key (id)")
        cursor.execute(f"create table {returned} (like {stored})")
        insert_rows(cursor, stored, table, table.rows)
        insert_rows(cursor, returned, table, _relayed(connection, stored))
        cursor.execute(
            f"""
            select coalesce("a row".id, "b row".id)
              from {stored} "a row" full join {returned} "b row" using (id)
             where pg_catalog.record_send("a row") is distinct from pg_catalog.record_send("b row")
            """
        )
        differences = cursor.fetchall()
        cursor.execute("set client_min_messages = warning; drop schema stored, returned cascade")
    streamed(connection, SLOT)
    return differences


def insert_rows(cursor: "psycopg2.extensions.cursor", name: str, table: RandomTable, rows: object) -> None:
    assert isinstance(rows, list)
    values = ", ".join(f"%s::{declaration}" for _, declaration in table.columns)
    for row in rows:
        cursor.execute(f"insert into {name.replace('%', '%%')} values ({values})", row)


def _relayed(connection: Connection, stored: str) -> list[list[str | None]]:
    """Return the rows' texts as a consumer of the topic would write them; snapshot and stream must agree."""
    found = streamed(connection, SLOT)
    (relation,) = {message.oid: message for message in found if isinstance(message, m.Relation)}.values()
    rows = [message.new for message in found if isinstance(message, m.Insert)]
    # A row is stored wherever its page has room.
    assert sorted(rows, key=str) == sorted(copied(connection, stored), key=str)
    catalog = load_types(connection, [column.type_oid for column in relation.columns])
    encoder = build_encoder(relation, ("id",), catalog)
    return [consumed(encoder, fields) for fields in rows]
