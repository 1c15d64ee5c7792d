"""Frames and lines of COPY out of a database's own encoding into UTF-8, before anything else reads them.

PostgreSQL sends the bytes as it holds them: a value that it is asked to convert, and can't, ends the stream.
A value without an exact UTF-8 becomes a field in binary form: of kind ``b`` in a message, and in a line of
COPY ``\\x`` and hexadecimal digits, as which COPY writes no text. So `bwtui.pgoutput.tuples` and
`bwtui.pgoutput.copy_text` give it as `Binary`, whether the stream is read or a recording of it.

Every encoding that a server may have keeps ASCII for ASCII alone (PostgreSQL documentation, "Character Set
Support"), so what separates fields can't be a part of a character.
"""

import struct
from collections.abc import Callable

from bwtui.pgoutput.copy_text import HEX, NULL, unescape
from bwtui.pgoutput.messages import Field, UnchangedToast
from bwtui.pgoutput.tuples import DecodeError, split_tuple

#: From the database's bytes to UTF-8, or None where that can't be done, or not be undone.
Decode = Callable[[bytes], bytes | None]

_count = struct.Struct(">H").pack
_length = struct.Struct(">cI").pack

#: The tag and the relation's oid, before the row or rows.
_ROW = 5
_ROWS = frozenset(b"IUD")
#: Of other messages with names: how many bytes stand before them, and how many names.
_NAMES = {ord("R"): (5, 2), ord("Y"): (5, 2), ord("O"): (9, 1), ord("M"): (10, 1)}
#: Of a RELATION: the replica identity and the number of columns; a column's flag; its type and modifier.
_RELATION, _FLAG, _TYPE = 3, 1, 8
#: No UTF-8 begins like this, so that the decoder refuses the name.
_NO_NAME = b"\xff"


class Transcoder:
    """Converts what one database sends."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode

    def message(self, payload: bytes) -> bytes:
        """Return a message of pgoutput in UTF-8; one that is malformed, as it is."""
        tag = payload[0] if payload else 0
        try:
            if tag in _ROWS:
                return payload if payload[_ROW:].isascii() else self._rows(payload)
            if tag in _NAMES:
                return self._names(payload, *_NAMES[tag], columns=tag == ord("R"))
        except (DecodeError, IndexError, ValueError):
            # What reads it says what is wrong.
            pass
        return payload

    def line(self, line: bytes) -> bytes:
        """Return a row in COPY's text format in UTF-8."""
        whole = line if line.isascii() else self._decode(line)
        if whole is not None:
            return whole
        end = b"\n" if line.endswith(b"\n") else b""
        fields = line.removesuffix(b"\n").split(b"\t")
        return b"\t".join(map(self._copied, fields)) + end

    def _copied(self, field: bytes) -> bytes:
        if field == NULL or (text := self._decode(field)) is None:
            raw = unescape(field)
            return field if raw is None else HEX + raw.hex().encode()
        return text

    def _rows(self, payload: bytes) -> bytes:
        parts, offset = [payload[:_ROW]], _ROW
        while offset < len(payload):
            kind = payload[offset : offset + 1]
            fields, offset = split_tuple(payload, offset + 1)
            parts += (kind, _count(len(fields)), *map(self._field, fields))
        return b"".join(parts)

    def _field(self, field: Field) -> bytes:
        if field is None:
            return b"n"
        if isinstance(field, UnchangedToast):
            return b"u"
        text = self._decode(field)
        return _length(b"b", len(field)) + field if text is None else _length(b"t", len(text)) + text

    def _names(self, payload: bytes, start: int, count: int, *, columns: bool) -> bytes:
        parts, offset = [payload[:start]], start
        for _ in range(count):
            name, offset = self._name(payload, offset)
            parts.append(name)
        if columns:
            parts.append(payload[offset : offset + _RELATION])
            offset += _RELATION
            while offset < len(payload):
                flag = payload[offset : offset + _FLAG]
                name, offset = self._name(payload, offset + _FLAG)
                parts += (flag, name, payload[offset : offset + _TYPE])
                offset += _TYPE
        return b"".join((*parts, payload[offset:]))

    def _name(self, payload: bytes, offset: int) -> tuple[bytes, int]:
        end = payload.index(b"\0", offset)
        raw = payload[offset:end]
        text = self._decode(raw)
        return (_NO_NAME + raw if text is None else text) + b"\0", end + 1
