"""The sampler polls the slot once a second: its contents, and requests without an answer."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from bwtui.errors import ConnectionFailed
from bwtui.relay.state.run_state import RunState
from bwtui.relay.watch.judge import ServiceNames
from bwtui.relay.watch.relay_watch import RelayWatch
from bwtui.source import lag
from bwtui.source.lag import Lag, LagSampler
from bwtui.source.raw_stream import StreamServer
from bwtui.source.slot import SlotState
from tests.waiting import eventually


class Server:
    """An in-memory server for `bwtui.source.lag`; ``hangs`` names the step that does not answer."""

    def __init__(self) -> None:
        self.written = 1_000
        self.clock_behind = 0.0
        self.sender: tuple[str | None, str | None, int | None] = ("Client", "WalSenderWaitForWal", 1_000)
        self.takes = 0.0
        self.hangs = ""
        self.goes_on = threading.Event()
        self.refusal: Exception | None = None
        self.closed = 0
        self.epoch = 0

    def close(self) -> None:
        self.closed += 1

    def connect(self) -> "Server":
        """Replace `bwtui.source.raw_stream.StreamServer`."""
        self.pass_by("connect")
        if self.refusal is not None:
            raise self.refusal
        return self

    def pass_by(self, step: str) -> None:
        """Answer, or block until released."""
        time.sleep(self.takes)
        if self.hangs == step:
            self.goes_on.wait(10)

    def slot_state(self, connection: object, name: str) -> SlotState:
        """Replace `bwtui.source.slot.slot_state`."""
        self.pass_by("slot")
        return SlotState(
            name, "pgoutput", "shop", True, 4711, "reserved", 1 << 30, 10, 20, self.written, False
        )

    def query(self, connection: object, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        """Replace `bwtui.source.connection.query`."""
        self.pass_by("query")
        if "pg_blocking_pids" in sql:
            return []
        if "pg_stat_replication_slots" in sql:
            return [(time.time() - self.clock_behind, 7, True)]
        return [self.sender]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that the sampler polls without a pause."""
    server = Server()
    monkeypatch.setattr(lag, "execute", lambda connection, sql: None)
    for name in ("slot_state", "query"):
        monkeypatch.setattr(lag, name, getattr(server, name))
    monkeypatch.setattr(lag, "_PAUSE_SECONDS", 0.01)
    yield server
    server.goes_on.set()


def sampling(server: Any, on_tick: Any = lambda connection: None) -> LagSampler:
    """Return a running sampler."""
    sampler = LagSampler(server, lambda: "one", on_tick)
    sampler.start()
    return sampler


def asks(sampler: LagSampler) -> bool:
    """Return whether a request has been without an answer for 0.1 s."""
    return bool(sampler.pending.since) and time.monotonic() - sampler.pending.since > 0.1


@pytest.mark.parametrize(("step", "is_long"), [("connect", True), ("slot", False), ("query", False)])
def test_a_question_without_an_answer_is_known(server: Server, step: str, is_long: bool) -> None:
    server.hangs = step
    sampler = sampling(server)
    eventually("the question", lambda: asks(sampler))
    assert sampler.pending.is_long is is_long
    server.goes_on.set()
    eventually("an answer", lambda: sampler.lag.time)
    sampler.stop()
    assert not sampler.pending.since


def test_what_waits_for_a_lock_does_not_keep_the_slot_from_being_looked_at(server: Server) -> None:
    sampler = sampling(server, lambda connection: server.pass_by("tick"))
    server.hangs = "tick"
    first = eventually("a look", lambda: sampler.lag.sampled_at)
    eventually("later looks", lambda: sampler.lag.sampled_at > first + 0.1)
    assert not asks(sampler)
    server.goes_on.set()
    sampler.stop()


def test_each_question_of_a_look_is_one_of_its_own(server: Server) -> None:
    """A distant server answers each request in time, but not all of them together."""
    server.takes = 0.2
    sampler = sampling(server)
    longest = 0.0
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        since = sampler.pending.since
        longest = max(longest, time.monotonic() - since if since else 0.0)
        time.sleep(0.01)
    sampler.stop()
    assert 0.1 < longest < 0.35


@pytest.mark.parametrize(
    ("reason", "answered"),
    [
        ("connection refused", True),
        ("FATAL: sorry, too many clients already", True),
        ("timeout expired", False),
        ("could not receive data from server: Connection timed out", False),
    ],
)
def test_a_refusal_is_an_answer_and_a_timeout_is_none(server: Server, reason: str, answered: bool) -> None:
    server.refusal = ConnectionFailed(f"can't connect to PostgreSQL: {reason}", "check it")
    sampler = sampling(server)
    eventually("the failure", lambda: sampler.failure)
    assert sampler.failure == f"can't connect to PostgreSQL: {reason}"
    # The sampler retries, and gets an answer in between.
    eventually("what it was", lambda: bool(sampler.pending.since) is not answered)
    server.refusal = None
    eventually("an answer", lambda: sampler.lag.time)
    sampler.stop()
    assert not sampler.failure


