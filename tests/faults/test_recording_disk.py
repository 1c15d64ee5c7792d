"""A full disk is shown and loses nothing; unusable recording folders are rejected."""

import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bwtui.errors import DamagedRecording, RefusedError, StateFailed
from bwtui.recording.info import info
from bwtui.recording.recover import recover
from bwtui.recording.resume import continue_in
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.recordings import (
    Witness,
    assert_everything_committed,
    assert_topics_agree,
    first_stream_lsn,
    opened,
    recover_and_check,
)
from tests.faults.records import assert_equal
from tests.faults.relays import RecordingOnly, Relay, execute
from tests.faults.writer import ACCOUNTS, TABLES, create_tables
from tests.recorded_stream import SOURCE, Stream, table

ROWS = 50
ROOM = 30_000
#: Rows that do not fit.
MANY = 3_000

NewRelay = Callable[..., Relay]


def fill_disk(relay: Relay, folder: Path) -> tuple[int, int]:
    """Limit the size of the file that the relay writes; return the previous limit."""
    (segment,) = folder.glob("*.partial")
    limit = segment.stat().st_size + ROOM
    before = resource.prlimit(relay.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(relay.pid, resource.RLIMIT_FSIZE, (limit, before[1]))
    return before


def write_much(database: str, first: int) -> None:
    """Commit more than fits, in some transactions."""
    for start in range(first, first + 1_000, 200):
        execute(
            database,
            "insert into accounts select n, n, repeat('x', 100)"
            f" from generate_series({start}, {start + 199}) n",
        )


def test_stop_loses_nothing(
    services: ServiceAddresses, database: str, new_relay: NewRelay, tmp_path: Path
) -> None:
    folder = tmp_path / "recording"
    create_tables(database, ROWS)
    relay = new_relay("--record", str(folder))
    witness = Witness(database, relay.name)
    relay.start()
    relay.wait_streaming()
    fill_disk(relay, folder)
    write_much(database, 1_000)
    assert relay.join() == 2
    words = relay.last_words()
    assert f"error: the recording in {folder} can't be written: File too large" in words
    assert "hint: free disk space" in words
    status = relay.last_status()
    assert status.state == "failed"
    assert any("can't be written" in error.message for error in status.errors)
    recovered, _ = recover_and_check(folder)
    with opened(folder) as recording:
        reached = max(segment.foot["reached"] for segment in recording.segments)
    slot = relay.slot_lsn()
    assert slot is not None and slot <= reached
    assert [one.reason for one in recovered] == ["all blocks are intact"]
    relay.run()
    with opened(folder) as recording:
        assert assert_everything_committed(recording, witness) == 1_000
        assert_topics_agree(services, recording, [table.topic(relay.name) for table in TABLES])
    assert_equal(services, database, TABLES, relay.name)
    assert info(folder).gaps == []


def test_stop_recording_goes_on_and_tells(
    services: ServiceAddresses, database: str, new_relay: NewRelay, tmp_path: Path
) -> None:
    folder = tmp_path / "recording"
    create_tables(database, ROWS)
    relay = new_relay("--record", str(folder), "--on-record-error", "stop-recording")
    witness = Witness(database, relay.name)
    relay.start()
    relay.wait_streaming()
    fill_disk(relay, folder)
    write_much(database, 1_000)
    status = relay.wait_caught_up()
    assert status.recording is not None
    assert status.recording.state == "stopped"
    told = [error for error in status.errors if error.kind == "recording"]
    assert len(told) == 1
    assert "can't be written: File too large" in told[0].message
    assert told[0].hint is not None and "without recording" in told[0].hint
    relay.stop()
    assert_equal(services, database, TABLES, relay.name)
    execute(database, "insert into accounts values (900000, 1, 'behind the gap')")
    relay.run()
    recover_and_check(folder)
    (gap,) = info(folder).gaps
    with opened(folder) as recording:
        recorded = {(change.lsn, change.ordinal) for change in recording.changes()}
        lacking = witness.committed(first_stream_lsn(recording)).keys() - recorded
        assert lacking
        assert all(gap.from_lsn < lsn <= gap.to_lsn for lsn, _ in lacking)
        last = list(recording.changes())[-1]
        assert last.key == (b"900000",)
        assert not last.is_repeat
        assert gap.to_lsn <= last.lsn
        assert any("lacks changes relayed" in error.message for error in recording.errors(recording.length))


def test_a_recording_that_was_given_up_says_so_when_there_is_room_again(
    services: ServiceAddresses, database: str, new_relay: NewRelay, tmp_path: Path
) -> None:
    folder = tmp_path / "recording"
    create_tables(database, ROWS)
    relay = new_relay("--record", str(folder), "--on-record-error", "stop-recording")
    witness = Witness(database, relay.name)
    relay.start()
    relay.wait_streaming()
    limit = fill_disk(relay, folder)
    # One transaction of many batches: the recording ends within it.
    execute(database, f"insert into accounts select n, n, 'x' from generate_series(1000, {1000 + MANY}) n")
    relay.wait_caught_up()
    resource.prlimit(relay.pid, resource.RLIMIT_FSIZE, limit)
    relay.stop()
    _, checked = recover_and_check(folder)
    assert checked.changes
    told = info(folder)
    (gap,) = told.gaps
    assert told.state == "finished"
    assert gap.to_lsn == relay.slot_lsn()
    with opened(folder) as recording:
        recorded = {(change.lsn, change.ordinal) for change in recording.changes()}
        lacking = witness.committed(first_stream_lsn(recording)).keys() - recorded
        assert lacking
        assert all(gap.from_lsn < lsn <= gap.to_lsn for lsn, _ in lacking)
        messages = [error.message for error in recording.errors(recording.length)]
    assert any("can't be written: File too large" in message for message in messages)
    assert any("lacks changes relayed" in message for message in messages)
    execute(database, "insert into accounts values (900000, 1, 'behind the gap')")
    relay.run()
    recover_and_check(folder)
    assert info(folder).gaps == [gap], "it is told once"
    assert_equal(services, database, TABLES, relay.name)


def test_a_recording_that_is_all_there_is_is_never_gone_on_without(
    database: str, new_relay: NewRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "recording"
    create_tables(database, ROWS)
    relay = new_relay("-o", str(folder), kind=RecordingOnly)
    relay.start("--on-record-error", "stop-recording")
    assert relay.join() == 2
    assert "'bwtui record' only writes the recording, so it must stop when that fails" in relay.last_words()
    monkeypatch.setenv("BWTUI_ON_RECORD_ERROR", "stop-recording")
    relay.start()
    assert relay.join() == 2
    assert "'bwtui record' only writes the recording" in relay.last_words()
    assert not folder.exists()
    assert relay.slot_lsn() is None


def test_the_policy_of_a_relay_with_kafka_does_not_hold_without(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "recording", {"record_only": True, "on_record_error": "stop-recording"})
    stream.begin_pass()
    stream.change("insert", table(1, "a"), 1, b"body")
    stream.commit()
    stream.recorder._journal.failure = OSError(28, "No space left on device")
    with pytest.raises(StateFailed, match="No space left on device") as raised:
        stream.flush()
    assert stream.recorder.durable_lsn < stream.lsn
    assert raised.value.hint == "free disk space, and start the relay again"
    stream.recorder.close()


def test_a_record_stops_on_a_full_disk_and_loses_nothing(
    database: str, new_relay: NewRelay, tmp_path: Path
) -> None:
    folder = tmp_path / "recording"
    create_tables(database, ROWS)
    relay = new_relay("-o", str(folder), kind=RecordingOnly)
    witness = Witness(database, relay.name)
    relay.start()
    relay.wait_streaming()
    fill_disk(relay, folder)
    write_much(database, 1_000)
    assert relay.join() == 2
    assert "hint: free disk space, and start the relay again" in relay.last_words()
    recover_and_check(folder)
    relay.run()
    with opened(folder) as recording:
        assert assert_everything_committed(recording, witness) == 1_000
    assert info(folder).gaps == []


@pytest.mark.parametrize("how", ["moved", "removed"])
def test_a_folder_that_is_gone_is_not_recorded_into(
    database: str, new_relay: NewRelay, tmp_path: Path, how: str
) -> None:
    folder, elsewhere = tmp_path / "recording", tmp_path / "elsewhere"
    create_tables(database, ROWS)
    relay = new_relay("-o", str(folder), kind=RecordingOnly)
    witness = Witness(database, relay.name)
    relay.start()
    relay.wait_streaming()
    relay.wait_caught_up()
    folder.rename(elsewhere)
    if how == "removed":
        shutil.rmtree(elsewhere)
    behind = execute(database, "insert into accounts values (900000, 1, 'nowhere')")
    assert relay.join() == 2
    words = relay.last_words()
    assert f"error: the recording in {folder} can't be written: the folder was moved or removed" in words
    assert "hint: restore it, or record into a different folder" in words
    confirmed = relay.slot_lsn()
    assert confirmed is not None
    assert confirmed < behind
    if how == "moved":
        elsewhere.rename(folder)
        relay.run()
        with opened(folder) as recording:
            assert assert_everything_committed(recording, witness) == 1


def test_a_disk_that_is_full_in_the_snapshot_leaves_no_slot(
    services: ServiceAddresses, database: str, new_relay: NewRelay, tmp_path: Path
) -> None:
    folder = tmp_path / "recording"
    create_tables(database, 20_000)
    relay = new_relay("--record", str(folder))
    relay.start(limit=ROOM)
    assert relay.join() == 2
    assert "can't be written: File too large" in relay.last_words()
    assert relay.slot_lsn() is None
    relay.run()
    recover_and_check(folder)
    with opened(folder) as recording:
        rows = [c for c in recording.changes() if c.operation == "snapshot" and c.table == ACCOUNTS.full_name]
        assert sum(change.lsn == rows[-1].lsn for change in rows) == 20_000
    assert_equal(services, database, TABLES, relay.name)


@pytest.mark.parametrize("which", ["system_identifier", "database", "slot", "output_format"])
def test_another_ones_recording_is_refused_and_left_alone(tmp_path: Path, which: str) -> None:
    folder = tmp_path / "recording"
    Stream(folder).stop()
    torn = folder / "00000002.partial"
    torn.write_bytes(b"torn")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(RefusedError, match=f"has a different {which.replace('_', ' ')}: .*, not other"):
        continue_in(folder, {**SOURCE, which: "other"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "letter.txt").write_text("dear")
    with pytest.raises(RefusedError, match=r"contains files that are not part of a recording \(letter.txt\)"):
        continue_in(folder, SOURCE)
    assert [path.name for path in folder.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("place", ["a file", "below a file", "nowhere"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, place: str) -> None:
    file = tmp_path / "file"
    file.touch()
    places = {"a file": file, "below a file": file / "deep", "nowhere": Path("/proc/self/recording/deep")}
    folder = places[place]
    with pytest.raises(StateFailed, match=rf"the recording's folder {folder} can't be written: ") as raised:
        continue_in(folder, SOURCE)
    assert "\n" not in raised.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "recording")
    with pytest.raises(RefusedError, match="another process is writing the recording"):
        continue_in(stream.folder, SOURCE)
    stream.stop()
    continue_in(stream.folder, SOURCE).release()


def test_a_first_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bwtui.recording.journal.SegmentWriter._write", refuse)
    with pytest.raises(StateFailed, match="can't be written: No space left on device"):
        Stream(tmp_path / "new" / "recording")
    assert not list((tmp_path / "new" / "recording").glob("0*"))


@pytest.mark.parametrize("force", [False, True])
def test_damage_in_what_was_synced_is_not_cut_off_unasked(tmp_path: Path, force: bool) -> None:
    stream = Stream(tmp_path / "recording")
    stream.begin_pass()
    for _ in range(3):
        stream.change("insert", table(1, "a"), 1, b"body")
        stream.commit()
        stream.flush()
        stream.recorder._journal._synced_at = 0
        stream.recorder.reach(stream.lsn)
        stream.recorder._journal._synced.wait()
    (path,) = stream.folder.glob("*.partial")
    data = bytearray(path.read_bytes())
    stream.recorder.close()
    for finished in stream.folder.glob("*.bwj"):
        finished.unlink()
    data[data.find(b"body")] ^= 1
    path.write_bytes(data)
    if force:
        (one,) = recover(stream.folder, force=True)
        assert one.cut and not one.changes
        return
    with pytest.raises(
        DamagedRecording,
        match=r"00000001.partial at byte \d+: .* had already been synced "
        r"to disk",
    ):
        recover(stream.folder)
    assert path.read_bytes() == data
