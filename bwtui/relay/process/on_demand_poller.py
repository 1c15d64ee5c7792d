"""Polling of a service only while clients request it, in a thread that disconnects afterwards."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from bwtui.crash import crash

T = TypeVar("T")

#: A client counts as watching for this many seconds after its last request.
ATTENTION_SECONDS = 5.0
#: Minimum and maximum seconds between two polls; in between, four times as long as the poll took.
_PAUSE_SECONDS, _MOST_SECONDS = 1.0, 10.0
_REST = 4.0
#: A glance counts for the first number of seconds; with glances only, polls are the second number apart.
GLANCE_SECONDS, GLANCE_PAUSE_SECONDS = 15.0, 5.0


class PollDemand:
    """The times of the last request and of the last glance, by the monotonic clock."""

    def __init__(self) -> None:
        self._polled_at = self._glanced = float("-inf")

    def pay(self, *, glance: bool) -> None:
        if glance:
            self._glanced = time.monotonic()
        else:
            self._polled_at = time.monotonic()

    def is_due(self, last: float, pause: float) -> bool:
        """Return whether to poll again, at least ``pause`` seconds after the ``last`` time."""
        since = time.monotonic() - last
        return (self._is_watched() and since >= pause) or (
            self._is_glanced_at() and since >= max(pause, GLANCE_PAUSE_SECONDS)
        )

    def is_paid(self) -> bool:
        """Return whether there are recent requests or glances."""
        return self._is_watched() or self._is_glanced_at()

    def _is_watched(self) -> bool:
        return time.monotonic() - self._polled_at < ATTENTION_SECONDS

    def _is_glanced_at(self) -> bool:
        return time.monotonic() - self._glanced < GLANCE_SECONDS


class OnDemandPoller(Generic[T]):
    """Polls while there are requests; each request returns the last result at once."""

    def __init__(
        self,
        look: Callable[[], T],
        close: Callable[[], None],
        failed: Callable[[float, str], T],
        name: str,
        most: float = _MOST_SECONDS,
    ) -> None:
        """``look`` and ``close`` are called only in the thread, which is called ``name``.

        ``failed`` makes a result of a time and the reason for the failure; both are empty before the first
        poll. Two polls are at most ``most`` seconds apart.
        """
        self.shown = failed(0.0, "")
        self._look, self._close, self._failed, self._name = look, close, failed, name
        self._demand = PollDemand()
        #: When the last poll ended, how long to rest after it, and the maximum rest.
        self._polled_at, self._rest, self._most = float("-inf"), 0.0, most
        self._stop, self._hurry = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._runs = False

    def latest(self, *, glance: bool = False) -> T:
        """Return the last result, and schedule another poll."""
        with self._lock:
            self._demand.pay(glance=glance)
            if not self._runs and not self._stop.is_set():
                self._runs = True
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return self.shown

    def hurry(self) -> None:
        """Poll at once, because something else is requested."""
        self._hurry.set()

    def stop(self) -> None:
        """Stop polling; a poll that is in progress ends on its own."""
        self._stop.set()
        self._hurry.set()

    def show(self, look: T) -> None:
        """Return partial results of the poll in progress from now on."""
        self.shown = look

    def pause(self, seconds: float) -> None:
        """Pause within a poll."""
        self._stop.wait(min(seconds, _PAUSE_SECONDS))

    def _work(self) -> None:
        while self._continues():
            if self._hurry.is_set() or self._demand.is_due(self._polled_at, self._rest):
                self._hurry.clear()
                self._poll()
            self._hurry.wait(_PAUSE_SECONDS)

    def _poll(self) -> None:
        begun = time.monotonic()
        try:
            self.shown = self._look()
        except Exception as error:
            self.shown = self._failed(time.time(), crash(error).message)
        self._polled_at = time.monotonic()
        self._rest = max(_PAUSE_SECONDS, min(_REST * (self._polled_at - begun), self._most))

    def _disconnect(self) -> None:
        try:
            self._close()
        except Exception as error:
            # The next request needs a new thread, so this one has to end normally.
            self.shown = self._failed(time.time(), crash(error).message)

    def _is_in_demand(self) -> bool:
        return not self._stop.is_set() and self._demand.is_paid()

    def _continues(self) -> bool:
        """Return whether to continue; if not, disconnect, unless there was a request meanwhile."""
        if not self._is_in_demand():
            self._disconnect()
        with self._lock:
            self._runs = self._is_in_demand()
            return self._runs
