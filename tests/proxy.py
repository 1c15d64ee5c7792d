"""A way to a service on which things happen: what is sent is slow, lost, late, cut off, or not what it was.

One proxy before each address, which may be shut at first, and lead elsewhere later. It reads whole frames
where it has to know them: Kafka's, in whose answers a broker names itself and the others, and PostgreSQL's,
which can be spoiled between two frames only, for within one PostgreSQL's protocol notices nothing.
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
#: Of a throttled way: small pieces, so that it is slow and not jerky.
_SMALL = 1 << 12
#: Answers that name brokers are small, and what topics hold is left as it is.
_NAMING_BYTES = 100_000
_TICK = 0.01
#: With these, a socket that is closed sends RST.
_LINGER = struct.pack("ii", 1, 0)
#: The number of Kafka's request that brings records.
PRODUCE = 0
_CONNECT_SECONDS = 2.0

_FIELDS = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: replication\0\0"
_NO_REPLICATION = b"E" + (len(_FIELDS) + 4).to_bytes(4) + _FIELDS

Speech = Literal["kafka", "postgres", "http"]


class Way:
    """A proxy before one address; whoever begins with its own address stays on it."""

    def __init__(self, target: str, speech: Speech = "kafka") -> None:
        """``target`` is host:port. Connections are refused until it is opened."""
        host, port = target.split(":")
        self.target = host, int(port)
        self.speech = speech
        self._socket = socket.socket()
        self._socket.bind((host, 0))
        ours = self._socket.getsockname()[1]
        self.address = f"{host}:{ours}"
        #: How brokers are named in answers, and what stands in its place.
        self.renamed: Mapping[bytes, bytes] = {}
        if speech == "kafka":
            self.renamed = {_named(host, int(port)): _named(host, ours)}
        #: Set to lose whatever the service answers; how many bytes of that were lost.
        self.is_deaf = False
        self.lost = 0
        #: Seconds that each piece takes longer, and bytes a second (0: as many as there are).
        self.delay = 0.0
        self.rate = 0
        #: Nothing is carried, and nobody is told: the other end is there no more, or not yet again.
        self.is_half_open = False
        #: Whoever comes is turned away.
        self.is_shut = False
        #: A session of PostgreSQL that asks for replication is refused, as PgBouncer does it.
        self.refuses_replication = False
        #: The next answer, or the next batch of records, is not what it was; how many were not.
        self.spoil_answer = self.spoil_request = False
        self.spoiled = 0
        self.is_closed = False
        #: The number of a request of Kafka's: whichever connection brings one is held up from it on.
        self.hold_from: int | None = None
        self._connections: list[_Connection] = []
        self._lock = threading.Lock()
        self._holding: list[_Connection] = []
        self.held: list[tuple[socket.socket, bytes]] = []

    def open(self) -> None:
        """Let clients in from now on."""
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def lead_to(self, target: str) -> None:
        """Lead to another service from now on, which is host:port; not one that names itself."""
        host, port = target.split(":")
        self.target = host, int(port)
        self.cut()

    def calm(self) -> None:
        """Be a way like any other again."""
        self.is_deaf = self.is_half_open = self.is_shut = self.spoil_answer = self.spoil_request = False
        self.delay, self.rate = 0.0, 0
        self.hold_from = None

    def cut(self) -> None:
        """End every connection in order, for both sides."""
        for connection in self._open():
            connection.end()

    def reset(self) -> None:
        """End every connection with RST; what is on its way is lost."""
        for connection in self._open():
            connection.reset()

    def hold(self) -> None:
        """Keep what comes on the connections that there are, as a network does that will carry it later."""
        for connection in self._open():
            self.hold_up(connection)

    def hold_up(self, connection: "_Connection") -> None:
        """Keep what comes on one connection from now on."""
        connection.is_held = True
        self._holding.append(connection)

    def drop(self) -> None:
        """End the connections that are held up, for their clients; what these sent is still on its way."""
        for connection in self._holding:
            _shut(connection.client)

    def release(self) -> None:
        """Carry what was kept to the service."""
        for service, piece in self.held:
            with contextlib.suppress(OSError):
                service.sendall(piece)
        self.held = []

    def close(self) -> None:
        """Let nobody in any more, and end what is open."""
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
                # First: who has got an answer may have it cut at once.
                with self._lock:
                    self._connections.append(connection)
                connection.begin()


class _Connection:
    """One client on the way, with a thread for each direction."""

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
        """Carry from now on."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """End it for both sides."""
        for end in (self.client, self._service):
            _shut(end)

    def reset(self) -> None:
        """Have both sides get RST, once nobody reads here any more."""
        self._is_reset = True
        for end in (self.client, self._service):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
                end.shutdown(socket.SHUT_RD)

    def join(self) -> None:
        """Wait for its threads, and close what they have left: of what was held up nothing was."""
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
        # Of what is held up neither side learns that the other is gone; what is for the service comes late.
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
    """Yield what PostgreSQL answers; it was not asked for TLS, whose answer is no frame."""
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
            # No type, and no length.
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
                # Within the last batch of records, which has a checksum over all but its first 21 bytes.
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
    """Yield a way to one address for the block, shut at first unless it ``is_open``."""
    way = Way(target, speech)
    if is_open:
        way.open()
    try:
        yield way
    finally:
        way.close()


@contextlib.contextmanager
def ways_to(brokers: str) -> Iterator[list[Way]]:
    """Open ways to all brokers of a cluster, which name each other by them."""
    with contextlib.ExitStack() as stack:
        ways = [stack.enter_context(way_to(broker)) for broker in brokers.split(",")]
        renamed = {named: other for way in ways for named, other in way.renamed.items()}
        for way in ways:
            way.renamed = renamed
        yield ways
