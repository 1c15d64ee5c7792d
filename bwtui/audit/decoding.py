"""Decode messages by fastavro under the schema that they name, independently of the code that wrote them."""

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro

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
