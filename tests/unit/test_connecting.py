"""How a raw session of libpq is opened: nothing else in the process stands still meanwhile."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from psycopg import pq

from bwtui.errors import ConnectionFailed
from bwtui.source.connection import connect_raw
from bwtui.source.failover import connecting
from bwtui.source.failover.connecting import attempts, open_session

TICK = 0.02


@pytest.fixture
def silent() -> Iterator[str]:
    """Where a server takes connections and never says a word, as one that is stopped does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"host=127.0.0.1 port={server.getsockname()[1]} connect_timeout=2 dbname=shop user=one"


def test_other_threads_run_while_a_server_says_nothing(silent: str) -> None:
    """psycopg's own ``connect`` keeps the interpreter's lock: a relay answered nobody for ten seconds."""
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
    """As libpq does: here the first address refuses, and the second says nothing."""
    monkeypatch.setattr(connecting, "_addresses", lambda host: ["127.0.0.2", "127.0.0.1"])
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


def test_a_standby_is_preferred_among_all_hosts() -> None:
    """libpq goes through all hosts for a standby first, and then takes any."""
    dsn = "host=10.0.0.1,10.0.0.2 target_session_attrs=prefer-standby"
    tried = [_pairs(one) for one in attempts(dsn)]
    assert [(one["host"], one["target_session_attrs"]) for one in tried] == [
        ("10.0.0.1", "standby"),
        ("10.0.0.2", "standby"),
        ("10.0.0.1", "any"),
        ("10.0.0.2", "any"),
    ]


def _pairs(dsn: str) -> dict[str, str]:
    parsed = pq.Conninfo.parse(dsn.encode())
    return {one.keyword.decode(): one.val.decode() for one in parsed if one.val is not None}
