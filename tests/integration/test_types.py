"""Every PostgreSQL type through pgoutput and COPY to Avro, and back into PostgreSQL, byte for byte."""

import io
import json
import random
import re
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import sql

from bwtui.encode.avro import build_encoder
from bwtui.encode.json import JsonEncoder
from bwtui.encode.names import ESCAPED_FIELD
from bwtui.pgoutput import messages as m
from bwtui.source.catalog import load_types
from bwtui.source.connection import connect
from tests.integration.type_relay import consumed, copied, streamed
from tests.integration.type_samples import SAMPLES, SETUP, SINCE

pytestmark = pytest.mark.services

DOCS = Path(__file__).parents[2] / "docs" / "types.md"
# Settings of a role or a database that would change the text of values if a session did not override them.
HOSTILE = {
    "datestyle": "Postgres, DMY",
    "intervalstyle": "sql_standard",
    "timezone": "Asia/Kolkata",
    "bytea_output": "escape",
    "extra_float_digits": "-3",
    "lc_monetary": "C.UTF-8",
    "client_encoding": "LATIN1",
    "search_path": "types, public",
    "quote_all_identifiers": "on",
}
Connection = psycopg2.extensions.connection


def prepared(database: str, settings: dict[str, str]) -> Connection:
    """Return a session of the relay's kind in a database with its own settings."""
    with closing(psycopg2.connect(database)) as owner, owner.cursor() as cursor:
        owner.autocommit = True
        name = sql.Identifier(owner.info.dbname)
        for setting, value in settings.items():
            cursor.execute(
                sql.SQL("alter database {} set {} = {}").format(name, sql.SQL(setting), sql.Literal(value))
            )
        cursor.execute(SETUP)
    found = connect(database)
    # psycopg2 reads the encoding only here, and would write LATIN1 into a session that reads UTF8.
    found.set_client_encoding("UTF8")
    return found


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with closing(prepared(database, HOSTILE)) as found:
        yield found


class Table:
    """A table of one column of one type, with rows, and their way out of PostgreSQL."""

    def __init__(self, connection: Connection, number: int, declaration: str) -> None:
        self.connection = connection
        self.declaration = declaration
        self.name = f"t{number}"
        self.run(f"create table public.{self.name} (id int primary key, v {declaration})")

    def run(self, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, arguments or None)
            return cursor.fetchall() if cursor.description else []

    def insert(self, texts: list[str]) -> None:
        for number, text in enumerate(texts):
            self.run(f"insert into public.{self.name} values (%s, %s::{self.declaration})", number, text)
        self.run(f"insert into public.{self.name} values (-1, null)")

    def same(self, number: int, text: str | None) -> bool:
        """Return whether ``text``, cast, is the stored value, in binary output too if the type has one."""
        ((same,),) = self.run(
            f"""
            select case when (select typsend = 0 or typsend::text ~ 'array_send' and t.typelem = 1033
                                from pg_catalog.pg_type t where t.oid = pg_catalog.pg_typeof(v))
                        then v::text is not distinct from %s::{self.declaration}::text
                        else pg_catalog.record_send(row(v))
                             = pg_catalog.record_send(row(%s::{self.declaration})) end
              from public.{self.name} where id = %s
            """,
            text,
            text,
            number,
        )
        return bool(same)


def described(avro: Any) -> str:
    """Return an Avro type as docs/types.md writes it."""
    if isinstance(avro, str):
        return avro
    if isinstance(avro, list):
        return " or ".join(described(branch) for branch in avro)
    kind, logical = avro["type"], avro.get("logicalType")
    if kind in ("array", "map"):
        return f"{kind} of {described(avro['items' if kind == 'array' else 'values'])}"
    if logical == "decimal":
        return f"{kind} decimal({avro['precision']},{avro['scale']})"
    return f"{kind} {logical}"


def documented() -> dict[str, tuple[str, bool, str]]:
    """Return for every type in docs/types.md its Avro type, whether it may escape, and its JSON form."""
    page = DOCS.read_text()
    json_forms = {
        name: json_form
        for names, json_form in re.findall(r"^\| (`[^|]*) \| ([^|]*) \|$", page, re.MULTILINE)
        for name in re.findall(r"`(.*?)`", names)
    }
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*) \| ?([^|]*?) ?\| [^|]*\|$", page, re.MULTILINE)
    return {
        name: (avro, bool(escape), json_forms.get(name, "string"))
        for names, avro, escape in rows
        for name in re.findall(r"`(.*?)`", names)
    }


class Number(str):
    """A JSON number, with its digits unchanged."""


def json_text(encoder: JsonEncoder, fields: list[m.Field]) -> tuple[str, str | None]:
    """Return the form, as docs/types.md calls it, and the text of column ``v`` in a row's JSON object."""
    value = json.loads(encoder.both(fields)[1], parse_int=Number, parse_float=Number)["v"]
    if value is None:
        return "null", None
    if isinstance(value, bool):
        return "true, false", json.dumps(value)
    assert isinstance(value, str)
    return "number" if isinstance(value, Number) else "string", value


