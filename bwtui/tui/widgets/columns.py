"""Columns and rows of a `Grid`, and the choice of the columns that fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

_NOTHING: Mapping[int, int] = MappingProxyType({})


class Cell(NamedTuple):
    """A text and its tone: "good", "warn", "bad", "muted", "strong" or "" for plain."""

    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class GridColumn:
    """One column. Its width never shrinks with its content, so that nothing jumps."""

    key: str
    title: str
    width: int
    align: Literal["left", "right"] = "left"
    #: 0: always shown. Columns with other numbers are dropped if space is short, the highest first.
    drop: int = 0
    #: Maximum width of a column that may use spare space; 0: it does not grow.
    grow: int = 0


@dataclass(frozen=True, slots=True)
class GridRow:
    """One row: a stable key, and a cell for every column, shown or not."""

    key: str
    cells: tuple[Cell, ...]


class VisibleColumn(NamedTuple):
    """A visible column: its index among all columns, its start, and its width."""

    column: int
    x: int
    width: int


def place(
    columns: Sequence[GridColumn], width: int, needs: Mapping[int, int] = _NOTHING
) -> list[VisibleColumn]:
    """Choose the columns that fit into ``width``, one space apart, and distribute the spare space.

    ``needs`` are the widths of the texts in growing columns, by the column's index: showing a whole text is
    more important than empty space.
    """
    shown = list(range(len(columns)))
    while _needed(columns, shown) > width:
        worst = max(shown, key=lambda i: columns[i].drop)
        if columns[worst].drop == 0:
            break
        shown.remove(worst)
    widths = {i: columns[i].width for i in shown}
    spare = width - _needed(columns, shown)
    growing = [i for i in shown if columns[i].grow]
    for limits in ({i: needs.get(i, 0) for i in growing}, {i: columns[i].grow for i in growing}):
        spare = _share_out(widths, limits, spare)
    placed, x = [], 2
    for index in shown:
        placed.append(VisibleColumn(index, x, widths[index]))
        x += widths[index] + 1
    return placed


def _share_out(widths: dict[int, int], limits: Mapping[int, int], spare: int) -> int:
    """Widen columns evenly, each up to its limit; return the remaining space."""
    growing = [i for i, limit in limits.items() if limit > widths[i]]
    while spare > 0 and growing:
        for index in growing[:spare]:
            widths[index] += 1
            spare -= 1
        growing = [i for i in growing if limits[i] > widths[i]]
    return spare


def _needed(columns: Sequence[GridColumn], shown: Sequence[int]) -> int:
    return 2 + sum(columns[i].width + 1 for i in shown)
