"""The lock of a recording's folder: only one process has it, even while another releases it."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bwtui.errors import RefusedError
from bwtui.recording.folder import LOCK, FolderLock

#: Repeatedly takes and releases the lock; reports when two processes have it at the same time.
_WORKER = """
import os, sys, time
from pathlib import Path
from bwtui.errors import RefusedError
from bwtui.recording.folder import FolderLock
folder, mark, ends = Path(sys.argv[1]), Path(sys.argv[2]), time.monotonic() + float(sys.argv[3])
taken = 0
while time.monotonic() < ends:
    try:
        lock = FolderLock(folder)
    except RefusedError:
        continue
    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    mark.unlink()
    lock.give_back()
    taken += 1
print(taken)
"""


def test_who_waited_for_a_file_that_was_taken_away_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "recording"
    first = FolderLock(folder)
    held: list[FolderLock] = []

    def meanwhile(_: float) -> None:
        if not held:
            first.give_back()
            held.append(FolderLock(folder))

    monkeypatch.setattr(time, "sleep", meanwhile)
    with pytest.raises(RefusedError, match="another process is writing the recording"):
        FolderLock(folder)
    held[0].give_back()
    assert not folder.exists()


def test_it_is_taken_when_it_was_given_back_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "recording"
    first = FolderLock(folder)
    monkeypatch.setattr(time, "sleep", lambda _: first.give_back())
    lock = FolderLock(folder)
    assert os.path.samestat(os.fstat(lock._fd), (folder / LOCK).stat())
    lock.give_back()
    assert not folder.exists()


def test_no_two_processes_hold_it(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", _WORKER, str(tmp_path / "recording"), str(tmp_path / "mark"), "1.0"]
    workers = [
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in "1234"
    ]
    with contextlib.ExitStack() as ended:
        for worker in workers:
            ended.callback(worker.kill)
        told = [worker.communicate(timeout=60) for worker in workers]
    assert [error for _, error in told] == [""] * 4
    assert sum(int(taken) for taken, _ in told) > 20
    assert not (tmp_path / "mark").exists()
