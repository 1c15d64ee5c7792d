"""The standard streams of a command: a write error is one plain error, and a closed stream does no harm.

A command's work and its exit code don't depend on its readers: ``bwtui verify … | head -1`` ends with 1 if
there are differences, and a relay continues (ADR 20). So output to a pipe without a reader is dropped. Only a
command whose output is its work ends there: see `producing`.
"""

import contextlib
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import Any

from bwtui.errors import BwtuiError
from bwtui.file_errors import hint_for

#: The hint if stdout was already closed when the command started.
_CLOSED = "run the command with an open stdout, or redirect it to /dev/null"


class OutputFailed(BwtuiError):
    """Stdout can't be written."""


class StdoutClosed(BrokenPipeError):
    """Stdout has no reader any more, and the command has nothing else to do."""


class _Stdout(io.FileIO):
    """Distinguishes an error of stdout from one of any other file, and drops output without a reader."""

    #: Whether stdout was closed when the command began.
    was_closed = False
    is_stdout_closed = False
    is_the_work = False

    def write(self, data: Any, /) -> int | None:  # type: ignore[override]  # None: it would block.
        if not self.is_stdout_closed:
            try:
                return super().write(data)
            except BrokenPipeError:
                self.is_stdout_closed = True
            except OSError as error:
                reason = "it is closed" if self.was_closed else error.strerror
                hint = _CLOSED if self.was_closed else hint_for(error, "the output")
                raise OutputFailed(f"can't write the output: {reason}", hint) from error
        if self.is_the_work:
            raise StdoutClosed
        return memoryview(data).nbytes


class _LossyStderr(io.FileIO):
    """Drops what can't be written: there is no other place to report it.

    It has no buffer: a thread that blocks because nothing reads would hold the buffer's lock, and Python,
    which flushes at exit, would wait for it without end.
    """

    def write(self, data: Any, /) -> int:
        rest = memoryview(data)
        # None: the pipe is full, and another process that shares it has made it non-blocking.
        with contextlib.suppress(OSError):
            while rest and (written := super().write(rest)):
                rest = rest[written:]
        return memoryview(data).nbytes


def prepare() -> None:
    """Make stdout explain write errors, and replace closed streams by the null device.

    Otherwise a file that is opened later would get a closed stream's number, and the output for it.
    """
    was_closed = sys.stdout is None
    for descriptor in range(3):
        # Writing to the replacement of stdout must fail.
        flags = os.O_RDWR if descriptor == 2 else os.O_RDONLY
        if not _is_open(descriptor):
            # The lowest free number is the missing one.
            os.open(os.devnull, flags)
            os.set_inheritable(descriptor, True)
    old = sys.stdout
    raw = _Stdout(1, "w", closefd=False)
    raw.was_closed = was_closed
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=old.encoding if old is not None else "utf-8",
        errors=old.errors if old is not None else None,
        line_buffering=old is not None and bool(old.line_buffering),
    )
    raw_stderr: Any = _LossyStderr(2, "w", closefd=False)
    sys.stderr = io.TextIOWrapper(
        raw_stderr,
        encoding=sys.stderr.encoding if sys.stderr is not None else "utf-8",
        errors="backslashreplace",
        write_through=True,
    )


@contextlib.contextmanager
def producing() -> Iterator[None]:
    """Mark code whose output is its work: it raises StdoutClosed if stdout has no reader any more."""
    raw = _raw_stdout()
    if raw is not None:
        raw.is_the_work = True
    try:
        yield
    finally:
        if raw is not None:
            raw.is_the_work = False


def is_stdout_closed() -> bool:
    """Return whether output was dropped because stdout has no reader any more."""
    raw = _raw_stdout()
    return raw is not None and raw.is_stdout_closed


def write_at_once(text: str) -> None:
    """Write to stdout without its buffer, whose lock a blocked write would hold until the end.

    Raises OutputFailed.
    """
    sys.stdout.flush()
    raw = _raw_stdout()
    if raw is None:
        # Not the process's own stdout: the command is called from within a program.
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    rest = memoryview(text.encode())
    while rest:
        written = raw.write(rest)
        if written is None:
            # The pipe is full, and non-blocking because another process that shares it has made it so.
            select.select((), (1,), ())
        rest = rest[written or 0 :]


def _raw_stdout() -> _Stdout | None:
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw if isinstance(raw, _Stdout) else None


def finish() -> OutputFailed | None:
    """Flush stdout, and return the error if that fails."""
    try:
        sys.stdout.flush()
    except OutputFailed as error:
        # Otherwise the interpreter would flush again at exit, and report the error.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
        with contextlib.suppress(OutputFailed):
            sys.stdout.flush()
        return error
    return None


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
