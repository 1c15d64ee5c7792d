"""Opening a session of libpq itself while the rest of the process goes on.

``PQconnectdb``, as psycopg wraps it, keeps the interpreter's lock until the server has answered, and so do
the lookups of names in ``PQconnectStart``. With a server that is stopped the whole process would stand still
for ``connect_timeout``: no status, no deliveries, no verdict. Here libpq is asked step by step
(https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PQCONNECTSTARTPARAMS), and what libpq leaves
to the caller then is done here: the addresses of a name, the next host, the time limit. Whether a next host
is tried at all, libpq decides: not behind one that answers and refuses the login.
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

from bwtui.source.failover.hosts import effective, split_hosts
from bwtui.source.failover.libpq_output import libpq_output_logged

#: libpq's words, which whoever reads errors looks for.
_EXPIRED = "timeout expired"
#: What it takes for a number, and the largest.
_NUMBER = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]+[ \t\n\v\f\r]*")
_LARGEST = 2**31 - 1
#: So long one poll(2) may wait (seconds): it counts milliseconds in 31 bits.
_LONGEST_POLL = 86_400.0
#: A host where nobody can listen, named behind each other one: libpq gets there if it would try the next.
_NOWHERE = "/dev/null"
_OF_NOWHERE = re.compile(rf'connection to server on socket "{_NOWHERE}/.*', re.DOTALL)


@dataclass(frozen=True)
class Opened:
    """A session, or None and what was wrong in libpq's words, a line for each place that was tried."""

    connection: pq.abc.PGconn | None
    failure: str = ""


def open_session(dsn: str) -> Opened:
    """Try the places that ``dsn`` names in turn, each for its ``connect_timeout`` (seconds; 0: for ever).

    As with libpq, the first that answers and refuses the login is the last: the next ones can't mend that.

    Raises UsageError for a string that libpq can't read.
    """
    given = effective(dsn).get("connect_timeout", "0")
    if not _is_number(given):
        # PQconnectPoll leaves this to its caller, too, and so would wait for ever.
        return Opened(None, f'invalid integer value "{given}" for connection option "connect_timeout"')
    limit = float(given) if int(given) > 0 else None
    failures: list[str] = []
    for attempt in attempts(dsn, failures):
        # Not longer: psycopg takes the server's notices itself.
        with libpq_output_logged():
            connection = pq.PGconn.connect_start(_with_nowhere(attempt).encode())
        expired = connection.status != pq.ConnStatus.BAD and not _shake_hands(connection, limit)
        if connection.status == pq.ConnStatus.OK and not expired:
            return Opened(connection)
        failures.append(_failure(connection, attempt, expired))
        goes_on = expired or connection.host == _NOWHERE.encode()
        connection.finish()
        if not goes_on:
            break
    return Opened(None, "\n".join(dict.fromkeys(failures)))


def attempts(dsn: str, failures: list[str] | None = None) -> Iterator[str]:
    """Yield a connection string for each address of each host, in libpq's order.

    A name is looked up when it is its turn: one that nobody answers for holds up no host before it. What
    can't be looked up is added to ``failures``. Raises UsageError for a string that libpq can't read.
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
            found = _resolved(one)
        except OSError as error:
            host = effective(one).get("host", "")
            text = f'could not translate host name "{host}" to address: {error.strerror or error}'
            if failures is not None:
                failures.append(text)
            continue
        if is_random:
            random.shuffle(found)
        yield from found


def _resolved(dsn: str) -> list[str]:
    values = effective(dsn)
    host = values.get("host", "")
    # With a comma they are lists that do not match; libpq says which.
    if not host or host[0] in "/@" or "," in host or values.get("hostaddr") or _is_address(host):
        return [dsn]
    return [make_conninfo(dsn, host=host, hostaddr=address) for address in _addresses(host)]


def _addresses(host: str) -> list[str]:
    # As bytes, as libpq gives it: Python would make another name of a text, or refuse it.
    found = socket.getaddrinfo(os.fsencode(host), None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(_with_zone(address) for *_, address in found))


def _with_zone(address: tuple[Any, ...]) -> str:
    """Return an address as text; the zone of one that is valid on a link stands beside it."""
    zone = address[3] if len(address) > 3 else 0
    return f"{address[0]}%{zone}" if zone and "%" not in address[0] else str(address[0])


def _with_nowhere(attempt: str) -> str:
    values = effective(attempt)
    host, address, port = (values.get(key, "") for key in ("host", "hostaddr", "port"))
    if any("," in given for given in (host, address, port)):
        # Lists that do not match.
        return attempt
    # Its port is libpq's own: one that is none would be told of twice.
    added = {"port": f"{port},"} | ({"hostaddr": f"{address},"} if address else {})
    if values.get("load_balance_hosts") == "random":
        # They are shuffled already, and this one stands last.
        added["load_balance_hosts"] = "disable"
    return make_conninfo(attempt, host=f"{host},{_NOWHERE}", **added)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_number(given: str) -> bool:
    return _NUMBER.fullmatch(given) is not None and -_LARGEST <= int(given) <= _LARGEST


def _shake_hands(connection: pq.abc.PGconn, limit: float | None) -> bool:
    """Let libpq go on until it has a session or has failed; return whether that was within ``limit``."""
    deadline = None if limit is None else time.monotonic() + limit
    # As its documentation has it: asked before that, it takes a connection that is under way for made, and
    # tells of one that is refused what it says of one that broke.
    step: int = pq.PollingStatus.WRITING
    while step in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
        if not _wait(connection.socket, step, deadline):
            return False
        step = connection.connect_poll()
    return True


def _wait(place: int, step: int, deadline: float | None) -> bool:
    """Wait until libpq can go on, and return whether it can."""
    waiting = select.poll()
    waiting.register(place, select.POLLIN if step == pq.PollingStatus.READING else select.POLLOUT)
    while True:
        left = _LONGEST_POLL if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return False
        if waiting.poll(min(left, _LONGEST_POLL) * 1000):
            return True


def _failure(connection: pq.abc.PGconn, attempt: str, expired: bool) -> str:
    """Return what libpq would say of an ``attempt`` if it had looked up the name itself."""
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
