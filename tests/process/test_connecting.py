"""Opening a raw session of libpq does not block other threads."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from psycopg import pq

from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.source import raw_session
from bwtui.source.raw_session import attempts, connect_raw, open_session

TICK = 0.02


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections but never answers, like a stopped process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"host=127.0.0.1 port={server.getsockname()[1]} connect_timeout=2 dbname=shop user=one"


def test_other_threads_run_while_a_server_says_nothing(silent: str) -> None:
    """psycopg's own ``connect`` holds the GIL: a relay did not answer for ten seconds."""
    refused: list[str] = []

    def connect() -> None:
        with pytest.raises(ConnectionFailed) as failure:
            connect_raw(silent)
        refused.append(failure.value.message)

    thread = threading.Thread(target=connect)
    longest, last = 0.0, time.monotonic()
    thread.start()
    while thread.is_alive():
        time.sleep(TICK)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    assert longest < 1.0, "another thread stood still"
    assert len(refused) == 1
    assert "timeout expired" in refused[0], refused


def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch, silent: str) -> None:
    """libpq does the same. Here the first address refuses, and the second does not answer."""
    monkeypatch.setattr(raw_session, "_addresses", lambda host: ["127.0.0.2", "127.0.0.1"])
    dsn = silent.replace("host=127.0.0.1", "host=db.example").replace(
        "connect_timeout=2", "connect_timeout=1"
    )
    assert [_pairs(one)["hostaddr"] for one in attempts(dsn)] == ["127.0.0.2", "127.0.0.1"]
    with pytest.raises(ConnectionFailed) as failure:
        connect_raw(dsn)
    assert "(127.0.0.2)" in failure.value.message
    assert "(127.0.0.1)" in failure.value.message


def test_a_name_that_nobody_knows_is_told_as_libpq_tells_it() -> None:
    session = open_session("host=no-such-host.invalid connect_timeout=2")
    assert session.connection is None
    assert 'could not translate host name "no-such-host.invalid" to address: ' in session.failure


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("host=10.0.0.1,10.0.0.2 port=5432,5433", ["host=10.0.0.1 port=5432", "host=10.0.0.2 port=5433"]),
        ("host=10.0.0.1,10.0.0.2 port=5433", ["host=10.0.0.1 port=5433", "host=10.0.0.2 port=5433"]),
        ("host=/run/pg", ["host=/run/pg"]),
        ("host=db.example hostaddr=10.0.0.9", ["host=db.example hostaddr=10.0.0.9"]),
        ("host=::1 port=1", ["host=::1 port=1"]),
    ],
)
def test_one_attempt_for_each_place(dsn: str, expected: list[str]) -> None:
    assert [_pairs(one) for one in attempts(dsn)] == [_pairs(one) for one in expected]


def test_one_that_is_refused_late_is_told_as_refused() -> None:
    """If polled too early, libpq takes a pending connection for a broken one: "could not send"."""
    full = socket.socket()
    with contextlib.ExitStack() as stack:
        stack.callback(full.close)
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):
            # The second connection fills the backlog, so that later ones get no answer.
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        # The next attempt, after a second, is refused.
        threading.Timer(0.2, full.close).start()
        port = full.getsockname()[1]
        failure = open_session(f"host=127.0.0.1 port={port} connect_timeout=9 dbname=shop user=one").failure
    assert "Connection refused" in failure
    assert "Is the server running on that host" in failure
    assert "could not send" not in failure


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("host=127.0.0.1,127.0.0.2,127.0.0.3 port=1,2", "could not match 2 port numbers to 3 hosts"),
        ("host=a.invalid,b.invalid port=1,2,3", "could not match 3 port numbers to 2 hosts"),
        ("host=127.0.0.1 port=1,2", "could not match 2 port numbers to 1 hosts"),
        ("host=127.0.0.1 port=1,2,3", "could not match 3 port numbers to 1 hosts"),
        ("host=127.0.0.1 port=1 load_balance_hosts=often", 'invalid load_balance_hosts value: "often"'),
        ("host=a.invalid,b.invalid hostaddr=127.0.0.1", "could not match 2 host names to 1 hostaddr values"),
        ("host=127.0.0.1 connect_timeout=soon", 'invalid integer value "soon" for connection option'),
        ("host=127.0.0.1 connect_timeout=1_0", 'invalid integer value "1_0" for connection option'),
        ("host=127.0.0.1 connect_timeout=''", 'invalid integer value "" for connection option'),
        ("host=127.0.0.1 connect_timeout=9999999999", 'invalid integer value "9999999999" for connection'),
    ],
)
def test_what_libpq_refuses_is_no_outage(dsn: str, words: str) -> None:
    with pytest.raises(BwtuiError) as failure:
        connect_raw(dsn)
    assert words in failure.value.message
    assert not isinstance(failure.value, ConnectionFailed), "that would be waited for"


