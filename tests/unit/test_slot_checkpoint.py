"""The slot checkpoint: which states of the slot are resumed, and which are refused as a gap."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, SlotLost, StateFailed
from bwtui.model.position import Position
from bwtui.relay.history import slot_checkpoint
from bwtui.relay.history.slot_checkpoint import (
    SlotCheckpointStore,
    discard_position,
    is_discarded,
    with_local_reader,
)
from bwtui.relay.process.lock import RelayLock
from bwtui.source.connection import Connection
from bwtui.source.raw_stream import ENDLESS, Forks, ServerIdentity, parse_history
from bwtui.source.slot import SlotInUse, SlotState

CONFIRMED = 0x1000
IDENTITY = ("7000000000000000001", "shop", "bottledwater")


def slot(confirmed: int) -> SlotState:
    """Return a slot that is confirmed up to ``confirmed``."""
    return SlotState(
        "bottledwater",
        "pgoutput",
        "shop",
        False,
        None,
        "reserved",
        None,
        0x10,
        confirmed,
        0x9000,
        False,
    )


#: The command in hints.
DROP = 'bwtui slots drop bottledwater -d "host=db dbname=shop"'


@pytest.fixture
def memory(tmp_path: Path) -> SlotCheckpointStore:
    """A checkpoint that an earlier run wrote and this one reads."""
    SlotCheckpointStore(tmp_path / "relay", *IDENTITY).remember(CONFIRMED, sent_lsn=CONFIRMED)
    return SlotCheckpointStore(tmp_path / "relay", *IDENTITY)


def test_it_is_kept(memory: SlotCheckpointStore) -> None:
    assert memory.last is not None
    assert memory.last.confirmed_lsn == CONFIRMED
    assert not memory.last.snapshot_unfinished


def test_only_its_owner_may_read_the_folder(memory: SlotCheckpointStore) -> None:
    assert memory.path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("confirmed", [CONFIRMED, CONFIRMED - 1, 1])
def test_a_slot_at_or_behind_it_is_resumed(memory: SlotCheckpointStore, confirmed: int) -> None:
    """The checkpoint is written first, so a kill in between leaves the slot before it."""
    assert memory.check(slot(confirmed)) is None


def test_a_slot_that_was_moved_is_refused(memory: SlotCheckpointStore) -> None:
    moved = "another consumer moved slot .* to 0/1001; .* up to 0/1000"
    with pytest.raises(SlotLost, match=moved) as raised:
        memory.check(slot(CONFIRMED + 1))
    assert str(raised.value.hint).startswith("if this relay ran on another host")


def test_a_slot_that_is_gone_is_refused(memory: SlotCheckpointStore) -> None:
    with pytest.raises(SlotLost, match="is missing") as raised:
        memory.check(None)
    assert raised.value.hint is not None
    assert "bwtui slots drop bottledwater" in raised.value.hint
    of_server = SlotCheckpointStore(memory.path.parent, *IDENTITY, drop=DROP)
    for in_transactions in (False, True):
        of_server.in_transactions = in_transactions
        with pytest.raises(SlotLost) as raised:
            of_server.check(None)
        assert f"'{DROP}'" in str(raised.value.hint)


def server(
    timeline: int = 1, forks: Forks | None = (), end: int = 0x9000, standby: bool = False
) -> ServerIdentity:
    """Return a server of the cluster, on ``timeline``."""
    return ServerIdentity(IDENTITY[0], timeline, forks, end, standby)


@pytest.fixture
def met(memory: SlotCheckpointStore) -> SlotCheckpointStore:
    """The checkpoint for a server on timeline 1 and for rows that were sent beyond the confirmed LSN."""
    memory.take_over(server(), slot(CONFIRMED), memory.common_end(server(), accept=False))
    memory.remember_sent(CONFIRMED + 0x10)
    return SlotCheckpointStore(memory.path.parent, *IDENTITY)


def test_a_server_that_has_what_was_sent_is_gone_on_with(met: SlotCheckpointStore) -> None:
    promoted = server(2, ((1, CONFIRMED + 0x10),))
    for known in (server(), server(end=CONFIRMED + 0x10), promoted):
        assert met.take_over(known, slot(0x900), met.common_end(known, accept=False)) is None
    assert met.last is not None
    assert (met.last.timeline, met.last.confirmed_lsn) == (2, CONFIRMED)
    # A later run that meets the same fork does not treat it as a new one.
    again = SlotCheckpointStore(met.path.parent, *IDENTITY)
    assert again.common_end(promoted, accept=False) == ENDLESS


def test_what_was_confirmed_past_the_fork_is_not_known_of_the_new_timeline(met: SlotCheckpointStore) -> None:
    """Rows end before the fork, and keepalives had confirmed more: a slot beyond it was moved."""
    met.remember(CONFIRMED + 0x800)
    promoted = server(2, ((1, CONFIRMED + 0x100),))
    common = met.common_end(promoted, accept=False)
    assert common == CONFIRMED + 0x100
    assert met.take_over(promoted, slot(CONFIRMED), common) is None
    with pytest.raises(SlotLost, match="moved"):
        met.check(slot(CONFIRMED + 0x200))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (server(2, ((1, 0xF00),)), "its timeline 2 forked from timeline 1 at 0/F00"),
        (server(3, ((1, 0xF00), (2, 0x8000))), "its timeline 3 forked from timeline 1 at 0/F00"),
        (server(end=0xF00), "its WAL ends at 0/F00, "),
        (server(2, None), "the history of its timeline 2 is unknown"),
    ],
)
def test_a_server_that_lacks_what_was_sent_is_refused(
    met: SlotCheckpointStore, other: ServerIdentity, told: str
) -> None:
    """A restored backup, or a standby that was promoted before it had received everything."""
    with pytest.raises(SlotLost, match=f"lacks changes from .* to 0/1010 .*: {told}") as raised:
        met.common_end(other, accept=False)
    assert "--accept-divergence" in str(raised.value.hint)
    note = met.take_over(other, slot(0x900), met.common_end(other, accept=True))
    assert note is not None
    assert told in note
    assert met.last is not None
    assert met.last.confirmed_lsn == 0x900
    assert met.common_end(other, accept=False) == ENDLESS


def test_two_standbys_that_were_promoted_to_the_same_number_are_told_apart(met: SlotCheckpointStore) -> None:
    first, second = server(2, ((1, CONFIRMED + 0x10),)), server(2, ((1, 0xE00),))
    met.take_over(first, slot(CONFIRMED), met.common_end(first, accept=False))
    with pytest.raises(SlotLost, match="from 0/E00 to 0/1010"):
        met.common_end(second, accept=False)
    third = server(3, ((1, CONFIRMED + 0x8),))
    with pytest.raises(SlotLost, match="from 0/1008 to 0/1010"):
        met.common_end(third, accept=False)


@pytest.mark.parametrize(
    ("now", "end"),
    [
        (server(2, ((1, 0x800),)), ENDLESS),
        (server(3, ((1, 0x800), (2, 0x2000))), 0x2000),
        # It is unknown where these diverged.
        (server(3, ((1, 0x800),)), 0),
        (server(1), 0),
    ],
)
def test_where_no_history_is_known_the_timeline_of_that_number_is_taken(
    now: ServerIdentity, end: int
) -> None:
    assert now.common_end(2, ()) == end


def test_what_kafka_says_is_remembered_with_its_history(tmp_path: Path) -> None:
    """The state folder is lost, and the server was promoted once."""
    memory = SlotCheckpointStore(tmp_path / "relay", *IDENTITY)
    promoted, other = server(2, ((1, 0x800),)), server(2, ((1, 0x700),))
    position = Position.from_json(Position(*IDENTITY, 2, CONFIRMED, forks=((1, 0x800),)).to_json())
    memory.recall(position, slot(0x800))
    assert memory.common_end(promoted, accept=False) == ENDLESS
    with pytest.raises(SlotLost, match="forked from timeline 2 at 0/700"):
        memory.common_end(other, accept=False)


@pytest.mark.parametrize(("stands", "is_noted"), [(0x900, False), (0x901, True)])
def test_where_the_state_is_lost_a_slot_beyond_the_position_is_told(
    tmp_path: Path, stands: int, is_noted: bool
) -> None:
    memory = SlotCheckpointStore(tmp_path / "relay", *IDENTITY)
    memory.in_transactions = True
    memory.recall(Position(*IDENTITY, lsn=0x880, passed=0x900, session="one"), slot(stands))
    assert (memory.check(slot(stands)) is not None) == is_noted
    with pytest.raises(SlotLost, match="moved"):
        memory.check(slot(0x1000))


def test_what_another_host_has_relayed_since_is_taken(memory: SlotCheckpointStore) -> None:
    """Hosts A, then B, then A again, whose checkpoint is outdated; it trusts only what it wrote itself."""
    memory.in_transactions = True
    position = Position(*IDENTITY, lsn=0x1800, passed=0x2000, session="other")
    memory.recall(position, slot(0x1F00))
    assert memory.check(slot(0x1F00)) is None
    memory.record_writer("mine")
    again = SlotCheckpointStore(memory.path.parent, *IDENTITY)
    again.recall(replace(position, lsn=0x2800, passed=0x3000, session="mine"), slot(0x2F00))
    assert again.last is not None
    assert (again.last.confirmed_lsn, again.last.sent()) == (0x2000, 0x2801)
    with pytest.raises(SlotLost, match="moved"):
        again.check(slot(0x2F00))


def test_with_exactly_once_hints_name_what_goes_with_it(memory: SlotCheckpointStore) -> None:
    memory.in_transactions = True
    with pytest.raises(SlotLost) as gone:
        memory.check(None)
    with pytest.raises(SlotLost) as lacking:
        memory.common_end(server(end=0x100), accept=False)
    for raised in (gone, lacking):
        assert "'bwtui slots drop bottledwater' on this host" in str(raised.value.hint)
        assert "--heal and --accept-divergence can't be combined with --exactly-once" in str(
            raised.value.hint
        )


def test_a_position_is_forgotten_until_another_run_goes_on(memory: SlotCheckpointStore) -> None:
    folder, position = memory.path.parent, Position(*IDENTITY, session="one")
    discard_position(folder, memory.last)
    assert not is_discarded(folder, position, DROP)
    memory.record_writer("one")
    discard_position(folder, memory.last)
    assert is_discarded(folder, position, DROP)
    assert not is_discarded(folder, replace(position, session="two"), DROP)
    assert not is_discarded(folder, replace(position, database="another"), DROP)


def test_a_standby_that_lags_is_waited_for(met: SlotCheckpointStore) -> None:
    with pytest.raises(ConnectionFailed, match="the standby has replayed up to 0/F00"):
        met.common_end(server(end=0xF00, standby=True), accept=False)


def test_another_cluster_is_refused(met: SlotCheckpointStore) -> None:
    with pytest.raises(RefusedError, match="a different server answered: its system identifier is 1, not 7"):
        met.common_end(ServerIdentity("1", 1, (), 0x9000, False), accept=True)


def test_a_history_file_is_read() -> None:
    text = "1\t0/A000\tno recovery target specified\n\n# a comment\n2\t1/B0\tbefore 2026-01-01\n"
    assert parse_history(text) == ((1, 0xA000), (2, 0x1000000B0))


def test_an_unknown_slot_is_resumed_with_a_note(tmp_path: Path) -> None:
    note = SlotCheckpointStore(tmp_path, *IDENTITY).check(slot(5))
    assert note is not None and "slot bottledwater was created or moved elsewhere" in note


def test_no_slot_and_no_memory_is_a_beginning(tmp_path: Path) -> None:
    assert SlotCheckpointStore(tmp_path, *IDENTITY).check(None) is None


@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_memory_of_another_server_database_or_slot_counts_as_none(tmp_path: Path, at: int) -> None:
    written = SlotCheckpointStore(tmp_path, *IDENTITY)
    written.remember(CONFIRMED)
    system, database, slot_name = (
        "another" if number == at else name for number, name in enumerate(IDENTITY)
    )
    # This holds even if a file has the name of this slot's.
    written.path.rename(tmp_path / f"slot-{slot_name}.json")
    other = SlotCheckpointStore(tmp_path, system, database, slot_name)
    assert other.last is None
    assert other.check(None) is None


def test_an_unfinished_snapshot_has_no_slot_and_is_taken_anew(tmp_path: Path) -> None:
    marks = {"orders": {0: 7, 1: 0}}
    SlotCheckpointStore(tmp_path, *IDENTITY).remember_snapshot(CONFIRMED, marks, b"first")
    memory = SlotCheckpointStore(tmp_path, *IDENTITY)
    assert memory.check(None) is None
    assert memory.unfinished_marks() == marks
    assert memory.unfinished_sessions() == [b"first"]
    memory.remember_snapshot(CONFIRMED + 1, marks, b"second")
    assert SlotCheckpointStore(tmp_path, *IDENTITY).unfinished_sessions() == [b"first", b"second"]


def test_a_kill_right_after_the_slot_was_made_is_a_finished_snapshot(tmp_path: Path) -> None:
    """The slot is at the consistent point that the checkpoint has for the snapshot."""
    SlotCheckpointStore(tmp_path, *IDENTITY).remember_snapshot(CONFIRMED, {}, b"first")
    memory = SlotCheckpointStore(tmp_path, *IDENTITY)
    assert memory.check(slot(CONFIRMED)) is None
    with pytest.raises(SlotLost):
        memory.check(slot(CONFIRMED + 1))


def test_a_finished_snapshot_leaves_no_marks(tmp_path: Path) -> None:
    memory = SlotCheckpointStore(tmp_path, *IDENTITY)
    memory.remember_snapshot(CONFIRMED, {"orders": {0: 7}}, b"first")
    memory.remember(CONFIRMED)
    assert SlotCheckpointStore(tmp_path, *IDENTITY).unfinished_marks() == {}


def test_a_slot_that_was_forgotten_is_taken_as_it_stands(memory: SlotCheckpointStore) -> None:
    memory.forget()
    assert memory.check(None) is None
    assert memory.check(slot(0x5000)) is not None
    memory.forget()
    memory.path.mkdir()
    with pytest.raises(StateFailed, match="can't be removed"):
        memory.forget()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"slot": 1}', '{"confirmed_lsn": "x"}', "\xff"])
def test_a_damaged_file_is_told_and_not_taken_for_none(memory: SlotCheckpointStore, text: str) -> None:
    memory.path.write_text(text, encoding="latin-1")
    with pytest.raises(BwtuiError, match="can't be read") as raised:
        SlotCheckpointStore(memory.path.parent, *IDENTITY)
    assert raised.value.hint is not None


def test_it_is_durable_before_it_counts(memory: SlotCheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file and then its folder are fsynced; if that fails, the old checkpoint is still valid."""

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BwtuiError, match="can't be written: No space left on device"):
        memory.remember(CONFIRMED + 1)
    assert memory.last is not None
    assert memory.last.confirmed_lsn == CONFIRMED
    monkeypatch.undo()
    again = SlotCheckpointStore(memory.path.parent, *IDENTITY).last
    assert again is not None
    assert again.confirmed_lsn == CONFIRMED


