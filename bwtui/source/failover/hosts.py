"""The hosts that a connection string names, and what bwtui adds to it.

libpq tries several hosts in turn, for every connection anew. Where there are several, one of them is the
primary, which alone accepts writes.
"""

import functools
import os
import re
from pathlib import Path

import psycopg2
import psycopg2.extensions
from psycopg import pq
from psycopg.conninfo import make_conninfo

from bwtui.errors import BwtuiError, UsageError
from bwtui.masking import mask_connection
from bwtui.options import nearest

#: What a connection string, a variable or a service may say otherwise (seconds; tcp_user_timeout in
#: milliseconds). A peer that vanished without a word is noticed within a minute.
_DEFAULTS = {
    "connect_timeout": "10",
    "fallback_application_name": "bwtui",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
#: Of several hosts one is the primary, which another takes over from: it is looked for, and sooner missed.
_DEFAULTS_OF_SEVERAL = _DEFAULTS | {
    "target_session_attrs": "read-write",
    "connect_timeout": "3",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "tcp_user_timeout": "12000",
}
_UNKNOWN_KEYWORD = re.compile(r'invalid (?:connection option|URI query parameter:?) "([a-z_]+)"')


def with_defaults(dsn: str, **extra: str) -> str:
    """Return ``dsn`` with `_DEFAULTS` for what it leaves open, and ``extra``. Raises UsageError."""
    given = _parsed(dsn)
    values = _effective(given)
    several = any("," in values.get(key, "") for key in ("host", "hostaddr"))
    defaults = dict(_DEFAULTS_OF_SEVERAL if several else _DEFAULTS)
    if values.get("target_session_attrs", "any") != "any" or "PGTARGETSESSIONATTRS" in os.environ:
        defaults.pop("target_session_attrs", None)
    # What libpq has by itself is no word of the user's.
    said = {key for key in values if key != "target_session_attrs"} | given.keys()
    added = {key: value for key, value in defaults.items() if key not in said} | extra
    return psycopg2.extensions.make_dsn(dsn, **added)


def describe(dsn: str) -> str:
    """Return where ``dsn`` leads, for people: ``host:port/dbname``, never a password."""
    try:
        parameters = psycopg2.extensions.parse_dsn(dsn) if dsn else {}
    except psycopg2.ProgrammingError:
        return "?"
    hosts = (parameters.get("host") or parameters.get("hostaddr") or "local").split(",")
    ports = parameters.get("port", "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = ",".join(f"{host}:{port or 5432}" for host, port in zip(hosts, ports, strict=False))
    return f"{places}/{parameters.get('dbname', '')}"


def each_host(dsn: str) -> list[str]:
    """Return connection strings to each of the hosts that ``dsn`` names, whatever they are; one for one.

    Raises UsageError for a string that libpq can't read.
    """
    split = split_hosts(dsn)
    return split if len(split) == 1 else [make_conninfo(one, target_session_attrs="any") for one in split]


def split_hosts(dsn: str) -> list[str]:
    """Return connection strings to each of the hosts that ``dsn`` names, with all else that it says.

    Raises UsageError for a string that libpq can't read.
    """
    values = effective(dsn)
    named = {key: values[key].split(",") for key in ("host", "hostaddr", "port") if values.get(key)}
    count = max((len(named[key]) for key in ("host", "hostaddr") if key in named), default=1)
    # Lists that do not match are libpq's to refuse.
    if count == 1 or any(
        len(given) not in (count, 1 if key == "port" else count) for key, given in named.items()
    ):
        return [dsn]
    return [
        make_conninfo(dsn, **{key: given[number if len(given) > 1 else 0] for key, given in named.items()})
        for number in range(count)
    ]


def names_several(dsn: str) -> bool:
    """Say whether ``dsn`` names several hosts, of which another may be the primary soon.

    Raises UsageError for a string that libpq can't read.
    """
    return len(each_host(dsn)) > 1


def _parsed(dsn: str) -> dict[str, str]:
    try:
        return psycopg2.extensions.parse_dsn(dsn) if dsn else {}
    except psycopg2.ProgrammingError as error:
        raise _malformed(dsn, str(error)) from error


def effective(dsn: str) -> dict[str, str]:
    """Return what a connection string means with what variables and a service add to it.

    Raises UsageError for a string that libpq can't read.
    """
    return _effective(_parsed(dsn))


def _effective(given: dict[str, str]) -> dict[str, str]:
    if "service" in given:
        return _of_service(make_conninfo("", **given), _service_files()) | given
    return _by_keyword(pq.Conninfo.get_defaults()) | given


def _service_files() -> tuple[tuple[int, int, int] | None, ...]:
    """Return what changes when a file of services does."""
    own = os.environ.get("PGSERVICEFILE") or "~/.pg_service.conf"
    found: list[tuple[int, int, int] | None] = []
    for path in (Path(own), Path(os.environ.get("PGSYSCONFDIR", "/"), "pg_service.conf")):
        try:
            file = path.expanduser().stat()
        except (OSError, RuntimeError):
            # Not there, or nobody's home.
            found.append(None)
        else:
            found.append((file.st_ino, file.st_size, file.st_mtime_ns))
    return tuple(found)


@functools.lru_cache(maxsize=16)
def _of_service(dsn: str, files: tuple[tuple[int, int, int] | None, ...]) -> dict[str, str]:
    """Return what ``dsn`` means with its service, as long as the ``files`` of services are what they are.

    Only libpq reads services, and only when it connects: asked every time, each connection would cost two.
    """
    begun = pq.PGconn.connect_start(dsn.encode())
    try:
        return _by_keyword(begun.info)
    finally:
        begun.finish()


def _by_keyword(options: list[pq.ConninfoOption]) -> dict[str, str]:
    return {os.fsdecode(one.keyword): os.fsdecode(one.val) for one in options if one.val is not None}


def _malformed(dsn: str, message: str) -> BwtuiError:
    """Return the error for a string that libpq can't read; ``message`` may quote a part of a password."""
    match = _UNKNOWN_KEYWORD.search(message)
    hint = "use key=value pairs or a postgresql:// URI, as for psql"
    if match is None or mask_connection(dsn) != dsn:
        return UsageError("the connection string is not valid", hint)
    keywords = [option.keyword.decode() for option in pq.Conninfo.get_defaults()]
    close = nearest(match[1], keywords)
    problem = f"the connection string is not valid: libpq knows no keyword {match[1]!r}"
    return UsageError(problem, f"did you mean {close!r}?" if close else hint)
