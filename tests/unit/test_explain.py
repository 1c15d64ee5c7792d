"""Explain a key: all of its changes, including those that changed the key itself."""

from contextlib import closing
from pathlib import Path

import pytest

from bwtui.errors import DamagedRecording
from bwtui.recording import explain as module
from bwtui.recording.change import differences, key_text
from bwtui.recording.explain import KeyHistory, RowKey, explain, key_before, key_of, row_before
from bwtui.recording.reader import open_recording
from bwtui.recording.view import RecordingView
from tests.recorded_shop import AUDIT, ORDERS, PRODUCTS, MemoryRecording, Tape, shop_recording
from tests.recorded_stream import Stream, table


def story_of(recording: RecordingView, table: str, *values: bytes) -> KeyHistory:
    story = KeyHistory(RowKey(table, ("id",), values))
    explain(recording, story)
    return story


def test_every_change_of_a_key_in_order() -> None:
    recording = shop_recording()
    story = story_of(recording, "public.orders", b"9")
    assert [step.operation for step in story.steps] == ["insert", "update", "update"]
    assert [step.changed for step in story.steps] == ["", "status", "status"]
    assert [step.previous for step in story.steps] == [None, *(s.position for s in list(story.steps)[:2])]
    assert all(step.state == "acknowledged" and step.offset is not None for step in story.steps)
    assert (story.finished, story.read) == (True, recording.length)


def test_the_row_before_is_known_from_the_change_before() -> None:
    recording = shop_recording()
    step = story_of(recording, "public.orders", b"9").steps[-1]
    change = next(recording.changes(step.position, step.position + 1))
    assert differences(change)[1].mark == "unknown before"
    fields = {
        f.name: (f.before, f.after, f.mark) for f in differences(change, row_before(recording, step, change))
    }
    assert fields["status"] == ("paid", "packed", "changed")
    assert fields["id"] == ("9", "9", "same")


def test_a_change_of_the_key_belongs_to_both_keys() -> None:
    recording = shop_recording()
    old, new = (story_of(recording, "public.orders", key).steps for key in (b"3", b"900"))
    assert [(s.operation, s.renamed) for s in old] == [("snapshot", ""), ("update", "to")]
    assert [(s.operation, s.renamed) for s in new] == [("update", "from"), ("update", "")]
    assert old[-1].position == new[0].position
    assert old[-1].offset != new[0].offset, "the tombstone, and the row"
    change = next(recording.changes(new[0].position))
    assert str(key_before(change)) == "id=3"
    assert str(key_of(change)) == key_text(change) == "id=900"


def test_a_tombstone_that_was_put_in_belongs_to_its_key(tmp_path: Path) -> None:
    stream, orders = Stream(tmp_path), table(1, "orders")
    stream.begin_pass()
    stream.put(orders, [1, 2, 3], gone=[7])
    stream.put(orders, [3], gone=[2])
    stream.stop()
    with closing(open_recording(tmp_path)) as recording:
        found = {key: story_of(recording, "public.orders", key) for key in (b"1", b"2", b"7")}
    steps = {key: [step.operation for step in story.steps] for key, story in found.items()}
    # A key without sent rows has no known bytes.
    assert steps == {b"1": ["backfill"], b"2": ["backfill", "cleanup"], b"7": []}


def test_a_repeat_is_shown_and_takes_nothing_back() -> None:
    steps = story_of(shop_recording(), "public.orders", b"1").steps
    assert [(s.operation, s.is_repeat) for s in steps] == [
        ("snapshot", False),
        ("delete", False),
        ("delete", True),
    ]


def test_a_dropped_change_says_why_it_has_no_message() -> None:
    step = story_of(shop_recording(), "public.orders", b"4").steps[-1]
    assert (step.without, step.state, step.partition) == ("dropped", None, None)


def test_truncate_ends_every_row() -> None:
    tape = Tape()
    tape.begin()
    tape.add("insert", ORDERS, (b"1", b"new", b"1"))
    tape.add("truncate", PRODUCTS, tables=("public.products", "public.orders"), without="truncated")
    tape.add("insert", ORDERS, (b"1", b"paid", b"1"))
    steps = story_of(MemoryRecording(tape), "public.orders", b"1").steps
    assert [s.operation for s in steps] == ["insert", "truncate", "insert"]


def test_a_table_without_a_key_has_nothing_to_explain() -> None:
    change = next(c for c in shop_recording().changes() if c.relation is AUDIT)
    assert key_of(change) is None


def test_it_can_be_cancelled_and_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP", 10)
    told: list[int] = []
    story = KeyHistory(RowKey("public.orders", ("id",), (b"9",)))
    explain(shop_recording(), story, lambda: len(told) == 3, lambda done, total: told.append(done))
    assert told == [10, 20, 30, 30]
    assert not story.finished


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    story = story_of(shop_recording(), "public.orders", b"9")
    assert (len(story.steps), story.count) == (2, 3)
    assert [step.changed for step in story.steps] == ["status", "status"], "the last ones"


def test_a_damaged_recording_tells_where() -> None:
    recording = shop_recording()
    recording.damaged_at = 50
    story = KeyHistory(RowKey("public.orders", ("id",), (b"9",)))
    with pytest.raises(DamagedRecording, match="at byte"):
        explain(recording, story)
    assert story.steps, "what is whole is kept"
