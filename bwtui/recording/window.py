"""The changes around a position: as many as a screen needs, all of them or those that a query lets by."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bwtui.pgoutput.messages import Field
from bwtui.recording.change import Change
from bwtui.recording.view import OnProgress, RecordingView

#: Changes on each side of the position.
SIZE = 150
#: Bytes of rows on each side; one change is always taken, however large.
WEIGHT = 4 << 20
#: Changes between two calls of the progress function.
STEP = 1_000

Matches = Callable[[Change], bool]


@dataclass(frozen=True)
class Bounds:
    """The part of a recording that is looked at: ``[start, stop)``."""

    start: int
    stop: int


@dataclass(frozen=True)
class Window:
    """Changes in order; every match in ``[low, high)`` is among them."""

    changes: tuple[Change, ...] = ()
    low: int = 0
    high: int = 0
    bounds: Bounds = field(default_factory=lambda: Bounds(0, 0))
    #: The search was cancelled before it had found enough.
    cut: bool = False

    def covers(self, position: int, margin: int) -> bool:
        """Tell whether there are ``margin`` changes on both sides of a position, or all that there are."""
        if not self.low <= position <= self.high:
            return False
        before = sum(change.position < position for change in self.changes)
        enough_before = before >= margin or self.low <= self.bounds.start
        enough_behind = len(self.changes) - before >= margin or self.high >= self.bounds.stop
        return enough_before and enough_behind


def window(
    view: RecordingView,
    position: int,
    bounds: Bounds,
    matches: Matches | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    on_progress: OnProgress = lambda done, total: None,
) -> Window:
    """Return the changes around ``position`` within ``bounds``. Raises DamagedRecording."""
    position = min(max(position, bounds.start), bounds.stop)
    search = _Search(matches, cancelled, on_progress, bounds.stop - bounds.start)
    before, low = search.take(_back(view, position, bounds.start), bounds.start)
    behind, high = search.take(view.changes(position, bounds.stop), bounds.stop)
    # A cancelled search has seen everything up to where it stopped, and no more.
    low, high = min(low, position), max(high, position)
    return Window((*reversed(before), *behind), low, high, bounds, search.stopped)


def _back(view: RecordingView, stop: int, start: int) -> Iterator[Change]:
    if stop <= start:
        return
    for change in view.changes_before(stop):
        if change.position < start:
            return
        yield change


@dataclass
class _Search:
    matches: Matches | None
    cancelled: Callable[[], bool]
    on_progress: OnProgress
    total: int
    read: int = 0
    stopped: bool = False

    def take(self, changes: Iterator[Change], end: int) -> tuple[list[Change], int]:
        """Return matches until there are enough, and up to where everything was seen."""
        found: list[Change] = []
        weight = 0
        for change in changes:
            if len(found) >= SIZE or weight > WEIGHT or self.stopped:
                forward = end > change.position
                return found, change.position if forward else change.position + 1
            if self.matches is None or self.matches(change):
                found.append(change)
                weight += _weight(change)
            self.read += 1
            if self.read % STEP == 0:
                self.on_progress(self.read, self.total)
                self.stopped = self.cancelled()
        return found, end


def _weight(change: Change) -> int:
    rows = sum(_length(f) for row in (change.before, change.after) if row is not None for f in row)
    return rows + sum(len(m.key or b"") + len(m.value or b"") for m in change.messages)


def _length(value: Field) -> int:
    return len(value) if isinstance(value, bytes) else 0
