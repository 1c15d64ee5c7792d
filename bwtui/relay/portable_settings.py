"""Relay settings that mean the same in another process, with different variables and folders.

libpq takes parameters that a connection string lacks from ``PG*`` variables and from a service file; a path
may be relative to the relay's folder. The other process has neither.
"""

import contextlib
import dataclasses
import os
from pathlib import Path

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from bwtui.errors import UsageError
from bwtui.settings import Pairs, RelaySettings
from bwtui.source.hosts import effective, parsed

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
        explicit = parsed(dsn)
        built_in = {os.fsdecode(one.keyword): one.compiled or b"" for one in pq.Conninfo.get_defaults()}
        parameters = {
            keyword: _absolute(value) if keyword in _FILES_OF_LIBPQ else value
            for keyword, value in effective(dsn).items()
            if keyword in explicit or (value and os.fsencode(value) != built_in[keyword])
        }
        # The service's parameters are already included.
        parameters.pop("service", None)
        return make_conninfo("", **parameters)
    except (UsageError, psycopg.Error, UnicodeError):
        # Connecting with this string reports the error.
        return dsn
