"""Split rows of a message into fields: TupleData of "Logical Replication Message Formats".

``split_tuple`` reads any row and checks every byte; ``splitter`` creates a fast reader for rows with a known
number of columns, which uses ``split_tuple`` for anything special.
"""

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from bwtui.errors import BwtuiError
from bwtui.pgoutput.messages import UNCHANGED, Binary, Field

_count = struct.Struct(">H").unpack_from
_kind_and_length = struct.Struct(">BI").unpack_from

_NULL, _UNCHANGED, _TEXT, _BINARY = b"nutb"

# MaxHeapAttributeNumber in PostgreSQL's sources.
_MOST_COLUMNS = 1600

#: The header of a text below 64 KiB; the low half of its length follows, then the text.
TEXT_HEAD = b"t\0\0"
#: Length of the shortest text whose own header contains `TEXT_HEAD` at a different offset: 00 74 00 00.
MISLEADING = 0x740000
# Number of row widths whose readers are cached; a reader of 1,600 columns takes 760 KB.
_WIDTHS = 128


#: Hint for bytes that PostgreSQL would not have written.
_NOT_PGOUTPUT = (
    "start again: the message was not confirmed; if this repeats, report it with the server's version"
)


class DecodeError(BwtuiError):
    """The bytes are not a message of the replication protocol."""

    def __init__(self, reason: str, offset: int, hint: str = _NOT_PGOUTPUT) -> None:
        super().__init__(f"malformed replication message at byte {offset}: {reason}", hint)
        self.reason = reason
        self.offset = offset


def split_tuple(payload: bytes, offset: int) -> tuple[list[Field], int]:
    """Return the fields of the row at ``offset``, and the offset after it. Raises DecodeError."""
    size = len(payload)
    if offset + 2 > size:
        raise DecodeError("the row's number of columns is cut off", offset)
    (columns,) = _count(payload, offset)
    offset += 2
    fields: list[Field] = []
    for _ in range(columns):
        if offset >= size:
            raise DecodeError(f"the row ends after {len(fields)} of {columns} columns", offset)
        kind = payload[offset]
        if kind == _NULL:
            fields.append(None)
            offset += 1
        elif kind == _UNCHANGED:
            fields.append(UNCHANGED)
            offset += 1
        elif kind in (_TEXT, _BINARY):
            field, offset = _read_value(payload, offset, size)
            fields.append(Binary(field) if kind == _BINARY else field)
        else:
            raise DecodeError(f"unknown kind of column 0x{kind:02x}", offset)
    return fields, offset


def _read_value(payload: bytes, offset: int, size: int) -> tuple[bytes, int]:
    if offset + 5 > size:
        raise DecodeError("a column's length is cut off", offset)
    _, length = _kind_and_length(payload, offset)
    end = offset + 5 + length
    if end > size:
        raise DecodeError(f"a column of {length} bytes runs past the end of the message", offset)
    return payload[offset + 5 : end], end


def last_tuple(payload: bytes, offset: int) -> list[Field]:
    """Return the fields of the row that fills ``payload`` from ``offset`` to its end. Raises DecodeError."""
    fields, end = split_tuple(payload, offset)
    if end != len(payload):
        raise DecodeError(f"{len(payload) - end} bytes after the end of the row", end)
    return fields


Split = Callable[[bytes, int], list[Field]]


@lru_cache(maxsize=_WIDTHS)
def splitter(columns: int) -> Split:
    """Return a fast ``last_tuple`` for rows of ``columns`` columns; it reads all other rows too, but slower.

    PostgreSQL's text forms never contain a zero byte, so in a row shorter than `MISLEADING` the bytes ``t``,
    0, 0 can only be the header of a text shorter than 64 KiB, or a coincidence in the message's header. So
    one ``bytes.split`` finds every column at once. The number of pieces proves that no column was NULL,
    unchanged, or longer. In a longer row, the header of a text of 0x740000 bytes could make up for a missing
    one. The lengths themselves are not compared: only ``last_tuple`` rejects a row whose lengths contradict
    its bytes. Binary columns contain any bytes, but the relay never requests them.
    """
    if not 1 <= columns <= _MOST_COLUMNS:
        return last_tuple
    names = [f"p{i}" for i in range(columns)]
    lines = (
        "def split(payload, offset):",
        "    pieces = payload.split(HEAD)",
        f"    if len(pieces) == {columns + 1}:",
        f"        head, {', '.join(names)} = pieces",
        f"        if len(head) == offset + 2 and len(payload) < {MISLEADING}:",
        f"            return [{', '.join(f'{name}[2:]' for name in names)}]",
        f"    return nulls({columns})(payload, offset)",
    )
    return _compile(lines, {"HEAD": TEXT_HEAD, "nulls": partial_splitter})


@lru_cache(maxsize=_WIDTHS)
def partial_splitter(columns: int) -> Split:
    """Return a splitter for rows with NULLs or unchanged values: column by column, unrolled."""
    if not 1 <= columns <= _MOST_COLUMNS:
        return last_tuple
    lines = ["def split(payload, start):", "    try:", f"        if count(payload, start) == ({columns},):"]
    lines.append("            offset = start + 2")
    for i in range(columns):
        lines += (
            "            kind = payload[offset]",
            "            if kind == 116:",
            "                end = offset + 5 + head(payload, offset)[1]",
            f"                f{i} = payload[offset + 5:end]; offset = end",
            f"            elif kind == 110: f{i} = None; offset += 1",
            f"            elif kind == 117: f{i} = UNCHANGED; offset += 1",
            "            else: return last_tuple(payload, start)",
        )
    lines += (
        "            if offset == len(payload):",
        f"                return [{', '.join(f'f{i}' for i in range(columns))}]",
        "    except cut_off: pass",
        "    return last_tuple(payload, start)",
    )
    cut_off = IndexError, struct.error
    scope = {"count": _count, "head": _kind_and_length, "cut_off": cut_off, "UNCHANGED": UNCHANGED}
    return _compile(lines, scope)


def _compile(lines: Iterable[str], scope: dict[str, Any]) -> Split:
    """Compile a function ``split``; the only variable parts of its source are numbers."""
    scope["last_tuple"] = last_tuple
    exec("\n".join(lines), scope)
    # Remove it from its own globals: the reference cycle would never be freed.
    split: Split = scope.pop("split")
    return split
