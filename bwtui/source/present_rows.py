"""Read the present values of columns that the replication stream omits because they did not change."""

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg2
import psycopg2.extensions
from psycopg import pq
from psycopg2 import errorcodes

from bwtui.command_log import COMMANDS, POSTGRES
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, RowError
from bwtui.model.sql import quote_identifier, quote_literal, quote_qualified
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.messages import UNCHANGED, Column, Field, Relation
from bwtui.source.catalog import Attribute, KeyColumn, attributes, key_of, present_columns, text_of_equals
from bwtui.source.connection import Connection, execute, query, server_encoding
from bwtui.source.raw_session import ServerError, connect_raw, execute_raw, server_error
from bwtui.source.raw_stream import StreamServer
from bwtui.source.snapshot import copy_out
from bwtui.source.sql_hints import hint_for

# Query PostgreSQL alongside the stream, from any thread: a row or the catalog as they are now.

T = TypeVar("T")


class QueryPool:
    """Runs queries over pooled sessions; an abandoned query keeps its session until it ends."""

    def __init__(self, server: StreamServer) -> None:
        self._server = server
        #: Sessions that no query uses at present.
        self._idle: deque[Connection] = deque()
        self._is_closed = False

    def run(self, query: Callable[[Connection], T]) -> T:
        """Return the result of ``query``; blocks until it is there.

        Raises ConnectionFailed, which is worth a retry, RowError for an invalid value, or RefusedError.
        """
        try:
            idle = self._idle
            session = self._take(idle)
            try:
                return query(session)
            except (psycopg2.OperationalError, psycopg2.InterfaceError):
                session.close()
                raise
            finally:
                self._give_back(session, idle)
        except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
            reason = " ".join(str(error).split())
            hint = "the relay retries; check that PostgreSQL runs and has free connections"
            raise ConnectionFailed(f"a query to PostgreSQL failed: {reason}", hint) from error
        except (psycopg2.DataError, psycopg2.errors.DataCorrupted) as error:
            # PostgreSQL's message may quote a row's value.
            raise RowError(
                f"PostgreSQL rejects a value of the row (SQLSTATE {error.pgcode})",
                "fix the row in PostgreSQL, or write such rows to the dead letters with --on-error log",
            ) from None
        except psycopg2.Error as error:
            raise RefusedError(f"PostgreSQL: {error.diag.message_primary}", hint_for(error)) from error

    def close(self) -> None:
        """Close the sessions, those in use as soon as their queries end."""
        self._is_closed = True
        self.renew()

    def renew(self) -> None:
        """Close the idle sessions: the next query opens a new one."""
        # A query in progress returns its session to the former pool, and it is closed there.
        former, self._idle = self._idle, deque()
        while former:
            former.pop().close()

    def _take(self, idle: deque[Connection]) -> Connection:
        try:
            return idle.pop()
        except IndexError:
            session = self._server.connect()
        # A policy that hides rows must make a query fail: a row that is not found counts as deleted.
        execute(session, "set row_security = off")
        # A query that is blocked by a lock is repeated.
        execute(session, "set lock_timeout = '2s'")
        return session

    def _give_back(self, session: Connection, idle: deque[Connection]) -> None:
        if self._is_closed or idle is not self._idle:
            session.close()
        elif not session.closed:
            idle.append(session)


_NAME_SQL = """select n.nspname, c.relname, c.relkind = 'p' from pg_catalog.pg_class c
                 join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = %s"""

#: text, character varying, bpchar.
_TEXTS = frozenset((25, 1043, 1042))
#: Maximum attempts: the table may be altered between the catalog query and the query for its rows.
_TRIES = 5


class _ReplyTooLarge(Exception):
    """The rows received so far have reached the maximum size."""


