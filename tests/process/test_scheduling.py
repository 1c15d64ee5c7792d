"""A test run in several processes continues when one of them crashes in the middle of a test."""

import os
import subprocess
import sys
from pathlib import Path

_CRASHES = "import os\ndef test_crashes(): os._exit(1)\ndef test_behind(): pass\n"


def run(folder: Path, *options: str) -> str:
    """Run the tests in ``folder`` in one worker; return the output."""
    (folder / "conftest.py").write_text(
        "from tests.fix_scheduling import pytest_sessionfinish, pytest_xdist_make_scheduler\n"
    )
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *("-p", "xdist.plugin"),
            *("-c", "/dev/null"),
            f"--rootdir={folder}",
            *options,
        ],
        check=False,
        cwd=folder,
        env={
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PATH": os.defpath,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ran.stdout + ran.stderr


def test_what_a_worker_that_crashed_leaves_is_run_once(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text("def test_1(): pass\ndef test_2(): pass\n")
    (tmp_path / "test_d.py").write_text(_CRASHES)
    said = run(tmp_path, "-n", "1", "--dist", "loadfile", "--max-worker-restart", "1")
    assert "1 failed, 7 passed" in said, said
    assert "test_d.py::test_crashes" in said


def test_what_nobody_has_run_counts_as_failed(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(_CRASHES)
    (tmp_path / "test_b.py").write_text("def test_1(): pass\ndef test_2(): pass\n")
    said = run(tmp_path, "-n", "1", "--dist", "loadfile", "--max-worker-restart", "0")
    assert "worker 'gw0' crashed while running 'test_a.py::test_crashes'" in said, said
    (tmp_path / "test_a.py").write_text(_CRASHES.replace("os._exit(1)", "pass"))
    said = run(tmp_path, "--last-failed", "--last-failed-no-failures", "none")
    assert "4 passed" in said, said
