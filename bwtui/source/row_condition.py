"""Check that a condition that selects rows of a table is a valid expression before it is used in a query."""

import contextlib

from psycopg import pq
from psycopg2 import errorcodes

from bwtui.command_log import COMMANDS, POSTGRES
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError
from bwtui.model.sql import quote_qualified
from bwtui.source.raw.session import ServerError, connect_raw, execute_raw, server_error

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
