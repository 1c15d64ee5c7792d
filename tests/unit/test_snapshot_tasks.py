"""What the workers of a snapshot read: ranges that leave nothing out, and as many processes as pay."""

import re
import socket
import threading

import pytest

from bwtui.errors import ConnectionFailed, RowError
from bwtui.pgoutput.messages import Column, Relation
from bwtui.relay.snapshot.workers.channel import BlockingChannel, NonBlockingChannel
from bwtui.relay.snapshot.workers.messages import HeartbeatReply, RowNumbersRequest, SerializedError
from bwtui.relay.snapshot.workers.snapshot_tasks import WORKER_BYTES, tasks_for, workers_for
from bwtui.settings import RelaySettings
from bwtui.source.chunks.page_ranges import TableSize, conditions
from bwtui.source.snapshot import SnapshotTable

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
    found = conditions(size, -(-size.bytes // count), 140000)
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
        # A page of which each row has large values elsewhere.
        (TableSize(1, 1 << 40, is_heap=True), 180000),
        # Foreign tables, other access methods; and a version that reads all pages for each range.
        (of_bytes(1 << 40, is_heap=False), 180000),
        (of_bytes(1 << 40), 130000),
    ],
)
def test_what_can_not_be_parted_is_read_as_one(size: TableSize, version: int) -> None:
    assert conditions(size, MIB, version) == [""]


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
    # More than the socket holds: the rest goes when the other end has taken some.
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
    # Who is gone is told nothing more.
    engine.send(HeartbeatReply())
    engine.close()


def test_an_error_comes_over_as_what_it_is() -> None:
    class Particular(RowError):
        def __init__(self) -> None:
            super().__init__("a row", "a hint")

    fault = SerializedError.of(Particular())
    assert (fault.kind, fault.error.message, fault.error.hint) == (RowError, "a row", "a hint")
    assert isinstance(SerializedError.of(ConnectionFailed("gone", "")).error, ConnectionFailed)
