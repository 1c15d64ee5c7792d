"""A door before a service: it may be shut, slow, or lead to another service from some moment on."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
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
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def open(self) -> None:
        """Let clients in from now on."""
        self._listener = socket.create_server((LOOPBACK, self.port))
        self._begin(self._accept, self._listener)

    def shut(self) -> None:
        """Let nobody in any more, cut all connections, and wait until they are closed."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join()

    def lead_to(self, target: int) -> None:
        """Lead to another service from now on."""
        self.target = target
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        with self._lock:
            for end in self._open:
                _end(end)

    def _begin(self, what: Callable[[socket.socket], None], connection: socket.socket) -> None:
        thread = threading.Thread(target=what, args=[connection], daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with listener, contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._begin(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with (
            client,
            contextlib.suppress(OSError),
            socket.create_connection((LOOPBACK, self.target)) as server,
        ):
            ends = {client, server}
            with self._lock:
                self._open |= ends
            back = threading.Thread(target=self._pass_on, args=[server, client], daemon=True)
            back.start()
            self._pass_on(client, server)
            back.join()
            with self._lock:
                self._open -= ends

    def _pass_on(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while some := source.recv(_BYTES):
                time.sleep(self.delay)
                to.sendall(some)
        _end(source)
        _end(to)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


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
