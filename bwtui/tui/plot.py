"""Drawing of charts over time: braille dots, two columns per cell, and the axes.

textual-plotext repaints the whole plot at every change, and textual-plot needs NumPy (50 MB).
"""

import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from bwtui.tui import figures

#: A cell's dots from the bottom up, in its left and its right column.
_LEFT, _RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)
_BLANK = 0x2800
#: Dots in the height of a cell.
DOTS = 4
#: Minutes between two labels of the time axis, and the cells that a label needs, with its gap.
_MINUTES, _LABEL = (1, 2, 5, 10), 9


class ChartSpan(NamedTuple):
    """The dot columns of a chart, each ``step`` seconds wide and aligned to multiples of ``step``."""

    #: The first column, in steps since the epoch.
    first: int
    #: Seconds per column.
    step: int
    columns: int

    @classmethod
    def until(cls, now: float, seconds: int, cells: int) -> "ChartSpan":
        """Return the columns that cover ``seconds`` up to ``now``, in at most ``cells`` cells."""
        step = math.ceil(seconds / max(2 * cells, 2))
        columns = 2 * math.ceil(seconds / step / 2)
        return cls(int(now) // step - columns + 1, step, columns)

    def column(self, moment: float) -> int | None:
        """Return the column of a moment, or None if it is outside."""
        place = int(moment) // self.step - self.first
        return place if 0 <= place < self.columns else None

    def means(self, values: Iterable[tuple[float, float]]) -> list[float | None]:
        """Return the mean of each column's values, given with their times; None for an empty column."""
        sums, counts = [0.0] * self.columns, [0] * self.columns
        for moment, value in values:
            if (place := self.column(moment)) is not None:
                sums[place] += value
                counts[place] += 1
        return [total / count if count else None for total, count in zip(sums, counts, strict=True)]

    def axis(self) -> str:
        """Return the time axis, labelled with hours and minutes."""
        cells = self.columns // 2
        per_minute = 60 / self.step / 2
        every = 60 * next((m for m in _MINUTES if m * per_minute >= _LABEL), _MINUTES[-1])
        text = [" "] * cells
        begin, end = self.first * self.step, (self.first + self.columns) * self.step
        for moment in range(math.ceil(begin / every) * every, end, every):
            label = "╵" + figures.clock(moment)[:5]
            start = (moment // self.step - self.first) // 2
            if start + len(label) <= cells:
                text[start : start + len(label)] = label
        return "".join(text)


def rounded_up(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten, at least 10, so that an axis rarely changes."""
    power = 10.0 ** math.floor(math.log10(max(value, 10.0)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value)


def levels(values: Sequence[float | None], top: float, height: int) -> list[int]:
    """Return the height of each value in dots: 0 if unknown, 1 for zero, the full height from ``top`` on."""
    most = height * DOTS
    return [0 if value is None else min(1 + math.ceil(value / top * (most - 1)), most) for value in values]


def area(dots: Sequence[int], height: int, *, hanging: bool = False) -> list[str]:
    """Return the area up to each column's dots as text, standing on the axis or hanging from the top."""
    cells = _HANGING if hanging else _STANDING
    bases = range(0, height * DOTS, DOTS)
    pairs = list(zip_longest(dots[::2], dots[1::2], fillvalue=0))
    return [
        "".join([cells[min(max(a - base, 0), DOTS)][min(max(b - base, 0), DOTS)] for a, b in pairs])
        for base in (bases if hanging else reversed(bases))
    ]


def _cells(left: Sequence[int], right: Sequence[int]) -> list[list[str]]:
    """Return the character for every combination of dots in the left and in the right column."""
    bits = [[sum(left[:a]) | sum(right[:b]) for b in range(DOTS + 1)] for a in range(DOTS + 1)]
    return [[chr(_BLANK | one) if one else " " for one in row] for row in bits]


_STANDING, _HANGING = _cells(_LEFT, _RIGHT), _cells(_LEFT[::-1], _RIGHT[::-1])
