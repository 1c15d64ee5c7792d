"""Recovery changes only what a crash left, and claims no more than is there; info does the same."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from bwtui.cli.main import CONTEXT
from bwtui.cli.recording.check import check as check_command
from bwtui.cli.recording.info import info as info_command
from bwtui.cli.recording.recover import recover as recover_command
from bwtui.errors import DamagedRecording, RefusedError
from bwtui.model.lsn import format_lsn
from bwtui.recording.check import check
from bwtui.recording.folder import segments
from bwtui.recording.info import info
from bwtui.recording.reader import open_recording
from bwtui.recording.recover import recover
from bwtui.recording.resume import continue_in
from bwtui.recording.segment_reader import SegmentReader, complete_until
from tests.recorded_stream import SOURCE, Stream, table

ACCOUNTS = table(1, "accounts")


def transaction(stream: Stream, key: int, *, commit: bool = True) -> int:
    """Record a transaction, or only its beginning; return its commit LSN."""
    stream.change("insert", ACCOUNTS, key, b"body")
    at = stream._current[0]
    if commit:
        stream.commit()
    stream.flush()
    return at


def left_behind(stream: Stream, folder: Path) -> Path:
    """Copy the recording in its current state, as a kill would leave it."""
    shutil.copytree(stream.folder, folder)
    stream.recorder.close()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def finished(folder: Path, sessions: int = 1) -> Path:
    """Record ``sessions`` finished segments."""
    stream = Stream(folder)
    for number in range(sessions):
        if number:
            stream.start()
        stream.begin_pass()
        transaction(stream, number)
        stream.stop()
    return folder


@pytest.mark.parametrize(
    ("number", "missing"),
    [(9, "segments 3 to 8 are missing before it"), (4, "segment 3 is missing before it")],
)
def test_a_late_file_is_refused_and_left_alone(tmp_path: Path, number: int, missing: str) -> None:
    folder = finished(tmp_path / "recording", sessions=2)
    (folder / f"{number:08}.partial").write_bytes(b"torn")
    before = contents(folder)
    for force in (False, True):
        with pytest.raises(DamagedRecording, match=f"0000000{number}.partial at byte 0: {missing}"):
            recover(folder, force=force)
    with pytest.raises(DamagedRecording, match=missing):
        continue_in(folder, SOURCE)
    assert contents(folder) == before


def test_a_second_file_of_a_number_is_refused(tmp_path: Path) -> None:
    folder = finished(tmp_path / "recording", sessions=2)
    (folder / "00000002.partial").write_bytes(b"torn")
    with pytest.raises(
        DamagedRecording, match=r"00000002.partial .* a different segment has the same number"
    ):
        recover(folder)
    assert (folder / "00000002.partial").exists()


def test_another_recordings_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    other = Stream(finished(tmp_path / "other"))
    other.begin_pass()
    transaction(other, 7)
    folder = finished(tmp_path / "recording")
    shutil.copy(other.folder / "00000002.partial", folder)
    other.recorder.close()
    before = contents(folder)
    with pytest.raises(DamagedRecording, match="it does not follow the previous segment"):
        recover(folder)
    assert contents(folder) == before


def test_a_file_of_which_nothing_is_kept_is_named(tmp_path: Path) -> None:
    folder = finished(tmp_path / "recording")
    (folder / "00000002.partial").write_bytes(b"torn")
    ran = CliRunner().invoke(recover_command, [str(folder)], **CONTEXT)
    assert ran.output.startswith("00000002.partial: kept nothing, cut 4 bytes (")
    assert check(folder).verdict == "clean"


def test_a_transaction_that_is_there_in_part_is_not_claimed(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "recording")
    stream.begin_pass()
    whole = transaction(stream, 1)
    part = transaction(stream, 2, commit=False)
    folder = left_behind(stream, tmp_path / "left")
    for _ in range(2):
        found = info(folder)
        assert (found.last_lsn, found.open_lsn, found.transactions) == (whole, part, 2)
        if segments(folder)[-1].is_finished:
            break
        (one,) = recover(folder)
        assert (one.last_lsn, one.open_lsn) == (whole, part)
    text = CliRunner().invoke(info_command, [str(folder)], **CONTEXT).output
    assert f"to {format_lsn(whole)}; only the beginning of the transaction at {format_lsn(part)}" in text


def test_looking_for_the_last_whole_transaction_reads_the_list_of_them_twice_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(tmp_path / "recording")
    stream.begin_pass()
    whole = [transaction(stream, key) for key in range(50)][-1]
    transaction(stream, 50, commit=False)
    stream.recorder.close()
    entries = SegmentReader.transaction_entries
    reads: list[str] = []

    def counted(self: SegmentReader) -> bytes:
        reads.append(self.name)
        return entries(self)

    monkeypatch.setattr(SegmentReader, "transaction_entries", counted)
    with closing(open_recording(stream.folder)) as recording:
        reads.clear()
        assert complete_until(recording.segments, recording.last_lsn) == whole
    # One read is for the block of the open transaction, and one for the block before it.
    assert len(reads) <= 2


def test_nothing_is_claimed_where_no_transaction_is_whole(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "recording")
    stream.begin_pass()
    part = transaction(stream, 1, commit=False)
    folder = left_behind(stream, tmp_path / "left")
    (one,) = recover(folder)
    assert (one.last_lsn, one.open_lsn) == (0, part)
    assert (info(folder).last_lsn, info(folder).open_lsn) == (0, part)


def test_a_batch_that_begins_within_a_transaction_ends_it(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "recording")
    stream.begin_pass()
    first = transaction(stream, 1, commit=False)
    stream.commit()
    stream.change("insert", ACCOUNTS, 2, b"body")
    second = stream._current[0]
    stream.flush()
    folder = left_behind(stream, tmp_path / "left")
    (one,) = recover(folder)
    assert (one.last_lsn, one.open_lsn) == (first, second)
    assert (info(folder).last_lsn, info(folder).open_lsn) == (first, second)


def test_a_pass_that_broke_off_is_made_whole_by_the_next(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "recording")
    stream.begin_pass()
    transaction(stream, 1)
    last = transaction(stream, 2)
    # Both are read again, and the connection breaks during the first.
    stream.begin_pass()
    at, xid, done = stream.history[0]
    stream.begin(at, xid)
    stream.change(*done[0])
    stream.flush()
    stream.recorder.close()
    assert (info(stream.folder).last_lsn, info(stream.folder).open_lsn) == (last, 0)


def test_errors_and_notices_are_listed_once_with_their_number(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "recording")
    for run in range(2):
        if run:
            stream.start()
        stream.begin_pass()
        stream.report.error("notice", RefusedError("it is not in the publication", "add it"), "public.late")
        transaction(stream, run)
        stream.stop()
    found = info(stream.folder)
    assert [
        (one.kind, one.message, one.hint, one.count) for one in found.told if one.table == "public.late"
    ] == [("notice", "it is not in the publication", "add it", 2)]
    # The double's stream has no snapshot and no reached LSN; that is reported as well.
    assert [one.count for one in found.told] == [1, 2, 1]
    assert found.errors + found.notices == 4
    assert found.notices == sum(one.count for one in found.told if one.kind == "notice")
    ran = CliRunner().invoke(info_command, [str(stream.folder), "--json"], **CONTEXT)
    assert json.loads(ran.output)["told"][1]["count"] == 2
    text = CliRunner().invoke(info_command, [str(stream.folder)], **CONTEXT).output
    assert "ERRORS AND NOTICES" in text
    assert "notice     public.late: it is not in the publication; add it" in text


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_shortened_recording_says_once_what_it_lacks(tmp_path: Path, is_confirmed: bool) -> None:
    stream = Stream(tmp_path / "recording")
    stream.begin_pass()
    for number in range(20):
        transaction(stream, number)
        stream.deliver()
        stream.recorder.reach(stream.lsn)
    folder = left_behind(stream, tmp_path / "left")
    (last,) = folder.glob("*.partial")
    last.write_bytes(last.read_bytes()[: last.stat().st_size * 2 // 3])
    again = Stream(folder)
    # The slot is confirmed up to the end, or still has the truncated part.
    again.lsn = stream.lsn if is_confirmed else 1_000
    again.begin_pass()
    told = [entry.message for entry in again.report.errors()]
    assert len(told) == 1, told
    again.stop()
    checked = check(folder)
    assert checked.verdict == "clean"
    output = CliRunner().invoke(check_command, [str(folder)], **CONTEXT).output
    if is_confirmed:
        assert told[0].startswith("the recording lacks changes relayed from ")
        assert "its last file was shortened" in told[0]
        ((since, until),) = checked.gaps
        assert until == stream.lsn > since
        assert f"{format_lsn(since)} to {format_lsn(until)} was not recorded, or is missing since" in output
        assert "clean, with 1 gap listed above: " in output
    else:
        assert told[0].startswith("a crash tore the recording's end: ")
        assert checked.gaps == []
        assert "clean: " in output


def test_a_run_that_was_refused_leaves_nothing(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "new" / "recording")
    stream.recorder.close(RefusedError("there is no such publication", "make it"))
    assert list(tmp_path.iterdir()) == []
    folder = finished(tmp_path / "recording", sessions=2)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    Stream(folder).recorder.close(RefusedError("there is no such publication", "make it"))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_run_that_was_refused_behind_a_crash_between_segments_takes_nothing_away(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "recording", {"segment_bytes": 100})
    stream.begin_pass()
    transaction(stream, 1)
    stream.settle()
    folder = left_behind(stream, tmp_path / "left")
    (folder / "00000002.partial").write_bytes(b"torn")
    Stream(folder).recorder.close(RefusedError("there is no such publication", "make it"))
    assert check(folder).verdict == "clean"
    continue_in(folder, dict(SOURCE)).release()
