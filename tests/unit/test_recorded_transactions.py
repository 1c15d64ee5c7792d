"""The list of a recording's transactions, read from its indexes alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bwtui.pgoutput.messages import Relation
from bwtui.recording import playback as module
from bwtui.recording.change import Change
from bwtui.recording.playback import TransactionFold, contents
from bwtui.recording.reader import RecordingReader, open_recording
from bwtui.recording.view import RecordedTransaction
from tests.recorded_shop import shop_recording
from tests.recorded_stream import Stream, table

SHOP = Path(__file__).parents[2] / "recordings" / "shop"


@pytest.fixture(scope="module")
def shop() -> Iterator[RecordingReader]:
    """The recording in the repository."""
    recording = open_recording(SHOP)
    yield recording
    recording.close()


def simply(changes: list[Change]) -> list[tuple[int, int, int, int, int]]:
    """Return start, stop, xid, LSN and commit time of each transaction, computed the simple way."""
    found: list[tuple[int, int, int, int, int]] = []
    before: Change | None = None
    for change in changes:
        if change.xid:
            same = before is not None and (before.pass_number, before.xid, before.lsn) == (
                change.pass_number,
                change.xid,
                change.lsn,
            )
            if same:
                start, _, *rest = found[-1]
                found[-1] = (start, change.position + 1, *rest)  # type: ignore[assignment]
            else:
                found.append(
                    (change.position, change.position + 1, change.xid, change.lsn, change.commit_time)
                )
        before = change
    return found


def told(transactions: list[RecordedTransaction]) -> list[tuple[int, int, int, int, int]]:
    return [(one.start, one.stop, one.xid, one.lsn, one.commit_time) for one in transactions]


def test_the_index_says_what_the_changes_say(shop: RecordingReader) -> None:
    expected = simply(list(shop.changes()))
    assert len(expected) > 100
    found = list(shop.transactions(0, shop.length))
    assert told(found) == expected
    assert all(one.rows == one.stop - one.start for one in found)
    assert all(one.received <= one.confirmed for one in found if one.confirmed)
    assert sum(bool(one.confirmed) for one in found) > 0.9 * len(found)


def test_any_part_of_it_is_the_same(shop: RecordingReader) -> None:
    whole = list(shop.transactions(0, shop.length))
    for start in range(0, shop.length, 37):
        for stop in (start, start + 1, start + 50, shop.length):
            part = list(shop.transactions(start, stop))
            assert part == [one for one in whole if start <= one.start < stop]


def test_segments_passes_and_snapshots_are_crossed(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "r", {"segment_bytes": 4_000})
    stream_many(stream, table(1, "orders"))
    recording = open_recording(tmp_path / "r")
    changes = list(recording.changes())
    assert len(recording.segments) > 1
    assert told(list(recording.transactions(0, recording.length))) == simply(changes)
    recording.close()


def test_one_that_begins_at_the_end_of_a_segment_is_there_as_a_whole(tmp_path: Path) -> None:
    """A property test found that it was missing and that its changes were counted with the one before."""
    stream, orders = Stream(tmp_path / "r", {"segment_bytes": 300}), table(1, "orders")
    stream.begin_pass()
    stream.change("insert", orders, 1, b"one")
    stream.commit()
    stream.begin()
    stream.flush()
    stream.settle()
    stream.change("insert", orders, 2, b"two")
    stream.commit()
    stream.stop()
    recording = open_recording(tmp_path / "r")
    changes = list(recording.changes())
    assert [segment.changes for segment in recording.segments] == [1, 1]
    for start in (0, 1):
        found = told(list(recording.transactions(start, recording.length)))
        assert found == simply(changes)[start:] and len(found) == 2 - start
    recording.close()


def test_a_fold_lists_the_newest_the_largest_and_the_slowest(shop: RecordingReader) -> None:
    whole = list(shop.transactions(0, shop.length))
    fold = TransactionFold()
    for position in range(0, shop.length + 1, 53):
        assert fold.advance(shop, position)
    assert fold.advance(shop, shop.length)
    assert fold.count == len(whole)
    assert fold.under_way is None
    assert told(fold.listed())[-100:] == told(whole)[-100:]


def test_a_bounded_list_keeps_what_matters(shop: RecordingReader, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(shop.transactions(0, shop.length))
    for name, value in (("LARGEST", 2), ("LONGEST", 2)):
        monkeypatch.setattr(module, name, value)
    fold = TransactionFold()
    fold._newest = type(fold._newest)(maxlen=3)
    assert fold.advance(shop, shop.length)
    listed = fold.listed()
    assert len(listed) <= 7
    assert told(whole[-3:]) == told(listed)[-3:]
    assert max(one.rows for one in whole) in [one.rows for one in listed]
    longest = max(one.confirmed - one.received for one in whole if one.confirmed)
    assert longest in [one.confirmed - one.received for one in listed]


def test_what_has_not_ended_by_a_position_is_under_way_there() -> None:
    recording = shop_recording()
    one = next(one for one in recording.transactions(0, recording.length) if one.rows > 2)
    fold = TransactionFold()
    assert fold.advance(recording, one.start + 1)
    assert fold.under_way is not None
    assert fold.under_way.start == one.start
    assert one.start not in [each.start for each in fold.listed()]
    assert fold.advance(recording, one.stop)
    assert fold.under_way is None
    assert one.start in [each.start for each in fold.listed()]


def test_what_was_recorded_before_is_marked() -> None:
    recording = shop_recording()
    fold = TransactionFold()
    fold.advance(recording, recording.length)
    repeats = [one for one in fold.listed() if one.is_repeat]
    changes = list(recording.changes())
    assert [changes[one.start].is_repeat for one in repeats] == [True]


def test_reading_can_be_stopped_and_goes_on(shop: RecordingReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRANSACTION_STEP", 10)
    fold, seen = TransactionFold(), []
    assert not fold.advance(shop, shop.length, lambda: True, lambda done, total: seen.append((done, total)))
    assert fold.count == 10
    assert len(seen) == 1
    assert fold.advance(shop, shop.length)
    assert fold.count == len(list(shop.transactions(0, shop.length)))


def test_tables_and_bytes_come_from_the_changes(shop: RecordingReader) -> None:
    one = max(shop.transactions(0, shop.length), key=lambda one: one.rows)
    found = contents(shop, one, 10_000)
    changes = list(shop.changes(one.start, one.stop))
    assert found.read == one.rows
    assert found.bytes == sum(change.message_bytes for change in changes)
    assert set(found.tables) == {table for change in changes for table in change.tables}
    part = contents(shop, one, 1)
    assert (part.read, part.bytes) == (1, changes[0].message_bytes)


def test_of_a_large_recording_the_last_segments_are_looked_at(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "r", {"segment_bytes": 4_000})
    stream_many(stream, table(1, "orders"))
    recording = open_recording(tmp_path / "r")
    last = recording.segments[-1]
    assert recording.newest_transactions(recording.length, 10**9) == 0
    assert 0 < recording.newest_transactions(recording.length, 1) <= last.first_position
    assert recording.newest_transactions(1, 1) == 0
    recording.close()


def stream_many(stream: Stream, orders: Relation) -> None:
    """Record a snapshot, transactions of one and of several batches, a break, repeats, and empty ones."""
    for key in range(5):
        stream.row(orders, key, b"x")
    stream.flush()
    stream.begin_pass()
    for number in range(40):
        for key in range(number % 4):
            stream.change("insert", orders, key, b"x" * 200)
            if number % 5 == 0:
                # The transaction continues in the next batch.
                stream.flush()
        if not number % 4:
            stream.begin()
        stream.commit()
        if number % 3 == 0:
            stream.flush()
            stream.deliver()
            stream.wait_durable()
            stream.settle()
        if number == 20:
            stream.change("insert", orders, 1, b"torn")
            stream.flush()
            stream.repeat(3)
    # The last transaction is incomplete.
    stream.change("insert", orders, 1, b"open")
    stream.stop()
