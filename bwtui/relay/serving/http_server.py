"""The HTTP server of ``--listen``: /metrics, /healthz and /readyz.

One thread accepts connections, and each connection has a thread for its one request. Their number and their
time are limited; if there are too many, the oldest are dropped first. Connections are accepted with a short
pause after each, since the relay's own thread waits while others compute. Answers are at most a moment old,
and shared by all requests in that moment, so that no scraper makes the relay build them again.
"""

import contextlib
import errno
import http.client
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, BinaryIO, Self

from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.escaping import json_text
from bwtui.model.events import event
from bwtui.option_checks import parse_address
from bwtui.relay.serving.control_server import StatusSource
from bwtui.relay.serving.health import HealthResult, health, readiness
from bwtui.relay.serving.metrics import Exposition
from bwtui.relay.state.measures import Measures

MOST_CONNECTIONS = 64
#: Maximum bytes of a request, without its body.
_MAX_REQUEST = 16 * 1024
#: Maximum times for each part of the request, for the answer, for closing, and for all of it (seconds).
_PART_SECONDS, _CLOSE_SECONDS, _MOST_SECONDS = 10.0, 1.0, 15.0
#: If there are too many connections, the oldest is dropped after this time.
_GRACE_SECONDS = 1.0
#: Pauses after each accepted connection, and after the system ran out of resources for one (seconds).
_PAUSE_SECONDS, _REST_SECONDS = 0.005, 1.0
#: An answer is reused for this long; the text of metrics also for this multiple of the time to produce it.
_FRESH_SECONDS, _FRESH_TIMES = 1.0, 20.0
#: Maximum number of 50 ms waits before a client gets an error instead of measurements. They are counted,
#: since the clock advances while the whole process is suspended.
_WAITS, _WAIT_SECONDS = 20, 0.05
_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"
_INDEX = b"bwtui: /metrics for Prometheus, /healthz and /readyz for probes\n"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The answer to a client."""

    status: int
    type: str
    body: bytes


class MeasurementCollector:
    """Collects one set of measurements at a time, for any thread."""

    def __init__(self, source: StatusSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._collected: tuple[float, Measures | Exception] | None = None
        self._thread: threading.Thread | None = None

    def collect(self) -> Measures:
        """Return measurements that are at most a moment old.

        Raises ConnectionFailed if they do not arrive.
        """
        with self._lock:
            if (fresh := self._fresh()) is not None:
                return fresh
            thread = self._thread
            if thread is None or not thread.is_alive():
                # It may hang in a system call: no client waits for that.
                thread = self._thread = threading.Thread(target=self._take, name="measures", daemon=True)
                thread.start()
        for _ in range(_WAITS):
            thread.join(_WAIT_SECONDS)
            if not thread.is_alive():
                break
        with self._lock:
            if thread.is_alive() or self._collected is None:
                raise ConnectionFailed(
                    "the relay's measurements are unavailable: a system call that they need, for example "
                    "for the recording's disk, does not return",
                    "check that disk; the relay continues on its own",
                )
            _, result = self._collected
        if isinstance(result, Exception):
            raise result
        return result

    def _fresh(self) -> Measures | None:
        at, result = self._collected or (0.0, None)
        is_old = time.monotonic() >= at + _FRESH_SECONDS
        return None if is_old or isinstance(result, Exception) else result

    def _take(self) -> None:
        try:
            result: Measures | Exception = self._source.measures()
        except Exception as error:
            result = error
        with self._lock:
            self._collected = time.monotonic(), result


class HttpResponder:
    """Answers requests with the relay's measurements, for any thread."""

    def __init__(self, source: StatusSource) -> None:
        self._source = source
        self._collector = MeasurementCollector(source)
        self._exposition = Exposition()
        self._lock = threading.Lock()
        #: By content type: the metrics' text, and until when it may be reused.
        self._texts: dict[str, tuple[bytes, float]] = {}

    def answer(self, path: str, accept: str) -> HttpResponse:
        """Return the answer to a GET of ``path``; errors are answered, too."""
        make: Mapping[str, Callable[[], HttpResponse]] = {
            "/": lambda: HttpResponse(200, _TEXT, _INDEX),
            "/metrics": lambda: self._metrics(accept),
            # This answer is available even if the measurements are not.
            "/healthz": lambda: _health_response(health(self._source.turn())),
            "/readyz": lambda: _health_response(readiness(self._collector.collect())),
        }
        if path not in make:
            return HttpResponse(404, _TEXT, b"there is nothing here; " + _INDEX)
        try:
            return make[path]()
        except ConnectionFailed as error:
            # Without measurements nothing is known except that they do not arrive.
            if path == "/readyz":
                return _health_response(
                    HealthResult(False, {"ready": False, "reasons": [error.message], "hint": error.hint})
                )
            return HttpResponse(503, _TEXT, f"{error.message}\n".encode())
        except Exception as error:
            # The text of an unexpected exception may contain anything, even a row value: send only its type.
            kind = type(error).__name__
            _log.error("the request for %s failed: %s", path, kind, extra=event("answer_failed"))
            return HttpResponse(500, _TEXT, f"the relay failed to answer the request ({kind})\n".encode())

    def _metrics(self, accept: str) -> HttpResponse:
        kind, measures = self._exposition.content_type(accept), self._collector.collect()
        with self._lock:
            text, good_until = self._texts.get(kind, (b"", 0.0))
            if time.monotonic() >= good_until:
                begun = time.thread_time()
                text = self._exposition.text(measures, kind)
                cpu_seconds = time.thread_time() - begun
                fresh_seconds = max(_FRESH_SECONDS, _FRESH_TIMES * cpu_seconds)
                self._texts[kind] = text, time.monotonic() + fresh_seconds
        return HttpResponse(200, kind, text)


