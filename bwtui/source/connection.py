"""Connections to PostgreSQL, with every setting pinned that changes how a value is written.

A role or a database may set DateStyle, TimeZone, bytea_output and so on; PostgreSQL's text output follows
them, in ordinary sessions and in pgoutput alike. So each session pins them first.
"""

import re
from typing import Any

import psycopg2
import psycopg2.extensions
from psycopg import pq

from bwtui.blocking import interruptible
from bwtui.command_log import COMMANDS, POSTGRES
from bwtui.errors import BwtuiError, ConnectionFailed, NotLetIn, RefusedError
from bwtui.model.sql import quote_identifier, quote_literal
from bwtui.pgoutput.transcode import Decode
from bwtui.source.encoding import decoder
from bwtui.source.failover.connecting import open_session
from bwtui.source.failover.hosts import describe, effective, with_defaults
from bwtui.source.printed import printed
from bwtui.source.remedies import remedy, remedy_for

#: Settings that decide the text form of values, and timeouts that would cut a long snapshot.
PINNED = {
    "datestyle": "ISO, YMD",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmloption": "content",
    "lc_monetary": "C",
    "array_nulls": "on",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "quote_all_identifiers": "off",
    "search_path": "",
    # PostgreSQL says in a warning that it leaves out changes, see `bwtui.source.stream`.
    "client_min_messages": "warning",
}
#: Timeouts of newer versions, pinned where the server has them: a session may idle through a long snapshot.
_PIN_TIMEOUTS_SQL = """select pg_catalog.set_config(name, '0', false) from pg_catalog.pg_settings
                        where name in ('idle_session_timeout', 'transaction_timeout')"""
#: Only a superuser may; whatever decides anything looks at SQLSTATEs.
_PIN_LANGUAGE_SQL = """select pg_catalog.set_config('lc_messages', 'C', false)
                        where pg_catalog.current_setting('is_superuser') = 'on'"""
_PIN_SQL = "select " + ", ".join(f"pg_catalog.set_config('{k}', '{v}', false)" for k, v in PINNED.items())
_REFUSED = re.compile(
    r"password authentication failed|no password supplied|authentication failed|pg_hba\.conf"
)
#: Certificates that one side does not trust, and TLS that only one side wants.
_CERTIFICATE = re.compile(r"certificate|SSL error: .*alert|SSL was required|does not support SSL")
_FULL = re.compile(r"too many (?:connections|clients)|connection slots are reserved|max_wal_senders")
_NO_PRIMARY = re.compile(r"session is read-only|server is in hot standby mode")
_NO_LOGIN = re.compile(r'role "(.+)" is not permitted to log in')
_NO_CONNECT = re.compile(r'permission denied for database "(.+)"')
_NO_CONVERSION = re.compile(r"conversion between \w+ and \w+ is not supported")
# What libpq says of a value in the connection string before it tries to connect.
_MALFORMED = re.compile(
    r"invalid (?:integer value|port number|[a-z_]+ value)\b|could not match \d+ (?:port numbers|host names)"
)

Connection = psycopg2.extensions.connection


class _Cursor(psycopg2.extensions.cursor):
    """Notes every statement in the log of commands; parameters are no part of its text."""

    def execute(self, query: Any, vars: Any = None) -> None:
        """See psycopg2."""
        with COMMANDS.issued(POSTGRES, query, _sqlstate):
            super().execute(query, vars)

    def copy_expert(self, sql: Any, file: Any, size: int = 8192) -> None:
        """See psycopg2. What stands behind a quote may be a row's key, so the log does without it."""
        shown, quote, _ = sql.partition("'")
        with COMMANDS.issued(POSTGRES, f"{shown}…" if quote else shown, _sqlstate):
            super().copy_expert(sql, file, size)


def _sqlstate(error: BaseException) -> str:
    """Say what an error of psycopg2 was; its own words may quote a row."""
    return " ".join(filter(None, (type(error).__name__, getattr(error, "pgcode", None))))


