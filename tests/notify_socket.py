"""systemd's side of sd_notify: a socket for a service's notifications, and a way to stop one thread."""

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
    """Receives a service's notifications; bound at a path, or with ``@name`` at an abstract address."""

    def __init__(self, address: str) -> None:
        self.address = address
        #: All received lines.
        self.lines: list[str] = []
        #: Number of lines that `wait` has checked.
        self._seen = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def __enter__(self) -> "NotifySocket":
        return self

    def __exit__(self, *raised: object) -> None:
        self._socket.close()

    def wait(self, line: str, seconds: float = 60.0) -> str:
        """Return the next line that begins with ``line`` and follows the last one returned."""
        deadline = time.monotonic() + seconds
        while True:
            while self._seen < len(self.lines):
                self._seen += 1
                if (said := self.lines[self._seen - 1]).startswith(line):
                    return said
            if not self._receive(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"nobody said {line!r} within {seconds:.0f} s, but {self.lines}")

    def is_silent(self, line: str, seconds: float) -> bool:
        """Return whether no line beginning with ``line`` arrives during the next ``seconds``."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if any(said.startswith(line) for said in self._receive(left)):
                return False
        return True

    def goes_silent(self, line: str, seconds: float) -> bool:
        """Return whether lines beginning with ``line`` stop; one line that was already due is allowed."""
        self.drain()
        return self.is_silent(line, seconds) or self.is_silent(line, seconds)

    def drain(self) -> None:
        """Skip the notifications that have already arrived."""
        while self._receive(0.001):
            pass
        self._seen = len(self.lines)

    def _receive(self, seconds: float) -> list[str]:
        # A timeout of zero would make the socket non-blocking.
        self._socket.settimeout(max(seconds, 0.001))
        try:
            data = self._socket.recv(65536)
        except TimeoutError:
            return []
        # systemd drops longer datagrams.
        assert len(data) <= 4096
        lines = data.decode().split("\n")
        self.lines += lines
        return lines


@contextmanager
def held_thread(thread: int) -> Iterator[None]:
    """Stop one thread of a child, while all others of its process continue (Linux)."""
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
