"""`bwtui verify` checks first what would fail at its end, before it contacts services or starts Spark."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from bwtui.cli.inputs.audit_sources import refuse_unwritable
from bwtui.cli.main import CONTEXT
from bwtui.cli.verify import verify
from bwtui.errors import BwtuiError, RefusedError, UsageError
from tests.recorded_stream import Stream, table

NOWHERE = ("-b", "127.0.0.1:1", "-r", "http://127.0.0.1:1")


def run(*arguments: object) -> None:
    """Run the command, which must fail before it contacts a service."""
    given = [*map(str, arguments), *NOWHERE]
    # click keeps a command's help options from its first call.
    CliRunner().invoke(verify, given, catch_exceptions=False, **CONTEXT)


def recorded(folder: Path) -> Stream:
    """Return a recording that has just begun."""
    stream = Stream(folder)
    stream.begin_pass()
    return stream


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A finished recording of one change."""
    stream = recorded(tmp_path / "whole")
    stream.change("insert", table(1, "a"), 1, b"x")
    stream.commit()
    stream.stop()
    return tmp_path / "whole"


def test_a_recording_that_has_just_begun(tmp_path: Path, whole: Path) -> None:
    stream = recorded(tmp_path / "r")
    for others in ((), (whole,)):
        with pytest.raises(
            RefusedError, match="it is still being written, and no segment is complete"
        ) as refused:
            run(*others, tmp_path / "r")
        assert "five minutes" in (refused.value.hint or "")
    stream.stop()
    with pytest.raises(RefusedError, match=r"/r is empty: nothing changed while it was recorded"):
        run(tmp_path / "r")


def test_a_folder_without_a_recording(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no recording"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("page", "why"),
    [("gone/page.html", "No such file or directory"), ("", "Is a directory"), ("file/p", "Not a directory")],
)
def test_a_page_that_could_not_be_written(tmp_path: Path, whole: Path, page: str, why: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BwtuiError, match=rf"can't be written: {why}") as refused:
        run(whole, "--html", tmp_path / page)
    assert "--html" in (refused.value.hint or "")


def test_a_page_in_a_folder_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root can write everywhere, so a folder's mode proves nothing here.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(BwtuiError, match="can't be written: Permission denied"):
        refuse_unwritable(tmp_path / "page.html")


def test_nothing_is_made_to_try_it(tmp_path: Path) -> None:
    refuse_unwritable(tmp_path / "page.html")
    assert not list(tmp_path.iterdir())
    (tmp_path / "page.html").write_text("what was there")
    refuse_unwritable(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "what was there"
