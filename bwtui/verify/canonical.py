"""Digest rows so that PostgreSQL and decoded messages give the same result.

A digest is the MD5 of the output of PostgreSQL's ``record_send`` for a record with these fields: a bit mask
of the null columns among those of fixed width; these columns, with zeros for null; and then the columns of
variable width. Each field has its type and its length, so two records with the same bytes have the same
values, bit for bit: -0 is not 0, and 1.0 is not 1.00. PostgreSQL writes these bytes for its own values; for
messages, this module builds them from the result of `bwtui.audit.column_decoder`.

The probability that two different rows have the same digest is 2⁻¹²⁸, and no attacker chooses the rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bwtui.audit.column_decoder import Bool, DecodedColumn, Int64, MessageBuffer, PlainField
from bwtui.model.sql import quote_identifier
from bwtui.types.registry import TypeInfo

#: Number of partitions of the digests, each of which can be compared separately.
PARTS = 64

_HEXADECIMAL = np.full(256, 16, np.uint8)
_HEXADECIMAL[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_HYPHENS = [8, 13, 18, 23]
_DIGITS = [at for at in range(36) if at not in _HYPHENS]
#: Days and microseconds from 1970, Avro's epoch, to 2000, PostgreSQL's.
_EPOCH_DAYS, _EPOCH_MICROSECONDS = 10_957, 946_684_800_000_000
_BITS = 31
_INT4 = 23
_WRITTEN = "case when {0} is distinct from null then pg_catalog.concat({0}) end"


class _DigestType(NamedTuple):
    """How columns of some types are written: the PostgreSQL type, and None for a variable width."""

    oid: int
    dtype: str | None
    #: SQL for a value, with ``{}`` for the column, and SQL for the placeholder of null.
    sql: str
    zero: str
    #: Kinds of Avro fields that have exactly these values.
    exact_kinds: tuple[str, ...]


_KINDS = {
    "boolean": _DigestType(16, "u1", "{}::pg_catalog.bool", "false", ("boolean",)),
    "long": _DigestType(20, ">i8", "{}::pg_catalog.int8", "0", ("long",)),
    "float": _DigestType(700, ">f4", "{}::pg_catalog.float4", "0", ("float",)),
    "double": _DigestType(701, ">f8", "{}::pg_catalog.float8", "0", ("double",)),
    "date": _DigestType(1082, ">i4", "{}::pg_catalog.date", "'2000-01-01'", ("date",)),
    "time": _DigestType(1083, ">i8", "{}::pg_catalog.time", "'00:00'", ("time",)),
    "timestamp": _DigestType(1114, ">i8", "{}::pg_catalog.timestamp", "'2000-01-01'", ("timestamp",)),
    "timestamptz": _DigestType(1184, ">i8", "{}::pg_catalog.timestamptz", "'2000-01-01Z'", ("timestamptz",)),
    "money": _DigestType(790, ">i8", "{}::pg_catalog.money", "'0'", ("decimal",)),
    "uuid": _DigestType(2950, "V16", "{}::pg_catalog.uuid", f"'{UUID(int=0)}'", ("uuid",)),
    "bytes": _DigestType(17, None, "{}::pg_catalog.bytea", "", ("bytes",)),
    "text": _DigestType(25, None, "{}::pg_catalog.text", "", ("string", "decimal")),
    # concat writes a value as the stream does; see `bwtui.verify.tables`.
    "written": _DigestType(25, None, _WRITTEN, "", ("string", "decimal")),
}  # fmt: skip
_BY_OID = {
    16: "boolean", 17: "bytes", 20: "long", 21: "long", 23: "long", 25: "text", 26: "long", 700: "float",
    701: "double", 790: "money", 1043: "text", 1082: "date", 1083: "time", 1114: "timestamp",
    1184: "timestamptz", 2950: "uuid",
}  # fmt: skip
#: Types that are sent as numbers, but that not every PostgreSQL version casts to numbers: xid, cid, xid8.
_NOT_NUMBERS = frozenset({28, 29, 5069})
#: Types that a key's field contains as text, unlike a row's field.
_TEXT_IN_KEYS = frozenset({"date", "time", "timestamp", "timestamptz"})


def base_of(oid: int, types: Mapping[int, TypeInfo]) -> int:
    """Return a domain's base type, through all levels; any other type is returned unchanged."""
    info = types.get(oid)
    while info is not None and info.kind == "d":
        oid = info.base_oid
        info = types.get(oid)
    return oid


