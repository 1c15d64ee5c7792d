"""What a recording lacks, and an export that finds nothing: said in the file, and on stderr."""

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from bwtui.cli.main import cli
from bwtui.recording.export.sql_columns import became
from tests.recorded_stream import Stream, table
from tests.recording_double import relation

A, B = table(1, "a"), table(2, "b")


def run(*args: str) -> tuple[int, str, list[str]]:
    result = CliRunner().invoke(cli, ["recording", *args], prog_name="bwtui")
    return result.exit_code, result.stdout, result.stderr.splitlines()


def export(folder: Path, *args: str, form: str = "jsonl") -> tuple[int, str, list[str]]:
    return run("export", str(folder), "--format", form, *args)


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
    assert export(tmp_path / "r", form="sql")[::2] == (0, [])


def test_a_recording_without_a_snapshot(tmp_path: Path) -> None:
    record(tmp_path / "r", snapshot=False).stop()
    code, out, err = export(tmp_path / "r", form="sql")
    assert (code, err) == (0, ["note: the recording has no snapshot: rows from before it began are missing"])
    assert "-- the recording has no snapshot" in out


def test_a_gap_and_what_it_cuts_off(tmp_path: Path) -> None:
    stream = record(tmp_path / "r")
    stream.change("insert", A, 50, b"half of a transaction")
    stream.stop()
    stream.lsn += 1000
    stream.start()
    stream.begin_pass()
    stream.change("insert", B, 60, b"behind the gap")
    stream.commit()
    stream.stop()
    code, out, err = export(tmp_path / "r", form="sql")
    lines = [line for line in out.partition("half of")[2].splitlines() if not line.startswith("BEGIN")][1:4]
    assert lines[0] == "COMMIT;"
    assert lines[1].endswith(" may be cut off by the gap that follows") and lines[1].startswith("-- ")
    assert lines[2].startswith("-- gap: some changes that commit after 0/")
    assert code == 0
    assert [line.partition(" ")[2].split()[0] for line in err] == ["some", "1"]
    assert "1 transaction may be cut off by a gap" in err[1]


def test_a_transaction_that_is_open_at_the_end(tmp_path: Path) -> None:
    stream = record(tmp_path / "r")
    stream.change("insert", A, 50, b"half of a transaction")
    stream.stop()
    code, out, err = export(tmp_path / "r", form="sql")
    assert code == 0 and len(err) == 1 and "was recorded incompletely" in err[0]
    assert err[0].replace("note:", "--") in out


def test_a_recording_that_was_not_finished(tmp_path: Path) -> None:
    stream = record(tmp_path / "r")
    assert "note: the recording is being written: later changes are missing" in export(tmp_path / "r")[2]
    stream.recorder._before.release()
    assert any("is unfinished: 'bwtui recording recover'" in line for line in export(tmp_path / "r")[2])


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
@pytest.mark.parametrize("form", ["jsonl", "sql"])
def test_nothing_found_is_said(tmp_path: Path, args: tuple[str, ...], note: str, form: str) -> None:
    record(tmp_path / "r").stop()
    assert export(tmp_path / "r", *args, form=form)[::2] == (0, [f"note: {note}"])


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("--from-lsn", "0/5", "--to-lsn", "0/4"), "lsn"),
        (("--from-time", "2026-01-02", "--to-time", "2026-01-01"), "time"),
    ],
)
def test_ranges_that_end_before_they_begin(tmp_path: Path, args: tuple[str, ...], what: str) -> None:
    record(tmp_path / "r").stop()
    assert export(tmp_path / "r", *args)[::2] == (
        2,
        [f"bwtui: error: --from-{what} is later than --to-{what}", "hint: swap the two values"],
    )


def test_an_export_is_for_its_owner_alone(tmp_path: Path) -> None:
    record(tmp_path / "r").stop()
    export(tmp_path / "r", "-o", str(tmp_path / "x"))
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("old", "new", "renamed", "dropped", "added"),
    [
        ("id:1 a:2", "id:1 b:2", "a>b", "", ""),
        ("id:1 a:2", "id:1 b:3", "", "a", "b"),
        ("id:1 a:2", "id:1 a:3", "", "", ""),
        ("id:1 a:2 b:3", "id:1 b:3 a:3", "", "a", "a"),
        ("id:1 a:2 b:3", "id:1 b:2 a:3", "a>b b>a", "", ""),
        ("id:1 a:2 b:2", "id:1 b:2 a:2", "", "a", "a"),
        ("id:1 a:2 b:3 n:4", "id:1 b:3 a:4", "n>a", "a", ""),
        ("id:1 a:2 b:2", "id:1 c:2 d:2", "a>c b>d", "", ""),
        ("id:1 c:2", "id:1 b:2 c:2", "", "", "b"),
        ("a:1 b:2 c:3", "c:3", "", "a b", ""),
        ("", "a:1", "", "", "a"),
    ],
)
def test_what_became_of_columns(old: str, new: str, renamed: str, dropped: str, added: str) -> None:
    before, after = (
        relation("t", [(name, int(kind)) for name, _, kind in (one.partition(":") for one in text.split())])
        for text in (old, new)
    )
    found = became(before.columns, after.columns)
    assert " ".join(f"{a.name}>{b.name}" for a, b in found.renamed) == renamed
    assert " ".join(column.name for column in found.dropped) == dropped
    assert " ".join(column.name for column in found.added) == added
