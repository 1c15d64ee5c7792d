"""Connections to PostgreSQL with every setting pinned that affects the text form of values.

A role or a database may set DateStyle, TimeZone, bytea_output and so on, and PostgreSQL's text output follows
them, in ordinary sessions and in pgoutput alike. So each session pins them first.
"""

import re
from typing import Any

import psycopg2
import psycopg2.extensions

from bwtui.blocking import interruptible
from bwtui.command_log import COMMANDS, POSTGRES
from bwtui.errors import AuthenticationFailed, BwtuiError, ConnectionFailed, RefusedError
from bwtui.model.sql import quote_identifier
from bwtui.pgoutput.transcode import Decode
from bwtui.source.encoding import decoder
from bwtui.source.hosts import describe, effective, with_defaults
from bwtui.source.libpq_output import libpq_output_logged
from bwtui.source.sql_hints import format_sql, hint_for

#: Settings that decide the text form of values, and timeouts that would abort a long snapshot.
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
    # PostgreSQL reports in a warning that it leaves out changes, see `bwtui.source.raw_stream`.
    "client_min_messages": "warning",
}
#: Timeouts of newer versions, pinned if the server has them: a session may be idle during a long snapshot.
PIN_TIMEOUTS_SQL = """select pg_catalog.set_config(name, '0', false) from pg_catalog.pg_settings
                        where name in ('idle_session_timeout', 'transaction_timeout')"""
#: Only a superuser may set lc_messages, so decisions depend on SQLSTATEs and never on message texts.
PIN_LANGUAGE_SQL = """select pg_catalog.set_config('lc_messages', 'C', false)
                        where pg_catalog.current_setting('is_superuser') = 'on'"""
PIN_SQL = "select " + ", ".join(f"pg_catalog.set_config('{k}', '{v}', false)" for k, v in PINNED.items())
_REFUSED = re.compile(
    r"password authentication failed|no password supplied|authentication failed|pg_hba\.conf"
)
#: Certificates that one side does not trust, and TLS that only one side requires.
_CERTIFICATE = re.compile(r"certificate|SSL error: .*alert|SSL was required|does not support SSL")
_FULL = re.compile(r"too many (?:connections|clients)|connection slots are reserved|max_wal_senders")
_NO_PRIMARY = re.compile(r"session is read-only|server is in hot standby mode")
_NO_LOGIN = re.compile(r'role "(.+)" is not permitted to log in')
_NO_CONNECT = re.compile(r'permission denied for database "(.+)"')
_NO_CONVERSION = re.compile(r"conversion between \w+ and \w+ is not supported")
# libpq's messages about values in the connection string, raised before it tries to connect.
_MALFORMED = re.compile(
    r"invalid (?:integer value|port number|[a-z_]+ value)\b|could not match \d+ (?:port numbers|host names)"
)

#: libpq's message for a service that no service file defines.
_NO_SERVICE = re.compile(r'definition of service "([^"]*)" not found')
#: The messages of PgBouncer and of poolers modelled on it.
_POOLER = re.compile(
    r"unsupported startup parameter(?: in options)?: replication\b|replication .*not supported"
)

Connection = psycopg2.extensions.connection

#: The end of the WAL in SQL, as text: written on a primary, replayed on a standby.
CURRENT_LSN = (
    "(case when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()"
    " else pg_catalog.pg_current_wal_lsn() end)::text"
)


class _LoggedCursor(psycopg2.extensions.cursor):
    """Records every statement in the command log, without its parameters."""

    def execute(self, query: Any, vars: Any = None) -> None:
        with COMMANDS.issued(POSTGRES, query, _sqlstate):
            super().execute(query, vars)

    def copy_expert(self, sql: Any, file: Any, size: int = 8192) -> None:
        """Run COPY; the log omits everything after the first quote, which may be a row's key."""
        shown, quote, _ = sql.partition("'")
        with COMMANDS.issued(POSTGRES, f"{shown}…" if quote else shown, _sqlstate):
            super().copy_expert(sql, file, size)


def _sqlstate(error: BaseException) -> str:
    """Return the class and SQLSTATE of a psycopg2 error; its message may quote a row."""
    return " ".join(filter(None, (type(error).__name__, getattr(error, "pgcode", None))))


def connect(dsn: str) -> Connection:
    """Open an ordinary session in autocommit mode, with `PINNED` set.

    ``dsn`` is passed to libpq unchanged. Raises ConnectionFailed.
    """
    try:
        # Set it in the connection string: psycopg2 fails to connect under an encoding that Python lacks, such
        # as EUC_TW.
        conninfo = with_defaults(dsn, client_encoding="UTF8")
        with COMMANDS.issued(POSTGRES, f"connect to {describe(dsn)}", _sqlstate):
            connection: Connection = interruptible(lambda: _open(conninfo))
        connection.autocommit = True
        connection.cursor_factory = _LoggedCursor
        # psycopg2 decodes by the encoding that it has recorded, which must be the one that the server uses.
        connection.set_client_encoding("UTF8")
        with connection.cursor() as cursor:
            cursor.execute(PIN_SQL)
            cursor.execute(PIN_TIMEOUTS_SQL)
            cursor.execute(PIN_LANGUAGE_SQL)
    except psycopg2.Error as error:
        raise connection_failed(str(error), conninfo) from error
    except UnicodeDecodeError as error:
        # Messages from before the client encoding applies are in the server's encoding, or do not come from a
        # server.
        raise connection_failed(error.object.decode(errors="replace")) from error
    return connection


def _open(conninfo: str) -> Connection:
    with libpq_output_logged():
        return psycopg2.connect(conninfo)