def test_the_same_lsn_is_not_written_again(
    memory: SlotCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("it was written again"))
    memory.remember(CONFIRMED)


def test_what_went_to_a_recording_alone_is_refused_until_it_is_accepted(tmp_path: Path) -> None:
    recording = SlotCheckpointStore(tmp_path, *IDENTITY, without_kafka=True)
    recording.remember_snapshot(CONFIRMED, {}, b"session")
    relay = SlotCheckpointStore(tmp_path, *IDENTITY)
    with pytest.raises(RefusedError, match=r"'bwtui record' confirmed slot bottledwater up to 0/1000"):
        relay.check_kafka(relay.last, accept=False)
    assert recording.check_kafka(recording.last, accept=False) is None
    note = relay.check_kafka(relay.last, accept=True)
    assert note is not None
    assert "up to 0/1000" in note
    relay.remember(CONFIRMED)
    again = SlotCheckpointStore(tmp_path, *IDENTITY)
    assert again.check_kafka(again.last, accept=False) is None


def test_a_recording_takes_no_changes_from_kafka_until_it_is_accepted(tmp_path: Path) -> None:
    SlotCheckpointStore(tmp_path, *IDENTITY).remember(CONFIRMED)
    recording = SlotCheckpointStore(tmp_path, *IDENTITY, without_kafka=True)
    with pytest.raises(RefusedError, match="slot bottledwater belongs to a relay that sends"):
        recording.check_kafka(recording.last, accept=False)
    assert recording.check_kafka(recording.last, accept=True) is None
    recording.remember(CONFIRMED + 1)
    assert recording.check_kafka(recording.last, accept=False) is None