def connect(dsn: str) -> Connection:
    """Open an ordinary session in autocommit mode, with `PINNED` set.

    ``dsn`` goes to libpq as it is. Raises ConnectionFailed.
    """
    try:
        # At once: psycopg2 does not connect under an encoding that Python does not know, like EUC_TW.
        conninfo = with_defaults(dsn, client_encoding="UTF8")
        with COMMANDS.issued(POSTGRES, f"connect to {describe(dsn)}", _sqlstate):
            connection: Connection = interruptible(lambda: psycopg2.connect(conninfo))
        connection.autocommit = True
        connection.cursor_factory = _Cursor
        # psycopg2 decodes by the encoding that it knows of, which must be the one that the server uses.
        connection.set_client_encoding("UTF8")
        with connection.cursor() as cursor:
            cursor.execute(_PIN_SQL)
            cursor.execute(_PIN_TIMEOUTS_SQL)
            cursor.execute(_PIN_LANGUAGE_SQL)
    except psycopg2.Error as error:
        raise connection_failed(str(error), conninfo) from error
    except UnicodeDecodeError as error:
        # What is said before a client's encoding counts is in the server's own, or no server said it.
        raise connection_failed(error.object.decode(errors="replace")) from error
    return connection


def connect_raw(dsn: str, *, replication: bool = True) -> pq.abc.PGconn:
    """Open a replication session (``replication=database``), or an ordinary one, through libpq itself.

    With `PINNED` set.

    Raw, because the stream's acknowledgements must be ours alone: psycopg2's replication cursor confirms
    transactions that its caller did not. Raises ConnectionFailed.
    """
    info = with_defaults(dsn, **({"replication": "database"} if replication else {}))
    end = COMMANDS.begin(POSTGRES, f"connect to {describe(dsn)}{' for replication' if replication else ''}")
    opened = open_session(info)
    connection = opened.connection
    end("" if connection else "ConnectionFailed")
    if connection is None:
        raise connection_failed(opened.failure, info)
    try:
        execute_raw(connection, _PIN_SQL)
        execute_raw(connection, _PIN_TIMEOUTS_SQL)
        execute_raw(connection, _PIN_LANGUAGE_SQL)
        execute_raw(connection, "set client_encoding = 'UTF8'")
    except ServerError as error:
        connection.finish()
        raise connection_failed(error.message) from error
    return connection


def holds_any_bytes(connection: Connection) -> bool:
    """Say whether the database's text may be no UTF-8: one in SQL_ASCII checks and converts nothing."""
    return server_encoding(connection) == "SQL_ASCII"


def server_encoding(connection: Connection) -> str:
    """Return the database's encoding, as PostgreSQL calls it."""
    return connection.info.parameter_status("server_encoding") or ""


def decoder_of(connection: Connection) -> Decode | None:
    """Return what makes UTF-8 of the database's texts; None where they are taken as they are.

    Raises RefusedError, or psycopg2.Error where the connection broke.
    """
    encoding, version = server_encoding(connection), str(connection.info.server_version)
    try:
        return decoder(encoding, version, lambda sql: query(connection, sql))
    except psycopg2.ProgrammingError as error:
        raise _no_decoder(encoding, str(error.diag.message_primary)) from error


def raw_decoder(connection: pq.abc.PGconn) -> Decode | None:
    """Return `decoder_of` a raw session. Raises RefusedError or ConnectionFailed."""
    encoding, version = _status(connection, "server_encoding"), str(connection.server_version)
    try:
        return decoder(encoding, version, lambda sql: execute_raw(connection, sql))
    except ServerError as error:
        # Class 42, "Syntax Error or Access Rule Violation": there is no such language, or no right to it.
        if error.sqlstate.startswith("42"):
            raise _no_decoder(encoding, error.message) from error
        raise ConnectionFailed(error.message, "check PostgreSQL's log") from error


def _no_decoder(encoding: str, reason: str) -> RefusedError:
    return RefusedError(
        f"PostgreSQL does not say what the characters of {encoding} are: {reason}",
        "the role needs the language plpgsql: GRANT USAGE ON LANGUAGE plpgsql TO PUBLIC;",
    )