def kind_of(oid: int, types: Mapping[int, TypeInfo], *, in_key: bool = False) -> str | None:
    """Return how a column is written, or None if a value can have more than one form.

    ``types`` is a result of `bwtui.source.catalog.load_types`.
    """
    oid = base_of(oid, types)
    info = types.get(oid)
    kind = _BY_OID.get(oid)
    if kind is not None:
        return "written" if in_key and kind in _TEXT_IN_KEYS else kind
    if (
        oid in _NOT_NUMBERS
        or info is None
        or info.name == "hstore"
        or (info.element_oid and info.kind == "b")
    ):
        return None
    return "written"


@dataclass(frozen=True, slots=True)
class DigestLayout:
    """The columns of a record that is digested, and how each is written."""

    fixed: tuple[tuple[str, _DigestType], ...]
    loose: tuple[tuple[str, _DigestType], ...]

    @classmethod
    def of(cls, kinds: Mapping[str, str]) -> "DigestLayout":
        """Return the layout for columns of these kinds."""
        every = [(name, _KINDS[kind]) for name, kind in kinds.items()]
        return cls(
            tuple(one for one in every if one[1].dtype is not None),
            tuple(one for one in every if one[1].dtype is None),
        )

    def sql(self) -> str:
        """Return SQL for the record's bytes, for a row of the table."""
        names = [(quote_identifier(name), kind) for name, kind in self.fixed]
        fields = [
            " + ".join(
                f"case when {name} is null then {1 << at} else 0 end" for at, (name, _) in enumerate(some)
            )
            for some in _gathered(names)
        ]
        fields += [f"coalesce({kind.sql.format(name)}, {kind.zero})" for name, kind in names]
        fields += [kind.sql.format(quote_identifier(name)) for name, kind in self.loose]
        return f"pg_catalog.record_send(row({', '.join(fields)}))"

    def takes(self, fields: Sequence[PlainField]) -> bool:
        """Return whether these fields contain the columns to digest; a column may lack its field."""
        by_column = {one.column: one for one in fields}
        for name, kind in (*self.fixed, *self.loose):
            field = by_column.get(name)
            if field is not None and field.kind not in kind.exact_kinds:
                return False
            if field is not None and field.kind == "decimal" and not _is_written(field, kind):
                return False
        return True

    def digests(
        self,
        hasher: duckdb.DuckDBPyConnection,
        columns: Sequence[DecodedColumn],
        messages: MessageBuffer,
        is_plain: Bool,
    ) -> NDArray[np.uint64]:
        """Return two words for each message; clear ``is_plain`` where a value can't be digested."""
        pieces = self._pieces(hasher, columns, messages, is_plain)
        names = [f"p{number}" for number in range(len(pieces))]
        hasher.register("pieces", pa.table(pieces, names))
        relation = hasher.sql(f"""
            select (d & 18446744073709551615)::ubigint as low, (d >> 64)::ubigint as high
              from (select md5_number({" || ".join(names)}) as d from pieces)""").to_arrow_table()
        hasher.unregister("pieces")
        return np.stack([relation.column(name).to_numpy() for name in ("low", "high")], axis=1)

    def _pieces(
        self,
        hasher: duckdb.DuckDBPyConnection,
        columns: Sequence[DecodedColumn],
        messages: MessageBuffer,
        is_plain: Bool,
    ) -> list[pa.Array]:
        count = len(messages.starts)
        by_column = {one.field.column: one for one in columns}
        values = [(by_column.get(name), kind) for name, kind in self.fixed]
        masks = [_mask([column for column, _ in some], count) for some in _gathered(values)]
        parts: list[tuple[int, str, NDArray[Any]]] = [(_INT4, ">i4", mask) for mask in masks]
        for column, kind in values:
            assert kind.dtype is not None
            numbers = (
                np.zeros(count, kind.dtype) if column is None else _number(column, kind, messages, is_plain)
            )
            parts.append((kind.oid, kind.dtype, numbers))
        texts = [_text(hasher, by_column.get(name), messages, count) for name, _ in self.loose]
        heads = [_head(kind.oid, lengths) for (_, kind), (lengths, _) in zip(self.loose, texts, strict=True)]
        first = _fixed(len(masks) + len(self.fixed) + len(self.loose), parts, heads[:1], count)
        pieces = [first]
        for number, (_, text) in enumerate(texts):
            pieces += [_blobs(heads[number])] if number else []
            pieces.append(text)
        return pieces


