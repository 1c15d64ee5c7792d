"""Measurements of a relay for HTTP clients, collected in a separate thread.

Collecting sometimes queries the system, for example for the free space of the recording's disk, and a disk
may hang. The liveness probe does not need measurements and is answered immediately all the same.
"""

import threading
import time

from bwtui.blocking import BlockingCalls
from bwtui.errors import ConnectionFailed
from bwtui.relay.metrics.measures import Measures
from bwtui.relay.process.server import StatusSource

#: Maximum number of 50 ms waits before a client gets an error instead of measurements. They are counted,
#: since the clock advances while the whole process is suspended.
_PATIENCE = 20
_NO_PICTURE = (
    "the relay's measurements are unavailable: a system call that they need, for example "
    "for the recording's disk, does not return"
)


_HINT = "check that disk; the relay continues on its own"


class MeasurementCollector:
    """Collects one set of measurements at a time; one thread at a time may call it."""

    def __init__(self, source: StatusSource) -> None:
        self._source = source
        self._calls = BlockingCalls(self._check)
        self._waits = 0
        #: True while a collection runs; the event is set when another one may start.
        self._is_at_it = False
        self._idle = threading.Event()
        self._idle.set()
        self._cpu_seconds = 0.0

    def collect(self) -> Measures:
        """Return the current measurements. Raises ConnectionFailed if they do not arrive."""
        if not self._idle.is_set():
            raise ConnectionFailed(_NO_PICTURE, _HINT)
        self._idle.clear()
        self._waits = 0
        try:
            return self._calls.make(self._take)
        finally:
            # The helper thread has not started the collection, and never will.
            if not self._is_at_it:
                self._idle.set()

    def spent(self) -> float:
        """Return the CPU seconds that collections used since the last call."""
        spent, self._cpu_seconds = self._cpu_seconds, 0.0
        return spent

    def close(self) -> None:
        """Let the thread end, once it can."""
        self._calls.close()

    def _take(self) -> Measures:
        self._is_at_it = True
        begun = time.thread_time()
        try:
            return self._source.measures()
        finally:
            self._cpu_seconds += time.thread_time() - begun
            self._is_at_it = False
            self._idle.set()

    def _check(self, seconds: float) -> None:
        self._waits += 1
        if self._waits > _PATIENCE:
            raise ConnectionFailed(_NO_PICTURE, _HINT)
