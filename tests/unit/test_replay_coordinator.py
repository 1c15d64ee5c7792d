"""The coordinator of a replay listens on a port; clients without the token get an error message."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bwtui.errors import ConnectionFailed
from bwtui.replay import send as replay_coordinator
from bwtui.replay.send import Coordinator, CoordinatorAddress, CoordinatorClient

TOKEN = "f00d" * 8


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    """A coordinator whose threads must not end with a traceback, whatever a client sends."""
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    with Coordinator("127.0.0.1", TOKEN, None, lambda _: None, lambda: False) as coordinator:
        yield coordinator
    assert not failed, failed


def call(coordinator: Coordinator, *lines: bytes) -> bytes:
    """Send ``lines``, and return the complete answer."""
    with socket.create_connection((coordinator.address.host, coordinator.address.port), 30) as caller:
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
        TOKEN[:-1].encode() + b"\n",
    ],
)
def test_who_does_not_know_the_token_is_told_so(coordinator: Coordinator, said: bytes) -> None:
    assert call(coordinator, said) == b"error: this is no task of the replay that runs here\n"


def test_an_endless_line_is_not_read_to_its_end(coordinator: Coordinator) -> None:
    with socket.create_connection((coordinator.address.host, coordinator.address.port), 30) as caller:
        caller.sendall(b"x" * replay_coordinator._TOKEN_BYTES)
        assert caller.makefile("rb").readline().startswith(b"error: ")


def test_who_says_nothing_is_not_waited_for(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_coordinator, "_TOKEN_SECONDS", 0.05)
    with socket.create_connection((coordinator.address.host, coordinator.address.port), 30) as caller:
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
def test_what_is_no_report_ends_the_line(coordinator: Coordinator, said: bytes) -> None:
    assert call(coordinator, TOKEN.encode() + b"\n", said) == b""


def test_a_task_is_answered(coordinator: Coordinator) -> None:
    line = CoordinatorClient(coordinator.address)
    assert line.ask({0: (1, 2, 3, 4)}, 7).messages == 7
    line.close()
    report = json.dumps({"lanes": {}, "want": 3}).encode() + b"\n"
    assert json.loads(call(coordinator, TOKEN.encode() + b"\n", report))[0] == 3


def test_a_task_with_another_token_is_refused(coordinator: Coordinator) -> None:
    line = CoordinatorClient(CoordinatorAddress(coordinator.address.host, coordinator.address.port, "föö"))
    with pytest.raises(ConnectionFailed):
        line.ask({}, 1)
    line.close()
