"""The log of an engine that runs as its own process: ``engine.log`` in the relay's state folder.

All that the process writes to stdout and stderr goes there, librdkafka's own lines too, so it is bounded both
at the start and while the engine runs.
"""

import logging
import os
import stat
import sys
from pathlib import Path

from bwtui.masking import mask_connection
from bwtui.relay.control import state_folder

_KEEP_AT_START = 1024 * 1024
_LIMIT = 8 * 1024 * 1024
_TAIL = 512 * 1024
#: Libraries that tell every request.
_TALKATIVE = ("httpx", "httpx2", "httpcore", "urllib3")


class _Masking(logging.Formatter):
    """Takes passwords out of every line, whoever wrote it."""

    def format(self, record: logging.LogRecord) -> str:
        return mask_connection(super().format(record))


def log_to_stderr() -> None:
    """Send the log of this process to stderr, which is the log file of an engine."""
    _configure(logging.StreamHandler(sys.stderr))


def log_to_file(name: str) -> None:
    """Send the log of this process to the relay's log file."""
    os.close(open_log(name))
    _configure(logging.FileHandler(log_path(name), delay=True))


def _configure(handler: logging.Handler) -> None:
    handler.setFormatter(_Masking("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for library in _TALKATIVE:
        logging.getLogger(library).setLevel(logging.WARNING)


def log_path(name: str) -> Path:
    """Return the path of the log of the relay called ``name``."""
    return state_folder(name) / "engine.log"


def open_log(name: str) -> int:
    """Open the log for appending and return the descriptor; a long one of earlier runs is put aside."""
    path = log_path(name)
    if path.exists() and path.stat().st_size > _KEEP_AT_START:
        path.replace(path.with_suffix(".log.1"))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def trim(name: str, descriptor: int) -> None:
    """Keep only the end of a log that has grown too long while ``descriptor`` appends to it."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size <= _LIMIT:
        return
    path = log_path(name)
    with path.open("rb") as file:
        file.seek(-_TAIL, os.SEEK_END)
        tail = file.read()
    aside = path.with_suffix(".log.1")
    aside.write_bytes(tail)
    aside.chmod(0o600)
    # The descriptor appends, so what is written next lands at the new end.
    os.ftruncate(descriptor, 0)
