"""Messages in a recording under --exactly-once have an offset only once their transaction is committed."""

import resource
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from bwtui.errors import StateFailed
from bwtui.model.delivery import REFUSED
from bwtui.model.position import Position
from bwtui.recording.check import check
from bwtui.recording.folder import segments
from bwtui.recording.payloads import Transaction
from bwtui.recording.reader import open_recording
from bwtui.recording.segment_reader import DeliveryBook
from bwtui.relay.rows.journal_recorder import lacking
from bwtui.verify.journal_facts import read_facts
from tests.recorded_stream import Stream, table

TABLE = table(1, "orders")
POSITION = Position("7", "shop", "shop", 1, 1_500)


def told(folder: Path) -> tuple[Counter[str], list[tuple[int, int]]]:
    """Return the messages' states, and the identities of the changes."""
    assert check(folder).verdict == "clean"
    with closing(open_recording(folder)) as recording:
        changes = list(recording.changes())
    states: Counter[str] = Counter(message.state for change in changes for message in change.messages)
    return states, [(change.lsn, change.ordinal) for change in changes]


def snapshot(folder: Path) -> Stream:
    """A snapshot whose rows have all arrived."""
    stream = Stream(folder, {"exactly_once": True})
    for key in range(5):
        stream.row(TABLE, key, b"x")
    stream.flush()
    stream.deliver()
    return stream


def test_rows_of_a_snapshot_that_is_not_committed_are_nowhere(tmp_path: Path) -> None:
    stream = snapshot(tmp_path)
    stream.recorder.close()
    assert told(tmp_path)[0] == {"unknown": 5}


