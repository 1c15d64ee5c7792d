"""Workers of a snapshot: their tasks, messages and ends, and the order of their results."""

import random
import re
import socket
import subprocess
import threading
import time
from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bwtui.errors import ConnectionFailed, RowError
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.pgoutput.messages import Column, Relation
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.snapshot import worker_handle, worker_pool
from bwtui.relay.snapshot.worker import (
    EngineChannel,
    PieceCopier,
    ReadingPosition,
    WorkerRecorder,
)
from bwtui.relay.snapshot.worker_handle import LocalWorkerHandle
from bwtui.relay.snapshot.worker_pool import WORKER_BYTES, ReceiptOrder, tasks_for, workers_for
from bwtui.relay.snapshot.worker_protocol import (
    BlockingChannel,
    HeartbeatReply,
    NonBlockingChannel,
    Request,
    RowNumbersRequest,
    SerializedError,
    StartWorker,
)
from bwtui.relay.state.run_state import RunState
from bwtui.relay.state.transaction_log import TransactionLog
from bwtui.settings import RelaySettings
from bwtui.sink.destination import Message
from bwtui.source.snapshot import SnapshotTable, TableSize, page_conditions
from tests.relay_context import relay_context
from tests.waiting import eventually

MIB = 1 << 20
PAGE = 8192


def table(oid: int) -> SnapshotTable:
    relation = Relation(oid, "public", f"t{oid}", "d", (Column("id", 23, -1, True),))
    return SnapshotTable(relation, None, f"public.t{oid}", None)