def holds_any_bytes(connection: Connection) -> bool:
    """Return whether the database's text may not be UTF-8: SQL_ASCII checks and converts nothing."""
    return server_encoding(connection) == "SQL_ASCII"


def server_encoding(connection: Connection) -> str:
    """Return the database's encoding, as PostgreSQL calls it."""
    return connection.info.parameter_status("server_encoding") or ""


def decoder_of(connection: Connection) -> Decode | None:
    """Return a converter from the database's encoding to UTF-8, or None if no conversion is needed.

    Raises RefusedError, or psycopg2.Error if the connection broke.
    """
    encoding, version = server_encoding(connection), str(connection.info.server_version)
    try:
        return decoder(encoding, version, lambda sql: query(connection, sql))
    except psycopg2.ProgrammingError as error:
        raise no_decoder(encoding, str(error.diag.message_primary)) from error


def no_decoder(encoding: str, reason: str) -> RefusedError:
    """Return the error for an encoding whose characters PostgreSQL does not report."""
    return RefusedError(
        f"PostgreSQL can't report the characters of encoding {encoding}: {reason}",
        "the role needs the language plpgsql: GRANT USAGE ON LANGUAGE plpgsql TO PUBLIC;",
    )


def connection_failed(message: str, info: str = "") -> ConnectionFailed:
    """Return the error for libpq's connection message, on one line and with a hint.

    ``info`` is the connection string that was tried, if no session was ever open. Raises BwtuiError if the
    connection string itself is invalid, since then no connection was tried.
    """
    plain = _one_line(message)
    kind: type[ConnectionFailed] = AuthenticationFailed
    if _MALFORMED.match(plain):
        raise BwtuiError(f"libpq rejects the connection string: {plain}", "check -d/--postgres")
    if _REFUSED.search(plain):
        hint = "check user and password (PGPASSWORD, ~/.pgpass) and the server's pg_hba.conf"
    elif role := _NO_LOGIN.search(plain):
        hint = f"let a superuser run: {format_sql(f'ALTER ROLE {quote_identifier(role[1])} LOGIN')}"
    elif (database := _NO_CONNECT.search(plain)) and info:
        # The user may also come from a service, an environment variable or the operating system.
        user = quote_identifier(effective(info).get("user", ""))
        grant = f"GRANT CONNECT ON DATABASE {quote_identifier(database[1])} TO {user}"
        hint = f"let the database's owner run: {format_sql(grant)}"
    elif _NO_CONVERSION.search(plain):
        hint = "move the data into a database with ENCODING 'UTF8'"
    elif _CERTIFICATE.search(plain):
        hint = "check sslmode, sslrootcert, sslcert and sslkey in -d/--postgres, and the server's certificate"
    elif _POOLER.search(plain):
        hint = "the connection pooler does not support replication: set PostgreSQL's address in -d/--postgres"
    elif "does not exist" in plain:
        hint = "check the database and user names in -d/--postgres"
    else:
        kind, hint = ConnectionFailed, _hint_while_away(plain)
    return kind(f"can't connect to PostgreSQL: {plain}", hint)


def _one_line(message: str) -> str:
    """Return libpq's message as one line: libpq writes a line per address and indents remarks."""
    lines = re.sub(r"\n\t(.+)", r" (\1)", message).splitlines()
    return "; ".join(" ".join(line.split()) for line in lines if line.strip())


def _hint_while_away(plain: str) -> str:
    """Return a hint for a server that can't be reached, or that accepts no sessions at present."""
    if service := _NO_SERVICE.search(plain):
        return f"define [{service[1]}] in ~/.pg_service.conf, or set PGSERVICEFILE"
    if _NO_PRIMARY.search(plain):
        return "no host of -d/--postgres is a primary: promote a standby, or set target_session_attrs=any"
    if _FULL.search(plain):
        return "end sessions that are not needed, or raise the limit that the error names"
    # The message may be in any language, and libpq does not expose the SQLSTATE of a failed login.
    return "check that PostgreSQL runs there and accepts the login, and check -d/--postgres or BWTUI_POSTGRES"


def statement_failed(error: psycopg2.Error) -> BwtuiError:
    """Return the error for a failed statement of bwtui, with only its primary message."""
    if isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError):
        plain = " ".join(str(error.diag.message_primary or error).split())
        return ConnectionFailed(f"the connection to PostgreSQL broke: {plain}", "check PostgreSQL's log")
    primary = error.diag.message_primary or type(error).__name__
    if isinstance(error, psycopg2.errors.CharacterNotInRepertoire | psycopg2.errors.UntranslatableCharacter):
        # PostgreSQL accepts bytes in a name that are not characters in the database's encoding (or
        # SQL_ASCII).
        return _no_name(primary)
    return RefusedError(f"PostgreSQL rejects a statement of the relay: {primary}", hint_for(error))


def query(connection: Connection, sql: str, *args: Any) -> list[tuple[Any, ...]]:
    """Run a query and return all of its rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql, args or None)
        try:
            return cursor.fetchall() if cursor.description else []
        except UnicodeDecodeError as error:
            # PostgreSQL converts nothing, and checks nothing, if both encodings are UTF8.
            raise _no_name(error.reason) from None


def _no_name(reason: str) -> RefusedError:
    return RefusedError(f"the name of a table or column is not valid UTF-8: {reason}", "rename it")


def execute(connection: Connection, sql: str, *args: Any) -> None:
    """Run a statement that returns nothing."""
    with connection.cursor() as cursor:
        cursor.execute(sql, args or None)
