"""From rows in PostgreSQL to a consumer's values, and their texts, which PostgreSQL can cast back."""

import io
import json
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import psycopg2

from bwtui.encode.avro import TableEncoder
from bwtui.encode.names import ESCAPED_FIELD
from bwtui.pgoutput import messages as m
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.decoder import decode

Connection = psycopg2.extensions.connection


def streamed(connection: Connection, slot: str) -> list[m.Message]:
    """Return the pgoutput messages since the last call; the publication has the slot's name."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select data from pg_catalog.pg_logical_slot_get_binary_changes"
            "(%s, null, null, 'proto_version', '1', 'publication_names', %s)",
            [slot, slot],
        )
        return [decode(bytes(data)) for (data,) in cursor.fetchall()]


def copied(connection: Connection, table: str) -> list[list[bytes | None]]:
    """Return the rows of a table (its name quoted) as the snapshot reads them."""
    out = io.BytesIO()
    with connection.cursor() as cursor:
        cursor.copy_expert(f"copy {table} to stdout", out)
    return [unescape_copy_line(line) for line in out.getvalue().splitlines(keepends=True)]


def consumed(encoder: TableEncoder, fields: Sequence[m.Field]) -> list[str | None]:
    """Return the texts of a row's columns as a consumer of the topic would write them."""
    bound = encoder.bind(1, 2)
    key, value = bound.both(fields)
    assert (key, value) == (bound.key(fields), bound.value(fields))
    return record_texts(encoder.value_schema, value[5:])


def record_texts(value_schema: str, encoded: bytes) -> list[str | None]:
    """Return the texts of a record's columns; ``encoded`` contains only its Avro."""
    schema = json.loads(value_schema)
    stream = io.BytesIO(encoded)
    record = fastavro.schemaless_reader(stream, fastavro.parse_schema(schema), None)
    assert isinstance(record, dict)
    assert not stream.read()
    escaped = record.pop(ESCAPED_FIELD, None) or {}
    assert isinstance(escaped, dict)
    assert all(record[name] is None for name in escaped)
    return [
        escaped.get(
            field["name"], _to_text(record[field["name"]], ";" if field["pgType"] == "box[]" else ",")
        )
        for field in schema["fields"]
        if field["name"] != ESCAPED_FIELD
    ]


def _to_text(value: Any, delimiter: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, list):
        return "{" + delimiter.join(_quoted(_to_text(element, ",")) for element in value) + "}"
    if isinstance(value, dict):
        return ",".join(f"{_quoted(key)}=>{_quoted(text)}" for key, text in value.items())
    if isinstance(value, float):
        return repr(value)
    assert isinstance(value, str | int | UUID)
    return str(value)


def _quoted(text: str | None) -> str:
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
