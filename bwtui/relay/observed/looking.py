"""Pictures of a relay for those who scrape it, taken in a thread of their own.

A picture asks the system now and then, such as for the free space of the recording's disk, and a disk may
hang. Whether the relay lives is told all the same, and at once.
"""

import threading
import time

from bwtui.blocking import BlockingCalls
from bwtui.errors import ConnectionFailed
from bwtui.relay.measured.measures import Measures
from bwtui.relay.process.server import StatusSource

#: So often it is waited for, 50 ms each, before who asked is told that there is no picture. Counted, since
#: the clock goes on while the whole process is suspended.
_PATIENCE = 20
_NO_PICTURE = (
    "the relay's figures can't be had: something that they ask of the system, such as the disk of the "
    "recording, does not answer"
)


_HINT = "see to that disk; the relay goes on by itself"


class Looking:
    """Takes one picture at a time; one thread at a time may ask."""

    def __init__(self, source: StatusSource) -> None:
        self._source = source
        self._calls = BlockingCalls(self._check)
        self._waits = 0
        #: Whether a look has begun and is not over; and whether another may be asked for.
        self._is_at_it = False
        self._idle = threading.Event()
        self._idle.set()
        self._cpu_seconds = 0.0

    def look(self) -> Measures:
        """Return the measures of this moment. Raises ConnectionFailed where they do not come."""
        if not self._idle.is_set():
            raise ConnectionFailed(_NO_PICTURE, _HINT)
        self._idle.clear()
        self._waits = 0
        try:
            return self._calls.make(self._take)
        finally:
            # A thread that has not come to look yet never will.
            if not self._is_at_it:
                self._idle.set()

    def spent(self) -> float:
        """Return the processor time that looks took since this was last asked (seconds)."""
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
