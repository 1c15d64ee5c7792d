"""The connection of a worker on another machine: bytes of a local socket within TLS, and control frames."""

import contextlib
import selectors
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

_HEADER = struct.Struct("!BI")
_READ_BYTES = 1 << 16
#: Maximum bytes waiting in either direction; above that, no more is read.
_MOST_BYTES = 1 << 20


class FrameKind(IntEnum):
    """The kind of a frame."""

    DATA = 0
    #: The other end is alive.
    PING = 1
    #: The worker process has started; the value is its process id.
    BEGUN = 2
    #: End the worker process.
    KILL = 3
    #: The worker process has ended; the value is its exit code.
    ENDED = 4
    #: The process that guards the worker, and whose end also ends it; the value is its process id.
    GUARD = 5


class ControlFrame(NamedTuple):
    """A frame without data: a control frame."""

    kind: FrameKind
    value: int


class TlsMux:
    """One end; one thread owns it."""

    def __init__(self, outside: ssl.SSLSocket, inside: socket.socket) -> None:
        outside.setblocking(False)
        inside.setblocking(False)
        self._outside = outside
        self._inside: socket.socket | None = inside
        self._leaving = bytearray()
        self._arrived = bytearray()
        self._for_inside = bytearray()
        #: When data last arrived from the other end.
        self.heard_at = time.monotonic()
        #: True if the other end closed the connection, which a machine also does for a process that ends.
        self.is_closed = False
        #: True if the connection broke in another way, so that the state of the other end is unknown.
        self.is_broken = False

    @property
    def is_over(self) -> bool:
        """True if nothing more arrives."""
        return self.is_closed or self.is_broken

    @property
    def is_drained(self) -> bool:
        """True if all data that arrived was written to the local socket."""
        return self._inside is None or not self._for_inside

    @property
    def has_inside(self) -> bool:
        """True if the local socket's other end is open."""
        return self._inside is not None

    def send(self, kind: FrameKind, value: int = 0) -> None:
        """Queue a control frame for one of the next turns."""
        self._frame(kind, value.to_bytes(4, "big", signed=True))

    def turn(self, seconds: float) -> list[ControlFrame]:
        """Wait for up to ``seconds``, forward available data, and return the control frames that arrived."""
        self._wait(seconds)
        if len(self._for_inside) < _MOST_BYTES:
            self._read_outside()
        if self._inside is not None and len(self._leaving) < _MOST_BYTES:
            self._take_inside()
        self._write_outside()
        signs = self._parse()
        self._write_inside()
        return signs

    def close(self) -> None:
        """Close both sides."""
        self._close_inside()
        self._outside.close()

    def _wait(self, seconds: float) -> None:
        can_take = len(self._for_inside) < _MOST_BYTES
        if self.is_over and not self._for_inside:
            return
        with selectors.DefaultSelector() as selector:
            if not self.is_over:
                events = selectors.EVENT_READ * can_take | selectors.EVENT_WRITE * bool(self._leaving)
                if events:
                    selector.register(self._outside, events)
            if self._inside is not None:
                can_send = len(self._leaving) < _MOST_BYTES and not self.is_over
                events = selectors.EVENT_READ * can_send | selectors.EVENT_WRITE * bool(self._for_inside)
                if events:
                    selector.register(self._inside, events)
            is_there = can_take and not self.is_over and self._outside.pending()
            selector.select(0 if is_there else seconds)

    def _frame(self, kind: FrameKind, data: bytes) -> None:
        self._leaving += _HEADER.pack(kind, len(data)) + data

    # -- the local socket ------------------------------------------------------------------------------------

    def _take_inside(self) -> None:
        assert self._inside is not None
        try:
            data = self._inside.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._frame(FrameKind.DATA, data)
        else:
            self._close_inside()

    def _write_inside(self) -> None:
        try:
            while self._inside is not None and self._for_inside:
                del self._for_inside[: self._inside.send(self._for_inside)]
        except BlockingIOError:
            return
        except OSError:
            self._close_inside()
        if self._inside is None:
            self._for_inside.clear()

    def _close_inside(self) -> None:
        if self._inside is not None:
            self._inside.close()
            self._inside = None

    # -- the TLS connection ----------------------------------------------------------------------------------

    def _read_outside(self) -> None:
        while not self.is_over:
            with self._failures():
                data = self._outside.recv(_READ_BYTES)
                self._arrived += data
                self.is_closed = not data
                self.heard_at = time.monotonic()
                if self._outside.pending():
                    continue
            return

    def _write_outside(self) -> None:
        with self._failures():
            while self._leaving and not self.is_over:
                try:
                    del self._leaving[: self._outside.send(self._leaving)]
                except (ConnectionResetError, BrokenPipeError):
                    self._read_last()
                    raise

    def _read_last(self) -> None:
        """Read what arrived before the other end closed: it may include the exit code of its process."""
        before = -1
        while before < len(self._arrived):
            before = len(self._arrived)
            self._read_outside()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            self.is_closed = True
        except (OSError, ValueError):
            self.is_broken = True

    def _parse(self) -> list[ControlFrame]:
        signs, begin = [], 0
        while len(self._arrived) - begin >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._arrived, begin)
            end = begin + _HEADER.size + length
            if len(self._arrived) < end:
                break
            data = self._arrived[begin + _HEADER.size : end]
            if kind == FrameKind.DATA:
                self._for_inside += data
            else:
                signs.append(ControlFrame(FrameKind(kind), int.from_bytes(data, "big", signed=True)))
            begin = end
        del self._arrived[:begin]
        if self._inside is None:
            self._for_inside.clear()
        return signs
