"""Read one chunk of a table's rows alongside the stream, with the LSN at which the stream may merge it.

Let S be the snapshot of the session that reads. ``high`` is the end of the inserted WAL, queried after S was
taken, so every transaction that S shows has its commit before ``high``. Once the stream has passed ``high``,
none of these transactions can arrive after the chunk's rows. `bwtui.relay.backfill.chunk_window` handles the
transactions that S does not show.

Rows are read in key order, so a chunk begins after the last key of the previous chunk, whatever was written
in between. Rows without a key are read by page.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import psycopg2

from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError
from bwtui.model.sql import quote_identifier
from bwtui.pgoutput.messages import Relation
from bwtui.source.catalog import TableInfo, find_table, load_relation
from bwtui.source.connection import Connection, execute, query, statement_failed
from bwtui.source.key_columns import KeyColumn, greater, key_of, last_key
from bwtui.source.publication import PublishedTable, published_tables, table_clause
from bwtui.source.slot import CURRENT_LSN
from bwtui.source.snapshot import SnapshotTable, TablesChanged, copy_out, copy_refused, lock_tables
from bwtui.source.sql_hints import format_sql

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
        self._left = most_bytes

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
        if self._left is not None and self._left <= 0:
            raise _ChunkFull
        self.lines.append(line)
        if self._left is not None:
            self._left -= len(line)


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
