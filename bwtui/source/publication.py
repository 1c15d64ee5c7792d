"""The publications: which tables, and which of their operations, PostgreSQL sends.

If the named publication does not exist, bwtui creates two in one transaction, never FOR ALL TABLES:

- ``<name>`` FOR TABLE … for the keyed tables.
- ``<name>_unkeyed`` for the unkeyed ones. It publishes only inserts and truncates: PostgreSQL rejects an
  application's UPDATE and DELETE on a table without a replica identity that is in a publication of updates,
  and a relay must never break the application that it captures.

With ``--new-tables add``, a table that is created later joins one of the two automatically (`misplaced`,
`move`). See docs/adr/0003-publish-explicit-table-lists.md; `bwtui.source.publication_coverage` lists what
they leave out.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import psycopg2

from bwtui.errors import RefusedError
from bwtui.model.sql import quote_identifier, quote_qualified
from bwtui.source.catalog import TableInfo, find_table
from bwtui.source.connection import Connection, execute, query, statement_failed
from bwtui.source.sql_hints import format_sql

_PUBLISHED_SQL = """
select t.schemaname, t.tablename, {columns}, {rowfilter}, p.pubinsert, p.pubupdate, p.pubdelete
  from pg_catalog.pg_publication_tables t join pg_catalog.pg_publication p using (pubname)
 where t.pubname = any(%s) and (%s::text is null or (t.schemaname = %s and t.tablename = %s)) order by 1, 2
"""
#: Timeout of `create` for a table that is being altered or vacuumed, while others wait for those already
#: locked.
_LOCK_TIMEOUT = "10s"
#: Timeout of `move` for a table that is being altered or vacuumed. After deadlock_timeout,
#: which is longer, PostgreSQL would cancel an autovacuum for our sake.
_MOVE_TIMEOUT = "100ms"
# Tables that are in neither publication, in the first one without a replica identity, or only in the second
# one with one. Empty on a standby, if the role does not own both publications, or if either includes tables
# automatically. The last column changes whenever the result for a table may have changed.
_MISPLACED_SQL = """
with own as materialized (
  select p.oid, p.pubname = %s as is_first from pg_catalog.pg_publication p
   where p.pubname in (%s, %s) and not p.puballtables {schemas}
     and pg_catalog.pg_has_role(p.pubowner, 'usage') and not pg_catalog.pg_is_in_recovery()),
listed as materialized (
  select r.prrelid, bool_or(own.is_first) as in_first
    from own join pg_catalog.pg_publication_rel r on r.prpubid = own.oid group by 1),
identity as materialized (
  select i.indrelid, bool_or(i.indisprimary and i.indimmediate) as has_key,
         bool_or(i.indisreplident) as is_named
    from pg_catalog.pg_index i where i.indisprimary and i.indimmediate or i.indisreplident group by 1)
select c.oid, listed.in_first,
       concat_ws(' ', c.xmin, c.relreplident, identity.has_key, identity.is_named)
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  left join listed on listed.prrelid = c.oid
  left join identity on identity.indrelid = c.oid
 where c.relkind in ('r', 'p') and c.relpersistence = 'p'
   and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname !~ '^pg_(toast|temp)'
   and (select count(*) from own) = 2
   and case when listed.in_first is null then not c.relispartition
            else listed.in_first is distinct from
                 case c.relreplident when 'f' then true when 'n' then false
                      when 'i' then coalesce(identity.is_named, false)
                      else coalesce(identity.has_key, false) end end
"""
_WITHOUT_SCHEMAS = """and not exists (
  select from pg_catalog.pg_publication_namespace s where s.pnpubid = p.oid)"""
# Includes a root without rows of its own: PostgreSQL publishes its partitions in its place.
_LISTED_SQL = """
select p.pubname, bool_or(r.prrelid = %s::oid)
  from pg_catalog.pg_publication p join pg_catalog.pg_publication_rel r on r.prpubid = p.oid
 where p.pubname = any(%s) and r.prrelid in (
       select %s::oid union all select relid::oid from pg_catalog.pg_partition_tree(%s::oid))
 group by 1
"""
#: PostgreSQL's NAMEDATALEN without the terminating null byte.
_NAME_BYTES = 63
_UNKEYED = "_unkeyed"


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One table of a publication; ``columns`` None means all, ``row_filter`` None means every row.

    ``inserts``, ``updates`` and ``deletes`` say which of its operations are published.
    """

    namespace: str
    name: str
    columns: tuple[str, ...] | None
    row_filter: str | None
    inserts: bool
    updates: bool
    deletes: bool


def unkeyed_name(publication: str) -> str:
    """Return the name of the publication of unkeyed tables that accompanies ``publication``.

    PostgreSQL would truncate a longer name, and the publication would not be found again.
    """
    name = publication + _UNKEYED
    if len(name.encode()) <= _NAME_BYTES:
        return name
    digest = "_" + hashlib.sha256(publication.encode()).hexdigest()[:8]
    room = _NAME_BYTES - len(digest) - len(_UNKEYED)
    return publication.encode()[:room].decode(errors="ignore") + digest + _UNKEYED


