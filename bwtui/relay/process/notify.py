"""What systemd is told of a relay that it runs: sd_notify(3), datagrams of a few lines.

A thread looks at the engine, and says when the start is through, how the relay is, and that its main thread
turns. One that turns no more stops these pings, and systemd ends the process after ``WatchdogSec``. While a
start or a stop takes long and the main thread turns, systemd is asked for more time.
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
from bwtui.masking import mask_connection
from bwtui.model.events import event
from bwtui.model.gaps import key_of
from bwtui.model.status import Status
from bwtui.relay.measured.measures import Measures
from bwtui.relay.observed.health import WITHIN_ONE_CALL
from bwtui.relay.process.log import json_lines
from bwtui.relay.watch.account import Turn
from bwtui.shown import shortened, shown

#: So often it is looked what is new (seconds); more often where the watchdog is shorter.
_LOOK_SECONDS = 1.0
#: A ping comes so many times within ``WatchdogSec``, so that one may be late.
_PINGS = 4
#: What a start or a stop asks for (seconds), each time that a ping is due.
_EXTENSION_SECONDS = 60.0
#: So long systemd may be busy with others (seconds); what it did not take is said once more.
_SEND_SECONDS = 1.0
#: So long the last look may take (seconds).
_END_SECONDS = 5.0
#: systemd takes datagrams of up to 4096 bytes, and a character has up to four.
_STATUS_CHARACTERS = 500
_log = logging.getLogger(__name__)


class Watched(Protocol):
    """The engine, as far as it is looked at; from any thread, and at once."""

    def measures(self) -> Measures:
        """Return what is known of this moment."""

    def turn(self) -> Turn:
        """Return what the main thread is at."""


@dataclass(slots=True)
class NotifySocket:
    """The socket on which systemd listens; nothing that goes wrong with it harms the relay."""

    address: str
    _is_told: bool = False

    def send(self, *lines: str) -> bool:
        """Send ``lines``, and return whether they were taken; the first time that they weren't is told."""
        # "@" stands for the byte before names that are in no file system.
        place = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            if place[:1] not in ("/", "\0"):
                raise OSError(0, "it is neither a path nor an abstract address")
            # A new one each time: systemd may have been started again meanwhile.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_SEND_SECONDS)
                sender.sendto("\n".join(lines).encode(), place)
        except (OSError, ValueError) as error:
            self._tell(error)
            return False
        return True

    def _tell(self, error: Exception) -> None:
        if self._is_told:
            return
        self._is_told = True
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        words = f"systemd can't be told how the relay is (NOTIFY_SOCKET is {self.address!r}): {reason}"
        record = _log.makeRecord(
            _log.name, logging.WARNING, "", 0, "%s", (words,), None, extra=event("supervisor_untold")
        )
        _log.handle(record)
        lines = json_lines()
        says = lines.format(record) if lines else f"bwtui: notice: {words}; the relay goes on"
        # Nobody may be reading stderr: neither the pings wait for that for long, nor the end of the relay.
        saying = threading.Thread(target=_say, args=(says,), name="systemd is not told", daemon=True)
        saying.start()
        saying.join(_SEND_SECONDS)


