"""Reports the relay's state to systemd, which runs it: sd_notify(3), datagrams of a few lines.

A thread polls the engine, and reports when the start is complete, what the state is, and that the main thread
is alive. If the main thread is stuck, the pings stop, and systemd ends the process after ``WatchdogSec``.
While a start or a stop takes long and the main thread is alive, systemd is asked for more time.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Protocol

from bwtui.console import say
from bwtui.escaping import escape, shorten
from bwtui.masking import mask_connection
from bwtui.model.events import event
from bwtui.model.gaps import key_of
from bwtui.model.status import Status
from bwtui.relay.process.log import json_lines
from bwtui.relay.serving.health import WITHIN_ONE_CALL
from bwtui.relay.state.activity_clock import MainThreadActivity
from bwtui.relay.state.measures import Measures

#: Interval of polls (seconds); shorter with a shorter watchdog.
_LOOK_SECONDS = 1.0
#: Number of pings within ``WatchdogSec``, so that one may be late.
_PINGS = 4
#: Time requested for a start or a stop (seconds), each time that a ping is due.
_EXTENSION_SECONDS = 60.0
#: Maximum time (seconds) to wait for a busy systemd; lines that it did not take are sent again.
_SEND_SECONDS = 1.0
#: Maximum time for the last poll (seconds).
_END_SECONDS = 5.0
#: systemd takes datagrams of up to 4096 bytes, and a character has up to four.
_STATUS_CHARACTERS = 500
_log = logging.getLogger(__name__)


class WatchedEngine(Protocol):
    """The interface of the engine that is polled, from any thread, without waiting."""

    def measures(self) -> Measures:
        """Return the current measurements."""

    def turn(self) -> MainThreadActivity:
        """Return the main thread's current activity."""


@dataclass(slots=True)
class NotifySocket:
    """The socket on which systemd listens; its errors never harm the relay."""

    address: str
    _is_reported: bool = False

    def send(self, *lines: str) -> bool:
        """Send ``lines``, and return whether systemd took them; log the first failure."""
        # "@" means the NUL byte at the start of a name outside of the file system.
        place = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            if place[:1] not in ("/", "\0"):
                raise OSError(0, "it is neither a path nor an abstract address")
            # A new socket each time: systemd may have been restarted meanwhile.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_SEND_SECONDS)
                sender.sendto("\n".join(lines).encode(), place)
        except (OSError, ValueError) as error:
            self._report_failure(error)
            return False
        return True

    def _report_failure(self, error: Exception) -> None:
        if self._is_reported:
            return
        self._is_reported = True
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        text = f"the relay's state can't be reported to systemd (NOTIFY_SOCKET is {self.address!r}): {reason}"
        record = _log.makeRecord(
            _log.name, logging.WARNING, "", 0, "%s", (text,), None, extra=event("supervisor_untold")
        )
        _log.handle(record)
        lines = json_lines()
        line = lines.format(record) if lines else f"bwtui: notice: {text}; the relay continues"
        # stderr may have no reader: neither the pings nor the end of the relay wait long for it.
        saying = threading.Thread(target=_print_line, args=(line,), name="systemd notice", daemon=True)
        saying.start()
        saying.join(_SEND_SECONDS)


