"""What the sparklines of a recording show: changes by recorded second, worked out a little at a time."""

import time
from collections import OrderedDict
from collections.abc import Mapping
from itertools import pairwise

from bwtui.recording.target import MICROS
from bwtui.recording.view import RecordingView
from bwtui.tui.state import POINTS

#: Seconds of work that one picture may cost.
BUDGET = 0.03
#: Seconds over which a table's present rate is averaged.
WINDOW = 3
_KEPT = 3 * POINTS


class Seconds:
    """Counts at the ends of recorded seconds; what is not known yet is filled in with the next pictures."""

    def __init__(self, view: RecordingView) -> None:
        self._view = view
        #: Position → rows by table, and messages of all.
        self._known: OrderedDict[int, tuple[dict[str, int], int]] = OrderedDict()
        self.complete = False

    def look(
        self, now: int
    ) -> tuple[Mapping[str, tuple[float, ...]], tuple[float, ...], Mapping[str, float]]:
        """Return the points of every table, those of all messages, and the tables' rates at a moment."""
        view, deadline = self._view, time.monotonic() + BUDGET
        first = max(now // MICROS - POINTS, view.first_time // MICROS)
        ends = range(now // MICROS, first - 1, -1)
        points: list[tuple[dict[str, int], int]] = []
        self.complete = True
        for end in ends:
            position = view.at_time(end * MICROS)
            if position not in self._known and points and time.monotonic() > deadline:
                self.complete = False
                break
            points.append(self._at(position))
        points.reverse()
        rates: dict[str, list[float]] = {}
        for (before, _), (after, _) in pairwise(points):
            for table, rows in points[-1][0].items():
                rates.setdefault(table, []).append(float(after.get(table, rows) - before.get(table, 0)))
        delivered = [float(b - a) for (_, a), (_, b) in pairwise(points)]
        return {t: tuple(p) for t, p in rates.items()}, tuple(delivered), self._rates(now)

    def _rates(self, now: int) -> dict[str, float]:
        view = self._view
        earlier = max(now - WINDOW * MICROS, view.first_time - 1)
        before, after = (self._at(view.at_time(moment + 1))[0] for moment in (earlier, now))
        seconds = max((now - earlier) / MICROS, 1.0)
        return {table: (rows - before.get(table, 0)) / seconds for table, rows in after.items()}

    def _at(self, position: int) -> tuple[dict[str, int], int]:
        found = self._known.get(position)
        if found is None:
            counts = self._view.counts(position)
            rows = {name: t.snapshot_rows + t.inserts + t.updates + t.deletes for name, t in counts.items()}
            found = self._known[position] = (rows, sum(t.messages for t in counts.values()))
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(position)
        return found
