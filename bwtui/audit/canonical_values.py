"""Canonical texts of values, whether PostgreSQL wrote them or they were decoded from a message.

Most values have only one text, PostgreSQL's. A decoded float, money, array or hstore value does not show how
it was written, so both sides are converted to a canonical text.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from bwtui.audit.decoding import RowSchema, Schemas, UndecodableMessage, is_plain, schema_id
from bwtui.audit.postgresql_text import ESCAPED, UNSENT, elements, of_json, pairs, plain, real, written

#: The canonical form of a type: "" for unchanged text, "float4", "float8", "money", "hstore", or "[,]" before
#: the form of an array's element.
Form = str

_SPECIAL = {700: "float4", 701: "float8", 790: "money"}


def form_of(oid: int, types: Mapping[int, Any]) -> Form:
    """Return the form of a type; ``types`` is a result of `bwtui.source.catalog.load_types`."""
    info = types.get(oid)
    while info is not None and info.kind == "d":
        oid = info.base_oid
        info = types.get(oid)
    if info is not None and info.element_oid and info.kind == "b":
        return f"[{info.delimiter}]{form_of(info.element_oid, types)}"
    if info is not None and info.name == "hstore":
        return "hstore"
    return _SPECIAL.get(oid, "")


def of_text(text: str | None, form: Form) -> str | None:
    """Return the canonical text of a text that PostgreSQL wrote."""
    # Bytes that are not text have only one form.
    if text is None or not form or text.endswith("\0"):
        return text
    if form.startswith("float"):
        return _float_text(text, form)
    if form == "money":
        return text.replace("$", "").replace(",", "")
    if form == "hstore":
        return json.dumps({plain(key): None if one is None else plain(one) for key, one in pairs(text)},
                          sort_keys=True)  # fmt: skip
    # Multidimensional arrays, and those with bounds, are sent as their text.
    if not text.startswith("{") or text.startswith("{{"):
        return text
    parts = elements(text, form[1])
    return json.dumps([of_text(part, form[3:]) for part in parts or ()])


def readable(text: str | None, form: Form) -> str | None:
    """Return a text that PostgreSQL parses as the value with this canonical text."""
    if text is None or form[:1] not in ("[", "h"):
        return text
    if form == "hstore":
        pairs = json.loads(text).items()
        return ", ".join(f"{_quoted(key)}=>{'NULL' if one is None else _quoted(one)}" for key, one in pairs)
    if not text.startswith("["):
        return text
    parts = [readable(part, form[3:]) for part in json.loads(text)]
    return f"{{{form[1].join('NULL' if part is None else _quoted(part) for part in parts)}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def of_value(value: Any, form: Form) -> str | None:
    """Return the canonical text of a decoded value."""
    if value is None or isinstance(value, str):
        return of_text(value, form)
    if isinstance(value, float):
        return _float_text(repr(value), form)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, list):
        return json.dumps([of_value(one, form[3:]) for one in value])
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return of_text(written(value), form)


def _float_text(text: str, form: Form) -> str:
    try:
        if form == "float4":
            # JSON of another producer may contain a number beyond the range of real.
            with contextlib.suppress(OverflowError):
                return repr(real(text))
        return repr(float(text))
    except ValueError as error:
        raise UndecodableMessage("the value of a float column is not a number") from error


@dataclass(frozen=True, slots=True)
class DecodedRow:
    """A decoded key or row."""

    #: Column → its value, or a text if it is escaped.
    values: Mapping[str, Any]
    #: Columns with a placeholder for a value that was not sent.
    unsent: frozenset[str] = frozenset()


#: The encoding of bytes that a plain encoder would write differently.
ODD = "odd"


def decode_key(data: bytes, schemas: Schemas) -> tuple[DecodedRow, str]:
    """Return a key's row and its encoding: a schema's ID, "json", or ODD. Raises Undecodable.

    Keys with equal values are the same key only if their bytes are equal.
    """
    if data[:1] == b"{":
        decoded = _parse_json(data, _JsonNumber)
        return _json_row(decoded), "json" if _plain_json(decoded) == data else ODD
    schema, row = schemas.decode(data)
    return _avro_row(schema, row), str(schema_id(data)) if is_plain(data, schema, row) else ODD


class _JsonNumber(str):
    """A number as it was written."""

    __slots__ = ()


def _plain_json(row: Mapping[str, Any]) -> bytes:
    def plainly(value: Any) -> bytes:
        if isinstance(value, _JsonNumber):
            return value.encode()
        if isinstance(value, str):
            try:
                return json.dumps(value, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                pass
        return json.dumps(value).encode()

    return b"{" + b", ".join(plainly(name) + b": " + plainly(value) for name, value in row.items()) + b"}"


def decode(data: bytes, schemas: Schemas) -> DecodedRow:
    """Return the row in a message's key or value, in Avro or in JSON. Raises Undecodable."""
    if data[:1] == b"{":
        return _json_row(_parse_json(data, str))
    return _avro_row(*schemas.decode(data))


def _avro_row(schema: RowSchema, row: Mapping[str, Any]) -> DecodedRow:
    escaped = dict(row.get(ESCAPED) or {})
    unsent = escaped.pop(UNSENT, "").split()
    names = {field: column for field, (column, _) in schema.columns.items() if field != ESCAPED}
    # Among the escaped values, only bytes that are not text begin like this.
    escaped |= {name: f"{text}\0" for name, text in escaped.items() if text.startswith("\\x")}
    values = {names[field]: escaped.get(field, row[field]) for field in names}
    return DecodedRow(values, frozenset(names.get(field, field) for field in unsent))


def _parse_json(data: bytes, number: type[str]) -> dict[str, Any]:
    """Return a row with its numbers as they were written. Raises Undecodable."""
    try:
        decoded: dict[str, Any] = json.loads(
            data, parse_int=number, parse_float=number, parse_constant=number
        )
    except ValueError as error:
        raise UndecodableMessage("it is not valid JSON") from error
    return decoded


def _json_row(decoded: Mapping[str, Any]) -> DecodedRow:
    unsent = {name for name, value in decoded.items() if value == {UNSENT: True}}
    texts = {name: of_json(value) if isinstance(value, str) else value for name, value in decoded.items()}
    return DecodedRow({name: value for name, value in texts.items() if name not in unsent}, frozenset(unsent))
