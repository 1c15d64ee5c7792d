"""What is asked of the services only while somebody looks, and handed out without waiting for them.

Whoever asks gets the last answer at once, and has another one taken by that: of Kafka in a thread of its own,
which hangs up and ends soon after the last question; of PostgreSQL over the session of `bwtui.source.lag`.
A screen that shows a little of it beside much else only glances: then both are asked every few seconds.
"""

import threading
import time
from collections.abc import Callable

from bwtui.command_log import COMMANDS
from bwtui.config import listed
from bwtui.crash import crash
from bwtui.model.looks import Configuration, Consumers, Look, LookName, Slots
from bwtui.relay.report import Report
from bwtui.relay.samples import Samples
from bwtui.settings import RelaySettings
from bwtui.sink.destination import Readers
from bwtui.source.connection import Connection
from bwtui.source.retention import look_at

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


class Watch:
    """Looks at the consumers for as long as somebody asks, in a thread that hangs up afterwards."""

    def __init__(self, look: Callable[[], Consumers], close: Callable[[], None]) -> None:
        """``look`` and ``close`` are called in the thread alone."""
        self._latest = Consumers()
        self._look = look
        self._close = close
        self._attention = Attention()
        #: When the last look ended, and for how long to rest after it.
        self._looked, self._rest = float("-inf"), 0.0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._runs = False

    def latest(self, *, glance: bool = False) -> Consumers:
        """Return the last look, and have another one taken."""
        with self._lock:
            self._attention.pay(glance=glance)
            if not self._runs and not self._stop.is_set():
                self._runs = True
                threading.Thread(target=self._work, name="consumers", daemon=True).start()
        return self._latest

    def stop(self) -> None:
        """Take no look any more; one that is under way ends by itself."""
        self._stop.set()

    def _work(self) -> None:
        while self._goes_on():
            if self._attention.is_due(self._looked, self._rest):
                self._look_once()
            self._stop.wait(_PAUSE_SECONDS)

    def _look_once(self) -> None:
        begun = time.monotonic()
        try:
            self._latest = self._look()
        except Exception as error:
            self._latest = Consumers(time.time(), crash(error).message)
        self._looked = time.monotonic()
        self._rest = max(_PAUSE_SECONDS, min(_REST * (self._looked - begun), _MOST_SECONDS))

    def _is_wanted(self) -> bool:
        return not self._stop.is_set() and self._attention.is_paid()

    def _goes_on(self) -> bool:
        """Say whether to look again; if not, hang up, unless somebody asked meanwhile."""
        if not self._is_wanted():
            self._close()
        with self._lock:
            self._runs = self._is_wanted()
            return self._runs


class Looks:
    """All looks of one engine; any thread may ask for one."""

    def __init__(self, settings: RelaySettings, readers: Readers, report: Report, samples: Samples) -> None:
        """``report`` knows the relay's topics at the time of a look."""
        self._samples = samples
        self._configuration = Configuration(time=time.time(), settings=listed(settings))
        self._consumers = Watch(lambda: readers.look(_topics(settings, report)), readers.close)
        self._slots = Slots()
        self._slots_attention, self._slots_looked = Attention(), float("-inf")

    def look(self, name: LookName, *, glance: bool = False) -> Look:
        """Return the last look of that name, at once."""
        if name == "slots":
            self._slots_attention.pay(glance=glance)
            return self._slots
        if name == "consumers":
            return self._consumers.latest(glance=glance)
        if name == "commands":
            return COMMANDS.picture()
        if name == "stages":
            return self._samples.stages()
        return self._configuration

    def tick(self, connection: Connection) -> None:
        """Look at the slots, if somebody asked; over the session that looks at the relay's own each second.

        Raises psycopg2.Error when the server does not answer.
        """
        if self._slots_attention.is_due(self._slots_looked, 0.0):
            self._slots_looked = time.monotonic()
            self._slots = look_at(connection)

    def close(self) -> None:
        """Take no look any more."""
        self._consumers.stop()


def _topics(settings: RelaySettings, report: Report) -> set[str]:
    apart = {settings.dead_letter_topic, settings.truncate_topic}
    return {counters.topic for counters in report.tables.values()} | apart - {""}
