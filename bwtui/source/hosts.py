"""The hosts that a connection string names, and the defaults that bwtui adds to it.

libpq tries several hosts in turn, from the first one for every connection. With several hosts, one of them is
the primary, which alone accepts writes.
"""

import os
import re
from typing import Any

import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn

from bwtui.errors import UsageError
from bwtui.masking import MASK, mask_connection
from bwtui.options import nearest

#: Defaults that a connection string, a variable or a service may override (seconds; tcp_user_timeout in
#: milliseconds). A peer that vanished silently is noticed within a minute.
_DEFAULTS = {
    "connect_timeout": "10",
    "fallback_application_name": "bwtui",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
#: With several hosts, bwtui looks for the primary, and notices its failure sooner, since a standby may take
#: over.
_DEFAULTS_OF_SEVERAL = _DEFAULTS | {
    "target_session_attrs": "read-write",
    "connect_timeout": "3",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "tcp_user_timeout": "12000",
}
#: A URI whose password has a / or @ that is not escaped: libpq takes the rest for a host, port or database,
#: and quotes it in its errors. A database name may contain an @ after a host and its port.
_UNESCAPED = re.compile(
    r"""postgres(?:ql)?://(?: [^@/?]* @ [^/?]* @
      | [^@/?]* @ [^/?@]* / [^?]* @ [^?]* [/:]
      | [^@/?]* : (?!\d*/) [^@/?:\]]* / [^?]* @
      | [^@/?]* : \d* / [^?]* @ [^?]* [/:])""",
    re.VERBOSE,
)
_ESCAPE = "percent-encode special characters of the password in a URI: / as %2F, @ as %40, : as %3A, % as %25"
_UNKNOWN_KEYWORD = re.compile(r'invalid (?:connection option|URI query parameter:?) "(\w+)"')


def with_defaults(dsn: str, **extra: str) -> str:
    """Return ``dsn`` with `_DEFAULTS` for everything it leaves open, and ``extra``. Raises UsageError."""
    parameters = parsed(dsn)
    if parameters.keys() >= _DEFAULTS_OF_SEVERAL.keys():
        return make_dsn(dsn, **extra)
    values = _effective(parameters)
    several = any("," in values.get(key, "") for key in ("host", "hostaddr"))
    defaults = dict(_DEFAULTS_OF_SEVERAL if several else _DEFAULTS)
    if values.get("target_session_attrs", "any") != "any" or "PGTARGETSESSIONATTRS" in os.environ:
        defaults.pop("target_session_attrs", None)
    # libpq's built-in value was not set by the user.
    explicit = {key for key in values if key != "target_session_attrs"} | parameters.keys()
    added = {key: value for key, value in defaults.items() if key not in explicit} | extra
    return make_dsn(dsn, **added)


def complete(dsn: str) -> str:
    """Return ``dsn`` with everything that `with_defaults` adds, so that no later lookup is necessary.

    It means the same in a process with the same environment variables. Raises UsageError.
    """
    full = with_defaults(dsn)
    parameters = parsed(full)
    values = _effective(parameters)
    missing = (_DEFAULTS_OF_SEVERAL.keys() - parameters.keys()) & values.keys()
    return make_dsn(full, **{key: values[key] for key in missing})


def describe(dsn: str) -> str:
    """Return the target of ``dsn`` for people to read, as ``host:port/dbname``; never a password."""
    try:
        parameters = parsed(dsn)
    except UsageError:
        return "?"
    hosts = (parameters.get("host") or parameters.get("hostaddr") or "local").split(",")
    ports = parameters.get("port", "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = ",".join(f"{host}:{port or 5432}" for host, port in zip(hosts, ports, strict=False))
    return f"{places}/{parameters.get('dbname', '')}"


def each_host(dsn: str) -> list[str]:
    """Return a connection string for each host of ``dsn``, whether primary or standby.

    Raises UsageError for a string that libpq can't read.
    """
    split = split_hosts(dsn)
    return split if len(split) == 1 else [make_dsn(one, target_session_attrs="any") for one in split]


def split_hosts(dsn: str) -> list[str]:
    """Return a connection string for each host of ``dsn``, with all of its other parameters.

    Raises UsageError for a string that libpq can't read.
    """
    values = effective(dsn)
    named = {key: values[key].split(",") for key in ("host", "hostaddr", "port") if values.get(key)}
    count = max((len(named[key]) for key in ("host", "hostaddr") if key in named), default=1)
    # libpq itself rejects lists of different lengths.
    if count == 1 or any(
        len(entries) not in (count, 1 if key == "port" else count) for key, entries in named.items()
    ):
        return [dsn]
    return [
        make_dsn(
            dsn,
            **{key: entries[number if len(entries) > 1 else 0] for key, entries in named.items()},
        )
        for number in range(count)
    ]


def names_several(dsn: str) -> bool:
    """Return whether ``dsn`` names several hosts, a different one of which may soon be the primary.

    Raises UsageError for a string that libpq can't read.
    """
    return len(each_host(dsn)) > 1


def parsed(dsn: str) -> dict[str, str]:
    """Return the parameters in a connection string. Raises UsageError if libpq can't read it."""
    if _UNESCAPED.match(dsn):
        raise UsageError("the password in the connection URI contains an unescaped / or @", _ESCAPE)
    try:
        return parse_dsn(dsn) if dsn else {}
    except psycopg2.ProgrammingError as error:
        raise _malformed(dsn, str(error)) from error


def effective(dsn: str) -> dict[str, str]:
    """Return the parameters of a connection string, including those from variables and a service.

    Raises UsageError for a string that libpq can't read.
    """
    return _effective(parsed(dsn))


def _conninfo() -> Any:
    # Imported on demand: psycopg takes a tenth of the memory of a snapshot's worker.
    from bwtui.source import conninfo

    return conninfo


def _effective(parameters: dict[str, str]) -> dict[str, str]:
    values: dict[str, str] = _conninfo().effective_parameters(parameters)
    return values


def _malformed(dsn: str, message: str) -> UsageError:
    """Return the error for a string that libpq can't read; ``message`` may quote part of a password."""
    problem = "the connection string is not valid"
    hint = "use key=value pairs or a postgresql:// URI, as for psql"
    if "percent-encoded" in message:
        return UsageError(f"{problem}: libpq can't decode a % in it", f"write % as %25; {_ESCAPE}")
    match = _UNKNOWN_KEYWORD.search(message)
    # A word that occurs twice may be a password, too.
    if match is not None and match[1] in _without_secrets(dsn) and dsn.count(match[1]) == 1:
        close = nearest(match[1].lower(), _conninfo().keywords())
        problem = f"{problem}: libpq has no keyword {match[1]!r}"
        return UsageError(problem, f"did you mean {close!r}?" if close else hint)
    return UsageError(problem, f"{hint}; {_ESCAPE}" if mask_connection(dsn) != dsn and "://" in dsn else hint)


def _without_secrets(dsn: str) -> str:
    """Return the part of ``dsn`` that certainly contains no part of a password, quoted or not."""
    rest = dsn
    if "://" in dsn and dsn.count("@") == 1:
        rest = dsn.rpartition("@")[2]
    return mask_connection(rest).partition(MASK)[0]
