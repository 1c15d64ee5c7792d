"""Read tables: under an exported snapshot, in ranges of pages, or chunk by chunk alongside the stream.

COPY writes each value with the type's output function, as pgoutput does, so a row of the snapshot and the
same row of the stream are encoded to the same bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import psycopg2

from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError
from bwtui.model.sql import quote_identifier, quote_literal, quote_qualified
from bwtui.pgoutput.messages import Relation
from bwtui.pgoutput.transcode import Transcoder
from bwtui.source.catalog import KeyColumn, TableInfo, find_table, greater, key_of, last_key, load_relation
from bwtui.source.connection import (
    CURRENT_LSN,
    Connection,
    decoder_of,
    execute,
    query,
    server_encoding,
    statement_failed,
)
from bwtui.source.publication import PublishedTable, published_tables, table_clause
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
    #: A condition on ctid to select the rows of some pages; see `page_conditions`.
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
    queries = (_PUBLICATIONS_SQL.format(schemas=schemas), list(publications)), (_TABLES_SQL, list(oids))
    for sql, argument in queries:
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


# -- ranges of pages -----------------------------------------------------------------------------------------

# Ranges of a table's pages that sessions sharing one snapshot read in parallel.
#
# A snapshot shows each row in exactly one place, whatever is written meanwhile. So ranges of pages without
# gaps, the last of them open-ended, together have every row exactly once. This needs no knowledge of keys and
# no index, and only one session reads each page. From PostgreSQL 14 on, a range scans its own pages only. A
# range of a partitioned table covers those pages in every partition, so the right to read the parent is
# enough.


#: TID range scans exist since PostgreSQL 14; before, each range would read the whole table.
_RANGES_SINCE = 140000
_SIZES_SQL = """
select t.oid::bigint,
       coalesce(max(pg_catalog.pg_relation_size(c.oid))
                / pg_catalog.current_setting('block_size')::bigint, 0)::bigint,
       coalesce(sum(pg_catalog.pg_table_size(c.oid)), 0)::bigint,
       coalesce(bool_and(c.relkind = 'r' and a.amname = 'heap'), false)
  from unnest(%s::oid[]) as t (oid)
  left join lateral (select p.relid::oid as oid from pg_catalog.pg_partition_tree(t.oid) p where p.isleaf) p
         on true
  left join pg_catalog.pg_class c on c.oid = coalesce(p.oid, t.oid)
  left join pg_catalog.pg_am a on a.oid = c.relam
 group by t.oid
"""


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of a table with all of its partitions; ``pages`` is the page count of its largest file.

    ``bytes`` includes out-of-line (TOAST) values. ``is_heap``: the table's access method is heap, so its rows
    are in pages.
    """

    pages: int
    bytes: int
    is_heap: bool


def sizes(connection: Connection, oids: Sequence[int]) -> dict[int, TableSize]:
    """Return the current sizes of tables by oid. Raises psycopg2.Error."""
    rows = query(connection, _SIZES_SQL, list(oids))
    return {oid: TableSize(pages, size, is_heap) for oid, pages, size, is_heap in rows}


