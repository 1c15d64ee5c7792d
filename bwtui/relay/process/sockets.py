"""One thread that serves many sockets and never blocks on one of them.

What a client may cost is bounded by those who derive from this: how many there are, how much each may send,
and how long it may take.
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

#: Seconds without taking new connections when the system has nothing left for one.
_REST = 1.0
#: How often `SocketServer.look_after` is called at least; and while it is due soon.
_LOOK_SECONDS, _SOON_SECONDS = 1.0, 0.05
_log = logging.getLogger(__name__)

Client = TypeVar("Client")


class SocketServer(ABC, Generic[Client]):
    """Serves the connections to one listening socket from `start` to `close`."""

    #: Whether one more than there may be waits until another is gone; it is refused otherwise.
    waits_for_room = False

    def __init__(self, name: str, most_clients: int) -> None:
        """``name`` is that of the thread."""
        self._most_clients = most_clients
        self._clients: dict[socket.socket, Client] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._listener: socket.socket | None = None
        #: Until when no connection is taken, or 0.
        self._resting = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Bind the socket and begin to serve. Raises RefusedError."""
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

    # -- for those that derive from it ---------------------------------------------------------------------

    @abstractmethod
    def listen(self) -> socket.socket:
        """Return the socket that listens. Raises RefusedError."""

    @abstractmethod
    def new_client(self) -> Client:
        """Return what is known of a connection that was just made."""

    @abstractmethod
    def step(self, connection: socket.socket, client: Client) -> None:
        """Go on with a client whose socket is ready, or drop it.

        Raises BlockingIOError where it is ready no more, and OSError, after which it is dropped.
        """

    @abstractmethod
    def wanted(self, client: Client) -> int:
        """Return for which events a client is waited for."""

    def look_after(self) -> None:
        """Do what is due now and then, such as to drop clients that are stuck."""

    def make_room(self) -> bool:
        """Drop a client where there are too many, if one may be, and say whether that was done."""
        return False

    def drop(self, connection: socket.socket) -> None:
        """Close a connection, if that is not done."""
        self._clients.pop(connection, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        connection.close()

    def rest(self, seconds: float) -> None:
        """Leave those that connect where they are, for a while: the system keeps some."""
        assert self._listener is not None
        if not self._resting:
            self._selector.unregister(self._listener)
        self._resting = max(self._resting, time.monotonic() + seconds)

    def is_hurried(self) -> bool:
        """Say whether `look_after` is due soon."""
        return bool(self._resting)

    def go_on(self, connection: socket.socket) -> None:
        """Let a client take its next step; whatever goes wrong with it ends that client alone."""
        client = self._clients[connection]
        try:
            self.step(connection, client)
        except BlockingIOError:
            pass
        except OSError:
            self.drop(connection)
        except Exception as error:
            # Its text may hold anything, a row value too.
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
                # One that made room for another may be ready as well.
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
            # Without a descriptor left, it would be tried again at once, and for ever.
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
            # The system watches no more sockets.
            connection.close()
            self.rest(_REST)
            return
        self._clients[connection] = client

    def _end_rest(self) -> None:
        if self._resting and time.monotonic() >= self._resting:
            assert self._listener is not None
            self._resting = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)
