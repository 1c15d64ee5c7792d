"""One thread that serves many sockets and never blocks on one of them.

Derived classes bound the cost of clients: their number, the size of their requests, and their time.
"""

import contextlib
import logging
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Generic, Self, TypeVar

from bwtui.model.events import event

#: Seconds without accepting connections after the system ran out of resources for one.
_REST = 1.0
#: Maximum interval between calls of `SocketServer.look_after`: normally, and while it is due soon.
_LOOK_SECONDS, _SOON_SECONDS = 1.0, 0.05
_log = logging.getLogger(__name__)

Client = TypeVar("Client")


class SocketServer(ABC, Generic[Client]):
    """Serves the connections to one listening socket from `start` to `close`."""

    #: True if connections beyond the maximum wait until a client disconnects; otherwise they are refused.
    waits_for_room = False

    def __init__(self, name: str, most_clients: int) -> None:
        """``name`` is the name of the thread."""
        self._most_clients = most_clients
        self._clients: dict[socket.socket, Client] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._listener: socket.socket | None = None
        #: Until when no connection is accepted, or 0.
        self._resting = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Bind the socket and start serving. Raises RefusedError."""
        try:
            self._listener = self.listen()
        except BaseException:
            self.close()
            raise
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread.start()

    def close(self) -> None:
        """Stop serving, close every connection and the socket."""
        self._waker.close()
        if self._thread.is_alive():
            self._thread.join()
        for connection in list(self._clients):
            self.drop(connection)
        if self._listener is not None:
            self._listener.close()
        self._selector.close()
        self._wake.close()

    # -- for derived classes -------------------------------------------------------------------------------

    @abstractmethod
    def listen(self) -> socket.socket:
        """Return the listening socket. Raises RefusedError."""

    @abstractmethod
    def new_client(self) -> Client:
        """Return the state of a new connection."""

    @abstractmethod
    def step(self, connection: socket.socket, client: Client) -> None:
        """Continue with a client whose socket is ready, or drop it.

        Raises BlockingIOError if the socket is not ready any more, and OSError, after which the client is
        dropped.
        """

    @abstractmethod
    def wanted(self, client: Client) -> int:
        """Return the selector events to wait for."""

    def look_after(self) -> None:
        """Do periodic work, such as dropping clients that are stuck."""

    def make_room(self) -> bool:
        """Drop a client if there are too many and one may be dropped; return whether that was done."""
        return False

    def drop(self, connection: socket.socket) -> None:
        """Close a connection, unless it is already closed."""
        self._clients.pop(connection, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        connection.close()

    def rest(self, seconds: float) -> None:
        """Accept no connections for a while; the system queues some."""
        assert self._listener is not None
        if not self._resting:
            self._selector.unregister(self._listener)
        self._resting = max(self._resting, time.monotonic() + seconds)

    def is_hurried(self) -> bool:
        """Return whether `look_after` is due soon."""
        return bool(self._resting)

    def go_on(self, connection: socket.socket) -> None:
        """Let a client take its next step; an error ends only that client."""
        client = self._clients[connection]
        try:
            self.step(connection, client)
        except BlockingIOError:
            pass
        except OSError:
            self.drop(connection)
        except Exception as error:
            # The exception's text may contain anything, even a row value.
            text = "a client of %s failed: %s"
            _log.error(text, self._thread.name, type(error).__name__, extra=event("answer_failed"))
            self.drop(connection)
        if connection in self._clients:
            self._selector.modify(connection, self.wanted(client))

    # -- the thread ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(_SOON_SECONDS if self.is_hurried() else _LOOK_SECONDS):
                if key.fileobj is self._wake:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                # A client dropped to make room for another one may also be in this list of ready sockets.
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._clients:
                    self.go_on(key.fileobj)
            self.look_after()
            self._end_rest()

    def _accept(self) -> None:
        assert self._listener is not None
        is_full = len(self._clients) >= self._most_clients and not self.make_room()
        if is_full and self.waits_for_room:
            self.rest(_SOON_SECONDS)
            return
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:
            # Out of descriptors: accepting would be retried immediately, and forever.
            self.rest(_REST)
            return
        if is_full:
            connection.close()
            return
        connection.setblocking(False)
        client = self.new_client()
        try:
            self._selector.register(connection, self.wanted(client))
        except OSError:
            # The system can't watch more sockets.
            connection.close()
            self.rest(_REST)
            return
        self._clients[connection] = client

    def _end_rest(self) -> None:
        if self._resting and time.monotonic() >= self._resting:
            assert self._listener is not None
            self._resting = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)
