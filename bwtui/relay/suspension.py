"""Notices that this process was suspended: a paused container, a frozen pod, a laptop that slept.

A relay that was suspended may wake beside the one that has taken its place, and what it still has to send is
older than what that one has sent. All threads wake together, librdkafka's too: see
docs/adr/0010-queue-messages-in-the-relay.md for what can be kept back, and what can't.
"""

import logging
import threading
import time
from collections.abc import Callable

from bwtui.model.events import event

_log = logging.getLogger(__name__)
_TICK_SECONDS = 0.25
#: A stall of the machine is shorter, and the server's wal_sender_timeout longer.
GAP_SECONDS = 10.0


def _now() -> tuple[float, float]:
    """Return two clocks: one that counts a machine's sleep, and the wall's, which is set after a pause."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)), time.time()


class Suspension:
    """Watches during a block, in a thread of its own: a long turn of the relay's is no suspension."""

    def __init__(self, on_gap: Callable[[], None], clocks: Callable[[], tuple[float, ...]] = _now) -> None:
        """``on_gap`` is called as soon as the process is awake again, in whichever thread looks first."""
        self._on_gap = on_gap
        self._clocks = clocks
        self._last = clocks()
        self._seconds = 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="suspension", daemon=True)

    def __enter__(self) -> "Suspension":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def take(self) -> float:
        """Return how long the process was suspended since the last call, in seconds; 0: it was not."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def look(self) -> None:
        """Compare the clocks with those of the last look; also called right before anything is sent.

        All threads wake together. The second to look waits until the first has acted on what it saw.
        """
        with self._lock:
            before, self._last = self._last, self._clocks()
            gap = max(now - then for then, now in zip(before, self._last, strict=True))
            if gap >= GAP_SECONDS:
                # First, for who sees the messages fail looks for the reason.
                self._seconds = gap
                self._on_gap()
                _log.warning(
                    "the relay was suspended for %.0f s", gap, extra=event("relay_suspended", seconds=gap)
                )

    def _watch(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            self.look()
