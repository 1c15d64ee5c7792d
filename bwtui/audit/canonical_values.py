"""Canonical texts of values, whether PostgreSQL wrote them or they were decoded from a message.

Most values have only one text, PostgreSQL's. A decoded float, money, array or hstore value does not show how
it was written, so both sides are converted to a canonical text.
"""

import contextlib
import datetime
import io
import json
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import fastavro

# Decode messages by fastavro under the schema that they name, independently of the code that wrote them.

#: Confluent's wire format: a zero byte, and the schema's ID.
_HEAD = 5

#: ID → schema's text, for IDs that the recording lacks; None if the registry lacks it too.
AskRegistry = Callable[[int], str | None]


class UndecodableMessage(ValueError):
    """The bytes do not match their schema, or the schema is unknown."""


@dataclass(frozen=True, slots=True)
class RowSchema:
    """A schema, with the PostgreSQL columns of its fields."""

    parsed: Any
    #: Avro field → (column, PostgreSQL's type or "").
    columns: Mapping[str, tuple[str, str]]


class Schemas:
    """Schemas by ID: those of the recording, and others from the registry, each parsed once."""

    def __init__(self, texts: Mapping[int, str], ask: AskRegistry = lambda _: None) -> None:
        self._texts = dict(texts)
        self._ask = ask
        self._parsed: dict[int, RowSchema | None] = {}
        #: IDs that neither the recording nor the registry has.
        self.unknown: set[int] = set()

    def get(self, number: int) -> RowSchema:
        """Return the schema with this ID. Raises Undecodable."""
        if number not in self._parsed:
            text = self._texts.get(number) or self._ask(number)
            self._parsed[number] = None if text is None else _parse(text)
            if text is None:
                self.unknown.add(number)
        schema = self._parsed[number]
        if schema is None:
            raise UndecodableMessage(f"there is no schema with id {number}")
        return schema

    def decode(self, data: bytes) -> tuple[RowSchema, dict[str, Any]]:
        """Return a message's schema and its row, which must use all of its bytes. Raises Undecodable."""
        number = schema_id(data)
        if number is None:
            raise UndecodableMessage("it does not start with the header of Confluent's wire format")
        schema = self.get(number)
        stream = io.BytesIO(data)
        stream.seek(_HEAD)
        try:
            row = fastavro.schemaless_reader(stream, schema.parsed, None)
        except Exception as error:
            raise UndecodableMessage("it can't be decoded under its schema") from error
        if stream.tell() != len(data) or not isinstance(row, dict):
            raise UndecodableMessage("it has additional bytes after its end")
        return schema, row


def is_plain(data: bytes, schema: RowSchema, row: Mapping[str, Any]) -> bool:
    """Return whether a plain encoder would write these bytes for the row that they were decoded to."""
    stream = io.BytesIO()
    try:
        fastavro.schemaless_writer(stream, schema.parsed, row)
    except Exception:
        # A row that the encoder can't write has no other plain form.
        return True
    return stream.getvalue() == data[_HEAD:]


def schema_id(data: bytes | None) -> int | None:
    """Return the schema ID that a message's key or value begins with, or None."""
    if data is None or len(data) < _HEAD or data[0] != 0:
        return None
    return int.from_bytes(data[1:_HEAD], "big")


def _parse(text: str) -> RowSchema | None:
    try:
        schema = json.loads(text)
        parsed = fastavro.parse_schema(schema)
    except Exception:
        return None
    fields = schema.get("fields", []) if isinstance(schema, dict) else []
    names = {one["name"]: (one.get("pgName") or _column(one["name"]), _kind(one)) for one in fields}
    return RowSchema(parsed, names)


def _column(field: str) -> str:
    """Return the column of a key's field, whose schema has no ``pgName``: ``_xf6_`` is the escape of
    ``ö``.
    """
    return re.sub(r"_x([0-9a-f]{1,6})_", lambda match: chr(int(match[1], 16)), field)


def _kind(field: Mapping[str, Any]) -> str:
    """Return PostgreSQL's type; for a key, whose schema omits it, only the types that matter."""
    return str(field["pgType"]) if "pgType" in field else _kind_of(field["type"])


def _kind_of(avro: Any) -> str:
    if isinstance(avro, list):
        return next((_kind_of(one) for one in avro if one != "null"), "")
    if isinstance(avro, dict):
        if avro.get("type") == "array":
            return _kind_of(avro["items"]) + "[]"
        # A numeric in a key is sent as its text.
        return "money" if avro.get("logicalType") == "decimal" else ""
    return "real" if avro == "float" else ""


# Compare decoded values with PostgreSQL's texts, in the opposite direction of the relay.
#
# The relay converts the text to Avro. Here the value is converted back to PostgreSQL's text (ISO dates in
# UTC, `bytea_output` hex), or both are converted to numbers. Only the texts of arrays and hstore are parsed.

ESCAPED = "__escaped"
#: The entry of ESCAPED that names the columns which were not sent.
UNSENT = "unchanged TOAST"
# Possessive, because re keeps backtracking state for each character otherwise.
_QUOTED = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_ELEMENT = re.compile(rf'{_QUOTED}|([^",{{}}]+)', re.DOTALL)
_double = struct.Struct("<d").pack
_U64 = struct.Struct("<Q")
#: The bits of a double that are zero halfway between two adjacent reals.
_BELOW_HALFWAY = (1 << 28) - 1
_PAIR = re.compile(f"{_QUOTED}=>(?:{_QUOTED}|NULL)", re.DOTALL)