def has_form(documented: str, form: str, text: str | None) -> bool:
    """Return whether a value's form is the documented one."""
    if documented == "number; NaN, ±Infinity a string":
        return form == ("string" if text in ("NaN", "Infinity", "-Infinity") else "number")
    return form == documented.partition(",")[0] or form == documented


def test_every_kind_of_real_comes_back(connection: Connection) -> None:
    """Reals of every exponent, by their bits: the encoders turn PostgreSQL's texts back into these."""
    drawn = random.Random(4)
    fractions = (0, 1, 2, 3, 0x2AAAAA, 0x3FFFFF, 0x400000, 0x400001, 0x555555, 0x7FFFFE, 0x7FFFFF)
    bits = [exponent << 23 | fraction for exponent in range(255) for fraction in fractions]
    bits += [drawn.getrandbits(31) for _ in range(40_000)] + [0x15AE43FD, 0x15AE43FE]
    bits = sorted({one | sign for one in bits if one >> 23 < 255 for sign in (0, 1 << 31)})
    rows = b"".join(struct.pack(">hiI", 1, 4, one) for one in bits)
    with connection.cursor() as cursor:
        cursor.execute("create table public.reals (r real)")
        binary = io.BytesIO(b"PGCOPY\n\xff\r\n\0" + bytes(8) + rows + b"\xff\xff")
        cursor.copy_expert("copy public.reals from stdin binary", binary)
    texts = [text for (text,) in copied(connection, "public.reals")]
    assert None not in texts and len(texts) == len(bits)
    relation = m.Relation(1, "public", "reals", "d", (m.Column("r", 700, -1, True),))
    bound = build_encoder(relation, ("r",), load_types(connection, [700])).bind(1, 2)
    lines = bound.lines([text + b"\n" for text in texts if text], 0, None)
    # Python encodes the rows that the C extension leaves out.
    assert len(lines.holes) < 8
    for text, one, message in zip(texts, bits, lines.messages, strict=True):
        stored = b"\2" + struct.pack("<I", one)
        assert bound.value([text])[5:] == bound.both([text])[1][5:] == stored, text
        assert message is None or (message[1] is not None and message[1][5:] == stored), text


def test_every_value_of_every_type_comes_back(connection: Connection) -> None:
    known = [name for name in SAMPLES if connection.server_version >= SINCE.get(name, 0)]
    tables = {f"t{i}": Table(connection, i, declaration) for i, declaration in enumerate(known)}
    with connection.cursor() as cursor:
        cursor.execute("create publication types for all tables")
        cursor.execute("select pg_catalog.pg_create_logical_replication_slot('types', 'pgoutput')")
    for table in tables.values():
        table.insert(SAMPLES[table.declaration])
    found = streamed(connection, "types")
    relations = {message.oid: message for message in found if isinstance(message, m.Relation)}
    oids = [column.type_oid for relation in relations.values() for column in relation.columns]
    catalog = load_types(connection, oids)
    rows: dict[str, list[list[m.Field]]] = {}
    for message in found:
        if isinstance(message, m.Insert):
            rows.setdefault(relations[message.relation_oid].name, []).append(message.new)
    wrong = []
    documentation = documented()
    for relation in relations.values():
        table = tables[relation.name]
        assert rows[relation.name] == copied(connection, f"public.{table.name}"), table.declaration
        encoder = build_encoder(relation, ("id",), catalog)
        (_, avro), named = (json.loads(encoder.value_schema)["fields"][1][key] for key in ("type", "pgType"))
        escapes = f'"{ESCAPED_FIELD}"' in encoder.value_schema
        documented_avro, documented_escape, json_form = documentation.pop(table.declaration)
        assert (documented_avro, documented_escape) == (described(avro), escapes), table.declaration
        as_key = build_encoder(relation, ("v",), catalog)
        assert ESCAPED_FIELD not in str(as_key.key_schema), table.declaration
        bound = as_key.bind(1, 2)
        texts = {fields[1] for fields in rows[relation.name]}
        assert len({bound.key([b"1", text]) for text in texts}) == len(texts), table.declaration
        as_json = JsonEncoder(relation, ("id",), catalog)
        assert encoder.text_columns == (("v",) if "cube" in table.declaration else ()), table.declaration
        if table.declaration not in (
            "types.price",
            "types.nested",
            "types.nested[]",
            "types.numbers",
            "types.moods",
        ):
            assert named.removeprefix("types.") == table.declaration.removeprefix("types.")
        for fields in rows[relation.name]:
            assert isinstance(fields[0], bytes)
            if not table.same(int(fields[0]), consumed(encoder, fields)[1]):
                wrong.append((table.declaration, SAMPLES[table.declaration][int(fields[0])][:80]))
            form, text = json_text(as_json, fields)
            assert form == "null" or has_form(json_form, form, text), table.declaration
            if not table.same(int(fields[0]), text):
                wrong.append((f"{table.declaration} as JSON", str(text)[:80]))
    assert not wrong
    assert not documentation.keys() - SINCE.keys(), "documented, and not tested"
    assert len(rows) == len(known)
