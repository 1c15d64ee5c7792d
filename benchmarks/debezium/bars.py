"""Bars side by side, with lines from the least to the most: SVG."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.debezium.results import Spread
from benchmarks.drawing import FAINT, INK, LINE, bar, canvas, path, steps, text

_WIDTH, _LEFT, _RIGHT, _TOP, _BAR, _GAP = 860, 330, 90, 44, 16, 6
_HEAD = 26
_OTHERS = "#8c959f"


@dataclass(frozen=True)
class Bar:
    """One way's figure."""

    name: str
    spread: Spread
    is_ours: bool


@dataclass(frozen=True)
class Group:
    """What belongs together: one workload's ways."""

    title: str
    bars: Sequence[Bar]


def bars(title: str, groups: Sequence[Group]) -> str:
    """Return all groups, one below the other, over one scale that begins with zero."""
    most = max(one.spread.most for group in groups for one in group.bars) or 1.0
    bottom = _TOP + sum(_HEAD + len(group.bars) * (_BAR + _GAP) for group in groups)

    def across(value: float) -> float:
        return _LEFT + value / most * (_WIDTH - _LEFT - _RIGHT)

    parts = [canvas(_WIDTH, bottom + 28), text(16, 22, title, size=14)]
    for value in steps(0, most, 5):
        parts.append(path([(across(value), _TOP), (across(value), bottom)], FAINT, 0.5))
        parts.append(text(across(value), bottom + 16, f"{value:,g}", anchor="middle"))
    y = float(_TOP)
    for group in groups:
        parts.append(text(16, y + 17, group.title))
        y += _HEAD
        for one in group.bars:
            parts += _bar(one, y, across(0), across(one.spread.median))
            ends = [(across(value), y + _BAR / 2) for value in (one.spread.least, one.spread.most)]
            parts.append(path(ends, INK, 1.5))
            y += _BAR + _GAP
    return "\n".join([*parts, "</svg>", ""])


def _bar(one: Bar, y: float, begin: float, end: float) -> Iterator[str]:
    yield text(_LEFT - 8, y + 12, one.name, anchor="end")
    yield bar(begin, y, end - begin, _BAR, LINE if one.is_ours else _OTHERS)
    median = one.spread.median
    yield text(_WIDTH - 8, y + 12, f"{median:,.0f}" if median >= 100 else f"{median:.1f}", anchor="end")