def differing(
    schema: RowSchema, row: Mapping[str, Any], texts: Mapping[str, str | None], unsent: Sequence[str] = ()
) -> list[str]:
    """Return the columns in which a decoded row differs from PostgreSQL's texts."""
    escaped = row.get(ESCAPED) or {}
    wrong = []
    checked = set()
    for field, (column, kind) in schema.columns.items():
        if field == ESCAPED:
            # A table's column of this name has a different name in Avro.
            continue
        if column not in texts:
            if column not in unsent:
                wrong.append(column)
            continue
        checked.add(column)
        if field in escaped:
            if row.get(field) is not None or escaped[field] != texts[column]:
                wrong.append(column)
        elif not says(row.get(field), texts[column], kind):
            wrong.append(column)
    if len(checked) < len(texts):
        wrong += sorted(set(texts) - checked)
    return wrong + sorted(set(escaped) - {*schema.columns, UNSENT}) if escaped else wrong


def no_text(raw: bytes) -> str:
    r"""Return ``\x``, the bytes in hexadecimal, and a zero byte, which PostgreSQL's text never contains.

    A message's key has them in the same form.
    """
    return f"\\x{raw.hex()}\0"


def of_json(text: str) -> str:
    """Return a text, or `no_text` of the bytes that lone surrogates represent in JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:
        with contextlib.suppress(UnicodeEncodeError):
            return no_text(text.encode("utf-8", "surrogateescape"))
    return text


def says(value: Any, text: str | None, kind: str = "") -> bool:
    """Return whether PostgreSQL writes ``value`` as ``text``; ``kind`` is the column's type, if known."""
    if type(value) is str:
        # The recording does not mark bytes that are not text.
        return value.removesuffix("\0") == text
    if value is None or text is None:
        return value is None and text is None
    if isinstance(value, list):
        parts = elements(text, ";" if kind.startswith("box") else ",")
        if parts is None or len(parts) != len(value):
            return False
        return all(says(one, part, kind.removesuffix("[]")) for one, part in zip(value, parts, strict=True))
    if isinstance(value, dict):
        return value == {plain(key): None if item is None else plain(item) for key, item in pairs(text)}
    if isinstance(value, float):
        return _same_float(value, text, "real" in kind or "float4" in kind)
    if isinstance(value, Decimal) and kind.startswith("money"):
        return format(value, "f") == text.replace("$", "").replace(",", "")
    return written(value) == text


def written(value: Any) -> str | None:
    """Return a value as PostgreSQL writes it, or None for a type that Avro never returns."""
    write = _WRITTEN.get(type(value))
    return None if write is None else write(value)


def _same_float(value: float, text: str, is_single: bool) -> bool:
    try:
        number = real(text) if is_single else float(text)
    except (ValueError, OverflowError):
        return False
    if number != number or value != value:
        return number != number and value != value
    return _double(number) == _double(value)


def real(text: str) -> float:
    """Return the real that PostgreSQL parses from a text.

    This rounds the double nearest to the text, unless that may lie halfway between two reals: then the exact
    value of the text decides. Raises ValueError, or OverflowError beyond the range of real.
    """
    number = float(text)
    nearest, bits = struct.unpack("<fI", struct.pack("<f", number) * 2)
    if nearest == number or not math.isfinite(number) or _U64.unpack(_double(number))[0] & _BELOW_HALFWAY:
        return float(nearest)
    exact = Fraction(text)
    around = struct.unpack("<ff", struct.pack("<II", max(bits - 1, 0), bits + 1))
    nearest = min((nearest, *filter(math.isfinite, around)), key=lambda one: abs(Fraction(one) - exact))
    return float(nearest)


def _timestamp(value: datetime.datetime) -> str:
    if value.tzinfo is None:
        return _without_zeros(value.isoformat(" "))
    return _without_zeros(value.astimezone(datetime.UTC).replace(tzinfo=None).isoformat(" ")) + "+00"


def _time(value: datetime.time) -> str:
    return _without_zeros(value.isoformat())


def _without_zeros(moment: str) -> str:
    """Return Python's text of a moment, with a fraction of six digits or none, as PostgreSQL writes it."""
    return moment.rstrip("0") if "." in moment else moment


#: Exactly the types that fastavro returns.
_WRITTEN: dict[type, Callable[[Any], str]] = {
    str: str,
    bool: lambda value: "t" if value else "f",
    int: str,
    Decimal: lambda value: format(value, "f"),
    bytes: lambda value: "\\x" + value.hex(),
    datetime.datetime: _timestamp,
    datetime.date: datetime.date.isoformat,
    datetime.time: _time,
    UUID: str,
}


def plain(text: str) -> str:
    """Return a quoted text without its backslashes, which precede only quotes and backslashes."""
    return text.replace('\\"', '"').replace("\\\\", "\\")


def elements(text: str, delimiter: str = ",") -> list[str | None] | None:
    """Return the elements of a one-dimensional array's text, or None if it is not one."""
    if len(text) < 2 or text[0] != "{" or text[-1] != "}":
        return None
    if delimiter != ",":
        # Only PostgreSQL's own type box has a different delimiter: nothing in it is quoted.
        body = text[1:-1]
        return [None if part == "NULL" else part for part in body.split(delimiter)] if body else []
    parsed: list[str | None] = []
    for match in _ELEMENT.finditer(text, 1, len(text) - 1):
        quoted, bare = match.groups()
        if quoted is not None:
            parsed.append(plain(quoted))
        else:
            parsed.append(None if bare == "NULL" else bare)
    return parsed


def pairs(text: str) -> list[tuple[str, str | None]]:
    """Return the pairs of an hstore's text, with their backslashes."""
    return [(match[1], match[2]) for match in _PAIR.finditer(text)]


def parse_row(text: str | None) -> dict[str, str | None]:
    """Return the texts of a row as the sealed recording stores them."""
    return {} if text is None else json.loads(text)


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
