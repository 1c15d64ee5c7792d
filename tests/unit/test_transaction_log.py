"""The relay's list of transactions: the newest, the largest, and the open one, with their details."""

import struct
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bwtui.model.delivery import DeliverySpan
from bwtui.model.lsn import format_lsn
from bwtui.model.service_views import RelayedTransaction, Transactions, look_from_json
from bwtui.pgoutput.frames import POSTGRES_EPOCH_US
from bwtui.relay.rows.batch import BATCH_ROWS
from bwtui.relay.state import transaction_log as module
from bwtui.relay.state.transaction_log import LARGEST, NEWEST, TransactionLog
from tests.faults.doubles import MemorySink
from tests.scripted_relay import ScriptedRelay, table

#: 2026-01-15 12:00:00 UTC.
NOON = 1_768_478_400.0
ORDERS, ITEMS = table(1, "orders", ["id", "body"]), table(2, "items", ["id", "body"])


class HeldSink(MemorySink):
    """Delivers nothing while it is held."""

    held = True

    def poll(self, timeout: float) -> None:
        if not self.held:
            super().poll(timeout)


class Relay(ScriptedRelay):
    """A relay whose transactions have the test's xids."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.held_sink = HeldSink()
        super().__init__(folder, record=False, sink=self.held_sink, **settings)
        self.announce(ORDERS)
        self.announce(ITEMS)

    def connect(self, start_lsn: int = 0) -> None:
        super().connect(start_lsn)
        self.acks._measure = self.report.acknowledged

    def transaction(self, xid: int, orders: int = 0, items: int = 0, moment: float = NOON) -> None:
        """Write a transaction; the rows of both tables alternate."""
        self.begin_as(xid, moment)
        for number in range(max(orders, items)):
            for relation, most in ((ORDERS, orders), (ITEMS, items)):
                if number < most:
                    self.insert(relation, [b"%d" % number, b"x"])
        self.commit()

    def begin_as(self, xid: int, moment: float = NOON) -> None:
        """Begin a transaction with a commit time in Unix seconds."""
        self._lsn += 10
        time = round(moment * 1e6) - POSTGRES_EPOCH_US
        self._frame(b"B" + struct.pack(">QqI", self._lsn, time, xid))

    def listed(self) -> Transactions:
        """Deliver the pending messages, and return the list."""
        self.held_sink.held = False
        self.sink.poll(0)
        self.acks.advance()
        return self.list_now()

    def list_now(self) -> Transactions:
        log = self.report.transaction_log
        log.tick(time.monotonic())
        return log.view(self.report.confirmed_lsn, self.report.transactions)


def by_xid(look: Transactions) -> dict[int, RelayedTransaction]:
    return {one.xid: one for one in look.transactions}


def test_each_has_rows_bytes_tables_and_the_time_until_it_was_acknowledged(tmp_path: Path) -> None:
    relay, now = Relay(tmp_path), time.time()
    # A table's first row needs its route, so the current batch is sent first.
    relay.transaction(699, orders=1, items=1)
    relay.transaction(700, orders=3, moment=now - 5)
    relay.transaction(701, orders=1, items=2, moment=now - 4)
    relay.play()
    before = by_xid(relay.list_now())
    assert {xid: one.acknowledged for xid, one in before.items()} == {699: False, 700: False, 701: False}
    look = relay.listed()
    found = by_xid(look)
    assert (look.total, look.newest, look.under_way, look.notes) == (3, 3, (), ())
    assert (found[700].rows, found[701].rows) == (3, 3)
    assert (found[700].tables, found[701].tables) == (
        {"public.orders": 0},
        {"public.orders": 0, "public.items": 0},
    )
    sent = [message for _, message in relay.sink.delivered]
    sizes = [len(message.key or b"") + len(message.value or b"") for message in sent]
    assert sum(one.bytes for one in found.values()) == sum(sizes)
    assert found[700].bytes == sum(sizes[2:5])
    for one, ago in ((found[700], 5), (found[701], 4)):
        assert one.acknowledged
        assert one.relayed_seconds is not None
        assert 0 <= one.relayed_seconds < 5
        assert one.commit_seconds == pytest.approx(ago, abs=3)
        assert one.commit_time == pytest.approx(now - ago, abs=0.001)
    assert found[700].commit_lsn == format_lsn(relay._lsn - 10)
    relay.close()


def test_a_transaction_of_many_batches_counts_the_messages_of_each_table(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    relay.transaction(1, items=1)
    relay.transaction(2, orders=3 * BATCH_ROWS, items=7)
    relay.transaction(3, orders=1)
    relay.play()
    found = by_xid(relay.listed())
    assert found[2].tables == {"public.orders": 3 * BATCH_ROWS, "public.items": 7}
    assert found[2].rows == 3 * BATCH_ROWS + 7
    assert (found[1].tables, found[3].tables) == ({"public.items": 0}, {"public.orders": 0})
    whole = sum(len(m.key or b"") + len(m.value or b"") for _, m in relay.sink.delivered)
    assert sum(one.bytes for one in found.values()) == whole
    relay.close()


def test_messages_are_counted_behind_those_of_transactions_before_it(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    relay.transaction(1, orders=1, items=1)
    relay.play()
    for xid, (orders, items) in {2: (7, 3), 3: (150, 1), 4: (0, 120), 5: (200, 0)}.items():
        relay.transaction(xid, orders=orders, items=items)
    relay.play()
    found = by_xid(relay.listed())
    assert found[3].tables == {"public.orders": 150, "public.items": 1}
    assert found[4].tables == {"public.items": 120}
    assert found[5].tables == {"public.orders": 200}
    relay.close()


def test_the_one_that_is_being_read_is_told_of_until_it_ends(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    relay.transaction(5, orders=2)
    relay.begin_as(6)
    for number in range(2 * BATCH_ROWS):
        relay.insert(ITEMS, [b"%d" % number, b"x"])
    relay.play()
    look = relay.listed()
    (one,) = look.under_way
    assert (one.xid, one.number, one.rows, one.acknowledged) == (6, 0, 2 * BATCH_ROWS, False)
    assert one.tables == {"public.items": 2 * BATCH_ROWS}
    assert one.bytes > 0
    assert [one.xid for one in look.transactions] == [5]
    relay.commit()
    relay.play()
    look = relay.listed()
    assert look.under_way == ()
    assert by_xid(look)[6].rows == 2 * BATCH_ROWS
    relay.begin_as(7)
    relay.insert(ITEMS, [b"1", b"x"])
    relay.play()
    assert relay.list_now().under_way
    relay.close()
    assert relay.list_now().under_way == ()


def test_of_the_one_that_is_being_read_the_largest_tables_are_named(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    relay.begin_as(6)
    partitions = [table(100 + number, f"p{number}", ["id"]) for number in range(30)]
    for number, partition in enumerate(partitions):
        relay.announce(partition)
        for _ in range(1 + number):
            relay.insert(partition, [b"1"])
    relay.play()
    (one,) = relay.listed().under_way
    assert one.tables == {f"public.p{number}": 1 + number for number in range(29, 9, -1)}
    assert (one.more_tables, one.more_messages) == (10, sum(range(1, 11)))
    relay.close()


def test_what_has_no_row_of_the_relays_tables_is_not_listed(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    relay.transaction(8)
    relay.transaction(9, orders=1)
    relay.play()
    look = relay.listed()
    assert (look.total, [one.xid for one in look.transactions]) == (2, [9])
    relay.close()


def test_what_was_noted_of_one_without_a_row_is_not_the_next_ones(tmp_path: Path) -> None:
    relay = Relay(tmp_path, exclude_tables=("items",))
    relay.transaction(1, orders=1)
    # Its table is looked up, for which the current batch is sent first, and is excluded.
    relay.transaction(2, items=1)
    relay.play()
    played = time.time()
    relay.transaction(3, orders=1)
    relay.play()
    found = by_xid(relay.listed())
    assert sorted(found) == [1, 3]
    assert found[3].tables == {"public.orders": 0}, "it is small, and all in one batch"
    assert found[3].received == pytest.approx(time.time(), abs=time.time() - played + 0.001)
    relay.close()


def test_one_without_a_message_does_not_wait_for_the_next_one_with_some(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    relay.begin_as(30)
    relay.truncate(ORDERS)
    relay.commit()
    relay.play()
    one = by_xid(relay.listed())[30]
    assert one.acknowledged
    assert one.relayed_seconds is not None
    relay.close()


def test_one_whose_commit_comes_after_its_rows_were_acknowledged_ends_with_that(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    relay.begin_as(31)
    relay.insert(ORDERS, [b"1", b"x"])
    relay.play()
    assert relay.listed().transactions == ()
    assert relay.acks.is_idle
    relay.commit()
    relay.play()
    assert by_xid(relay.listed())[31].relayed_seconds is not None
    relay.close()


def test_a_truncate_and_a_delete_without_a_message_count_as_rows(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    relay.begin_as(10)
    relay.truncate(ORDERS)
    relay.commit()
    relay.transaction(11, orders=1)
    relay.play()
    found = by_xid(relay.listed())
    assert (found[10].rows, found[10].bytes, found[10].tables) == (1, 0, {})
    assert found[10].acknowledged
    relay.close()


def test_xids_that_come_again_are_other_transactions(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    for xid in (2**32 - 1, 3, 2**32 - 1):
        relay.transaction(xid, orders=1)
    relay.play()
    look = relay.listed()
    assert [one.xid for one in look.transactions].count(2**32 - 1) == 2
    assert len({one.number for one in look.transactions}) == 3
    relay.close()


def test_one_that_is_read_again_stays_one_and_says_so(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    relay.transaction(20, orders=2)
    frames = list(relay.frames)
    relay.play()
    first = by_xid(relay.list_now())[20]
    # The session breaks before anything was acknowledged, and everything is sent again.
    relay.sink.discard(in_order=True)
    relay.connect()
    relay.frames.extend(frames)
    relay.play()
    (again,) = relay.listed().transactions
    assert (again.number, again.reads, again.rows, again.acknowledged) == (first.number, 2, 2, True)
    assert again.received == pytest.approx(first.received, abs=0.01)
    relay.close()


def test_the_newest_and_the_largest_are_kept_of_a_hundred_thousand(tmp_path: Path) -> None:
    log = TransactionLog()
    begun = time.monotonic()
    for number in range(100_000):
        log.note(note(number, rows=1))
        if number % 1_000 == 0:
            log.tick(begun + number / 10_000)
    log.note(note(100_000, rows=1_000_000))
    log.note_large(note(100_000, rows=1_000_000))
    for number in range(100_001, 100_001 + 2 * NEWEST):
        log.note(note(number, rows=1))
    log.tick(begun + 11)
    look = log.view(0, 7)
    assert len(look.transactions) <= NEWEST + 2 * LARGEST
    newest = sorted(look.transactions, key=lambda one: one.commit_time)[-NEWEST:]
    assert [one.xid for one in newest] == list(range(100_001 + NEWEST, 100_001 + 2 * NEWEST))
    assert max(look.transactions, key=lambda one: one.rows).xid == 100_000


def test_a_large_one_among_too_many_small_ones_is_listed_and_that_some_are_not_is_said() -> None:
    log = TransactionLog()
    large = note(1, rows=5_000)
    log.note(large)
    log.note_large(large)
    for number in range(2, module._MOST + 100):
        log.note(note(number, rows=1))
    log.tick(time.monotonic())
    look = log.view(0, 0)
    assert max(one.rows for one in look.transactions) == 5_000
    assert [one.xid for one in look.transactions].count(1) == 1
    assert "were not recorded" in look.notes[0]


def test_the_largest_are_forgotten_after_ten_minutes() -> None:
    log, now = TransactionLog(), time.monotonic()
    log.note(note(1, rows=9_000))
    for number in range(2, NEWEST + 2):
        log.note(note(number, rows=1))
    log.tick(now)
    assert max(one.rows for one in log.view(0, 0).transactions) == 9_000
    for minute in range(1, 12):
        for number in range(NEWEST):
            log.note(note(minute * 1_000 + number, rows=2))
        log.tick(now + 60 * minute)
    later = SimpleNamespace(monotonic=lambda: now + 60 * 11, time=time.time)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", later)
        assert max(one.rows for one in log.view(0, 0).transactions) == 2


def test_what_nobody_told_of_is_acknowledged_by_the_confirmed_lsn() -> None:
    log = TransactionLog()
    log.note(note(1, rows=1))
    log.tick(time.monotonic())
    (one,) = log.view(10**9, 1).transactions
    assert (one.acknowledged, one.relayed_seconds, one.commit_seconds) == (True, None, None)


def test_an_acknowledgement_of_before_counts_for_nothing_that_is_read_later() -> None:
    log, now = TransactionLog(), time.monotonic()
    span = DeliverySpan()
    span.lsn = 10**9
    log.acknowledged(span, now - 100)
    log.note(note(1, rows=1, received=now))
    log.tick(now)
    assert not log.view(0, 1).transactions[0].acknowledged
    log.acknowledged(span, now + 2.5)
    log.tick(now)
    assert log.view(0, 1).transactions[0].relayed_seconds == pytest.approx(2.5)


def test_of_thousands_of_tables_the_largest_are_named_and_the_others_counted() -> None:
    log = TransactionLog()
    tables = {f"public.p{number}": number for number in range(1, 5_001)}
    log.note((1_000, 1, 0, 20_000_000, 1, 1.0, tables))
    small = [table(number, f"p{number}", ["id"]) for number in range(25)]
    log.note((1_001, 2, 0, 25, 1, 1.0, small))
    log.tick(time.monotonic())
    found = by_xid(log.view(0, 2))
    assert found[1].tables == {f"public.p{number}": number for number in range(5_000, 4_980, -1)}
    assert (found[1].more_tables, found[1].more_messages) == (4_980, sum(range(1, 4_981)))
    assert found[2].tables == {f"public.p{number}": 0 for number in range(20)}
    assert (found[2].more_tables, found[2].more_messages) == (5, 0)


def test_what_the_next_server_lacks_is_given_up() -> None:
    log, now = TransactionLog(), time.monotonic()
    for number in (1, 2, 3):
        log.note(note(number, rows=1))
    log.tick(now)
    log.note(note(4, rows=1))
    log.go_back(1_002)
    # The other history has a different transaction there.
    log.note((1_002, 77, 0, 1, 10, 2.0, ORDERS))
    log.acknowledged(span_up_to(1_003), now)
    log.tick(now)
    found = by_xid(log.view(10**9, 5))
    assert {xid for xid, one in found.items() if one.is_given_up} == {2, 3, 4}
    assert {xid for xid, one in found.items() if one.acknowledged} == {1, 77}
    assert found[77].relayed_seconds is not None


def test_one_that_never_comes_again_holds_up_no_other() -> None:
    log, now = TransactionLog(), time.monotonic()
    log.note(note(5_000, rows=1))
    log.note(note(1, rows=1))
    log.acknowledged(span_up_to(2_000), now)
    log.tick(now)
    assert {one.xid: one.acknowledged for one in log.view(0, 2).transactions} == {5_000: False, 1: True}


def test_it_goes_through_the_socket_as_it_is() -> None:
    log = TransactionLog()
    log.note(note(1, rows=3))
    log.tick(time.monotonic())
    look = log.view(0, 1)
    assert look_from_json("transactions", asdict(look)) == look
    # The view has a time; a relay of another version may send additional fields.
    data = asdict(look) | {"unheard": 1}
    data["transactions"][0]["unheard"] = 2
    assert look_from_json("transactions", data) == look


def test_noting_and_asking_at_the_same_time_lose_nothing() -> None:
    log, stop = TransactionLog(), threading.Event()

    def ask() -> None:
        while not stop.is_set():
            log.tick(time.monotonic())
            log.view(0, 0)

    thread = threading.Thread(target=ask)
    thread.start()
    for number in range(20_000):
        log.note(note(number, rows=1))
    stop.set()
    thread.join()
    log.tick(time.monotonic())
    assert [one.xid for one in sorted(log.view(0, 0).transactions, key=lambda one: one.xid)][
        -NEWEST:
    ] == list(range(20_000 - NEWEST, 20_000))


def span_up_to(lsn: int) -> DeliverySpan:
    """Return a span up to this LSN."""
    span = DeliverySpan()
    span.lsn = lsn
    return span


def note(number: int, rows: int, received: float = 1.0) -> module._Note:
    """Return the note of one transaction of a table."""
    return (1_000 + number, number, number * 1_000_000, rows, rows * 10, received, ORDERS)
