"""Read PostgreSQL's catalog of tables: identity, columns, privileges and types."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

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

    ``kind`` is pg_class.relkind; ``ancestors`` lists a partition's parents, the nearest first.
    """

    qualified_name: str
    kind: str
    ancestors: list[str]


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
              where p.oid <> c.oid order by a.place)
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
