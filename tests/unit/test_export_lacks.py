"""Incomplete recordings and empty exports: a note on stderr."""

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from bwtui.cli.main import cli
from tests.recorded_stream import Stream, table

A, B = table(1, "a"), table(2, "b")


def run(*args: str) -> tuple[int, str, list[str]]:
    result = CliRunner().invoke(cli, ["recording", *args], prog_name="bwtui")
    return result.exit_code, result.stdout, result.stderr.splitlines()


def export(folder: Path, *args: str) -> tuple[int, str, list[str]]:
    return run("export", str(folder), "--format", "jsonl", *args)


def record(folder: Path, *, snapshot: bool = True, **settings: int) -> Stream:
    stream = Stream(folder, settings)
    if snapshot:
        stream.row(A, 1, b"one")
        stream.flush()
        stream.deliver()
    stream.begin_pass()
    for key in range(2, 30):
        stream.change("insert", A, key, b"x" * 100)
        stream.commit()
        stream.flush()
        stream.deliver()
        stream.settle()
    stream.recorder.reach(stream.lsn)
    return stream


def test_a_whole_recording_is_exported_without_a_word(tmp_path: Path) -> None:
    record(tmp_path / "r").stop()
    assert export(tmp_path / "r")[::2] == (0, [])


def test_a_recording_without_a_snapshot(tmp_path: Path) -> None:
    record(tmp_path / "r", snapshot=False).stop()
    code, _, err = export(tmp_path / "r")
    assert (code, err) == (0, ["note: the recording has no snapshot: rows from before it began are missing"])


def test_a_gap(tmp_path: Path) -> None:
    stream = record(tmp_path / "r")
    stream.change("insert", A, 50, b"half of a transaction")
    stream.stop()
    stream.lsn += 1000
    stream.start()
    stream.begin_pass()
    stream.change("insert", B, 60, b"behind the gap")
    stream.commit()
    stream.stop()
    code, _, err = export(tmp_path / "r")
    assert code == 0 and len(err) == 1
    assert err[0].startswith("note: some changes that commit after 0/")


def test_a_transaction_that_is_open_at_the_end(tmp_path: Path) -> None:
    stream = record(tmp_path / "r")
    stream.change("insert", A, 50, b"half of a transaction")
    stream.stop()
    code, _, err = export(tmp_path / "r")
    assert code == 0 and len(err) == 1 and "was recorded incompletely" in err[0]


def test_a_recording_that_was_not_finished(tmp_path: Path) -> None:
    stream = record(tmp_path / "r")
    assert "note: the recording is being written: later changes are missing" in export(tmp_path / "r")[2]
    stream.recorder._before.release()
    recover = f"'bwtui recording recover {tmp_path / 'r'}'"
    assert any(f"is unfinished: {recover}" in line for line in export(tmp_path / "r")[2])


def test_the_first_segments_may_be_gone(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    record(folder, segment_bytes=1_500).stop()
    whole = export(folder)[1].splitlines()
    first, second, third, *_ = sorted(folder.glob("*.bwj"))
    first.unlink()
    second.unlink()
    code, out, err = export(folder)
    assert code == 0 and len(err) == 1 and "first segments, with " in err[0]
    rest = out.splitlines()
    assert 0 < len(rest) < len(whole) and rest == whole[-len(rest) :]
    code, out, _ = run("info", str(folder))
    assert code == 0
    assert f"the first 2 segments, with {len(whole) - len(rest)} changes" in out
    code, out, err = run("check", str(folder))
    assert code == 6
    assert out.splitlines()[:-1] == [f"{third.name} at byte 0: segments 1 to 2 are missing before it"]
    sorted(folder.glob("*.bwj"))[1].unlink()
    assert export(folder)[0] == 6


@pytest.mark.parametrize(
    ("args", "note"),
    [
        (("--table", "orders"), "no table matches --table orders; tables are named schema.table"),
        (("--where", "op = delete", "--table", "a"), "no change matches --where and --table"),
        (("--from-lsn", "F/0"), "no change matches --from-lsn"),
    ],
)
def test_nothing_found_is_said(tmp_path: Path, args: tuple[str, ...], note: str) -> None:
    record(tmp_path / "r").stop()
    assert export(tmp_path / "r", *args)[::2] == (0, [f"note: {note}"])


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("--from-lsn", "0/5", "--to-lsn", "0/4"), "lsn"),
        (("--from-time", "2026-01-02", "--to-time", "2026-01-01"), "time"),
    ],
)
def test_ranges_that_end_before_they_begin(tmp_path: Path, args: tuple[str, ...], what: str) -> None:
    record(tmp_path / "r").stop()
    code, _, (error, _) = export(tmp_path / "r", *args)
    assert code == 2 and f"--from-{what} is later than --to-{what}" in error


def test_an_export_is_for_its_owner_alone(tmp_path: Path) -> None:
    record(tmp_path / "r").stop()
    export(tmp_path / "r", "-o", str(tmp_path / "x"))
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600
