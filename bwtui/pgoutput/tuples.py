"""Rows out of a message: TupleData of "Logical Replication Message Formats".

``split_tuple`` reads any row and checks every byte; ``splitter`` makes the fast reader of rows with a known
number of columns, which falls back to ``split_tuple`` for whatever is not plain.
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

#: The head of a text below 64 KiB; the low half of its length follows, then the text.
TEXT_HEAD = b"t\0\0"
#: The length of the shortest text whose own head holds `TEXT_HEAD` somewhere else: 00 74 00 00.
MISLEADING = 0x740000
# Widths of rows whose readers are kept; that of 1,600 columns has 760 KB.
_WIDTHS = 128


#: Bytes that PostgreSQL did not write so.
_NOT_PGOUTPUT = "nothing was confirmed of it: start again; if it repeats, report it with the server's version"


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
        raise DecodeError(f"{len(payload) - end} bytes behind the row", end)
    return fields


Split = Callable[[bytes, int], list[Field]]


@lru_cache(maxsize=_WIDTHS)
def splitter(columns: int) -> Split:
    """Return a fast ``last_tuple`` for rows of ``columns`` columns; any other row is read too, just slower.

    PostgreSQL's text forms never hold a zero byte, so in a row shorter than `MISLEADING` ``t``, 0, 0 can only
    be the head of a text shorter than 64 KiB, or chance in the message's head. One ``bytes.split`` therefore
    finds every column at once. The number of pieces proves that no column was NULL, unchanged, or longer. In
    a longer row the head of a text of 0x740000 bytes would count for the one that it lacks. The lengths
    themselves are not compared: a row whose lengths contradict its own bytes is the one thing that only
    ``last_tuple`` refuses. Binary columns hold any bytes, and the relay never asks for them.
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
    """Return the splitter of rows with NULLs or unchanged values: column by column, unrolled."""
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
    """Compile a function ``split``; its source is made of numbers alone."""
    scope["last_tuple"] = last_tuple
    exec("\n".join(lines), scope)
    # Out of what it refers to, or it refers to itself, and is never freed.
    split: Split = scope.pop("split")
    return split
