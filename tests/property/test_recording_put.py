"""With backfilled rows, everything derived from a recording equals the result of a simple model."""

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bwtui.pgoutput.messages import Field
from bwtui.recording.as_of import TableFold, pages
from bwtui.recording.change import Change
from bwtui.recording.playback import CountCache
from bwtui.recording.segment_reader import complete_until
from tests.property.test_recording_journal import CHANGE, PATIENT, PUT, ROWS, TABLES, no_disk, recorded
from tests.unit.test_recorded_transactions import simply, told

__all__ = ["no_disk"]

STEPS = st.lists(
    st.one_of(
        CHANGE,
        PUT,
        st.sampled_from(["commit", "flush", "deliver", "settle", "stop", "begin"]),
        st.integers(0, 2),
    ),
    max_size=40,
)
SIZES = st.sampled_from([300, 3000, 1 << 20])


def columns_of_the_first(steps: list[Any]) -> list[Any]:
    """Select the steps of tables whose columns do not change."""
    return [step for step in steps if not isinstance(step, tuple) or step[1] in TABLES[:2]]


def folded(changes: list[Change], table: str) -> dict[Field, tuple[Field, ...]]:
    """Fold a table the simple way: the last message of each key counts, even a backfill's tombstone."""
    found: dict[Field, tuple[Field, ...]] = {}
    snapshot = 0
    for change in changes:
        if change.operation == "snapshot" and change.pass_number != snapshot:
            snapshot = change.pass_number
            found.clear()
        if change.table != table or change.is_repeat:
            continue
        if change.operation == "cleanup":
            # The keys of these messages are the rows' keys.
            found.pop(change.messages[0].key, None)
        if change.operation == "truncate":
            found.clear()
        if change.before is not None:
            found.pop(change.before[0], None)
        if change.after is not None:
            found[change.after[0]] = change.after
    return found


@PATIENT
@given(ROWS, STEPS, SIZES)
def test_a_table_as_of_a_position(rows: list[Any], steps: list[Any], segment_bytes: int) -> None:
    with recorded(rows, columns_of_the_first(steps), segment_bytes) as (_, recording):
        changes = list(recording.changes())
        for relation in TABLES[:2]:
            with contextlib.closing(TableFold(relation.qualified_name)) as fold:
                for position in range(0, recording.length + 1, 4):
                    assert fold.advance(recording, position)
                    plain = folded(changes[:position], relation.qualified_name)
                    found = {row.fields[0]: row.fields for row in pages(fold)}
                    assert {key: row[:2] for key, row in found.items()} == {
                        key: row[:2] for key, row in plain.items()
                    }


@PATIENT
@given(ROWS, STEPS, SIZES)
def test_they_are_of_no_transaction(rows: list[Any], steps: list[Any], segment_bytes: int) -> None:
    with recorded(rows, steps, segment_bytes) as (_, recording):
        changes = list(recording.changes())
        whole = list(recording.transactions(0, recording.length))
        assert told(whole) == simply(changes)
        for start in range(0, recording.length, 5):
            part = list(recording.transactions(start, recording.length))
            assert part == [one for one in whole if start <= one.start]


@PATIENT
@given(ROWS, STEPS, SIZES)
def test_counts_moved_forth_and_back(rows: list[Any], steps: list[Any], segment_bytes: int) -> None:
    with recorded(rows, steps, segment_bytes) as (_, recording):
        tally = CountCache(recording)
        for position in (recording.length, *range(0, recording.length + 1, 3), recording.length // 2):
            counted = {name: one for name, one in tally.at(position).items() if one.messages or one.dropped}
            expected = recording.counts(position)
            for name, one in counted.items():
                assert one.backfill_rows == expected[name].backfill_rows
                assert (one.snapshot_rows, one.inserts) == (
                    expected[name].snapshot_rows,
                    expected[name].inserts,
                )


@PATIENT
@given(ROWS, STEPS, SIZES)
def test_a_transaction_behind_them_may_be_open(rows: list[Any], steps: list[Any], segment_bytes: int) -> None:
    """Every commit up to the reported LSN is complete, and nothing newer is."""
    with recorded(rows, steps, segment_bytes) as (stream, recording):
        whole = complete_until(recording.segments, recording.last_lsn)
        committed = {lsn for lsn, _, _ in stream.history}
        ended = {c.lsn for c in recording.changes() if c.lsn in committed or not c.in_transaction}
        assert whole in {0, *ended} or whole in committed
        assert all(lsn <= whole for lsn in ended)
