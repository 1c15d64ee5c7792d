"""The snapshot: sessions that import the exported snapshot, and rows in COPY's text format.

COPY writes each value with the type's output function, as pgoutput does, so a row of the snapshot and the
same row of the stream are encoded to the same bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg2

from bwtui.errors import RefusedError
from bwtui.model.sql import quote_identifier, quote_literal, quote_qualified
from bwtui.pgoutput.messages import Relation
from bwtui.pgoutput.transcode import Transcoder
from bwtui.source.catalog import TableInfo, load_relation
from bwtui.source.connection import Connection, decoder_of, execute, query, server_encoding
from bwtui.source.publication import PublishedTable, table_clause
from bwtui.source.sql_hints import exclude_option, format_sql

#: A lock that is not available within this time is taken to be blocked until the waiting session gives up.
_LOCK_WAIT = "1s"
#: Lock timeout of COPY, for example on an index of a TOAST table. Its holder may in turn wait for us, a
#: deadlock that PostgreSQL can't detect.
_COPY_LOCK_WAIT = "10min"


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """One table to copy: its relation as pgoutput would describe it, and the publication's row filter."""

    relation: Relation
    row_filter: str | None
    #: Its name in FROM: with ONLY, as in pgoutput, since the rows of an inheriting table belong to that
    #: table.
    source: str
    #: pg_class.reltuples, or None if the table was never analysed.
    estimate: int | None
    has_key: bool = True
    #: A condition on ctid to select the rows of some pages; see `bwtui.source.chunks.page_ranges`.
    pages: str = ""


class _RowWriter:
    """The file object that COPY writes to: psycopg2 passes one row per call."""

    def __init__(self, on_row: Callable[[bytes], None]) -> None:
        self.write = on_row


def import_snapshot(connection: Connection, snapshot: str) -> Connection:
    """Let the session see exactly the exported ``snapshot``, and return it. Raises psycopg2.Error.

    Row security is switched off: where it would hide rows, COPY fails instead of leaving them out.
    """
    execute(connection, "set row_security = off")
    execute(connection, "begin isolation level repeatable read read only")
    execute(connection, f"set transaction snapshot {quote_literal(snapshot)}")
    return connection


class TablesChanged(Exception):
    """A table was altered between the snapshot's export and its lock: another snapshot is needed."""


_UNCHANGED_SQL = """
select count(*) from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where c.oid = any(%s)
   and (coalesce(pg_catalog.pg_relation_filenode(c.oid), 0) <> c.relfilenode
        or pg_catalog.to_regclass(pg_catalog.format('%%I.%%I', n.nspname, c.relname)) is distinct from c.oid)
"""


# A row's oid and xmin identify its version.
_PUBLICATIONS_SQL = """
with p as (select oid, xmin from pg_catalog.pg_publication where pubname = any(%s))
select oid, xmin::text from p
 union all select r.oid, r.xmin::text from pg_catalog.pg_publication_rel r join p on p.oid = r.prpubid
{schemas} order by 1
"""
_SCHEMAS = """
 union all select n.oid, n.xmin::text from pg_catalog.pg_publication_namespace n join p on p.oid = n.pnpubid
"""
# Not pg_class.xmin, which a GRANT changes too.
_TABLES_SQL = """
with recursive tree as (
       select unnest(%s::oid[]) as oid
        union select i.inhrelid from tree join pg_catalog.pg_class c on c.oid = tree.oid and c.relkind = 'p'
                join pg_catalog.pg_inherits i on i.inhparent = tree.oid)
select c.oid, n.nspname, c.relname, c.relpersistence::text, c.relispartition,
       (select pg_catalog.md5(pg_catalog.string_agg(pg_catalog.concat_ws(
                 ' ', a.attname, a.atttypid, a.attisdropped, a.attgenerated), ' ' order by a.attnum))
          from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attnum > 0)
  from tree join pg_catalog.pg_class c using (oid) join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 order by 1
"""


_BY_NAME_SQL = """
select c.oid from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  join unnest(%s::text[], %s::text[]) as published (nspname, relname) using (nspname, relname)
"""


