"""A database as it would be after a script, which runs in a transaction that is always rolled back."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2

from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.model.sql import quote_identifier
from bwtui.source.connection import Connection, connect, execute
from bwtui.source.ddl.script import Statement, statements
from bwtui.source.sql_hints import format_sql
from bwtui.source.sqlstate_hints import hint_for

#: An ALTER TABLE that waits for a lock blocks every later session on that table.
_LOCK_TIMEOUT = "3s"
# No script can commit, whatever it contains: this constraint fails at COMMIT.
_NO_COMMIT = """
create temporary table bwtui_trial (n int unique deferrable initially deferred);
insert into pg_temp.bwtui_trial values (1), (1)
"""


@contextmanager
def after_script(dsn: str, script: str) -> Iterator[Connection]:
    """Yield a session that sees the database as it is after ``script``, which is rolled back at the end.

    An empty script changes nothing, and the session is an ordinary one. Raises RefusedError for a statement
    that fails or can't be tried.
    """
    parsed = statements(script)
    connection = connect(dsn)
    try:
        if parsed:
            _apply(connection, parsed)
        yield connection
    finally:
        # Closing the session rolls its transaction back.
        connection.close()


def _apply(connection: Connection, script: list[Statement]) -> None:
    execute(connection, "begin")
    try:
        execute(connection, _NO_COMMIT)
    except psycopg2.errors.InsufficientPrivilege as error:
        raise RefusedError(
            "the role may not create the temporary table that prevents the script from committing",
            "let a superuser run: "
            + format_sql(
                f"GRANT TEMPORARY ON DATABASE {quote_identifier(connection.info.dbname)}"
                f" TO {quote_identifier(connection.info.user)}"
            ),
        ) from error
    execute(connection, "reset search_path")
    execute(connection, f"set lock_timeout = '{_LOCK_TIMEOUT}'")
    for statement in script:
        try:
            execute(connection, statement.text)
        except psycopg2.Error as error:
            raise _refused(statement, error) from error
    execute(connection, "set search_path = ''")


def _refused(statement: Statement, error: psycopg2.Error) -> Exception:
    reason = error.diag.message_primary or " ".join(str(error).split())
    if isinstance(error, psycopg2.errors.ActiveSqlTransaction):
        return RefusedError(
            f"{statement.place} can't run in a trial: {reason}", "remove it: it does not change a schema"
        )
    if isinstance(error, psycopg2.errors.LockNotAvailable):
        return RefusedError(
            f"{statement.place} did not get its lock within {_LOCK_TIMEOUT}",
            "try again when the table is idle",
        )
    if error.diag.sqlstate is None:
        return ConnectionFailed(f"the connection to PostgreSQL broke: {reason}", "check PostgreSQL's log")
    return RefusedError(f"{statement.place} failed: {reason}", hint_for(error))
