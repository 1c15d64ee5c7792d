"""Servers whose databases are not in UTF-8: the topics are correct all the same."""

import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastavro
import psycopg2
import pytest

from bwtui.encode.avro import build_encoder
from bwtui.encode.names import ESCAPED_FIELD
from bwtui.pgoutput import messages as m
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.decoder import decode
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.source.connection import connect
from tests.attempts import Attempts
from tests.database import session
from tests.decoded_topic import decoded_avro, latest
from tests.fix_sandbox import drop_database
from tests.integration.test_verify_database import relaying, verify

pytestmark = pytest.mark.services


@pytest.fixture(params=["LATIN1", "SQL_ASCII"])
def encoded(database: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database in that encoding, in addition to the test's own; its slot is dropped with it."""
    name = urlsplit(database).path.strip("/")[-50:] + "_encoded"
    with closing(psycopg2.connect(database)) as owner, owner.cursor() as cursor:
        owner.autocommit = True
        cursor.execute(f"create database {name} template template0 encoding '{request.param}' locale 'C'")
        yield urlsplit(database)._replace(path=f"/{name}").geturl()
        drop_database(owner, name)


def relayed(database: str, statements: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """Run the statements in a session of the relay's kind; return the encoding and a consumer's view."""
    with closing(connect(database)) as connection, connection.cursor() as cursor:
        connection.set_client_encoding("UTF8")
        cursor.execute("show server_encoding")
        ((encoding,),) = cursor.fetchall()
        if encoding == "SQL_ASCII":
            # With UTF8 the server would refuse to send invalid bytes, and the slot would not advance.
            cursor.execute("select set_config('client_encoding', 'SQL_ASCII', false)")
        for statement in ("create publication p for all tables", *statements[:1]):
            cursor.execute(statement)
        cursor.execute(
            "select pg_create_logical_replication_slot(%s, 'pgoutput')", [connection.info.dbname[-63:]]
        )
        for statement in statements[1:]:
            cursor.execute(statement)
        cursor.execute(
            "select data from pg_logical_slot_get_binary_changes(%s, null, null, 'proto_version', '1', "
            "'publication_names', 'p')",
            [connection.info.dbname[-63:]],
        )
        found = [decode(bytes(data)) for (data,) in cursor.fetchall()]
        out = io.BytesIO()
        cursor.copy_expert("copy public.t to stdout", out)
    rows = [message.new for message in found if isinstance(message, m.Insert)]
    assert rows == [unescape_copy_line(line) for line in out.getvalue().splitlines(keepends=True)]
    (relation,) = [message for message in found if isinstance(message, m.Relation)]
    encoder = build_encoder(relation, (), {}, any_bytes=encoding == "SQL_ASCII")
    schema = fastavro.parse_schema(json.loads(encoder.value_schema))
    bound = encoder.bind(None, 1)
    records = [fastavro.schemaless_reader(io.BytesIO(bound.value(row)[5:]), schema, None) for row in rows]
    return encoding, [record for record in records if isinstance(record, dict)]


def test_any_text_of_any_encoding(encoded: str) -> None:
    encoding, records = relayed(
        encoded,
        [
            'create table public.t (a text, b text[], "größe" int)',
            "insert into public.t values ('größe', '{größe}', 1)",
        ],
    )
    escaped = {ESCAPED_FIELD: None}
    assert records == [{"a": "größe", "b": ["größe"], "gr_xf6__xdf_e": 1, **escaped}], encoding


def test_bytes_that_are_no_text_in_any_encoding_keep_their_bytes(encoded: str) -> None:
    encoding, records = relayed(
        encoded,
        [
            "create table public.t (a text, b text[])",
            r"insert into public.t select x, array[x, 'a'] from "
            r"convert_from('\x61ff62', current_setting('server_encoding')) x",
        ],
    )
    if encoding == "LATIN1":
        assert records == [{"a": "aÿb", "b": ["aÿb", "a"], ESCAPED_FIELD: None}]
        return
    (record,) = records
    assert record["a"] is record["b"] is None
    assert record[ESCAPED_FIELD] == {"a": "\\x61ff62", "b": "\\x" + b"{a\xffb,a}".hex()}


@pytest.mark.parametrize(
    ("encoded", "became"), [("SQL_ASCII", 0), ("SQL_ASCII", 6), ("WIN1252", 24)], indirect=["encoded"]
)
def test_a_name_that_is_no_text_is_refused(
    encoded: str, became: int, services: ServiceAddresses, tmp_path: Path
) -> None:
    """Six is UTF8, in which PostgreSQL then sends the name unchanged."""
    with closing(psycopg2.connect(encoded)) as owner, owner.cursor() as cursor:
        owner.autocommit = True
        cursor.execute("select set_config('client_encoding', 'SQL_ASCII', false)")
        cursor.execute(b'create table "gr\x81" (id int primary key)')
        cursor.execute("update pg_database set encoding = %s where datname = current_database()", [became])
    error, hint = Attempts(services, tmp_path).fail(encoded, 2)
    assert "the name of a table or column is not valid UTF-8" in error
    assert hint == "rename it"


@pytest.mark.parametrize("encoded", ["LATIN1", "EUC_JP"], indirect=True)
def test_through_the_relay(encoded: str, services: ServiceAddresses, tmp_path: Path) -> None:
    """In the snapshot and in the stream; the byte of a "char" is returned as the server wrote it."""
    attempts = Attempts(services, tmp_path)
    latin = "LATIN1" in relayed_encoding(encoded)
    text, byte = ("größe", r"\351") if latin else ("日本", "x")
    with session(encoded) as source:
        source.connection.set_client_encoding("UTF8")
        source.run(f'create table t (id int primary key, "{text}" text, c "char")')
        for number in (1, 2):
            source.run(f"insert into t values ({number}, '{text}', %s::\"char\")", byte)
            attempts.succeed(encoded)
        found = latest(decoded_avro(services, f"{attempts.name}.t"))
        for (number,), record in found.items():
            assert list(record.values())[:2] == [number, text]
            assert source.value('select c = %s::"char" from t where id = %s', record["c"], number)
        assert len(found) == 2


def relayed_encoding(database: str) -> str:
    """Return the encoding of a database."""
    with session(database) as opened:
        return str(opened.value("show server_encoding"))


@pytest.mark.parametrize("encoded", ["SQL_ASCII"], indirect=True)
def test_the_audit_of_texts_that_are_none(encoded: str, services: ServiceAddresses, tmp_path: Path) -> None:
    attempts = Attempts(services, tmp_path)
    with session(encoded) as source:
        source.run("create table t (k text primary key, v text, a text[], n int)")
        source.run("insert into t values (E'\\xe9', E'\\xff', array[E'a\\xff'], 1), ('b', 'c', '{d}', 2)")
        # These keys look like the byte above and like the first key's bytes, but all must stay distinct.
        source.run(r"insert into t values ('\xe9', 'd', '{e}', 4), ('\x5c786539', 'e', '{f}', 5)")
        source.run("create table plain (id int primary key); insert into plain values (1)")
        source.run(
            r"create table raw (k bytea primary key, d date); insert into raw values ('\xe9', 'infinity')"
        )
        with relaying(attempts, encoded, source):
            source.run("update t set n = 3 where v = E'\\xff'")
            ended, report = verify(attempts, encoded)
            assert (ended.code, report["verdict"], report["expected"]) == (0, "clean", 6), ended.stderr
