"""Bad input of every kind: one plain line, a hint, the documented exit code, and no files left."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bwtui.cli.main import cli
from tests.cli.sweep_rows import Row, rows
from tests.recorded_stream import Stream, table

ROWS = list(rows())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with valid and invalid recordings, next to state, temporary files and home."""
    root = tmp_path_factory.mktemp("sweep")
    here = root / "here"
    for name in ("here", "state", "tmp", "home", "here/folder"):
        (root / name).mkdir()
    stream = Stream(here / "recording")
    stream.begin()
    stream.change("insert", table(1, "orders"), 1, b"x")
    stream.commit()
    stream.stop()
    (here / "file").write_text("no recording, and no report")
    (here / "binary").write_bytes(b"\xff\xfe\x00")
    (here / "loop").symlink_to("loop")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("BWTUI_", "PG"))]:
            patch.delenv(name)
        patch.setenv("BWTUI_STATE_HOME", str(root / "state"))
        patch.setenv("BWTUI_SANDBOX_HOME", str(root / "home" / "sandbox"))
        patch.setenv("XDG_CONFIG_HOME", str(root / "home"))
        patch.setenv("TMPDIR", str(root / "tmp"))
        patch.setattr("tempfile.tempdir", None)
        # --at is read before the screens open, and they need a terminal, which these tests don't have.
        patch.setattr("bwtui.cli.open.need_screens", lambda _: None)
        patch.chdir(here)
        yield root


def tree(root: Path) -> set[tuple[str, int]]:
    """Return every file and folder below ``root``, with its size."""
    found = set()
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = os.path.join(folder, name)  # noqa: PTH118  # Five hundred times over all of them.
            found.add((path, os.lstat(path).st_size if name in files else 0))
    return found


def test_there_are_enough_of_them() -> None:
    assert len({row.id for row in ROWS}) >= 400


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{n}: {row.id}") for n, row in enumerate(ROWS)])
def test_a_bad_input_is_refused_plainly(row: Row, world: Path) -> None:
    names = {"recording", "file", "folder", "loop", "binary", "missing"}
    args = [_filled(arg, names) for arg in row.args]
    settings = world / "here" / "bwtui.toml"
    if row.file:
        settings.write_text(row.file)
    before = tree(world)
    try:
        ran = CliRunner().invoke(cli, args, prog_name="bwtui", env=dict(row.variables))
        after = tree(world)
    finally:
        settings.unlink(missing_ok=True)
    assert after == before
    assert ran.exit_code == row.code, ran.stderr
    assert ran.stdout == "" or "--json" in args
    *drawn, error, hint = ran.stderr.splitlines()
    assert error.startswith("bwtui: error: ")
    assert row.says in error
    assert hint.startswith("hint: ")
    assert len(hint) > len("hint: ") + 5
    # The query is printed above its error, with a caret.
    assert not drawn or ("--where" in args and drawn[-1].strip() == "^")
    # RE2 says what it did not expect in a regular expression.
    assert "unexpected" not in re.sub("unexpected (extra|\\))", "", error)
    assert "a bug in bwtui" not in hint
    assert "\x1b" not in ran.stderr


def _filled(arg: str, names: set[str]) -> str:
    for name in names:
        arg = arg.replace(f"{{{name}}}", name)
    return arg
