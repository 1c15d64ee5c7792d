"""Read PostgreSQL's catalog of tables: identity, columns, privileges and types."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bwtui.errors import RefusedError
from bwtui.model.sql import quote_identifier, quote_literal
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.messages import Column, Relation
from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection, query
from bwtui.types.registry import TypeInfo


@dataclass(frozen=True, slots=True)
class TableInfo:
    """One table as the catalog describes it.

    ``replica_identity`` is pg_class.relreplident (d, n, f or i). ``has_key`` says whether that identity, or
    the primary key under "f", names key columns. A deferrable primary key does not count: PostgreSQL does not
    accept it as a replica identity, and two rows may share it in the middle of a transaction. ``estimate`` is
    pg_class.reltuples, or None if the table was never analysed.
    """

    oid: int
    namespace: str
    name: str
    replica_identity: str
    has_key: bool
    owned: bool
    partitioned: bool
    estimate: int | None

    @property
    def qualified_name(self) -> str:
        """``schema.table``, unquoted."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class CatalogRelation:
    """A relation of the catalog, whether or not it is a table.

    ``kind`` is pg_class.relkind; ``ancestors`` lists a partition's parents, the nearest first. ``quoted`` is
    the name as SQL.
    """

    qualified_name: str
    kind: str
    ancestors: list[str]
    unlogged: bool = False
    quoted: str = ""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column as it is now, or the place of a dropped column.

    ``listed``: a publication has a column list for the table, so a RELATION message may lack some columns.
    ``in_identity``: the column belongs to the replica identity or, under FULL, to the primary key.
    """

    name: str
    type_oid: int
    typmod: int = -1
    dropped: bool = False
    generated: bool = False
    in_primary_key: bool = False
    listed: bool = False
    in_identity: bool = False

    @property
    def may_be_missing(self) -> bool:
        """True if a relation that was written while the column existed may lack it."""
        return self.dropped or self.generated or self.listed


_TABLES_SQL = """
select c.oid, n.nspname, c.relname, case when bare then 'n' else c.relreplident::text end,
       case when bare then false else case c.relreplident when 'n' then false
            when 'i' then exists (select from pg_catalog.pg_index i
                               where i.indrelid = c.oid and i.indisreplident)
            else exists (select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisprimary
                                and i.indimmediate) end end,
       pg_catalog.pg_has_role(c.relowner, 'usage'),
       c.relkind = 'p',
       case when c.reltuples >= 0 then c.reltuples::bigint end
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 cross join lateral (
       -- A partition without a replica identity can't be updated once its root is published.
       select c.relkind = 'p' and exists (
              select from pg_catalog.pg_partition_tree(c.oid) p
                join pg_catalog.pg_class l on l.oid = p.relid
               where p.isleaf and l.relreplident not in ('f', 'i')
                 and (l.relreplident = 'n' or not exists (
                      select from pg_catalog.pg_index i
                       where i.indrelid = l.oid and i.indisprimary and i.indimmediate)))) as leaf (bare)
 where c.relkind in ('r', 'p') and c.relpersistence = 'p' and (%s or not c.relispartition)
   and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname !~ '^pg_(toast|temp)'
   and (%s::text is null or (n.nspname = %s and c.relname = %s))
 order by 2, 3
"""

# Ancestors: the parent of a partition, that parent's parent, and so on.
_NAMED_SQL = """
select n.nspname || '.' || c.relname, c.relkind::text,
       array(select pn.nspname || '.' || p.relname
               from pg_catalog.pg_partition_ancestors(c.oid) with ordinality as a (relid, place)
               join pg_catalog.pg_class p on p.oid = a.relid
               join pg_catalog.pg_namespace pn on pn.oid = p.relnamespace
              where p.oid <> c.oid order by a.place),
       c.relpersistence = 'u', format('%%I.%%I', n.nspname, c.relname)
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname || '.' || c.relname = any(%s)
"""

# A column list leaves columns out. The catalog has had prattrs since PostgreSQL 15.
_ATTRIBUTES_SQL = """
select a.attname, a.atttypid, a.atttypmod, a.attisdropped, a.attgenerated <> '',
       exists (select from pg_catalog.pg_index i
                where i.indrelid = a.attrelid and a.attnum = any(i.indkey[0:i.indnkeyatts - 1])
                  and i.indisprimary and i.indimmediate),
       exists (select from pg_catalog.pg_publication_rel r
                where r.prrelid = a.attrelid and pg_catalog.to_jsonb(r) ->> 'prattrs' is not null),
       exists (select from pg_catalog.pg_index i
                where i.indrelid = a.attrelid and a.attnum = any(i.indkey[0:i.indnkeyatts - 1])
                  and case c.relreplident when 'n' then false when 'i' then i.indisreplident
                           else i.indisprimary and i.indimmediate end)
  from pg_catalog.pg_attribute a join pg_catalog.pg_class c on c.oid = a.attrelid
 where a.attrelid = %s and a.attnum > 0 order by a.attnum
