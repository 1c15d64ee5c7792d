"""The publications: which tables, and which of their operations, PostgreSQL sends.

bwtui makes publications when the named one is missing, both in one transaction, and never FOR ALL TABLES:

- ``<name>`` FOR TABLE … of the keyed tables.
- ``<name>_unkeyed`` of the unkeyed ones, which publishes only inserts and truncates: PostgreSQL refuses an
  application's UPDATE and DELETE on a table without replica identity that a publication of updates has, and
  a relay must never break the application that it watches. For the same reason no table joins by itself.

See docs/adr/0037-lists-of-tables.md; `bwtui.source.coverage` tells what they leave out.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import psycopg2

from bwtui.errors import RefusedError
from bwtui.model.sql import quote_identifier, quote_qualified
from bwtui.source.catalog import TableInfo
from bwtui.source.connection import Connection, execute, query, statement_failed
from bwtui.source.printed import printed

_PUBLISHED_SQL = """
select t.schemaname, t.tablename, {columns}, {rowfilter}, p.pubinsert, p.pubupdate, p.pubdelete
  from pg_catalog.pg_publication_tables t join pg_catalog.pg_publication p using (pubname)
 where t.pubname = any(%s) and (%s::text is null or (t.schemaname = %s and t.tablename = %s)) order by 1, 2
"""
#: What `create` waits for a table that is altered or vacuumed, while others wait for those that it has.
_LOCK_TIMEOUT = "10s"
#: PostgreSQL's NAMEDATALEN without its end.
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
    """Return the name of the publication of unkeyed tables that goes with ``publication``.

    PostgreSQL would cut a longer name than it takes, and what it made would not be found again.
    """
    name = publication + _UNKEYED
    if len(name.encode()) <= _NAME_BYTES:
        return name
    digest = "_" + hashlib.sha256(publication.encode()).hexdigest()[:8]
    room = _NAME_BYTES - len(digest) - len(_UNKEYED)
    return publication.encode()[:room].decode(errors="ignore") + digest + _UNKEYED


def existing(connection: Connection, publication: str) -> tuple[str, ...]:
    """Return ``publication``, and its unkeyed companion if that exists too; nothing without the first."""
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
    """Return the tables of ``publications``; column lists and row filters exist from PostgreSQL 15 on.

    A row of a table that stands in several of them is published where any one of them does. ``only`` is the
    schema and name of the one that is wanted.
    """
    return merged(entries(connection, publications, only))


def merged(published: Sequence[PublishedTable]) -> list[PublishedTable]:
    """Return what `entries` returned as one entry for each table."""
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
    wanted = (None, None) if only is None else only
    sql = _PUBLISHED_SQL.format(
        columns="attnames::text[]" if modern else "null", rowfilter="rowfilter" if modern else "null"
    )
    return [
        PublishedTable(namespace, name, None if columns is None else tuple(columns), row_filter, *operations)
        for namespace, name, columns, row_filter, *operations in query(
            connection, sql, list(publications), wanted[0], *wanted
        )
    ]


def _both(one: PublishedTable, other: PublishedTable) -> PublishedTable:
    either = None
    if one.row_filter is not None and other.row_filter is not None:
        either = f"({one.row_filter}) or ({other.row_filter})"
    return replace(
        other,
        row_filter=either,
        inserts=one.inserts or other.inserts,
        updates=one.updates or other.updates,
        deletes=one.deletes or other.deletes,
    )


def create(connection: Connection, publication: str, tables: Sequence[TableInfo]) -> tuple[str, ...]:
    """Create both publications for ``tables``, or none, and return their names.

    The companion is made without tables too: a relay reads only what was there when its stream began.
    Raises RefusedError, or ConnectionFailed.
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
        hint = f"let a superuser run: {printed(*statements)}"
        if isinstance(error, psycopg2.errors.LockNotAvailable):
            hint = "a table is being altered or vacuumed: start again when that is done"
        elif isinstance(error, psycopg2.errors.DuplicateObject):
            hint = drop_alone(publication)
        raise RefusedError(f"can't create publication {publication}: {plain}", hint) from error
    return publication, unkeyed_name(publication)


def drop_alone(publication: str) -> str:
    """Return what helps where the companion of ``publication`` is there, and itself is not."""
    alone = printed(f"drop publication {quote_identifier(unkeyed_name(publication))}")
    return f"start again; if that does not help and nothing reads it, run: {alone}"


def create_statements(
    publication: str, tables: Sequence[TableInfo], *, generated: bool = False
) -> tuple[str, str]:
    """Return what makes the publications of ``tables``: the one of the keyed, and the one of the unkeyed.

    ``generated``: generated columns of the keyed ones too, which can be published since PostgreSQL 18.
    """
    unkeyed = [table for table in tables if lacks_identity(table)]
    keyed = [table for table in tables if not lacks_identity(table)]
    options = "publish_generated_columns = stored, " if generated else ""
    return _create_statement(publication, keyed, options), create_unkeyed_statement(publication, unkeyed)


def create_unkeyed_statement(publication: str, tables: Sequence[TableInfo]) -> str:
    """Return what makes the companion of ``publication``, for ``tables``."""
    return _create_statement(unkeyed_name(publication), tables, "publish = 'insert, truncate', ")


def _create_statement(name: str, tables: Sequence[TableInfo], options: str) -> str:
    target = f" for table {', '.join(map(table_clause, tables))}" if tables else ""
    made = f"create publication {quote_identifier(name)}{target}"
    return f"{made} with ({options}publish_via_partition_root = true)"


def lacks_identity(table: TableInfo) -> bool:
    """Whether PostgreSQL would refuse UPDATE and DELETE on ``table``, were they published."""
    return not table.has_key and table.replica_identity != "f"


def drop(connection: Connection, publications: Sequence[str]) -> None:
    """Drop ``publications``, where they exist: all or none, for one alone would be taken for both."""
    if publications:
        execute(connection, f"drop publication if exists {', '.join(map(quote_identifier, publications))}")


def table_clause(table: TableInfo) -> str:
    """Return ``table`` as a publication names it: without ONLY its inheriting tables would come along."""
    return quoted_name(table) if table.partitioned else f"only {quoted_name(table)}"


def quoted_name(table: TableInfo) -> str:
    """Return ``"schema"."table"``, as SQL takes it."""
    return quote_qualified(table.namespace, table.name)
