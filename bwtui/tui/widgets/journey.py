"""A key's journey: the timeline of its changes, the path and fields of one, and the line for a typed key."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rich.console import RenderableType
from textual.widgets import Label

from bwtui.recording.explain import RowKey
from bwtui.tui.audit.report import ABSENT
from bwtui.tui.base import figures
from bwtui.tui.base.assessment import MARKS, Tone
from bwtui.tui.base.plain import Content, Group, Table, Text, fitted
from bwtui.tui.sources.journey import ChangePath, Fact, FieldComparison, Point
from bwtui.tui.widgets.changes import OPERATIONS
from bwtui.tui.widgets.filter_bar import Filter, FilterBar
from bwtui.tui.widgets.grid import Cell, GridColumn, Item, SortedItemList
from bwtui.tui.widgets.line import Line

#: If several changes share a cell, the highest rank determines its style.
_RANKS = {"bad": 3, "warn": 2, "good": 1}
_WORST = 4
_STYLES = {"good": "$success", "warn": "$warning", "bad": "bold $error"}
#: Number of changes in a cell from which on its mark is full.
_MANY = 4
_DAY = 86_400


class Lifeline(Line):
    """Shows a mark for each change, and below it an arrow at the selected one."""

    def __init__(self) -> None:
        super().__init__(id="lifeline")
        self._drawn: object = None

    def show(self, points: Sequence[Point], selected: int | None) -> None:
        """Draw these changes, which are in commit order; ``selected`` is the index of the selected one."""
        width = self.content_size.width
        drawn = (tuple(points), selected, width)
        if drawn != self._drawn and width:
            self._drawn = drawn
            self.put(lifeline(points, selected, width))


def lifeline(points: Sequence[Point], selected: int | None, width: int) -> Content:
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
    if selected is None:
        return top
    x = len(name(first)) + 3 + places[selected]
    return Content("\n").join(
        [top, _arrow(x, f"{selected + 1:,} of {len(points):,}, {name(times[selected])}", width)]
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


_COLOURS: Mapping[Tone, str] = {
    "good": "success",
    "warn": "warning",
    "bad": "error",
    "muted": "quiet",
    "plain": "foreground",
}
#: Cells of the names before the facts, and of the figures before the bars.
_NAME, _FIGURE = 14, 12
#: Minimum cells for bars.
_LEAST_BARS = 16


def path_content(
    way: ChangePath, facts: Sequence[Fact], colours: Mapping[str, str], *, width: int, is_tall: bool
) -> RenderableType:
    """Return the drawing: if there is space, one line per stretch, to scale; otherwise a single line."""
    bars = width - _NAME - _FIGURE - 1
    drawn = (
        _bars(way, colours, bars) if is_tall and bars >= _LEAST_BARS and way.legs else [_line(way, colours)]
    )
    table = Table(box=None, padding=0, show_header=False, show_edge=False, pad_edge=False)
    table.add_column(width=_NAME)
    table.add_column(overflow="fold")
    for fact in facts:
        table.add_row(Text(fact.name, colours["quiet"]), _styled_text(fact, colours))
    remarks = [Text(f"· {remark}", colours["quiet"]) for remark in way.remarks]
    return Group(*drawn, table, *remarks)


def _line(way: ChangePath, colours: Mapping[str, str]) -> Text:
    parts: list[str | tuple[str, str]] = [(way.begin, "bold")]
    for leg in way.legs:
        duration = "?" if leg.seconds is None else _duration(leg.seconds)
        parts += [(f" ─{duration}▶ ", colours["primary"]), leg.name]
    if way.total is not None:
        parts.append((f"  {_duration(way.total)}", f"bold {colours['success']}"))
    return Text.assemble(*parts)


def _bars(way: ChangePath, colours: Mapping[str, str], cells: int) -> list[Text]:
    """Return a line for each stretch; its bar begins where the previous one ends."""
    quiet = colours["quiet"]
    whole = sum(max(leg.seconds or 0.0, 0.0) for leg in way.legs)
    lines = [Text.assemble((f"{way.begin:<{_NAME}}", "bold"), (figures.moment(way.time), quiet),
                           (f".{int(way.time * 1000) % 1000:03}", quiet))]  # fmt: skip
    past = 0.0
    for leg in way.legs:
        name = f"{leg.name:<{_NAME}}"
        if leg.seconds is None:
            lines.append(Text.assemble((name, "bold"), ("unknown", quiet)))
            continue
        length = max(leg.seconds, 0.0)
        start = round(past / whole * (cells - 1)) if whole else 0
        end = round((past + length) / whole * (cells - 1)) if whole else 0
        past += length
        bar = "━" * max(end - start, 1)
        figure = f"{'+' if leg.seconds >= 0 else ''}{_duration(leg.seconds)}".rjust(_FIGURE - 1)
        lines.append(
            Text.assemble((name, "bold"), figure, f" {' ' * start}", (bar, f"bold {colours['primary']}"))
        )
    if way.total is not None and len(way.legs) > 1:
        lines.append(
            Text.assemble(
                (f"{'':<{_NAME}}", ""),
                (_duration(way.total).rjust(_FIGURE - 1), f"bold {colours['success']}"),
                (" in total", quiet),
            )
        )  # fmt: skip
    return lines


def _duration(seconds: float) -> str:
    """Return a duration, in milliseconds up to ten seconds."""
    if abs(seconds) >= 10:
        return ("-" if seconds < 0 else "") + figures.duration(abs(seconds))
    return f"{figures.milliseconds(seconds)} ms"


def _styled_text(fact: Fact, colours: Mapping[str, str]) -> Text:
    mark = "" if fact.tone == "plain" else f"{MARKS[fact.tone]} "
    style = colours[_COLOURS[fact.tone]]
    return Text.assemble((mark, f"bold {style}"), (fact.text, style))


COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("field", "Field", 12, grow=26),
    GridColumn("before", "Before", 14, grow=60),
    GridColumn("after", "After", 14, grow=60),
    GridColumn("kafka", "Kafka holds", 14, grow=60),
    GridColumn("newest", "Newest of key", 17, drop=1, grow=60),
)
_FIELD_MARKS = {
    "new": ("+", "good"),
    "gone": ("-", "bad"),
    "changed": ("~", "warn"),
    "unknown before": ("?", "muted"),
    "unchanged TOAST": ("=", "muted"),
}


class FieldList(SortedItemList):
    """Lists fields; those that differ in Kafka are marked."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, ("field",), id="ways", noun="fields")
        self.border_title = "Fields"
        self._ways: list[FieldComparison] | None = None

    def show(self, ways: Sequence[FieldComparison], empty: str) -> None:
        """Show these fields, or why there are none."""
        self.say_why_empty(empty)
        if self._ways != list(ways):
            self._ways = list(ways)
            self.set_items([_item(number, field) for number, field in enumerate(self._ways)], 0)

    def selected(self) -> FieldComparison | None:
        """Return the field under the cursor."""
        field: FieldComparison | None = self.selected_entry
        return field


