"""Raw libpq sessions through psycopg's wrapper, mainly for replication.

They are raw because only bwtui may decide what the stream acknowledges: psycopg2's replication cursor
confirms transactions that its caller did not. A snapshot's worker does not need this module, nor psycopg.
"""

import ipaddress
import os
import random
import re
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from psycopg import pq
from psycopg.conninfo import make_conninfo

from bwtui.command_log import COMMANDS, POSTGRES
from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.model.sql import quote_literal
from bwtui.pgoutput.transcode import Decode
from bwtui.source.connection import (
    PIN_LANGUAGE_SQL,
    PIN_SQL,
    PIN_TIMEOUTS_SQL,
    connection_failed,
    no_decoder,
)
from bwtui.source.encoding import decoder
from bwtui.source.hosts import describe, effective, split_hosts, with_defaults
from bwtui.source.libpq_output import libpq_output_logged
from bwtui.source.sql_hints import hint_for_sqlstate

# Open a libpq session without blocking the other threads of the process.
#
# ``PQconnectdb``, as psycopg wraps it, holds the interpreter lock until the server has answered, and so do
# the name lookups in ``PQconnectStart``. With a stopped server the whole process would be blocked for
# ``connect_timeout``: no status, no deliveries, no exit. So libpq is polled step by step
# (https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PQCONNECTSTARTPARAMS). That leaves some
# of libpq's work to the caller, which this module does: the addresses of a name, the next host, the
# timeout. libpq still decides whether to try a next host at all: it does not after a host that answers and
# rejects the login.

#: libpq's own text, since users and log searches expect it.
_EXPIRED = "timeout expired"
#: The syntax of libpq's integers, and the largest.
_NUMBER = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]+[ \t\n\v\f\r]*")
_LARGEST = 2**31 - 1
#: Maximum wait of one poll(2) (seconds): it counts milliseconds in 31 bits.
_LONGEST_POLL = 86_400.0
#: A host where no server can listen, listed after each real host: libpq reaches it if it would try the next
#: one.
_NOWHERE = "/dev/null"
_OF_NOWHERE = re.compile(rf'connection to server on socket "{_NOWHERE}/.*', re.DOTALL)


@dataclass(frozen=True)
class ConnectResult:
    """A session, or None and the failure in libpq's words, one line per host that was tried."""

    connection: pq.abc.PGconn | None
    failure: str = ""


def open_session(dsn: str) -> ConnectResult:
    """Try the hosts of ``dsn`` in turn, each for its ``connect_timeout`` (seconds; 0: no limit).

    As with libpq, a host that answers and rejects the login is the last: the next ones can't fix that. Raises
    UsageError for a string that libpq can't read.
    """
    timeout = effective(dsn).get("connect_timeout", "0")
    if not _is_number(timeout):
        # PQconnectPoll leaves the timeout to its caller too, so it would wait without a limit.
        return ConnectResult(
            None, f'invalid integer value "{timeout}" for connection option "connect_timeout"'
        )
    limit = float(timeout) if int(timeout) > 0 else None
    failures: list[str] = []
    for attempt in attempts(dsn, failures):
        # Only this call: later, psycopg receives the server's notices itself.
        with libpq_output_logged():
            connection = pq.PGconn.connect_start(_with_nowhere(attempt).encode())
        expired = connection.status != pq.ConnStatus.BAD and not _shake_hands(connection, limit)
        if connection.status == pq.ConnStatus.OK and not expired:
            return ConnectResult(connection)
        failures.append(_failure(connection, attempt, expired))
        tries_next = expired or connection.host == _NOWHERE.encode()
        connection.finish()
        if not tries_next:
            break
    return ConnectResult(None, "\n".join(dict.fromkeys(failures)))


