"""The slot's memory: which states of the slot are resumed, and which are a gap that is refused."""

import os
from pathlib import Path

import pytest

from bwtui.errors import BwtuiError, RefusedError, SlotLost
from bwtui.relay.memory import SlotMemory
from bwtui.source.slot import SlotState

CONFIRMED = 0x1000
IDENTITY = ("7000000000000000001", "shop", "bottledwater")


def slot(confirmed: int, server: int = 0x9000) -> SlotState:
    """A slot that is confirmed up to ``confirmed``, of a server whose WAL ends at ``server``."""
    return SlotState(
        "bottledwater",
        "pgoutput",
        "logical",
        "shop",
        False,
        None,
        "reserved",
        None,
        0x10,
        confirmed,
        server,
        False,
    )


@pytest.fixture
def memory(tmp_path: Path) -> SlotMemory:
    """A memory that was written by an earlier run, and is read by this one."""
    SlotMemory(tmp_path / "relay", *IDENTITY).remember(CONFIRMED)
    return SlotMemory(tmp_path / "relay", *IDENTITY)


def test_it_is_kept(memory: SlotMemory) -> None:
    assert memory.last is not None
    assert memory.last.confirmed_lsn == CONFIRMED
    assert not memory.last.snapshot_unfinished


def test_only_its_owner_may_read_the_folder(memory: SlotMemory) -> None:
    assert memory.path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("confirmed", [CONFIRMED, CONFIRMED - 1, 1])
def test_a_slot_at_or_behind_it_is_resumed(memory: SlotMemory, confirmed: int) -> None:
    """It is written first, so a kill in between leaves the slot behind it."""
    assert memory.check(slot(confirmed)) is None


def test_a_slot_that_was_moved_is_refused(memory: SlotMemory) -> None:
    with pytest.raises(SlotLost, match="was moved to 0/1001 by someone else; this relay stood at 0/1000"):
        memory.check(slot(CONFIRMED + 1))


def test_a_slot_that_is_gone_is_refused(memory: SlotMemory) -> None:
    with pytest.raises(SlotLost, match="is gone") as raised:
        memory.check(None)
    assert raised.value.hint is not None
    assert "bwtui slots drop bottledwater" in raised.value.hint


def test_a_server_that_lost_its_latest_wal_is_refused(memory: SlotMemory) -> None:
    """A restored backup, or a standby that was promoted before it had everything."""
    with pytest.raises(SlotLost, match="the server's WAL ends at 0/FFF, before the confirmed 0/1000"):
        memory.check(slot(0x900, server=0xFFF))


def test_an_unknown_slot_is_resumed_with_a_note(tmp_path: Path) -> None:
    note = SlotMemory(tmp_path, *IDENTITY).check(slot(5))
    assert note == "slot bottledwater was made elsewhere; resuming from where it stands"


def test_no_slot_and_no_memory_is_a_beginning(tmp_path: Path) -> None:
    assert SlotMemory(tmp_path, *IDENTITY).check(None) is None


@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_memory_of_another_server_database_or_slot_counts_as_none(tmp_path: Path, at: int) -> None:
    SlotMemory(tmp_path, *IDENTITY).remember(CONFIRMED)
    identity = list(IDENTITY)
    if at < 2:
        identity[at] = "another"
    other = SlotMemory(tmp_path, *identity[:2], "another" if at == 2 else IDENTITY[2])
    assert other.last is None
    assert other.check(None) is None


def test_an_unfinished_snapshot_has_no_slot_and_is_taken_anew(tmp_path: Path) -> None:
    marks = {"orders": {0: 7, 1: 0}}
    SlotMemory(tmp_path, *IDENTITY).remember_snapshot(CONFIRMED, marks, b"first")
    memory = SlotMemory(tmp_path, *IDENTITY)
    assert memory.check(None) is None
    assert memory.unfinished_marks() == marks
    assert memory.unfinished_sessions() == [b"first"]
    memory.remember_snapshot(CONFIRMED + 1, marks, b"second")
    assert SlotMemory(tmp_path, *IDENTITY).unfinished_sessions() == [b"first", b"second"]


