"""What breaks a compatibility rule, in words that name the field."""

import json
from typing import Any

import pytest

from bwtui.encode.differences import incompatibilities


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
        ("int", "long", [], ['field "a" was int and is long']),
        ("long", "int", ['field "a" was long and is int'], []),
        ("int", "string", ['field "a" was int and is string'], ['field "a" was int and is string']),
        ("string", "bytes", [], []),
        (DAY, "int", [], []),
        (DAY, "long", [], ['field "a" was date and is long']),
        (DECIMAL, WIDER, *[['field "a" was decimal(10,2) and is decimal(12,2)']] * 2),
        (
            LIST,
            {"type": "array", "items": ["null", "long"]},
            [],
            ['field "a" was array of int and is array of long'],
        ),
        (LIST, "int", *[['field "a" was array of int and is int']] * 2),
    ],
)
def test_types(before: Any, after: Any, backward: list[str], forward: list[str]) -> None:
    old, new = schema(("a", before), ("b", "int")), schema(("a", after), ("c", "int"))
    assert incompatibilities(old, new, "BACKWARD_TRANSITIVE") == backward
    assert incompatibilities(old, new, "FORWARD") == forward
    assert incompatibilities(old, new, "FULL") == (backward or forward)


def test_fields_without_default_and_another_record() -> None:
    other = schema(("b", "int"), name="Other", default=False)
    assert incompatibilities(other, schema(("a", "int")), "FULL") == [
        'field "b" is gone and had no default',
        "the record is called Value, and was Other",
    ]
    assert incompatibilities(schema(("a", "int")), other, "BACKWARD") == [
        'field "b" is new and has no default',
        "the record is called Other, and was Value",
    ]
    assert incompatibilities('{"type": "string"}', other, "BACKWARD") == [
        "the subject holds something else than a record"
    ]
