"""Encode rows to JSON (``-f json``): the key as an object of the key's columns, the value of all columns.

Values are exact where JSON is: numbers for integers and finite floats, true and false. Everything else is a
string with PostgreSQL's text form: numeric, NaN and infinity, since a JSON reader would round or reject them,
and json and jsonb, whose numbers are numerics and whose null is not a NULL. Bytes that are not text become
lone surrogates, ``\\udc80`` to ``\\udcff``. Object keys are the columns' own names. The placeholder for an
unchanged TOAST value is the object ``{"unchanged TOAST": true}``.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring

from bwtui.encode.avro import NOT_TEXT, EncodeError, UnchangedToastError
from bwtui.encode.lines import EncodedLines, encode_lines
from bwtui.encode.names import UNCHANGED_KEY
from bwtui.pgoutput.messages import Field, Relation, UnchangedToast
from bwtui.types.registry import TypeInfo
from bwtui.types.strings import char_text

_NOT_NUMBERS = frozenset((b"NaN", b"Infinity", b"-Infinity"))

_PLACEHOLDER = json.dumps({UNCHANGED_KEY: True}).encode()

#: Maximum bytes of messages to encode in one call: with its columns' names a row may be twenty times the size
#: of its line.
_ENOUGH = 2 << 20

Convert = Callable[[bytes], bytes]


def _string(text: bytes) -> bytes:
    try:
        return encode_basestring(text.decode()).encode()
    except UnicodeDecodeError:
        return json.dumps(text.decode("utf-8", "surrogateescape")).encode()


def _float(text: bytes) -> bytes:
    if text in _NOT_NUMBERS:
        return _string(text)
    # Without a point, many readers take it for an integer, whose zero has no sign.
    return b"-0.0" if text == b"-0" else text


# By oid (pg_type.dat): integers and oid, floats, bool, "char", money without its symbols.
_CONVERT: Mapping[int, Convert] = {
    **dict.fromkeys((20, 21, 23, 26), lambda text: text),
    **dict.fromkeys((700, 701), _float),
    16: lambda text: b"true" if text == b"t" else b"false",
    18: lambda text: _string(char_text(text)),
    790: lambda text: _string(text.translate(None, b"$,")),
}


class JsonEncoder:
    """The encoder of one table, with the same functions as `bwtui.encode.avro.BoundEncoder`."""

    run = lacking = None

    def __init__(
        self, relation: Relation, key_columns: Sequence[str], catalog: Mapping[int, TypeInfo]
    ) -> None:
        """``catalog`` resolves domains, which are encoded like their base type."""
        self._columns = [
            (
                column.name,
                encode_basestring(column.name).encode() + b": ",
                _converter(column.type_oid, catalog),
            )
            for column in relation.columns
        ]
        self._keys = [index for index, column in enumerate(relation.columns) if column.name in key_columns]

    def key(self, fields: Sequence[Field]) -> bytes | None:
        """Return the key's object, or None for a table without a key. Raises EncodeError."""
        return self._encode(fields, self._keys) if self._keys else None

    def both(self, fields: Sequence[Field]) -> tuple[bytes | None, bytes]:
        """Return the key's and the row's objects. Raises EncodeError, or UnchangedToastError."""
        return self.key(fields), self._encode(fields, range(len(self._columns)))

    def lines(
        self, lines: list[bytes], timestamp: int, headers: list[tuple[str, bytes]] | None
    ) -> EncodedLines:
        """Return the messages of the lines of COPY, or of the first of them."""
        return encode_lines(self.both, lines, timestamp, headers, _ENOUGH)

    def both_filled(self, fields: Sequence[Field]) -> tuple[bytes | None, bytes]:
        """Return both objects of a row that has UNCHANGED only where a placeholder is wanted."""
        every = range(len(self._columns))
        return self.key(fields), self._encode(fields, every, placeholders=True)

    def _encode(self, fields: Sequence[Field], chosen: Sequence[int], placeholders: bool = False) -> bytes:
        parts = []
        for index in chosen:
            name, head, convert = self._columns[index]
            field = fields[index]
            if field is None:
                parts.append(head + b"null")
            elif isinstance(field, bytes):
                parts.append(head + convert(field))
            elif not isinstance(field, UnchangedToast):
                raise EncodeError(name, "not sent in text format", NOT_TEXT)
            elif placeholders:
                parts.append(head + _PLACEHOLDER)
            else:
                raise UnchangedToastError(name)
        return b"{" + b", ".join(parts) + b"}"


def _converter(oid: int, catalog: Mapping[int, TypeInfo]) -> Convert:
    info = catalog.get(oid)
    while info is not None and info.kind == "d":
        oid = info.base_oid
        info = catalog.get(oid)
    return _CONVERT.get(oid, _string)
