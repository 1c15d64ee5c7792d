"""Tables at a fence: their shape, and their rows as texts."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg2

from bwtui.audit.canonical_values import DecodedRow, Form, form_of, no_text, of_text, of_value
from bwtui.audit.column_history import HISTORY_SQL, ColumnHistory
from bwtui.errors import Indeterminate
from bwtui.model.sql import quote_identifier, quote_literal, quote_qualified
from bwtui.pgoutput.transcode import Decode
from bwtui.source.catalog import TableInfo, list_tables, load_types
from bwtui.source.connection import Connection, decoder_of, execute, query, server_encoding
from bwtui.source.snapshot import lock_tables
from bwtui.types.registry import TypeInfo
from bwtui.verify.canonical import DigestLayout, base_of, kind_of

#: A row's key and all of its columns, and the key as PostgreSQL writes it, if that differs.
RowTexts = tuple[str, str, str | None]
#: Rows read at a time, and the maximum number of keys to query without an index instead of reading all rows.
CHUNK = 5_000

#: The size of the largest partition in blocks, and whether all partitions are heaps.
_BLOCKS_SQL = """
select coalesce(max(pg_catalog.pg_relation_size(c.oid)), 0)
       / pg_catalog.current_setting('block_size')::int8,
       coalesce(bool_and(c.relkind = 'r' and a.amname = 'heap'), true)
  from pg_catalog.pg_class c left join pg_catalog.pg_am a on a.oid = c.relam
 where c.relkind <> 'p'
   and (c.oid = %s or c.oid in (select relid from pg_catalog.pg_partition_tree(%s) where isleaf))
"""
#: Kinds of columns that are queried by value: any text is valid, or it is a number.
_KEY_TYPES = {"long": "int8", "text": "text"}
#: PostgreSQL's type oid.
_OID = 26
_INTEGER = re.compile("-?[0-9]{1,19}", re.ASCII)
_TYPES_SQL = """
select attname, atttypid from pg_catalog.pg_attribute
 where attrelid = %s and attnum > 0 and not attisdropped
"""


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table and its topic; columns in the table's order."""

    namespace: str
    name: str
    topic: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    row_filter: str | None = None

    @property
    def full_name(self) -> str:
        """``schema.table``."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class RecordLayouts:
    """The layouts of digested rows and keys, if the table has a key; and the blocks of its largest
    partition.
    """

    row: DigestLayout
    key: DigestLayout | None
    blocks: int


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table as it is at a fence, with those of the compared columns that exist."""

    table: ComparedTable
    forms: dict[str, Form]
    is_partitioned: bool
    #: True if an UPDATE of a row without a key is published at all.
    is_identified: bool
    #: True if the database is in UTF8, in which its keys can be queried.
    is_utf8: bool = True
    #: Converts the database's bytes to UTF-8; None if they are taken unchanged.
    decode: Decode | None = None
    #: None if a type's values have more than one form, or PostgreSQL can't compute digests.
    records: RecordLayouts | None = None
    #: The types by which keys are queried; empty if their texts are compared with those of all rows.
    key_types: tuple[str, ...] = ()
    history: ColumnHistory = field(default_factory=ColumnHistory)

    @property
    def has_plain_keys(self) -> bool:
        """Whether a key's text is the same as PostgreSQL's."""
        return self.is_utf8 and not any(self.forms[name] for name in self.table.key)

    def key_of(self, row: DecodedRow) -> str:
        """Return a decoded key as text: a list, or an object if its columns are not those of the table's key.

        The bytes of such a key always differ, whatever its values, so it is a different key.
        """
        if tuple(row.values) != self.table.key:
            return json.dumps({name: of_value(value, "") for name, value in row.values.items()})
        return json.dumps([of_value(value, self.forms[name]) for name, value in row.values.items()])

    def row_of(self, row: DecodedRow) -> dict[str, str | None]:
        """Return a decoded row as texts, without columns that the table no longer has."""
        return {
            name: of_value(row.values.get(name), form)
            for name, form in self.forms.items()
            if name not in row.unsent
        }

    def texts(self, row: Sequence[str | None]) -> tuple[str, str, str | None]:
        """Return a row's key and all of its columns, and the key as PostgreSQL writes it, if that differs."""
        postgresql = dict(zip(self.forms, row, strict=True))
        by_column = {name: of_text(postgresql[name], form) for name, form in self.forms.items()}
        key, postgresql_key = (
            json.dumps([one[name] for name in self.table.key]) for one in (by_column, postgresql)
        )
        return key, json.dumps(by_column), None if key == postgresql_key else postgresql_key


