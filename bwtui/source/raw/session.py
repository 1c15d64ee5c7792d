"""Raw libpq sessions through psycopg's wrapper, mainly for replication.

They are raw because only bwtui may decide what the stream acknowledges: psycopg2's replication cursor
confirms transactions that its caller did not. A snapshot's worker does not need this module, nor psycopg.
"""

from psycopg import pq

from bwtui.command_log import COMMANDS, POSTGRES
from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.model.sql import quote_literal
from bwtui.pgoutput.transcode import Decode
from bwtui.source.connection import PIN_LANGUAGE_SQL, PIN_SQL, PIN_TIMEOUTS_SQL, connection_failed, no_decoder
from bwtui.source.encoding import decoder
from bwtui.source.failover.hosts import describe, with_defaults
from bwtui.source.failover.libpq_session import open_session
from bwtui.source.sqlstate_hints import hint_for_sqlstate


def connect_raw(dsn: str, *, replication: bool = True) -> pq.abc.PGconn:
    """Open a replication session (``replication=database``), or an ordinary one, through libpq itself.

    `bwtui.source.connection.PINNED` is set in it. Raises ConnectionFailed.
    """
    info = with_defaults(dsn, **({"replication": "database"} if replication else {}))
    end = COMMANDS.begin(POSTGRES, f"connect to {describe(dsn)}{' for replication' if replication else ''}")
    opened = open_session(info)
    connection = opened.connection
    end("" if connection else "ConnectionFailed")
    if connection is None:
        raise connection_failed(opened.failure, info)
    try:
        execute_raw(connection, PIN_SQL)
        execute_raw(connection, PIN_TIMEOUTS_SQL)
        execute_raw(connection, PIN_LANGUAGE_SQL)
        execute_raw(connection, "set client_encoding = 'UTF8'")
    except ServerError as error:
        connection.finish()
        raise connection_failed(error.message) from error
    return connection


def raw_decoder(connection: pq.abc.PGconn) -> Decode | None:
    """Return `decoder_of` for a raw session. Raises RefusedError or ConnectionFailed."""
    encoding, version = _status(connection, "server_encoding"), str(connection.server_version)
    try:
        return decoder(encoding, version, lambda sql: execute_raw(connection, sql))
    except ServerError as error:
        # Class 42, "Syntax Error or Access Rule Violation": the language is missing, or the right to use it.
        if error.sqlstate.startswith("42"):
            raise no_decoder(encoding, error.message) from error
        raise ConnectionFailed(error.message, "check PostgreSQL's log") from error


def use_server_encoding(connection: pq.abc.PGconn, sql: str) -> bytes:
    """Let a raw session exchange text in the database's encoding; return ``sql`` in that encoding.

    PostgreSQL raises an error for a character that it can't convert, and the stream would end at the same
    place every time. Raises ServerError.
    """
    encoding = _status(connection, "server_encoding")
    if encoding == "UTF8":
        return sql.encode()
    convert = f"select pg_catalog.encode(pg_catalog.convert_to({quote_literal(sql)}, '{encoding}'), 'hex')"
    converted = execute_raw(connection, convert)[0][0] or ""
    execute_raw(connection, f"set client_encoding = '{encoding}'")
    return bytes.fromhex(converted)


def _status(connection: pq.abc.PGconn, name: str) -> str:
    return (connection.parameter_status(name.encode()) or b"").decode()


def execute_raw(connection: pq.abc.PGconn, sql: str) -> list[tuple[str | None, ...]]:
    """Run one statement on a raw session and return its rows as text. Raises ServerError."""
    result = exec_logged(connection, sql, sql.encode())
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise server_error(result)
    return [
        tuple(_optional(result.get_value(row, column)) for column in range(result.nfields))
        for row in range(result.ntuples)
    ]


def exec_logged(connection: pq.abc.PGconn, sql: str, encoded: bytes) -> pq.abc.PGresult:
    """Run one statement on a raw session and record it in the command log."""
    end = COMMANDS.begin(POSTGRES, sql)
    try:
        result = connection.exec_(encoded)
    except BaseException as error:
        end(type(error).__name__)
        raise
    failed = result.status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE)
    end(f"ServerError {server_error(result).sqlstate}" if failed else "")
    return result


class ServerError(BwtuiError):
    """PostgreSQL rejected a statement; ``sqlstate`` is its five-character code."""

    def __init__(self, message: str, sqlstate: str, hint: str) -> None:
        super().__init__(message, hint)
        self.sqlstate = sqlstate


def server_error(result: pq.abc.PGresult) -> ServerError:
    """Return the error of a failed result, with only its primary message, which contains no rows."""
    primary = _text(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"unknown error")
    state = _text(result.error_field(pq.DiagnosticField.SQLSTATE) or b"")
    return ServerError(f"PostgreSQL: {primary}", state, hint_for_sqlstate(state))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _optional(raw: bytes | None) -> str | None:
    return None if raw is None else _text(raw)
