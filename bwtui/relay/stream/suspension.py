"""Detects that this process was suspended: a paused container, a frozen pod, a laptop that slept.

A suspended relay may wake up while its replacement is running, and the messages that it still has to send are
older than those that the replacement has sent. All threads wake together, including librdkafka's: see
docs/adr/0010-queue-messages-in-the-relay.md for which messages can be held back, and which can't.
"""

import logging
import threading
import time
from collections.abc import Callable

from bwtui.model.events import event

_log = logging.getLogger(__name__)
_TICK_SECONDS = 0.25
#: A stall of the machine is shorter than this, and the server's wal_sender_timeout is longer.
GAP_SECONDS = 10.0


def _now() -> tuple[float, float]:
    """Return a clock that counts the machine's sleep, and the wall clock, which is set after a pause."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)), time.time()


class SuspensionDetector:
    """Watches during a block, in its own thread: a long turn of the relay's loop is not a suspension."""

    def __init__(self, on_gap: Callable[[], None], clocks: Callable[[], tuple[float, ...]] = _now) -> None:
        """``on_gap`` is called as soon as the process is awake again, in the thread that notices first."""
        self._on_gap = on_gap
        self._clocks = clocks
        self._last = clocks()
        self._seconds = 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="suspension", daemon=True)

    def __enter__(self) -> "SuspensionDetector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def take(self) -> float:
        """Return the seconds that the process was suspended since the last call; 0 if it was not."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def check(self) -> None:
        """Compare the clocks with those of the last call; also called right before anything is sent.

        All threads wake together. The second thread to call waits until the first has acted on the gap.
        """
        with self._lock:
            before, self._last = self._last, self._clocks()
            gap = max(now - then for then, now in zip(before, self._last, strict=True))
            if gap >= GAP_SECONDS:
                # First, because code that sees the messages fail looks here for the reason.
                self._seconds = gap
                self._on_gap()
                _log.warning(
                    "the relay was suspended for %.0f s", gap, extra=event("relay_suspended", seconds=gap)
                )

    def _watch(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            self.check()
