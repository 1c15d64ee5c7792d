"""Listen for workers on other machines, with TLS, a certificate per run, and single-use tokens."""

import contextlib
import datetime
import hashlib
import secrets
import socket
import ssl
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable

from bwtui.relay.snapshot.cluster.messages import ConnectionTicket

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
