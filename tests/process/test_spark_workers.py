"""The listener for workers on other machines: accepted and rejected connections, and the ends of channels."""

import contextlib
import pickle
import queue
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from psycopg2.extensions import parse_dsn

from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.relay.snapshot.spark_connection import (
    WELCOME,
    ConnectionTicket,
    ControlFrame,
    FrameKind,
    TlsMux,
    WorkerListener,
    knock,
)
from bwtui.relay.snapshot.spark_worker_pool import (
    SparkWorkerHandle,
    SparkWorkerPool,
    _refuse_local_source,
    reachable,
)
from bwtui.relay.snapshot.worker_handle import COMMAND
from bwtui.relay.snapshot.worker_pool import WorkerReaper
from bwtui.relay.snapshot.worker_protocol import (
    NonBlockingChannel,
    SerializedError,
    StartWorker,
    WorkerFailed,
)
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection
from tests.waiting import eventually

# The listener for workers on other machines: accepted and rejected connections, and the ends of channels.


SECONDS = 10.0
BEGIN = StartWorker({"postgres": "password=hunter2"}, b"", "1-1", 0, 0, 1, is_recorded=False)


@pytest.fixture
def door() -> Iterator[WorkerListener]:
    """A listener on loopback."""
    opened = WorkerListener("127.0.0.1", 0)
    yield opened
    opened.close()


class Arrivals:
    """The connections that a listener accepted."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[ssl.SSLSocket, str]] = queue.SimpleQueue()

    def __call__(self, connection: ssl.SSLSocket, machine: str) -> None:
        self._queue.put((connection, machine))

    def next(self) -> tuple[ssl.SSLSocket, str]:
        return self._queue.get(timeout=SECONDS)


def test_a_token_lets_one_in_and_is_worth_nothing_then(door: WorkerListener) -> None:
    arrivals = Arrivals()
    call = door.expect(arrivals)
    assert repr(call.token) not in repr(call) and str(call.port) not in repr(call)
    assert pickle.loads(pickle.dumps(call)) == call
    with knock(call, "there", SECONDS) or pytest.fail("it was not let in"):
        connection, machine = arrivals.next()
        assert (connection.version(), machine) == ("TLSv1.3", "there")
        assert knock(call, "again", SECONDS) is None
        connection.close()
    assert door.withdraw(call) is False
    assert [*door.refusals] == ["the relay rejected a worker from 127.0.0.1: its token was already used"]


def test_who_has_no_token_is_told_nothing(door: WorkerListener) -> None:
    call = door.expect(Arrivals())
    assert (
        knock(ConnectionTicket(call.host, call.port, call.fingerprint, bytes(32)), "there", SECONDS) is None
    )
    assert [*door.refusals] == [
        "the relay rejected a worker from 127.0.0.1: its token is not one of this relay's"
    ]
    # A withdrawn ticket does not count as an unknown client's.
    assert door.withdraw(call) and door.withdraw(call)
    assert knock(call, "there", SECONDS) is None
    assert len(door.refusals) == 1


def test_a_token_is_shown_to_nobody_else() -> None:
    arrivals = Arrivals()
    ours, theirs = WorkerListener("127.0.0.1", 0), WorkerListener("127.0.0.1", 0)
    call, other = ours.expect(arrivals), theirs.expect(arrivals)
    with pytest.raises(ConnectionRefusedError, match="certificate is not the relay's"):
        knock(ConnectionTicket(other.host, other.port, call.fingerprint, call.token), "there", SECONDS)
    # A client without TLS is rejected, and does not block the listener.
    with socket.create_connection((call.host, call.port), SECONDS) as plain:
        plain.sendall(call.token * 2)
        with contextlib.suppress(ConnectionResetError):
            while plain.recv(1024):
                pass
    with knock(call, "there", SECONDS) or pytest.fail("it was not let in"):
        arrivals.next()[0].close()
    assert not ours.refusals and not theirs.refusals
    ours.close()
    theirs.close()
    with pytest.raises(ConnectionRefusedError):
        knock(call, "there", SECONDS)


class Pair:
    """Two ends of a tunnel."""

    def __init__(self, door: WorkerListener) -> None:
        arrivals = Arrivals()
        connection = knock(door.expect(arrivals), "there", SECONDS)
        assert connection is not None
        self.connection, self.accepted = connection, arrivals.next()[0]
        self.near, near = socket.socketpair()
        self.far, far = socket.socketpair()
        self.one, self.other = TlsMux(self.accepted, near), TlsMux(connection, far)


@pytest.fixture
def pair(door: WorkerListener) -> Iterator[Pair]:
    """A tunnel."""
    made = Pair(door)
    yield made
    for one in (made.near, made.far, made.one, made.other):
        one.close()


def test_all_that_is_said_comes_over_with_signs_between(pair: Pair) -> None:
    said = bytes(range(256)) * 30_000
    heard = bytearray()
    ends = [
        threading.Thread(target=pair.far.sendall, args=(said,)),
        threading.Thread(target=_hear, args=(pair.near, heard, len(said))),
    ]
    for thread in ends:
        thread.start()
    pair.other.send(FrameKind.BEGUN, 4711)
    signs: list[ControlFrame] = []
    until = time.monotonic() + SECONDS
    while (ends[0].is_alive() or ends[1].is_alive()) and time.monotonic() < until:
        pair.other.turn(0)
        signs += pair.one.turn(0)
    assert heard == said
    pair.other.send(FrameKind.ENDED, -9)
    pair.other.turn(0)
    eventually("both signs", lambda: len(gathered(pair.one, signs)) == 2)
    assert signs == [(FrameKind.BEGUN, 4711), (FrameKind.ENDED, -9)]


def gathered(tunnel: TlsMux, signs: list[ControlFrame]) -> list[ControlFrame]:
    signs += tunnel.turn(0.01)
    return signs


def _hear(end: socket.socket, heard: bytearray, count: int) -> None:
    while len(heard) < count:
        heard += end.recv(1 << 16)


def test_a_line_that_is_hung_up_is_told_from_one_that_broke(pair: Pair) -> None:
    # The kernel does this for a killed process: it closes without TLS's closing message, or with a reset.
    pair.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.other.close()
    eventually("the end", lambda: pair.one.turn(0.01) or pair.one.is_over)
    assert pair.one.is_closed and not pair.one.is_broken


@pytest.mark.parametrize(
    "error", [TimeoutError(110, "timed out"), OSError(113, "no route"), ssl.SSLError(1, "bad record")]
)
def test_a_line_that_broke_says_nothing_of_the_other_end(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def broken(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(pair.accepted, "recv", broken)
    pair.one.turn(0)
    assert pair.one.is_broken and not pair.one.is_closed


# -- state of a worker ---------------------------------------------------------------------------------------


def member_of(door: WorkerListener) -> SparkWorkerHandle:
    return SparkWorkerHandle(BEGIN, door, 1, lambda: None)


def arrived(door: WorkerListener, member: SparkWorkerHandle) -> ssl.SSLSocket:
    connection = knock(member.call, "there", SECONDS)
    assert connection is not None
    eventually("it is in", lambda: member.is_connected)
    return connection


def test_one_that_never_came_is_gone(door: WorkerListener) -> None:
    member = member_of(door)
    assert not member.has_ended
    member.kill()
    assert member.has_ended
    assert knock(member.call, "there", SECONDS) is None


def test_one_that_is_killed_between_its_token_and_the_welcome_is_gone(
    door: WorkerListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reports it first, after the token arrived and before the relay notices that WELCOME was lost."""
    member, shown, killed = member_of(door), threading.Event(), threading.Event()
    send = ssl.SSLSocket.sendall

    def sendall(connection: ssl.SSLSocket, data: bytes, flags: int = 0) -> None:
        if data == WELCOME:
            shown.set()
            killed.wait(SECONDS)
        send(connection, data, flags)

    monkeypatch.setattr(ssl.SSLSocket, "sendall", sendall)
    call, context = member.call, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(socket.create_connection((call.host, call.port), SECONDS)) as executor:
        executor.sendall(call.token + b"\x05there")
        assert shown.wait(SECONDS)
        executor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    member.note_task_ended(SerializedError.of(ConnectionFailed("an executor is lost", "")))
    member.kill()
    assert not member.has_ended, "it may come in as yet"
    killed.set()
    eventually("its end is known", lambda: member.has_ended)