@dataclass(slots=True)
class SystemdNotifier:
    """Reports on one engine to systemd, from `watch` to `end`."""

    socket: NotifySocket
    #: ``WatchdogSec``; 0 if there is none.
    watchdog_seconds: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _is_ready: bool = False
    _is_stopping: bool = False
    _is_broken: bool = False
    #: The last STATUS line, and the state that it reported.
    _last_text: str = ""
    _state: tuple[str, str] = ("", "")
    #: When the main thread was last checked.
    _pinged_at: float = field(default_factory=time.monotonic)

    def watch(self, engine: WatchedEngine) -> None:
        """Start reporting on ``engine``, in a separate thread."""
        self._thread = threading.Thread(target=self._work, args=(engine,), name="systemd", daemon=True)
        self._thread.start()

    def end(self, exit_code: int, message: str) -> None:
        """Report that the relay has ended, with its message; its process ends right afterwards."""
        self._stop.set()
        if self._thread is not None:
            # The thread may be blocked if stderr has no reader: the relay ends all the same.
            self._thread.join(_END_SECONDS)
        # If systemd has not seen the start complete, it would report that the start failed.
        ready = ("READY=1",) if exit_code == 0 and not self._is_ready else ()
        how = f"ended with exit code {exit_code}" if exit_code else "ended"
        self.socket.send(*ready, "STOPPING=1", "STATUS=" + _line(": ".join(filter(None, (how, message)))))

    def _work(self, engine: WatchedEngine) -> None:
        while True:
            lines = self._pings(engine.turn(), time.monotonic())
            try:
                self._report(engine.measures(), lines)
            except Exception as error:
                # A failing status snapshot must not end a relay whose main thread is alive.
                if lines:
                    self.socket.send(*lines)
                self._report_broken(error)
            if self._stop.wait(min(_LOOK_SECONDS, self._ping_seconds)):
                return

    def _report_broken(self, error: Exception) -> None:
        if not self._is_broken:
            self._is_broken = True
            # The text of an unexpected exception may contain a row value.
            text = "the relay's state can't be reported to systemd: %s"
            _log.error(text, type(error).__name__, extra=event("supervisor_untold"))

    @property
    def _ping_seconds(self) -> float:
        return (self.watchdog_seconds or _EXTENSION_SECONDS) / _PINGS

    def _report(self, measures: Measures, lines: list[str]) -> None:
        """Send ``lines``, and everything that is new."""
        status = measures.status
        if not self._is_ready and (status.phase or status.state) not in ("starting", "stopped", "failed"):
            lines.append("READY=1")
        if measures.is_stopping and not self._is_stopping:
            lines.append("STOPPING=1")
        verdict, text = status.verdict, _line(_status_text(status))
        about = verdict.cause if status.state == "stalled" else key_of(status) or status.detail
        state = (status.state, about)
        # The sentence of a stall contains its duration, which differs each time.
        if state != self._state or (lines and text != self._last_text):
            lines.append("STATUS=" + text)
        if lines and self.socket.send(*lines):
            self._is_ready = self._is_ready or "READY=1" in lines
            self._is_stopping = self._is_stopping or "STOPPING=1" in lines
            self._state, self._last_text = state, text

    def _pings(self, turn: MainThreadActivity, now: float) -> list[str]:
        """Return the due lines, if the main thread was alive since lines were last due."""
        since = now - self._pinged_at
        if since < self._ping_seconds:
            return []
        self._pinged_at = now
        # An activity that waits within one call has recorded its start before the call.
        if turn.idle_seconds > since and turn.activity not in WITHIN_ONE_CALL:
            return []
        lines = ["WATCHDOG=1"] if self.watchdog_seconds else []
        if not self._is_ready or self._is_stopping:
            lines.append(f"EXTEND_TIMEOUT_USEC={int(_EXTENSION_SECONDS * 1e6)}")
        return lines


def _print_line(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        say(line, err=True)


def supervisor_of(environment: MutableMapping[str, str]) -> SystemdNotifier | None:
    """Return the supervisor that expects reports on this process, or None; child processes don't inherit it.

    ``environment`` is this process's, from which the variables are removed.
    """
    address = environment.pop("NOTIFY_SOCKET", "")
    microseconds = environment.pop("WATCHDOG_USEC", "")
    watched = environment.pop("WATCHDOG_PID", "")
    if not address:
        return None
    is_ours = watched in ("", str(os.getpid()))
    # As systemd itself reads it: without a valid number there is no watchdog.
    seconds = int(microseconds) / 1e6 if is_ours and microseconds.isdecimal() else 0.0
    return SystemdNotifier(NotifySocket(address), seconds)


def _status_text(status: Status) -> str:
    text = status.verdict.sentence or status.detail
    if status.verdict.condition == "not_proven":
        return f"not proven: {text}"
    return f"{status.state}: {text}" if text and text != status.state else status.state


def _line(text: str) -> str:
    """Return ``text`` as the value of one line: text from services must not begin another line."""
    # Escape before cutting: an escape has up to ten characters.
    return shorten(escape(mask_connection(text)), _STATUS_CHARACTERS)
