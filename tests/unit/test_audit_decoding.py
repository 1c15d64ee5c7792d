"""Compare messages, read by the audit's simple decoder, with PostgreSQL's texts."""

import io
import json
from collections.abc import Mapping

import fastavro
import pytest

from bwtui.audit.canonical_values import Schemas, UndecodableMessage, differing, of_text, of_value, real, says

_FIELDS = [
    {"name": "id", "type": ["null", "int"], "pgName": "id", "pgType": "integer"},
    {"name": "_x5f__escaped", "type": ["null", "string"], "pgName": "__escaped", "pgType": "numeric(5,1)"},
    {"name": "__escaped", "type": ["null", {"type": "map", "values": "string"}]},
]
_SCHEMA = {"type": "record", "name": "row", "fields": _FIELDS}


def said(row: Mapping[str, object], texts: dict[str, str | None]) -> list[str]:
    """Return the columns in which a message differs from PostgreSQL's texts."""
    message = io.BytesIO()
    message.write(b"\0\0\0\0\x07")
    fastavro.schemaless_writer(message, _SCHEMA, row)
    schema, decoded = Schemas({7: json.dumps(_SCHEMA)}).decode(message.getvalue())
    return differing(schema, decoded, texts)


def test_a_column_that_is_called_as_the_escape() -> None:
    plain = {"id": 1, "_x5f__escaped": "1.5", "__escaped": None}
    assert said(plain, {"id": "1", "__escaped": "1.5"}) == []
    assert said(plain, {"id": "1", "__escaped": "1.6"}) == ["__escaped"]
    escaped = {"id": 1, "_x5f__escaped": None, "__escaped": {"_x5f__escaped": "NaN"}}
    assert said(escaped, {"id": "1", "__escaped": "NaN"}) == []
    assert said(escaped, {"id": "1", "__escaped": "Infinity"}) == ["__escaped"]
    assert said(escaped, {"id": "1", "__escaped": None}) == ["__escaped"]


def test_arrays_of_boxes() -> None:
    for text, value in (("{NULL;(1,1),(0,0)}", [None, "(1,1),(0,0)"]), ("{}", []), ("{NULL}", [None])):
        assert says(value, text, "box[]")
        assert of_text(text, "[;]") == of_value(value, "[;]")


@pytest.mark.parametrize("value", ["abc", True, ""])
@pytest.mark.parametrize("form", ["float4", "float8"])
def test_a_value_of_another_producer_that_is_not_a_number(value: object, form: str) -> None:
    with pytest.raises(UndecodableMessage):
        of_value(value, form)


def test_a_text_halfway_between_zero_and_the_least_real() -> None:
    assert real("7.006492321624085e-46") == 0.0
    assert real("-7.006492321624085e-46") == 0.0