def _health_response(answer: HealthResult) -> HttpResponse:
    return HttpResponse(200 if answer.is_yes else 503, _JSON, (json_text(answer.body) + "\n").encode())


class HttpServer:
    """Serves ``address`` (host:port, or a port of the loopback address) from `start` to `close`."""

    def __init__(self, address: str, source: StatusSource) -> None:
        self._address = address
        #: Answers the requests.
        self.responder = HttpResponder(source)
        self._server: _ConnectionServer | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The server's URL; valid between `start` and `close`."""
        assert self._server is not None
        host, port = self._server.server_address[:2]
        host = host if isinstance(host, str) else host.decode()
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return 0 if self._server is None else self._server.connections

    def start(self) -> None:
        """Bind the socket and start serving. Raises RefusedError."""
        host, port = parse_address(self._address)
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            # A name may resolve to addresses of both families.
            family, _, _, _, place = min(addresses, key=lambda one: one[0] != socket.AF_INET)
            self._server = _ConnectionServer(family, place, self.responder)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "the name is not a valid host name"
            hint = (
                "stop the process that listens there, or set --listen to a different address and "
                "port of this machine"
            )
            if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
                hint = "set --listen to an address of this machine"
            raise RefusedError(f"can't listen on {host} port {port}: {reason}", hint) from error
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()
        _log.info("listening on %s", self.url, extra=event("listening", url=self.url))

    def close(self) -> None:
        """Stop serving, and close every connection and the socket."""
        if self._server is not None:
            self._server.shutdown()
            self._server.drop(0.0)
            self._server.server_close()


class _ConnectionServer(socketserver.ThreadingTCPServer):
    """Accepts connections, a limited number at a time and each for a limited time."""

    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(self, family: int, place: Any, responder: HttpResponder) -> None:
        self.address_family = family
        self.responder = responder
        self._free = threading.Semaphore(MOST_CONNECTIONS)
        #: When each open connection was accepted.
        self._begun: dict[socket.socket, float] = {}
        super().__init__(place, _HttpRequestHandler)

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._begun)

    def drop(self, seconds: float, most: int = MOST_CONNECTIONS) -> None:
        """End up to ``most`` connections that are older than ``seconds``, the oldest first."""
        until = time.monotonic() - seconds
        for connection in [one for one, begun in list(self._begun.items()) if begun <= until][:most]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            # Out of descriptors: accepting would be retried immediately, and forever.
            time.sleep(_REST_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        while not self._free.acquire(timeout=_GRACE_SECONDS / 10):
            self.drop(_GRACE_SECONDS, MOST_CONNECTIONS // 8)
        self._begun[request] = time.monotonic()
        super().process_request(request, client_address)
        time.sleep(_PAUSE_SECONDS)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection once the other side has: a reset could take the answer from the client."""
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_WR)
            request.settimeout(_CLOSE_SECONDS)
            while request.recv(_MAX_REQUEST):
                pass
        del self._begun[request]
        self.close_request(request)
        self._free.release()

    def service_actions(self) -> None:
        self.drop(_MOST_SECONDS)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error in our own code; a client that goes or is too slow is none."""
        error = sys.exception()
        if not isinstance(error, OSError):
            # The exception's text may contain anything, even a row value.
            _log.error("a client of http failed: %s", type(error).__name__, extra=event("answer_failed"))


class _LimitedReader:
    """The lines of a request, until they are too long together."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._remaining = _MAX_REQUEST

    def readline(self, size: int) -> bytes:
        if self._remaining < 0:
            raise http.client.LineTooLong("request")
        line = self._file.readline(size)
        self._remaining -= len(line)
        return line

    def close(self) -> None:
        self._file.close()


class _HttpRequestHandler(BaseHTTPRequestHandler):
    """Answers the one request of a connection."""

    server: _ConnectionServer
    protocol_version = "HTTP/1.1"
    # Bad requests get an answer with a status line, too.
    default_request_version = "HTTP/1.0"
    timeout = _PART_SECONDS

    def setup(self) -> None:
        super().setup()
        self.rfile = _LimitedReader(self.rfile)  # type: ignore[assignment, arg-type]

    def do_GET(self) -> None:
        path, accept = self.path.partition("?")[0], ",".join(self.headers.get_all("accept", ()))
        self._send(self.server.responder.answer(path, accept))

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a bad request, without repeating any of it."""
        is_method = code == http.HTTPStatus.NOT_IMPLEMENTED
        text = b"there is only GET and HEAD\n" if is_method else b"this is no request\n"
        self._send(HttpResponse(405 if is_method else code, _TEXT, text))

    def log_message(self, format: str, *args: Any) -> None:
        """Log no request."""

    def version_string(self) -> str:
        return "bwtui"

    def _send(self, response: HttpResponse) -> None:
        self.close_connection = True
        self.send_response(response.status)
        self.send_header("Content-Type", response.type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Connection", "close")
        if response.status == 405:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)
