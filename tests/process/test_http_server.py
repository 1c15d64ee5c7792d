"""The server of --listen, and misbehaving clients."""

import os
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest

from bwtui.errors import RefusedError
from bwtui.model.status import TableStatus
from bwtui.option_checks import parse_address
from bwtui.relay.serving import http_server
from bwtui.relay.serving.http_server import MOST_CONNECTIONS, HttpServer, MeasurementCollector
from bwtui.relay.state.measures import Measures
from bwtui.sandbox.ports import choose
from bwtui.settings import RelaySettings
from tests.scraping import Scrape, get, probe
from tests.unit.relay_double import SECRET, DoubleEngine
from tests.waiting import eventually


@pytest.fixture
def port() -> int:
    return choose(["http"], {})["http"]


@pytest.fixture
def engine() -> DoubleEngine:
    """An engine that is streaming."""
    engine = DoubleEngine(RelaySettings(name="one"))
    engine.state = "streaming"
    return engine


@pytest.fixture
def server(engine: DoubleEngine, port: int) -> Iterator[HttpServer]:
    """The engine's HTTP server."""
    with HttpServer(str(port), engine) as server:
        yield server


def said(port: int, request: bytes) -> bytes:
    """Return the complete response to a request."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.usefixtures("server")
def test_metrics_and_probes_are_served(engine: DoubleEngine, port: int) -> None:
    scrape = Scrape(port)
    assert scrape("bwtui_table_changes_total", table="public.orders", kind="insert") == 3
    assert scrape.chosen("bwtui_state") == "streaming"
    assert get(port, "/metrics", "text/plain")[1].startswith("text/plain; version=0.0.4")
    assert get(port, "/metrics?name[]=x")[0] == 200
    assert probe(port, "/healthz")[0] == 200
    status, told = probe(port, "/readyz")
    assert (status, told["ready"], told["reasons"]) == (200, True, [])
    assert "/healthz" in get(port, "/")[2]
    assert get(port, "/metrics", method="HEAD")[2] == ""


@pytest.mark.usefixtures("server")
def test_a_relay_that_starts_is_not_ready(engine: DoubleEngine, port: int) -> None:
    engine.state = "starting"
    status, told = probe(port, "/readyz")
    assert (status, told["ready"]) == (503, False)
    assert told["reasons"][0].startswith("the relay is starting")


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /%0d%0aSet-Cookie:%20a=b HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET http://evil.example/metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", 404),
        (b"GET /metrics HTTP/1.1\r\nHost: <script>alert(1)</script>\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\nAccept: evil;version=evil\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
        (b"GET /metrics\r\n\r\n", 200),
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"DELETE / HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"\0" * 100 + b"\r\n\r\n", 400),
    ],
)
def test_hostile_requests_are_answered_plainly(port: int, request_: bytes, status: int) -> None:
    answer = said(port, request_)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:100]
    assert b"evil" not in answer
    assert b"<script>" not in answer
    assert b"Set-Cookie" not in answer
    assert get(port, "/healthz")[0] == 200


@pytest.mark.usefixtures("server")
def test_an_engine_that_fails_to_answer_tells_no_value(
    engine: DoubleEngine, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Measures:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(engine, "measures", fail)
    for path in ("/metrics", "/readyz"):
        status, _, body = get(port, path)
        assert (status, body) == (500, "the relay failed to answer the request (RuntimeError)\n")
    # A restart would not help.
    assert get(port, "/healthz")[0] == 200
    assert get(port, "/")[0] == 200


@pytest.mark.usefixtures("server")
def test_a_picture_that_does_not_come_holds_up_no_probe_of_life(
    engine: DoubleEngine, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The status includes the free space of the recording's disk, which hangs.
    answers, looks, measures = threading.Event(), [0], engine.measures

    def hang() -> Measures:
        looks[0] += 1
        answers.wait(60)
        return measures()

    monkeypatch.setattr(engine, "measures", hang)
    try:
        for _ in range(3):
            status, told = probe(port, "/readyz")
            assert (status, told["ready"]) == (503, False)
            assert "recording's disk" in told["reasons"][0]
            begun = time.monotonic()
            assert get(port, "/healthz", seconds=5)[0] == 200
            assert get(port, "/metrics", seconds=5)[0] == 503
            assert time.monotonic() - begun < 1.5
        assert looks == [1]
    finally:
        answers.set()
    eventually("it is ready again", lambda: probe(port, "/readyz")[0] == 200)
    assert get(port, "/metrics")[0] == 200


def test_a_relay_that_was_suspended_within_a_look_is_looked_at_again(
    engine: DoubleEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, measures, stopped = time.monotonic, engine.measures, [0.0]

    def suspended() -> Measures:
        # The process is suspended for a minute, and resumes.
        time.sleep(0.1)
        stopped[0] += 60.0
        time.sleep(0.1)
        return measures()

    monkeypatch.setattr(engine, "measures", suspended)
    monkeypatch.setattr("time.monotonic", lambda: clock() + stopped[0])
    collector = MeasurementCollector(engine)
    assert collector.collect().status.name == "one"


def test_those_who_read_nothing_share_one_text(
    server: HttpServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This is more than the kernel buffers for a client that does not read.
    text = bytes(16_000_000)
    response = http_server.HttpResponse(200, "text/plain", text)
    monkeypatch.setattr(server.responder, "answer", lambda path, accept: response)
    with ExitStack() as stack:
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for _ in range(20):
            deaf = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            deaf.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        eventually("all have begun", lambda: server.connections == 20)
        assert tracemalloc.get_traced_memory()[1] < len(text)
    assert len(said(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")) > len(text)


@pytest.mark.usefixtures("server")
def test_a_thousand_scrapes_at_once_are_answered_and_cost_one_look(
    engine: DoubleEngine, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    measures = engine.measures

    def counted() -> Measures:
        looks.append(time.monotonic())
        return measures()

    monkeypatch.setattr(engine, "measures", counted)
    began = time.monotonic()
    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(lambda _: get(port, "/metrics", seconds=60)[0], range(1000)))
    assert answers == [200] * 1000
    assert len(looks) <= 2 + (time.monotonic() - began)


def test_hundreds_of_idle_connections_keep_nobody_out(server: HttpServer, port: int) -> None:
    with ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        assert get(port, "/healthz", seconds=20)[0] == 200
        assert server.connections <= MOST_CONNECTIONS


def test_an_error_in_our_own_code_ends_one_visit_alone(
    server: HttpServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str, accept: str) -> http_server.HttpResponse:
        raise ValueError(SECRET)

    with monkeypatch.context() as patch:
        patch.setattr(server.responder, "answer", fail)
        assert said(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") == b""
    assert get(port, "/healthz")[0] == 200


def test_slow_visitors_go_and_others_are_served(
    server: HttpServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_GRACE_SECONDS", 0.1)
    with ExitStack() as stack:
        slow = []
        for _ in range(MOST_CONNECTIONS + 20):
            slow.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)))
            slow[-1].sendall(b"GET /metrics HTT")
        assert get(port, "/healthz")[0] == 200
        eventually("that they are no more than may be", lambda: server.connections <= MOST_CONNECTIONS)
        assert slow[0].recv(1) == b""


def test_a_visitor_that_says_nothing_and_one_that_reads_nothing_go(
    engine: DoubleEngine, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_MOST_SECONDS", 0.3)
    engine.tables = {f"public.t{number}": TableStatus(f"t{number}") for number in range(3000)}
    with HttpServer(str(port), engine) as server, ExitStack() as stack:
        connect = lambda: stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))  # noqa: E731
        silent, drop, deaf = connect(), connect(), connect()
        deaf.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        drop.sendall(b"G")
        eventually("all are gone", lambda: not server.connections)
        assert silent.recv(1) == b""
        assert get(port, "/healthz")[0] == 200


def test_a_scraper_that_is_suspended_holds_up_nobody(
    server: HttpServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_MOST_SECONDS", 1.0)
    program = f"""
