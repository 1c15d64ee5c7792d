"""A worker as the engine has it: how it ended, and whether that is known."""

import subprocess
from collections.abc import Iterator

import pytest

from bwtui.relay.snapshot.workers import worker_handle as members
from bwtui.relay.snapshot.workers.messages import StartWorker
from bwtui.relay.snapshot.workers.worker_handle import LocalWorkerHandle
from tests.waiting import eventually


class _Unreachable(subprocess.Popen[bytes]):
    """A process that no signal reaches, as one in an uninterruptible sleep."""

    def kill(self) -> None:
        """Do nothing."""


@pytest.fixture
def begin() -> StartWorker:
    return StartWorker({}, b"", "1-1", 0, 0, 1, is_recorded=False)


@pytest.fixture(autouse=True)
def sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "COMMAND", ("sleep", "600"))


@pytest.fixture
def unreachable(begin: StartWorker, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalWorkerHandle]:
    monkeypatch.setattr(subprocess, "Popen", _Unreachable)
    member = LocalWorkerHandle(begin)
    yield member
    member._process.send_signal(9)
    member._process.wait()


def test_one_that_is_killed_is_gone(begin: StartWorker) -> None:
    member = LocalWorkerHandle(begin)
    assert not member.has_ended
    assert member.kill() == "was killed by signal 9"
    assert member.has_ended
    assert member.kill() == "was killed by signal 9"


def test_one_that_ends_by_itself_says_how(begin: StartWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "COMMAND", ("true",))
    member = LocalWorkerHandle(begin)
    eventually("that it hangs up", lambda: member.poll() == [] and member.end.is_over)
    assert member.kill() == "ended"


def test_one_that_no_signal_reaches_is_waited_for_elsewhere(unreachable: LocalWorkerHandle) -> None:
    """The engine has other things to do: what it does not look at may be lost."""
    assert unreachable.kill() == "was lost"
    assert not unreachable.has_ended
    assert "was killed but has not ended" in unreachable.awaited_end_error().message
    unreachable._process.send_signal(9)
    eventually("its end", lambda: unreachable.has_ended)
