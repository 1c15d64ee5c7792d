"""Decode many rows at once: Avro messages under one schema, as an array for each column.

`bwtui.audit.canonical_values` decodes any row, one at a time. This module decodes only plain messages, with
array operations over all messages of a batch, at a hundredth of the cost. For each message it reports whether
every byte was understood, and fastavro would have decoded the same; any other message is undecided and must
be decoded on its own. It imports nothing from the code that wrote the messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bwtui.audit.canonical_values import ESCAPED, RowSchema

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

_HEAD = 5
#: Bytes after a message that a field may read before the check: ten of a varint, eight of a word.
_REACH = 24
_STOPS, _ONES = np.uint64(0x8080808080808080), np.uint64(0x0101010101010101)
_ONE, _56 = np.uint64(1), np.uint64(56)
#: How the groups of seven bits of a varint are joined: shift, bits that stay, bits that move.
_GROUPS = [
    (np.uint64(1), np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00)),
    (np.uint64(2), np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000)),
    (np.uint64(4), np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000)),
]
#: The range of Python's calendar, in days and microseconds since 1970: fastavro can't decode values beyond
#: it.
_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_LIMITS = {
    "date": _DAYS,
    "time": (0, 86_399_999_999),
    "timestamp": _MICROSECONDS,
    "timestamptz": _MICROSECONDS,
}
_LOGICAL = {
    ("int", "date"): "date",
    ("long", "time-micros"): "time",
    ("long", "timestamp-micros"): "timestamptz",
    ("long", "local-timestamp-micros"): "timestamp",
    ("string", "uuid"): "uuid",
    ("bytes", "decimal"): "decimal",
}
_PLAIN = {"int": "long"} | {name: name for name in ("long", "float", "double", "boolean", "string", "bytes")}


@dataclass(frozen=True, slots=True)
class PlainField:
    """A field of a schema, if it is plain."""

    column: str
    #: "long", "float", "double", "boolean", "string", "bytes", "decimal", "date", "time", "timestamp",
    #: "timestamptz", "uuid"; "" is the escape field, which is null in a plain row.
    kind: str
    #: The indexes of null and of the value in its union; None if it is not a union.
    branches: tuple[int, int] | None
    scale: int = 0


@dataclass(frozen=True, slots=True)
class DecodedColumn:
    """One field of all messages; the values of messages that are not plain are undefined."""

    field: PlainField
    is_null: Bool
    #: Numbers: unscaled for decimals, days for dates, microseconds for times.
    numbers: NDArray[Any] | None = None
    #: Texts, bytes and UUIDs: their start in the batch's bytes, and their length.
    starts: Int64 | None = None
    lengths: Int64 | None = None


@dataclass(frozen=True, slots=True)
class MessageBuffer:
    """The keys or values of a batch, concatenated and followed by zeros."""

    data: NDArray[np.uint8]
    starts: Int64
    ends: Int64

    @classmethod
    def of(cls, messages: Sequence[bytes], reach: int = 0) -> "MessageBuffer":
        """Concatenate messages; ``reach`` is the number of fields in a schema."""
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        ends = np.cumsum(lengths)
        data = np.frombuffer(b"".join([*messages, bytes(_REACH * (reach + 2))]), np.uint8)
        return cls(data, ends - lengths, ends)

    def schema_ids(self) -> Int64:
        """Return the schema ID that each message begins with, or -1."""
        head = [self.data[self.starts + at].astype(np.int64) for at in range(_HEAD)]
        number = (head[1] << 24) | (head[2] << 16) | (head[3] << 8) | head[4]
        return np.where((head[0] == 0) & (self.ends - self.starts >= _HEAD), number, -1)

    def some(self, chosen: Int64) -> "MessageBuffer":
        """Return the messages at the indexes ``chosen``, sharing the bytes."""
        return MessageBuffer(self.data, self.starts[chosen], self.ends[chosen])


def fields_of(schema: RowSchema) -> list[PlainField] | None:
    """Return a schema's fields in order, or None if it has one that can't be decoded here."""
    fields = schema.parsed.get("fields") if isinstance(schema.parsed, Mapping) else None
    plain = [_field(one, schema.columns[one["name"]][0]) for one in fields or ()]
    return [one for one in plain if one is not None] if plain and None not in plain else None


def _field(field: Mapping[str, Any], column: str) -> PlainField | None:
    branches, avro = None, field["type"]
    if isinstance(avro, list):
        if len(avro) != 2 or avro.count("null") != 1:
            return None
        null = avro.index("null")
        branches, avro = (null, 1 - null), avro[1 - null]
    if field["name"] == ESCAPED:
        return None if branches is None else PlainField(column, "", branches)
    if not isinstance(avro, Mapping):
        kind = _PLAIN.get(avro)
    elif "logicalType" in avro:
        kind = _LOGICAL.get((avro["type"], avro["logicalType"]))
    else:
        kind = _PLAIN.get(avro["type"]) if isinstance(avro["type"], str) else None
    scale = int(avro.get("scale", 0)) if isinstance(avro, Mapping) else 0
    return None if kind is None else PlainField(column, kind, branches, scale)


def read(fields: Sequence[PlainField], messages: MessageBuffer) -> tuple[list[DecodedColumn], Bool, Bool]:
    """Return the columns, which messages are plain, and which have only varints of minimal length."""
    reader = _ColumnDecoder(messages)
    columns = [reader.column(field) for field in fields]
    reader.is_plain &= reader.at == messages.ends
    return columns, reader.is_plain, reader.is_short


class _ColumnDecoder:
    """Decodes all messages of a batch in parallel, field by field."""

    def __init__(self, messages: MessageBuffer) -> None:
        self._data = messages.data
        # The eight bytes that begin at each byte.
        self._words: NDArray[np.uint64] = np.ndarray(
            (len(self._data) - 7,), np.dtype("<u8"), self._data, strides=(1,)
        )
        self._ends = messages.ends
        self.at = messages.starts + _HEAD
        self.is_plain = messages.ends >= self.at
        self.is_short = np.ones(len(self.at), np.bool_)

    def column(self, field: PlainField) -> DecodedColumn:
        """Decode a field of all messages."""
        is_null = self._branch(field)
        if not field.kind:
            self.is_plain &= is_null
            return DecodedColumn(field, is_null)
        if field.kind in ("string", "bytes", "uuid", "decimal"):
            lengths = self._varints(is_null)
            fits = (lengths >= 0) & (lengths <= self._ends - self.at)
            self.is_plain &= fits
            lengths, starts = np.where(fits, lengths, 0), self.at
            self.at = starts + lengths
            if field.kind != "decimal":
                return DecodedColumn(field, is_null, starts=starts, lengths=lengths)
            return DecodedColumn(field, is_null, self._unscaled(starts, lengths, is_null))
        return DecodedColumn(field, is_null, self._numbers(field.kind, is_null))

    def _branch(self, field: PlainField) -> Bool:
        if field.branches is None:
            return np.zeros(len(self.at), np.bool_)
        branch = self._data[self.at]
        self.at = self.at + 1
        is_null: Bool = branch == field.branches[0] << 1
        self.is_plain &= is_null | (branch == field.branches[1] << 1)
        return is_null

    def _numbers(self, kind: str, is_null: Bool) -> NDArray[Any]:
        if kind in ("float", "double", "boolean"):
            size = {"float": 4, "double": 8, "boolean": 1}[kind]
            word = self._words[self.at]
            self.at = self.at + np.where(is_null, 0, size)
            if kind == "double":
                return word.view(np.float64)
            if kind == "float":
                return word.astype(np.uint32).view(np.float32)
            flag = word.astype(np.uint8)
            self.is_plain &= is_null | (flag <= 1)
            return flag
        numbers = self._varints(is_null)
        if kind in _LIMITS:
            low, high = _LIMITS[kind]
            self.is_plain &= is_null | ((numbers >= low) & (numbers <= high))
        return numbers

    def _unscaled(self, starts: Int64, lengths: Int64, is_null: Bool) -> Int64:
        self.is_plain &= is_null | ((lengths >= 1) & (lengths <= 8))
        word = self._words[starts].byteswap().view(np.int64)
        return word >> (64 - 8 * np.clip(lengths, 1, 8))

    def _varints(self, is_null: Bool) -> Int64:
        """Return the numbers at the current positions, zero for null, and advance the positions."""
        word = self._words[self.at]
        stops = ~word & _STOPS
        stop = stops & (~stops + _ONE)
        # If a number has more than eight bytes, all eight are taken here.
        used = stop | (stop - _ONE)
        lengths = (((used & _ONES) * _ONES) >> _56).astype(np.int64)
        word &= used
        self.is_short &= is_null | (lengths == 1) | (word >> ((lengths - 1) << 3).astype(np.uint64) != 0)
        word &= ~_STOPS
        for shift, stay, move in _GROUPS:
            word = (word & stay) | ((word & move) >> shift)
        long = np.flatnonzero((stop == 0) & ~is_null)
        if len(long):
            self._lengthen(long, word, lengths)
        numbers = (word >> _ONE).view(np.int64) ^ -(word & _ONE).view(np.int64)
        if is_null.any():
            numbers, lengths = np.where(is_null, 0, numbers), np.where(is_null, 0, lengths)
        self.at = self.at + lengths
        return numbers

    def _lengthen(self, long: Int64, word: NDArray[np.uint64], lengths: Int64) -> None:
        """Add the ninth and tenth byte of numbers that have them."""
        ninth, tenth = (self._data[self.at[long] + at].astype(np.uint64) for at in (8, 9))
        continues = ninth >= 0x80
        self.is_plain[long] &= ~continues | (tenth <= 1)
        last = np.where(continues, tenth, ninth)
        self.is_short[long] &= last != 0
        word[long] |= (ninth & np.uint64(0x7F)) << _56
        word[long] |= np.where(continues, tenth << np.uint64(63), np.uint64(0))
        lengths[long] = 9 + continues
