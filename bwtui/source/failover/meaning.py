"""What a connection string means beside what it says: variables, services, and what libpq has by itself."""

import functools
import os
from pathlib import Path

from psycopg import pq
from psycopg.conninfo import make_conninfo

from bwtui.source.failover.libpq_output import libpq_output_logged


def effective(given: dict[str, str]) -> dict[str, str]:
    """Return what keywords and their values mean with what variables and a service add to them."""
    if "service" in given:
        return _of_service(make_conninfo("", **given), _service_files()) | given
    return _by_keyword(pq.Conninfo.get_defaults()) | given


def keywords() -> list[str]:
    """Return all that libpq knows."""
    return [option.keyword.decode() for option in pq.Conninfo.get_defaults()]


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
    with libpq_output_logged():
        begun = pq.PGconn.connect_start(dsn.encode())
    try:
        return _by_keyword(begun.info)
    finally:
        begun.finish()


def _by_keyword(options: list[pq.ConninfoOption]) -> dict[str, str]:
    return {os.fsdecode(one.keyword): os.fsdecode(one.val) for one in options if one.val is not None}
