"""The log of an engine: ``engine.log`` in the relay's state folder, and before that ``engine.log.1``.

Both are bounded, at the start and while the engine runs, which may be for months. Nothing else in the folder
is: dead letters are kept until somebody removes them.

All that an engine's own process writes to stdout and stderr goes to the log, what libraries written in C say
too. Nobody but the process itself can make such a file shorter, so it is trimmed. A relay in the foreground
writes the log alone, line by line, and begins a new file.
"""

import logging
import logging.handlers
import os
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from bwtui.masking import mask_connection
from bwtui.model.events import OTHERS, event
from bwtui.settings import LogFormat
from bwtui.shown import json_text, shown, shown_lines
from bwtui.state_folder import state_folder

_KEEP_AT_START = 1024 * 1024
_LIMIT = 8 * 1024 * 1024
_TAIL = 512 * 1024
#: Libraries that tell every request.
_TALKATIVE = ("httpx", "httpx2", "httpcore", "urllib3")
_log = logging.getLogger("bwtui.relay.process.log")


class _Masking(logging.Formatter):
    """Takes passwords out of every line, also of a library's, and shows what isn't printable."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        # Passwords first: an escape before one could make a longer word of its name.
        return shown(mask_connection(super().formatMessage(record)))

    def formatException(self, ei: Any) -> str:
        return shown_lines(mask_connection(super().formatException(ei)))


class JsonLines(logging.Formatter):
    """Writes an object a line, with what `bwtui.model.events.event` says of it; passwords are taken out."""

    def __init__(self, relay: str) -> None:
        """``relay`` is the name of the relay whose log it is."""
        super().__init__()
        self._relay = relay

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        details: dict[str, object] = getattr(record, "details", {})
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", OTHERS),
            "relay": self._relay,
            "logger": record.name,
            "message": record.getMessage(),
            **{key: value for key, value in details.items() if value is not None},
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        # Before it is JSON, where what parts a password from what follows would have a backslash before it.
        masked = {
            key: mask_connection(value) if isinstance(value, str) else value for key, value in told.items()
        }
        return json_text(masked)


def json_lines() -> JsonLines | None:
    """Return what writes the log of this process as objects, or None where it is text."""
    formatters = (handler.formatter for handler in logging.getLogger().handlers)
    return next((one for one in formatters if isinstance(one, JsonLines)), None)


def log_to_stderr(name: str, log_format: LogFormat) -> None:
    """Send the log of this process, of the relay ``name``, to stderr, which is the log file of an engine."""
    _configure(logging.StreamHandler(sys.stderr), name, log_format)


def log_to_file(name: str, log_format: LogFormat) -> None:
    """Send the log of this process to the relay's log file."""
    os.close(open_log(name))
    _configure(_PrivateFile(log_path(name), maxBytes=_LIMIT, backupCount=1, delay=True), name, log_format)


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """A log whose next file is for its owner only, too."""

    def _open(self) -> TextIO:  # type: ignore[override]  # typeshed has the class of the usual opener.
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")

    def handleError(self, record: logging.LogRecord) -> None:
        """Lose the line, as on a full disk; logging would show it on stderr with all that is masked here."""


def _configure(handler: logging.Handler, name: str, log_format: LogFormat) -> None:
    text = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(JsonLines(name) if log_format == "json" else _Masking(text))
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
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size <= _LIMIT:
        return
    path = log_path(name)
    with path.open("rb") as file:
        file.seek(-_TAIL, os.SEEK_END)
        tail = file.read()
    aside, failure = path.with_suffix(".log.1"), None
    try:
        aside.write_bytes(tail)
        aside.chmod(0o600)
    except OSError as error:
        failure = error.strerror
    # Whatever becomes of the old lines, the log must not fill the disk, least of all a full one. The
    # descriptor appends, so what is written next lands at the new end.
    os.ftruncate(descriptor, 0)
    if failure is not None:
        _log.warning(
            "older lines could not be kept in %s: %s", aside.name, failure, extra=event("outcome_unwritten")
        )