"""

_TYPES_SQL = """
select t.oid, t.typname, n.nspname, t.typtype::text, t.typbasetype, t.typtypmod,
       case when t.typcategory = 'A' then t.typelem else 0 end, t.typdelim::text
  from pg_catalog.pg_type t join pg_catalog.pg_namespace n on n.oid = t.typnamespace
 where t.oid = any(%s)
"""


class TableFilter:
    """Selects tables by the patterns of --table and --exclude-table, matched against ``schema.table``."""

    def __init__(self, settings: RelaySettings) -> None:
        self._include = [re.compile(pattern) for pattern in settings.tables]
        self._exclude = [re.compile(pattern) for pattern in settings.exclude_tables]

    @property
    def is_open(self) -> bool:
        """Whether every table passes."""
        return not self._include and not self._exclude

    def __call__(self, table: TableInfo | Relation) -> bool:
        """Return whether the table passes; a pattern may omit the schema ``public``."""
        return self.passes(table.namespace, table.name)

    def passes(self, namespace: str, name: str) -> bool:
        """Return whether the table with this schema and name passes."""
        return self._passes([f"{namespace}.{name}"] + ([name] if namespace == "public" else []))

    def passes_whole(self, name: str) -> bool:
        """Return whether the table that a report calls ``schema.table`` passes."""
        return self._passes([name, name.removeprefix("public.")])

    def _passes(self, names: list[str]) -> bool:
        if self._include and not any(p.fullmatch(n) for p in self._include for n in names):
            return False
        return not any(p.fullmatch(n) for p in self._exclude for n in names)


def list_tables(connection: Connection, *, partitions: bool = False) -> list[TableInfo]:
    """Return every permanent table outside the system schemas, with partitions only if requested."""
    return [TableInfo(*row) for row in query(connection, _TABLES_SQL, partitions, None, None, None)]


def find_table(connection: Connection, namespace: str, name: str) -> TableInfo | None:
    """Return the table or partition with this name, or None; never one of a system schema."""
    rows = query(connection, _TABLES_SQL, True, namespace, namespace, name)
    return TableInfo(*rows[0]) if rows else None


def find_named(connection: Connection, names: Sequence[str]) -> list[CatalogRelation]:
    """Return the relations that have one of ``names`` (``schema.name``, unquoted)."""
    return [CatalogRelation(*row) for row in query(connection, _NAMED_SQL, list(names))]


def attributes(connection: Connection, oid: int) -> list[Attribute]:
    """Return the table's columns in order, dropped ones included; empty if the table does not exist."""
    return [Attribute(*row) for row in query(connection, _ATTRIBUTES_SQL, oid)]


def load_relation(connection: Connection, table: TableInfo, columns: Sequence[str] | None) -> Relation:
    """Return the RELATION message that pgoutput would send for ``table``, built from the catalog.

    ``columns`` are the publication's column names, or None for all. pgoutput leaves generated columns out
    unless the publication names them, which is possible since PostgreSQL 18. Some minor versions before 18
    list them in pg_publication_tables although pgoutput does not send them. Columns are in table order.
    """
    names = None if columns is None else set(columns)
    present = [attribute for attribute in attributes(connection, table.oid) if not attribute.dropped]
    if names is None or connection.server_version < 180000:
        present = [attribute for attribute in present if not attribute.generated]
    published = tuple(
        Column(attribute.name, attribute.type_oid, attribute.typmod, attribute.in_identity)
        for attribute in present
        if names is None or attribute.name in names
    )
    return Relation(table.oid, table.namespace, table.name, table.replica_identity, published)


