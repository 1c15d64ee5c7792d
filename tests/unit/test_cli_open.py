"""``bwtui open``: what is no recording, or no whole one, is told in one plain sentence."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from bwtui.cli import open as module
from bwtui.cli.main import guarded
from bwtui.recording.reader import open_recording

SHOP = Path(__file__).parents[2] / "recordings" / "shop"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run the command, and return its exit code and what it said."""
    code = guarded(lambda: module.open.main([*arguments], standalone_mode=False))
    return code, capsys.readouterr().err


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the sample recording."""
    return Path(shutil.copytree(SHOP, tmp_path / "shop"))


def test_help_has_examples() -> None:
    shown = CliRunner().invoke(module.open, ["--help"]).output
    assert "bwtui open recordings/shop" in shown
    assert "--at" in shown


def test_a_path_that_is_no_recording(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, said = run(capsys, str(tmp_path / "nothing"))
    assert code == 2
    assert "is no recording" in said
    assert said.count("\n") == 2, "a sentence and a hint"


def test_an_empty_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, said = run(capsys, str(tmp_path))
    assert code == 2
    assert "holds no recording" in said


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
    assert "no terminal" in said
    assert "recording info" in said


def test_a_recording_without_an_end_says_so(copy: Path) -> None:
    segment = next(copy.glob("*.bwj"))
    raw = segment.read_bytes()
    segment.unlink()
    (copy / "00000001.partial").write_bytes(raw[: len(raw) // 2])
    view = open_recording(copy)
    assert view.length > 0
    assert "its end is torn: what is whole is shown" in module._unfinished(view)
    view.close()
    whole = open_recording(SHOP)
    assert module._unfinished(whole) == ""
    whole.close()