import os, signal, socket
connection = socket.create_connection(("127.0.0.1", {port}))
connection.sendall(b"GET /metrics HTTP/1.1\\r\\nHost: x\\r\\n")
os.kill(os.getpid(), signal.SIGSTOP)
"""
    child = subprocess.Popen([sys.executable, "-I", "-c", program])
    try:
        os.waitpid(child.pid, os.WUNTRACED)
        for _ in range(20):
            assert get(port, "/metrics", seconds=5)[0] == 200
        eventually("it is dropped", lambda: not server.connections, 20)
    finally:
        child.kill()
        child.wait()


# -- where it listens ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9847", ("127.0.0.1", 9847)),
        (":9847", ("127.0.0.1", 9847)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("localhost:80", ("localhost", 80)),
    ],
)
def test_an_address_is_a_port_of_this_machine_alone_unless_it_says_more(
    text: str, address: tuple[str, int]
) -> None:
    assert parse_address(text) == address


def test_a_port_that_is_taken_is_refused_in_one_sentence(
    server: HttpServer, engine: DoubleEngine, port: int
) -> None:
    with pytest.raises(RefusedError) as refused:
        HttpServer(f"127.0.0.1:{port}", engine).start()
    assert refused.value.message == f"can't listen on 127.0.0.1 port {port}: Address already in use"
    assert "--listen" in refused.value.hint
    assert refused.value.exit_code == 2
    # The first server continues.
    assert get(port, "/healthz")[0] == 200


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid", "a" * 70, "a..b"])
def test_an_address_of_no_machine_or_another_one_is_refused(
    engine: DoubleEngine, port: int, host: str
) -> None:
    with pytest.raises(RefusedError, match=f"can't listen on {host} port {port}: ."):
        HttpServer(f"{host}:{port}", engine).start()


def test_the_hint_for_an_address_of_another_machine_names_the_cause(engine: DoubleEngine, port: int) -> None:
    with pytest.raises(RefusedError) as refused:
        HttpServer(f"203.0.113.7:{port}", engine).start()
    assert refused.value.hint == "set --listen to an address of this machine"


def test_it_is_closed_with_its_connections(engine: DoubleEngine, port: int) -> None:
    before = set(threading.enumerate())
    with HttpServer(str(port), engine):
        waiting = socket.create_connection(("127.0.0.1", port), 30)
        assert get(port, "/healthz")[0] == 200
    assert set(threading.enumerate()) <= before
    with waiting:
        assert waiting.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        get(port, "/healthz")
    with HttpServer(str(port), engine) as again:
        assert again.url == f"http://127.0.0.1:{port}/"


def test_what_is_told_is_not_older_than_a_moment(engine: DoubleEngine, port: int) -> None:
    with HttpServer(str(port), engine):
        assert Scrape(port).chosen("bwtui_state") == "streaming"
        engine.state = "snapshot"
        eventually("it is told", lambda: Scrape(port).chosen("bwtui_state") == "snapshot", 10)
        engine.tables = {"public.orders": replace(engine.tables["public.orders"], inserts=9)}
