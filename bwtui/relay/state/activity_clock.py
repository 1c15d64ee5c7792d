"""The activity clock: how the relay's main thread spends its time, and its current activity.

The main thread records each change of activity, a few times per batch and never per row; other threads read
the clock without a lock. `bwtui.relay.watch.judge` needs nothing more to determine what the relay is blocked
on.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

#: The activities of the main thread:
#: "work": reading received data, decoding, encoding; "produce": handing messages to the sink;
#: "read": waiting for the stream; "copy": a snapshot's COPY, whose rows arrive one by one;
#: "scan": a COPY with a row filter, which may pass no rows for a long time;
#: "room": waiting until less is in flight; "settling": waiting until everything in flight is settled;
#: "ledger": waiting only for the recording's disk; "readback": reading topics;
#: "ending": waiting for PostgreSQL to end the stream; "state": writing state files durably;
#: "topics", "catalog", "registry": calling Kafka, PostgreSQL, the registry in helper threads;
#: "connect": opening a session to stream; "slot": waiting for transactions before a slot is created;
#: "locks": waiting for locks on tables before they are copied; "disk": writing the recording;
#: "begin": everything before there is a stream.
Activity = Literal[
    "begin",
    "work",
    "produce",
    "read",
    "copy",
    "scan",
    "room",
    "settling",
    "ledger",
    "readback",
    "ending",
    "state",
    "topics",
    "catalog",
    "registry",
    "connect",
    "slot",
    "locks",
    "disk",
]


@dataclass(frozen=True, slots=True)
class MainThreadActivity:
    """The main thread's activity, and the seconds since it last changed it or checked whether to stop."""

    activity: Activity = "begin"
    idle_seconds: float = 0.0


class ActivityClock:
    """The main thread's time; times are those of ``time.monotonic``."""

    __slots__ = ("_seconds", "_thread", "_turned_at", "answered_at", "current")

    def __init__(self) -> None:
        # Create all keys at once: another thread can't copy a dict that grows.
        self._seconds: dict[Activity, float] = dict.fromkeys(get_args(Activity), 0.0)
        #: The current activity, and its start. Replaced whole, so that a reader never sees half of it.
        self.current: tuple[Activity, float] = ("begin", time.monotonic())
        #: When the last of several answers arrived that the main thread waits for; 0 if none has.
        self.answered_at = 0.0
        self._thread = threading.get_ident()
        self._turned_at = time.monotonic()

    def turn_to(self, activity: Activity) -> Activity:
        """Record the main thread's new activity, and return the previous one.

        Repeating the current activity continues it: it keeps its start time.
        """
        before, since = self.current
        self._turned_at = now = time.monotonic()
        if activity != before:
            # In this order: a reader in between misses a period for a moment, and counts none twice.
            self.current = (activity, now)
            self._seconds[before] += now - since
        return before

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Set ``activity`` during the block, and restore the previous one afterwards, even after an error."""
        before = self.turn_to(activity)
        try:
            yield
        finally:
            self.turn_to(before)

    def turned(self) -> None:
        """Record that the main thread is alive; calls from other threads have no effect."""
        if threading.get_ident() == self._thread:
            self._turned_at = time.monotonic()

    def turn(self) -> MainThreadActivity:
        """Return the main thread's current activity; any thread may call this."""
        return MainThreadActivity(self.current[0], max(0.0, time.monotonic() - self._turned_at))

    def answered(self) -> None:
        """Record that one of several answers arrived; any thread may call this."""
        self.answered_at = time.monotonic()

    def totals(self, now: float) -> dict[Activity, float]:
        """Return the seconds of each activity up to ``now``, including the current one; thread-safe."""
        # In this order, see `turn_to`: a period that ends in between is missed briefly, not counted twice.
        seconds = dict(self._seconds)
        activity, since = self.current
        seconds[activity] += max(0.0, now - since)
        return seconds
