"""Durable records are never taken for a torn end and never cut without a request, whatever the damage.

A kill is a copy of the folder at that moment.
"""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from bwtui.cli.main import CONTEXT
from bwtui.cli.recording.recover import recover as recover_command
from bwtui.durable_files import sync
from bwtui.errors import DamagedRecording, StateFailed
from bwtui.recording import journal as journal_module
from bwtui.recording import journal as segment_module
from bwtui.recording.blocks import BlockKind, SegmentFile
from bwtui.recording.check import check
from bwtui.recording.folder import segments
from bwtui.recording.journal import SegmentWriter
from bwtui.recording.reader import open_recording
from bwtui.recording.recover import foot_of, recover
from bwtui.recording.resume import continue_in
from bwtui.relay.rows.journal_recorder import JournalRecorder
from tests.recorded_stream import SOURCE, Stream, table

ACCOUNTS = table(1, "accounts")
Damage = Callable[[bytearray], None]


def write(stream: Stream, count: int) -> None:
    """Record ``count`` transactions, each in a separate batch."""
    for key in range(count):
        stream.change("insert", ACCOUNTS, key, b"body" * 20)
        stream.commit()
        stream.flush()
        stream.deliver()


def make_durable(stream: Stream) -> None:
    """Do what the relay does before it confirms, and wait until the recording reports it as durable."""
    stream.wait_durable()
    stream.recorder._journal._synced.wait()
    stream.settle()


def recorded(folder: Path, durable: int, behind: int) -> Path:
    """A recording whose relay was killed ``behind`` transactions after it had confirmed ``durable``."""
    stream = Stream(folder / "live")
    stream.begin_pass()
    write(stream, durable)
    make_durable(stream)
    write(stream, behind)
    shutil.copytree(stream.folder, folder / "left")
    stream.recorder.close()
    return folder / "left"


def partial(folder: Path) -> Path:
    (path,) = folder.glob("*.partial")
    return path


def damage(path: Path, begins: float, ends: float, byte: int = 0) -> int:
    """Overwrite a part of a file, given as fractions of it; return the first differing offset."""
    before = path.read_bytes()
    first, last = int(len(before) * begins), int(len(before) * ends)
    data = before[:first] + bytes([byte]) * (last - first) + before[last:]
    path.write_bytes(data)
    return next(at for at in range(first, last) if data[at] != before[at])


