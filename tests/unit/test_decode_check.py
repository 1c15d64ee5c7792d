"""Compare messages with PostgreSQL's texts, independently of the encoders' own tests."""

import io
import json
from typing import Any

import fastavro
import pytest

from bwtui.recording.sealed import SealedFile
from bwtui.verify.digests import SOME, SOME_OF_EACH, DecodeCheck, one_of

KEY, VALUE = 1, 2


def schema(name: str, fields: dict[str, tuple[Any, str]], *, types: bool) -> dict[str, Any]:
    """Return a schema as in the relay's registry: only a value's schema has PostgreSQL's types."""
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": field, "type": ["null", avro], "default": None} | ({"pgType": kind} if types else {})
            for field, (avro, kind) in fields.items()
        ],
    }


def encoded(made: dict[str, Any], number: int, row: dict[str, Any]) -> bytes:
    """Return a row in Confluent's wire format."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(made), row)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def is_wrong(key: bytes | None, value: bytes | None, texts: Any, key_texts: Any, op: str = "insert",
             schemas: Any = (), *, is_json: bool = False) -> bool:  # fmt: skip
    """Return whether a message differs from PostgreSQL's texts."""
    after, names = (None if one is None else json.dumps(one) for one in (texts, key_texts))
    row: dict[str, Any] = {
        "position": 1, "part": 0, "key": key, "value": value, "key_json": names, "after": after,
        "unchanged": [], "op": op,
    }  # fmt: skip
    return bool(DecodeCheck(dict(schemas), is_json, {}).wrong([row]))


MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 19, "scale": 2}


@pytest.mark.parametrize(
    "avro, kind, text, value, other",
    [
        ("float", "real", "0.1", 0.1, 0.2),
        # The double nearest to the text lies halfway between these two.
        ("float", "real", "7.038531e-26", 7.0385306918512091e-26, 7.0385313081487913e-26),
        ("double", "double precision", "0.1", 0.1, 0.10000000149011612),
        (MONEY, "money", "-$1,234.50", "-1234.50", "1234.50"),
        ({"type": "array", "items": ["null", "float"]}, "real[]", "{0.1,NULL}", [0.1, None], [0.1]),
        ("string", "date", "infinity", "infinity", "-infinity"),
    ],
)
def test_a_key_says_what_postgresql_said(avro: Any, kind: str, text: str, value: Any, other: Any) -> None:
    from decimal import Decimal

    made = [schema(name, {"k": (avro, kind)}, types=name == "Value") for name in ("Key", "Value")]
    schemas = {KEY: json.dumps(made[0]), VALUE: json.dumps(made[1])}
    right, wrong = ({"k": Decimal(one) if kind == "money" else one} for one in (value, other))
    said = {"k": text}
    row = encoded(made[1], VALUE, right)
    assert not is_wrong(encoded(made[0], KEY, right), row, said, said, schemas=schemas.items())
    assert is_wrong(encoded(made[0], KEY, wrong), row, said, said, schemas=schemas.items())


def test_a_key_marks_bytes_that_are_no_text() -> None:
    """A recording has the same text for the bytes and for their digits; a key marks the former."""
    made = [schema(name, {"k": ("string", "text")}, types=name == "Value") for name in ("Key", "Value")]
    schemas = {KEY: json.dumps(made[0]), VALUE: json.dumps(made[1])}
    said, row = {"k": "\\xff"}, encoded(made[1], VALUE, {"k": "\\xff"})
    for text, is_right in (("\\xff", True), ("\\xff\0", True), ("\\xfe\0", False)):
        key = encoded(made[0], KEY, {"k": text})
        assert is_wrong(key, row, said, said, schemas=schemas.items()) is not is_right


@pytest.mark.parametrize(
    "value, text",
    [
        ('"-12345.60"', "-$12,345.60"),
        ("-0.0", "-0"),
        ("1e+20", "1e+20"),
        ('"$5"', "$5"),
        ("true", "t"),
        ("null", None),
        ('"t"', "t"),
    ],
)
def test_json_says_what_postgresql_said(value: str, text: str | None) -> None:
    assert not is_wrong(b'{"a": 1}', b'{"a": 1, "b": %s}' % value.encode(), {"a": "1", "b": text}, {"a": "1"},
                        is_json=True)  # fmt: skip
    other = b'"other"' if text is None else b"null"
    for wrong in (b'"an other"', other):
        assert is_wrong(b'{"a": 1}', b'{"a": 1, "b": %s}' % wrong, {"a": "1", "b": text}, {"a": "1"},
                        is_json=True)  # fmt: skip


def test_a_row_that_was_sent_as_a_tombstone_or_without_its_key() -> None:
    said, key = {"a": "1"}, b'{"a": 1}'
    assert not is_wrong(key, b'{"a": 1}', said, said, is_json=True)
    assert is_wrong(key, None, said, said, is_json=True)
    assert is_wrong(key, None, said, said, "snapshot", is_json=True)
    assert is_wrong(None, b'{"a": 1}', said, said, is_json=True)
    assert is_wrong(key, b'{"a": 1}', None, said, "delete", is_json=True)
    # A changed key makes a tombstone for the old key; a table without a key has none.
    assert not is_wrong(key, None, {"a": "2"}, said, "update", is_json=True)
    assert not is_wrong(key, None, None, said, "delete", is_json=True)
    assert not is_wrong(None, b'{"a": 1}', said, None, is_json=True)
    assert not is_wrong(key, b'{"a": 1}', said, None, is_json=True)


def test_a_small_table_has_its_share_of_what_is_compared() -> None:
    rows = {"public.large": 40_000_000, "public.small": 5_000, "public.tiny": 40}
    halves = [(table, part) for table, count in rows.items() for part in (count // 4, count - count // 4)]
    every = one_of(SealedFile(table, "changes", part, 1, "", table=table) for table, part in halves)
    assert every["public.large"] == pytest.approx(40_000_000 / SOME, rel=0.01)
    assert every["public.small"] == 5_000 / SOME_OF_EACH and every["public.tiny"] == 1
    assert one_of([]) == {}
