"""Whatever the stream, the reader finds everything that the recorder wrote to the journal."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bwtui.recording.change import Change
from bwtui.recording.check import check
from bwtui.recording.journal import SegmentWriter
from bwtui.recording.reader import RecordingReader, open_recording
from bwtui.recording.recover import recover
from bwtui.recording.view import TableCounts
from tests.recorded_stream import Expected, Stream, table

TABLES = [table(1, "a"), table(2, "b", "f"), table(1, "a", version=1)]
OPERATIONS = ("insert", "update", "rename", "toast", "delete", "dropped", "truncate")
COUNTERS = {"snapshot": "snapshot_rows", "truncate": "truncates", "backfill": "backfill_rows"}
CHANGE = st.tuples(
    st.sampled_from(OPERATIONS),
    st.sampled_from(TABLES),
    st.integers(1, 5),
    st.one_of(st.none(), st.sampled_from([b"", b"body", b"x" * 300])),
)
PUT = st.tuples(
    st.just("put"),
    st.sampled_from(TABLES),
    st.lists(st.integers(1, 5), max_size=3),
    st.lists(st.integers(1, 5), max_size=3),
)
STEP = st.one_of(
    CHANGE,
    CHANGE,
    PUT,
    st.sampled_from(["commit", "flush", "deliver", "settle", "stop", "begin"]),
    st.integers(0, 2),
)
ROWS = st.lists(st.tuples(st.sampled_from(TABLES[:2]), st.integers(1, 9)), max_size=8)
PATIENT = settings(deadline=None, max_examples=int(os.environ.get("BWTUI_EXAMPLES", "20")))


@pytest.fixture(autouse=True, scope="module")
def no_disk() -> Iterator[None]:
    """Skip fsync, since these tests do not depend on durability."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentWriter, "sync", lambda writer: None)
        patch.setattr("bwtui.recording.journal.sync", lambda folder: None)
        patch.setattr("bwtui.recording.folder.sync", lambda folder: None)
        yield


def play(folder: Path, rows: Sequence[Any], steps: Sequence[Any], segment_bytes: int) -> Stream:
    """Record a snapshot of ``rows`` and then ``steps``; the last session is not closed."""
    stream = Stream(folder, {"segment_bytes": segment_bytes})
    for relation, key in sorted(rows, key=lambda row: row[0].oid):
        stream.row(relation, key, b"row")
    if rows:
        stream.cleanup(rows[0][0], [77, 78])
        stream.deliver()
    stream.begin_pass()
    for step in steps:
        if isinstance(step, tuple):
            stream.put(*step[1:]) if step[0] == "put" else stream.change(*step)
        elif isinstance(step, int):
            stream.repeat(step)
        elif step == "stop":
            stream.stop()
            stream.start()
            stream.begin_pass()
        elif step == "begin":
            stream.commit()
            stream.begin()
        else:
            getattr(stream, step)()
    stream.flush()
    return stream


@contextlib.contextmanager
def recorded(*what: Any) -> Iterator[tuple[Stream, RecordingReader]]:
    """Record, close, and open."""
    with tempfile.TemporaryDirectory() as home:
        stream = play(Path(home) / "recording", *what)
        stream.stop()
        with contextlib.closing(open_recording(stream.folder)) as recording:
            yield stream, recording


def as_expected(change: Change) -> Expected:
    names = [one.name for one in fields(Expected) if one.name not in ("messages", "pass_number")]
    messages = tuple((message.key, message.value) for message in change.messages)
    return Expected(
        **{name: getattr(change, name) for name in names}, messages=messages, pass_number=change.pass_number
    )


@PATIENT
@given(ROWS, st.lists(STEP, max_size=40), st.sampled_from([300, 3000, 1 << 20]))
def test_every_change_is_found_from_every_position(
    rows: list[Any], steps: list[Any], segment_bytes: int
) -> None:
    with recorded(rows, steps, segment_bytes) as (stream, recording):
        found = list(recording.changes())
        assert [as_expected(change) for change in found] == stream.changes
        assert [change.position for change in found] == list(range(recording.length))
        for position in range(0, recording.length + 1, 3):
            assert list(recording.changes(position)) == found[position:]
            assert list(recording.changes(position, position + 2)) == found[position : position + 2]


@PATIENT
@given(ROWS, st.lists(STEP, max_size=40), st.sampled_from([300, 3000, 1 << 20]))
def test_places_agree_with_the_changes(rows: list[Any], steps: list[Any], segment_bytes: int) -> None:
    with recorded(rows, steps, segment_bytes) as (_, recording):
        found = list(recording.changes())
        length = recording.length
        for lsn in {change.lsn + step for change in found for step in (-1, 0, 1)}:
            assert recording.at_lsn(lsn) == next((c.position for c in found if c.lsn >= lsn), length)
        for time in {change.received + step for change in found for step in (-1, 0, 1)}:
            assert recording.at_time(time) == next((c.position for c in found if c.received >= time), length)
        for change in found:
            assert recording.time_at(change.position) == change.received
            assert recording.transaction(change.position) == transaction(found, change)
        buckets = recording.timeline(7)
        assert sum(bucket.changes for bucket in buckets) == length
        for bucket in buckets:
            at = [c.position for c in found if bucket.start <= c.received < bucket.end]
            assert bucket.changes == len(at)
            assert not at or bucket.first_position == at[0]