def of_bytes(count: int, *, is_heap: bool = True) -> TableSize:
    return TableSize(count // PAGE, count, is_heap)


@pytest.mark.parametrize("pages", [2, 3, 7, 8, 1000, 4294967294])
@pytest.mark.parametrize("count", [2, 3, 7, 64])
def test_each_page_is_in_one_range_whatever_the_table_grows_to(pages: int, count: int) -> None:
    size = TableSize(pages, pages * PAGE, is_heap=True)
    found = page_conditions(size, -(-size.bytes // count), 140000)
    assert 1 < len(found) <= count
    begins = [int(re.match(r"ctid >= '\((\d+),0\)'", one)[1]) for one in found]  # type: ignore[index]
    ends = [int(end[1]) if (end := re.search(r"ctid < '\((\d+),0\)'", one)) else None for one in found]
    assert begins[0] == 0
    assert ends == [*begins[1:], None]
    assert begins == sorted(set(begins))


@pytest.mark.parametrize(
    ("size", "version"),
    [
        (of_bytes(0), 180000),
        (of_bytes(PAGE), 180000),
        (of_bytes(MIB), 180000),
        # One page, each of whose rows has large TOAST values.
        (TableSize(1, 1 << 40, is_heap=True), 180000),
        # Foreign tables, other access methods, and a version that reads all pages for each range.
        (of_bytes(1 << 40, is_heap=False), 180000),
        (of_bytes(1 << 40), 130000),
    ],
)
def test_what_can_not_be_parted_is_read_as_one(size: TableSize, version: int) -> None:
    assert page_conditions(size, MIB, version) == [""]


def test_large_tables_come_first_and_small_ones_together() -> None:
    sizes = {
        1: of_bytes(0),
        2: of_bytes(40 * MIB),
        3: of_bytes(3 * MIB),
        4: of_bytes(3 * MIB),
        5: of_bytes(0),
    }
    tasks = tasks_for([table(oid) for oid in sizes], sizes, 2, 180000)
    assert [task.names for task in tasks] == [*[["public.t2"]] * 5, [f"public.t{n}" for n in (3, 4, 1, 5)]]
    assert len({task.number for task in tasks}) == len(tasks)
    many = {oid: of_bytes(0) for oid in range(1, 302)}
    assert [len(task.tables) for task in tasks_for([table(n) for n in many], many, 4, 180000)] == [
        100
    ] * 3 + [1]
    assert not tasks_for([], {}, 2, 180000)


def test_a_worker_has_to_pay_unless_it_is_asked_for() -> None:
    by_itself, asked = RelaySettings(), RelaySettings(snapshot_workers=7)
    assert workers_for(by_itself, 8, {1: of_bytes(2 * WORKER_BYTES - PAGE)}) == 1
    assert workers_for(by_itself, 8, {1: of_bytes(WORKER_BYTES), 2: of_bytes(2 * WORKER_BYTES)}) == 3
    assert workers_for(by_itself, 2, {1: of_bytes(1 << 40)}) == 2
    assert workers_for(by_itself, 64, {1: of_bytes(1 << 40)}) == 3
    assert workers_for(asked, 1, {1: of_bytes(0)}) == 7


def test_words_come_whole_however_they_are_cut() -> None:
    ours, theirs = socket.socketpair()
    engine, worker = NonBlockingChannel(ours), BlockingChannel(theirs)
    large = RowNumbersRequest("x" * (4 << 20))
    engine.send(large)
    # This is more than the socket buffers: the rest is sent once the other end has read some.
    received: list[object] = []
    thread = threading.Thread(target=lambda: received.append(worker.receive()))
    thread.start()
    while thread.is_alive():
        engine.flush()
    assert received == [large]
    worker.send(HeartbeatReply())
    worker.send(RowNumbersRequest("t"))
    found: list[object] = []
    while len(found) < 2:
        found += engine.messages()
    assert found == [HeartbeatReply(), RowNumbersRequest("t")]
    theirs.sendall(b"\x08")
    assert engine.messages() == []
    worker._reader.close()
    theirs.close()
    assert engine.messages() == []
    assert engine.is_over
    # Nothing is sent to a closed end.
    engine.send(HeartbeatReply())
    engine.close()


def test_an_error_comes_over_as_what_it_is() -> None:
    class Particular(RowError):
        def __init__(self) -> None:
            super().__init__("a row", "a hint")

    fault = SerializedError.of(Particular())
    assert (fault.kind, fault.error.message, fault.error.hint) == (RowError, "a row", "a hint")
    assert isinstance(SerializedError.of(ConnectionFailed("gone", "")).error, ConnectionFailed)


@pytest.fixture
def receipts() -> list[Receipt]:
    return [Receipt(batch, section, 2) for batch in range(7, 27) for section in (0, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_all_are_written_once_and_none_before_an_earlier_one(receipts: list[Receipt], seed: int) -> None:
    written: list[Receipt] = []
    ledger = ReceiptOrder(written.extend)
    chance = random.Random(seed)
    left = list(receipts)
    under_way: list[Receipt] = []
    while left or under_way:
        if left and (not under_way or chance.random() < 0.5):
            ledger.expect([left[0]])
            under_way.append(left.pop(0))
        else:
            ledger.take([under_way.pop(chance.randrange(len(under_way)))])
    assert written == receipts


def test_they_are_written_as_soon_as_they_may_be(receipts: list[Receipt]) -> None:
    written: list[Receipt] = []
    ledger = ReceiptOrder(written.extend)
    ledger.expect(receipts)
    ledger.take(receipts[1:3])
    assert written == []
    ledger.take(receipts[:1])
    assert written == receipts[:3]


def test_no_more_wait_than_there_may(receipts: list[Receipt], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_MOST_UNSETTLED", 9)
    written: list[Receipt] = []
    ledger = ReceiptOrder(written.extend)
    ledger.expect(receipts)
    ledger.take(receipts[1:5])
    assert written == []
    ledger.take(receipts[6:7])
    assert written == [*receipts[1:5], receipts[6]]
    ledger.take(receipts[:1])
    assert written[-1] is receipts[0]


class _Unreachable(subprocess.Popen[bytes]):
    """A process that can't be killed, like one in an uninterruptible sleep."""

    def kill(self) -> None:
        """Do nothing."""


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> StartWorker:
    """The first message to a worker that only sleeps."""
    monkeypatch.setattr(worker_handle, "COMMAND", ("sleep", "600"))
    return BEGIN


@pytest.fixture
def unreachable(begin: StartWorker, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalWorkerHandle]:
    monkeypatch.setattr(subprocess, "Popen", _Unreachable)
    member = LocalWorkerHandle(begin)
    yield member
    member._process.send_signal(9)
    member._process.wait()


def test_one_that_is_killed_is_gone(begin: StartWorker) -> None:
    member = LocalWorkerHandle(begin)
    assert not member.has_ended
    assert member.kill() == "was killed by signal 9"
    assert member.has_ended
    assert member.kill() == "was killed by signal 9"


def test_one_that_ends_by_itself_says_how(begin: StartWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_handle, "COMMAND", ("true",))
    member = LocalWorkerHandle(begin)
    eventually("that it hangs up", lambda: member.poll() == [] and member.end.is_over)
    assert member.kill() == "ended"


def test_one_that_no_signal_reaches_is_waited_for_elsewhere(unreachable: LocalWorkerHandle) -> None:
    """The engine must not block here, because it has to serve other workers."""
    assert unreachable.kill() == "was lost"
    assert not unreachable.has_ended
    assert "was killed but has not ended" in unreachable.awaited_end_error().message
    unreachable._process.send_signal(9)
    eventually("its end", lambda: unreachable.has_ended)


BEGIN = StartWorker({}, b"", "1-1", 0, 0, 1, is_recorded=True)


class _Late(EngineChannel):
    """A channel to an engine that was stalled before it answered."""

    def __init__(self) -> None:
        super().__init__(cast(BlockingChannel, None))

    def request(self, message: Request[Any]) -> Any:
        self.stall()
        return [(0, 0, 1)]

    def stall(self) -> None:
        self._heard_at -= 60

    def answer_heartbeat(self) -> None:
        self._heard_at = time.monotonic()


def test_a_batch_that_the_engine_wrote_late_waits_for_its_word() -> None:
    """The engine has not confirmed since then that the snapshot is still its own."""
    line = _Late()
    recording = WorkerRecorder(line, ReadingPosition(), RunState().clock)
    recording.frames.append(b"1")
    route = cast(TableRoute, SimpleNamespace(messages=[(b"", b"1", 0, None)], positions=array("I", [0])))
    written = threading.Event()

    def write() -> None:
        recording.write_batch([route])
        written.set()

    threading.Thread(target=write, daemon=True).start()
    assert not written.wait(0.5)
    line.answer_heartbeat()
    assert written.wait(5)


class _StallingSink:
    """A sink that delivers other workers' messages while the engine is stalled, and then resumes it."""

    def __init__(self, line: _Late) -> None:
        self._line = line
        self._polls = 0
        self.sent_after = -1
        self._span: DeliverySpan | None = None

    def queued(self) -> int:
        return int(self._polls < 1)

    def answered(self) -> int:
        return 0

    def poll(self, seconds: float) -> None:
        self._polls += 1
        if self._polls == 1:
            self._line.stall()
        elif self._polls == 4:
            self._line.answer_heartbeat()
        if self._span is not None:
            self._span.pending = 0

    def send(self, topic: str, messages: Any, span: DeliverySpan, receipt: Any) -> None:
        self.sent_after, self._span = self._polls, span
        span.pending += len(messages)

    def take_failures(self) -> list[Any]:
        return []


def test_one_that_is_sent_again_waits_for_the_engine_too() -> None:
    line = _Late()
    sink = _StallingSink(line)
    report = SimpleNamespace(take_deliveries=lambda sink, acks: None, transaction_log=TransactionLog())
    policy = SimpleNamespace(undelivered=lambda failures: failures)
    context = relay_context(session=b"", report=report, sink=sink, policy=policy, stop_requested=bool)
    reading = PieceCopier(context.run, context.output, BEGIN, line, ReadingPosition())
    assert reading._alone("t", Message(b"k", b"v", 0, None), None) == (None, None)
    assert sink.sent_after == 4
