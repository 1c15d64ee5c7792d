"""Connections to PostgreSQL, with every setting pinned that changes how a value is written.

A role or a database may set DateStyle, TimeZone, bytea_output and so on; PostgreSQL's text output follows
them, in ordinary sessions and in pgoutput alike. So each session pins them first.
"""

import re
from typing import Any

import psycopg2
import psycopg2.extensions

from bwtui.blocking import interruptible
from bwtui.command_log import COMMANDS, POSTGRES
from bwtui.errors import BwtuiError, ConnectionFailed, NotLetIn, RefusedError
from bwtui.model.sql import quote_identifier
from bwtui.pgoutput.transcode import Decode
from bwtui.source.encoding import decoder
from bwtui.source.failover.hosts import describe, effective, with_defaults
from bwtui.source.failover.libpq_output import libpq_output_logged
from bwtui.source.printed import printed
from bwtui.source.remedies import remedy

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
    # PostgreSQL says in a warning that it leaves out changes, see `bwtui.source.raw.stream`.
    "client_min_messages": "warning",
}
#: Timeouts of newer versions, pinned where the server has them: a session may idle through a long snapshot.
PIN_TIMEOUTS_SQL = """select pg_catalog.set_config(name, '0', false) from pg_catalog.pg_settings
                        where name in ('idle_session_timeout', 'transaction_timeout')"""
#: Only a superuser may; whatever decides anything looks at SQLSTATEs.
PIN_LANGUAGE_SQL = """select pg_catalog.set_config('lc_messages', 'C', false)
                        where pg_catalog.current_setting('is_superuser') = 'on'"""
PIN_SQL = "select " + ", ".join(f"pg_catalog.set_config('{k}', '{v}', false)" for k, v in PINNED.items())
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

#: PgBouncer's words, and those of poolers that follow it.
_POOLER = re.compile(
    r"unsupported startup parameter(?: in options)?: replication\b|replication .*not supported"
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
            connection: Connection = interruptible(lambda: _open(conninfo))
        connection.autocommit = True
        connection.cursor_factory = _Cursor
        # psycopg2 decodes by the encoding that it knows of, which must be the one that the server uses.
        connection.set_client_encoding("UTF8")
        with connection.cursor() as cursor:
            cursor.execute(PIN_SQL)
            cursor.execute(PIN_TIMEOUTS_SQL)
            cursor.execute(PIN_LANGUAGE_SQL)
    except psycopg2.Error as error:
        raise connection_failed(str(error), conninfo) from error
    except UnicodeDecodeError as error:
        # What is said before a client's encoding counts is in the server's own, or no server said it.
        raise connection_failed(error.object.decode(errors="replace")) from error
    return connection


def _open(conninfo: str) -> Connection:
    with libpq_output_logged():
        return psycopg2.connect(conninfo)


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
        raise no_decoder(encoding, str(error.diag.message_primary)) from error


def no_decoder(encoding: str, reason: str) -> RefusedError:
    """Return the error for an encoding of which PostgreSQL does not say what its characters are."""
    return RefusedError(
        f"PostgreSQL does not say what the characters of {encoding} are: {reason}",
        "the role needs the language plpgsql: GRANT USAGE ON LANGUAGE plpgsql TO PUBLIC;",
    )


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
    elif _POOLER.search(plain):
        hint = (
            "a connection pooler refuses replication: give the address of PostgreSQL itself in -d/--postgres"
        )
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
