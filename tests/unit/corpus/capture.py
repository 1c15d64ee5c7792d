"""Capture what a real server's pgoutput sends, for test_corpus.py.

    python -m tests.unit.corpus.capture CONNECTION_STRING > tests/unit/corpus/postgres-18.jsonl

It works in a database of its own, which it makes and drops; the server needs wal_level = logical and
max_prepared_transactions > 0. Each line is one message: the scenario, and the payload in hexadecimal. LSNs,
oids and times differ from capture to capture.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import psycopg2

from bwtui.source.connection import PINNED

DATABASE = "bwtui_corpus"
SLOT = "bwtui_corpus"

SCHEMA = """
create type mood as enum ('sad', 'ok');
create schema "Größe";
create table orders (
  id bigint primary key, n int, note text, price numeric(10,2), at timestamptz, paid bool, mood mood
);
create table "Größe"."a table" ("the key" int primary key, "größe" text);
create table full_identity (a int, b text);
alter table full_identity replica identity full;
create table toasted (id int primary key, small text, large text);
alter table toasted alter large set storage external;
create publication corpus for all tables;
"""

# Scenario to (options of pgoutput, transactions; each is a list of statements).
SCENARIOS: dict[str, tuple[dict[str, str], list[list[str]]]] = {
    "rows": (
        {"proto_version": "1"},
        [
            [
                "insert into orders values (1, -5, 'größe', 12.50, '2024-05-06 07:08:09.12+02', true, 'sad')",
                "insert into orders (id) values (2)",
                "update orders set note = 'x' where id = 1",
                "update orders set id = 3 where id = 2",
                "delete from orders where id = 1",
            ],
            [
                'insert into "Größe"."a table" values (1, \'ß\')',
                'truncate "Größe"."a table" restart identity',
            ],
            [
                "insert into full_identity values (1, 'a'), (null, null)",
                "update full_identity set b = 'b' where a = 1",
                "delete from full_identity where a is null",
            ],
            [
                "insert into toasted values (1, 'a', repeat('x', 9000))",
                "update toasted set small = 'b'",
                "update toasted set id = 2",
            ],
        ],
    ),
    "message and origin": (
        {"proto_version": "1", "messages": "true"},
        [
            [
                "select pg_replication_origin_xact_setup('0/ABCD', '2024-05-06 07:08:09+00')",
                "select pg_logical_emit_message(true, 'prefix', 'content')",
                "insert into orders (id) values (10)",
            ],
        ],
    ),
    "streamed": (
        {"proto_version": "4", "streaming": "parallel"},
        [
            [
                "insert into toasted select 1000 + i, repeat('s', 200), 'l' from generate_series(1, 500) i",
                "savepoint s",
                "insert into orders (id) select 1000 + i from generate_series(1, 900) i",
                "rollback to s",
                "truncate full_identity",
            ],
            [
                "insert into toasted select 5000 + i, repeat('s', 200) from generate_series(1, 500) i",
                "rollback",
            ],
        ],
    ),
    "two phase": (
        {"proto_version": "3"},
        [
            ["insert into orders (id) values (20)", "prepare transaction 'first'"],
            ["commit prepared 'first'"],
            ["insert into orders (id) values (21)", "prepare transaction 'second'"],
            ["rollback prepared 'second'"],
        ],
    ),
}

# Rows of a streamed transaction resemble each other: keep this number of consecutive messages of one kind.
KEPT_IN_A_ROW = 2


def capture(conninfo: str) -> Iterator[dict[str, str]]:
    """Run every scenario and yield its messages."""
    with closing(psycopg2.connect(conninfo)) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        for name, value in PINNED.items():
            cursor.execute("select set_config(%s, %s, false)", [name, value])
        cursor.execute("set search_path = public; set logical_decoding_work_mem = '64kB'")
        cursor.execute(SCHEMA)
        cursor.execute("select pg_replication_origin_create('elsewhere')")
        cursor.execute("select pg_replication_origin_session_setup('elsewhere')")
        for scenario, (options, transactions) in SCENARIOS.items():
            yield from _run(cursor, scenario, options, transactions)
        cursor.execute("select pg_replication_origin_session_reset()")
        cursor.execute("select pg_replication_origin_drop('elsewhere')")


def _run(
    cursor: "psycopg2.extensions.cursor",
    scenario: str,
    options: dict[str, str],
    transactions: list[list[str]],
) -> Iterator[dict[str, str]]:
    two_phase = scenario == "two phase"
    cursor.execute(
        "select pg_create_logical_replication_slot(%s, 'pgoutput', false, twophase => %s)", [SLOT, two_phase]
    )
    for statements in transactions:
        if "prepared" in statements[0]:
            cursor.execute(statements[0])
            continue
        ended = statements[-1].startswith(("prepare", "rollback")) and "to s" not in statements[-1]
        cursor.execute(";".join(("begin", *statements, *(() if ended else ("commit",)))))
    arguments = [part for pair in (options | {"publication_names": "corpus"}).items() for part in pair]
    cursor.execute(
        "select data from pg_logical_slot_get_binary_changes(%s, null, null, variadic %s)", [SLOT, arguments]
    )
    last, repeated = b"", 0
    for (data,) in cursor.fetchall():
        payload = bytes(data)
        repeated = repeated + 1 if payload[:1] == last else 1
        last = payload[:1]
        if repeated <= KEPT_IN_A_ROW or last not in (b"I", b"E", b"S"):
            yield {"scenario": scenario, "payload": payload.hex()}
    cursor.execute("select pg_drop_replication_slot(%s)", [SLOT])


def main(conninfo: str) -> None:
    """Print the corpus."""
    with closing(psycopg2.connect(conninfo)) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute(f"drop database if exists {DATABASE}")
        cursor.execute(f"create database {DATABASE} template template0 encoding 'UTF8'")
        try:
            for line in capture(urlsplit(conninfo)._replace(path=f"/{DATABASE}").geturl()):
                print(json.dumps(line))
        finally:
            cursor.execute(f"drop database {DATABASE} with (force)")


if __name__ == "__main__":
    main(sys.argv[1])
