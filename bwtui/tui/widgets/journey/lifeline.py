"""The changes of a key on a timeline."""

from collections.abc import Sequence
from typing import NamedTuple

from bwtui.tui import figures
from bwtui.tui.plain import Content
from bwtui.tui.widgets.changes import OPERATIONS
from bwtui.tui.widgets.line import Line

#: If several changes share a cell, the highest rank determines its style.
_RANKS = {"bad": 3, "warn": 2, "good": 1}
_WORST = 4
_STYLES = {"good": "$success", "warn": "$warning", "bad": "bold $error"}
#: Number of changes in a cell from which on its mark is full.
_MANY = 4
_DAY = 86_400


class Point(NamedTuple):
    """A change: its commit time in Unix seconds, and its operation."""

    time: float
    operation: str
    is_bad: bool = False


class Lifeline(Line):
    """Shows a mark for each change, and below it an arrow at the selected one."""

    def __init__(self) -> None:
        super().__init__(id="lifeline")
        self._drawn: object = None

    def show(self, points: Sequence[Point], chosen: int | None) -> None:
        """Draw these changes, which are in commit order; ``chosen`` is the index of the selected one."""
        width = self.content_size.width
        drawn = (len(points), points[-1].time if points else 0.0, chosen, width)
        if drawn != self._drawn and width:
            self._drawn = drawn
            self.put(lifeline(points, chosen, width))


def lifeline(points: Sequence[Point], chosen: int | None, width: int) -> Content:
    """Return two lines of ``width`` cells: the marks between the first and last times, and the arrow."""
    if not points:
        return Content("")
    times = [point.time for point in points]
    first, last = min(times), max(times)
    name = figures.moment if last - first >= _DAY else figures.precise_clock
    cells = max(width - len(name(first)) - len(name(last)) - 5, 3)
    places = [
        cells // 2 if last == first else round((t - first) / (last - first) * (cells - 1)) for t in times
    ]
    marks = _marks(points, places, cells)
    top = Content.assemble(
        (f" {name(first)} ", "$quiet"), ("├", "$line"), *marks, ("┤", "$line"), (f" {name(last)}", "$quiet")
    )
    if chosen is None:
        return top
    x = len(name(first)) + 3 + places[chosen]
    return Content("\n").join(
        [top, _arrow(x, f"{chosen + 1:,} of {len(points):,}, {name(times[chosen])}", width)]
    )


def _marks(points: Sequence[Point], places: Sequence[int], cells: int) -> list[tuple[str, str]]:
    marks, counts, ranks = [("─", "$line")] * cells, [0] * cells, [-1] * cells
    for point, at in zip(points, places, strict=True):
        sign, tone = ("✗", "bad") if point.is_bad else OPERATIONS.get(point.operation, ("•", ""))
        rank = _WORST if point.is_bad else _RANKS.get(tone, 0)
        counts[at] += 1
        if ranks[at] == _WORST:
            continue
        style = _STYLES.get(tone, "$quiet") if rank >= ranks[at] else marks[at][1]
        ranks[at] = max(rank, ranks[at])
        if counts[at] > 1 and not point.is_bad:
            sign = "█" if counts[at] >= _MANY else "▒"
        marks[at] = (sign, style)
    return marks


def _arrow(x: int, words: str, width: int) -> Content:
    """Return a line with an arrow at a cell, and the words on the side where they fit."""
    if x + 2 + len(words) <= width:
        return Content.assemble((" " * x + "▲ ", "bold $primary"), (words, "$quiet"))
    before = " " * max(x - len(words) - 1, 0)
    return Content.assemble((before, ""), (words, "$quiet"), (" ▲", "bold $primary"))
