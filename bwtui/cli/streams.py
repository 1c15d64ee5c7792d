"""The standard streams of a command: what can't be written is one plain error, a closed one harms nobody."""

import contextlib
import io
import os
import sys
from typing import Any

from bwtui.errors import BwtuiError


class OutputFailed(BwtuiError):
    """Stdout can't be written."""


class _Stdout(io.FileIO):
    """Tells a full disk behind stdout from an error of any other file."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            reason = "it is closed" if self._is_closed else error.strerror
            raise OutputFailed(f"the output can't be written: {reason}") from error

    _is_closed = False


def prepare() -> None:
    """Make stdout explain why it can't be written, and put something in the place of closed streams.

    A file that is opened later would else get a closed stream's number, and what is meant for it.
    """
    was_closed = sys.stdout is None
    for descriptor in range(3):
        # Of stdout's place nothing but an error is wanted.
        flags = os.O_RDWR if descriptor == 2 else os.O_RDONLY
        if not _is_open(descriptor):
            # The lowest free number is the one that is missing.
            os.open(os.devnull, flags)
            os.set_inheritable(descriptor, True)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    old = sys.stdout
    raw = _Stdout(1, "w", closefd=False)
    raw._is_closed = was_closed
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=old.encoding if old is not None else "utf-8",
        errors=old.errors if old is not None else None,
        line_buffering=old is not None and bool(old.line_buffering),
    )


def finish() -> str | None:
    """Write what stdout still holds, and return why that can't be done, if it can't."""
    try:
        sys.stdout.flush()
    except (BrokenPipeError, OutputFailed) as error:
        # The interpreter flushes again at its end, and would complain then.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
        with contextlib.suppress(BrokenPipeError, OutputFailed):
            sys.stdout.flush()
        return error.message if isinstance(error, OutputFailed) else None
    return None


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
