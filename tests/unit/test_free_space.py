"""The free space on a recording's disk is reported without waiting for a hung disk."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bwtui.recording import resume
from bwtui.recording.resume import FreeSpace, ResumePoint, continue_in
from tests.waiting import eventually


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that answers while this is set."""
    answers, statvfs = threading.Event(), os.statvfs

    def hang(path: Path) -> os.statvfs_result:
        answers.wait(60)
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", hang)
    answers.set()
    yield answers
    answers.set()


def test_what_is_known_is_told_while_the_disk_hangs(tmp_path: Path, disk: threading.Event) -> None:
    space = FreeSpace(tmp_path)
    found = space.bytes()
    assert found
    before = threading.active_count()
    disk.clear()
    space._queried_at -= 1
    begun = time.monotonic()
    assert [space.bytes() for _ in range(20)] == [found] * 20
    assert time.monotonic() - begun < 5
    # Only one thread asks.
    assert threading.active_count() == before + 1
    disk.set()
    eventually("it has answered", space._done.is_set)
    assert space.bytes()


def test_an_old_result_of_a_disk_that_hangs_is_not_shown(tmp_path: Path, disk: threading.Event) -> None:
    space = FreeSpace(tmp_path)
    assert space.bytes()
    disk.clear()
    space._queried_at -= 60
    assert space.bytes() is None
    disk.set()
    eventually("it has answered", space._done.is_set)
    assert space.bytes()


def test_who_asks_beside_the_first_waits_for_its_answer(
    tmp_path: Path, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads request the status of a relay that has just started: 0 would mean a full disk."""
    monkeypatch.setattr(resume, "_PATIENCE_SECONDS", 30.0)
    space = FreeSpace(tmp_path)
    disk.clear()
    first = threading.Thread(target=space.bytes)
    first.start()
    eventually("the first look is under way", lambda: not space._done.is_set())
    threading.Timer(0.1, disk.set).start()
    assert space.bytes()
    first.join()


def test_of_a_folder_that_is_gone_the_room_is_not_known(tmp_path: Path) -> None:
    """0 would mean a full disk."""
    assert FreeSpace(tmp_path / "gone").bytes() is None


def test_a_recording_says_how_it_stands_while_its_disk_hangs(tmp_path: Path, disk: threading.Event) -> None:
    continuation = continue_in(tmp_path / "r", {})
    disk.clear()
    try:
        begun = time.monotonic()
        assert status_of(continuation) is None
        assert time.monotonic() - begun < 5
    finally:
        disk.set()
        continuation.release()


def status_of(continuation: ResumePoint) -> int | None:
    class Journal:
        bytes_written = segments = durable_lsn = 0
        failure = None

    return continuation.status(Journal(), stopped=False).free_bytes  # type: ignore[arg-type]