def attempts(dsn: str, failures: list[str] | None = None) -> Iterator[str]:
    """Yield a connection string for each address of each host, in libpq's order.

    A name is looked up when its turn comes, so a slow name server delays no earlier host. Lookup failures are
    added to ``failures``. Raises UsageError for a string that libpq can't read.
    """
    values, hosts = effective(dsn), split_hosts(dsn)
    is_random = values.get("load_balance_hosts") == "random"
    if is_random:
        random.shuffle(hosts)
    if values.get("target_session_attrs") != "prefer-standby":
        passes = [hosts]
    else:
        passes = [
            [make_conninfo(one, target_session_attrs=kind) for one in hosts] for kind in ("standby", "any")
        ]
    for one in (host for tried in passes for host in tried):
        try:
            addresses = _resolved(one)
        except OSError as error:
            host = effective(one).get("host", "")
            text = f'could not translate host name "{host}" to address: {error.strerror or error}'
            if failures is not None:
                failures.append(text)
            continue
        if is_random:
            random.shuffle(addresses)
        yield from addresses


def _resolved(dsn: str) -> list[str]:
    values = effective(dsn)
    host = values.get("host", "")
    # With a comma, these are lists of different lengths; libpq's error says which.
    if not host or host[0] in "/@" or "," in host or values.get("hostaddr") or _is_address(host):
        return [dsn]
    return [make_conninfo(dsn, host=host, hostaddr=address) for address in _addresses(host)]


def _addresses(host: str) -> list[str]:
    # As bytes, like libpq: Python would encode a text as a different name, or reject it.
    results = socket.getaddrinfo(os.fsencode(host), None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(_with_zone(address) for *_, address in results))


def _with_zone(address: tuple[Any, ...]) -> str:
    """Return an address as text, with the zone (interface) of a link-local one."""
    zone = address[3] if len(address) > 3 else 0
    return f"{address[0]}%{zone}" if zone and "%" not in address[0] else str(address[0])


def _with_nowhere(attempt: str) -> str:
    values = effective(attempt)
    host, address, port = (values.get(key, "") for key in ("host", "hostaddr", "port"))
    if any("," in value for value in (host, address, port)):
        # Lists of different lengths.
        return attempt
    # The added host has libpq's default port: an invalid port would be reported twice.
    added = {"port": f"{port},"} | ({"hostaddr": f"{address},"} if address else {})
    if values.get("load_balance_hosts") == "random":
        # The hosts are shuffled already, and this one has to be last.
        added["load_balance_hosts"] = "disable"
    return make_conninfo(attempt, host=f"{host},{_NOWHERE}", **added)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None and -_LARGEST <= int(text) <= _LARGEST


def _shake_hands(connection: pq.abc.PGconn, limit: float | None) -> bool:
    """Drive libpq until it has a session or has failed; return whether that was within ``limit``."""
    deadline = None if limit is None else time.monotonic() + limit
    # Start with writing, as libpq's documentation says. PQconnectPoll, if called before that, takes a
    # connection in progress for established, and reports a refused one as a broken one.
    step: int = pq.PollingStatus.WRITING
    while step in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
        if not _wait(connection.socket, step, deadline):
            return False
        step = connection.connect_poll()
    return True


def _wait(place: int, step: int, deadline: float | None) -> bool:
    """Wait until libpq can continue; return whether it can."""
    waiting = select.poll()
    waiting.register(place, select.POLLIN if step == pq.PollingStatus.READING else select.POLLOUT)
    while True:
        remaining = _LONGEST_POLL if deadline is None else deadline - time.monotonic()
        if remaining <= 0:
            return False
        if waiting.poll(min(remaining, _LONGEST_POLL) * 1000):
            return True


def _failure(connection: pq.abc.PGconn, attempt: str, expired: bool) -> str:
    """Return libpq's message for an ``attempt`` as if libpq had looked up the name itself."""
    values = effective(attempt)
    address = values.get("hostaddr", "")
    host = values.get("host") or address
    place = f'at "{host}"' + (f" ({address})" if address and address != host else "")
    if not expired:
        text = _OF_NOWHERE.sub("", connection.error_message.decode("utf-8", "replace")).strip()
        return text.replace(f'at "{address}",', f"{place},") if address else text
    host, port = (part.decode("utf-8", "replace") for part in (connection.host, connection.port))
    if host.startswith(("/", "@")):
        place = f'on socket "{host}/.s.PGSQL.{port}"'
        return f"connection to server {place} failed: {_EXPIRED}"
    return f"connection to server {place}, port {port} failed: {_EXPIRED}"


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
