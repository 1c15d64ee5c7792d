"""Rows per second in the last ten minutes: read above the axis, acknowledged below it, then the events.

While the relay keeps up, both halves are alike; a difference is visible without any colour.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from bwtui.model.history import HISTORY_SECONDS, ChartMark, MarkKind, RelayHistory, Second
from bwtui.tui import figures
from bwtui.tui.plain import Content
from bwtui.tui.plot import ChartSpan, area, levels, rounded_up
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.panel import Panel

#: Sign, colour and word of each kind of mark; if several share a cell, the first kind here is shown.
MARKS: dict[MarkKind, tuple[str, str, str]] = {
    "error": ("E", "$error", "error"),
    "reconnect": ("R", "$warning", "reconnect"),
    "start": ("S", "$primary", "start"),
    "ddl": ("D", "$warning", "schema"),
    "audit": ("A", "$primary", "audit"),
}
#: Cells of the value axis, and lines besides the two halves: legend, marks, time axis.
_AXIS, _AROUND = 7, 3


class RateChart(Panel):
    """The chart, which is painted once per second, and then only the lines that differ."""

    def __init__(self) -> None:
        super().__init__("Rows/s, last 10 minutes", id="rates")

    def shown_of(self, picture: ScreenSnapshot) -> object:
        """Return values that change whenever the history grows."""
        history = picture.history
        return history.seconds[-1].time if history.seconds else 0.0, len(history.marks)

    def draw(self, picture: ScreenSnapshot, width: int, height: int) -> None:
        """Draw as many columns as fit."""
        history = picture.history
        last = history.seconds[-1].time if history.seconds else 0.0
        half = (height - _AROUND) // 2
        if half < 1 or width <= _AXIS + 10:
            return
        if not history.seconds:
            self.put(Content.styled("no second is known yet", "$quiet"))
            return
        span = ChartSpan.until(last, HISTORY_SECONDS, width - _AXIS)
        marks = [mark for mark in history.marks if span.column(mark.time) is not None]
        self.put(_chart(history, marks, span, half))
        kinds = {mark.kind for mark in marks}
        self.set_remark(" · ".join(f"{MARKS[kind][0]} {MARKS[kind][2]}" for kind in MARKS if kind in kinds))


def _chart(history: RelayHistory, marks: Sequence[ChartMark], span: ChartSpan, half: int) -> list[Content]:
    seconds = [second for second in history.seconds if span.column(second.time) is not None]
    read = span.means((second.time, second.read_per_second) for second in seconds)
    sent = span.means((second.time, second.acknowledged_per_second) for second in seconds)
    top = rounded_up(figures.ceiling([value for value in (*read, *sent) if value is not None]))
    upper = area(levels(read, top, half), half)
    lower = area(levels(sent, top, half), half, hanging=True)
    labels = _labels(top, half)
    lines = [_legend(seconds, top, span.step)]
    for row, text in enumerate((*upper, *lower)):
        is_upper = row < half
        cut = _cut(read if is_upper else sent, top) if row in (0, 2 * half - 1) else ()
        label = Content.styled(labels[row].rjust(_AXIS - 2) + "┤", "$quiet")
        colour, sign = ("$primary", "▲") if is_upper else ("$success", "▼")
        lines.append(label + Content(" ") + _with_cuts(text, colour, cut, sign))
    lines.append(Content(" " * _AXIS) + _mark_line(marks, span))
    lines.append(Content.styled(" " * _AXIS + span.axis(), "$quiet"))
    return lines


def _labels(top: float, half: int) -> list[str]:
    """Return the label of each line: the ends of both halves, their middles, and zero between them."""
    labels = [""] * (2 * half)
    if half >= 4:
        labels[half // 2] = labels[2 * half - 1 - half // 2] = figures.rate(top * (1 - (half // 2) / half))
    labels[half - 1] = "0"
    labels[0] = labels[2 * half - 1] = figures.rate(top)
    return labels


def _legend(seconds: Sequence[Second], top: float, step: int) -> Content:
    last = seconds[-1]
    peak = max(seconds, key=lambda second: max(second.read_per_second, second.acknowledged_per_second))
    most = max(peak.read_per_second, peak.acknowledged_per_second)
    tone = "$quiet" if most <= top else "$warning"
    parts = [
        ("↑ read ", "bold $primary"), (f"{figures.rate(last.read_per_second)}/s".rjust(7), "bold"),
        ("   ↓ acknowledged ", "bold $success"),
        (f"{figures.rate(last.acknowledged_per_second)}/s".rjust(7), "bold"),
        (f"   peak {figures.rate(most)}/s at {figures.clock(peak.time)}", tone),
        (f"   means of {step} s" if step > 1 else "", "$quiet"),
    ]  # fmt: skip
    return Content.assemble(*parts)


def _cut(values: Sequence[float | None], top: float) -> set[int]:
    """Return the cells in which a value is cut off."""
    return {place // 2 for place, value in enumerate(values) if value is not None and value > top}


def _with_cuts(text: str, colour: str, cut: Iterable[int], sign: str) -> Content:
    if not (cells := set(cut)):
        return Content.styled(text, colour)
    signs = ((sign, "bold $warning") if place in cells else (cell, colour) for place, cell in enumerate(text))
    return _styled(signs)


def _mark_line(marks: Sequence[ChartMark], span: ChartSpan) -> Content:
    """Return the signs of the events, at their times."""
    order = list(MARKS)
    cells = [(" ", "")] * (span.columns // 2)
    for mark in sorted(marks, key=lambda mark: -order.index(mark.kind)):
        place = span.column(mark.time)
        assert place is not None
        sign, colour, _ = MARKS[mark.kind]
        cells[place // 2] = (sign, f"bold {colour}")
    return _styled(cells)


def _styled(cells: Iterable[tuple[str, str]]) -> Content:
    runs = groupby(cells, key=lambda cell: cell[1])
    return Content.assemble(*(("".join(text for text, _ in run), style) for style, run in runs))
