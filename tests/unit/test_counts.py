"""Counts as of a moving position."""

import random
from dataclasses import replace

import pytest

from bwtui.recording import playback as module
from bwtui.recording.playback import CountCache
from bwtui.recording.view import TableCounts
from tests.recorded_shop import shop_recording


def plain(counts: dict[str, TableCounts]) -> dict[str, TableCounts]:
    """Remove counts that only the recording knows, and tables without changes."""
    bare = {
        n: replace(c, key_schema_id=None, value_schema_id=None, topic="", bytes=0) for n, c in counts.items()
    }
    return {n: c for n, c in bare.items() if c != TableCounts(key_columns=c.key_columns)}


def test_wherever_it_goes_it_counts_what_the_recording_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEAR", 20)
    recording = shop_recording()
    tally = CountCache(recording)
    position, dice = 0, random.Random(7)
    for _ in range(300):
        position = min(max(position + dice.choice((1, -1, 5, -7, 19, 60, -40)), 0), recording.length)
        assert plain(tally.at(position)) == plain(recording.counts(position))


def test_a_step_back_shows_nothing_of_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = shop_recording()
    expected = CountCache(recording)
    forward = {position: expected.at(position) for position in range(1, recording.length + 1)}
    monkeypatch.setattr(module, "NEAR", 30)
    tally = CountCache(recording)
    tally.at(recording.length)
    for position in range(recording.length - 1, 0, -1):
        shown = {name: (c.topic, c.value_schema_id, c.key_columns) for name, c in tally.at(position).items()}
        then = {name: (c.topic, c.value_schema_id, c.key_columns) for name, c in forward[position].items()}
        assert shown == then, position


def test_a_step_reads_only_what_lies_between() -> None:
    recording = shop_recording()
    tally = CountCache(recording)
    tally.at(100)
    before = recording.read
    tally.at(103)
    assert recording.read - before == 3
    tally.at(102)
    assert recording.read - before == 5