def test_a_recording_that_confirms_nothing_new_takes_nothing_from_kafka(tmp_path: Path) -> None:
    SlotCheckpointStore(tmp_path, *IDENTITY).remember(CONFIRMED)
    recording = SlotCheckpointStore(tmp_path, *IDENTITY, without_kafka=True)

    def lacks_kafka(confirmed: int, *, changed: bool = True) -> bool:
        recording.remember(confirmed, changed=changed)
        assert recording.last is not None
        return recording.last.without_kafka

    assert not lacks_kafka(CONFIRMED)
    assert not lacks_kafka(CONFIRMED + 1, changed=False)
    assert lacks_kafka(CONFIRMED + 2)
    assert lacks_kafka(CONFIRMED + 2)
    assert lacks_kafka(CONFIRMED + 3, changed=False)


@pytest.mark.parametrize(
    ("promoted", "stands", "start"),
    [
        # The confirmed LSN is before the fork, after it, and before both of two forks.
        (server(2, ((1, 0x2000),)), 0x800, CONFIRMED),
        (server(2, ((1, 0xF00),)), 0x800, 0xF00),
        (server(3, ((1, 0x2000), (2, 0x3000))), 0x800, CONFIRMED),
        # On the same timeline it can't be distinguished from an older copy.
        (server(), 0x800, 0x800),
        # A server that forked earlier, or has lost its history, proves nothing.
        (server(2, None), 0x800, 0x800),
    ],
)
def test_a_slot_that_came_along_is_read_from_what_was_confirmed(
    met: SlotCheckpointStore, promoted: ServerIdentity, stands: int, start: int
) -> None:
    """The copy of a slot lags the confirmed LSN, but nothing must be sent again."""
    assert met.start_lsn(promoted, replace(slot(stands), synced=True, failover=True)) == start
    assert met.start_lsn(promoted, slot(stands)) == stands


