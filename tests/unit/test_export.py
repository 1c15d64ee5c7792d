"""Exports: the formats, the selection, and the file, which appears only when it is complete."""

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from bwtui.cli.main import cli, guarded
from bwtui.cli.recording.export import make_writer, run_export
from bwtui.errors import DamagedRecording
from bwtui.pgoutput.messages import UNCHANGED
from bwtui.recording import reader
from bwtui.recording.change import Change
from bwtui.recording.export import JsonWriter, export
from bwtui.recording.parquet import COLUMNS
from bwtui.recording.query_language import ChangeSelection
from tests.recording_double import TIME, RecordingDouble, change, message, relation

ORDERS = relation("orders", ("id", "note", "big"))
SHOP = relation("item s", (("id", 23), ("mood", 99999)), namespace="shop", oid=16385)
CHANGES = [
    change(ORDERS, "snapshot", ("1", "a", "x"), lsn=1, xid=0),
    change(ORDERS, "insert", ("2", None, b"\xff'\\"), lsn=5, messages=(message(0, partition=3),)),
    change(ORDERS, "update", ("2", "b", UNCHANGED), lsn=6, xid=701, commit_time=TIME + 10**6),
    change(
        ORDERS,
        "update",
        ("3", "b", "filled"),
        ("2", None, None),
        filled=("big",),
        lsn=7,
        xid=702,
        messages=(message(0, value=None), message(1, headers=(("bwtui.session", b"\x01\x02"),))),
    ),
    change(ORDERS, "update", ("3", "b", "filled"), lsn=7, xid=702, is_repeat=True, pass_number=2),
    change(SHOP, "delete", None, ("9", None), lsn=8, xid=703, messages=()),
    change(
        ORDERS,
        "truncate",
        tables=("public.orders", "shop.item s"),
        truncated=(ORDERS, SHOP),
        lsn=9,
        xid=704,
        messages=(),
    ),
    change(relation("log", ("line",), (), oid=16386), "delete", None, None, (), lsn=10, xid=705),
]
NONE: dict[str, Any] = dict.fromkeys(("where", "table", "from_lsn", "to_lsn", "from_time", "to_time"))


def exported(form: Any, changes: list[Change] = CHANGES, **chosen: Any) -> bytes:
    file, view, selection = io.BytesIO(), RecordingDouble(changes), ChangeSelection(**chosen)
    export(view, selection, make_writer(form, file))
    return file.getvalue()


def positions(**given: Any) -> list[int]:
    file = io.BytesIO()
    from bwtui.cli.inputs.selection import selection

    view = RecordingDouble(CHANGES)
    export(view, selection(view.last_time, NONE | given), JsonWriter(file))
    return [json.loads(line)["position"] for line in file.getvalue().splitlines()]


# -- selection -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [0, 1, 2, 3, 5, 6, 7]),
        ({"where": "op = update and xid > 701"}, [3]),
        ({"table": "orders|shop[.].*"}, [0, 1, 2, 3, 5, 6]),
        ({"table": "shop.item s"}, [5, 6]),
        ({"table": "ord"}, []),
        ({"from_lsn": "0/6", "to_lsn": "0/8"}, [2, 3, 5]),
        ({"from_time": "2026-09-21 14:13:20.5"}, [2]),
        ({"to_time": "2026-09-21T14:13:20Z", "where": "op = insert"}, [1]),
    ],
)
def test_what_is_chosen(given: dict[str, Any], expected: list[int]) -> None:
    assert positions(**given) == expected


def test_repeats_are_chosen_when_asked_for() -> None:
    assert len(exported("jsonl", with_repeats=True).splitlines()) == len(CHANGES)


# -- JSON lines ----------------------------------------------------------------------------------------------


def test_a_line_says_all_of_a_change() -> None:
    lines = [json.loads(line) for line in exported("jsonl").splitlines()]
    assert lines[1]["after"] == {"id": "2", "note": None, "big": {"hex": "ff275c"}}
    assert (
        lines[1]["messages"][0] | {"partition": 3, "key": "a2V5", "value": "dmFsdWU="}
        == lines[1]["messages"][0]
    )
    assert lines[2]["after"] == {"id": "2", "note": "b"}
    assert lines[2]["unchanged"] == ["big"]
    assert lines[3]["before"] == {"id": "2"}
    assert lines[3]["filled"] == ["big"]
    assert lines[3]["key"] == {"id": "3"}
    assert lines[3]["messages"][1]["headers"] == [["bwtui.session", "AQI="]]
    assert lines[0]["lsn"] == "0/1"
    assert lines[0]["commit_time"] == "2026-09-21T14:13:20.000000Z"
    assert lines[5]["tables"] == ["public.orders", "shop.item s"]


# -- Parquet -------------------------------------------------------------------------------------------------


def test_parquet_has_a_row_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bwtui.recording.parquet._ROWS", 2)
    path = tmp_path / "x.parquet"
    path.write_bytes(exported("parquet"))
    assert pq.ParquetFile(path).metadata.num_row_groups == 5
    # Use a separate connection: the shared one may have another test's unfinished result.
    with duckdb.connect() as connection:
        rows = connection.sql(f"select * from '{path}' order by position, part")
        assert tuple(rows.columns) == COLUMNS
        found = [dict(zip(COLUMNS, row, strict=True)) for row in rows.fetchall()]
    assert [(row["position"], row["part"], row["table"], row["key_json"]) for row in found] == [
        (0, 0, "orders", '{"id": "1"}'),
        (1, 0, "orders", '{"id": "2"}'),
        (2, 0, "orders", '{"id": "2"}'),
        (3, 0, "orders", '{"id": "2"}'),
        (3, 1, "orders", '{"id": "3"}'),
        (5, 0, "item s", '{"id": "9"}'),
        (6, 0, "orders", None),
        (6, 1, "item s", None),
        (7, 0, "log", None),
    ]
    assert found[2]["unchanged"] == ["big"] and found[4]["session"] == "0102"


