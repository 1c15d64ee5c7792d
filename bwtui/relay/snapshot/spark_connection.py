"""The connection between the engine and a worker on another machine."""

import contextlib
import datetime
import hashlib
import secrets
import selectors
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from bwtui.relay.snapshot.worker_protocol import SerializedError


@dataclass(frozen=True, slots=True)
class ConnectionTicket:
    """All that goes through Spark: the relay's address, its fingerprint, and a single-use token."""

    host: str
    port: int
    #: The SHA-256 digest of the listener's certificate.
    fingerprint: bytes
    token: bytes

    def __repr__(self) -> str:
        return "Call()"


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """The engine requests one task."""

    number: int
    call: ConnectionTicket


@dataclass(frozen=True, slots=True)
class SparkReady:
    """Spark is ready: executors reach this machine at ``host``; any ``port`` is open to them if it is 0."""

    host: str
    port: int
    parallelism: int


@dataclass(frozen=True, slots=True)
class SparkFailed:
    """Spark can't be started."""

    fault: SerializedError


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """Spark reports that a job's task has ended or is lost; a machine that is cut off may still run it."""

    number: int
    fault: SerializedError | None


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


TOKEN_BYTES = 32
#: The listener's answers.
WELCOME, REFUSED = b"W", b"R"
#: Maximum unauthenticated connections at a time, and how long each may take to show a token.
_MOST_STRANGERS = 64
_PATIENCE_SECONDS = 10.0
_AGAIN_SECONDS = 0.1
#: Called with the connection and the name of its machine, in a thread that the callee keeps.
Arrived = Callable[[ssl.SSLSocket, str], None]


class WorkerListener:
    """Listens until it is closed."""

    def __init__(self, host: str, port: int) -> None:
        """``host`` is this machine's address for others; a loopback address is reachable only locally.

        Raises OSError.
        """
        self._host = host = host.removeprefix("[").removesuffix("]")
        self._context, self._fingerprint = _server_context()
        self._lock = threading.Lock()
        #: By the digests of tokens; None once a token was used or withdrawn.
        self._expected: dict[bytes, Arrived | None] = {}
        self._withdrawn: set[bytes] = set()
        self._strangers = threading.Semaphore(_MOST_STRANGERS)
        #: Why connections were rejected, for messages.
        self.refusals: deque[str] = deque()
        family, address = _place(host, port)
        self._socket = socket.create_server(address, family=family, backlog=_MOST_STRANGERS)
        self._port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="snapshot listener", daemon=True).start()

    def expect(self, arrived: Arrived) -> ConnectionTicket:
        """Return the call that lets one worker connect, once."""
        token = secrets.token_bytes(TOKEN_BYTES)
        with self._lock:
            self._expected[_digest(token)] = arrived
        return ConnectionTicket(self._host, self._port, self._fingerprint, token)

    def withdraw(self, call: ConnectionTicket) -> bool:
        """Invalidate the token of ``call``; return whether no worker has connected with it."""
        digest = _digest(call.token)
        with self._lock:
            unused = self._expected[digest] is not None or digest in self._withdrawn
            self._expected[digest] = None
            if unused:
                self._withdrawn.add(digest)
        return unused

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0:
                    return
                # No descriptor is available. One may be free soon.
                time.sleep(_AGAIN_SECONDS)
                continue
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            name = f"a worker from {address[0]}"
            thread = threading.Thread(
                target=self._admit, args=(connection, address[0]), name=name, daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                # No thread is available; the worker may try again.
                connection.close()
                self._strangers.release()

    def _admit(self, connection: socket.socket, address: str) -> None:
        try:
            arrived, opened, machine = self._greet(connection, address)
        except (OSError, EOFError):
            connection.close()
            return
        finally:
            self._strangers.release()
        if arrived is not None:
            arrived(opened, machine)

    def _greet(self, connection: socket.socket, address: str) -> tuple[Arrived | None, ssl.SSLSocket, str]:
        """Authenticate a connection. Raises OSError or EOFError."""
        until = time.monotonic() + _PATIENCE_SECONDS
        connection.settimeout(_PATIENCE_SECONDS)
        opened = self._context.wrap_socket(connection, server_side=True)
        digest, arrived = b"", None
        try:
            digest = _digest(_exactly(opened, TOKEN_BYTES, until))
            length = _exactly(opened, 1, until)[0]
            machine = _exactly(opened, length, until).decode(errors="replace")
            with self._lock:
                is_expected = digest in self._expected
                arrived = self._expected.get(digest)
                if is_expected:
                    self._expected[digest] = None
            if arrived is None and digest not in self._withdrawn:
                why = "was already used" if is_expected else "is not one of this relay's"
                self.refusals.append(f"the relay rejected a worker from {address}: its token {why}")
            opened.sendall(REFUSED if arrived is None else WELCOME)
        except BaseException:
            opened.close()
            with self._lock:
                # The worker got no answer, so it has not connected. Invalidate its token, unless another
                # worker has used it meanwhile.
                if arrived is not None or self._expected.get(digest) is not None:
                    self._expected[digest] = None
                    self._withdrawn.add(digest)
            raise
        if arrived is None:
            opened.close()
        return arrived, opened, machine


def knock(call: ConnectionTicket, machine: str, seconds: float) -> ssl.SSLSocket | None:
    """Connect to the listener of a different machine; return None if it rejects the token.

    A listener with a different certificate gets no data. Raises OSError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    # The fingerprint is checked below instead.
    context.verify_mode = ssl.CERT_NONE
    opened = context.wrap_socket(socket.create_connection((call.host, call.port), seconds))
    try:
        shown = opened.getpeercert(binary_form=True) or b""
        if not secrets.compare_digest(hashlib.sha256(shown).digest(), call.fingerprint):
            raise ConnectionRefusedError(None, "the certificate is not the relay's")
        name = machine.encode()[:255]
        opened.sendall(call.token + bytes([len(name)]) + name)
        if _exactly(opened, 1, time.monotonic() + seconds) == WELCOME:
            return opened
    except EOFError as error:
        opened.close()
        raise ConnectionResetError(None, "the relay closed the connection") from error
    except BaseException:
        opened.close()
        raise
    opened.close()
    return None


def _exactly(connection: ssl.SSLSocket, count: int, until: float) -> bytes:
    """Read ``count`` bytes. Raises EOFError, and OSError if they do not arrive ``until`` then."""
    data = b""
    while len(data) < count:
        if (remaining := until - time.monotonic()) <= 0:
            raise TimeoutError(None, "timed out")
        connection.settimeout(remaining)
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _place(host: str, port: int) -> tuple[int, tuple[str, int]]:
    """Return the address to listen on: loopback if ``host`` is loopback, otherwise all interfaces.

    A machine's own name may resolve to a loopback address in its /etc/hosts, and elsewhere to a different
    one.
    """
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, (str(address[0]) if is_loopback(host) else "", port)


def is_loopback(host: str) -> bool:
    """Return whether ``host`` means the local machine on every machine."""
    return host in ("localhost", "::1", "[::1]") or host.startswith("127.")


def _server_context() -> tuple[ssl.SSLContext, bytes]:
    """Return a TLS context with a key of this run, and its certificate's fingerprint."""
    # Nothing else in a relay needs this package.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bwtui")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365))
        .sign(key, hashes.SHA256())
    )
    # ssl loads keys from files only. The key is encrypted there with a password that exists only in memory.
    password = secrets.token_hex()
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode()),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.NamedTemporaryFile(prefix="bwtui-door-") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name, password=password)
    return context, certificate.fingerprint(hashes.SHA256())