def assert_refused(folder: Path) -> str:
    """Check that every reader refuses the folder and changes nothing; return the error message."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(DamagedRecording) as raised:
        recover(folder)
    with pytest.raises(DamagedRecording):
        continue_in(folder, dict(SOURCE))
    with pytest.raises(DamagedRecording):
        open_recording(folder)
    assert check(folder).verdict == "damaged"
    now = {path.name: path.read_bytes() for path in folder.iterdir() if path.name in before}
    assert now == before
    assert raised.value.exit_code == 6
    return raised.value.message


@pytest.mark.parametrize(
    ("begins", "ends"),
    [(0.4, 0.4001), (0.1, 0.3), (0.1, 0.8), (0.3, 0.9), (0.0, 0.7), (0.0, 0.0002)],
    ids=["a bit", "a hole", "most of it", "much of it", "the beginning", "the head"],
)
@pytest.mark.parametrize("byte", [0, 255])
def test_a_hole_is_refused_however_large_it_is(tmp_path: Path, begins: float, ends: float, byte: int) -> None:
    folder = recorded(tmp_path, 300, 0)
    damaged = damage(partial(folder), begins, ends, byte)
    if begins == 0:
        # The owner of the durable mark is unknown, but it proves that something was on the disk.
        with pytest.raises(DamagedRecording, match="had already been synced to disk"):
            recover(folder)
        return
    message = assert_refused(folder)
    assert "; bytes " in message
    at = int(message.rpartition("; bytes ")[2].partition(" to ")[0].replace(",", ""))
    assert at <= damaged


def test_a_whole_block_that_is_gone_has_no_range(tmp_path: Path) -> None:
    folder = recorded(tmp_path, 300, 0)
    path = partial(folder)
    with path.open("rb") as file:
        blocks = list(SegmentFile(file, path.name).blocks())
    gone = next(block for block in blocks[5:] if block.kind == BlockKind.CHANGES)
    data = path.read_bytes()
    path.write_bytes(data[: gone.offset] + data[gone.end :])
    assert_refused(folder)
    (one,) = check(folder).damages
    assert one.reason == f"expected block {gone.number} here; this data had already been synced to disk"


def test_the_last_block_that_was_synced_is_no_torn_end(tmp_path: Path) -> None:
    folder = recorded(tmp_path, 3, 0)
    path = partial(folder)
    with path.open("rb") as file:
        blocks = list(SegmentFile(file, path.name).blocks())
    last = [block for block in blocks if block.kind == BlockKind.DELIVERY][-1]
    data = bytearray(path.read_bytes())
    data[last.end - 1] ^= 1
    path.write_bytes(data)
    assert_refused(folder)


@pytest.mark.parametrize("count", [1, 8, 700])
def test_where_bytes_are_missing_more_was_on_the_disk_than_stands_there(tmp_path: Path, count: int) -> None:
    folder = recorded(tmp_path, 30, 0)
    path = partial(folder)
    data = bytearray(path.read_bytes())
    del data[1500 : 1500 + count]
    path.write_bytes(data)
    assert "had already been synced to disk" in assert_refused(folder)


def test_what_no_sync_covered_is_a_torn_end(tmp_path: Path) -> None:
    folder = recorded(tmp_path, 20, 20)
    damage(partial(folder), 0.75, 0.8)
    assert check(folder).verdict == "unfinished"
    (one,) = recover(folder)
    assert one.cut
    with closing(open_recording(folder)) as recording:
        assert 20 <= recording.length < 40
    assert check(folder).verdict == "clean"


def test_who_asks_for_it_gets_what_stands_before_the_hole(tmp_path: Path) -> None:
    folder = recorded(tmp_path, 100, 0)
    damage(partial(folder), 0.5, 0.9)
    ran = CliRunner().invoke(recover_command, [str(folder), "--force"], **CONTEXT)
    assert ran.exit_code == 0
    assert "; bytes " in ran.output
    assert check(folder).verdict == "clean"
    continue_in(folder, dict(SOURCE)).release()


def test_a_recording_of_an_older_relay_is_judged_by_its_reached_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "pack_synced", lambda size: b"")
    monkeypatch.setattr(journal_module.Journal, "_name_synced", lambda self: None)
    stream = Stream(tmp_path / "live")
    stream.begin_pass()
    for _ in range(3):
        write(stream, 50)
        make_durable(stream)
    shutil.copytree(stream.folder, tmp_path / "left")
    stream.recorder.close()
    path = partial(tmp_path / "left")
    whole = path.read_bytes()
    damage(path, 0.1, 0.6)
    assert_refused(tmp_path / "left")
    path.write_bytes(whole)
    damage(path, 0.9, 0.95)
    assert check(tmp_path / "left").verdict == "unfinished"


def segmented(folder: Path) -> Path:
    """A recording of several segments that a crash has left."""
    stream = Stream(folder / "live", {"segment_bytes": 4_000})
    stream.begin_pass()
    for _ in range(6):
        write(stream, 10)
        stream.settle()
    shutil.copytree(stream.folder, folder / "left")
    stream.recorder.close()
    return folder / "left"


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_newest_segments_that_are_gone_are_missed(tmp_path: Path, gone: int) -> None:
    folder = segmented(tmp_path)
    paths = sorted(path for path in folder.iterdir() if path.name[0] == "0")
    assert len(paths) > 4
    for path in paths[len(paths) - gone :]:
        path.unlink()
    found = check(folder)
    assert found.verdict == "damaged"
    assert [str(one.place.segment) for one in found.damages] == [paths[-gone - 1].name]
    assert found.damages[0].reason == "the segment after it is missing"
    with pytest.raises(DamagedRecording, match="the segment after it is missing"):
        continue_in(folder, dict(SOURCE))
    ran = CliRunner().invoke(recover_command, [str(folder)], **CONTEXT)
    assert isinstance(ran.exception, DamagedRecording)


def test_a_kill_between_two_segments_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every step of starting the next segment, a relay can continue with the folder."""
    stream = Stream(tmp_path / "live", {"segment_bytes": 4_000})
    stream.begin_pass()
    write(stream, 10)
    left: list[Path] = []

    def killed() -> None:
        left.append(Path(shutil.copytree(stream.folder, tmp_path / str(len(left)))))

    for name in ("finish", "take_place", "append"):
        real = getattr(SegmentWriter, name)

        def step(self: SegmentWriter, *args: object, real: Callable[..., object] = real) -> object:
            killed()
            done = real(self, *args)
            killed()
            return done

        monkeypatch.setattr(SegmentWriter, name, step)
    stream.settle()
    monkeypatch.undo()
    stream.recorder.close()
    assert len(left) >= 6
    for folder in left:
        assert check(folder).verdict in ("clean", "unfinished"), folder
        if folder.name[0] in "0246":
            recover(folder)
            assert check(folder).verdict == "clean"
        for _ in range(2):
            continue_in(folder, dict(SOURCE)).release()
        again = Stream(folder)
        again.begin_pass()
        write(again, 1)
        again.stop()
        assert check(folder).verdict == "clean"
        assert not list(folder.glob("*.next"))


