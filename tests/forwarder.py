"""A door before a service: it may be shut, slow, or lead to another service from some moment on."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bwtui.sandbox.ports import LOOPBACK, choose

_BYTES = 65_536


class Forwarder:
    """Listens on a port of its own once it is open, and passes on what comes in both directions."""

    def __init__(self, target: int) -> None:
        """``target`` is the port of the service; it is shut at first: connections are refused."""
        self.target = target
        self.port = choose(["forwarder"], {})["forwarder"]
        #: Seconds before anything is passed on.
        self.delay = 0.0
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []

    def open(self) -> None:
        """Let clients in from now on."""
        listener = socket.create_server((LOOPBACK, self.port))
        self._listener = listener
        threading.Thread(target=self._accept, args=[listener], daemon=True).start()

    def shut(self) -> None:
        """Let nobody in any more, and cut all connections."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        while self._open:
            with contextlib.suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def lead_to(self, target: int) -> None:
        """Lead to another service from now on."""
        self.target = target
        self.cut()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection((LOOPBACK, self.target))
                except OSError:
                    client.close()
                    continue
                self._open += [client, server]
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=[one, other], daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while some := source.recv(_BYTES):
                time.sleep(self.delay)
                to.sendall(some)
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def forwarded(target: int, *, is_open: bool = True) -> Iterator[Forwarder]:
    """Yield a door before the service on the port ``target``, which is shut at the end."""
    door = Forwarder(target)
    if is_open:
        door.open()
    try:
        yield door
    finally:
        door.shut()
