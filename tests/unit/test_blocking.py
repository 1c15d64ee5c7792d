"""Blocking calls in helper threads: the main thread stays responsive, and abandoned calls do not return."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bwtui.blocking import BlockingCalls
from tests.waiting import eventually

_PATIENCE = 60.0


class Stopped(Exception):
    """Raised by a pulse."""


@contextmanager
def held() -> Iterator[Callable[[], str]]:
    """Return a call that waits until the block ends."""
    gate = threading.Event()

    def call() -> str:
        assert gate.wait(_PATIENCE)
        return "late"

    try:
        yield call
    finally:
        gate.set()


def test_it_pulses_while_a_call_waits() -> None:
    gate = threading.Event()
    pulses: list[float] = []

    def pulse(seconds: float) -> None:
        pulses.append(seconds)
        if len(pulses) == 3:
            gate.set()

    assert BlockingCalls(pulse).make(lambda: gate.wait(_PATIENCE))
    assert pulses[:3] == [0, 0, 0]


def test_it_pulses_between_many_short_calls() -> None:
    pulses: list[float] = []
    calls = BlockingCalls(pulses.append)
    until = time.monotonic() + _PATIENCE
    while len(pulses) < 3:
        assert time.monotonic() < until
        assert calls.make(lambda: 1) == 1


def test_calls_are_made_side_by_side() -> None:
    together = threading.Barrier(4)
    found = BlockingCalls(lambda seconds: None).make_all([lambda: together.wait(_PATIENCE)] * 4)
    assert sorted(future.result() for future in found) == [0, 1, 2, 3]


def test_an_error_is_the_calls_own() -> None:
    def fail() -> int:
        raise KeyError("gone")

    calls = BlockingCalls(lambda seconds: None)
    failed, done = calls.make_all([fail, lambda: 2])
    assert isinstance(failed.exception(), KeyError)
    assert done.result() == 2
    with pytest.raises(KeyError):
        calls.make(fail)


def test_what_was_given_up_holds_nothing_up() -> None:
    """Eight threads are busy with abandoned calls; calls that had not begun never run."""
    stop, others = True, set(threading.enumerate())

    def pulse(seconds: float) -> None:
        if stop:
            raise Stopped

    calls = BlockingCalls(pulse)
    never: list[int] = []
    with held() as call:
        # The first pulse is due immediately.
        with pytest.raises(Stopped):
            calls.make_all([call] * 8 + [lambda: never.append(1)])
        stop = False
        assert calls.make(lambda: "new") == "new"
        threads = set(threading.enumerate()) - others
        assert threads
        assert all(thread.daemon for thread in threads)
    calls.close()
    eventually("the threads end", lambda: not any(thread.is_alive() for thread in threads))
    assert never == []


def test_the_threads_of_one_that_nobody_closed_end_with_it() -> None:
    others = set(threading.enumerate())
    calls = BlockingCalls(lambda seconds: None)
    calls.make_all([lambda: 1] * 3)
    threads = set(threading.enumerate()) - others
    assert threads
    del calls
    eventually("the threads end", lambda: not any(thread.is_alive() for thread in threads))


_KEPT = """
import threading
from bwtui.blocking import BlockingCalls
threading.kept = BlockingCalls(lambda seconds: None)
threading.kept.make(int)
"""


def test_one_that_lives_as_long_as_the_process_ends_without_a_word() -> None:
    """At interpreter shutdown the modules' names are cleared, which could print a traceback."""
    ran = subprocess.run([sys.executable, "-c", _KEPT], check=False, capture_output=True, timeout=30)
    assert (ran.returncode, ran.stderr) == (0, b"")
