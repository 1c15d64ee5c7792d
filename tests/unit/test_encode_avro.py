"""Compare the framed Avro of a table's rows with fastavro as an independent reader."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from bwtui.encode.avro import EncodeError, UnchangedToastError, build_encoder
from bwtui.encode.names import ESCAPED_FIELD
from bwtui.pgoutput.messages import UNCHANGED, Binary, Column, Field, Relation
from bwtui.types.registry import TypeInfo

ID, NUMBER, TEXT, PRICE, AT, DAY = range(6)
COLUMNS = (
    Column("id", 20, -1, True),
    Column("number", 23, -1, False),
    Column("text", 25, -1, False),
    Column("price", 1700, (10 << 16 | 2) + 4, False),
    Column("at", 1184, -1, False),
    Column("day", 1082, -1, False),
)
ORDERS = Relation(16385, "public", "orders", "d", COLUMNS)
ROW: list[Field] = [b"7", b"-42", "größe".encode(), b"-12.50", b"2024-05-06 07:08:09.12+00", b"2024-05-06"]


def read(schema: str | None, framed: bytes | None, schema_id: int) -> dict[str, Any]:
    assert schema is not None
    assert framed is not None
    assert framed[:5] == b"\0" + schema_id.to_bytes(4, "big")
    stream = io.BytesIO(framed[5:])
    record = fastavro.schemaless_reader(stream, json.loads(schema), None)
    assert stream.read() == b""
    assert isinstance(record, dict)
    return record


def changed(index: int, field: Field) -> list[Field]:
    return [*ROW[:index], field, *ROW[index + 1 :]]


def test_a_row_reads_back_with_another_reader() -> None:
    encoder = build_encoder(ORDERS, ("id",), {})
    bound = encoder.bind(11, 12)
    assert read(encoder.key_schema, bound.key(ROW), 11) == {"id": 7}
    assert read(encoder.value_schema, bound.value(ROW), 12) == {
        "id": 7,
        "number": -42,
        "text": "größe",
        "price": Decimal("-12.50"),
        "at": datetime(2024, 5, 6, 7, 8, 9, 120_000, UTC),
        "day": date(2024, 5, 6),
        ESCAPED_FIELD: None,
    }
    assert bound.both(ROW) == (bound.key(ROW), bound.value(ROW))


def test_what_the_type_cannot_hold_is_null_and_its_text_is_in_the_escape_field() -> None:
    encoder = build_encoder(ORDERS, ("id",), {})
    row = [b"7", None, None, b"NaN", b"infinity", b"0044-03-15 BC"]
    record = read(encoder.value_schema, encoder.bind(1, 2).value(row), 2)
    assert record == {
        "id": 7,
        **dict.fromkeys(("number", "text", "price", "at", "day")),
        ESCAPED_FIELD: {"price": "NaN", "at": "infinity", "day": "0044-03-15 BC"},
    }


def test_a_table_whose_types_hold_everything_has_no_escape_field() -> None:
    relation = Relation(1, "public", "t", "d", COLUMNS[:3])
    assert ESCAPED_FIELD not in build_encoder(relation, (), {}).value_schema


def test_without_key_columns_there_is_no_key() -> None:
    encoder = build_encoder(ORDERS, (), {})
    bound = encoder.bind(None, 2)
    assert encoder.key_schema is None
    assert bound.key(ROW) is None
    assert bound.both(ROW) == (None, bound.value(ROW))


def test_the_key_schema_has_no_attributes_and_follows_table_order() -> None:
    encoder = build_encoder(ORDERS, ("price", "id"), {})
    assert encoder.key_schema is not None
    fields = json.loads(encoder.key_schema)["fields"]
    assert [field["name"] for field in fields] == ["id", "price"]
    assert all(set(field) == {"name", "type", "default"} for field in fields)


@pytest.mark.parametrize("index", range(len(ROW)))
def test_an_unchanged_toast_value_is_never_null(index: int) -> None:
    bound = build_encoder(ORDERS, tuple(column.name for column in COLUMNS), {}).bind(1, 2)
    for encode in (bound.key, bound.value, bound.both):
        with pytest.raises(UnchangedToastError) as caught:
            encode(changed(index, UNCHANGED))
        assert caught.value.column == COLUMNS[index].name


@pytest.mark.parametrize("index", [i for i in range(len(ROW)) if i != TEXT])
@pytest.mark.parametrize("field", [b"secret", b"", b"-", b"9 secret", Binary(b"secret")])
def test_malformed_text_is_an_error_that_names_the_column_and_not_the_value(index: int, field: Field) -> None:
    bound = build_encoder(ORDERS, ("id",), {}).bind(1, 2)
    with pytest.raises(EncodeError) as caught:
        bound.value(changed(index, field))
    assert caught.value.column == COLUMNS[index].name
    assert "secret" not in f"{caught.value} {caught.value.hint}"


def test_a_row_of_another_width_is_an_error() -> None:
    bound = build_encoder(ORDERS, ("id",), {}).bind(1, 2)
    for encode in (bound.key, bound.value, bound.both):
        with pytest.raises(EncodeError, match="5 columns, but its table has 6"):
            encode(ROW[:5])


def test_a_key_column_that_is_not_published_is_an_error() -> None:
    with pytest.raises(EncodeError, match="not published"):
        build_encoder(ORDERS, ("missing",), {})


def test_unknown_types_go_as_text_and_are_listed_while_enums_and_domains_are_known() -> None:
    catalog = {
        90001: TypeInfo(90001, "mood", "public", "e"),
        90002: TypeInfo(90002, "price", "shop", "d", 1700, (6 << 16 | 1) + 4),
        90003: TypeInfo(90003, "odd", "shop", "b"),
    }
    names = ("mood", "price", "odd", "gone")
    relation = Relation(
        1, "public", "t", "d", tuple(Column(n, 90001 + i, -1, False) for i, n in enumerate(names))
    )
    encoder = build_encoder(relation, (), catalog)
    assert encoder.text_columns == ("odd", "gone")
    record = read(encoder.value_schema, encoder.bind(None, 1).value([b"sad", b"2.5", b"<x>", b"?"]), 1)
    assert record == {"mood": "sad", "price": Decimal("2.5"), "odd": "<x>", "gone": "?", ESCAPED_FIELD: None}
    assert [field.get("pgType") for field in json.loads(encoder.value_schema)["fields"]] == [
        "mood",
        "numeric(6,1)",
        "shop.odd",
        "oid 90004",
        None,
    ]


def test_a_table_without_columns() -> None:
    encoder = build_encoder(Relation(1, "public", "t", "n", ()), (), {})
    assert read(encoder.value_schema, encoder.bind(None, 3).value([]), 3) == {ESCAPED_FIELD: None}


def test_names_from_the_database_stay_out_of_the_generated_source() -> None:
    relation = Relation(1, 'p"', "t'\n", "d", (Column("x\n    import os #", 23, -1, True),))
    encoder = build_encoder(relation, ("x\n    import os #",), {})
    framed = encoder.bind(1, 2).value([b"5"])
    assert list(read(encoder.value_schema, framed, 2).values()) == [5]
