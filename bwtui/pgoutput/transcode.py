"""Convert frames and lines of COPY from the database's encoding to UTF-8, before anything else reads them.

PostgreSQL sends the stored bytes: if it were asked to convert them, a value that it can't convert would end
the stream. A value without an exact UTF-8 equivalent becomes a field in binary form: of kind ``b`` in a
message, and in a line of COPY ``\\x`` with hexadecimal digits, which COPY writes for no text. So
`bwtui.pgoutput.tuples` and `bwtui.pgoutput.copy_text` return it as `Binary`, from the stream and from a
recording of it.

Every possible server encoding uses ASCII bytes only for ASCII characters (PostgreSQL documentation,
"Character Set Support"), so a field separator can't be part of a character.
"""

import struct
from collections.abc import Callable

from bwtui.pgoutput.copy_text import HEX, NULL, unescape
from bwtui.pgoutput.messages import Field, UnchangedToast
from bwtui.pgoutput.tuples import DecodeError, split_tuple

#: Converts the database's bytes to UTF-8; None if that is impossible, or not reversible.
Decode = Callable[[bytes], bytes | None]

_count = struct.Struct(">H").pack
_length = struct.Struct(">cI").pack

#: Length of the tag and the relation's oid, before the row or rows.
_ROW = 5
_ROWS = frozenset(b"IUD")
#: For other messages with names: number of bytes before the names, and number of names.
_NAMES = {ord("R"): (5, 2), ord("Y"): (5, 2), ord("O"): (9, 1), ord("M"): (10, 1)}
#: Sizes in a RELATION: replica identity and number of columns; a column's flag; its type and modifier.
_RELATION, _FLAG, _TYPE = 3, 1, 8
#: Not a valid beginning in UTF-8, so that the decoder rejects the name.
_NO_NAME = b"\xff"


class Transcoder:
    """Converts the frames and lines of one database."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode

    def message(self, payload: bytes) -> bytes:
        """Return a pgoutput message in UTF-8; a malformed one is returned unchanged."""
        tag = payload[0] if payload else 0
        try:
            if tag in _ROWS:
                return payload if payload[_ROW:].isascii() else self._rows(payload)
            if tag in _NAMES:
                return self._names(payload, *_NAMES[tag], columns=tag == ord("R"))
        except (DecodeError, IndexError, ValueError):
            # The decoder reports what is wrong.
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
