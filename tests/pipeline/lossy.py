"""A way to Kafka on which what the broker answers gets lost, while what it is sent arrives."""

import contextlib
import socket
import threading
from collections.abc import Iterator

_PIECE = 1 << 16


class LossyWay:
    """A proxy before the only broker; whoever begins with its address stays on it."""

    def __init__(self, broker: str) -> None:
        host, port = broker.split(":")
        self._broker = host, int(port)
        self._socket = socket.create_server((host, 0))
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        #: Set to lose whatever the broker answers; how many bytes of that were lost.
        self.is_deaf = False
        self.lost = 0
        self._clients: list[socket.socket] = []
        self._brokers: list[socket.socket] = []
        #: Connections that are held up, and what waits to be sent on them.
        self._holding: set[socket.socket] = set()
        self.held: list[tuple[socket.socket, bytes]] = []
        self._threads: list[threading.Thread] = []
        # The broker names itself in its answers, and the proxy itself in its place.
        ours = self._socket.getsockname()[1]
        self._named, self._renamed = (host.encode() + at.to_bytes(4) for at in (int(port), ours))
        threading.Thread(target=self._serve, daemon=True).start()

    def hold(self) -> None:
        """Keep what comes on the connections that there are, as a network does that will carry it later."""
        self._holding.update(self._brokers)

    def drop(self) -> None:
        """End the connections that are held up, for their clients; what these sent is still on its way."""
        for client in self._clients[: len(self._holding)]:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Carry what was kept to the broker."""
        for broker, piece in self.held:
            with contextlib.suppress(OSError):
                broker.sendall(piece)

    def close(self) -> None:
        """Let nobody in any more, and end what is open."""
        for end in (self._socket, *self._clients, *self._holding):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                self._clients.append(client)
                self._threads.append(threading.Thread(target=self._carry, args=(client,), daemon=True))
                self._threads[-1].start()

    def _carry(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._broker) as broker:
            self._brokers.append(broker)
            answers = threading.Thread(target=self._pass_on, args=(broker, client, True), daemon=True)
            answers.start()
            self._pass_on(client, broker, False)
            answers.join()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                if is_answer and (self.is_deaf or source in self._holding):
                    self.lost += len(piece)
                    continue
                if target in self._holding:
                    self.held.append((target, piece))
                    continue
                target.sendall(piece.replace(self._named, self._renamed) if is_answer else piece)
        for end in {source, target} - self._holding:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def lossy_way(broker: str) -> Iterator[LossyWay]:
    """Open a way to the broker for the block."""
    way = LossyWay(broker)
    try:
        yield way
    finally:
        way.close()
