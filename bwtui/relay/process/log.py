"""The log of an engine: ``engine.log`` in the relay's state folder, and older lines in ``engine.log.1``.

The size of both is limited, at the start and while the engine runs, which may be for months. Nothing else in
the folder is limited: dead letters are kept until somebody removes them.

The log receives everything that an engine's own process writes to stdout and stderr, including messages of C
libraries. Only the process itself can shorten such a file, so it trims it. A relay in the foreground writes
only its log records there, line by line, and starts a new file when one is full.
"""

import logging
import logging.handlers
import os
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from bwtui.errors import RefusedError
from bwtui.escaping import escape, escape_lines, json_text
from bwtui.file_errors import file_failed
from bwtui.masking import mask_connection
from bwtui.model.events import OTHERS, event
from bwtui.settings import LogFormat
from bwtui.state_folder import state_folder

_KEEP_AT_START = 1024 * 1024
_LIMIT = 8 * 1024 * 1024
_TAIL = 512 * 1024
#: Libraries that log every request.
_TALKATIVE = ("httpx", "httpx2", "httpcore", "urllib3")
_log = logging.getLogger("bwtui.relay.process.log")


class _MaskingFormatter(logging.Formatter):
    """Removes passwords from every line, including those of libraries, and escapes unprintable characters."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        # Passwords first: an escape before a password's name could make the name part of a longer word.
        return escape(mask_connection(super().formatMessage(record)))

    def formatException(self, ei: Any) -> str:
        return escape_lines(mask_connection(super().formatException(ei)))


class JsonLogFormatter(logging.Formatter):
    """Writes one object per line, with the fields of `bwtui.model.events.event`; removes passwords."""

    def __init__(self, relay: str) -> None:
        """``relay`` is the name of the relay that writes the log."""
        super().__init__()
        self._relay = relay

    def format(self, record: logging.LogRecord) -> str:
        details: dict[str, object] = getattr(record, "details", {})
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", OTHERS),
            "relay": self._relay,
            "logger": record.name,
            "message": record.getMessage(),
            **{key: value for key, value in details.items() if value is not None},
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        # Before conversion to JSON, which would put a backslash before the character that ends a password.
        masked = {
            key: mask_connection(value) if isinstance(value, str) else value for key, value in fields.items()
        }
        return json_text(masked)


def json_lines() -> JsonLogFormatter | None:
    """Return the formatter that writes this process's log as objects, or None if the log is text."""
    formatters = (handler.formatter for handler in logging.getLogger().handlers)
    return next((one for one in formatters if isinstance(one, JsonLogFormatter)), None)


def log_to_stderr(name: str, log_format: LogFormat) -> None:
    """Send the log of this process, of the relay ``name``, to stderr, which is the log file of an engine."""
    _configure(logging.StreamHandler(sys.stderr), name, log_format)


def log_to_file(name: str, log_format: LogFormat) -> None:
    """Send the log of this process to the relay's log file."""
    os.close(open_log(name))
    _configure(_PrivateLogFile(log_path(name), maxBytes=_LIMIT, backupCount=1, delay=True), name, log_format)


class _PrivateLogFile(logging.handlers.RotatingFileHandler):
    """A log whose rotated files are also readable only by their owner."""

    def _open(self) -> TextIO:  # type: ignore[override]  # typeshed has the class of the usual opener.
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line, for example on a full disk; logging would print it on stderr without masking."""


def _configure(handler: logging.Handler, name: str, log_format: LogFormat) -> None:
    text = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(JsonLogFormatter(name) if log_format == "json" else _MaskingFormatter(text))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for library in _TALKATIVE:
        logging.getLogger(library).setLevel(logging.WARNING)


def log_path(name: str) -> Path:
    return state_folder(name) / "engine.log"


def open_log(name: str) -> int:
    """Open the log for appending and return the descriptor; a long log of earlier runs is moved away.

    Raises RefusedError.
    """
    path = log_path(name)
    try:
        if path.exists() and path.stat().st_size > _KEEP_AT_START:
            path.replace(path.with_suffix(".log.1"))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)
    except OSError as error:
        raise file_failed(f"can't write the relay's log {path}", error, RefusedError, str(path)) from error
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
    # Even if the old lines can't be kept, the log must not fill the disk, least of all a full one. The
    # descriptor appends, so the next line is written at the new end.
    os.ftruncate(descriptor, 0)
    if failure is not None:
        _log.warning(
            "the log could not be rotated to %s: %s", aside.name, failure, extra=event("outcome_unwritten")
        )
