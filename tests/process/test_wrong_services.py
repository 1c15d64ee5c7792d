"""A closed port, a web server instead of a broker, and silence are reported soon, or can be interrupted."""

import contextlib
import signal
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bwtui.errors import ConnectionFailed
from bwtui.kafka import scan
from bwtui.kafka.scan import Split, pin
from bwtui.sink.topics import TopicAdmin
from bwtui.source.connection import connect
from bwtui.source.raw_session import connect_raw
from tests.secure_services import Authority

#: Ends with 4 after a call to Kafka that goes on in vain; the client tries TLS again and again.
_REFUSED = """
import contextlib, sys
from confluent_kafka.admin import AdminClient
from bwtui.blocking import leave, within
place, authority = sys.argv[1:]
often = {"reconnect.backoff.ms": 1, "reconnect.backoff.max.ms": 2, "log_level": 0}
tls = {"security.protocol": "ssl", "ssl.ca.location": authority}
clients = [AdminClient({"bootstrap.servers": place, **tls, **often}) for _ in range(3)]
for client in clients:
    with contextlib.suppress(TimeoutError):
        within(0.05, lambda: client.list_topics(timeout=30))
leave(4)
"""

#: The promise is two seconds; a machine that runs other tests takes longer.
QUICK_SECONDS = 6.0


class _Web(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Do nothing."""


@contextlib.contextmanager
def web() -> Iterator[int]:
    """A web server that waits for a line, and so sends nothing to a Kafka client."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Web) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server that gives every connection the same answer, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.recv(100)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextlib.contextmanager
def closed() -> Iterator[int]:
    """A port without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize(
    ("broker", "says"),
    [
        (closed(), "Connection refused"),
        (web(), "an HTTP server answers there, not a Kafka broker"),
        (answering(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "an HTTP server answers there, not a Kafka broker"),
        (answering(b"E\0\0\0\x10nonsense and more"), "a different service answers there, not a Kafka broker"),
    ],
    ids=["closed", "web", "HTTP", "other"],
)
def test_a_broker_that_is_none(broker: "contextlib.AbstractContextManager[int]", says: str) -> None:
    with broker as port:
        admin = TopicAdmin({"bootstrap.servers": f"127.0.0.1:{port}"}, 1000)
        begin = time.monotonic()
        with pytest.raises(ConnectionFailed, match=says) as refused:
            admin.check()
        assert time.monotonic() - begin < QUICK_SECONDS
        assert "receive.message.max.bytes" not in refused.value.message
        assert refused.value.hint


@pytest.mark.parametrize(
    "answer", [b"E\xff\xfe\xfd no words\0", b"E\0\0\0\x0cM\xfcde\0\0\0", b"\xff" * 4_000]
)
def test_a_postgresql_whose_words_are_not_utf_8(answer: bytes) -> None:
    """Such as a message in another language and in its system's encoding, or arbitrary bytes."""
    with answering(answer) as port:
        dsn = f"host=127.0.0.1 port={port} user=u dbname=d sslmode=disable"
        for connecting in (connect, connect_raw):
            with pytest.raises(ConnectionFailed, match="can't connect to PostgreSQL: "):
                connecting(dsn)


@pytest.mark.parametrize(
    ("command", "silent"),
    [
        (("doctor",), "-d"),
        (("doctor",), "-b"),
        (("doctor",), "-r"),
        (("schema", "check"), "-r"),
        (("slots", "list"), "-d"),
        (("connect", "--headless"), "-d"),
    ],
)
def test_a_command_obeys_an_interrupt_while_a_service_is_silent(
    command: tuple[str, ...], silent: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, closed() as port:
        server.settimeout(60)
        nobody, here = f"127.0.0.1:{port}", f"127.0.0.1:{server.getsockname()[1]}"
        ends = {"-d": nobody, "-b": nobody, "-r": nobody} | {silent: here}
        given = ["-d", f"postgresql://{ends['-d']}/x", "-b", ends["-b"], "-r", f"http://{ends['-r']}"]
        if command[0] == "slots":
            del given[2:]
        process = subprocess.Popen(
            [sys.executable, "-m", "bwtui", *command, *given],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"XDG_CONFIG_HOME": str(tmp_path), "BWTUI_STATE_HOME": str(tmp_path)},
        )
        connection, _ = server.accept()
        with connection:
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        assert time.monotonic() - begin < QUICK_SECONDS
        last = (
            "bwtui: bottledwater: stopped cleanly" if command[0] == "connect" else "bwtui: error: interrupted"
        )
        assert (process.returncode, err.splitlines()[-1]) == (130, last)
        assert "Traceback" not in out + err


def test_only_a_broker_that_never_answered_may_want_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that closes connections after its offsets were read was stopped; settings are not to blame."""
    monkeypatch.setattr(scan, "_SILENCE_SECONDS", 1.0)
    with answering(b"") as port:
        config = {"bootstrap.servers": f"127.0.0.1:{port}"}
        with pytest.raises(ConnectionFailed, match="closes every connection"):
            pin(config, ["t"])
        with pytest.raises(ConnectionFailed) as failure:
            list(scan.SplitScan(config, Split("t", 0, 0, 5), "read_uncommitted", 1.0))
    assert failure.value.message == f"can't reach Kafka at 127.0.0.1:{port}: it no longer responds"
    assert "TLS" not in (failure.value.hint or "")


class _Tls(socketserver.ThreadingTCPServer):
    """Completes or refuses a TLS handshake on each connection, and closes it."""

    daemon_threads = True
    request_queue_size = 200

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self._context = context

    def finish_request(self, request: object, client_address: object) -> None:
        assert isinstance(request, socket.socket)
        with contextlib.suppress(OSError), self._context.wrap_socket(request, server_side=True) as secure:
            secure.recv(1)


def test_a_client_that_tries_tls_in_vain_does_not_end_the_process_with_a_signal(tmp_path: Path) -> None:
    """One of four ended with SIGSEGV, so that ten rarely all ended well."""
    (tmp_path / "other").mkdir()
    ours, other = Authority(tmp_path), Authority(tmp_path / "other")
    with _Tls(ours.for_servers()) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        place = f"127.0.0.1:{server.server_address[1]}"
        command = [sys.executable, "-c", _REFUSED, place, str(other.file)]
        codes = [subprocess.run(command, check=False, timeout=60).returncode for _ in range(10)]
        server.shutdown()
    assert codes == [4] * 10
