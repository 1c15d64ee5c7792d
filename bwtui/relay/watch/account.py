"""Where the relay's main thread spends its time, and what it does at present.

The main thread says what it turns to, a few times a batch and never a row; other threads read it without a
lock. That is all the judge of `bwtui.relay.watch.judge` needs to know whom the relay waits for.
"""

import time
from typing import Literal, get_args

#: What the main thread may be at:
#: "work": reading what has arrived, decoding, encoding; "produce": handing messages to the sink;
#: "read": waiting for the stream; "copy": a snapshot's COPY, of which rows come one by one;
#: "room": waiting until less is in flight; "answers": waiting until everything in flight is settled;
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
    "room",
    "answers",
    "topics",
    "catalog",
    "registry",
    "connect",
    "slot",
    "locks",
    "disk",
]


class Account:
    """The main thread's time; times are those of ``time.monotonic``."""

    __slots__ = ("_seconds", "current")

    def __init__(self) -> None:
        # All of them at once: a dict that grows can't be copied by another thread.
        self._seconds: dict[Activity, float] = dict.fromkeys(get_args(Activity), 0.0)
        #: What it is at, and since when. Replaced whole, so that a reader never sees half of it.
        self.current: tuple[Activity, float] = ("begin", time.monotonic())

    def turn_to(self, activity: Activity) -> Activity:
        """Note what the main thread does from now on, and return what it did before.

        To go on with the same is one stay: it began when it was first turned to.
        """
        before, since = self.current
        if activity != before:
            now = time.monotonic()
            self._seconds[before] += now - since
            self.current = (activity, now)
        return before

    def totals(self, now: float) -> dict[Activity, float]:
        """Return the seconds of each activity up to ``now``, the present one's included; any thread may."""
        activity, since = self.current
        seconds = dict(self._seconds)
        seconds[activity] += max(0.0, now - since)
        return seconds