def test_neither_a_hang_up_alone_nor_spark_alone_proves_an_end(door: WorkerListener) -> None:
    one, other = member_of(door), member_of(door)
    lines = [arrived(door, member) for member in (one, other)]
    lines[0].close()
    eventually("the end of its line", lambda: one.poll() == [] and one.is_lost)
    one.kill()
    assert not one.has_ended
    one.note_task_ended(None)
    assert one.has_ended
    other.note_task_ended(SerializedError.of(ConnectionFailed("an executor is lost", "")))
    other.kill()
    assert not other.has_ended and not other.is_cut_off
    lines[1].close()
    eventually("the end of its line", lambda: other.has_ended)


def test_the_guards_word_is_proof_and_an_order_reaches_it(door: WorkerListener) -> None:
    member = member_of(door)
    ours, theirs = socket.socketpair()
    guard = TlsMux(arrived(door, member), ours)
    guard.send(FrameKind.BEGUN, 4711)
    eventually("its number", lambda: guard.turn(0.01) is not None and member.pid == 4711)
    assert member.name == "process 4711 on there"
    member.kill()
    signs: list[ControlFrame] = []
    eventually("the order", lambda: ControlFrame(FrameKind.KILL, 0) in gathered(guard, signs))
    assert not member.has_ended
    guard.send(FrameKind.ENDED, -9)
    eventually("the word", lambda: guard.turn(0.01) is not None and member.has_ended)
    theirs.close()
    guard.close()


def test_a_task_that_fails_before_its_worker_comes_in_could_not_begin(door: WorkerListener) -> None:
    member = member_of(door)
    fault = SerializedError.of(ConnectionFailed("the Spark executor on there can't reach the relay", ""))
    member.note_task_ended(fault)
    member.note_task_ended(fault)
    assert [*member.messages] == [WorkerFailed(fault, at_start=True)]
    member.kill()