def tables_at_export(
    snapshot: Connection, present: Connection, published: Sequence[PublishedTable]
) -> list[int]:
    """Return the oids of those ``published`` tables that existed at the export, in whatever form.

    A table that was unlogged then is not listed for copying, and its rows from before SET LOGGED are not in
    the stream either. A table created since is completely in the stream. Raises psycopg2.Error.
    """
    names = [table.namespace for table in published], [table.name for table in published]
    oids = [row[0] for row in query(present, _BY_NAME_SQL, *names)]
    return [
        row[0] for row in query(snapshot, "select oid from pg_catalog.pg_class where oid = any(%s)", oids)
    ]


def check_unchanged(
    snapshot: Connection, present: Connection, publications: Sequence[str], oids: Sequence[int]
) -> None:
    """Check that ``publications`` and the tables ``oids`` are the same in the ``snapshot`` as at ``present``.

    The view pg_publication_tables shows the latest catalog, whatever the snapshot of the session that queries
    it. So its result is valid for the snapshot only if nothing that it depends on has changed in between:
    publications with their tables and schemas, and tables with their names, columns, partitions and
    persistence. These are read from the catalog's own tables, which do follow the snapshot. Call this after
    the view was read and the tables were locked. Raises TablesChanged.
    """
    schemas = _SCHEMAS if snapshot.server_version >= 150000 else ""
    questions = (_PUBLICATIONS_SQL.format(schemas=schemas), list(publications)), (_TABLES_SQL, list(oids))
    for sql, argument in questions:
        if query(snapshot, sql, argument) != query(present, sql, argument):
            raise TablesChanged


def lock_tables(
    connection: Connection, tables: Sequence[TableInfo], on_answer: Callable[[], None] = lambda: None
) -> None:
    """Keep ``tables`` and their partitions from being altered until the snapshot's session ends.

    A table that was altered since the export must not be copied: a rewritten table looks empty to an older
    snapshot (PostgreSQL documentation, "MVCC Caveats"), and a different table may have its name by now. So
    the catalog's rows, as the snapshot sees them, are compared with the present. ``on_answer`` is called
    after each table. Raises TablesChanged, RefusedError if a right is missing, or psycopg2.Error.
    """
    if not tables:
        return
    for table in tables:
        try:
            # Like LOCK TABLE in ACCESS SHARE MODE, which requires more than the right to some columns.
            execute(connection, f"select from {table_clause(table)} limit 0")
        except (psycopg2.errors.UndefinedTable, psycopg2.errors.InvalidSchemaName) as error:
            raise TablesChanged from error
        except psycopg2.errors.InsufficientPrivilege as error:
            reason = error.diag.message_primary or "permission denied"
            hint = right_to_read(reason, table, connection)
            raise RefusedError(f"the snapshot can't read {table.qualified_name}: {reason}", hint) from error
        on_answer()
    leaves = "select p.relid::oid from unnest(%s::oid[]) o, lateral pg_catalog.pg_partition_tree(o) p"
    oids = [table.oid for table in tables]
    partitions = [row[0] for row in query(connection, leaves, oids)]
    if query(connection, _UNCHANGED_SQL, [*oids, *partitions])[0][0]:
        raise TablesChanged


def lock_at_once(connection: Connection, tables: Sequence[SnapshotTable]) -> SnapshotTable | None:
    """Lock ``tables`` in a session alongside the one of `lock_tables`; return one that is blocked, if any.

    Another session may wait to alter a table until the first one ends, and any session that requests a lock
    now queues after it: without end, if the first one waits for us, a deadlock that PostgreSQL can't detect.
    Tables that are already locked stay locked. Raises psycopg2.Error.
    """
    execute(connection, f"set lock_timeout = '{_LOCK_WAIT}'")
    locked = _first_locked(connection, tables)
    execute(connection, f"set lock_timeout = '{_COPY_LOCK_WAIT}'")
    return locked


