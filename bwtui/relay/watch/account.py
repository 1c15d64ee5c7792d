"""Where the relay's main thread spends its time, and what it does at present.

The main thread says what it turns to, a few times a batch and never a row; other threads read it without a
lock. That is all the judge of `bwtui.relay.watch.judge` needs to know whom the relay waits for.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

#: What the main thread may be at:
#: "work": reading what has arrived, decoding, encoding; "produce": handing messages to the sink;
#: "read": waiting for the stream; "copy": a snapshot's COPY, of which rows come one by one;
#: "scan": one of which a row filter may pass nothing for long;
#: "room": waiting until less is in flight; "settling": waiting until everything in flight is settled;
#: "ledger": waiting for the recording's disk alone; "readback": reading topics;
#: "ending": waiting for PostgreSQL to end the stream; "state": writing what is remembered, durably;
#: "topics", "catalog", "registry": asking Kafka, PostgreSQL, the registry in helper threads;
#: "connect": opening a session to stream; "slot": waiting for transactions before a slot is made;
#: "locks": waiting for locks on tables before they are copied; "disk": writing the recording;
#: "begin": what comes before there is a stream.
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
class Turn:
    """What the main thread is at, and how long ago it last said so, or looked whether to stop (seconds)."""

    activity: Activity = "begin"
    idle_seconds: float = 0.0


class Account:
    """The main thread's time; times are those of ``time.monotonic``."""

    __slots__ = ("_seconds", "_thread", "_turned_at", "answered_at", "current")

    def __init__(self) -> None:
        # All of them at once: a dict that grows can't be copied by another thread.
        self._seconds: dict[Activity, float] = dict.fromkeys(get_args(Activity), 0.0)
        #: What it is at, and since when. Replaced whole, so that a reader never sees half of it.
        self.current: tuple[Activity, float] = ("begin", time.monotonic())
        #: When one of many answers was there that the main thread waits for; 0: none was yet.
        self.answered_at = 0.0
        self._thread = threading.get_ident()
        self._turned_at = time.monotonic()

    def turn_to(self, activity: Activity) -> Activity:
        """Note what the main thread does from now on, and return what it did before.

        To go on with the same is one stay: it began when it was first turned to.
        """
        before, since = self.current
        self._turned_at = now = time.monotonic()
        if activity != before:
            # In this order: who looks in between misses a stay for a moment, and counts none twice.
            self.current = (activity, now)
            self._seconds[before] += now - since
        return before

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Be at ``activity`` during the block, and then at what was before, however it ends."""
        before = self.turn_to(activity)
        try:
            yield
        finally:
            self.turn_to(before)

    def turned(self) -> None:
        """Note that the main thread turns, if it is the one that says so; any thread may."""
        if threading.get_ident() == self._thread:
            self._turned_at = time.monotonic()

    def turn(self) -> Turn:
        """Return what the main thread is at; any thread may ask."""
        return Turn(self.current[0], max(0.0, time.monotonic() - self._turned_at))

    def answered(self) -> None:
        """Note that one of many answers is there; any thread may."""
        self.answered_at = time.monotonic()

    def totals(self, now: float) -> dict[Activity, float]:
        """Return the seconds of each activity up to ``now``, the present one's included; any thread may."""
        # In this order, see `turn_to`: a stay that ends in between is missed for a moment, not counted twice.
        seconds = dict(self._seconds)
        activity, since = self.current
        seconds[activity] += max(0.0, now - since)
        return seconds
