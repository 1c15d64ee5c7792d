"""Resolve the meaning of a connection string: variables, services, and libpq's defaults."""

import functools
import os
from pathlib import Path

from psycopg import pq
from psycopg.conninfo import make_conninfo

from bwtui.source.libpq_output import libpq_output_logged


def effective_parameters(parameters: dict[str, str]) -> dict[str, str]:
    """Return the parameters that ``parameters`` has, including those from variables and a service."""
    if "service" in parameters:
        return _of_service(make_conninfo("", **parameters), _service_files()) | parameters
    return _by_keyword(pq.Conninfo.get_defaults()) | parameters


def keywords() -> list[str]:
    """Return all keywords that libpq knows."""
    return [option.keyword.decode() for option in pq.Conninfo.get_defaults()]


def _service_files() -> tuple[tuple[int, int, int] | None, ...]:
    """Return the inode, size and time of each service file, which change when the file does."""
    user_file = os.environ.get("PGSERVICEFILE") or "~/.pg_service.conf"
    files: list[tuple[int, int, int] | None] = []
    for path in (Path(user_file), Path(os.environ.get("PGSYSCONFDIR", "/"), "pg_service.conf")):
        try:
            file = path.expanduser().stat()
        except (OSError, RuntimeError):
            # The file does not exist, or the user has no home directory.
            files.append(None)
        else:
            files.append((file.st_ino, file.st_size, file.st_mtime_ns))
    return tuple(files)


@functools.lru_cache(maxsize=16)
def _of_service(dsn: str, files: tuple[tuple[int, int, int] | None, ...]) -> dict[str, str]:
    """Return the parameters of ``dsn`` with its service, cached until one of the service ``files`` changes.

    Only libpq reads service files, and only when it connects: without the cache, each connection would need
    two.
    """
    with libpq_output_logged():
        begun = pq.PGconn.connect_start(dsn.encode())
    try:
        parameters = _by_keyword(begun.info)
    finally:
        begun.finish()
    # Added by libpq 16; psycopg2 may use an older one, which rejects it.
    if parameters.get("sslcertmode") == "allow":
        del parameters["sslcertmode"]
    return parameters


def _by_keyword(options: list[pq.ConninfoOption]) -> dict[str, str]:
    return {os.fsdecode(one.keyword): os.fsdecode(one.val) for one in options if one.val is not None}