def existing(connection: Connection, publication: str) -> tuple[str, ...]:
    """Return ``publication``, and its companion if that exists too; an empty tuple without the former."""
    names = [publication, unkeyed_name(publication)]
    sql = "select pubname from pg_catalog.pg_publication where pubname = any(%s)"
    there = {row[0] for row in query(connection, sql, names)}
    return tuple(name for name in names if name in there) if publication in there else ()


def via_root(connection: Connection, publications: Sequence[str]) -> bool:
    """Return whether all ``publications`` send the rows of partitions as rows of their root."""
    sql = "select coalesce(bool_and(pubviaroot), true) from pg_catalog.pg_publication where pubname = any(%s)"
    return bool(query(connection, sql, list(publications))[0][0])


def published_tables(
    connection: Connection, publications: Sequence[str], only: tuple[str, str] | None = None
) -> list[PublishedTable]:
    """Return the tables of ``publications``; column lists and row filters exist since PostgreSQL 15.

    A row of a table that is in several of them is published if any one of them publishes it. ``only``
    restricts the result to one table (schema and name).
    """
    return merged(entries(connection, publications, only))


def merged(published: Sequence[PublishedTable]) -> list[PublishedTable]:
    """Merge the result of `entries` into one entry per table."""
    tables: dict[tuple[str, str], PublishedTable] = {}
    for table in published:
        before = tables.get((table.namespace, table.name))
        tables[table.namespace, table.name] = table if before is None else _both(before, table)
    return list(tables.values())


def entries(
    connection: Connection, publications: Sequence[str], only: tuple[str, str] | None = None
) -> list[PublishedTable]:
    """Return the tables of ``publications``, one entry for each publication that has the table."""
    modern = connection.server_version >= 150000
    schema_and_name = (None, None) if only is None else only
    sql = _PUBLISHED_SQL.format(
        columns="attnames::text[]" if modern else "null", rowfilter="rowfilter" if modern else "null"
    )
    return [
        PublishedTable(namespace, name, None if columns is None else tuple(columns), row_filter, *operations)
        for namespace, name, columns, row_filter, *operations in query(
            connection, sql, list(publications), schema_and_name[0], *schema_and_name
        )
    ]


def _both(one: PublishedTable, another: PublishedTable) -> PublishedTable:
    either = None
    if one.row_filter is not None and another.row_filter is not None:
        either = f"({one.row_filter}) or ({another.row_filter})"
    return replace(
        another,
        row_filter=either,
        inserts=one.inserts or another.inserts,
        updates=one.updates or another.updates,
        deletes=one.deletes or another.deletes,
    )


