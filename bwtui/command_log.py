"""Log the statements and requests that this process sends to PostgreSQL, the registry and Kafka.

Equal commands with the same outcome are one entry with a count, so that polls push nothing out. Texts contain
no row values (parameters are not in them), and no secrets. Rows of the stream make no entry: only round trips
to a service are logged.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from bwtui.masking import mask_connection
from bwtui.model.service_views import CommandEntry, Commands

POSTGRES, REGISTRY, KAFKA = "PostgreSQL", "registry", "Kafka"
UNDER_WAY = "under way"
#: Maximum number of entries, and of characters in each.
_MAXIMUM = 500
_LENGTH = 2_000

_Key = tuple[str, str, str]


def _kind(error: BaseException) -> str:
    return type(error).__name__


@dataclass(slots=True)
class _CommandTotals:
    """The totals of all commands of one entry."""

    first: float
    time: float
    seconds: float
    slowest: float
    total: float
    count: int = 1


class _LoggedCommand:
    """Ends a command with its block; cheaper than a generator, since some statements fetch single rows."""

    __slots__ = ("_end", "_outcome")

    def __init__(self, end: Callable[[str], None], outcome: Callable[[BaseException], str]) -> None:
        self._end = end
        self._outcome = outcome

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end("" if error is None else self._outcome(error))


class CommandLog:
    """A bounded list of entries; any thread may add to it and read it."""

    def __init__(self, maximum: int = _MAXIMUM) -> None:
        self._maximum = maximum
        self._entries: dict[_Key, _CommandTotals] = {}
        self._under_way: dict[int, tuple[str, str, float]] = {}
        self._numbers = count()
        self._forgotten = 0
        self._lock = threading.Lock()

    def issued(
        self, service: str, text: str, outcome: Callable[[BaseException], str] = _kind
    ) -> "_LoggedCommand":
        """Log that ``text`` is sent to ``service``, and how the block ends; exceptions are propagated.

        ``outcome`` describes an error in a few words, without any row value.
        """
        return _LoggedCommand(self.begin(service, text), outcome)

    def begin(self, service: str, text: str) -> Callable[[str], None]:
        """Log the start of a command; call the returned function once, with its outcome."""
        text, number, begun, at = _shown(text), next(self._numbers), time.perf_counter(), time.time()
        self._under_way[number] = (service, text, at)

        def end(result: str) -> None:
            seconds = time.perf_counter() - begun
            with self._lock:
                self._under_way.pop(number, None)
                self._add((service, text, result), at, seconds)

        return end

    def snapshot(self) -> Commands:
        """Return all entries, oldest first, and then the commands in progress."""
        now = time.time()
        with self._lock:
            entries = [_entry(key, one) for key, one in self._entries.items()]
            waiting = list(self._under_way.values())
        for service, text, at in waiting:
            age = now - at
            entries.append(CommandEntry(service, text, UNDER_WAY, 1, at, at, age, age, age))
        return Commands(time=now, commands=tuple(entries), forgotten=self._forgotten)

    def _add(self, key: _Key, at: float, seconds: float) -> None:
        old = self._entries.pop(key, None)
        if old is None:
            self._entries[key] = _CommandTotals(at, at, seconds, seconds, seconds)
            if len(self._entries) > self._maximum:
                del self._entries[next(iter(self._entries))]
                self._forgotten += 1
            return
        old.count += 1
        old.time, old.seconds = at, seconds
        old.slowest = max(old.slowest, seconds)
        old.total += seconds
        # The newest comes last.
        self._entries[key] = old


def _entry(key: _Key, one: _CommandTotals) -> CommandEntry:
    return CommandEntry(*key, one.count, one.first, one.time, one.seconds, one.slowest, one.total)


@lru_cache(maxsize=1_024)
def _shown(text: str) -> str:
    text = mask_connection(" ".join(text.split()))
    return text if len(text) <= _LENGTH else text[:_LENGTH] + "…"


#: The log of this process.
COMMANDS = CommandLog()
