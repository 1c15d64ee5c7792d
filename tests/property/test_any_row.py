"""For any row of any table, our bytes equal fastavro's, and fastavro reads the row back."""

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
from hypothesis import example, given
from hypothesis import strategies as st

from bwtui.encode.avro import EncodeError, build_encoder
from bwtui.encode.names import ESCAPED_FIELD, avro_name
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.messages import Column, Field, Insert, Relation
from bwtui.pgoutput.tuples import DecodeError, last_tuple, splitter
from tests.property.values import CATALOG, Escaped, Sample, tables

OFFSET = 6
HAS_ESCAPES = f'"name":"{ESCAPED_FIELD}"'
Table = tuple[tuple[Column, ...], list[list[Sample]]]


def insert(fields: list[Field]) -> bytes:
    """Return the INSERT message of a row."""
    out = b"I\0\0\0\1N" + len(fields).to_bytes(2, "big")
    for field in fields:
        assert field is None or isinstance(field, bytes)
        out += b"n" if field is None else b"t" + len(field).to_bytes(4, "big") + field
    return out


def copy_line(fields: list[Field]) -> bytes:
    """Return the row as COPY writes it (src/backend/commands/copyto.c, CopyAttributeOutText)."""
    marks = {
        0x08: b"\\b",
        0x0C: b"\\f",
        0x0A: b"\\n",
        0x0D: b"\\r",
        0x09: b"\\t",
        0x0B: b"\\v",
        0x5C: b"\\\\",
    }
    texts = []
    for field in fields:
        assert field is None or isinstance(field, bytes)
        texts.append(b"\\N" if field is None else b"".join(marks.get(b, bytes((b,))) for b in field))
    return b"\t".join(texts) + b"\n"


def expected(columns: tuple[Column, ...], row: list[Sample], escapes: bool) -> dict[str, Any]:
    record: dict[str, Any] = {}
    escaped: dict[str, str] = {}
    for column, sample in zip(columns, row, strict=True):
        name = avro_name(column.name)
        record[name] = None if isinstance(sample.value, Escaped) else sample.value
        if isinstance(sample.value, Escaped):
            escaped[name] = sample.value.text
    return record | ({ESCAPED_FIELD: escaped or None} if escapes else {})


def _in_key(text: bytes) -> str:
    """Return a key's text; bytes that are not valid text are marked by a zero byte."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return f"\\x{text.hex()}\0"


def same(left: Any, right: Any) -> bool:
    """Compare as PostgreSQL does: NaN is NaN, and -0.0 is not 0.0 here."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return (
        type(left) is type(right)
        and (left == right or repr(left) == repr(right) == "nan")
        and (not isinstance(left, float) or str(left) == str(right))
    )


def fastavro_differs(value: Any) -> bool:
    """Return whether fastavro writes a decimal one byte longer than needed: at -128, -32768 and so on."""
    if not isinstance(value, Decimal) or not value:
        return False
    digits = int(value.scaleb(-int(value.as_tuple().exponent)))
    return digits < 0 and (~digits).bit_length() != digits.bit_length() and digits.bit_length() % 8 == 0


@given(tables(), st.booleans())
def test_our_bytes_are_fastavros_and_read_back(table: Table, any_bytes: bool) -> None:
    columns, rows = table
    key_columns = tuple(column.name for column in columns[::2])
    encoder = build_encoder(Relation(1, "s", "t", "d", columns), key_columns, CATALOG, any_bytes)
    bound = encoder.bind(1, 2)
    assert encoder.key_schema is not None
    value_schema = fastavro.parse_schema(json.loads(encoder.value_schema))
    key_schema = fastavro.parse_schema(json.loads(encoder.key_schema))
    for row in rows:
        fields = [sample.text for sample in row]
        record = expected(columns, row, HAS_ESCAPES in encoder.value_schema)
        key_row = [
            Sample(s.text, _in_key(s.text))
            if key.codec is not value.codec and key.codec.avro == "string" and isinstance(s.text, bytes)
            else s
            for key, value, s in zip(encoder.key_plans, encoder.value_plans[::2], row[::2], strict=True)
        ]
        assert HAS_ESCAPES not in encoder.key_schema
        key_record = expected(columns[::2], key_row, escapes=False)
        key, value = bound.both(fields)
        assert (key, value) == (bound.key(fields), bound.value(fields))
        assert key is not None
        for schema, framed, wanted in ((key_schema, key, key_record), (value_schema, value, record)):
            stream = io.BytesIO(framed[5:])
            assert same(fastavro.schemaless_reader(stream, schema, None), wanted)
            assert not stream.read()
            if not any(map(fastavro_differs, wanted.values())):
                out = io.BytesIO()
                fastavro.schemaless_writer(out, schema, wanted)
                assert out.getvalue() == framed[5:]


@given(tables())
def test_the_stream_and_the_snapshot_give_the_same_fields(table: Table) -> None:
    columns, rows = table
    for row in rows:
        fields = [sample.text for sample in row]
        payload = insert(fields)
        assert decode(payload) == Insert(1, fields)
        assert splitter(len(columns))(payload, OFFSET) == fields == last_tuple(payload, OFFSET)
        assert unescape_copy_line(copy_line(fields)) == fields


@given(tables(), st.data())
def test_garbage_in_a_field_is_an_encode_error_or_a_value_and_nothing_else(
    table: Table, data: st.DataObject
) -> None:
    columns, rows = table
    bound = build_encoder(Relation(1, "s", "t", "d", columns), (), CATALOG).bind(None, 2)
    fields: list[Field] = [sample.text for sample in rows[0]]
    index = data.draw(st.integers(0, len(fields) - 1))
    fields[index] = data.draw(st.binary(max_size=40))
    try:
        bound.value(fields)
    except EncodeError as error:
        assert error.column == columns[index].name


@given(
    st.binary(max_size=200)
    | st.builds(
        lambda kind, rest: kind + rest,
        st.sampled_from([bytes((kind,)) for kind in b"BCORYIUDTMSEcAbPpKr"]),
        st.binary(max_size=100),
    ),
    st.booleans(),
)
@example(b"", False)
def test_malformed_messages_raise_decode_error_only(payload: bytes, streamed: bool) -> None:
    try:
        decode(payload, streamed)
    except DecodeError as error:
        assert 0 <= error.offset <= len(payload)


@given(tables(), st.data())
def test_flipped_bytes_raise_decode_error_only(table: Table, data: st.DataObject) -> None:
    columns, rows = table
    payload = bytearray(insert([sample.text for sample in rows[0]]))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    for read in (decode, lambda raw: splitter(len(columns))(raw, OFFSET)):
        try:
            read(bytes(payload))
        except DecodeError as error:
            assert 0 <= error.offset <= len(payload)
