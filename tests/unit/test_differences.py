"""What breaks a compatibility rule, in words that name the field."""

import json
from typing import Any

import pytest

from bwtui.encode.schema_differences import differences, directions, incompatibilities, misread


def schema(*fields: tuple[str, Any], name: str = "Value", default: bool = True) -> str:
    given = [
        {"name": field, "type": ["null", avro]} | ({"default": None} if default else {})
        for field, avro in fields
    ]
    return json.dumps({"type": "record", "name": name, "fields": given})


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
WIDER = {**DECIMAL, "precision": 12}
DAY = {"type": "int", "logicalType": "date"}
LIST = {"type": "array", "items": ["null", "int"]}


@pytest.mark.parametrize(
    ("before", "after", "backward", "forward"),
    [
        ("int", "int", [], []),
        ("int", "long", [], ['field "a" changed from int to long']),
        ("long", "int", ['field "a" changed from long to int'], []),
        ("int", "string", ['field "a" changed from int to string'], ['field "a" changed from int to string']),
        ("string", "bytes", [], []),
        (DAY, "int", [], []),
        (DAY, "long", [], ['field "a" changed from date to long']),
        (DECIMAL, WIDER, *[['field "a" changed from decimal(10,2) to decimal(12,2)']] * 2),
        (
            LIST,
            {"type": "array", "items": ["null", "long"]},
            [],
            ['field "a" changed from array of int to array of long'],
        ),
        (LIST, "int", *[['field "a" changed from array of int to int']] * 2),
    ],
)
def test_types(before: Any, after: Any, backward: list[str], forward: list[str]) -> None:
    old, new = schema(("a", before), ("b", "int")), schema(("a", after), ("c", "int"))
    assert incompatibilities(old, new, "BACKWARD_TRANSITIVE") == backward
    assert incompatibilities(old, new, "FORWARD") == forward
    assert incompatibilities(old, new, "FULL") == (backward or forward)


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
UUID = {"type": "string", "logicalType": "uuid"}


@pytest.mark.parametrize(
    ("before", "after", "reasons"),
    [
        (DECIMAL, {**DECIMAL, "scale": 4}, ['field "a" changed from decimal(10,2) to decimal(10,4)']),
        (DECIMAL, WIDER, []),
        (DECIMAL, "string", ['field "a" changed from decimal(10,2) to string']),
        (LOCAL, MICROS, ['field "a" changed from local-timestamp-micros to timestamp-micros']),
        ("int", DAY, ['field "a" changed from int to date']),
        (DAY, MICROS, ['field "a" changed from date to timestamp-micros']),
        ({"type": "array", "items": ["null", "int"]}, {"type": "array", "items": ["null", DAY]},
         ['field "a" changed from array of int to array of date']),
        (UUID, "string", []),
        ("int", "string", []),
        ("int", "double", []),
    ],
)  # fmt: skip
def test_values_that_readers_would_take_for_others(before: Any, after: Any, reasons: list[str]) -> None:
    assert misread(schema(("a", before), ("b", "int")), schema(("a", after), ("c", "int"))) == reasons


def test_fields_without_default_and_another_record() -> None:
    other = schema(("b", "int"), name="Other", default=False)
    assert incompatibilities(other, schema(("a", "int")), "FULL") == [
        'field "b" was removed and had no default',
        "the record was renamed from Other to Value",
    ]
    assert incompatibilities(schema(("a", "int")), other, "BACKWARD") == [
        'field "b" is new and has no default',
        "the record was renamed from Value to Other",
    ]
    assert incompatibilities('{"type": "string"}', other, "BACKWARD") == [
        "the subject's schema is not a record"
    ]


FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": ["null", "long"], "default": None, "pgType": "bigint"},
    {"name": "state", "type": ["null", "string"], "default": None, "pgType": "text"},
    {"name": "total", "type": ["null", DECIMAL], "default": None},
    {"name": "old", "type": "int"},
]


def record(*fields: dict[str, Any], **more: Any) -> str:
    return json.dumps({"type": "record", "name": "Value", "fields": fields, **more})


def test_every_difference_is_one_with_what_it_breaks() -> None:
    after = record(
        FIELDS[1] | {"pgType": "character varying"},
        FIELDS[0] | {"default": 7},
        FIELDS[2] | {"type": ["null", WIDER]},
        {"name": "new", "type": ["null", "int"], "default": None},
        {"name": "bare", "type": "int"},
        doc="of orders",
    )
    found = [
        (one.field, one.kind, one.before, one.after, sorted(one.breaks))
        for one in differences(record(*FIELDS), after)
    ]
    assert found == [
        ("", "doc", "", '"of orders"', []),
        ("state", "pgType", '"text"', '"character varying"', []),
        ("id", "default", "null", "7", []),
        ("total", "type", "decimal(10,2)", "decimal(12,2)", ["BACKWARD", "FORWARD"]),
        ("new", "added", "", "int", []),
        ("bare", "added", "", "int", ["BACKWARD"]),
        ("old", "removed", "int", "", ["FORWARD"]),
        ("", "order", "", "", []),
    ]


def test_a_type_that_differs_in_null_alone_is_shown_whole() -> None:
    [found] = differences(
        record({"name": "a", "type": "int"}), record({"name": "a", "type": ["null", "int"]})
    )
    assert (found.before, found.after) == ('"int"', '["null", "int"]')
    assert found.breaks == {"FORWARD"}


def test_equal_schemas_differ_in_nothing() -> None:
    assert differences(record(*FIELDS), record(*FIELDS)) == []


@pytest.mark.parametrize(
    "text", ["", "[]", '"string"', "{}", '{"type": "record"}', '{"type": "enum", "name": "e"}']
)
def test_what_is_no_record_is_refused(text: str) -> None:
    for pair in ((text, record(*FIELDS)), (record(*FIELDS), text)):
        with pytest.raises(ValueError, match="not a record"):
            differences(*pair)


@pytest.mark.parametrize(
    ("level", "demanded"),
    [
        ("NONE", set()),
        ("BACKWARD", {"BACKWARD"}),
        ("BACKWARD_TRANSITIVE", {"BACKWARD"}),
        ("FORWARD_TRANSITIVE", {"FORWARD"}),
        ("FULL", {"BACKWARD", "FORWARD"}),
        ("FULL_TRANSITIVE", {"BACKWARD", "FORWARD"}),
    ],
)
def test_levels_demand_directions(level: str, demanded: set[str]) -> None:
    assert directions(level) == demanded