def goes_on(folder: Path) -> None:
    """Check that a relay continues with a recording and leaves it clean."""
    assert check(folder).verdict in ("clean", "unfinished")
    again = Stream(folder)
    again.begin_pass()
    write(again, 1)
    again.stop()
    assert check(folder).verdict == "clean"
    assert not list(folder.glob("*.next"))


def test_a_disk_that_stays_full_behind_a_segment_damages_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty file needs no block of a full disk; data written into it does."""
    stream = Stream(tmp_path / "recording", {"segment_bytes": 4_000})
    stream.begin_pass()
    write(stream, 10)
    real = SegmentWriter.take_place

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def take_place(self: SegmentWriter) -> None:
        real(self)
        monkeypatch.setattr(os, "writev", full)

    monkeypatch.setattr(SegmentWriter, "take_place", take_place)
    stream.recorder._rotate()
    with pytest.raises(StateFailed, match="No space left"):
        stream.settle()
    with pytest.raises(StateFailed, match="No space left"):
        stream.recorder._journal.close(stream.recorder._end("stopped"))
    stream.recorder._before.release()
    for _ in range(2):
        before = continue_in(stream.folder, dict(SOURCE))
        with pytest.raises(StateFailed, match="No space left"):
            JournalRecorder(stream.recorder._settings, stream.report, b"again", dict(SOURCE), before)
        before.release()
        assert check(stream.folder).verdict == "clean"
    monkeypatch.undo()
    goes_on(stream.folder)


def test_a_run_that_is_refused_behind_a_rotation_damages_nothing(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "recording")
    stream.recorder._rotate()
    stream.recorder.close(DamagedRecording("it is not to be", "leave it"))
    goes_on(stream.folder)


def fail_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail one fsync of a file and every removal after it, as ext4 does; the next fsync returns 0."""
    real = SegmentWriter.sync

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    def sync(self: SegmentWriter) -> None:
        monkeypatch.setattr(SegmentWriter, "sync", real)
        monkeypatch.setattr(Path, "unlink", read_only)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(SegmentWriter, "sync", sync)


def fail_behind_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the fsync of the folder after the finished segment was renamed."""

    def fail(folder: Path) -> None:
        if not list(folder.glob("*.partial")):
            monkeypatch.setattr(segment_module, "sync", sync)
            raise OSError(errno.EIO, "Input/output error")
        sync(folder)

    monkeypatch.setattr(segment_module, "sync", fail)


@pytest.mark.parametrize("fail", [fail_sync, fail_behind_rename])
@pytest.mark.parametrize("policy", ["stop", "stop-recording"])
def test_a_sync_that_failed_is_told_and_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: Callable[[pytest.MonkeyPatch], None], policy: str
) -> None:
    stream = Stream(tmp_path / "recording", {"segment_bytes": 4_000, "on_record_error": policy})
    stream.begin_pass()
    write(stream, 10)
    fail(monkeypatch)
    stream.settle()
    if policy == "stop":
        with pytest.raises(StateFailed, match="Input/output error"):
            stream.settle()
    else:
        stream.settle()
        assert any("Input/output error" in entry.message for entry in stream.report.errors())
        assert stream.recorder.durable_lsn > stream.lsn
    stream.recorder.close()
    monkeypatch.undo()
    assert not any(
        foot_of(path)["ended"] == "stopped" for path in segments(stream.folder) if path.is_finished
    )
    goes_on(stream.folder)


def test_who_says_that_nothing_was_there_goes_on(tmp_path: Path) -> None:
    """An older version, or its recover, removed the empty file that followed a segment."""
    folder = segmented(tmp_path)
    for path in [*folder.glob("*.partial"), *folder.glob("*.next")]:
        path.unlink()
    ran = CliRunner().invoke(recover_command, [str(folder)], **CONTEXT)
    assert isinstance(ran.exception, DamagedRecording)
    assert "recover --force" in ran.exception.hint
    with pytest.raises(DamagedRecording) as raised:
        continue_in(folder, dict(SOURCE))
    assert "recover --force" in raised.value.hint
    ran = CliRunner().invoke(recover_command, [str(folder), "--force"], **CONTEXT)
    assert ran.exit_code == 0
    assert "treated as empty" in ran.output
    ran = CliRunner().invoke(recover_command, [str(folder), "--force"], **CONTEXT)
    assert (ran.exit_code, ran.output.strip()) == (0, "nothing was cut: no segment is open")
    goes_on(folder)


def test_recover_finds_whatever_the_check_finds(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "recording")
    stream.begin_pass()
    write(stream, 20)
    stream.stop()
    (path,) = stream.folder.glob("*.bwj")
    damage(path, 0.5, 0.5005, 255)
    ran = CliRunner().invoke(recover_command, [str(stream.folder)], **CONTEXT)
    assert isinstance(ran.exception, DamagedRecording)
    assert ran.exception.exit_code == 6
    assert f"{path.name} at byte " in ran.output
