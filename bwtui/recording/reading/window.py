"""The changes around a position that a screen shows, all or those that match a query."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bwtui.recording.change import Change
from bwtui.recording.view import OnProgress, RecordingView

#: Changes on each side of the position.
SIZE = 150
#: Bytes of rows on each side; one change is always taken, however large.
WEIGHT = 4 << 20
#: Changes between two calls of the progress function.
STEP = 1_000
#: Maximum number of changes to read at once when searching backward.
_STRETCH = 20_000

Matches = Callable[[Change], bool]


@dataclass(frozen=True)
class WindowBounds:
    """The visible part of a recording: ``[start, stop)``."""

    start: int
    stop: int


@dataclass(frozen=True)
class ChangeWindow:
    """Changes in order; it includes every match in ``[low, high)``."""

    changes: tuple[Change, ...] = ()
    low: int = 0
    high: int = 0
    bounds: WindowBounds = field(default_factory=lambda: WindowBounds(0, 0))
    #: True if the search was cancelled before it found enough.
    cut: bool = False

    def covers(self, position: int, margin: int) -> bool:
        """Return whether there are ``margin`` changes on both sides of a position, or all that exist."""
        if not self.low <= position <= self.high:
            return False
        before = sum(change.position < position for change in self.changes)
        enough_before = before >= margin or self.low <= self.bounds.start
        enough_behind = len(self.changes) - before >= margin or self.high >= self.bounds.stop
        return enough_before and enough_behind


def window(
    view: RecordingView,
    position: int,
    bounds: WindowBounds,
    matches: Matches | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    on_progress: OnProgress = lambda done, total: None,
) -> ChangeWindow:
    """Return the changes around ``position`` within ``bounds``. Raises DamagedRecording."""
    position = min(max(position, bounds.start), bounds.stop)
    search = _Search(view, matches, cancelled, on_progress, bounds.stop - bounds.start)
    before, low = search.back(position, bounds.start)
    following, high = search.on(position, bounds.stop)
    return ChangeWindow((*before, *following), low, high, bounds, search.stopped)


@dataclass
class _Search:
    """Searches forward; and backward in stretches, since a recording can only be read forward."""

    view: RecordingView
    matches: Matches | None
    cancelled: Callable[[], bool]
    on_progress: OnProgress
    total: int
    read: int = 0
    stopped: bool = False
    _seen: int = 0

    def on(self, start: int, end: int) -> tuple[list[Change], int]:
        """Return the first matches from ``start`` on, and the position up to which all changes were read."""
        changes: list[Change] = []
        weight = 0
        for change in self._matching(start, end):
            changes.append(change)
            weight += _weight(change)
            if len(changes) >= SIZE or weight > WEIGHT:
                return changes, change.position + 1
        return changes, self._seen if self.stopped else end

    def back(self, stop: int, end: int) -> tuple[list[Change], int]:
        """Return the last matches before ``stop``, and the position from which on all changes were read."""
        changes: deque[tuple[Change, int]] = deque()
        stretch = SIZE
        while stop > end and len(changes) < SIZE:
            start = max(stop - stretch, end)
            part: deque[tuple[Change, int]] = deque()
            weight, cut = sum(w for _, w in changes), False
            for change in self._matching(start, stop):
                part.append((change, _weight(change)))
                weight += part[-1][1]
                while len(part) > 1 and (len(part) + len(changes) > SIZE or weight > WEIGHT):
                    weight -= part.popleft()[1]
                    cut = True
            if self.stopped:
                # The stretch was not read to its end.
                break
            changes = part + changes
            stop = changes[0][0].position if cut else start
            if cut or weight > WEIGHT:
                break
            stretch = min(4 * stretch, _STRETCH)
        return [change for change, _ in changes], stop

    def _matching(self, start: int, stop: int) -> Iterator[Change]:
        self._seen = start
        if self.stopped or start >= stop:
            return
        for change in self.view.changes(start, stop):
            self._seen = change.position + 1
            if self.matches is None or self.matches(change):
                yield change
            self.read += 1
            if self.read % STEP == 0:
                self.on_progress(self.read, self.total)
                if self.cancelled():
                    self.stopped = True
                    return


def _weight(change: Change) -> int:
    rows = (row for row in (change.before, change.after) if row is not None)
    fields = sum(len(field) for row in rows for field in row if isinstance(field, bytes))
    return fields + change.message_bytes
