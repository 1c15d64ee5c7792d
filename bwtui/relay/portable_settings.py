"""A relay's settings such that they mean the same in another process, with other variables and folders.

What a connection string lacks libpq takes from ``PG*`` variables and from a service file; a path may begin in
the relay's folder. The other process has neither.
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
#: Words in the place of a path.
_NO_PATHS = frozenset({"", "probe", "system"})


def portable(settings: RelaySettings) -> RelaySettings:
    """Return the settings with what this process's variables, service files and folder add to them."""
    return dataclasses.replace(
        settings,
        postgres=_connection_string(settings.postgres),
        kafka_config=_with_paths(settings.kafka_config),
        registry_config=_with_paths(settings.registry_config),
    )


def _with_paths(pairs: Pairs) -> Pairs:
    return tuple((k, _absolute(v) if k.endswith(_FILES_OF_CLIENTS) else v) for k, v in pairs)


def _absolute(path: str) -> str:
    # A folder that is gone has no name: then the path says what it said.
    with contextlib.suppress(OSError):
        return path if path in _NO_PATHS else str(Path(path).absolute())
    return path


def _connection_string(dsn: str) -> str:
    try:
        parsed = pq.Conninfo.parse(os.fsencode(dsn))
        given = {option.keyword: option.val for option in parsed if option.val is not None}
        with _service(given.pop(b"service", None)):
            defaults = pq.Conninfo.get_defaults()
        effective = {
            option.keyword: option.val
            for option in defaults
            if option.val not in (None, b"", option.compiled)
        }
        # What the service says is in it.
        effective.pop(b"service", None)
        parameters = {
            os.fsdecode(keyword): os.fsdecode(value or b"") for keyword, value in (effective | given).items()
        }
        parameters |= {
            keyword: _absolute(parameters[keyword]) for keyword in _FILES_OF_LIBPQ & parameters.keys()
        }
        return make_conninfo("", **parameters)
    except (psycopg.Error, UnicodeError):
        # The error of connecting with it says what is wrong.
        return dsn


@contextlib.contextmanager
def _service(name: bytes | None) -> Iterator[None]:
    """Have libpq look up the service ``name`` for its defaults: that is done for a variable only."""
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
