"""A proxy before a service, which can make its traffic slow, lost, late, cut off, or corrupted.

There is one proxy per address. It may be shut at first, and its target may change later. It reads whole
frames where it has to understand them: Kafka's, because brokers name themselves and each other in their
answers, and PostgreSQL's, because corruption is noticed only at a frame's header: PostgreSQL's protocol has
no checksums.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Literal
from urllib.parse import urlsplit

_PIECE = 1 << 16
#: With a rate limit, small pieces make the traffic slow and not jerky.
_SMALL = 1 << 12
#: Answers that name brokers are small; larger ones hold records, and are not changed.
_NAMING_BYTES = 100_000
_TICK = 0.01
#: With these options, closing a socket sends RST.
_LINGER = struct.pack("ii", 1, 0)
#: Key of Kafka's request that carries records.
PRODUCE = 0
_CONNECT_SECONDS = 2.0

_FIELDS = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: replication\0\0"
_NO_REPLICATION = b"E" + (len(_FIELDS) + 4).to_bytes(4) + _FIELDS

Speech = Literal["kafka", "postgres", "http"]


class Way:
    """A proxy before one address; clients that connect to it keep using it."""

    def __init__(self, target: str, speech: Speech = "kafka") -> None:
        """``target`` is host:port. Connections are refused until `open`."""
        host, port = target.split(":")
        self.target = host, int(port)
        self.speech = speech
        self._socket = socket.socket()
        self._socket.bind((host, 0))
        ours = self._socket.getsockname()[1]
        self.address = f"{host}:{ours}"
        #: Broker names in answers, and their replacements.
        self.renamed: Mapping[bytes, bytes] = {}
        if speech == "kafka":
            self.renamed = {_named(host, int(port)): _named(host, ours)}
        #: True to discard the service's answers; number of discarded bytes.
        self.is_deaf = False
        self.lost = 0
        #: Delay of each piece in seconds, and rate in bytes per second (0: unlimited).
        self.delay = 0.0
        self.rate = 0
        #: Stop forwarding without closing: the other end is not reachable, and neither end notices.
        self.is_half_open = False
        #: Reject new connections.
        self.is_shut = False
        #: Refuse sessions of PostgreSQL that ask for replication, as PgBouncer does.
        self.refuses_replication = False
        #: Corrupt the next answer, or the next batch of records; number of corruptions.
        self.spoil_answer = self.spoil_request = False
        self.spoiled = 0
        self.is_closed = False
        #: Key of a Kafka request: a connection that sends one is held from then on.
        self.hold_from: int | None = None
        self._connections: list[_Connection] = []
        self._lock = threading.Lock()
        self._holding: list[_Connection] = []
        self.held: list[tuple[socket.socket, bytes]] = []

    def open(self) -> None:
        """Accept clients from now on."""
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def lead_to(self, target: str) -> None:
        """Forward to another service from now on, which is host:port; not to one that names itself."""
        host, port = target.split(":")
        self.target = host, int(port)
        self.cut()

    def calm(self) -> None:
        """Reset all faults."""
        self.is_deaf = self.is_half_open = self.is_shut = self.spoil_answer = self.spoil_request = False
        self.delay, self.rate = 0.0, 0
        self.hold_from = None

    def cut(self) -> None:
        """Close every connection cleanly, on both sides."""
        for connection in self._open():
            connection.end()

    def reset(self) -> None:
        """End every connection with RST; data in transit is lost."""
        for connection in self._open():
            connection.reset()

    def hold(self) -> None:
        """Hold the data of all current connections, as a network does that delivers late."""
        for connection in self._open():
            self.hold_up(connection)

    def hold_up(self, connection: "_Connection") -> None:
        """Hold the data of one connection from now on."""
        connection.is_held = True
        self._holding.append(connection)

    def drop(self) -> None:
        """Close the held connections on the clients' side; the data that they sent is still in transit."""
        for connection in self._holding:
            _shut(connection.client)

    def release(self) -> None:
        """Forward the held data to the service."""
        for service, piece in self.held:
            with contextlib.suppress(OSError):
                service.sendall(piece)
        self.held = []

    def close(self) -> None:
        """Stop accepting clients, and close all connections."""
        self.is_closed = True
        _shut(self._socket)
        self._socket.close()
        with self._lock:
            left = list(self._connections)
        for connection in left:
            connection.is_held = False
            connection.end()
        for connection in left:
            connection.join()

    def _open(self) -> list["_Connection"]:
        with self._lock:
            self._connections = [one for one in self._connections if one.is_open or one.is_held]
            return list(self._connections)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                if self.is_shut:
                    client.close()
                    continue
                try:
                    service = socket.create_connection(self.target, _CONNECT_SECONDS)
                    service.settimeout(None)
                except OSError:
                    client.close()
                    continue
                connection = _Connection(self, client, service)
                # This comes first: a client may be cut as soon as it gets an answer.
                with self._lock:
                    self._connections.append(connection)
                connection.begin()