def shapes(snapshot: Connection, tables: Sequence[ComparedTable]) -> list[TableShape]:
    """Lock the tables for the snapshot's transaction, and return their shapes.

    Raises Indeterminate if a table was dropped, and TablesChanged if the snapshot can't see its rows: a table
    that was truncated or rewritten since looks empty.
    """
    infos = {(one.namespace, one.name): one for one in list_tables(snapshot, partitions=True)}
    for table in tables:
        if (table.namespace, table.name) not in infos:
            raise _altered(table)
    lock_tables(snapshot, [infos[table.namespace, table.name] for table in tables])
    can = can_digest(snapshot)
    return [_shape(snapshot, table, infos[table.namespace, table.name], can) for table in tables]


def can_digest(snapshot: Connection) -> bool:
    """Return whether PostgreSQL computes MD5 digests, which some builds forbid, of texts without
    conversion.
    """
    execute(snapshot, "savepoint bwtui_md5")
    try:
        query(snapshot, "select pg_catalog.md5(''::pg_catalog.bytea)")
    except psycopg2.DatabaseError:
        execute(snapshot, "rollback to bwtui_md5")
        return False
    execute(snapshot, "release bwtui_md5")
    return server_encoding(snapshot) == "UTF8"


def _shape(snapshot: Connection, table: ComparedTable, info: TableInfo, can_digest: bool) -> TableShape:
    oids = dict(query(snapshot, _TYPES_SQL, info.oid))
    if any(name not in oids for name in table.key):
        raise _altered(table)
    types = load_types(snapshot, sorted(set(oids.values())))
    forms = {name: form_of(oids[name], types) for name in table.columns if name in oids}
    identified, is_utf8 = info.replica_identity == "f", server_encoding(snapshot) == "UTF8"
    kinds = [_key_type(oids[name], types) for name in table.key]
    decode = decoder_of(snapshot)
    shape = TableShape(table, forms, info.partitioned, identified, is_utf8, decode,
                  key_types=tuple(kinds) if all(kinds) else (),
                  history=_history(snapshot, info.oid, forms, decode))  # fmt: skip
    if not can_digest:
        return shape
    ((blocks, has_blocks),) = query(snapshot, _BLOCKS_SQL, info.oid, info.oid)
    records = _records(table, {name: oids[name] for name in forms}, types, blocks) if has_blocks else None
    return replace(shape, records=records)


def _history(
    snapshot: Connection, oid: int, forms: Mapping[str, Form], decode: Decode | None
) -> ColumnHistory:
    defaults: dict[str, set[str | None]] = {}
    numbers, dropped = dict[str, int](), list[int]()
    for name, number, is_dropped, is_leaf, has_default, default in query(
        snapshot, HISTORY_SQL, oid, oid, oid
    ):
        if has_default and name in forms:
            defaults.setdefault(name, set()).add(of_text(_text_of(default, decode), forms[name]))
        if is_dropped and not is_leaf:
            dropped.append(number)
        elif not is_leaf:
            numbers[name] = number
    return ColumnHistory({name: frozenset(texts) for name, texts in defaults.items()}, numbers, dropped)


def _key_type(oid: int, types: Mapping[int, TypeInfo]) -> str:
    # An oid is a number, too, but an index on oids can't find an int8.
    if base_of(oid, types) == _OID:
        return ""
    return _KEY_TYPES.get(kind_of(oid, types, in_key=True) or "", "")


def _records(
    table: ComparedTable, oids: Mapping[str, int], types: Mapping[int, TypeInfo], blocks: int
) -> RecordLayouts | None:
    kinds = {name: kind_of(oid, types) for name, oid in oids.items()}
    keys = {name: kind_of(oids[name], types, in_key=True) for name in table.key}
    rows = {name: kind for name, kind in kinds.items() if kind is not None}
    if not rows or len(rows) < len(kinds) or any(kind in (None, "float", "double") for kind in keys.values()):
        return None
    key = DigestLayout.of({name: kind for name, kind in keys.items() if kind is not None}) if keys else None
    return RecordLayouts(DigestLayout.of(rows), key, blocks)


def _altered(table: ComparedTable) -> Indeterminate:
    return Indeterminate(f"{table.full_name} was altered during the comparison", "verify again")


def rows(
    snapshot: Connection, shape: TableShape, keys: Sequence[str] | None
) -> Iterator[list[tuple[str, str, str | None]]]:
    """Yield `TableShape.texts` of all rows, or of those with plain ``keys``."""
    if keys is None:
        yield from _chunks(snapshot, shape, _select(shape))
        return
    plain_keys = [key for key in keys if key.startswith("[")]
    for at in range(0, len(plain_keys), CHUNK):
        if where := _where(shape, plain_keys[at : at + CHUNK]):
            yield from _chunks(snapshot, shape, f"{_select(shape)} and {where}")


