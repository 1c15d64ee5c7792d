"""A run of tests in several processes goes on when one of them ends in the middle of a test."""

import os
import subprocess
import sys
from pathlib import Path

_CRASHES = "import os\ndef test_crashes(): os._exit(1)\ndef test_behind(): pass\n"


def test_what_a_worker_that_crashed_leaves_is_run_once(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text("def test_1(): pass\ndef test_2(): pass\n")
    (tmp_path / "test_d.py").write_text(_CRASHES)
    (tmp_path / "conftest.py").write_text("from tests.fix_scheduling import pytest_xdist_make_scheduler\n")
    options = [
        "-n",
        "1",
        "--dist",
        "loadfile",
        "--max-worker-restart",
        "1",
        "-p",
        "no:randomly",
        "-c",
        "/dev/null",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", *options, "."],
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "1 failed, 7 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "test_d.py::test_crashes" in ran.stdout