def _is_written(field: PlainField, kind: _DigestType) -> bool:
    # Money is a number of cents; DuckDB's decimals have at most 38 digits.
    return field.scale == 2 if kind is _KINDS["money"] else 0 <= field.scale <= 38


def _gathered(every: Sequence[Any]) -> list[Sequence[Any]]:
    return [every[at : at + _BITS] for at in range(0, len(every), _BITS)]


def _mask(columns: Sequence[DecodedColumn | None], count: int) -> NDArray[np.int32]:
    mask = np.zeros(count, np.int32)
    for at, column in enumerate(columns):
        mask |= np.int32(1 << at) if column is None else column.is_null.astype(np.int32) << at
    return mask


def _number(
    column: DecodedColumn, kind: _DigestType, messages: MessageBuffer, is_plain: Bool
) -> NDArray[Any]:
    """Return PostgreSQL's number for a column of a fixed width, zero where it is null."""
    if column.field.kind == "uuid":
        return _uuids(column, messages, is_plain)
    numbers = column.numbers
    assert numbers is not None
    if numbers.dtype.kind == "f":
        # NaN has many bit patterns, but is one value.
        is_plain &= ~np.isnan(numbers) | column.is_null
    if column.field.kind == "date":
        numbers = numbers - _EPOCH_DAYS
    elif column.field.kind in ("timestamp", "timestamptz"):
        numbers = numbers - _EPOCH_MICROSECONDS
    return np.where(column.is_null, np.zeros(1, numbers.dtype), numbers) if column.is_null.any() else numbers


def _uuids(column: DecodedColumn, messages: MessageBuffer, is_plain: Bool) -> NDArray[Any]:
    assert column.starts is not None and column.lengths is not None
    is_text = column.lengths == 36
    starts = np.where(is_text, column.starts, 0)
    # A small batch may have fewer bytes than a UUID.
    texts = messages.data[np.minimum(starts[:, None] + np.arange(36), len(messages.data) - 1)]
    digits = _HEXADECIMAL[texts[:, _DIGITS]]
    is_text &= (digits < 16).all(axis=1) & (texts[:, _HYPHENS] == ord("-")).all(axis=1)
    is_plain &= is_text | column.is_null
    octets = (digits[:, ::2] << 4) | (digits[:, 1::2] & 15)
    octets[~is_text] = 0
    return np.ascontiguousarray(octets).view("V16").reshape(-1)


def _text(
    hasher: duckdb.DuckDBPyConnection, column: DecodedColumn | None, messages: MessageBuffer, count: int
) -> tuple[Int64, pa.Array]:
    """Return the lengths of a column of variable width, -1 for null, and its bytes."""
    if column is None:
        nothing = np.zeros(count, np.int64)
        return nothing - 1, views(messages.data, nothing, nothing)
    if column.numbers is not None:
        return _decimals(hasher, column)
    assert column.starts is not None and column.lengths is not None
    lengths = np.where(column.is_null, -1, column.lengths)
    return lengths, views(messages.data, column.starts, np.where(column.is_null, 0, column.lengths))


def _decimals(hasher: duckdb.DuckDBPyConnection, column: DecodedColumn) -> tuple[Int64, pa.Array]:
    """Return decimals as text, written by DuckDB in the same way as by PostgreSQL."""
    assert column.numbers is not None
    numbers = np.stack([column.numbers, column.numbers >> 63], axis=1)
    kind = pa.decimal128(38, column.field.scale)
    decimals = pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])
    hasher.register("decimals", pa.table({"n": decimals}))
    texts = hasher.sql("select n::varchar as n from decimals").to_arrow_table().column("n")
    hasher.unregister("decimals")
    written = texts.cast(pa.large_string()).combine_chunks()
    ends = np.frombuffer(written.buffers()[1], np.int64)[: len(written) + 1]
    lengths = np.where(column.is_null, -1, np.diff(ends))
    data = np.frombuffer(written.buffers()[2] or b"", np.uint8)
    return lengths, views(data, ends[:-1], np.maximum(lengths, 0))