def _chunks(snapshot: Connection, shape: TableShape, sql: str) -> Iterator[list[RowTexts]]:
    # A server-side cursor, since a table may be larger than memory; psycopg2's own require a transaction that
    # psycopg2 began.
    execute(snapshot, f"declare bwtui_verify no scroll cursor for {sql}")
    # If another encoding were requested, PostgreSQL would reject characters that it can't convert.
    execute(snapshot, f"set client_encoding = '{server_encoding(snapshot)}'")
    while fetched := query(snapshot, f"fetch {CHUNK} from bwtui_verify"):
        yield [shape.texts([_text_of(cell, shape.decode) for cell in row]) for row in fetched]
    execute(snapshot, "set client_encoding = 'UTF8'")
    execute(snapshot, "close bwtui_verify")


def rows_at(
    snapshot: Connection, shape: TableShape, table_oid: int, places: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], RowTexts]:
    """Return (block, line) → `TableShape.texts` of rows of a table, or of one of its partitions."""
    tids = ",".join(f'"({block},{line})"' for block, line in places)
    where = f" and ctid = any('{{{tids}}}'::pg_catalog.tid[]) and tableoid = {table_oid}::pg_catalog.oid"
    place = "(ctid::pg_catalog.text::pg_catalog.point)"
    result = query(snapshot, f"{_select(shape, f'{place}[0]::int8, {place}[1]::int8, ')}{where}")
    return {
        (block, line): shape.texts([_text_of(cell, shape.decode) for cell in row])
        for block, line, *row in result
    }


def from_table(shape: TableShape) -> str:
    """Return FROM and WHERE for a table's published rows; conditions may be appended."""
    table = shape.table
    # ONLY, as in pgoutput: the rows of an inheriting table belong to that table.
    only = "" if shape.is_partitioned else "only "
    where = f"({table.row_filter})" if table.row_filter else "true"
    return f"from {only}{quote_qualified(table.namespace, table.name)} where {where}"


def _select(shape: TableShape, before: str = "") -> str:
    # Bytes, since they need not be valid text.
    select = ", ".join(f"pg_catalog.textsend({_text(name)})" for name in shape.forms)
    return f"select {before}{select} {from_table(shape)}"


def _where(shape: TableShape, keys: Sequence[str]) -> str:
    """Return a condition for the rows of plain keys, which may match more rows; "" if there are no keys."""
    table = shape.table
    if not shape.key_types:
        key = ", ".join(map(_text, table.key))
        literals = ", ".join(quote_literal(_compact(key)) for key in keys)
        return f"pg_catalog.array_to_json(array[{key}])::text in ({literals})"
    # By equality of values, which can use an index. A text that is not valid for the type is not a row's key.
    values = [one for one in map(json.loads, keys) if all(map(_is_value, one, shape.key_types))]
    if not values:
        return ""
    arrays = [
        f"pg_catalog.unnest({quote_literal(_array(column))}::pg_catalog.{kind}[])"
        for column, kind in zip(zip(*values, strict=True), shape.key_types, strict=True)
    ]
    key = ", ".join(map(quote_identifier, table.key))
    return f"({key}) in (select * from rows from ({', '.join(arrays)}) as asked)"


def _is_value(text: str | None, kind: str) -> bool:
    if text is None:
        return False
    return kind == "text" or bool(_INTEGER.fullmatch(text) and -(1 << 63) <= int(text) < 1 << 63)


def _array(texts: Sequence[str]) -> str:
    escaped = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in escaped) + "}"


def _text(column: str) -> str:
    # concat, unlike a cast, writes a value as the stream does: t for true, and char(5) with its blanks.
    name = quote_identifier(column)
    # IS NOT NULL is false for a composite value that contains a NULL.
    return f"case when {name} is distinct from null then pg_catalog.concat({name}) end"


def _text_of(cell: memoryview | None, decode: Decode | None) -> str | None:
    """Return a cell's text in UTF-8, or `no_text` of bytes that are not valid."""
    if cell is None:
        return None
    raw = bytes(cell)
    text = raw if decode is None else decode(raw)
    try:
        return no_text(raw) if text is None else text.decode()
    except UnicodeDecodeError:
        return no_text(raw)


def _compact(key: str) -> str:
    """Return a key as PostgreSQL's array_to_json writes it."""
    decoded: Any = json.loads(key)
    return json.dumps(decoded, separators=(",", ":"), ensure_ascii=False)
