"""Keys: no type needs the escape field in them, and no two rows have the same key."""

import io
import json
from typing import Any

import fastavro
import pytest

from bwtui.encode.avro import TableEncoder, build_encoder
from bwtui.encode.names import ESCAPED_FIELD
from bwtui.pgoutput.messages import Column, Relation
from bwtui.types import registry
from bwtui.types.registry import TypeInfo

CATALOG = {
    9001: TypeInfo(9001, "hstore", "public"),
    9002: TypeInfo(9002, "_hstore", "public", element_oid=9001),
    9003: TypeInfo(9003, "day", "public", kind="d", base_oid=1082),
    9004: TypeInfo(9004, "citext", "public"),
    9005: TypeInfo(9005, "pair", "public", kind="c"),
    9006: TypeInfo(9006, "cube", "public"),
}
OIDS = (*registry._BUILT_IN, *registry._ARRAYS, *CATALOG)
HSTORE, TEXT, DATE, TIMESTAMPTZ, TIME, XID8, INT_ARRAY = 9001, 25, 1082, 1184, 1083, 5069, 1007


def encoder_of(oid: int, typmod: int = -1, *, check_utf8: bool = False) -> TableEncoder:
    columns = (Column("k", oid, typmod, True), Column("v", 25, -1, False))
    return build_encoder(Relation(1, "s", "t", "d", columns), ("k",), CATALOG, check_utf8)


def key_of(encoder: TableEncoder, text: bytes | None) -> dict[str, Any]:
    """Return the decoded key of a row, and check that all ways of encoding it agree."""
    bound = encoder.bind(1, 2)
    key, value = bound.both([text, b"v"])
    assert key == bound.key([text, b"v"])
    assert encoder.key_schema is not None
    assert read(encoder.value_schema, value)["v"] == "v"
    return read(encoder.key_schema, key)


def read(schema: str, framed: bytes | None) -> dict[str, Any]:
    assert framed is not None
    stream = io.BytesIO(framed[5:])
    found = fastavro.schemaless_reader(stream, fastavro.parse_schema(json.loads(schema)), None)
    assert not stream.read()
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("check_utf8", [False, True])
def test_no_type_puts_the_escape_field_into_a_key(check_utf8: bool) -> None:
    for oid in OIDS:
        for typmod in (-1, (10 << 16 | 2) + 4):
            encoder = encoder_of(oid, typmod, check_utf8=check_utf8)
            assert encoder.key_schema is not None
            (field,) = json.loads(encoder.key_schema)["fields"]
            assert field["name"] == "k" != ESCAPED_FIELD
            assert field["type"][0] == "null"
            assert field["default"] is None


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (DATE, "2024-05-06"),
        (DATE, "infinity"),
        (DATE, "0044-03-15 BC"),
        (9003, "2024-05-06"),
        (TIMESTAMPTZ, "2024-05-06 07:08:09.12+00"),
        (TIME, "24:00:00"),
        (XID8, "18446744073709551615"),
        (INT_ARRAY, "{1,2}"),
        (INT_ARRAY, "{{1},{2}}"),
        (HSTORE, '"a"=>"1"'),
        (HSTORE, ""),
        (1009, '{"größe",NULL}'),
    ],
)
def test_what_a_type_may_not_hold_is_its_text_in_a_key(oid: int, text: str) -> None:
    for check_utf8 in (False, True):
        encoder = encoder_of(oid, check_utf8=check_utf8)
        assert key_of(encoder, text.encode()) == {"k": text}
        assert key_of(encoder, None) == {"k": None}


def test_a_null_in_a_key_leaves_the_row_as_it_is() -> None:
    for oid in OIDS:
        encoder = encoder_of(oid)
        key, value = encoder.bind(1, 2).both([None, b"v"])
        assert read(encoder.key_schema or "", key) == {"k": None}
        assert read(encoder.value_schema, value)["k"] is None


def test_bytes_that_are_no_text_never_share_a_key_with_a_text() -> None:
    rows = [
        b"\xff",
        b"\\xff",
        b"\\x5c786666",
        b"\\x",
        b"a\xff",
        b"\\X",
        "ÿ".encode(),
        b"\\\\x",
        b"x",
        b"\xff\xfe",
    ]
    encoder = encoder_of(TEXT, check_utf8=True)
    keys = [key_of(encoder, row)["k"] for row in rows]
    assert len(set(keys)) == len(rows)
    assert keys[:3] == ["\\xff\0", "\\xff", "\\x5c786666"]
    # Decode them as the documentation describes.
    assert [bytes.fromhex(key[2:-1]) if key.endswith("\0") else key.encode() for key in keys] == rows


def test_a_long_text_in_a_key() -> None:
    for size in (8191, 8192, 100_000):
        assert key_of(encoder_of(1009), b"{%b}" % (b"a" * size)) == {"k": "{" + "a" * size + "}"}
