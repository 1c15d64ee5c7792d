"""The last ten minutes: rates as a chart, latencies by stage, and events."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import NamedTuple

from bwtui.model.history import HISTORY_SECONDS, ChartMark, MarkKind, RelayHistory, Second
from bwtui.model.latency import LATENCY_STAGES, Percentiles
from bwtui.model.status import ErrorEntry, Status
from bwtui.tui.base import assessment, figures
from bwtui.tui.base.plain import Content
from bwtui.tui.sources.model import ScreenSnapshot
from bwtui.tui.widgets.grid import Cell, Grid, GridColumn, GridRow
from bwtui.tui.widgets.line import Panel

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


def _cells(lefts: Sequence[int], right: Sequence[int]) -> list[list[str]]:
    """Return the character for every combination of dots in the left and in the right column."""
    bits = [[sum(lefts[:a]) | sum(right[:b]) for b in range(DOTS + 1)] for a in range(DOTS + 1)]
    return [[chr(_BLANK | one) if one else " " for one in row] for row in bits]


_STANDING, _HANGING = _cells(_LEFT, _RIGHT), _cells(_LEFT[::-1], _RIGHT[::-1])


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

    def shown_of(self, snapshot: ScreenSnapshot) -> object:
        history = snapshot.history
        return history.seconds[-1].time if history.seconds else 0.0, len(history.marks)

    def draw(self, snapshot: ScreenSnapshot, width: int, height: int) -> None:
        history = snapshot.history
        last = history.seconds[-1].time if history.seconds else 0.0
        half = (height - _AROUND) // 2
        if half < 1 or width <= _AXIS + 10:
            return
        if not history.seconds:
            self.put(Content.styled("no data yet", "$quiet"))
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
    labels = _axis_labels(top, half)
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


def _axis_labels(top: float, half: int) -> list[str]:
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


#: The latency stage of each pipeline stage; decoding and encoding are measured as one.
STAGE_OF: Mapping[str, str] = {
    "read": "received",
    "encode": "encoded",
    "produce": "produced",
    "acknowledge": "acknowledged",
}
_WORDS = {"total": "commit → ack"}
_NAME, _FIGURE = 14, 9
#: Minimum lines of the histogram.
_BARS = 3

Buckets = Sequence[tuple[float, float, int]]


class LatencyPanel(Panel):
    """Percentiles by stage, and below them a histogram of the total in the remaining space."""

    def __init__(self) -> None:
        super().__init__("Commit → acknowledgement", id="latency")

    def shown_of(self, snapshot: ScreenSnapshot) -> object:
        """Return everything that the drawing depends on, which changes at most once per second."""
        return _latencies(snapshot) if snapshot.status is not None else None

    def draw(self, snapshot: ScreenSnapshot, width: int, height: int) -> None:
        if snapshot.status is None:
            return
        taken, over, buckets = _latencies(snapshot)
        lines = _stages(taken) if taken else [Content.styled("nothing acknowledged yet", "$quiet")]
        if buckets and height >= len(lines) + _BARS + 1:
            width_left = height - len(lines) - 1
            gap = width_left > _BARS
            lines += [Content("")] * gap + histogram(buckets, width, width_left - gap)
        self.put(lines)
        total = taken.get("total")
        self.set_remark(f"{over} · {figures.count(total.count)} messages" if total else "")


def _latencies(snapshot: ScreenSnapshot) -> tuple[Mapping[str, Percentiles], str, Buckets]:
    assert snapshot.status is not None
    taken, over = taken_by(snapshot.status)
    return taken, over, snapshot.history.latency if over == "last minute" else ()


def taken_by(status: Status) -> tuple[Mapping[str, Percentiles], str]:
    """Return the latest available percentiles by stage, and the period that they cover."""
    for taken, over in (
        (status.latency_minute, "last minute"),
        (status.latency, "last 10 s"),
        (status.latency_since_start, "since start"),
    ):
        if taken:
            return taken, over
    return {}, ""


def brief(seconds: float) -> str:
    """Return a duration in at most six characters: ``12.4ms``, ``3.1 s``."""
    return f"{figures.milliseconds(seconds)}ms" if seconds < 0.9995 else figures.duration(seconds)


def summary(status: Status) -> Content | None:
    """Return the total latency in one line; None if it is unknown."""
    taken, over = taken_by(status)
    total = taken.get("total")
    if total is None:
        return None
    return Content.assemble(
        ("commit → ack ", "$quiet"), ("p50 ", "$quiet"), brief(total.p50), (" p99 ", "$quiet"),
        (brief(total.p99), "bold"), (" max ", "$quiet"), brief(total.max), (f" {over}", "$quiet"),
    )  # fmt: skip


def _stages(taken: Mapping[str, Percentiles]) -> list[Content]:
    titles = "".join(title.rjust(_FIGURE) for title in ("p50", "p99", "max"))
    lines = [Content.styled("ms".ljust(_NAME) + titles, "$quiet")]
    for stage in LATENCY_STAGES:
        if (one := taken.get(stage)) is None:
            continue
        stage_lines = "".join(figures.milliseconds(v).rjust(_FIGURE) for v in (one.p50, one.p99, one.max))
        loud = "bold" if stage == "total" else ""
        lines.append(
            Content.assemble((_WORDS.get(stage, stage).ljust(_NAME), loud or "$quiet"), (stage_lines, loud))
        )
    received = taken.get("received")
    if received is not None and received.p50 < 0:
        lines.append(Content.styled("▲ PostgreSQL's clock is ahead of this one", "$warning"))
    return lines


def histogram(buckets: Buckets, width: int, height: int) -> list[Content]:
    """Return a histogram of the durations as bars over a logarithmic axis.

    Values at or below the beginning of the axis are counted in its first bar.
    """
    middles = [((lower + upper) / 2, count) for lower, upper, count in buckets]
    above = [middle for middle, _ in middles if middle > 0] or [0.001]
    first = math.floor(math.log10(max(min(above), 1e-5)))
    last = max(math.ceil(math.log10(max(above))), first + 1)
    counts = [0] * width
    for middle, count in middles:
        place = (math.log10(middle) - first) / (last - first) if middle > 0 else 0.0
        counts[min(max(int(place * width), 0), width - 1)] += count
    bars = [Content.styled(line, "$success") for line in figures.bars(counts, height)]
    return [*bars, Content.styled(_histogram_axis(first, last, width), "$quiet")]


def _histogram_axis(first: int, last: int, width: int) -> str:
    """Return the labels of the powers of ten at their places; the last one is at the end."""
    text = [" "] * width
    powers = range(first, last + 1)
    every = math.ceil(len(powers) * 8 / width)
    for power in powers[::every]:
        label = _power(power)
        start = min(round((power - first) / (last - first) * width), width - len(label))
        text[start : start + len(label)] = label
    return "".join(text)


def _power(power: int) -> str:
    if power < -3:
        return f"{10 ** (power + 6):g} µs"
    return f"{10 ** (power + 3):g} ms" if power < 0 else f"{10**power:g} s"


#: Maximum events shown; the screen of errors has all errors.
MOST = 100
EVENT_COLUMNS = (
    GridColumn("time", "Time", 8),
    GridColumn("event", "Event", 11),
    GridColumn("text", "", 20, grow=200),
)


class EventList(Grid):
    """Lists events, newest first."""

    def __init__(self) -> None:
        super().__init__(EVENT_COLUMNS, id="events")
        self.add_class("panel")
        self.border_title = "Last events"
        self.empty_text = "no events in the last ten minutes"
        self._drawn: object = None

    def show(self, snapshot: ScreenSnapshot) -> None:
        """Update the list if there are new events."""
        errors = snapshot.status.errors if snapshot.status else ()
        drawn = (errors, snapshot.history.marks)
        if drawn != self._drawn:
            self._drawn = drawn
            events = sorted(
                (*_mark_rows(snapshot.history.marks), *_error_rows(errors)), key=lambda event: -event[0]
            )
            self.set_rows([row for _, row in events[:MOST]])


def _mark_rows(marks: tuple[ChartMark, ...]) -> Iterator[tuple[float, GridRow]]:
    """Yield all marks except errors, of which the error entries have more details."""
    for mark in marks:
        if mark.kind != "error":
            sign, _, label = MARKS[mark.kind]
            tone = "warn" if mark.kind in ("ddl", "reconnect") else "strong"
            yield (
                mark.time,
                _event_row(f"m{mark.time}{mark.text}", mark.time, Cell(f"{sign} {label}", tone), mark.text),
            )


def _error_rows(errors: tuple[ErrorEntry, ...]) -> Iterator[tuple[float, GridRow]]:
    for entry in errors:
        if entry.is_over:
            kind_cell, text = Cell("✓ resolved", "muted"), f"{entry.message}; {_lasted(entry)}"
        elif assessment.is_warning(entry):
            kind_cell, text = Cell("▲ warning", "warn"), entry.message
        else:
            kind_cell, text = Cell("✗ error", "bad"), entry.message
        times = f"{figures.count(entry.count)} times: " if entry.count > 1 else ""
        key = f"e{entry.kind}\0{entry.table}\0{entry.message}"
        yield entry.time, _event_row(key, entry.time, kind_cell, times + text)


def _lasted(entry: ErrorEntry) -> str:
    start = entry.time if entry.since is None else entry.since
    return f"{figures.clock(start)} to {figures.clock(entry.until or entry.time)}"


def _event_row(key: str, moment: float, kind_cell: Cell, text: str) -> GridRow:
    return GridRow(key, (Cell(figures.clock(moment), "muted"), kind_cell, Cell(text)))
