"""systemd's side of sd_notify: a socket that collects what a service says, and a thread that is held."""

import ctypes
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_DETACH = 0x4206, 0x4207, 17
_WALL = 0x40000000


class NotifySocket:
    """Where a service says how it is; bound at a path, or with ``@name`` at an abstract address."""

    def __init__(self, address: str) -> None:
        self.address = address
        #: Everything that was said, line by line.
        self.lines: list[str] = []
        #: So many of them were looked at.
        self._seen = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def __enter__(self) -> "NotifySocket":
        return self

    def __exit__(self, *raised: object) -> None:
        self._socket.close()

    def wait(self, line: str, seconds: float = 60.0) -> str:
        """Return the next line that begins with ``line``, behind the one that was waited for before."""
        deadline = time.monotonic() + seconds
        while True:
            while self._seen < len(self.lines):
                self._seen += 1
                if (said := self.lines[self._seen - 1]).startswith(line):
                    return said
            if not self._receive(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"nobody said {line!r} within {seconds:.0f} s, but {self.lines}")

    def is_silent(self, line: str, seconds: float) -> bool:
        """Say whether nothing beginning with ``line`` comes for so many seconds from now on."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if any(said.startswith(line) for said in self._receive(left)):
                return False
        return True

    def goes_silent(self, line: str, seconds: float) -> bool:
        """Say whether nothing beginning with ``line`` comes any more, but one that was due before."""
        self.drain()
        return self.is_silent(line, seconds) or self.is_silent(line, seconds)

    def drain(self) -> None:
        """Pass over what is there already."""
        while self._receive(0.001):
            pass
        self._seen = len(self.lines)

    def _receive(self, seconds: float) -> list[str]:
        # Zero would mean something else to a socket.
        self._socket.settimeout(max(seconds, 0.001))
        try:
            data = self._socket.recv(65536)
        except TimeoutError:
            return []
        # What is longer systemd throws away whole.
        assert len(data) <= 4096
        lines = data.decode().split("\n")
        self.lines += lines
        return lines


@contextmanager
def held_thread(thread: int) -> Iterator[None]:
    """Hold one thread of a child, while all others of its process go on (Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

    def trace(request: int) -> None:
        if libc.ptrace(request, thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")

    trace(_PTRACE_SEIZE)
    trace(_PTRACE_INTERRUPT)
    os.waitpid(thread, _WALL)
    try:
        yield
    finally:
        trace(_PTRACE_DETACH)
        os.kill(thread, signal.SIGCONT)