@pytest.mark.parametrize(
    ("other", "is_promoted"),
    [
        (server(2, ((1, 0xF00),)), True),
        (server(3, ((1, 0xF00), (2, 0x2000))), True),
        # Older copies: of the server itself, of the promoted one before it caught up, of a former primary.
        (server(end=0xF00), False),
        (server(2, ((1, 0xF00),), end=0xE00), False),
        (server(2, ((1, 0xF00),), standby=True), False),
        # The history of a server without its history file is unknown.
        (server(2, None), False),
        (server(2, ((7, 0xF00),)), False),
    ],
)
def test_a_promotion_is_told_from_an_older_copy(
    met: SlotCheckpointStore, other: ServerIdentity, is_promoted: bool
) -> None:
    assert met.is_promoted(other) == is_promoted


def test_a_former_primary_and_an_older_copy_of_the_promoted_one_are_no_promotion(
    met: SlotCheckpointStore,
) -> None:
    """Their slots were synchronized once, and keep that flag forever."""
    promoted, synced = server(2, ((1, 0xF00),)), replace(slot(0x800), synced=True)
    met.take_over(promoted, synced, met.common_end(promoted, accept=True))
    met.remember(0x3000, sent_lsn=0x3000)
    assert met.is_promoted(server(3, ((1, 0xF00), (2, 0x2000))))
    for other in (server(2, ((1, 0xF00),), end=0x2000), server(), server(2, ((1, 0xE00),))):
        assert not met.is_promoted(other)
        with pytest.raises(SlotLost):
            met.common_end(other, accept=False)


