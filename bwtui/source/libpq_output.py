"""Log what libpq prints to stderr while it opens a session.

psycopg2 sets its notice processor only after the login. Until then libpq prints the server's notices, such as
those of login triggers, and the warning about a collation version, which PostgreSQL sends before it applies
the session's options. libpq also prints what is wrong with a password file. Printed text breaks
``--log-format json``, and may hold control characters.

libpq prints with ``fprintf(stderr, …)``. In glibc ``stderr`` is a variable that programs may set (its manual,
"Standard Streams"); it points to a file in memory meanwhile. Python and child processes write to descriptor 2
and are not affected. With other C libraries libpq prints as before.
"""

import contextlib
import ctypes
import functools
import logging
import os
import threading
from collections.abc import Iterator

from bwtui.escaping import escape
from bwtui.model.events import event

#: Maximum bytes of a message; a login trigger may print anything.
_LIMIT = 4096
_log = logging.getLogger(__name__)


class _GlibcStderr:
    """The ``stderr`` variable of glibc."""

    def __init__(self, libc: ctypes.CDLL) -> None:
        self._libc = libc
        self._variable = ctypes.c_void_p.in_dll(libc, "stderr")
        self._original = self._variable.value
        self._descriptor = os.memfd_create("libpq")
        libc.fdopen.restype = ctypes.c_void_p
        # Never closed: another thread may be about to write to it.
        self._file = ctypes.c_void_p(libc.fdopen(self._descriptor, b"a"))
        self._lock = threading.Lock()
        self._sessions = 0
        self._logged = ""

    @contextlib.contextmanager
    def logged(self) -> Iterator[None]:
        """Log what libpq prints once no thread is left in the block."""
        with self._lock:
            self._sessions += 1
            self._variable.value = self._file.value
        try:
            yield
        finally:
            with self._lock:
                self._sessions -= 1
                if not self._sessions:
                    self._variable.value = self._original
                    self._log_printed()

    def _log_printed(self) -> None:
        self._libc.fflush(self._file)
        printed = os.pread(self._descriptor, _LIMIT, 0).decode("utf-8", "replace")
        os.ftruncate(self._descriptor, 0)
        # Simultaneous sessions print the same, and libpq reads the password file once for each host.
        words = escape("; ".join(dict.fromkeys(printed.splitlines())))
        # A relay opens sessions for months: log a repeated message once.
        if words and words != self._logged:
            self._logged = words
            _log.warning("PostgreSQL's client library: %s", words, extra=event("notice"))


@functools.cache
def _stderr() -> _GlibcStderr | None:
    libc = ctypes.CDLL(None)
    return _GlibcStderr(libc) if hasattr(libc, "gnu_get_libc_version") else None


def libpq_output_logged() -> contextlib.AbstractContextManager[None]:
    """Return the context manager to open a libpq session in."""
    stderr = _stderr()
    return contextlib.nullcontext() if stderr is None else stderr.logged()
