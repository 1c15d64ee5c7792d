"""The changes around a position."""

import pytest

from bwtui.recording import playback as module
from bwtui.recording.playback import WindowBounds, window
from tests.recorded_shop import ORDERS, MemoryRecording, Tape, shop_recording


def positions(found: module.ChangeWindow) -> list[int]:
    return [change.position for change in found.changes]


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> MemoryRecording:
    monkeypatch.setattr(module, "SIZE", 10)
    return shop_recording()


def test_as_many_on_both_sides(recording: MemoryRecording) -> None:
    found = window(recording, 50, WindowBounds(0, recording.length))
    assert positions(found) == list(range(40, 60))
    assert (found.low, found.high) == (40, 60)
    assert found.covers(50, 10)
    assert found.covers(45, 5)
    assert not found.covers(45, 6)
    assert not found.covers(90, 1)


@pytest.mark.parametrize("position", [0, 1, 9, 10, 11, 130])
def test_ends(recording: MemoryRecording, position: int) -> None:
    stop = recording.length
    found = window(recording, min(position, stop), WindowBounds(0, stop))
    low, high = max(position - 10, 0), min(position + 10, stop)
    assert positions(found) == list(range(low, high))
    assert found.covers(min(position, stop), 10)


def test_bounds(recording: MemoryRecording) -> None:
    found = window(recording, 0, WindowBounds(20, 25))
    assert positions(found) == [20, 21, 22, 23, 24]
    assert found.covers(22, 100)
    assert positions(window(recording, 99, WindowBounds(20, 25))) == [20, 21, 22, 23, 24]


def test_only_what_matches(recording: MemoryRecording) -> None:
    all_of_them = [c.position for c in recording.changes() if c.operation == "delete"]
    found = window(recording, 60, WindowBounds(0, recording.length), lambda c: c.operation == "delete")
    assert positions(found) == all_of_them
    assert found.covers(60, 10)
    assert found.covers(0, 10)


def test_a_search_can_be_cancelled(recording: MemoryRecording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP", 5)
    told: list[int] = []
    found = window(
        recording,
        60,
        WindowBounds(0, recording.length),
        lambda c: False,
        lambda: True,
        lambda done, all: told.append(done),
    )
    assert found.cut
    assert told == [5]
    assert (found.low, found.high) == (60, 60)
    assert not found.covers(60, 1)


def test_large_rows_make_it_smaller() -> None:
    tape = Tape()
    tape.begin()
    for number in range(20):
        tape.add("insert", ORDERS, (b"%d" % number, b"x" * (3 << 20), b"1"))
    recording = MemoryRecording(tape)
    found = window(recording, 10, WindowBounds(0, 20))
    assert positions(found) == [9, 10]
    assert (found.low, found.high) == (9, 11)
    assert found.covers(10, 1)
