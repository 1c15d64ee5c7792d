"""The HTTP server of ``--listen``: /metrics, /healthz and /readyz.

One thread reads measurements of the relay, and neither waits for the other. A client gets one answer, within
time limits; if there are too many clients, the oldest slow ones are dropped first. All clients together get a
small share of a CPU, since the relay's own thread waits while this one computes. Probes have a separate
share, so that no scraper delays their answers. Answers are at most a moment old, and shared by all requests
in that moment.
"""

import logging
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import h11

from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.escaping import json_text
from bwtui.model.events import event
from bwtui.model.option_checks import parse_address
from bwtui.relay.http_metrics.exposition import Exposition
from bwtui.relay.http_metrics.health import HealthResult, health, readiness
from bwtui.relay.http_metrics.measurement_collector import MeasurementCollector
from bwtui.relay.metrics.measures import Measures
from bwtui.relay.process.server import StatusSource
from bwtui.relay.process.sockets import SocketServer

MOST_VISITORS = 128
#: Maximum bytes of a request, without its body.
_MAX_REQUEST = 16 * 1024
#: Maximum times for sending the request, for reading the answer, and for closing (seconds).
_REQUEST_SECONDS, _ANSWER_SECONDS, _CLOSE_SECONDS = 5.0, 10.0, 1.0
#: If there are too many clients, one is dropped that is unfinished after the first number of seconds, or that
#: has sent nothing after the second.
_GRACE_SECONDS, _SILENT_SECONDS = 1.0, 0.1
#: An answer is reused for this long; the text of metrics also for this multiple of the time to produce it.
_FRESH_SECONDS, _FRESH_TIMES = 1.0, 20.0
#: The clients' share of a CPU, and how much they may use at once (seconds).
_SHARE, _BURST_SECONDS = 0.1, 0.5
#: After using this much more than their share, no connection is accepted for a while (seconds).
_MOST_DEBT_SECONDS, _PAUSE_SECONDS = 0.5, 1.0
#: A longer gap between two rounds means that the process was stopped, or got no CPU time.
_ASLEEP_SECONDS = 1.5
_PROBES = ("/healthz", "/readyz")
_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"
_INDEX = b"bwtui: /metrics for Prometheus, /healthz and /readyz for probes\n"
_REASONS = {200: b"OK", 404: b"Not Found", 405: b"Method Not Allowed", 503: b"Service Unavailable"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The answer to a client."""

    status: int
    type: str
    body: bytes


class HttpResponder:
    """Answers requests with the relay's measurements; one thread at a time may call it."""

    def __init__(self, source: StatusSource) -> None:
        self._source = source
        #: Collects the measurements.
        self.collector = MeasurementCollector(source)
        self._exposition = Exposition()
        self._measures: Measures | None = None
        self._measured_at = 0.0
        #: By content type: the metrics' text, and until when it may be reused.
        self._texts: dict[str, tuple[bytes, float]] = {}

    def answer(self, path: str, accept: str) -> HttpResponse:
        """Return the answer to a GET of ``path``; errors are answered, too."""
        make: Mapping[str, Callable[[], HttpResponse]] = {
            "/": lambda: HttpResponse(200, _TEXT, _INDEX),
            "/metrics": lambda: self._metrics(accept),
            # This answer is available even if the measurements are not.
            "/healthz": lambda: _health_response(health(self._source.turn())),
            "/readyz": lambda: _health_response(readiness(self._now())),
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
            return HttpResponse(
                500, _TEXT, f"the relay failed to answer the request ({type(error).__name__})\n".encode()
            )

    def _metrics(self, accept: str) -> HttpResponse:
        kind, now = self._exposition.content_type(accept), time.monotonic()
        text, good_until = self._texts.get(kind, (b"", 0.0))
        if now >= good_until:
            begun = time.thread_time()
            text = self._exposition.text(self._now(), kind)
            took = time.thread_time() - begun
            self._texts[kind] = text, now + max(_FRESH_SECONDS, _FRESH_TIMES * took)
        return HttpResponse(200, kind, text)

    def _now(self) -> Measures:
        now = time.monotonic()
        if self._measures is None or now >= self._measured_at + _FRESH_SECONDS:
            self._measures, self._measured_at = self.collector.collect(), now
        return self._measures


def _health_response(answer: HealthResult) -> HttpResponse:
    return HttpResponse(200 if answer.is_yes else 503, _JSON, (json_text(answer.body) + "\n").encode())


@dataclass(slots=True)
class _CpuBudget:
    """The rest of a share of a CPU (seconds); negative if too much was used."""

    left: float = field(default_factory=lambda: _BURST_SECONDS)
    at: float = field(default_factory=time.monotonic)

    def refill(self, now: float) -> None:
        """Add the share of the time up to ``now``."""
        self.left = min(_BURST_SECONDS, self.left + _SHARE * (now - self.at))
        self.at = now


@dataclass(frozen=True, slots=True)
class _HttpRequest:
    """A client's request."""

    path: str
    accept: str
    with_body: bool


@dataclass(slots=True)
class _HttpConnection:
    """One connection: its request, and the part of the answer that it has not read yet."""

    http: h11.Connection = field(
        default_factory=lambda: h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_REQUEST)
    )
    begun: float = field(default_factory=time.monotonic)
    #: True if it has sent anything.
    has_spoken: bool = False
    #: Its request, until that is answered.
    request: _HttpRequest | None = None
    is_probe: bool = False
    #: True if its answer waits until its share allows it.
    is_waiting: bool = False
    pending: memoryview = field(default_factory=lambda: memoryview(b""))
    #: The body that follows, which all its readers share.
    body: bytes = b""
    #: True if it has received its whole answer, and may close.
    is_done: bool = False
    until: float = 0.0

    def __post_init__(self) -> None:
        self.until = self.begun + _REQUEST_SECONDS


class HttpServer(SocketServer[_HttpConnection]):
    """Serves ``address`` (host:port, or a port of the loopback address) from `start` to `close`."""

    waits_for_room = True

    def __init__(self, address: str, source: StatusSource) -> None:
        super().__init__("http", MOST_VISITORS)
        self._address = address
        self._answers = HttpResponder(source)
        self._probes, self._others = _CpuBudget(), _CpuBudget()
        self._looked_at = time.monotonic()
        #: Clients whose answers wait until their share allows it.
        self._waiting: list[socket.socket] = []

    @property
    def url(self) -> str:
        """The server's URL; valid between `start` and `close`."""
        assert self._listener is not None
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def start(self) -> None:
        super().start()
        _log.info("listening on %s", self.url, extra=event("listening", url=self.url))

    def listen(self) -> socket.socket:
        host, port = parse_address(self._address)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            # A name may resolve to addresses of both families.
            family, _, _, _, place = min(found, key=lambda one: one[0] != socket.AF_INET)
            listener = socket.socket(family, socket.SOCK_STREAM)
            try:
                # Otherwise a restart would have to wait until the system forgets former connections.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(place)
                listener.listen(1024)
            except OSError:
                listener.close()
                raise
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "the name is not a valid host name"
            raise RefusedError(
                f"can't listen on {host} port {port}: {reason}",
                "stop the process that listens there, or set --listen to a different address and "
                "port of this machine",
            ) from error
        return listener

    def new_client(self) -> _HttpConnection:
        return _HttpConnection()

    def wanted(self, client: _HttpConnection) -> int:
        return selectors.EVENT_WRITE if client.pending else selectors.EVENT_READ

    def step(self, connection: socket.socket, client: _HttpConnection) -> None:
        """Continue with a client at the expense of its share."""
        begun = time.thread_time()
        try:
            self._step(connection, client)
        finally:
            share = self._share_of(client)
            share.left -= time.thread_time() - begun + self._answers.collector.spent()
            if share.left < -_MOST_DEBT_SECONDS:
                self.rest(_PAUSE_SECONDS)

    def make_room(self) -> bool:
        """Drop the oldest client, if it has had its minimum time."""
        now = time.monotonic()
        silent = [one for one in self._clients.items() if not one[1].has_spoken]
        for visitors, seconds in ((silent, _SILENT_SECONDS), (self._clients.items(), _GRACE_SECONDS)):
            connection, oldest = min(visitors, key=lambda one: one[1].begun, default=(None, None))
            if connection is not None and oldest is not None and now - oldest.begun >= seconds:
                self.drop(connection)
                return True
        return False

    def look_after(self) -> None:
        """Drop clients whose time is over, and answer those that waited for their share."""
        now = time.monotonic()
        # Time during which the relay itself did not run does not count against clients.
        slept = max(0.0, now - self._looked_at - _ASLEEP_SECONDS)
        self._looked_at = now
        for share in (self._probes, self._others):
            share.refill(now)
        for connection, client in list(self._clients.items()):
            client.until += slept
            if now > client.until:
                self.drop(connection)
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            if (visitor := self._clients.get(connection)) is not None:
                visitor.is_waiting = False
                self.go_on(connection)

    def is_hurried(self) -> bool:
        """Return whether any client waits for room, or for a share."""
        return super().is_hurried() or bool(self._waiting)

    def _share_of(self, client: _HttpConnection) -> _CpuBudget:
        return self._probes if client.is_probe else self._others

    def _step(self, connection: socket.socket, client: _HttpConnection) -> None:
        """Read the request, answer it, and close after the other side has closed."""
        if client.is_waiting:
            # While it waits, only the end of the connection matters.
            if not connection.recv(_MAX_REQUEST):
                self.drop(connection)
            return
        if not client.pending and client.request is None and not self._read(connection, client):
            return
        if client.request is not None:
            if self._share_of(client).left < 0:
                client.is_waiting = True
                self._waiting.append(connection)
                return
            begin, client.body = self._response(client, client.request)
            client.pending = memoryview(begin)
            client.request, client.until = None, time.monotonic() + _ANSWER_SECONDS
        sent = connection.send(client.pending)
        client.pending = client.pending[sent:]
        if not client.pending:
            client.pending, client.body = memoryview(client.body), b""
        if not client.pending:
            connection.shutdown(socket.SHUT_WR)
            client.is_done, client.until = True, time.monotonic() + _CLOSE_SECONDS

    def _read(self, connection: socket.socket, client: _HttpConnection) -> bool:
        """Read received data; return whether there is something to answer, or to send."""
        received = connection.recv(_MAX_REQUEST)
        if not received:
            self.drop(connection)
            return False
        if client.is_done:
            # Ignore data after the request, but read it: otherwise the kernel resets the connection, and the
            # client may not get the answer.
            return False
        client.has_spoken = True
        refusal: HttpResponse | None = None
        try:
            client.http.receive_data(received)
            event = client.http.next_event()
        except h11.RemoteProtocolError as error:
            refusal = HttpResponse(error.error_status_hint, _TEXT, b"this is no request\n")
        else:
            if not isinstance(event, h11.Request):
                return False
            if event.method not in (b"GET", b"HEAD"):
                refusal = HttpResponse(405, _TEXT, b"there is only GET and HEAD\n")
            else:
                accept = b",".join(value for name, value in event.headers if name == b"accept")
                path = event.target.partition(b"?")[0].decode("latin-1")
                client.request = _HttpRequest(path, accept.decode("latin-1"), event.method == b"GET")
                client.is_probe = path in _PROBES
        if refusal is not None:
            client.pending, client.body = memoryview(_headers(client.http, refusal)), refusal.body
        client.until = time.monotonic() + _ANSWER_SECONDS
        return True

    def _response(self, client: _HttpConnection, request: _HttpRequest) -> tuple[bytes, bytes]:
        response = self._answers.answer(request.path, request.accept)
        return _headers(client.http, response), response.body if request.with_body else b""

    def close(self) -> None:
        super().close()
        self._answers.collector.close()


def _headers(http: h11.Connection, response: HttpResponse) -> bytes:
    headers = [
        ("Content-Type", response.type),
        ("Content-Length", str(len(response.body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Connection", "close"),
    ]
    if response.status == 405:
        headers.append(("Allow", "GET, HEAD"))
    reason = _REASONS.get(response.status, b"")
    return http.send(h11.Response(status_code=response.status, headers=headers, reason=reason)) or b""