@dataclass(slots=True)
class Supervisor:
    """Tells systemd of one engine, from `watch` to `end`."""

    socket: NotifySocket
    #: ``WatchdogSec``; 0: there is none.
    watchdog_seconds: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _is_ready: bool = False
    _is_stopping: bool = False
    _is_broken: bool = False
    #: What the last STATUS said, and of which state.
    _said: str = ""
    _state: tuple[str, str] = ("", "")
    #: When it was last looked whether the main thread turns.
    _pinged_at: float = field(default_factory=time.monotonic)

    def watch(self, engine: Watched) -> None:
        """Begin to tell of ``engine``, in a thread of its own."""
        self._thread = threading.Thread(target=self._work, args=(engine,), name="systemd", daemon=True)
        self._thread.start()

    def end(self, exit_code: int, message: str) -> None:
        """Say that the relay has ended, and with which words; its process ends at once."""
        self._stop.set()
        if self._thread is not None:
            # It may hang where nobody reads our stderr: the relay ends all the same.
            self._thread.join(_END_SECONDS)
        # Of a start that systemd has not seen the end of it would say that it failed.
        ready = ("READY=1",) if exit_code == 0 and not self._is_ready else ()
        how = f"ended with exit code {exit_code}" if exit_code else "ended"
        self.socket.send(*ready, "STOPPING=1", "STATUS=" + _line(": ".join(filter(None, (how, message)))))

    def _work(self, engine: Watched) -> None:
        while True:
            lines = self._pings(engine.turn(), time.monotonic())
            try:
                self._look(engine.measures(), lines)
            except Exception as error:
                # A picture that can't be had is no reason to end a relay whose main thread turns.
                if lines:
                    self.socket.send(*lines)
                self._tell_broken(error)
            if self._stop.wait(min(_LOOK_SECONDS, self._ping_seconds)):
                return

    def _tell_broken(self, error: Exception) -> None:
        if not self._is_broken:
            self._is_broken = True
            # The text of an unexpected exception may hold a row value.
            text = "systemd is not told how the relay is: %s"
            _log.error(text, type(error).__name__, extra=event("supervisor_untold"))

    @property
    def _ping_seconds(self) -> float:
        return (self.watchdog_seconds or _EXTENSION_SECONDS) / _PINGS

    def _look(self, measures: Measures, lines: list[str]) -> None:
        """Say ``lines``, and what is new."""
        status = measures.status
        if not self._is_ready and (status.phase or status.state) not in ("starting", "stopped", "failed"):
            lines.append("READY=1")
        if measures.is_stopping and not self._is_stopping:
            lines.append("STOPPING=1")
        verdict, words = status.verdict, _line(_words(status))
        about = verdict.cause if status.state == "stalled" else key_of(status) or status.detail
        state = (status.state, about)
        # The sentence of a stall says for how long, which is new each time.
        if state != self._state or (lines and words != self._said):
            lines.append("STATUS=" + words)
        if lines and self.socket.send(*lines):
            self._is_ready = self._is_ready or "READY=1" in lines
            self._is_stopping = self._is_stopping or "STOPPING=1" in lines
            self._state, self._said = state, words

    def _pings(self, turn: Turn, now: float) -> list[str]:
        """Return what is due, if the main thread has turned since that was due last."""
        since = now - self._pinged_at
        if since < self._ping_seconds:
            return []
        self._pinged_at = now
        # What waits within one call has said so before it.
        if turn.idle_seconds > since and turn.activity not in WITHIN_ONE_CALL:
            return []
        lines = ["WATCHDOG=1"] if self.watchdog_seconds else []
        if not self._is_ready or self._is_stopping:
            lines.append(f"EXTEND_TIMEOUT_USEC={int(_EXTENSION_SECONDS * 1e6)}")
        return lines


def _say(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        say(line, err=True)


def supervisor_of(environment: MutableMapping[str, str]) -> Supervisor | None:
    """Return who is to be told of this process, if somebody is; nothing that it starts is told of that.

    ``environment`` is this process's, from which the variables are taken.
    """
    address = environment.pop("NOTIFY_SOCKET", "")
    microseconds = environment.pop("WATCHDOG_USEC", "")
    watched = environment.pop("WATCHDOG_PID", "")
    if not address:
        return None
    is_ours = watched in ("", str(os.getpid()))
    # As systemd itself reads it: what is no number is no watchdog.
    seconds = int(microseconds) / 1e6 if is_ours and microseconds.isdecimal() else 0.0
    return Supervisor(NotifySocket(address), seconds)


def _words(status: Status) -> str:
    words = status.verdict.sentence or status.detail
    if status.verdict.condition == "not_proven":
        return f"not proven: {words}"
    return f"{status.state}: {words}" if words and words != status.state else status.state


def _line(text: str) -> str:
    """Return ``text`` as the value of one line: what comes from services must not begin another one."""
    # Shown before it is cut: an escape has up to ten characters.
    return shortened(shown(mask_connection(text)), _STATUS_CHARACTERS)
