"""The data of a recording's sparklines: changes per recorded second, computed a little at a time."""

import time
from collections import OrderedDict
from collections.abc import Mapping
from itertools import pairwise

from bwtui.recording.reading.counts import by_table
from bwtui.recording.reading.seek_target import MICROS
from bwtui.recording.view import RecordingView
from bwtui.tui.state import POINTS

#: Maximum seconds of work per snapshot.
BUDGET = 0.03
#: Points of a table's sparkline.
TABLE_POINTS = 60
#: Seconds over which a table's present rate is averaged.
WINDOW = 3
#: Maximum changes per second that are read to count them by table; the counts are scaled up to the others.
MOST = 3_000
_KEPT = 4 * TABLE_POINTS

Points = Mapping[str, tuple[float, ...]]


class RecordedRates:
    """Changes per recorded second; missing seconds are added with the next snapshots."""

    def __init__(self, view: RecordingView) -> None:
        self._view = view
        #: Second → changes by table.
        self._known: OrderedDict[int, dict[str, float]] = OrderedDict()
        self.complete = False

    def look(self, now: int) -> tuple[Points, tuple[float, ...], Mapping[str, float]]:
        """Return the points of every table, the points of all tables together, and the tables' rates."""
        deadline = time.monotonic() + BUDGET
        last = now // MICROS - 1
        first = max(self._view.first_time // MICROS, last - TABLE_POINTS + 1)
        seconds: list[dict[str, float]] = []
        self.complete = True
        for second in range(last, first - 1, -1):
            if second not in self._known and seconds and time.monotonic() > deadline:
                self.complete = False
                break
            seconds.append(self._of(second))
        seconds.reverse()
        tables = {table for second in seconds for table in second}
        points = {table: tuple(second.get(table, 0.0) for second in seconds) for table in tables}
        rates = {table: sum(p[-WINDOW:]) / len(p[-WINDOW:]) for table, p in points.items()}
        return points, self._totals(last), rates

    def _totals(self, last: int) -> tuple[float, ...]:
        """Return all changes per second, which follow from positions alone."""
        view = self._view
        first = max(view.first_time // MICROS, last - POINTS + 1)
        places = [view.at_time(second * MICROS) for second in range(first, last + 2)]
        return tuple(float(b - a) for a, b in pairwise(places))

    def _of(self, second: int) -> dict[str, float]:
        rates = self._known.get(second)
        if rates is None:
            start, stop = (self._view.at_time(s * MICROS) for s in (second, second + 1))
            counts, read = by_table(self._view.changes(start, stop), MOST) if stop > start else ({}, 1)
            rates = {table: number * (stop - start) / read for table, number in counts.items()}
            self._known[second] = rates
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return rates
