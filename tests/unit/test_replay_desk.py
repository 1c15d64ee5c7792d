"""The desk of a replay listens on a port: who does not know the word gets a sentence."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bwtui.errors import ConnectionFailed
from bwtui.replay import desk as replay_desk
from bwtui.replay.desk import Desk, DeskAddress, DeskLine

WORD = "f00d" * 8


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A desk; nothing that a caller says may end one of its threads with a traceback."""
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    with Desk("127.0.0.1", WORD, None, lambda _: None, lambda: False) as desk:
        yield desk
    assert not failed, failed


def call(desk: Desk, *lines: bytes) -> bytes:
    """Say ``lines``, and return all that is answered."""
    with socket.create_connection((desk.address.host, desk.address.port), 30) as caller:
        with contextlib.suppress(OSError):
            for line in lines:
                caller.sendall(line)
            caller.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while some := caller.recv(65536):
                answer += some
        return answer


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\n",
        b"wrong\n",
        "fööd\n".encode(),
        b"\xff\xfe\n",
        b"\0" * 100 + b"\n",
        WORD[:-1].encode() + b"\n",
    ],
)
def test_who_does_not_know_the_word_is_told_so(desk: Desk, said: bytes) -> None:
    assert call(desk, said) == b"error: this is no task of the replay that runs here\n"


def test_an_endless_line_is_not_read_to_its_end(desk: Desk) -> None:
    with socket.create_connection((desk.address.host, desk.address.port), 30) as caller:
        caller.sendall(b"x" * replay_desk._WORD_BYTES)
        assert caller.makefile("rb").readline().startswith(b"error: ")


def test_who_says_nothing_is_not_waited_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_desk, "_WORD_SECONDS", 0.05)
    with socket.create_connection((desk.address.host, desk.address.port), 30) as caller:
        assert caller.recv(1) == b""


@pytest.mark.parametrize(
    "said",
    [
        b"\xff\n",
        b"[]\n",
        b"{}\n",
        b'{"lanes": 1, "want": 2}\n',
        b'{"lanes": {}, "want": 1e400}\n',
        b"[" * 9_000 + b"\n",
    ],
)
def test_what_is_no_report_ends_the_line(desk: Desk, said: bytes) -> None:
    assert call(desk, WORD.encode() + b"\n", said) == b""


def test_a_task_is_answered(desk: Desk) -> None:
    line = DeskLine(desk.address)
    assert line.ask({0: (1, 2, 3, 4)}, 7).messages == 7
    line.close()
    report = json.dumps({"lanes": {}, "want": 3}).encode() + b"\n"
    assert json.loads(call(desk, WORD.encode() + b"\n", report))[0] == 3


def test_a_task_with_another_word_is_refused(desk: Desk) -> None:
    line = DeskLine(DeskAddress(desk.address.host, desk.address.port, "föö"))
    with pytest.raises(ConnectionFailed):
        line.ask({}, 1)
    line.close()
