"""Temporary folders are removed with their run, or by a later run if it was killed."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from bwtui.errors import RefusedError
from bwtui.spark.scratch import scratch

KILLED = """
import os, signal, sys
from pathlib import Path
from bwtui.spark.scratch import scratch
with scratch("run-", Path(sys.argv[1])) as folder:
    (folder / "much").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def age(folder: Path) -> None:
    """Make a folder look old."""
    os.utime(folder, (time.time() - 3600,) * 2)


def test_without_any_place_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with (
        pytest.raises(RefusedError, match="no temporary folder can be created: No such file") as refused,
        scratch("x-"),
    ):
        pass
    assert "TMPDIR" in refused.value.hint


def test_what_a_killed_run_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    (tmp_path / "run-strange").mkdir()
    age(tmp_path / "run-strange")
    with scratch("run-", tmp_path) as long:
        # It is new: its owner may be about to lock it.
        assert left.exists()
        age(left)
        age(long)
        with scratch("run-", tmp_path) as folder:
            assert not left.exists()
            assert long.exists() and folder.exists() and (tmp_path / "run-strange").exists()
    assert [one.name for one in tmp_path.iterdir()] == ["run-strange"]
