"""Opening a session of libpq itself while the rest of the process goes on.

``PQconnectdb``, as psycopg wraps it, keeps the interpreter's lock until the server has answered, and so do
the lookups of names in ``PQconnectStart``. With a server that is stopped the whole process would stand still
for ``connect_timeout``: no status, no deliveries, no verdict. Here libpq is asked step by step
(https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PQCONNECTSTARTPARAMS), and what libpq leaves
to the caller then is done here: the addresses of a name, the next host, the time limit.
"""

import ipaddress
import random
import select
import socket
import time
from dataclasses import dataclass

from psycopg import pq
from psycopg.conninfo import make_conninfo

from bwtui.source.failover.hosts import effective, split_hosts

#: libpq's words, which whoever reads errors looks for.
_EXPIRED = "timeout expired"


@dataclass(frozen=True)
class Opened:
    """A session, or None and what was wrong in libpq's words, a line for each place that was tried."""

    connection: pq.abc.PGconn | None
    failure: str = ""


def open_session(dsn: str) -> Opened:
    """Try the places that ``dsn`` names in turn, each for its ``connect_timeout`` (seconds; 0: for ever).

    Raises UsageError for a string that libpq can't read.
    """
    limit = _limit(effective(dsn).get("connect_timeout", ""))
    failures: list[str] = []
    for attempt in attempts(dsn, failures):
        connection = pq.PGconn.connect_start(attempt.encode())
        expired = connection.status != pq.ConnStatus.BAD and not _shake_hands(connection, limit)
        if connection.status == pq.ConnStatus.OK and not expired:
            return Opened(connection)
        failures.append(_failure(connection, expired))
        connection.finish()
    return Opened(None, "\n".join(dict.fromkeys(failures)))


def attempts(dsn: str, failures: list[str] | None = None) -> list[str]:
    """Return a connection string for each address of each host, in libpq's order.

    What can't be looked up is added to ``failures``. Raises UsageError for a string that libpq can't read.
    """
    found: list[str] = []
    for one in split_hosts(dsn):
        try:
            found += _resolved(one)
        except OSError as error:
            host = effective(one).get("host", "")
            text = f'could not translate host name "{host}" to address: {error.strerror or error}'
            if failures is not None:
                failures.append(text)
    values = effective(dsn)
    if values.get("load_balance_hosts") == "random":
        random.shuffle(found)
    if values.get("target_session_attrs") != "prefer-standby":
        return found
    return [make_conninfo(one, target_session_attrs=kind) for kind in ("standby", "any") for one in found]


def _resolved(dsn: str) -> list[str]:
    values = effective(dsn)
    host = values.get("host", "")
    if not host or host[0] in "/@" or values.get("hostaddr") or _is_address(host):
        return [dsn]
    return [make_conninfo(dsn, host=host, hostaddr=address) for address in _addresses(host)]


def _addresses(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _limit(given: str) -> float | None:
    """Return a time limit in seconds, or None where there is none."""
    try:
        seconds = int(given)
    except ValueError:
        # libpq says what is wrong with it.
        return None
    return float(seconds) if seconds > 0 else None


def _shake_hands(connection: pq.abc.PGconn, limit: float | None) -> bool:
    """Let libpq go on until it has a session or has failed; return whether that was within ``limit``."""
    deadline = None if limit is None else time.monotonic() + limit
    while True:
        step = connection.connect_poll()
        if step not in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
            return True
        waiting = select.poll()
        waiting.register(
            connection.socket, select.POLLIN if step == pq.PollingStatus.READING else select.POLLOUT
        )
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and (left <= 0 or not waiting.poll(left * 1000)):
            return False
        if left is None:
            waiting.poll()


def _failure(connection: pq.abc.PGconn, expired: bool) -> str:
    """Return what libpq would say if it had looked up the name itself."""
    host, address, port = (
        part.decode("utf-8", "replace") for part in (connection.host, connection.hostaddr, connection.port)
    )
    place = f'at "{host}"' + (f" ({address})" if address and address != host else "")
    if not expired:
        text = connection.error_message.decode("utf-8", "replace").strip()
        return text.replace(f'at "{address}",', f"{place},") if address else text
    if host.startswith(("/", "@")):
        place = f'on socket "{host}/.s.PGSQL.{port}"'
        return f"connection to server {place} failed: {_EXPIRED}"
    return f"connection to server {place}, port {port} failed: {_EXPIRED}"