def create(connection: Connection, publication: str, tables: Sequence[TableInfo]) -> tuple[str, ...]:
    """Create both publications for ``tables``, or neither, and return their names.

    The companion is created even without tables: a relay reads only the publications that existed when its
    stream began. Raises RefusedError or ConnectionFailed.
    """
    statements = create_statements(publication, tables)
    try:
        execute(connection, "begin")
        execute(connection, f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
        for statement in statements:
            execute(connection, statement)
        execute(connection, "commit")
    except psycopg2.Error as error:
        if connection.closed:
            raise statement_failed(error) from error
        execute(connection, "rollback")
        plain = " ".join(str(error).split())
        hint = f"let a superuser run: {format_sql(*statements)}"
        if isinstance(error, psycopg2.errors.LockNotAvailable):
            hint = "start again once the ALTER or VACUUM of the locked table has finished"
        elif isinstance(error, psycopg2.errors.DuplicateObject):
            hint = drop_companion_hint(publication)
        raise RefusedError(f"can't create publication {publication}: {plain}", hint) from error
    return publication, unkeyed_name(publication)


def drop_companion_hint(publication: str) -> str:
    """Return the hint for a ``publication`` that does not exist while its companion does."""
    alone = drop_statement(unkeyed_name(publication))
    return f"start again; if that fails and no client reads the existing publication, run: {alone}"


def drop_statement(publication: str) -> str:
    """Return the statement that drops a publication, to be pasted."""
    return format_sql(f"drop publication {quote_identifier(publication)}")


def create_statements(
    publication: str, tables: Sequence[TableInfo], *, generated: bool = False
) -> tuple[str, str]:
    """Return the statements that create the publications of ``tables``: for keyed, then for unkeyed ones.

    ``generated`` includes generated columns of the keyed tables, which can be published since PostgreSQL 18.
    """
    unkeyed = [table for table in tables if lacks_identity(table)]
    keyed = [table for table in tables if not lacks_identity(table)]
    options = "publish_generated_columns = stored, " if generated else ""
    return _create_statement(publication, keyed, options), create_unkeyed_statement(publication, unkeyed)


def create_unkeyed_statement(publication: str, tables: Sequence[TableInfo]) -> str:
    """Return the statement that creates the companion of ``publication`` for ``tables``."""
    return _create_statement(unkeyed_name(publication), tables, "publish = 'insert, truncate', ")


def _create_statement(name: str, tables: Sequence[TableInfo], options: str) -> str:
    target = f" for table {', '.join(map(table_clause, tables))}" if tables else ""
    statement = f"create publication {quote_identifier(name)}{target}"
    return f"{statement} with ({options}publish_via_partition_root = true)"


def lacks_identity(table: TableInfo) -> bool:
    """Return whether PostgreSQL would reject UPDATE and DELETE on ``table`` if they were published."""
    return not table.has_key and table.replica_identity != "f"


class MisplacedTable(NamedTuple):
    """A table that may belong into a different publication.

    ``in_first``: whether the first of the two publications lists it; None if neither does. ``version``
    changes whenever that may have changed.
    """

    in_first: bool | None
    version: str


def misplaced(connection: Connection, publication: str) -> dict[int, MisplacedTable]:
    """Return the tables that may belong into the other of the two publications, by oid, selected or not.

    The query is cheap and locks no table. Raises psycopg2.Error.
    """
    schemas = _WITHOUT_SCHEMAS if connection.server_version >= 150000 else ""
    names = publication, publication, unkeyed_name(publication)
    rows = query(connection, _MISPLACED_SQL.format(schemas=schemas), *names)
    return {oid: MisplacedTable(*values) for oid, *values in rows}


def listing(connection: Connection, publication: str, table: TableInfo) -> dict[str, bool]:
    """Return which of the two publications list ``table`` (True), or only partitions of it (False).

    Raises psycopg2.Error.
    """
    names = [publication, unkeyed_name(publication)]
    return dict(query(connection, _LISTED_SQL, table.oid, names, table.oid, table.oid))


def publication_for(publication: str, table: TableInfo, *, allow_unkeyed: bool) -> str:
    """Return which of the two publications ``table`` belongs into; "" if its rows could not be sent."""
    if not table.has_key and not allow_unkeyed:
        return ""
    return unkeyed_name(publication) if lacks_identity(table) else publication


def move(connection: Connection, table: TableInfo, former: str, to: str) -> bool:
    """Move ``table`` from publication ``former`` into ``to``; "" means none.

    Return False without a change if the table is locked or has changed; the next check decides again. Nothing
    is changed either if PostgreSQL would then reject the application's UPDATE or DELETE, which the last
    statement finds out. Raises psycopg2.Error, also in that case.
    """
    clause = table_clause(table)
    steps = [f"alter publication {quote_identifier(former)} drop table {clause}"] if former else []
    steps += [f"alter publication {quote_identifier(to)} add table {clause}"] if to else []
    execute(connection, "begin")
    try:
        execute(connection, f"set local lock_timeout = '{_MOVE_TIMEOUT}'")
        if has_stale_members(connection):
            execute(connection, f"lock table {clause} in share row exclusive mode")
        for step in steps:
            execute(connection, step)
        # The table is locked from here on: no session can drop its key before the commit.
        now = find_table(connection, table.namespace, table.name)
        if now is None or (now.oid, lacks_identity(now)) != (table.oid, lacks_identity(table)):
            execute(connection, "rollback")
            return False
        if to:
            # EXPLAIN checks the same as an UPDATE or a DELETE would, for each partition, and runs no trigger.
            execute(connection, f"explain delete from {clause}")
        execute(connection, "commit")
        return True
    except psycopg2.Error as error:
        if connection.closed:
            raise
        execute(connection, "rollback")
        if isinstance(error, psycopg2.errors.LockNotAvailable):
            return False
        raise


def has_stale_members(connection: Connection) -> bool:
    """Return whether the server has the bug that loses changes of a table that joins a publication.

    If a transaction writes the table while it joins, later changes are not published. Fixed in 14.18, 15.13,
    16.9 and 17.5. On older servers a table may only join while no transaction writes it.
    """
    fixed = {14: 140018, 15: 150013, 16: 160009, 17: 170005}
    version = connection.server_version
    return version < fixed.get(version // 10_000, 0)


def drop(connection: Connection, publications: Sequence[str]) -> None:
    """Drop ``publications`` if they exist: all or none, since a single one would be mistaken for both."""
    if publications:
        execute(connection, f"drop publication if exists {', '.join(map(quote_identifier, publications))}")


def table_clause(table: TableInfo) -> str:
    """Return ``table`` as a publication names it: without ONLY, tables that inherit from it would be
    added.
    """
    return quoted_name(table) if table.partitioned else f"only {quoted_name(table)}"


def quoted_name(table: TableInfo) -> str:
    return quote_qualified(table.namespace, table.name)