# -- the file ------------------------------------------------------------------------------------------------


def run(path: Path, form: Any = "jsonl", view: Any = None, **more: Any) -> int:
    given = NONE | more.pop("given", {})
    return run_export(view or RecordingDouble(CHANGES), form, str(path), given, **more)


class Damaged(RecordingDouble):
    def changes(self, start: int = 0, stop: int | None = None) -> Iterator[Change]:
        yield from super().changes(0, 3)
        raise DamagedRecording("the recording is damaged: here", "restore it")


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_damaged_recording_leaves_nothing_behind(tmp_path: Path, form: str) -> None:
    assert guarded(lambda: run(tmp_path / "x", form, Damaged(CHANGES))) == 6
    assert list(tmp_path.iterdir()) == []


def test_a_folder_gets_a_file_named_after_the_recording(tmp_path: Path) -> None:
    assert run(tmp_path) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["double.jsonl"]


def test_a_file_is_overwritten_only_by_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x"
    path.write_text("mine")
    assert guarded(lambda: run(path)) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert f"{path} already exists" in error and "--force" in hint
    assert path.read_text() == "mine"
    run(path, force=True)
    assert len(path.read_text().splitlines()) == 7
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x"

    class Slow(RecordingDouble):
        def changes(self, start: int = 0, stop: int | None = None) -> Iterator[Change]:
            path.write_text("somebody's")
            return super().changes(start, stop)

    assert guarded(lambda: run(path, view=Slow(CHANGES))) == 2
    assert path.read_text() == "somebody's"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: run(tmp_path / "no" / "x")) == 2
    assert "can't write" in capsys.readouterr().err


def test_a_full_disk_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: run(Path("/dev/full"))) == 2
    error, hint = capfd.readouterr().err.splitlines()
    assert error == "bwtui: error: can't write /dev/full: No space left on device"
    assert hint.startswith("hint: free some space on the disk of /dev/full")


# -- the command line ----------------------------------------------------------------------------------------


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> RecordingDouble:
    view = RecordingDouble(CHANGES)
    monkeypatch.setattr(reader, "open_recording", lambda path, **_: view)
    return view


def invoke(*args: str) -> tuple[int, bytes, str]:
    result = CliRunner().invoke(cli, ["recording", "export", "x", *args], prog_name="bwtui")
    return result.exit_code, result.stdout_bytes, result.stderr


def test_the_command_writes_lines(double: RecordingDouble) -> None:
    code, out, err = invoke("--format", "jsonl", "--where", "op = delete")
    assert (code, err, len(out.splitlines())) == (0, "", 2)
    assert double.closed


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--format", "jsonl", "--where", "op = delet"), "query, column 6: op is never 'delet'"),
        (("--format", "jsonl", "--from-lsn", "5"), "--from-lsn: not an LSN: '5'"),
        (("--format", "jsonl", "--to-time", "never"), "--to-time: 'never' is not a time"),
        (("--format", "jsonl", "--table", "("), "--table: '(' is not a regular expression"),
        (
            (
                "--format",
                "parquet",
            ),
            "Parquet can't be written to stdout",
        ),
        (("--format", "sql"), "invalid value for '--format': 'sql' is not one of 'parquet', 'jsonl'"),
        (("--format", "jsonl", "-o", ""), "-o has an empty value"),
    ],
)
def test_a_wrong_option_is_one_line_and_a_hint(
    double: RecordingDouble, args: tuple[str, ...], message: str
) -> None:
    code, out, err = invoke(*args)
    lines = err.splitlines()
    assert (code, out) == (2, b"")
    assert lines[-2].startswith(f"bwtui: error: {message}")
    assert lines[-1].startswith("hint: ")


def test_a_wrong_query_is_drawn_with_a_caret(double: RecordingDouble) -> None:
    _, _, err = invoke("--format", "jsonl", "--where", "op = delet")
    assert err.splitlines()[:2] == ["  op = delet", "       ^"]


def test_a_subcommand_that_is_misspelt_has_a_nearest() -> None:
    result = CliRunner().invoke(cli, ["recording", "exprt"], prog_name="bwtui")
    assert result.exit_code == 2
    assert "hint: did you mean 'export'?" in result.stderr


_PROGRAM = """
import sys
from bwtui.recording import reader
from tests.recording_double import RecordingDouble
from tests.unit.test_export import CHANGES
reader.open_recording = lambda path, **_: RecordingDouble(CHANGES * 1000)
from bwtui.cli.main import main
main()
"""


def test_a_closed_pipe_is_quiet() -> None:
    command = [sys.executable, "-c", _PROGRAM, "recording", "export", "x", "--format", "jsonl"]
    ran = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert ran.stdout is not None and ran.stderr is not None
    ran.stdout.readline()
    ran.stdout.close()
    assert (ran.stderr.read(), ran.wait()) == (b"", 0)
    ran.stderr.close()


def test_a_terminal_sees_a_bar_on_stderr(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-c", _PROGRAM, "recording", "export", "x", "--format", "jsonl"]
    with (tmp_path / "out").open("wb") as out:
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
        ran = subprocess.Popen(command, stdout=out, stderr=slave, env=environment)
    os.close(slave)
    shown = b""
    try:
        while piece := os.read(master, 65536):
            shown += piece
    except OSError:
        # The other side was closed.
        pass
    os.close(master)
    assert ran.wait() == 0
    assert b"exporting" in shown
