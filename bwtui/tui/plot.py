"""What a chart over time is drawn of: braille dots, two columns a cell, and its axes.

textual-plotext repaints the whole plot at every change, and textual-plot needs NumPy (50 MB).
"""

import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from bwtui.tui import figures

#: A cell's dots from the lowest one up, of its left and its right column.
_LEFT, _RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)
_BLANK = 0x2800
#: Dots of a cell, one above the other.
DOTS = 4
#: Minutes between two labels of the axis of time, and the cells that a label needs with its gap.
_MINUTES, _LABEL = (1, 2, 5, 10), 9


class Span(NamedTuple):
    """The columns of dots that a chart has, each so many seconds; they stand still while time goes by."""

    #: The first column, in steps since the epoch.
    first: int
    #: Seconds a column.
    step: int
    columns: int

    @classmethod
    def until(cls, now: float, seconds: int, cells: int) -> "Span":
        """Return as many columns as ``seconds`` need, up to ``now``, in at most so many cells."""
        step = math.ceil(seconds / max(2 * cells, 2))
        columns = 2 * math.ceil(seconds / step / 2)
        return cls(int(now) // step - columns + 1, step, columns)

    def column(self, moment: float) -> int | None:
        """Return the column that a moment is in, or None where it is in none of them."""
        place = int(moment) // self.step - self.first
        return place if 0 <= place < self.columns else None

    def means(self, values: Iterable[tuple[float, float]]) -> list[float | None]:
        """Return each column's mean of the values, which come with their times; None where there are none."""
        sums, counts = [0.0] * self.columns, [0] * self.columns
        for moment, value in values:
            if (place := self.column(moment)) is not None:
                sums[place] += value
                counts[place] += 1
        return [total / count if count else None for total, count in zip(sums, counts, strict=True)]

    def axis(self) -> str:
        """Return the axis of time: hours and minutes of the day."""
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
    """Return the next 1, 2 or 5 times a power of ten, at least ten, so that an axis rarely changes."""
    power = 10.0 ** math.floor(math.log10(max(value, 10.0)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value)


def levels(values: Sequence[float | None], top: float, height: int) -> list[int]:
    """Return how many dots high each value is: none where it is not known, one for zero, all from ``top``."""
    most = height * DOTS
    return [0 if value is None else min(1 + math.ceil(value / top * (most - 1)), most) for value in values]


def area(dots: Sequence[int], height: int, *, hanging: bool = False) -> list[str]:
    """Return what is filled up to each column's dots, standing, or hanging from above."""
    cells = _HANGING if hanging else _STANDING
    bases = range(0, height * DOTS, DOTS)
    pairs = list(zip_longest(dots[::2], dots[1::2], fillvalue=0))
    return [
        "".join([cells[min(max(a - base, 0), DOTS)][min(max(b - base, 0), DOTS)] for a, b in pairs])
        for base in (bases if hanging else reversed(bases))
    ]


def _cells(left: Sequence[int], right: Sequence[int]) -> list[list[str]]:
    """Return the characters for every number of dots in the left and in the right column."""
    bits = [[sum(left[:a]) | sum(right[:b]) for b in range(DOTS + 1)] for a in range(DOTS + 1)]
    return [[chr(_BLANK | one) if one else " " for one in row] for row in bits]


_STANDING, _HANGING = _cells(_LEFT, _RIGHT), _cells(_LEFT[::-1], _RIGHT[::-1])