def test_rows_of_a_snapshot_that_is_committed_are_where_they_are(tmp_path: Path) -> None:
    stream = snapshot(tmp_path)
    stream.recorder.committed()
    stream.recorder.close()
    assert told(tmp_path)[0] == {"acknowledged": 5}


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """Limit the size of files to ``room`` bytes."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


@pytest.mark.parametrize("policy", ["stop", "stop-recording"])
def test_places_of_a_snapshot_that_find_no_room_end_the_recording(tmp_path: Path, policy: str) -> None:
    stream = Stream(tmp_path, {"exactly_once": True, "on_record_error": policy})
    for key in range(200):
        stream.row(TABLE, key, b"x")
    stream.flush()
    ending = pytest.raises(StateFailed, match="File too large") if policy == "stop" else nullcontext()
    with full_disk(100):
        stream.deliver()
        with ending:
            stream.recorder.committed()
            stream.recorder.settle()
        stream.recorder.begin_pass("stream", 1_000)
        stream.recorder.close()
    assert stream.recorder.status().state == ("failed" if policy == "stop" else "stopped")


def test_a_recording_whose_places_find_no_room_is_whole(tmp_path: Path) -> None:
    """Offsets wait in a separate file, so the rest of the recording is valid."""
    stream = Stream(tmp_path, {"exactly_once": True, "on_record_error": "stop-recording"})
    for key in range(200):
        stream.row(TABLE, key, b"x")
    stream.flush()
    with full_disk(100):
        stream.deliver()
    stream.recorder.settle()
    stream.report.confirmed_lsn = 5_000
    stream.recorder.close()
    (segment,) = segments(tmp_path)
    assert segment.is_finished
    assert told(tmp_path)[0] == {"unknown": 200}
    assert len(read_facts(tmp_path).gaps) == 1


def test_places_of_a_large_snapshot_are_in_several_segments(tmp_path: Path) -> None:
    stream = Stream(tmp_path, {"exactly_once": True, "segment_bytes": 2_000})
    for key in range(50):
        stream.row(TABLE, key, b"x")
        stream.flush()
    stream.deliver()
    before = len(segments(tmp_path))
    stream.recorder.committed()
    stream.recorder.close()
    assert len(segments(tmp_path)) > before + 1
    assert told(tmp_path)[0] == {"acknowledged": 50}


@pytest.mark.parametrize("first", [0, 40])
def test_of_a_large_snapshot_no_places_are_kept_but_those_that_are_asked_for(
    tmp_path: Path, first: int
) -> None:
    """All offsets are after the last row, in the order of the batches."""
    stream = Stream(tmp_path, {"exactly_once": True})
    for key in range(50):
        stream.row(TABLE, key, b"x")
        stream.flush()
    stream.deliver()
    stream.recorder.committed()
    stream.recorder.close()
    with closing(open_recording(tmp_path)) as recording:
        book = DeliveryBook(recording.segments)
        for batch in range(first, 50):
            book.read_for(batch)
            assert (batch, 0) in book.found
            # The batch itself, the next one, and the first request.
            assert min(book.found) == (first, 0)
            assert len(book.found) == len(book.noted) <= batch - first + 2


@pytest.mark.parametrize(
    ("exactly_once", "states"),
    [(True, {"unknown": 2, "refused": 1}), (False, {"acknowledged": 2, "refused": 1})],
)
def test_what_was_delivered_in_a_transaction_that_is_given_up_is_nowhere(
    tmp_path: Path, exactly_once: bool, states: dict[str, int]
) -> None:
    stream = Stream(tmp_path, {"exactly_once": exactly_once})
    stream.begin_pass()
    stream.begin()
    for key in range(3):
        stream.change("insert", TABLE, key, b"x")
    stream.flush()
    ((receipt,),) = stream._sent
    receipt.partitions, receipt.offsets = array("i", [0, REFUSED, 0]), array("q", [7, -1, 8])
    stream.recorder.take_unsettled([receipt])
    stream.recorder.close()
    assert told(tmp_path)[0] == states


def test_changes_behind_those_that_kafka_has_keep_their_numbers(tmp_path: Path) -> None:
    stream = Stream(tmp_path, {"exactly_once": True})
    stream.begin_pass()
    stream.recorder.resume(Transaction(1_010, 1_010_000, 501, 40))
    stream._current, stream._ordinal, stream._open = (1_010, 501), 40, []
    stream.change("insert", TABLE, 1, b"x")
    stream.change("insert", TABLE, 2, b"x")
    stream.commit()
    stream.begin()
    stream.change("insert", TABLE, 3, b"x")
    stream.commit()
    stream.stop()
    _, identities = told(tmp_path)
    assert identities[:2] == [(1_010, 41), (1_010, 42)]
    assert [ordinal for _, ordinal in identities] == [41, 42, 1]


@pytest.mark.parametrize(
    ("lsn", "ordinal", "changes", "until"),
    [
        (1_499, None, 3, 0),
        (1_500, None, 9, 0),
        # The rest of the transaction was relayed without the recording.
        (1_500, None, 10, 1_501),
        # An older relay did not count the changes.
        (1_500, None, None, 1_501),
        (1_500, 9, None, 0),
        (1_500, 10, None, 1_501),
        (1_501, None, 1, 1_502),
        (900, 3, None, 0),
    ],
)
def test_what_kafka_has_beyond_a_recording(
    lsn: int, ordinal: int | None, changes: int | None, until: int
) -> None:
    behind = Position("7", "shop", "shop", 1, lsn, ordinal, changes=changes)
    assert lacking(behind, (1_500, 9), 1_000) == until
    assert lacking(behind, (0, 0), 2_000) == 0
    assert lacking(Position("7", "shop", "shop"), (0, 0), 0) == 0


@pytest.mark.parametrize(("position", "gaps"), [(None, 0), (POSITION, 1)])
def test_what_was_relayed_without_the_recording_is_a_gap(tmp_path: Path, position: Any, gaps: int) -> None:
    stream = Stream(tmp_path, {"exactly_once": True})
    stream.begin_pass()
    stream.begin()
    stream.change("insert", TABLE, 1, b"x")
    stream.commit()
    stream.flush()
    stream.deliver()
    stream.wait_durable()
    stream.stop()
    stream.start()
    stream.recorder.begin_pass("stream", 1_000, position)
    stream.recorder.close()
    facts = read_facts(tmp_path)
    assert (len(facts.gaps), facts.exactly_once) == (gaps, {1, 2})


@pytest.mark.parametrize("anew", [False, True])
def test_a_gap_is_told_once(tmp_path: Path, anew: bool) -> None:
    """The next session may be of the same run or of a different one."""
    stream = Stream(tmp_path, {"exactly_once": True})
    stream.begin_pass()
    stream.begin()
    stream.change("insert", TABLE, 1, b"x")
    stream.stop()
    stream.start()
    for _ in range(3):
        stream.recorder.begin_pass("stream", 1_000, POSITION)
        if anew:
            stream.recorder.close()
            stream.start()
    stream.recorder.close()
    assert len(read_facts(tmp_path).gaps) == 1


def test_what_is_relayed_without_a_recording_that_was_given_up_is_told_at_its_end(tmp_path: Path) -> None:
    stream = Stream(tmp_path, {"exactly_once": True, "on_record_error": "stop-recording"})
    stream.begin_pass()
    with full_disk(100):
        stream.change("insert", TABLE, 1, b"x")
        stream.flush()
        already = [entry.message for entry in stream.report.errors()]
        for lsn in (1_500, 1_600):
            stream.recorder.begin_pass("stream", lsn, Position("7", "shop", "shop", 1, lsn))
    assert [entry.message for entry in stream.report.errors()] == already
    stream.report.confirmed_lsn = 1_700
    stream.recorder.close()
    assert len(read_facts(tmp_path).gaps) == 1