def load_types(connection: Connection, oids: Sequence[int]) -> dict[int, TypeInfo]:
    """Return the pg_type entries of ``oids`` and of every type that they are based on."""
    types: dict[int, TypeInfo] = {}
    pending = list(oids)
    while pending:
        rows = query(connection, _TYPES_SQL, pending)
        types |= {row[0]: TypeInfo(*row) for row in rows}
        referenced = [oid for info in types.values() for oid in (info.base_oid, info.element_oid)]
        pending = [oid for oid in dict.fromkeys(referenced) if oid and oid not in types]
    return types


# Match the columns of an earlier RELATION message with a table's present columns.
#
# The catalog only knows the present, and a relay that lags reads rows from a time when columns had
# different names. Columns are only ever added at the end of a table and keep their places, and a dropped
# column leaves its place behind. So names, types and order together identify them. If two readings are
# about equally good, neither is used: a value under another column's name would be worse than none.

#: Points for a column in a place: for an equal name, and for an equal type. Readings within one point of the
#: best count as well, since two columns that swapped their names look like one dropped and one added.
_NAME, _TYPE, _MARGIN = 2, 1, 1
_NEVER = -1_000_000


def present_columns(relation: Relation, now: Sequence[Attribute]) -> list[Attribute | None]:
    """Return the present column for each column of ``relation``; None if dropped or undetermined."""
    live = [attribute for attribute in now if not attribute.dropped]
    if _same_by_name(relation, live):
        by_name = {attribute.name: attribute for attribute in live}
        return [by_name[column.name] for column in relation.columns]
    plain = [attribute for attribute in live if not attribute.generated]
    if len(live) == len(now) and len(plain) == len(relation.columns):
        # No column was ever dropped or added: they are the same columns in the same order.
        return list(plain)
    return _aligned(relation.columns, now)


def present_names(relation: Relation, now: Sequence[Attribute]) -> list[str | None]:
    """Return the present name of each column of ``relation``; None if dropped or undetermined."""
    return [None if attribute is None else attribute.name for attribute in present_columns(relation, now)]


def _same_by_name(relation: Relation, live: Sequence[Attribute]) -> bool:
    """Return whether names alone are conclusive: no other column is before or between the relation's.

    Such a column already existed when the relation was written, then under one of the relation's names.
    """
    places = {attribute.name: place for place, attribute in enumerate(live)}
    names = [column.name for column in relation.columns]
    if not set(names) <= places.keys():
        return False
    end = max((places[name] for name in names), default=-1) + 1
    return [a.name for a in live[:end] if not a.generated or a.name in names] == names


def _aligned(columns: Sequence[Column], now: Sequence[Attribute]) -> list[Attribute | None]:
    """Return the present column for each column on which all good readings agree.

    A reading assigns each column a place, in order. Before the last of these places, no live column may be
    skipped unless the relation may lack it: columns that were added later are after them.
    """
    before = _scores(columns, now)
    if not columns or max(before[-1].values(), default=_NEVER) <= _NEVER // 2:
        return [None] * len(columns)
    best = max(before[-1].values())
    after = _rest(before, columns, now)
    aligned: list[Attribute | None] = []
    for index in range(len(columns)):
        good = [
            place for place, score in before[index].items() if score + after[index][place] >= best - _MARGIN
        ]
        only = now[good[0]] if len(good) == 1 else None
        aligned.append(None if only is None or only.dropped else only)
    return aligned


def _scores(columns: Sequence[Column], now: Sequence[Attribute]) -> list[dict[int, int]]:
    """Return, for each column, the score of the best reading up to it, by the column's place in that
    reading.
    """
    spare = sum(attribute.may_be_missing for attribute in now)
    rows: list[dict[int, int]] = []
    for index, column in enumerate(columns):
        row = {}
        for place in range(index, min(index + spare, len(now) - 1) + 1):
            if index == 0:
                start = 0 if all(attribute.may_be_missing for attribute in now[:place]) else _NEVER
            else:
                start = max((rows[-1].get(p, _NEVER) for p in _places_before(now, place)), default=_NEVER)
            row[place] = start + _likeness(column, now[place])
        rows.append(row)
    return rows