@dataclass(frozen=True, slots=True)
class _PresentTable:
    """A table as it is now, by the columns of an earlier relation."""

    source: str
    #: Each earlier column and its present name, or None if it was dropped.
    names: Mapping[str, str | None]
    #: The same, and None also if its values are no longer readable as the earlier type.
    readable: Mapping[str, str | None]
    attributes: list[Attribute]


class PresentRows:
    """Reads many rows of a table with one statement."""

    def __init__(self) -> None:
        #: The key of each table by its oid, with the columns that the table had then: the query for the key
        #: takes as long as one for a thousand rows.
        self._keys: dict[int, tuple[list[Attribute], list[KeyColumn]]] = {}

    def read(
        self,
        connection: Connection,
        relation: Relation,
        keys: Sequence[Mapping[str, bytes]],
        columns: Sequence[str],
        most_bytes: int,
    ) -> dict[int, Sequence[Field] | None]:
        """Return the result of `present_fields` for each of ``keys``, by its index.

        Keys are missing, possibly including the first, if the rows exceed ``most_bytes`` together; the
        session may then be closed. If one statement can't read them all, only the first is returned. Raises
        psycopg2.Error.
        """
        if len(keys) > 1:
            try:
                rows = self._read_many(connection, relation, keys, columns, most_bytes)
                if rows or connection.closed:
                    return rows
            except (psycopg2.DataError, psycopg2.IntegrityError, psycopg2.ProgrammingError):
                # `present_fields` handles these errors.
                self._keys.pop(relation.oid, None)
        return {0: present_fields(connection, relation, keys[0], columns)}

    def _read_many(
        self,
        connection: Connection,
        relation: Relation,
        keys: Sequence[Mapping[str, bytes]],
        requested: Sequence[str],
        most_bytes: int,
    ) -> dict[int, Sequence[Field] | None]:
        """Return the rows; an empty dict if one statement can't read them."""
        table = _table(connection, relation)
        if table is None:
            return dict.fromkeys(range(len(keys)))
        readable = [table.readable[column] for column in requested]
        selected = [name for name in readable if name is not None]
        by_name = {one.name: one for one in self._key(connection, relation.oid, table.attributes)}
        columns = {column: one for column in keys[0] if (one := by_name.get(table.names[column] or ""))}
        if len(columns) < len(keys[0]) or not selected:
            return {}
        is_utf8 = server_encoding(connection) == "UTF8"
        listed, texts = _listed(keys, columns)
        literals = [_literal(text, is_utf8=is_utf8) for text in texts]
        if None in literals:
            return {}
        conditions = " and ".join(
            f'{one.operand()} {one.operator("=")} k."bwtui.{number}"'
            for number, one in enumerate(columns.values())
        )
        # With the offset PostgreSQL looks each key up in the index; without it, it may read the whole table.
        by_index = " offset 0" if len(columns) == len(by_name) else ""
        chosen = ", ".join(map(quote_identifier, selected))
        lateral = f"lateral (select {chosen} from {table.source} where {conditions}{by_index}) as t"
        source = f"{listed} cross join {lateral.replace('%', '%%')}"
        rows: dict[int, Sequence[Field] | None] = dict.fromkeys(range(len(keys)))
        if is_utf8 and {one.type_oid for one in table.attributes if one.name in selected} <= _TEXTS:
            for number, fits, *fields in _texts(connection, source, selected, texts, most_bytes):
                if fits:
                    rows[number] = _with_gaps(readable, fields)
                else:
                    del rows[number]
            return rows
        sql = f'select k."bwtui.n", t.* from {source}' % tuple(literals)
        lines, is_whole = _some(connection, sql, most_bytes)
        if not is_whole:
            rows.clear()
        for line in lines:
            place, *fields = unescape_copy_line(line)
            assert isinstance(place, bytes)
            rows[int(place)] = _with_gaps(readable, fields)
        return rows

    def _key(self, connection: Connection, oid: int, columns: list[Attribute]) -> list[KeyColumn]:
        """Return the table's key, cached as long as the table has the same columns and key columns."""
        before, key = self._keys.get(oid, (None, []))
        if before != columns:
            key = key_of(connection, oid)
            self._keys[oid] = columns, key
        return key


