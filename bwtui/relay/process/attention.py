"""Something that is looked at only while somebody asks for it, in a thread that hangs up afterwards."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from bwtui.crash import crash

T = TypeVar("T")

#: Somebody still looks who asked so many seconds ago.
ATTENTION_SECONDS = 5.0
#: Seconds between two looks, at least and at most; in between it is four times what the look took.
_PAUSE_SECONDS, _MOST_SECONDS = 1.0, 10.0
_REST = 4.0
#: A glance holds for so many seconds, and for glances alone so many lie between two looks.
GLANCE_SECONDS, GLANCE_PAUSE_SECONDS = 15.0, 5.0


class Attention:
    """When somebody looked, and when somebody glanced; of the monotonic clock."""

    def __init__(self) -> None:
        self._looked = self._glanced = float("-inf")

    def pay(self, *, glance: bool) -> None:
        """Note that somebody asks now."""
        if glance:
            self._glanced = time.monotonic()
        else:
            self._looked = time.monotonic()

    def is_due(self, last: float, pause: float) -> bool:
        """Say whether to look again, at least ``pause`` seconds after the ``last`` time."""
        since = time.monotonic() - last
        return (self._is_watched() and since >= pause) or (
            self._is_glanced_at() and since >= max(pause, GLANCE_PAUSE_SECONDS)
        )

    def is_paid(self) -> bool:
        """Say whether anybody looks or glances."""
        return self._is_watched() or self._is_glanced_at()

    def _is_watched(self) -> bool:
        return time.monotonic() - self._looked < ATTENTION_SECONDS

    def _is_glanced_at(self) -> bool:
        return time.monotonic() - self._glanced < GLANCE_SECONDS


class Watch(Generic[T]):
    """Looks for as long as somebody asks; whoever asks is given the last look, at once."""

    def __init__(
        self,
        look: Callable[[], T],
        close: Callable[[], None],
        failed: Callable[[float, str], T],
        name: str,
        most: float = _MOST_SECONDS,
    ) -> None:
        """``look`` and ``close`` are called in the thread alone, which is called ``name``.

        ``failed`` makes a look of a time and the reason why there is none; both are empty before the first.
        Between two looks are at most ``most`` seconds.
        """
        self.shown = failed(0.0, "")
        self._look, self._close, self._failed, self._name = look, close, failed, name
        self._attention = Attention()
        #: When the last look ended, and for how long to rest after it.
        self._looked, self._rest, self._most = float("-inf"), 0.0, most
        self._stop, self._hurry = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._runs = False

    def latest(self, *, glance: bool = False) -> T:
        """Return the last look, and have another one taken."""
        with self._lock:
            self._attention.pay(glance=glance)
            if not self._runs and not self._stop.is_set():
                self._runs = True
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return self.shown

    def hurry(self) -> None:
        """Have the next look taken at once: something else is asked for."""
        self._hurry.set()

    def stop(self) -> None:
        """Take no look any more; one that is under way ends by itself."""
        self._stop.set()
        self._hurry.set()

    def show(self, look: T) -> None:
        """Hand out from now on what is known so far; for the look that is under way."""
        self.shown = look

    def pause(self, seconds: float) -> None:
        """Rest within a look."""
        self._stop.wait(min(seconds, _PAUSE_SECONDS))

    def _work(self) -> None:
        while self._goes_on():
            if self._hurry.is_set() or self._attention.is_due(self._looked, self._rest):
                self._hurry.clear()
                self._look_once()
            self._hurry.wait(_PAUSE_SECONDS)

    def _look_once(self) -> None:
        begun = time.monotonic()
        try:
            self.shown = self._look()
        except Exception as error:
            self.shown = self._failed(time.time(), crash(error).message)
        self._looked = time.monotonic()
        self._rest = max(_PAUSE_SECONDS, min(_REST * (self._looked - begun), self._most))

    def _hang_up(self) -> None:
        try:
            self._close()
        except Exception as error:
            # Whoever asks next needs a thread again, so this one has to end in order.
            self.shown = self._failed(time.time(), crash(error).message)

    def _is_wanted(self) -> bool:
        return not self._stop.is_set() and self._attention.is_paid()

    def _goes_on(self) -> bool:
        """Say whether to look again; if not, hang up, unless somebody asked meanwhile."""
        if not self._is_wanted():
            self._hang_up()
        with self._lock:
            self._runs = self._is_wanted()
            return self._runs
