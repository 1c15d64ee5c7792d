"""Reading many messages at once gives fastavro's values, or no values for a message."""

import datetime
import io
import json
import math
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bwtui.audit.canonical_values import Schemas, UndecodableMessage, is_plain
from bwtui.audit.column_decoder import DecodedColumn, MessageBuffer, fields_of, read
from bwtui.verify.canonical import clear_no_texts

_EPOCH = datetime.datetime(1970, 1, 1)
#: Values around the boundaries where a varint gets longer.
_BOUNDS = [sign * (1 << bits) + more for bits in range(6, 63, 7) for sign in (1, -1) for more in (-1, 0)]
_LONGS = st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from(_BOUNDS) | st.integers(-70, 70)
_TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("long", _LONGS),
    ("int", st.integers(-(1 << 31), (1 << 31) - 1)),
    ("float", st.floats(width=32)),
    ("double", st.floats()),
    ("boolean", st.booleans()),
    ("string", st.text(max_size=20)),
    ("bytes", st.binary(max_size=20)),
    ({"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 3},
     st.integers(-(10**18) + 1, 10**18 - 1).map(lambda number: Decimal(number).scaleb(-3))),
    ({"type": "int", "logicalType": "date"}, st.dates()),
    ({"type": "long", "logicalType": "time-micros"}, st.times()),
    ({"type": "long", "logicalType": "timestamp-micros"}, st.datetimes(timezones=st.just(datetime.UTC))),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, st.datetimes()),
    ({"type": "string", "logicalType": "uuid"}, st.uuids()),
]  # fmt: skip
_ESCAPED = {"name": "__escaped", "type": ["null", {"type": "map", "values": "string"}], "default": None}


@st.composite
def _batches(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """Draw a schema and messages of it, some with changed bytes."""
    chosen = draw(st.lists(st.sampled_from(_TYPES), min_size=1, max_size=6))
    fields, values = [], {}
    for at, (kind, drawn) in enumerate(chosen):
        wrapped = draw(st.sampled_from([["null", kind], [kind, "null"], kind]))
        fields.append({"name": f"c{at}", "type": wrapped})
        values[f"c{at}"] = st.none() | drawn if isinstance(wrapped, list) else drawn
    schema = {"type": "record", "name": "row", "fields": [*fields, _ESCAPED]}
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    escaped = st.none() if draw(st.booleans()) else st.none() | st.just({"c0": "NaN"})
    rows = draw(st.lists(st.fixed_dictionaries({**values, "__escaped": escaped}), min_size=1, max_size=5))
    messages = []
    for row in rows:
        stream = io.BytesIO(b"\0\0\0\0\x07")
        stream.seek(5)
        fastavro.schemaless_writer(stream, parsed, row)
        messages.append(draw(_damaged(stream.getvalue())))
    return json.dumps(schema), messages


@st.composite
def _damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Draw the message itself, or one with changed bytes after its schema's id."""
    if draw(st.integers(0, 2)):
        return data
    at = draw(st.integers(5, len(data)))
    return data[:at] + draw(st.binary(max_size=12)) + data[at + draw(st.integers(0, 12)) :]


@given(_batches())
def test_what_is_plain_is_what_fastavro_reads(batch: tuple[str, list[bytes]]) -> None:
    text, found = batch
    schemas = Schemas({7: text})
    fields = fields_of(schemas.get(7))
    assert fields is not None
    messages = MessageBuffer.of(found, len(fields))
    columns, plain, short = read(fields, messages)
    for column in columns:
        clear_no_texts(column, messages, plain)
        _clear_no_uuids(column, messages, plain)
    for at, data in enumerate(found):
        if plain[at]:
            schema, row = schemas.decode(data)
            for name, value, column in zip(row, row.values(), columns, strict=True):
                assert _same(_value(column, messages, at), value), name
            if short[at]:
                assert is_plain(data, schema, row)
        else:
            assert _is_none_of_ours(schemas, data)


def _is_none_of_ours(schemas: Schemas, data: bytes) -> bool:
    """Return whether it can't be read, uses the escape, or differs from an encoder's output."""
    try:
        schema, row = schemas.decode(data)
    except UndecodableMessage:
        return True
    large = any(isinstance(one, Decimal) and abs(one.scaleb(3)) >= 1 << 63 for one in row.values())
    return row["__escaped"] is not None or large or not is_plain(data, schema, row)


def _clear_no_uuids(column: DecodedColumn, messages: MessageBuffer, plain: np.ndarray[Any, Any]) -> None:
    """Clear texts that are not uuids as PostgreSQL writes them, as digests do."""
    if column.field.kind != "uuid":
        return
    for at in np.flatnonzero(plain & ~column.is_null).tolist():
        text = _bytes(column, messages, at)
        try:
            plain[at] = str(UUID(text.decode())).encode() == text
        except ValueError:
            plain[at] = False


def _bytes(column: DecodedColumn, messages: MessageBuffer, at: int) -> bytes:
    assert column.starts is not None and column.lengths is not None
    start = int(column.starts[at])
    return messages.data[start : start + int(column.lengths[at])].tobytes()


def _value(column: DecodedColumn, messages: MessageBuffer, at: int) -> Any:
    kind = column.field.kind
    if column.is_null[at]:
        return None
    if column.numbers is None:
        data = _bytes(column, messages, at)
        return data if kind == "bytes" else UUID(data.decode()) if kind == "uuid" else data.decode()
    number = column.numbers[at].item()
    if kind == "decimal":
        return Decimal(number).scaleb(-column.field.scale)
    if kind == "date":
        return _EPOCH.date() + datetime.timedelta(days=number)
    if kind in ("time", "timestamp", "timestamptz"):
        moment = _EPOCH + datetime.timedelta(microseconds=number)
        return moment.time() if kind == "time" else moment.replace(
            tzinfo=datetime.UTC if kind == "timestamptz" else None
        )  # fmt: skip
    return bool(number) if kind == "boolean" else number


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, float):
        return (math.isnan(ours) and math.isnan(theirs)) or (
            ours == theirs and math.copysign(1, ours) == math.copysign(1, theirs)
        )
    return bool(ours == theirs)