def _listed(keys: Sequence[Mapping[str, bytes]], columns: Mapping[str, KeyColumn]) -> tuple[str, list[bytes]]:
    """Return the keys with their numbers as a relation ``k``, and the texts of its parameters."""
    types = [one.type_name.replace("%", "%%") for one in columns.values()]
    names = ", ".join(f'"bwtui.{number}"' for number in range(len(types)))
    # As in `_equal`, from a literal directly to the type, never by way of text.
    if not any(name.endswith("[]") for name in types):
        arrays = ", ".join(f"pg_catalog.unnest(cast(%s as {name}[]))" for name in types)
        listed = f"select pg_catalog.generate_series(0, {len(keys) - 1}), {arrays}"
        texts = [_array([key[column] for key in keys]) for column in columns]
    else:
        # An array of arrays would be unnested to their elements. In VALUES the literals of the other rows
        # take the types of the first (PostgreSQL documentation, "UNION, CASE, and Related Constructs"), which
        # is faster than resolving a type's name again, but slower than an array.
        first, plain_row = ", ".join(f"cast(%s as {name})" for name in types), ", ".join(["%s"] * len(types))
        rows = [f"({number}, {plain_row if number else first})" for number in range(len(keys))]
        listed = f"values {', '.join(rows)}"
        texts = [key[column] for key in keys for column in columns]
    return f'({listed}) as k ("bwtui.n", {names})', texts