def views(data: NDArray[np.uint8], starts: Int64, lengths: Int64) -> pa.Array:
    """Return slices of ``data`` as an array that shares its bytes."""
    entries = np.zeros(len(starts), np.dtype([("length", "<i4"), ("text", "V12")]))
    entries["length"] = lengths
    short, long = np.flatnonzero(lengths <= 12), np.flatnonzero(lengths > 12)
    if len(short):
        entries["text"][short] = _twelve(data, starts[short], lengths[short])
    if len(long):
        references = np.zeros(len(long), np.dtype([("prefix", "V4"), ("buffer", "<i4"), ("at", "<i4")]))
        prefixes: NDArray[Any] = np.ndarray((len(data) - 3,), "V4", data, strides=(1,))
        references["prefix"], references["at"] = prefixes[starts[long]], starts[long]
        entries["text"][long] = references.view("V12")
    return pa.Array.from_buffers(
        pa.binary_view(),
        len(entries),
        [None, pa.py_buffer(entries), pa.py_buffer(np.ascontiguousarray(data))],
    )


def clear_no_texts(column: DecodedColumn, messages: MessageBuffer, is_plain: Bool) -> None:
    """Clear ``is_plain`` where a text is not valid UTF-8, so that no consumer can read the message."""
    if column.field.kind != "string" or not is_plain.any():
        return
    assert column.starts is not None and column.lengths is not None
    lengths = np.where(is_plain & ~column.is_null, column.lengths, 0)
    blobs = views(messages.data, column.starts, lengths)
    try:
        pa.Array.from_buffers(pa.string_view(), len(blobs), blobs.buffers()).validate(full=True)
    except pa.ArrowInvalid:
        for at in np.flatnonzero(lengths).tolist():
            try:
                blobs[at].as_py().decode()
            except UnicodeDecodeError:
                is_plain[at] = False


def _twelve(data: NDArray[np.uint8], starts: Int64, lengths: Int64) -> NDArray[Any]:
    """Return texts of up to twelve bytes, padded with zeros."""
    places = starts[:, None] + np.arange(12)
    octets = data[np.minimum(places, len(data) - 1)] if len(data) else np.zeros(places.shape, np.uint8)
    octets[np.arange(12) >= lengths[:, None]] = 0
    return np.ascontiguousarray(octets).view("V12").reshape(-1)


def _head(oid: int, lengths: Int64) -> NDArray[np.uint8]:
    head = np.empty((len(lengths), 2), ">i4")
    head[:, 0], head[:, 1] = oid, lengths
    return head.view(np.uint8)


def _fixed(
    fields: int,
    parts: Sequence[tuple[int, str, NDArray[Any]]],
    heads: Sequence[NDArray[np.uint8]],
    count: int,
) -> pa.Array:
    """Return the beginnings of records, which all have the same length."""
    names = [("count", ">i4")]
    for number, (_, dtype, _) in enumerate(parts):
        names += [(f"oid{number}", ">i4"), (f"size{number}", ">i4"), (f"value{number}", dtype)]
    names += [("head", "V8")] * len(heads)
    records = np.zeros(count, np.dtype(names))
    records["count"] = fields
    for number, (oid, dtype, values) in enumerate(parts):
        records[f"oid{number}"], records[f"size{number}"] = oid, np.dtype(dtype).itemsize
        records[f"value{number}"] = values
    for head in heads:
        records["head"] = np.ascontiguousarray(head).view("V8").reshape(-1)
    return _blobs(records.view(np.uint8).reshape(count, -1))


def _blobs(rows: NDArray[np.uint8]) -> pa.Array:
    """Return rows of bytes of equal length as blobs."""
    count, size = rows.shape
    kind = pa.binary(size)
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(np.ascontiguousarray(rows))])