def transaction(found: list[Change], change: Change) -> tuple[int, int]:
    same = (change.xid, change.pass_number)
    if not change.xid:
        return change.position, change.position + 1
    places = [other.position for other in found if (other.xid, other.pass_number) == same]
    return places[0], places[-1] + 1


@PATIENT
@given(ROWS, st.lists(STEP, max_size=40), st.sampled_from([300, 3000, 1 << 20]))
def test_transactions_are_found_by_their_xid(rows: list[Any], steps: list[Any], segment_bytes: int) -> None:
    with recorded(rows, steps, segment_bytes) as (_, recording):
        found = list(recording.changes())
        for xid in {change.xid for change in found if change.xid}:
            for start in (0, recording.length // 2):
                place = recording.of_xid(xid, start)
                begins = {transaction(found, change)[0] for change in found if change.xid == xid}
                assert place == min((at for at in begins if at >= start), default=None)


@PATIENT
@given(ROWS, st.lists(STEP, max_size=40), st.sampled_from([300, 3000, 1 << 20]))
def test_counts_agree_at_every_position(rows: list[Any], steps: list[Any], segment_bytes: int) -> None:
    with recorded(rows, steps, segment_bytes) as (_, recording):
        found = list(recording.changes())
        for position in range(recording.length + 1):
            counts = {name: one for name, one in numbers(recording.counts(position)).items() if any(one)}
            assert counts == model_counts(found[:position])


def numbers(counts: dict[str, TableCounts]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(getattr(one, counter) for counter in NUMBERS) for name, one in counts.items()}


NUMBERS = (
    "snapshot_rows",
    "backfill_rows",
    "inserts",
    "updates",
    "deletes",
    "truncates",
    "messages",
    "bytes",
    "dropped",
)


def model_counts(changes: list[Change]) -> dict[str, tuple[int, ...]]:
    found: dict[str, dict[str, int]] = {}
    for change in changes:
        counters = found.setdefault(change.table, dict.fromkeys(NUMBERS, 0))
        name = COUNTERS.get(change.operation, f"{change.operation}s")
        if name in counters:
            counters[name] += 1
        counters["messages"] += len(change.messages)
        counters["bytes"] += sum(len(m.key or b"") + len(m.value or b"") for m in change.messages)
        counters["dropped"] += change.without == "dropped"
    return {name: tuple(counters.values()) for name, counters in found.items()}


@PATIENT
@given(ROWS, st.lists(STEP, max_size=40), st.sampled_from([300, 3000, 1 << 20]))
def test_a_sound_recording_is_clean(rows: list[Any], steps: list[Any], segment_bytes: int) -> None:
    with recorded(rows, steps, segment_bytes) as (stream, recording):
        checked = check(stream.folder)
        assert checked.verdict == "clean", checked.damages
        assert checked.changes == recording.length
        assert checked.messages == sum(len(change.messages) for change in recording.changes())


@PATIENT
@given(ROWS, st.lists(STEP, max_size=30), st.sampled_from([300, 3000, 1 << 20]))
def test_a_recording_that_is_being_written_is_read_as_far_as_it_goes(
    rows: list[Any], steps: list[Any], segment_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as home:
        stream = play(Path(home) / "recording", rows, steps, segment_bytes)
        with contextlib.closing(open_recording(stream.folder)) as recording:
            assert [as_expected(change) for change in recording.changes()] == stream.changes
        checked = check(stream.folder)
        assert checked.verdict == "clean", checked.damages
        assert checked.is_being_written
        stream.recorder.close()


@PATIENT
@given(ROWS, st.lists(STEP, max_size=30), st.sampled_from([300, 3000, 1 << 20]), st.randoms())
def test_what_a_crash_leaves_is_recovered_up_to_the_torn_block(
    rows: list[Any], steps: list[Any], segment_bytes: int, chance: Any
) -> None:
    with tempfile.TemporaryDirectory() as home:
        stream = play(Path(home) / "recording", rows, steps, segment_bytes)
        last = max(stream.folder.glob("*.partial"))
        torn = last.read_bytes()
        stream.recorder.close()
        max(stream.folder.glob("*.bwj")).unlink()
        last.write_bytes(torn[: chance.randint(0, len(torn))])
        size = last.stat().st_size
        assert [one.kept + one.cut for one in recover(stream.folder)] == [size]
        if not list(stream.folder.glob("*.bwj")):
            return
        checked = check(stream.folder)
        assert checked.verdict == "clean", checked.damages
        with contextlib.closing(open_recording(stream.folder)) as recording:
            found = [as_expected(change) for change in recording.changes()]
        assert found == stream.changes[: len(found)]