def _first_locked(connection: Connection, tables: Sequence[SnapshotTable]) -> SnapshotTable | None:
    for table in tables:
        execute(connection, "savepoint locking")
        try:
            execute(connection, f"select from {table.source} limit 0")
        except psycopg2.errors.LockNotAvailable:
            execute(connection, "rollback to savepoint locking")
            return table
        execute(connection, "release savepoint locking")
    return None


def load_tables(
    connection: Connection,
    tables: Sequence[TableInfo],
    published: Sequence[PublishedTable],
    on_answer: Callable[[], None] = lambda: None,
) -> list[SnapshotTable]:
    """Return the published columns and rows of ``tables`` to copy; ``on_answer`` is called after each
    table.
    """
    by_name = {(table.namespace, table.name): table for table in published}
    loaded = []
    for table in tables:
        entry = by_name[table.namespace, table.name]
        relation = load_relation(connection, table, entry.columns)
        source = table_clause(table)
        loaded.append(SnapshotTable(relation, entry.row_filter, source, table.estimate, table.has_key))
        on_answer()
    return loaded


def copy_rows(connection: Connection, table: SnapshotTable, on_row: Callable[[bytes], None]) -> None:
    """Pass every row of ``table`` to ``on_row``, as a line of COPY's text format. Raises psycopg2.Error."""
    columns = ", ".join(quote_identifier(column.name) for column in table.relation.columns)
    conditions = [f"({condition}\n)" for condition in (table.row_filter, table.pages) if condition]
    where = f" where {' and '.join(conditions)}" if conditions else ""
    copy_out(connection, f"select {columns} from {table.source}{where}", on_row)


def copy_out(connection: Connection, sql: str, on_row: Callable[[bytes], None]) -> None:
    """Pass every row of a query to ``on_row``, as a line of COPY's text format. Raises psycopg2.Error.

    PostgreSQL does not convert the text, since it rejects what it can't convert; see
    `bwtui.pgoutput.transcode`.
    """
    decode = decoder_of(connection)
    if decode is not None:
        transcoder, give = Transcoder(decode), on_row

        def on_row(line: bytes) -> None:
            give(transcoder.line(line))

    copy = f"copy ({sql}) to stdout (encoding '{server_encoding(connection)}')"
    with connection.cursor() as cursor:
        cursor.copy_expert(copy, _RowWriter(on_row))


def copy_refused(error: psycopg2.Error, table: SnapshotTable, connection: Connection) -> RefusedError:
    """Return the error for a table that PostgreSQL does not copy, with a hint by SQLSTATE."""
    reason = " ".join((error.diag.message_primary or str(error)).split())
    name, state = table.relation.qualified_name, error.pgcode or ""
    without = f"exclude the table with {exclude_option([name])}"
    hint = f"check PostgreSQL's log for SQLSTATE {state}, or {without}"
    if isinstance(error, psycopg2.errors.InsufficientPrivilege):
        hint = right_to_read(reason, table.relation, connection)
    elif isinstance(error, psycopg2.errors.DataCorrupted | psycopg2.errors.IndexCorrupted):
        hint = f"the table's files are damaged: restore them, or {without}"
    elif isinstance(error, psycopg2.DataError):
        # PostgreSQL's message may quote a row's value.
        reason = f"{type(error).__name__} (SQLSTATE {state})"
        if table.row_filter:
            hint = f"fix the publication's row filter, or the row for which it fails: {table.row_filter}"
    return RefusedError(f"the snapshot can't read {name}: {reason}", hint)


def right_to_read(reason: str, relation: Relation | TableInfo, connection: Connection) -> str:
    """Return the statement that lets the role of ``connection`` read a table that it could not read."""
    role = quote_identifier(connection.info.user)
    if "row-level security" in reason:
        return f"let a superuser run: {format_sql(f'ALTER ROLE {role} BYPASSRLS')}"
    if "permission denied for schema" in reason:
        schema = quote_identifier(relation.namespace)
        return f"let its owner run: {format_sql(f'GRANT USAGE ON SCHEMA {schema} TO {role}')}"
    table = quote_qualified(relation.namespace, relation.name)
    return f"let its owner run: {format_sql(f'GRANT SELECT ON {table} TO {role}')}"