def speak_server_encoding(connection: pq.abc.PGconn, sql: str) -> bytes:
    """Let a raw session take and send text as the database stores it; return ``sql`` in that encoding.

    What PostgreSQL is asked to convert and can't, it refuses, and the stream would end there every time.
    Raises ServerError.
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
    """Run one statement on a raw session, and note it in the log of commands."""
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
    """PostgreSQL refused a statement; ``sqlstate`` is its five-character code."""

    def __init__(self, message: str, sqlstate: str, hint: str) -> None:
        super().__init__(message, hint)
        self.sqlstate = sqlstate


def server_error(result: pq.abc.PGresult) -> ServerError:
    """Return the error that a failed result stands for; only its primary message, which holds no rows."""
    primary = _text(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"unknown error")
    state = _text(result.error_field(pq.DiagnosticField.SQLSTATE) or b"")
    return ServerError(f"PostgreSQL: {primary}", state, remedy_for(state))


def connection_failed(message: str, info: str = "") -> ConnectionFailed:
    """Return the error for libpq's connection message, on one line and with a hint.

    ``info``: the connection string that was tried, if none was ever open.
    Raises BwtuiError when the connection string is to blame, since then no connection was tried.
    """
    plain = " ".join(message.split())
    kind: type[ConnectionFailed] = NotLetIn
    if _MALFORMED.match(plain):
        raise BwtuiError(f"libpq refuses the connection string: {plain}", "check -d/--postgres")
    if _REFUSED.search(plain):
        hint = "check user and password (PGPASSWORD, ~/.pgpass) and the server's pg_hba.conf"
    elif role := _NO_LOGIN.search(plain):
        hint = f"let a superuser run: {printed(f'ALTER ROLE {quote_identifier(role[1])} LOGIN')}"
    elif (database := _NO_CONNECT.search(plain)) and info:
        # Also where a service, a variable or the system's user says it.
        user = quote_identifier(effective(info).get("user", ""))
        grant = f"GRANT CONNECT ON DATABASE {quote_identifier(database[1])} TO {user}"
        hint = f"let the database's owner run: {printed(grant)}"
    elif _NO_CONVERSION.search(plain):
        hint = "move the data into a database with ENCODING 'UTF8'"
    elif _CERTIFICATE.search(plain):
        hint = "check sslmode, sslrootcert, sslcert and sslkey in -d/--postgres, and the server's certificate"
    elif "does not exist" in plain:
        hint = "check the database and user names in -d/--postgres"
    else:
        kind, hint = ConnectionFailed, _hint_while_away(plain)
    return kind(f"can't connect to PostgreSQL: {plain}", hint)


def _hint_while_away(plain: str) -> str:
    """Return what helps against libpq's word that a server can't be reached, or takes nobody at present."""
    if _NO_PRIMARY.search(plain):
        return "no host of -d/--postgres is a primary: promote a standby, or name target_session_attrs=any"
    if _FULL.search(plain):
        return "end sessions that are not needed, or raise the limit that is named"
    # The text may be in any language, and libpq keeps the SQLSTATE of a login to itself.
    return "check that PostgreSQL runs there and lets us in, and -d/--postgres or BWTUI_POSTGRES"


def statement_failed(error: psycopg2.Error) -> BwtuiError:
    """Return the error for a statement of ours that failed; with its primary message alone."""
    if isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError):
        plain = " ".join(str(error.diag.message_primary or error).split())
        return ConnectionFailed(f"the connection to PostgreSQL broke: {plain}", "check PostgreSQL's log")
    primary = error.diag.message_primary or type(error).__name__
    if isinstance(error, psycopg2.errors.CharacterNotInRepertoire | psycopg2.errors.UntranslatableCharacter):
        # A database takes bytes for a name of which its encoding, or SQL_ASCII, knows no character.
        return _no_name(primary)
    return RefusedError(f"PostgreSQL refuses a statement of the relay: {primary}", remedy(error))


def query(connection: Connection, sql: str, *args: Any) -> list[tuple[Any, ...]]:
    """Run a query and return all of its rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql, args or None)
        try:
            return cursor.fetchall() if cursor.description else []
        except UnicodeDecodeError as error:
            # PostgreSQL converts nothing, and checks nothing, where both encodings are UTF8.
            raise _no_name(error.reason) from None


def _no_name(reason: str) -> RefusedError:
    return RefusedError(f"a table or a column has a name that is not UTF-8: {reason}", "rename it")


def execute(connection: Connection, sql: str, *args: Any) -> None:
    """Run a statement that returns nothing."""
    with connection.cursor() as cursor:
        cursor.execute(sql, args or None)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _optional(raw: bytes | None) -> str | None:
    return None if raw is None else _text(raw)