def test_a_broken_session_is_told_in_plain_words(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(connection: object, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        raise psycopg2.OperationalError("server closed the connection\n\tunexpectedly")

    monkeypatch.setattr(lag, "query", breaks)
    sampler = sampling(server)
    eventually("the session's end", lambda: server.closed)
    sampler.stop()
    assert sampler.failure == "the connection to PostgreSQL broke: server closed the connection unexpectedly"


@pytest.mark.parametrize(
    ("kind", "event", "waits_for"),
    [
        ("Client", "WalSenderWaitForWal", "WalSenderWaitForWal"),
        ("Activity", "WalSenderMain", "WalSenderMain"),
        ("Lock", "relation", "relation"),
        ("IO", "ReorderBufferRead", ""),
        ("IO", "WALRead", ""),
        ("LWLock", "WALInsert", ""),
        (None, None, ""),
    ],
)
def test_a_sender_that_reads_its_disk_works(
    server: Server, kind: str | None, event: str | None, waits_for: str
) -> None:
    server.sender = (kind, event, 900)
    sampler = sampling(server)
    eventually("an answer", lambda: sampler.lag.time)
    sampler.stop()
    assert (sampler.lag.waits_for, sampler.lag.sent_lsn) == (waits_for, 900)


def test_a_step_of_our_clock_changes_no_figure(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = sampling(server)
    eventually("an answer", lambda: sampler.lag.time)
    real, before = time.time, sampler.lag.time
    monkeypatch.setattr(time, "time", lambda: real() - 3_600)
    server.written = 2_000
    eventually("a look after it", lambda: sampler.lag.server_lsn == 2_000 and sampler.lag.time < before)
    behind, safe = sampler.seconds_behind(1_500), sampler.safe_seconds()
    sampler.stop()
    assert safe is not None
    assert safe > 0
    monkeypatch.setattr(time, "time", lambda: real() + 3_600)
    assert sampler.seconds_behind(1_500) < 60
    assert behind < 60


def test_a_new_stream_is_looked_at_in_a_new_session(server: Server) -> None:
    """The new stream may come from a different server, and the old session is with the former one."""
    sampler = sampling(server)
    eventually("an answer", lambda: sampler.lag.time)
    server.epoch += 1
    eventually("the former sessions' ends", lambda: server.closed == 2)
    looked_at = sampler.lag.sampled_at
    eventually("another answer", lambda: sampler.lag.sampled_at > looked_at)
    sampler.stop()


def test_the_servers_clock_is_compared_with_ours(server: Server) -> None:
    server.clock_behind = 3_600.0
    sampler = sampling(server)
    eventually("an answer", lambda: sampler.lag.time)
    sampler.stop()
    assert sampler.lag.clock_ahead == pytest.approx(-3_600, abs=2)
    assert sampler.lag.spill_bytes == 7
    assert sampler.lag.in_recovery


def test_a_look_ages_from_the_beginning_on(server: Server) -> None:
    server.hangs = "connect"
    sampler = sampling(server)
    eventually("an age without any look", lambda: sampler.age > 0.2)
    server.goes_on.set()
    eventually("a fresh look", lambda: sampler.lag.time and sampler.age < 0.2)
    sampler.stop()


def test_a_commits_age_is_told_by_the_servers_clock() -> None:
    report, sampler = RunState(), LagSampler(StreamServer(""), lambda: "one", lambda connection: None)
    watch = RelayWatch(
        report, sampler, lambda: ServiceNames("PostgreSQL"), lambda: None, lambda dropped: None
    )
    now = time.time()
    report.commit_time = now - 3_600 - 5
    sampler.lag = Lag(time=now, sampled_at=time.monotonic(), clock_ahead=-3_600.0)
    assert watch._observe().commit_age == pytest.approx(5, abs=2)


def test_the_end_of_the_wal_is_never_before_what_is_confirmed() -> None:
    report = RunState()
    report.confirmed_lsn, report.server_lsn = 0x2000, 0x1000
    assert report.server_end(0) == 0x2000
    assert report.server_end(0x3000) == 0x3000, "PostgreSQL said so"
    report.server_lsn = 0x4000
    assert report.server_end(0x3000) == 0x4000, "the stream said so"


def test_a_look_that_fails_is_reported(server: Server) -> None:
    failures: list[str] = []

    def fail(connection: object) -> None:
        raise psycopg2.OperationalError("no\nanswer")

    sampler = LagSampler(server, lambda: "one", fail, on_failure=failures.append)  # type: ignore[arg-type]
    sampler.start()
    eventually("the failure", lambda: failures)
    sampler.stop()
    assert failures[0] == "no answer"
