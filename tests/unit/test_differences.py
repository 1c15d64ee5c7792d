"""Violations of a compatibility rule, in sentences that name the field."""

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


def change_of_a(reasons: list[str]) -> str:
    """Return the types in the only reason, which names field "a"; an empty text if there is no reason."""
    assert len(reasons) <= 1 and all(reason.startswith('field "a" ') for reason in reasons)
    return "".join(reasons).rpartition(" from ")[2]


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
WIDER = {**DECIMAL, "precision": 12}
DAY = {"type": "int", "logicalType": "date"}
LIST = {"type": "array", "items": ["null", "int"]}


@pytest.mark.parametrize(
    ("before", "after", "backward", "forward"),
    [
        ("int", "int", "", ""),
        ("int", "long", "", "int to long"),
        ("long", "int", "long to int", ""),
        ("int", "string", *["int to string"] * 2),
        ("string", "bytes", "", ""),
        (DAY, "int", "", ""),
        (DAY, "long", "", "date to long"),
        (DECIMAL, WIDER, *["decimal(10,2) to decimal(12,2)"] * 2),
        (LIST, {"type": "array", "items": ["null", "long"]}, "", "array of int to array of long"),
        (LIST, "int", *["array of int to int"] * 2),
    ],
)
def test_types(before: Any, after: Any, backward: str, forward: str) -> None:
    old, new = schema(("a", before), ("b", "int")), schema(("a", after), ("c", "int"))
    assert change_of_a(incompatibilities(old, new, "BACKWARD_TRANSITIVE")) == backward
    assert change_of_a(incompatibilities(old, new, "FORWARD")) == forward
    assert change_of_a(incompatibilities(old, new, "FULL")) == (backward or forward)


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
UUID = {"type": "string", "logicalType": "uuid"}


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (DECIMAL, {**DECIMAL, "scale": 4}, "decimal(10,2) to decimal(10,4)"),
        (DECIMAL, WIDER, ""),
        (DECIMAL, "string", "decimal(10,2) to string"),
        (LOCAL, MICROS, "local-timestamp-micros to timestamp-micros"),
        ("int", DAY, "int to date"),
        (DAY, MICROS, "date to timestamp-micros"),
        (LIST, {"type": "array", "items": ["null", DAY]}, "array of int to array of date"),
        (UUID, "string", ""),
        ("int", "string", ""),
        ("int", "double", ""),
    ],
)
def test_values_that_readers_would_take_for_others(before: Any, after: Any, change: str) -> None:
    reasons = misread(schema(("a", before), ("b", "int")), schema(("a", after), ("c", "int")))
    assert change_of_a(reasons) == change


def test_fields_without_default_and_another_record() -> None:
    other = schema(("b", "int"), name="Other", default=False)
    field, name = incompatibilities(other, schema(("a", "int")), "FULL")
    assert field.startswith('field "b" was removed') and name.endswith("from Other to Value")
    field, name = incompatibilities(schema(("a", "int")), other, "BACKWARD")
    assert field.startswith('field "b" is new') and name.endswith("from Value to Other")
    assert len(incompatibilities('{"type": "string"}', other, "BACKWARD")) == 1


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