def _array(texts: Sequence[bytes]) -> bytes:
    """Return PostgreSQL's text of an array with these elements."""
    if any(b"\\" in text or b'"' in text for text in texts):
        texts = [text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') for text in texts]
    return b'{"' + b'","'.join(texts) + b'"}'


def _texts(
    connection: Connection, source: str, names: Sequence[str], keys: Sequence[bytes], most_bytes: int
) -> list[tuple[Any, ...]]:
    """Return the number of each row, whether it fits within ``most_bytes``, and its texts if so.

    COPY examines each byte for what it has to escape, which takes the server as long as finding the row. The
    size of a text is found without reading it, so rows that do not fit are not read.
    """
    texts = [f"t.{quote_identifier(name)}".replace("%", "%%") for name in names]
    size = " + ".join(f"coalesce(pg_catalog.octet_length({text}), 0)" for text in texts)
    aliases = [f'"bwtui.{number}"' for number in range(len(names))]
    fitting = ", ".join(f"case when fits then {alias} end" for alias in aliases)
    sql = (
        f"select number, fits, {fitting} from ("
        f'select k."bwtui.n", pg_catalog.sum({size}) over (rows unbounded preceding) <= {most_bytes},'
        f" {', '.join(texts)} from {source}) as u (number, fits, {', '.join(aliases)})"
    )
    with connection.cursor() as cursor:
        psycopg2.extensions.register_type(psycopg2.extensions.BYTES, cursor)
        cursor.execute(sql, [key.decode() for key in keys])
        return cursor.fetchall()


def _with_gaps(readable: Sequence[str | None], values: Sequence[Field]) -> Sequence[Field]:
    """Return the values of the columns, UNCHANGED for those that can't be read."""
    if None not in readable:
        return values
    fields = iter(values)
    return [UNCHANGED if name is None else next(fields) for name in readable]


def present_fields(
    connection: Connection, relation: Relation, key: Mapping[str, bytes], columns: Sequence[str]
) -> Sequence[Field] | None:
    """Return the ``columns`` of the row with this key, or None if there is no such row.

    ``relation`` and ``key`` may be from before the table was altered. A column that was dropped, or can't be
    matched any more, is returned as UNCHANGED, and so is every column if the key is not valid for its present
    type. Raises psycopg2.Error.
    """
    has_operators = True
    for attempt in range(_TRIES):
        try:
            return _read(connection, relation, key, columns, has_operators=has_operators)
        except (psycopg2.errors.UndefinedColumn, psycopg2.errors.UndefinedTable):
            if attempt == _TRIES - 1:
                raise
        except (psycopg2.errors.UndefinedFunction, psycopg2.IntegrityError):
            # Part of the type has no equality operator, or a domain within it has a constraint that this row
            # violates.
            if not has_operators:
                raise
            has_operators = False
        except psycopg2.DataError:
            # ALTER TYPE, or an enum value that was renamed.
            return [UNCHANGED] * len(columns)
    raise AssertionError


def _read(
    connection: Connection,
    relation: Relation,
    key: Mapping[str, bytes],
    requested: Sequence[str],
    *,
    has_operators: bool,
) -> Sequence[Field] | None:
    table = _table(connection, relation)
    if table is None:
        return None
    places = {table.names[column]: value for column, value in key.items()}
    selected = [name for column in requested if (name := table.readable[column]) is not None]
    if None in places or not selected:
        return [UNCHANGED] * len(requested)
    columns = {one.name: one for one in key_of(connection, relation.oid)} if has_operators else {}
    is_utf8 = server_encoding(connection) == "UTF8"
    conditions = [
        _equal(name, value, columns.get(name), is_utf8=is_utf8) for name, value in places.items() if name
    ]
    chosen = ", ".join(map(quote_identifier, selected))
    lines: list[bytes] = []
    sql = f"select {chosen} from {table.source} where {' and '.join(conditions)}"
    copy_out(connection, sql, lines.append)
    if not lines:
        return None
    return _with_gaps([table.readable[column] for column in requested], unescape_copy_line(lines[0]))


def _some(connection: Connection, sql: str, most_bytes: int) -> tuple[list[bytes], bool]:
    """Return the rows received before they reach ``most_bytes``, and whether these are all.

    The session is closed if they are not.
    """
    lines: list[bytes] = []
    bytes_left = most_bytes

    def add(line: bytes) -> None:
        nonlocal bytes_left
        lines.append(line)
        bytes_left -= len(line)
        if bytes_left <= 0:
            raise _ReplyTooLarge

    try:
        copy_out(connection, sql, add)
    except _ReplyTooLarge:
        connection.close()
        return lines, False
    return lines, True


def _table(connection: Connection, relation: Relation) -> _PresentTable | None:
    """Return the table of ``relation`` as it is now, or None if it does not exist any more."""
    tables = query(connection, _NAME_SQL, relation.oid)
    if not tables:
        return None
    now = attributes(connection, relation.oid)
    pairs = list(zip(relation.columns, present_columns(relation, now), strict=True))
    namespace, name, partitioned = tables[0]
    return _PresentTable(
        f"{'' if partitioned else 'only '}{quote_qualified(namespace, name)}",
        {column.name: None if one is None else one.name for column, one in pairs},
        {column.name: one.name if one and _reads_as(column, one) else None for column, one in pairs},
        now,
    )


def _reads_as(column: Column, now: Attribute) -> bool:
    """Return whether a present value's text is valid for the earlier column; text types accept any."""
    return column.type_oid in _TEXTS or (column.type_oid, column.typmod) == (now.type_oid, now.typmod)


def _equal(name: str, value: bytes, column: KeyColumn | None, *, is_utf8: bool) -> str:
    """Return the condition that a column has the value of a text; without ``column`` the texts are
    compared.
    """
    literal = _literal(value, is_utf8=is_utf8)
    if literal is None:
        written = f"pg_catalog.format('%s', {quote_identifier(name)})"
        return f"pg_catalog.textsend({written}) = '\\x{value.hex()}'::bytea"
    return text_of_equals(name, literal) if column is None else column.equals(literal)


def _literal(value: bytes, *, is_utf8: bool) -> str | None:
    """Return ``value`` as an SQL literal; None for bytes that are not UTF-8, in a database in UTF8.

    The session is in UTF8 too, so that nothing is converted.
    """
    try:
        return quote_literal(value.decode())
    except UnicodeDecodeError:
        return None if is_utf8 else " E'" + "".join(f"\\x{byte:02x}" for byte in value) + "'"


# Check that a condition that selects rows of a table is a valid expression before it is used in a query.

#: Maximum size of a condition (bytes): it has to fit into a request to a relay.
MOST = 10_000
#: Objects that may not be found because pg_catalog is the only schema in the search path.
_NOT_FOUND = frozenset(
    {errorcodes.UNDEFINED_FUNCTION, errorcodes.UNDEFINED_OBJECT, errorcodes.UNDEFINED_TABLE}
)


def check_condition(dsn: str, namespace: str, table: str, where: str) -> None:
    """Check that ``where`` is a single boolean expression over the table's columns.

    PostgreSQL only parses it and never runs it. A condition that passes may be put between parentheses, with
    a line end before the closing one. Raises RefusedError and ConnectionFailed.
    """
    if not where.strip() or "\0" in where:
        raise RefusedError("the condition is empty", "write an SQL expression over the table's columns")
    try:
        size = len(where.encode())
    except UnicodeEncodeError as error:
        raise RefusedError("the condition is not valid UTF-8", "write it in UTF-8") from error
    if size > MOST:
        raise RefusedError(
            f"the condition is longer than {MOST:,} bytes",
            "select a range of a column, or use a subquery on a table that holds the keys",
        )
    connection = connect_raw(dsn, replication=False)
    try:
        execute_raw(connection, "set default_transaction_read_only = on")
        # Neither this session nor one that alters the table may block the other for long.
        execute_raw(connection, "set lock_timeout = '2s'")
        name = quote_qualified(namespace, table)
        # A text that closes the parenthesis of the first statement is not complete in the second, which has
        # none, and one that ends the CASE is not complete in the first. The line end terminates a comment.
        _prepare(connection, f"select from only {name} where (\n{where}\n)")
        _prepare(connection, f"select from only {name} where case when\n{where}\nthen true end")
    finally:
        connection.finish()


def _prepare(connection: pq.abc.PGconn, sql: str) -> None:
    """Let PostgreSQL parse one statement; the extended protocol's Parse message can't hold two."""
    encoded = sql.encode()
    end = COMMANDS.begin(POSTGRES, "parse: select … where (the condition)")
    result = connection.prepare(b"", encoded)
    end("" if result.status == pq.ExecStatus.COMMAND_OK else "refused")
    if result.status != pq.ExecStatus.COMMAND_OK:
        raise _refused(server_error(result))
    if connection.describe_prepared(b"").nparams:
        raise RefusedError("the condition has a parameter", "replace $1 with its value")


def _refused(error: ServerError) -> BwtuiError:
    reason = error.message.removeprefix("PostgreSQL: ")
    with contextlib.suppress(KeyError):
        return RefusedError(f"PostgreSQL rejects the condition: {reason}", _HINTS[error.sqlstate])
    if error.sqlstate in _NOT_FOUND:
        hint = "qualify names outside pg_catalog with their schema: the search path is empty"
        return RefusedError(f"PostgreSQL rejects the condition: {reason}", hint)
    if error.sqlstate[:2] in ("", "08", "55", "57"):
        return ConnectionFailed(error.message, error.hint)
    return RefusedError(f"PostgreSQL rejects the condition: {reason}", error.hint)


_HINTS = {
    errorcodes.SYNTAX_ERROR: "write one SQL expression, as after WHERE",
    errorcodes.UNDEFINED_COLUMN: "check the column's name: \\d in psql lists the table's columns",
    errorcodes.DATATYPE_MISMATCH: "write a boolean expression, as after WHERE",
}