def test_where_spark_does_not_start_it_says_why() -> None:
    crew = SparkWorkerPool(RunState(), {})
    try:
        with pytest.raises(ConnectionFailed, match=r"no Spark master answers at spark://127.0.0.1:1"):
            crew.open("spark://127.0.0.1:1", time.sleep)
    finally:
        crew.close()


def test_a_token_that_was_shown_without_a_name_opens_to_nobody(door: WorkerListener) -> None:
    arrivals = Arrivals()
    call = door.expect(arrivals)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(socket.create_connection((call.host, call.port), SECONDS)) as stranger:
        stranger.sendall(call.token)
        stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            while stranger.recv(1024):
                pass
    eventually("it has gone", lambda: not strangers())
    assert knock(call, "there", SECONDS) is None
    assert door.withdraw(call)


def strangers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("a worker from")]


def test_what_was_said_before_a_reset_is_heard_though_something_is_to_be_sent(pair: Pair) -> None:
    pair.other.send(FrameKind.ENDED, -9)
    pair.other.turn(0)
    pair.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.other.close()
    pair.one.send(FrameKind.PING)
    signs: list[ControlFrame] = []
    eventually("the end", lambda: gathered(pair.one, signs) is not None and pair.one.is_over)
    assert signs == [(FrameKind.ENDED, -9)] and pair.one.is_closed


def test_a_line_whose_thread_fails_counts_as_one_that_broke(door: WorkerListener) -> None:
    member = member_of(door)
    connection = arrived(door, member)
    # The kind of this message is unknown.
    connection.sendall(struct.pack("!BI", 99, 0))
    eventually("the end of its line", lambda: member.poll() == [] and member.is_lost)
    member.kill()
    assert member.is_cut_off and not member.has_ended
    connection.close()


def test_people_are_told_of_whom_to_end_and_of_all_that_may_go_on(door: WorkerListener) -> None:
    one, other = member_of(door), member_of(door)
    pairs = [socket.socketpair() for _ in range(2)]
    guards = [
        TlsMux(arrived(door, member), ours) for member, (ours, _) in zip((one, other), pairs, strict=True)
    ]
    for number, guard in enumerate(guards):
        guard.send(FrameKind.GUARD, 100 + number)
        guard.send(FrameKind.BEGUN, 4711 + number)
        guard.turn(0)
    eventually("their numbers", lambda: one.pid == 4711 and other.pid == 4712)
    assert "kill -KILL 100" in one.awaited_end_error().hint

    def stopped(_: float) -> None:
        raise KeyboardInterrupt

    report = RunState()
    seeing_off = WorkerReaper(report, stopped)
    for member in (one, other):
        member.kill()
        seeing_off.add(member)
    with pytest.raises(KeyboardInterrupt):
        seeing_off.wait()
    assert [error.message for error in report.errors()] == [
        f"a snapshot worker (process {pid} on there) was lost and may still send rows" for pid in (4711, 4712)
    ]
    for guard, (_, theirs) in zip(guards, pairs, strict=True):
        guard.close()
        theirs.close()


def test_an_executor_gets_no_name_of_a_service_of_this_machine() -> None:
    given = {"host": "db", "dbname": "shop", "passfile": "/p", "service": "shop", "servicefile": "/s"}
    info = SimpleNamespace(dsn_parameters=given, password="hunter2")
    dsn = reachable(cast(Connection, SimpleNamespace(info=info)))
    assert parse_dsn(dsn) == {"host": "db", "dbname": "shop", "password": "hunter2"}


def test_who_speaks_slowly_is_not_waited_for_again_and_again(
    door: WorkerListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bwtui.relay.snapshot.spark_connection._PATIENCE_SECONDS", 0.5)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    call = door.expect(Arrivals())
    with context.wrap_socket(socket.create_connection((call.host, call.port), SECONDS)) as stranger:
        stranger.settimeout(0.2)
        until = time.monotonic() + 3.0
        with contextlib.suppress(OSError):
            while time.monotonic() < until:
                stranger.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    assert stranger.recv(1) == b""
                    break
        assert time.monotonic() < until


def test_a_source_that_is_another_one_elsewhere_is_refused() -> None:
    for dsn in ("dbname=shop", "host=/run", "host=db,localhost", "host=db hostaddr=127.0.0.1"):
        with pytest.raises(RefusedError, match="would look for PostgreSQL on their own machine"):
            _refuse_local_source(dsn)
    _refuse_local_source("host=db.shop.example")


def test_a_worker_whose_sink_does_not_open_says_why() -> None:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(COMMAND, stdin=theirs.fileno(), stderr=subprocess.DEVNULL)
    theirs.close()
    kafka = (("security.protocol", "ssl"), ("ssl.ca.location", "/none"))
    settings = RelaySettings(postgres="host=127.0.0.1 port=1", kafka_config=kafka)
    end = NonBlockingChannel(ours)
    end.send(replace(BEGIN, settings=settings.to_json()))
    (message,) = eventually("a word", end.messages, 30)
    assert isinstance(message, WorkerFailed) and message.at_start
    end.close()
    assert process.wait(SECONDS) == 0
