"""The coordinator of a replay: tasks report what is durable, and request permission to send more.

It is a small server next to the driver. Each task keeps one connection and exchanges lines of JSON: it
reports the progress of its lanes, and the answer says how many messages it may send and whether to stop. So
the rate limit applies to all tasks together, progress is kept in one place, and a replay stops cleanly.
"""

import contextlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bwtui.errors import ConnectionFailed

#: Progress of a lane: messages since this run began, position and part of the last one, and its offset.
LaneDone = tuple[int, int, int, int]
_GRANT_SECONDS = 0.1
_ANSWER_SECONDS = 60.0
#: Maximum wait for a connection to end after its shutdown; usually it takes less.
_END_SECONDS = 2.0
#: Timeout for a client's token, and the maximum line lengths for the token and for reports.
_TOKEN_SECONDS = 10.0
_TOKEN_BYTES, _LINE_BYTES = 1 << 10, 1 << 24
#: Pause before the next accept when the system has no resources left for a connection.
_REST_SECONDS = 0.2
_REFUSAL = b"error: this is no task of the replay that runs here\n"
#: Number of messages that a task requests at a time.
MOST = 100_000


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """Address of the coordinator, and the token that a task must send first."""

    host: str
    port: int
    token: str

    def __repr__(self) -> str:
        return f"CoordinatorAddress({self.host}:{self.port})"


@dataclass(slots=True)
class CoordinatorReply:
    """Messages that a task may send, seconds since the start of sending, and whether it must stop."""

    messages: int
    elapsed: float
    stop: bool


class Coordinator:
    """The server next to the driver; a context manager."""

    def __init__(
        self,
        host: str,
        token: str,
        rate: float | None,
        on_report: Callable[[dict[int, LaneDone]], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._on_report = on_report
        self._is_stopped = is_stopped
        self._rate = rate
        self._lock = threading.Lock()
        self._granted = 0.0
        self._began: float | None = None
        self._closing = threading.Event()
        self._talking: list[tuple[socket.socket, threading.Thread]] = []
        self._socket = socket.create_server((host, 0))
        self.address = CoordinatorAddress(host, self._socket.getsockname()[1], token)
        self._thread = threading.Thread(target=self._serve, name="replay-coordinator", daemon=True)

    def __enter__(self) -> "Coordinator":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        # close() alone would not wake a blocked accept().
        _shut(self._socket)
        self._socket.close()
        self._thread.join()
        # Threads that are still running would keep this object alive when the process ends.
        for connection, thread in self._talking:
            _shut(connection)
            thread.join(_END_SECONDS)

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closing.wait(_REST_SECONDS):
                    return
                continue
            thread = threading.Thread(target=self._talk, args=(connection,), daemon=True)
            thread.start()
            self._talking = [one for one in self._talking if one[1].is_alive()] + [(connection, thread)]

    def _talk(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rwb") as lines:
            connection.settimeout(_TOKEN_SECONDS)
            token = lines.readline(_TOKEN_BYTES).rstrip(b"\r\n")
            if not hmac.compare_digest(token, self.address.token.encode()):
                lines.write(_REFUSAL)
                return
            connection.settimeout(None)
            while line := lines.readline(_LINE_BYTES):
                lanes, want = _report(line)
                answer = self._answer(lanes, want)
                lines.write(json.dumps(answer).encode() + b"\n")
                lines.flush()

    def _answer(self, lanes: dict[int, Any], want: int) -> tuple[int, float, bool]:
        with self._lock:
            if lanes:
                self._on_report(lanes)
            if self._began is None:
                self._began = time.monotonic()
        granted = self._grant(want) if want and not self._is_stopped() else 0
        return granted, time.monotonic() - self._began, self._is_stopped()

    def _grant(self, want: int) -> int:
        if self._rate is None:
            return want
        end = time.monotonic() + _GRANT_SECONDS
        # Grant the messages of a tenth of a second at a time, so that every task gets some.
        share = max(1, min(want, int(self._rate * _GRANT_SECONDS)))
        while True:
            with self._lock:
                assert self._began is not None
                earned = self._rate * (time.monotonic() - self._began) + 1
                # Unused messages expire, so that a burst can't follow a pause.
                self._granted = max(self._granted, earned - self._rate * 2 * _GRANT_SECONDS - 1)
                free = int(earned - self._granted)
                if free >= 1:
                    granted = min(share, free)
                    self._granted += granted
                    return granted
            wait = min(share / self._rate, end - time.monotonic())
            if wait <= 0 or self._closing.wait(wait):
                return 0


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _report(line: bytes) -> tuple[dict[int, Any], int]:
    """Return the progress of a task's lanes, and how many messages it requests. Raises ValueError."""
    try:
        report = json.loads(line)
        return {int(lane): tuple(done) for lane, done in report["lanes"].items()}, int(report["want"])
    except (LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError("it is not a valid report") from error


class CoordinatorClient:
    """A task's connection to the coordinator."""

    def __init__(self, address: CoordinatorAddress) -> None:
        try:
            self._socket = socket.create_connection((address.host, address.port), _ANSWER_SECONDS)
            self._lines = self._socket.makefile("rw")
            self._lines.write(address.token + "\n")
            self._lines.flush()
        except OSError as error:
            raise ConnectionFailed(
                f"a task can't reach the replay's command at {address.host}:{address.port}",
                "check the network between the Spark workers and this host",
            ) from error

    def ask(self, lanes: dict[int, LaneDone], want: int = 0) -> CoordinatorReply:
        """Report progress and request ``want`` messages to send. Raises ConnectionFailed without answer."""
        try:
            self._lines.write(json.dumps({"lanes": lanes, "want": want}) + "\n")
            self._lines.flush()
            line = self._lines.readline()
            if line:
                return CoordinatorReply(*json.loads(line))
        except (OSError, ValueError, TypeError):
            pass
        raise ConnectionFailed(
            "the replay's command has ended",
            "run the replay again; it resumes after the acknowledged messages",
        )

    def close(self) -> None:
        """Close the connection; the coordinator continues."""
        with contextlib.suppress(OSError):
            self._lines.close()
            self._socket.close()