@pytest.mark.parametrize("limit", ["3000000", "2147483647", "0", "-1", " +9 "])
def test_every_time_limit_of_libpq_is_one_here(limit: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        hung_up = threading.Thread(target=_hang_up, args=(server,))
        hung_up.start()
        place = f"host=127.0.0.1 port={server.getsockname()[1]} sslmode=disable gssencmode=disable"
        opened = open_session(f"{place} dbname=shop user=one connect_timeout='{limit}'")
        hung_up.join()
    assert "server closed the connection unexpectedly" in opened.failure


def test_an_address_of_one_link_keeps_its_zone() -> None:
    (index,) = [number for number, name in socket.if_nameindex() if name == "lo"]
    assert raw_session._addresses("fe80::1%lo") == [f"fe80::1%{index}"]


@pytest.mark.parametrize("name", ["db..example", "a" * 64 + ".example", "b\u00fccher.invalid"])
def test_a_name_that_can_be_none_is_one_that_nobody_knows(name: str) -> None:
    assert f'could not translate host name "{name}" to address: ' in open_session(f"host={name}").failure


def test_a_name_is_looked_up_when_it_is_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that does not answer takes many seconds, which would delay an available host."""
    looked_up: list[str] = []

    def look_up(host: str) -> list[str]:
        looked_up.append(host)
        return ["127.0.0.2"]

    monkeypatch.setattr(raw_session, "_addresses", look_up)
    places = iter(attempts("host=127.0.0.1,db.example"))
    assert _pairs(next(places))["host"] == "127.0.0.1"
    assert not looked_up
    assert _pairs(next(places))["hostaddr"] == "127.0.0.2"
    assert looked_up == ["db.example"]


def test_a_standby_is_preferred_among_all_hosts() -> None:
    """libpq looks for a standby among all hosts first, and then takes any host."""
    dsn = "host=10.0.0.1,10.0.0.2 target_session_attrs=prefer-standby"
    tried = [_pairs(one) for one in attempts(dsn)]
    assert [(one["host"], one["target_session_attrs"]) for one in tried] == [
        ("10.0.0.1", "standby"),
        ("10.0.0.2", "standby"),
        ("10.0.0.1", "any"),
        ("10.0.0.2", "any"),
    ]


@pytest.mark.parametrize(
    ("sqlstate", "tried"), [(b"57P03", 2), (b"28P01", 1)], ids=["starts up", "refuses the login"]
)
def test_libpq_says_whether_another_host_is_tried(sqlstate: bytes, tried: int) -> None:
    """The SQLSTATE decides, whatever the server's language: a server that is starting up is skipped."""
    report = b"SFATAL\0VFATAL\0C%b\0Mdas Datenbanksystem startet\0\0" % sqlstate
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as shut:
        shut.bind(("127.0.0.1", 0))
        answering = threading.Thread(target=_refuse, args=(server, report))
        answering.start()
        ports = f"{server.getsockname()[1]},{shut.getsockname()[1]} sslmode=disable gssencmode=disable"
        dsn = f"host=127.0.0.1,127.0.0.1 port={ports} dbname=shop user=one connect_timeout=9"
        opened = open_session(dsn)
        answering.join()
    lines = [line for line in opened.failure.splitlines() if line.startswith("connection to server")]
    assert "das Datenbanksystem startet" in lines[0]
    assert len(lines) == tried, opened.failure
    assert "/dev/null" not in opened.failure


def test_a_port_that_is_none_is_told_once() -> None:
    assert open_session("host=127.0.0.1 port=0 connect_timeout=9").failure == 'invalid port number: "0"'


def _refuse(server: socket.socket, report: bytes) -> None:
    with server.accept()[0] as client:
        client.recv(4096)
        client.sendall(b"E" + (len(report) + 4).to_bytes(4, "big") + report)


def _hang_up(server: socket.socket) -> None:
    server.accept()[0].close()


def _pairs(dsn: str) -> dict[str, str]:
    parsed = pq.Conninfo.parse(dsn.encode())
    return {one.keyword.decode(): one.val.decode() for one in parsed if one.val is not None}
