"""Messages of attach while the relay does not answer."""

import io
import sys
import threading

import pytest

from bwtui.cli import attach as command


@pytest.mark.parametrize("is_terminal", [True, False])
def test_one_who_waits_on_a_terminal_is_told_for_what(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, said = threading.Event(), []

    def say(line: str, *, err: bool) -> None:
        said.append(line)
        told.set()

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    monkeypatch.setattr(command, "say", say)
    monkeypatch.setattr(command, "_SLOW", 0.05)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with command._notice_when_slow("shop"):
        told.wait(10 if is_terminal else 0.2)
    assert said == (["bwtui: waiting for relay shop to answer…"] if is_terminal else [])