def page_conditions(size: TableSize, most_bytes: int, server_version: int) -> list[str]:
    """Return conditions that each select the rows of some pages: about ``most_bytes``, TOAST values included.

    Together they select every row once. A single empty condition means the whole table: it is too small for
    ranges, is not a heap, or is on a server before PostgreSQL 14.
    """
    count = min(-(-size.bytes // most_bytes), size.pages)
    if count < 2 or not size.is_heap or server_version < _RANGES_SINCE:
        return [""]
    step = -(-size.pages // count)
    firsts = range(0, size.pages, step)
    if len(firsts) < 2:
        return [""]
    ends = [*firsts[1:], None]
    return [_condition(first, end) for first, end in zip(firsts, ends, strict=True)]


def _condition(first: int, end: int | None) -> str:
    begins = f"ctid >= '({first},0)'::pg_catalog.tid"
    return begins if end is None else f"{begins} and ctid < '({end},0)'::pg_catalog.tid"


# -- chunks --------------------------------------------------------------------------------------------------

# Read one chunk of a table's rows alongside the stream, with the LSN at which the stream may merge it.
#
# Let S be the snapshot of the session that reads. ``high`` is the end of the inserted WAL, queried after S
# was taken, so every transaction that S shows has its commit before ``high``. Once the stream has passed
# ``high``, none of these transactions can arrive after the chunk's rows. `bwtui.relay.rows.chunk_window`
# handles the transactions that S does not show.
#
# Rows are read in key order, so a chunk begins after the last key of the previous chunk, whatever was written
# in between. Rows without a key are read by page.


#: Maximum attempts at a table that is altered right after the snapshot was taken.
_TRIES = 5
#: Page size, and the header sizes of a page and of the first page of a segment (PostgreSQL's
#: xlog_internal.h).
_WAL_PAGE, _PAGE_HEADERS = 8192, (24, 40)


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """The rows of a table to read; ``after`` is the `Chunk.last` of the previous chunk, or None to begin.

    ``key`` is the `Chunk.key` that ``after`` belongs to. ``keys`` requests single rows, each as the texts of
    its key columns in the relation's order. ``key_columns`` are the names that these columns had when the
    keys were recorded, if that was earlier. ``where`` is an SQL expression. ``unkeyed`` accepts a table
    without a key.
    """

    namespace: str
    name: str
    publications: tuple[str, ...]
    where: str = ""
    after: tuple[str, ...] | None = None
    key: tuple[str, ...] | None = None
    keys: Sequence[tuple[str, ...]] | None = None
    key_columns: tuple[str, ...] = ()
    rows: int = 10_000
    most_bytes: int = 32 << 20
    unkeyed: bool = False

    @property
    def qualified_name(self) -> str:
        """``schema.table``, unquoted."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows as lines of COPY's text format, all of one snapshot.

    ``high``: the stream must have passed this LSN before the rows are merged; 0 if the session was closed
    first, and then the caller has to query `inserted_lsn`. ``last``: where the next chunk begins, or None at
    the end. ``key``: the key's columns, in index order.
    """

    relation: Relation
    key: tuple[str, ...]
    lines: list[bytes]
    high: int
    last: tuple[str, ...] | None
    estimate: int | None


def read_chunk(
    connection: Connection, request: ChunkRequest, wait: Callable[[Connection, int], None]
) -> Chunk:
    """Read one chunk over ``connection``, which is in autocommit mode; no transaction is left open.

    ``wait(connection, oid)`` is called after the table was found to be published and before the snapshot is
    taken. It waits until every transaction is visible that has to be. Raises RefusedError if the table can't
    be read or is not published, ConnectionFailed, and whatever ``wait`` raises.
    """
    try:
        request = with_real_name(connection, request)
        for _ in range(_TRIES):
            table = _find(connection, request)
            published = _published(connection, request, table)
            wait(connection, table.oid)
            execute(connection, "begin isolation level repeatable read read only")
            try:
                return _read(connection, request, published)
            except TablesChanged:
                continue
            except _KeyTextRejected as error:
                refused: _KeyTextRejected = error
            finally:
                if not connection.closed:
                    connection.rollback()
                    execute(connection, "rollback")
            request = _without_unreadable(connection, request, refused)
    except BwtuiError:
        raise
    except psycopg2.errors.LockNotAvailable as error:
        raise ConnectionFailed(
            f"another session holds a lock on table {request.qualified_name}, probably to alter it",
            "the relay reads its rows once that session ends its transaction",
        ) from error
    except psycopg2.Error as error:
        failed = statement_failed(error)
        if connection.closed and isinstance(failed, ConnectionFailed):
            raise SessionEnded(failed.message, failed.hint) from error
        raise failed from error
    raise ConnectionFailed(
        f"table {request.qualified_name} keeps being altered", "the relay retries until it can read the rows"
    )


def with_real_name(connection: Connection, request: ChunkRequest) -> ChunkRequest:
    """Return ``request`` with the table's real schema and name, since either may contain dots.

    Raises psycopg2.Error, and RefusedError if several tables match.
    """
    whole = request.qualified_name
    if whole.count(".") == 1:
        return request
    parts = whole.split(".")
    splits = [(".".join(parts[:end]), ".".join(parts[end:])) for end in range(1, len(parts))]
    named = [table for split in splits if (table := find_table(connection, *split))]
    if len(named) > 1:
        raise RefusedError(
            f"there are {len(named)} tables with the qualified name {whole}: names or schemas contain dots",
            "rename one of them, or its schema",
        )
    return replace(request, namespace=named[0].namespace, name=named[0].name) if named else request


def _published(connection: Connection, request: ChunkRequest, table: TableInfo) -> PublishedTable:
    """Return how the table is published now.

    This comes before the snapshot, so that the stream delivers everything that the snapshot lacks.
    """
    for published in published_tables(connection, request.publications, (request.namespace, request.name)):
        return published
    if not (table.has_key or request.unkeyed):
        # It left the publication when it lost its key. Adding it would make PostgreSQL reject its UPDATE and
        # DELETE.
        raise _without_key(request.qualified_name)
    add = f"ALTER PUBLICATION {quote_identifier(request.publications[0])} ADD TABLE "
    add += f"{quote_identifier(request.namespace)}.{quote_identifier(request.name)}"
    raise TableNotPublished(
        f"no publication of the relay contains table {request.qualified_name}",
        f"add it first: {format_sql(add)}",
    )


def _find(connection: Connection, request: ChunkRequest) -> TableInfo:
    table = find_table(connection, request.namespace, request.name)
    if table is not None:
        return table
    raise TableNotPublished(
        f"table {request.qualified_name} does not exist", "check its name: it was dropped or renamed"
    )


def _read(connection: Connection, request: ChunkRequest, published: PublishedTable) -> Chunk:
    table = _find(connection, request)
    lock_tables(connection, [table])
    relation = load_relation(connection, table, published.columns)
    key = key_of(connection, table.oid)
    if not table.has_key:
        key = []
    _check_key(request, relation, tuple(column.name for column in key))
    conditions = [f"({text}\n)" for text in (published.row_filter, request.where) if text]
    source = SnapshotTable(relation, published.row_filter, table_clause(table), table.estimate)
    # A single key or page is never cut: all of its rows are taken.
    lines = _ChunkLines(request.most_bytes if request.rows > 1 else None)
    last: tuple[str, ...] | None = None
    try:
        if request.keys is not None:
            if not lines.take(connection, _rows_of_keys(source, key, conditions, request.keys)):
                raise ChunkTooLarge(request.qualified_name)
        elif key:
            is_cut = not lines.take(connection, _rows_after(source, key, conditions, request))
            last = (
                last_key(relation, key, lines.lines) if is_cut or len(lines.lines) == request.rows else None
            )
        else:
            sql, last = _pages(connection, table, source, conditions, request)
            if not lines.take(connection, sql):
                raise ChunkTooLarge(request.qualified_name)
    except (psycopg2.OperationalError, psycopg2.InterfaceError):
        raise
    except (psycopg2.errors.UndefinedColumn, psycopg2.errors.UndefinedTable) as error:
        if request.where:
            raise _refused(error, request, source, connection) from error
        # The table was altered between the snapshot and the lock.
        raise TablesChanged from error
    except psycopg2.Error as error:
        refused = _refused(error, request, source, connection)
        if request.keys and isinstance(error, psycopg2.DataError):
            raise _KeyTextRejected(refused, _in_order(relation, key)) from error
        raise refused from error
    names = tuple(column.name for column in key)
    high = 0 if connection.closed else inserted_lsn(connection)
    return Chunk(relation, names, lines.lines, high, last, table.estimate)


def _refused(
    error: psycopg2.Error, request: ChunkRequest, source: SnapshotTable, connection: Connection
) -> RefusedError:
    """Return the error for rows that PostgreSQL did not send: the fault of the condition or of the table."""
    if not request.where or isinstance(error, psycopg2.errors.DataCorrupted | psycopg2.errors.IndexCorrupted):
        return copy_refused(error, source, connection)
    if isinstance(error, psycopg2.DataError):
        # PostgreSQL's message may quote a row's value.
        return RefusedError(
            f"the condition fails on a row of {request.qualified_name}: "
            f"{type(error).__name__} (SQLSTATE {error.pgcode})",
            f"rewrite it so that it is true, false or null for every row: {request.where}",
        )
    reason = " ".join((error.diag.message_primary or str(error)).split())
    hint = f"a condition may not write, and must qualify names with their schema: {request.where}"
    if isinstance(error, psycopg2.errors.InsufficientPrivilege):
        if "for " not in reason or f"for table {request.name}" in reason or "for schema" in reason:
            return copy_refused(error, source, connection)
        hint = f"let its owner grant that right to role {connection.info.user}, or omit the condition"
    return RefusedError(f"PostgreSQL can't evaluate the condition: {reason}", hint)


class TableNotPublished(RefusedError):
    """The relay has no such table any more: it was dropped, renamed or taken out of the publication."""


class KeyChanged(RefusedError):
    """The table's key differs from the key of the previous chunk."""


class TableWithoutKey(RefusedError):
    """The table has no key, and ``unkeyed`` was not requested."""


class _KeyTextRejected(RefusedError):
    """PostgreSQL rejected the text of a key or a row's value."""

    def __init__(self, refused: RefusedError, key: Sequence[KeyColumn]) -> None:
        """Take the key's columns, in the order of the message key."""
        super().__init__(refused.message, refused.hint)
        self.key = key


class SessionEnded(ConnectionFailed):
    """The session that was reading was ended, for whatever reason."""


class ChunkTooLarge(ConnectionFailed):
    """The chunk is too large: request fewer rows. A list of keys or a range of pages can't be cut."""

    def __init__(self, table: str) -> None:
        super().__init__(f"a chunk of table {table} is too large", "the relay reads fewer rows at a time")


class _ChunkFull(Exception):
    """The chunk has reached its maximum size in bytes."""


class _ChunkLines:
    """Collects the lines of a chunk, up to a maximum size in bytes."""

    def __init__(self, most_bytes: int | None) -> None:
        self.lines: list[bytes] = []
        self._bytes_left = most_bytes

    def take(self, connection: Connection, sql: str) -> bool:
        """Read the rows of ``sql``; return False if the size limit cut them.

        In that case ``connection`` is closed. At least one line was read.
        """
        try:
            copy_out(connection, sql, self._add)
        except _ChunkFull:
            connection.close()
            return False
        return True

    def _add(self, line: bytes) -> None:
        if self._bytes_left is not None and self._bytes_left <= 0:
            raise _ChunkFull
        self.lines.append(line)
        if self._bytes_left is not None:
            self._bytes_left -= len(line)


def _check_key(request: ChunkRequest, relation: Relation, now: tuple[str, ...]) -> None:
    """Reject requested keys that do not match the table's current key. Raises RefusedError."""
    # Check this before the texts are cast to values: different columns have different types, or identify
    # different rows.
    in_order = tuple(column.name for column in relation.columns if column.name in now)
    if request.key_columns not in ((), in_order):
        raise KeyChanged(
            f"the key of table {request.qualified_name} changed from ({', '.join(request.key_columns)}) to "
            f"({', '.join(in_order) or 'none'})",
            "'bwtui snapshot' sends the rows under their current key",
        )
    lengths = {len(texts) for texts in request.keys or ()} - {len(now)}
    if (now and lengths) or request.key not in (None, now):
        raise KeyChanged(
            f"the key of table {request.qualified_name} has changed since its rows were requested",
            "request them again",
        )


def _select(source: SnapshotTable, conditions: Sequence[str], rest: str = "") -> str:
    columns = ", ".join(quote_identifier(column.name) for column in source.relation.columns)
    where = f" where {' and '.join(conditions)}" if conditions else ""
    return f"select {columns} from {source.source}{where}{rest}"


def _rows_after(
    source: SnapshotTable, key: Sequence[KeyColumn], conditions: list[str], request: ChunkRequest
) -> str:
    """Return the query for the rows after a key, in key order."""
    if request.after is not None:
        conditions = [*conditions, greater(key, request.after)]
    order = ", ".join(quote_identifier(column.name) for column in key)
    return _select(source, conditions, f" order by {order} limit {request.rows}")


def _rows_of_keys(
    source: SnapshotTable, key: Sequence[KeyColumn], conditions: list[str], keys: Sequence[tuple[str, ...]]
) -> str:
    """Return the query for the rows that have one of ``keys``."""
    if not key:
        raise RefusedError(
            f"table {source.relation.qualified_name} has no key, so single rows can't be selected",
            "send the whole table again: bwtui snapshot TABLE --unkeyed",
        )
    if not keys:
        return _select(source, [*conditions, "false"])
    in_order = _in_order(source.relation, key)
    listed = ", ".join(_literals(in_order, texts) for texts in keys)
    names = ", ".join(f"bwtui_{number}" for number in range(len(key)))
    equal = " and ".join(
        f"{column.operand()} {column.operator('=')} bwtui_wanted.bwtui_{number}"
        for number, column in enumerate(in_order)
    )
    matches = f"exists (select from (values {listed}) as bwtui_wanted ({names}) where {equal})"
    return _select(source, [*conditions, matches])


def _in_order(relation: Relation, key: Sequence[KeyColumn]) -> list[KeyColumn]:
    """Return the key's columns in the order of the message key."""
    places = [column.name for column in relation.columns]
    return sorted(key, key=lambda column: places.index(column.name))


def _literals(key: Sequence[KeyColumn], texts: Sequence[str]) -> str:
    return f"({', '.join(column.literal(text) for column, text in zip(key, texts, strict=True))})"


def _without_unreadable(
    connection: Connection, request: ChunkRequest, refused: _KeyTextRejected
) -> ChunkRequest:
    """Return ``request`` without keys that are not valid values of their types: no row can have them now.

    A label of an enum was renamed, or a type altered, since the keys were recorded. Raises ``refused`` if
    PostgreSQL accepts all of them.
    """
    keys = list(request.keys or ())
    readable = _readable(connection, refused.key, keys)
    if len(readable) == len(keys):
        raise refused
    return replace(request, keys=readable)


def _readable(
    connection: Connection, key: Sequence[KeyColumn], keys: list[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Return the keys that PostgreSQL accepts, found by bisection."""
    try:
        listed = ", ".join(_literals(key, texts) for texts in keys)
        query(connection, f"select from (values {listed}) as bwtui_wanted limit 0")
    except psycopg2.DataError:
        half = len(keys) // 2
        if not half:
            return []
        return _readable(connection, key, keys[:half]) + _readable(connection, key, keys[half:])
    return keys


def _without_key(table: str) -> TableWithoutKey:
    return TableWithoutKey(
        f"table {table} has no key: its rows would be in the topic twice",
        "add a primary key, or allow duplicates with --unkeyed",
    )


def _pages(
    connection: Connection,
    table: TableInfo,
    source: SnapshotTable,
    conditions: list[str],
    request: ChunkRequest,
) -> tuple[str, tuple[str, ...] | None]:
    """Return the query for a range of pages of a table without a key, and the next page and its file.

    If the table has a new file since, its rows are in different pages, and reading begins again at page 0.
    """
    name = source.relation.qualified_name
    if not request.unkeyed:
        raise _without_key(name)
    if table.partitioned:
        raise RefusedError(f"table {name} has partitions and no key", "add a primary key to it")
    size = """select pg_catalog.pg_relation_size(%s::oid), pg_catalog.current_setting('block_size')::int,
                     pg_catalog.pg_relation_filenode(%s::oid)::text"""
    [(length, block, file)] = query(connection, size, table.oid, table.oid)
    page, *former = request.after or ("0", file)
    first, pages = int(page) if former == [file] else 0, length // block
    rows_a_page = max(1, (table.estimate or 0) // max(1, pages))
    end = first + max(1, request.rows // rows_a_page)
    conditions = [*conditions, f"ctid >= '({first},0)'::pg_catalog.tid"]
    if end < pages:
        conditions.append(f"ctid < '({end},0)'::pg_catalog.tid")
    return _select(source, conditions), (str(end), file) if end < pages else None


def inserted_lsn(connection: Connection) -> int:
    """Return the end of the inserted WAL as an LSN that a stream can reach.

    If nothing but a header is on the last page yet, PostgreSQL reports the LSN after that header, whereas a
    stream ends before it. On a standby, this is the end of the replayed WAL, all of which is visible there.
    """
    sql = f"""select case when pg_catalog.pg_is_in_recovery()
                     then ({CURRENT_LSN}::pg_catalog.pg_lsn - '0/0')::bigint
                     else (pg_catalog.pg_current_wal_insert_lsn() - '0/0')::bigint end"""
    [(lsn,)] = query(connection, sql)
    end = int(lsn)
    into_page = end % _WAL_PAGE
    return end - into_page if into_page in _PAGE_HEADERS else end


_WRITERS_SQL = """
select distinct l.virtualtransaction from pg_catalog.pg_locks l
 where l.locktype = 'relation' and l.granted
   and l.pid is distinct from pg_catalog.pg_backend_pid()
   and l.mode in ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
   and l.database = (select d.oid from pg_catalog.pg_database d
                      where d.datname = pg_catalog.current_database())
   and l.relation in (select %s::oid union all
                      select relid::oid from pg_catalog.pg_partition_tree(%s::oid))
"""
# A standby has no locks of the primary's writers, but it has replayed their first records. Their transaction
# IDs are below the next one, which age() uses there, and at or above the oldest one that runs.
_PRIMARY_SQL = """
select (pg_catalog.age('3'::pg_catalog.xid)::bigint + 3) & 4294967295,
       pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::numeric % 4294967296
 where pg_catalog.pg_is_in_recovery()
"""


class WriterTransactions(NamedTuple):
    """Transactions that may have written a table before it was seen to be published.

    ``sessions`` are those of this server, as virtual transaction IDs of pg_locks. ``before``: on a standby,
    every transaction of the primary below this ID (32 bits).
    """

    sessions: frozenset[str]
    before: int | None = None


def writers(connection: Connection, oid: int) -> WriterTransactions:
    """Return the transactions that write table ``oid`` or a partition of it.

    A table that has just joined a publication is not published for changes that they made earlier.
    """
    sessions = frozenset(str(row[0]) for row in query(connection, _WRITERS_SQL, oid, oid))
    on_primary = query(connection, _PRIMARY_SQL)
    return WriterTransactions(sessions, int(on_primary[0][0]) if on_primary else None)


def still_writing(connection: Connection, oid: int, before: WriterTransactions) -> set[str]:
    """Return identifiers of the writers ``before`` that have not ended yet; an empty set once all have."""
    remaining = before.sessions & writers(connection, oid).sessions
    if before.before is None:
        return set(remaining)
    oldest = [int(row[1]) for row in query(connection, _PRIMARY_SQL)]
    # Transaction IDs wrap around. Once the standby is promoted, no transaction of the former primary runs.
    return set(remaining) | {str(one) for one in oldest if 0 < (before.before - one) & 0xFFFFFFFF < 1 << 31}


# Not pg_current_snapshot(): its list lacks the transactions that began after the last one to end. A
# transaction holds the lock on its own ID until other sessions see it as ended.
RUNNING_SQL = """
select distinct transactionid::text from pg_catalog.pg_locks
 where locktype = 'transactionid' and granted and mode = 'ExclusiveLock'
   and not pg_catalog.pg_is_in_recovery()
"""


def in_progress(connection: Connection) -> set[int]:
    """Return the transactions (32 bits, subtransactions included) that other sessions can't see yet.

    The set is empty on a standby, where a commit is replayed, and so visible, before its WAL is sent on.
    """
    return {int(row[0]) & 0xFFFFFFFF for row in query(connection, RUNNING_SQL)}


def oldest_running(connection: Connection) -> int | None:
    """Return the oldest running transaction (32 bits): all earlier ones are visible or were rolled back.

    Return None on a standby: the primary may still hide what the standby shows.
    """
    sql = """select pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text
              where not pg_catalog.pg_is_in_recovery()"""
    rows = query(connection, sql)
    return int(rows[0][0]) & 0xFFFFFFFF if rows else None


def idle_in_transaction(connection: Connection) -> set[int]:
    """Return the transactions (32 bits) of sessions that are idle in a transaction.

    They wait for their clients, so they have not begun to commit.
    """
    sql = """select backend_xid::text from pg_catalog.pg_stat_activity
              where backend_xid is not null and state like 'idle in transaction%'"""
    return {int(row[0]) & 0xFFFFFFFF for row in query(connection, sql)}
