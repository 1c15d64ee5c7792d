"""``bwtui open`` reports a missing, invalid or incomplete recording in one plain sentence."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from bwtui.cli import open as module
from bwtui.cli.main import CONTEXT, guarded
from bwtui.recording.reader import open_recording

SHOP = Path(__file__).parents[2] / "recordings" / "shop"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run the command, and return its exit code and output."""
    code = guarded(lambda: module.open.main([*arguments], standalone_mode=False, **CONTEXT))
    return code, capsys.readouterr().err


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the sample recording."""
    return Path(shutil.copytree(SHOP, tmp_path / "shop"))


def test_help_has_examples() -> None:
    shown = CliRunner().invoke(module.open, ["--help"], **CONTEXT).output
    assert "bwtui open recordings/shop" in shown
    assert "--at" in shown


def test_a_path_that_is_no_recording(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, said = run(capsys, str(tmp_path / "nothing"))
    assert code == 2
    assert "does not exist" in said
    assert said.count("\n") == 2, "a sentence and a hint"


def test_an_empty_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, said = run(capsys, str(tmp_path))
    assert code == 2
    assert "contains no recording" in said


def test_a_damaged_recording_names_the_place(capsys: pytest.CaptureFixture[str], copy: Path) -> None:
    segment = next(copy.glob("*.bwj"))
    damaged = bytearray(segment.read_bytes())
    damaged[-30] ^= 1
    segment.write_bytes(damaged)
    code, said = run(capsys, str(copy))
    assert code == 6
    assert "at byte" in said
    assert segment.name in said


def test_without_a_terminal_it_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(capsys, str(SHOP))
    assert code == 2
    assert "need a terminal" in said
    assert "recording info" in said


def test_a_report_is_opened_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text('{"verdict": "clean"}')
    code, said = run(capsys, str(report))
    assert code == 2
    assert "report.json is no" in said
    shutil.copy(Path(__file__).parents[1] / "tui" / "reports" / "clean.json", report)
    code, said = run(capsys, str(report))
    assert code == 2
    assert "need a terminal" in said, "it is a report, and its recording is not needed"


def test_where_kafka_is_comes_from_the_options_or_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BWTUI_BROKER", "BWTUI_SCHEMA_REGISTRY", "BWTUI_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    given = {"broker": None, "schema_registry": "http://given:1", "kafka_config": ("a.b=c",), "profile": None}
    found = module.connections(given, "recorded:9092", "http://recorded:2")
    assert (found.broker, found.registry) == ("recorded:9092", "http://given:1")
    assert found.arguments == ("-C", "a.b=c")
    monkeypatch.setenv("BWTUI_BROKER", "named:3")
    assert module.connections(given, "recorded:9092", "").broker == "named:3"


def test_a_recording_without_an_end_says_so(copy: Path) -> None:
    segment = next(copy.glob("*.bwj"))
    raw = segment.read_bytes()
    segment.unlink()
    (copy / "00000001.partial").write_bytes(raw[: len(raw) // 2])
    view = open_recording(copy)
    assert view.length > 0
    assert "its end is torn" in module._unfinished(view)
    view.close()
    whole = open_recording(SHOP)
    assert module._unfinished(whole) == ""
    whole.close()