def _rest(
    before: Sequence[dict[int, int]], columns: Sequence[Column], now: Sequence[Attribute]
) -> list[dict[int, int]]:
    """Return, for each column, the score of the best reading after it, by the column's place in that
    reading.
    """
    rest: list[dict[int, int]] = [dict.fromkeys(before[-1], 0)]
    for index in range(len(columns) - 2, -1, -1):
        row = dict.fromkeys(before[index], _NEVER)
        for place, score in rest[0].items():
            whole = score + _likeness(columns[index + 1], now[place])
            for earlier in _places_before(now, place):
                if earlier in row:
                    row[earlier] = max(row[earlier], whole)
        rest.insert(0, row)
    return rest


def _places_before(now: Sequence[Attribute], place: int) -> Sequence[int]:
    """Return the possible places of the previous column: all places between may lack a column."""
    first = place - 1
    while first > 0 and now[first].may_be_missing:
        first -= 1
    return range(max(first, 0), place)


def _likeness(column: Column, attribute: Attribute) -> int:
    if attribute.dropped:
        return 0
    return _NAME * (attribute.name == column.name) + _TYPE * (attribute.type_oid == column.type_oid)


def former_primary_key(relation: Relation, now: Sequence[Attribute]) -> tuple[str, ...] | None:
    """Return the present primary key in the names of ``relation``; None if one of its columns is not there.

    The result is empty if the table has no primary key.
    """
    return _former_names(relation, now, {attribute.name for attribute in now if attribute.in_primary_key})


def former_identity(relation: Relation, now: Sequence[Attribute]) -> tuple[str, ...] | None:
    """Return the present replica identity in the names of ``relation``, like `former_primary_key`."""
    return _former_names(relation, now, {attribute.name for attribute in now if attribute.in_identity})


def _former_names(relation: Relation, now: Sequence[Attribute], key: set[str]) -> tuple[str, ...] | None:
    then = {name: c.name for name, c in zip(present_names(relation, now), relation.columns, strict=True)}
    if not key <= then.keys():
        return None
    return tuple(column for name, column in then.items() if name in key)


def missing_identity_columns(relation: Relation, now: Sequence[Attribute]) -> list[tuple[Attribute, bool]]:
    """Return the identity's columns that ``relation`` lacks, each with whether its table already had it then.

    It did if a column that the relation has comes after it. For other columns, and if any column of the
    relation can't be matched, this is unknown: they may have been added to the table and its key since.
    """
    present = present_columns(relation, now)
    names = {attribute.name for attribute in present if attribute is not None}
    last = max((place for place, attribute in enumerate(now) if attribute.name in names), default=-1)
    return [
        (attribute, place < last and None not in present)
        for place, attribute in enumerate(now)
        if attribute.in_identity and attribute.name not in names
    ]


# A table's key in SQL: its columns in index order, with their operators and literals.