def _item(number: int, field: FieldComparison) -> Item:
    sign, tone = ("≠", "bad") if field.differs else _FIELD_MARKS.get(field.mark, ("", ""))
    is_changed = field.mark == "changed"
    is_newer = field.newest not in (ABSENT, field.after if field.kafka == ABSENT else field.kafka)
    cells = (
        Cell(sign, tone),
        Cell(field.name, "bad" if field.differs else "strong", number),
        Cell(_shown(field.before), "warn" if is_changed else "muted"),
        Cell(_shown(field.after), "warn" if is_changed else _quiet(field.after)),
        Cell(_shown(field.kafka), "bad" if field.differs else _quiet(field.kafka)),
        Cell(_shown(field.newest), "warn" if is_newer else "muted"),
    )
    texts = " ".join((field.name, *(cell.text for cell in cells[2:])))
    return Item(str(number), cells, texts, field.differs, field)


def _quiet(value: str | None) -> str:
    return "muted" if value in (None, ABSENT) else ""


def _shown(value: str | None) -> str:
    if value == ABSENT:
        return figures.NONE
    return "NULL" if value is None else value or "''"


#: Maximum cells of a key in the line.
_ROOM = 40


class KeyBar(FilterBar):
    """Filters while the user types; for a text that names a key, Enter opens the key's journey."""

    example: ClassVar[str] = "regex of tables, or a key: orders id=42"

    def __init__(
        self,
        understand: Callable[[str], RowKey | str | None],
        open_key: Callable[[RowKey], object],
        *more: Any,
    ) -> None:
        """``understand`` returns the key that a text names, what is wrong with it, or None for a filter."""
        super().__init__(*more)
        self._understand, self._open_key = understand, open_key

    def typed(self, text: str) -> None:
        key = self._understand(text)
        parsed = Filter.parse("" if key is not None else text)
        note = parsed.complaint
        if isinstance(key, RowKey):
            note = f"Enter: the journey of {fitted(f'{key.table} {key}', _ROOM)}"
        elif key is not None:
            note = key
        self.query_one("#complaint", Label).update(Content(note))
        self._apply(parsed)

    def submitted(self, text: str) -> None:
        key = self._understand(text)
        if isinstance(key, RowKey):
            self.clear()
            self._open_key(key)
        elif key is None:
            self.close()