def test_without_a_history_the_slot_is_read_on_from_where_it_stands(met: SlotCheckpointStore) -> None:
    """The flag of a synchronized slot does not show its progress: only its own LSN counts as confirmed."""
    unknown, synced = server(2, None), replace(slot(0x800), synced=True)
    note = met.take_over(unknown, synced, met.common_end(unknown, accept=True))
    assert note is not None and "--accept-divergence" in note
    assert met.last is not None and met.last.confirmed_lsn == 0x800
    assert met.check(synced) is None


def test_behind_a_promotion_what_was_confirmed_before_the_fork_stays_proven(met: SlotCheckpointStore) -> None:
    """A relay that is killed before it has confirmed anything there finds the same slot again."""
    promoted, synced = server(2, ((1, 0x2000),)), replace(slot(0x800), synced=True)
    met.take_over(promoted, synced, met.common_end(promoted, accept=False))
    assert met.start_lsn(promoted, synced) == CONFIRMED
    met.remember(0x3000)
    assert met.start_lsn(promoted, synced) == 0x2000
    assert met.start_lsn(promoted, replace(synced, confirmed_lsn=0x2800)) == 0x2800


def test_a_checkpoint_of_a_newer_version_is_kept(tmp_path: Path) -> None:
    """Removing it would accept the slot as it is, and no gap would be detected."""
    identity = ("7", "shop", "orders")
    memory = SlotCheckpointStore(tmp_path, *identity)
    memory.remember(0x77)
    memory.path.write_text(json.dumps(json.loads(memory.path.read_text()) | {"coverage": {}}))
    with pytest.raises(StateFailed, match="is from a newer version of bwtui: it has coverage") as raised:
        SlotCheckpointStore(tmp_path, *identity)
    assert raised.value.hint is not None and "remove" not in raised.value.hint


def test_a_reader_of_the_slot_on_this_machine_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(slot_checkpoint, "server_and_database", lambda _: IDENTITY[:2])
    connection, foreign = (
        Connection.__new__(Connection),
        SlotInUse(IDENTITY[2], "server process 7", "stop it"),
    )
    lock = RelayLock.acquire("shop")
    assert with_local_reader(foreign, connection) is foreign
    SlotCheckpointStore(tmp_path / "shop", *IDENTITY).remember(CONFIRMED)
    named = with_local_reader(foreign, connection)
    assert named.message == "slot bottledwater is in use by relay shop on this machine"
    assert named.hint == "run 'bwtui stop shop' first"
    assert with_local_reader(foreign, connection, own="shop") is foreign
    lock.release()
    assert with_local_reader(foreign, connection) is foreign