# The key's columns, the operator that orders each, and the operator by which the index compares. Those of
# extensions are not found through the session's empty search_path. A domain is ordered like its base type.
# Types without a default operator class of their own (enums, arrays, ranges, varchar) use operators of
# pg_catalog. Strategy 5 of btree (403) is ">", strategy 3 "=". A key WITHOUT OVERLAPS has an index of a
# different kind, whose strategy 3 is "overlaps".
_KEY_SQL = """
with recursive base (attnum, name, oid, is_domain) as (
     select attnum, attname, atttypid, false from pg_catalog.pg_attribute
      where attrelid = %s and attnum > 0 and not attisdropped
  union all
     select base.attnum, base.name, t.typbasetype, true from base join pg_catalog.pg_type t using (oid)
      where t.typtype = 'd')
select b.name, pg_catalog.format_type(b.oid, -1), b.is_domain, o.nspname, o.greater, e.nspname, e.oprname
  from pg_catalog.pg_index i
  join pg_catalog.pg_class c on c.oid = i.indrelid
 cross join lateral unnest(i.indkey::int2[], i.indclass::oid[]) with ordinality as k (attnum, opclass, place)
  join base b on b.attnum = k.attnum
  join pg_catalog.pg_type t on t.oid = b.oid and t.typtype <> 'd'
  left join lateral (
       select n.nspname, o.oprname as greater
         from pg_catalog.pg_opclass used
         join pg_catalog.pg_amop m on m.amopfamily = used.opcfamily
              and m.amoplefttype = b.oid and m.amoprighttype = b.oid and m.amopstrategy = 5
         join pg_catalog.pg_operator o on o.oid = m.amopopr
         join pg_catalog.pg_namespace n on n.oid = o.oprnamespace
        where used.opcmethod = 403 and used.opcdefault and used.opcintype = b.oid) as o on true
  left join lateral (
       select n.nspname, o.oprname
         from pg_catalog.pg_opclass used
         join pg_catalog.pg_opclass c on c.opcmethod = 403
              and (c.oid = used.oid
                   or (used.opcmethod <> 403 and c.opcdefault and c.opcintype = used.opcintype))
         join pg_catalog.pg_amop m on m.amopfamily = c.opcfamily and m.amopstrategy = 3
              and m.amoplefttype = c.opcintype and m.amoprighttype = c.opcintype
         join pg_catalog.pg_operator o on o.oid = m.amopopr
         join pg_catalog.pg_namespace n on n.oid = o.oprnamespace
        where used.oid = k.opclass) as e on true
 where i.indrelid = %s and k.place <= i.indnkeyatts
   and case c.relreplident when 'i' then i.indisreplident else i.indisprimary end
 order by k.place
"""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One column of a key; the operators are None if its type has no default operator class of its own."""

    name: str
    type_name: str
    is_domain: bool
    namespace: str | None
    greater: str | None
    equal_namespace: str | None
    equal: str | None

    def operand(self) -> str:
        """Return the column as an operand: the polymorphic operators of a domain are those of its base
        type.
        """
        name = quote_identifier(self.name)
        return f"cast({name} as {self.type_name})" if self.is_domain else name

    def operator(self, symbol: str) -> str:
        """Return the type's operator for ``symbol``, ">" or "=", whatever the search_path."""
        namespace, operator = (
            (self.namespace, self.greater) if symbol == ">" else (self.equal_namespace, self.equal)
        )
        if operator is None or namespace is None:
            return f"operator(pg_catalog.{symbol})"
        return f"operator({quote_identifier(namespace)}.{operator})"

    def equals(self, value: str) -> str:
        """Return the condition that the column equals a literal, by the operator of the key's index."""
        return f"{self.operand()} {self.operator('=')} cast({value} as {self.type_name})"

    def literal(self, text: str) -> str:
        """Return ``text`` as a literal of the column's type."""
        return f"cast({quote_literal(text)} as {self.type_name})"


def key_of(connection: Connection, oid: int) -> list[KeyColumn]:
    """Return the columns of the table's identity in index order. Raises psycopg2.Error."""
    return [KeyColumn(*row) for row in query(connection, _KEY_SQL, oid, oid)]


def text_of_equals(column: str, value: str) -> str:
    """Return the condition that a column's text equals that of a literal; it can't use an index."""
    return f"pg_catalog.format('%s', {quote_identifier(column)}) operator(pg_catalog.=) {value}"


def greater(key: Sequence[KeyColumn], after: Sequence[str]) -> str:
    """Return the condition that a row's key is after ``after``, the texts of its columns."""
    names = [column.operand() for column in key]
    values = [column.literal(text) for column, text in zip(key, after, strict=True)]
    if all(column.greater is None or column.namespace == "pg_catalog" for column in key):
        # PostgreSQL can use an index for a row comparison.
        return f"({', '.join(names)}) operator(pg_catalog.>) ({', '.join(values)})"
    behind = ""
    for column, name, value in reversed(list(zip(key, names, values, strict=True))):
        also = f" or ({name} {column.operator('=')} {value} and {behind})" if behind else ""
        behind = f"({name} {column.operator('>')} {value}{also})"
    return behind


def last_key(relation: Relation, key: Sequence[KeyColumn], lines: Sequence[bytes]) -> tuple[str, ...] | None:
    """Return the key in the last of COPY's ``lines``. Raises RefusedError if it is not valid text."""
    if not lines:
        return None
    fields = list(unescape_copy_line(lines[-1]))
    names = [column.name for column in relation.columns]
    texts = []
    for column in key:
        field = fields[names.index(column.name)]
        assert isinstance(field, bytes)
        try:
            texts.append(field.decode())
        except UnicodeDecodeError as error:
            raise RefusedError(
                f"a key of table {relation.qualified_name} is not valid text in the database's encoding",
                "fix the row, or exclude it with 'bwtui snapshot --where'",
            ) from error
    return tuple(texts)
