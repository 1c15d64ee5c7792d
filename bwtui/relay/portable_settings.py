"""Relay settings that mean the same in another process, with different variables and folders.

libpq takes parameters that a connection string lacks from ``PG*`` variables and from a service file; a path
may be relative to the relay's folder. The other process has neither.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from bwtui.settings import Pairs, RelaySettings

_FILES_OF_LIBPQ = frozenset({"passfile", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslcrldir"})
_FILES_OF_CLIENTS = (".location", ".keytab", ".file")
#: Values that are not paths.
_NO_PATHS = frozenset({"", "probe", "system"})


def portable(settings: RelaySettings) -> RelaySettings:
    """Return the settings, completed from this process's variables, service files and folder."""
    return dataclasses.replace(
        settings,
        postgres=_connection_string(settings.postgres),
        kafka_config=_with_paths(settings.kafka_config),
        registry_config=_with_paths(settings.registry_config),
    )


def _with_paths(pairs: Pairs) -> Pairs:
    return tuple((k, _absolute(v) if k.endswith(_FILES_OF_CLIENTS) else v) for k, v in pairs)


def _absolute(path: str) -> str:
    # A deleted working folder has no name: leave the path as it is.
    with contextlib.suppress(OSError):
        return path if path in _NO_PATHS else str(Path(path).absolute())
    return path


def _connection_string(dsn: str) -> str:
    try:
        parsed = pq.Conninfo.parse(os.fsencode(dsn))
        parameters_set = {option.keyword: option.val for option in parsed if option.val is not None}
        with _service(parameters_set.pop(b"service", None)):
            defaults = pq.Conninfo.get_defaults()
        effective = {
            option.keyword: option.val
            for option in defaults
            if option.val not in (None, b"", option.compiled)
        }
        # The service's parameters are already included.
        effective.pop(b"service", None)
        parameters = {
            os.fsdecode(keyword): os.fsdecode(value or b"")
            for keyword, value in (effective | parameters_set).items()
        }
        parameters |= {
            keyword: _absolute(parameters[keyword]) for keyword in _FILES_OF_LIBPQ & parameters.keys()
        }
        return make_conninfo("", **parameters)
    except (psycopg.Error, UnicodeError):
        # Connecting with this string reports the error.
        return dsn


@contextlib.contextmanager
def _service(name: bytes | None) -> Iterator[None]:
    """Have libpq take its defaults from the service ``name``: it does so only for the PGSERVICE variable."""
    if name is None:
        yield
        return
    before = os.environ.get("PGSERVICE")
    os.environ["PGSERVICE"] = os.fsdecode(name)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PGSERVICE"]
        else:
            os.environ["PGSERVICE"] = before