class _Connection:
    """One client of the proxy, with a thread for each direction."""

    def __init__(self, way: Way, client: socket.socket, service: socket.socket) -> None:
        self._way = way
        self.client, self._service = client, service
        for end in (client, service):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_held = False
        self._is_reset = False
        self._threads = [
            threading.Thread(target=self._carry, args=ends, daemon=True)
            for ends in ((client, service, False), (service, client, True))
        ]
        self.is_open = True
        self._left = 2
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start forwarding."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Close both sides."""
        for end in (self.client, self._service):
            _shut(end)

    def reset(self) -> None:
        """Send RST to both sides, once no thread here reads any more."""
        self._is_reset = True
        for end in (self.client, self._service):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
                end.shutdown(socket.SHUT_RD)

    def join(self) -> None:
        """Wait for the threads, and close the sockets, which a held connection keeps open."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self.client.close()
        self._service.close()

    def _carry(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            for piece in self._pieces(source, is_answer):
                if not is_answer and self._way.refuses_replication and b"\0replication\0" in piece:
                    source.sendall(_NO_REPLICATION)
                    break
                if not is_answer and self._way.hold_from == _request(piece):
                    self._way.hold_up(self)
                if is_answer and (self._way.is_deaf or self.is_held):
                    self._way.lost += len(piece)
                elif self.is_held:
                    self._way.held.append((target, piece))
                else:
                    self._send(target, piece)
        # A held connection does not show either side that the other has closed, and its data arrives late.
        if not self._is_reset and not self.is_held:
            self.end()
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self.is_open = False
        if not self.is_held:
            self.client.close()
            self._service.close()

    def _pieces(self, source: socket.socket, is_answer: bool) -> Iterator[bytes]:
        if self._way.speech == "kafka":
            return _kafka(self._way, source, is_answer)
        if self._way.speech == "postgres" and is_answer:
            return _postgres(self._way, source)
        return _plain(self._way, source, is_answer)

    def _send(self, target: socket.socket, data: bytes) -> None:
        way, view = self._way, memoryview(data)
        while view:
            piece, view = view[: _SMALL if way.rate else _PIECE], view[_SMALL if way.rate else _PIECE :]
            if way.delay or way.rate:
                time.sleep(way.delay + (len(piece) / way.rate if way.rate else 0.0))
            while way.is_half_open and not self._is_reset and not way.is_closed:
                time.sleep(_TICK)
            if self._is_reset:
                return
            target.sendall(piece)


def _plain(way: Way, source: socket.socket, is_answer: bool) -> Iterator[bytes]:
    while piece := source.recv(_PIECE):
        if is_answer and way.spoil_answer and piece.startswith(b"HTTP/1."):
            way.spoil_answer, way.spoiled = False, way.spoiled + 1
            piece = b"JUNK" + piece[4:]
        yield piece


def _postgres(way: Way, source: socket.socket) -> Iterator[bytes]:
    """Yield PostgreSQL's answers. TLS must not be requested, because the answer to that is not a frame."""
    header, left = bytearray(), 0
    while piece := source.recv(_PIECE):
        at, boundary = 0, None
        while at < len(piece):
            if left:
                step = min(left, len(piece) - at)
                at, left = at + step, left - step
                continue
            if not header and boundary is None:
                boundary = at
            taken = piece[at : at + 5 - len(header)]
            header += taken
            at += len(taken)
            if len(header) == 5:
                left = int.from_bytes(header[1:]) - 4
                header.clear()
        if way.spoil_answer and boundary is not None:
            way.spoil_answer, way.spoiled = False, way.spoiled + 1
            # An invalid type and an invalid length.
            piece = piece[:boundary] + b"\xff" * 5 + piece[boundary + 5 :]
        yield piece


def _kafka(way: Way, source: socket.socket, is_answer: bool) -> Iterator[bytes]:
    with source.makefile("rb", buffering=_PIECE) as file:
        while len(size := file.read(4)) == 4:
            frame = file.read(int.from_bytes(size))
            if is_answer:
                if len(frame) < _NAMING_BYTES:
                    for named, renamed in way.renamed.items():
                        frame = frame.replace(named, renamed)
                if way.spoil_answer:
                    way.spoil_answer, way.spoiled = False, way.spoiled + 1
                    size = b"\x7f\xff\xff\xff"
            elif way.spoil_request and int.from_bytes(frame[:2]) == PRODUCE and len(frame) > 200:
                way.spoil_request, way.spoiled = False, way.spoiled + 1
                # This is within the last batch of records, whose checksum covers all but its first 21 bytes.
                frame = frame[:-20] + bytes([frame[-20] ^ 1]) + frame[-19:]
            yield size + frame


def _request(frame: bytes) -> int:
    return int.from_bytes(frame[4:6])


def address_of(url: str) -> str:
    """Return host:port of a URL."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _named(host: str, port: int) -> bytes:
    return host.encode() + port.to_bytes(4)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def way_to(target: str, speech: Speech = "kafka", *, is_open: bool = True) -> Iterator[Way]:
    """Yield a proxy of one address for the block, shut at first unless ``is_open``."""
    way = Way(target, speech)
    if is_open:
        way.open()
    try:
        yield way
    finally:
        way.close()


@contextlib.contextmanager
def ways_to(brokers: str) -> Iterator[list[Way]]:
    """Open proxies of all brokers of a cluster, which name each other by the proxies' addresses."""
    with contextlib.ExitStack() as stack:
        ways = [stack.enter_context(way_to(broker)) for broker in brokers.split(",")]
        renamed = {named: other for way in ways for named, other in way.renamed.items()}
        for way in ways:
            way.renamed = renamed
        yield ways