def test_a_kill_right_after_the_slot_was_made_is_a_finished_snapshot(tmp_path: Path) -> None:
    """The slot stands at the consistent point that the snapshot is remembered with."""
    SlotMemory(tmp_path, *IDENTITY).remember_snapshot(CONFIRMED, {}, b"first")
    memory = SlotMemory(tmp_path, *IDENTITY)
    assert memory.check(slot(CONFIRMED)) is None
    with pytest.raises(SlotLost):
        memory.check(slot(CONFIRMED + 1))


def test_a_finished_snapshot_leaves_no_marks(tmp_path: Path) -> None:
    memory = SlotMemory(tmp_path, *IDENTITY)
    memory.remember_snapshot(CONFIRMED, {"orders": {0: 7}}, b"first")
    memory.remember(CONFIRMED)
    assert SlotMemory(tmp_path, *IDENTITY).unfinished_marks() == {}


def test_a_slot_that_was_forgotten_is_taken_as_it_stands(memory: SlotMemory) -> None:
    memory.forget()
    assert memory.check(None) is None
    assert memory.check(slot(0x5000)) is not None
    memory.forget()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"slot": 1}', '{"confirmed_lsn": "x"}', "\xff"])
def test_a_damaged_file_is_told_and_not_taken_for_none(memory: SlotMemory, text: str) -> None:
    memory.path.write_text(text, encoding="latin-1")
    with pytest.raises(BwtuiError, match="can't be read") as raised:
        SlotMemory(memory.path.parent, *IDENTITY)
    assert raised.value.hint is not None


def test_it_is_durable_before_it_counts(memory: SlotMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file and then its folder are fsynced; when that fails, the old memory is still the whole truth."""

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BwtuiError, match="can't be written: No space left on device"):
        memory.remember(CONFIRMED + 1)
    assert memory.last is not None
    assert memory.last.confirmed_lsn == CONFIRMED
    monkeypatch.undo()
    again = SlotMemory(memory.path.parent, *IDENTITY).last
    assert again is not None
    assert again.confirmed_lsn == CONFIRMED


def test_the_same_lsn_is_not_written_again(memory: SlotMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("it was written again"))
    memory.remember(CONFIRMED)


def test_what_went_to_a_recording_alone_is_refused_until_it_is_accepted(tmp_path: Path) -> None:
    recording = SlotMemory(tmp_path, *IDENTITY, without_kafka=True)
    recording.remember_snapshot(CONFIRMED, {}, b"session")
    relay = SlotMemory(tmp_path, *IDENTITY)
    with pytest.raises(RefusedError, match=r"slot bottledwater was confirmed up to 0/1000 by 'bwtui record'"):
        relay.check_kafka(relay.last, accept=False)
    assert recording.check_kafka(recording.last, accept=False) is None
    note = relay.check_kafka(relay.last, accept=True)
    assert note is not None
    assert "up to 0/1000" in note
    relay.remember(CONFIRMED)
    again = SlotMemory(tmp_path, *IDENTITY)
    assert again.check_kafka(again.last, accept=False) is None


def test_a_recording_that_confirms_nothing_new_takes_nothing_from_kafka(tmp_path: Path) -> None:
    SlotMemory(tmp_path, *IDENTITY).remember(CONFIRMED)
    recording = SlotMemory(tmp_path, *IDENTITY, without_kafka=True)
    recording.remember(CONFIRMED)
    assert recording.last is not None
    assert not recording.last.without_kafka
    recording.remember(CONFIRMED + 1, changed=False)
    assert not recording.last.without_kafka
    recording.remember(CONFIRMED + 2)
    assert recording.last.without_kafka
    recording.remember(CONFIRMED + 2)
    assert recording.last.without_kafka
    recording.remember(CONFIRMED + 3, changed=False)
    assert recording.last.without_kafka
