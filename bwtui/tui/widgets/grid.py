"""A table with cheap updates, and a list of items that can be sorted and filtered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from bwtui.tui.base.keys import bindings, key_for, rebind
from bwtui.tui.base.plain import Content, fitted
from bwtui.tui.widgets.filter_bar import Filter

_NOTHING: Mapping[int, int] = MappingProxyType({})


class Cell(NamedTuple):
    """A text, its tone ("good", "warn", "bad", "muted", "strong" or "" for plain), and what it sorts by."""

    text: str
    tone: str = ""
    #: None: the text.
    value: Any = None

    @property
    def rank(self) -> Any:
        """The value that the cell is sorted by."""
        return self.text if self.value is None else self.value


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
    visible = list(range(len(columns)))
    while _needed(columns, visible) > width:
        worst = max(visible, key=lambda i: columns[i].drop)
        if columns[worst].drop == 0:
            break
        visible.remove(worst)
    widths = {i: columns[i].width for i in visible}
    spare = width - _needed(columns, visible)
    growing = [i for i in visible if columns[i].grow]
    for limits in ({i: needs.get(i, 0) for i in growing}, {i: columns[i].grow for i in growing}):
        spare = _share_out(widths, limits, spare)
    placed, x = [], 2
    for index in visible:
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


def _needed(columns: Sequence[GridColumn], visible: Sequence[int]) -> int:
    return 2 + sum(columns[i].width + 1 for i in visible)


#: Maximum characters whose width is measured: longer texts are cut in any terminal.
_LONG = 500


class Grid(ScrollView, can_focus=True):
    """Rows below fixed columns, with a cursor that follows its row's key."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("list")]
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"grid--{name}" for name in ("header", "cursor", "hover", "good", "warn", "bad", "muted", "strong")
    }

    @dataclass
    class Highlighted(Message):
        """The cursor moved to a different row."""

        grid: "Grid"
        key: str | None

    @dataclass
    class Opened(Message):
        """A row was opened, by Enter or a double click."""

        grid: "Grid"
        key: str

    @dataclass
    class TitleClicked(Message):
        """The title of a column was clicked."""

        grid: "Grid"
        column: str

    @dataclass
    class Moved(Message):
        """The user moved the cursor or scrolled; ``to_end`` if by the key for the last row."""

        grid: "Grid"
        to_end: bool

    def __init__(self, columns: Sequence[GridColumn], *, id: str | None = None) -> None:
        super().__init__(id=id)
        rebind(self, "list")
        self.columns = tuple(columns)
        self.rows: list[GridRow] = []
        self.empty_text = ""
        self.sort_mark: tuple[str, bool] | None = None
        #: g and G mean the ends of this list, not those of the recording.
        self.has_ends = True
        #: Rows after this index are painted as not having happened yet; None if all rows have.
        self.fade_behind: int | None = None
        self._cursor = 0
        #: The row that the user chose; it is selected again when a filter shows it again.
        self._target_key: str | None = None
        #: The rows among which it was chosen; the nearest one of them is selected while it is hidden.
        self._among: Sequence[GridRow] = ()
        self._tail = False
        self.remark = ""
        self._hover = -1
        #: The widest texts so far in the growing columns, by the column's index.
        self._needs: dict[int, int] = {}
        self._layout: list[VisibleColumn] = []
        self._laid_out_for: object = None

    # Methods for the owner.

    @property
    def cursor_key(self) -> str | None:
        """The key of the row under the cursor, or None if there are no rows."""
        return self.rows[self._cursor].key if self.rows else None

    @property
    def cursor_row(self) -> int:
        return self._cursor

    @property
    def shown_columns(self) -> list[str]:
        """The keys of the columns that fit."""
        return [self.columns[placed.column].key for placed in self._placed]

    def set_columns(self, columns: Sequence[GridColumn]) -> None:
        """Replace the columns; the caller must set the rows next."""
        if tuple(columns) != self.columns:
            self.columns = tuple(columns)
            self.rows = []
            self._needs = {}
            self.refresh()

    def set_rows(self, rows: Sequence[GridRow], *, tail: bool = False) -> None:
        """Show these rows, repainting only differences; with ``tail``, move the cursor to the last row."""
        old, key = self.rows, self.cursor_key
        self._tail = tail
        self.rows = list(rows)
        if self._measure(old):
            self.refresh()
        if len(old) == len(rows) and all(a.key == b.key for a, b in zip(old, rows, strict=True)):
            self._repaint_changes(old)
        else:
            self.virtual_size = Size(self.size.width, len(self.rows) + 1)
            self.refresh()
        if tail:
            self._cursor = max(len(self.rows) - 1, 0)
            self.scroll_end(animate=False, immediate=True, force=True)
        else:
            self._cursor = self._find(key, old)
        if tail:
            self._target_key = None
        if self.cursor_key != key:
            self.post_message(self.Highlighted(self, self.cursor_key))

    def set_sort_mark(self, column: str, descending: bool) -> None:
        """Mark the column by which the rows are sorted."""
        if self.sort_mark != (column, descending):
            self.sort_mark = (column, descending)
            self.refresh(Region(0, 0, self.size.width, 1))

    def set_remark(self, text: str) -> None:
        """Set the remark in the lower border; Textual would repaint everything even for the same text."""
        if text != self.remark:
            self.remark = text
            self.border_subtitle = Content(text)

    def move_to(self, index: int) -> None:
        """Move the cursor to a row, and scroll it into view."""
        if not self.rows:
            return
        before = self._cursor
        self._cursor = min(max(index, 0), len(self.rows) - 1)
        self._target_key, self._among = self.cursor_key, self.rows
        self._into_view()
        if self._cursor != before:
            self._repaint_row(before)
            self._repaint_row(self._cursor)
            self.post_message(self.Highlighted(self, self.cursor_key))

    def move_to_key(self, key: str) -> None:
        """Move the cursor to the row with this key, if there is one."""
        for index, row in enumerate(self.rows):
            if row.key == key:
                self.move_to(index)

    # Keys and mouse.

    def action_up(self) -> None:
        self._step(-1)

    def action_down(self) -> None:
        self._step(1)

    def action_page_up(self) -> None:
        self._step(-self._page)

    def action_page_down(self) -> None:
        self._step(self._page)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave g and G to the screen if they mean the ends of a recording."""
        if action in ("first", "last") and parameters:
            return self.has_ends
        return True

    def action_first(self, key: str = "") -> None:
        """Move to the first row."""
        self._step(-len(self.rows))

    def action_last(self, key: str = "") -> None:
        self.move_to(len(self.rows) - 1)
        self._tell_moved(to_end=True)

    def action_drill(self) -> None:
        """Open the row under the cursor."""
        if self.cursor_key is not None:
            self.post_message(self.Opened(self, self.cursor_key))

    def on_click(self, event: events.Click) -> None:
        """Select a row, open it on the second click, or sort by a title."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y == 0:
            column = self._column_at(offset.x)
            if column is not None:
                self.post_message(self.TitleClicked(self, column))
            return
        row = self.scroll_offset.y + offset.y - 1
        if row < len(self.rows):
            self.move_to(row)
            self._tell_moved()
            if event.chain == 2:
                self.action_drill()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        offset = event.get_content_offset(self)
        hover = -1 if offset is None or offset.y == 0 else self.scroll_offset.y + offset.y - 1
        self._set_hover(hover)

    def on_leave(self) -> None:
        self._set_hover(-1)

    def on_mouse_scroll_up(self) -> None:
        """Report that the user has scrolled, with the mouse wheel."""
        self._tell_moved()

    def on_scroll_up(self) -> None:
        """Report the same for a click next to the scrollbar's handle."""
        self._tell_moved()

    def on_scroll_to(self) -> None:
        """Report the same for a drag of the scrollbar."""
        self._tell_moved()

    # Painting.

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self.rows) + 1)
        if self._tail:
            self.scroll_end(animate=False, immediate=True, force=True)
        else:
            self._into_view()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width, base = self.size.width, self.rich_style
        if y == 0:
            return self._header(base).adjust_cell_length(width, base).apply_style(self._tone("header"))
        index = self.scroll_offset.y + y - 1
        if index >= len(self.rows):
            text = f"  {fitted(self.empty_text, width)}" if y == 1 and not self.rows else ""
            return Strip([Segment(text, base + self._tone("muted"))]).adjust_cell_length(width, base)
        return self._row(index, base).adjust_cell_length(width, base)

    def _header(self, base: Style) -> Strip:
        style = base + self._tone("header")
        segments = [Segment("  ", style)]
        for placed in self._placed:
            column = self.columns[placed.column]
            mark = " "
            if self.sort_mark and self.sort_mark[0] == column.key:
                mark = "↓" if self.sort_mark[1] else "↑"
            is_simple = column.title.isascii() and column.title.isprintable()
            title = column.title[: placed.width] if is_simple else fitted(column.title, placed.width)
            if column.align == "left":
                # Put the mark right after the title, or after right-aligned titles into the gap, so that no
                # letter is cut.
                text = fit_text(title + mark, placed.width + 1, "left")
            else:
                text = fit_text(title, placed.width, "right") + mark
            segments.append(Segment(text, style))
        return Strip(segments)

    def _row(self, index: int, base: Style) -> Strip:
        row, at_cursor = self.rows[index], index == self._cursor
        faded = self.fade_behind is not None and index > self.fade_behind
        if at_cursor:
            # Without the focus, the cursor keeps its sign but not its colour.
            base = base + self._tone("cursor") if self.has_focus else base
        elif index == self._hover:
            base += self._tone("hover")
        segments = [Segment("› " if at_cursor else "  ", base + self._tone("strong"))]
        for placed in self._placed:
            cell = row.cells[placed.column]
            text = fit_text(cell.text, placed.width, self.columns[placed.column].align) + " "
            tone = "muted" if faded else cell.tone
            segments.append(Segment(text, base + self._tone(tone) if tone else base))
        strip = Strip(segments)
        return strip.extend_cell_length(self.size.width, base)

    def _tone(self, name: str) -> Style:
        return self.get_component_rich_style(f"grid--{name}", partial=True)

    # Details.

    @property
    def _placed(self) -> list[VisibleColumn]:
        """The columns for the present size: the first painting of a new size precedes `on_resize`."""
        laid_out_for = (self.columns, self.size.width, tuple(self._needs.items()))
        if laid_out_for != self._laid_out_for:
            self._laid_out_for = laid_out_for
            self._layout = place(self.columns, self.size.width, self._needs)
        return self._layout

    def _measure(self, old: Sequence[GridRow]) -> bool:
        """Record the widest texts of the growing columns; return whether one has become wider."""
        before, old_ids = dict(self._needs), set(map(id, old))
        fresh = [row for row in self.rows if id(row) not in old_ids]
        for index, column in enumerate(self.columns):
            if column.grow:
                widest = max((_cells(row.cells[index].text) for row in fresh), default=0)
                self._needs[index] = max(before.get(index, 0), min(widest, _LONG))
        return self._needs != before

    @property
    def _page(self) -> int:
        return max(self.size.height - 1, 1)

    def _into_view(self) -> None:
        top, page = self.scroll_offset.y, self._page
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False, immediate=True, force=True)
        elif self._cursor >= top + page:
            self.scroll_to(y=self._cursor - page + 1, animate=False, immediate=True, force=True)

    def _tell_moved(self, *, to_end: bool = False) -> None:
        self.post_message(self.Moved(self, to_end=to_end))

    def _step(self, rows: int) -> None:
        self.move_to(self._cursor + rows)
        self._tell_moved()

    def _find(self, key: str | None, old: Sequence[GridRow]) -> int:
        """Return the row that the user chose, or else the last selected row, or else the nearest row."""
        places = {row.key: index for index, row in enumerate(self.rows)}
        for target, among in ((self._target_key, self._among), (key, old)):
            if target is None:
                continue
            if target in places:
                return places[target]
            at = next((i for i, row in enumerate(among) if row.key == target), None)
            near = None if at is None else _nearest(among, at, places)
            if near is not None:
                return near
        return min(self._cursor, max(len(self.rows) - 1, 0))

    def _set_hover(self, row: int) -> None:
        if row != self._hover:
            self._repaint_row(self._hover)
            self._hover = row
            self._repaint_row(row)

    def _repaint_row(self, index: int) -> None:
        y = index - self.scroll_offset.y
        if 0 <= y < self._page:
            self.refresh(Region(0, y + 1, self.size.width, 1))

    def _repaint_changes(self, old: Sequence[GridRow]) -> None:
        top = self.scroll_offset.y
        regions = []
        for index in range(top, min(top + self._page, len(self.rows))):
            before, after = old[index].cells, self.rows[index].cells
            if before == after:
                continue
            changed = [p for p in self._placed if before[p.column][:2] != after[p.column][:2]]
            if changed:
                left, right = changed[0].x, changed[-1].x + changed[-1].width
                regions.append(Region(left, index - top + 1, right - left, 1))
        if regions:
            self.refresh(*regions)

    def _column_at(self, x: int) -> str | None:
        for placed in self._placed:
            if placed.x <= x < placed.x + placed.width:
                return self.columns[placed.column].key
        return None


def _nearest(rows: Sequence[GridRow], at: int, places: Mapping[str, int]) -> int | None:
    """Return the new index of the row nearest to ``at`` that is still shown, or None."""
    for distance in range(1, len(rows)):
        for near in (at - distance, at + distance):
            if 0 <= near < len(rows) and rows[near].key in places:
                return places[rows[near].key]
    return None


def _cells(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text[:_LONG])


def fit_text(text: str, width: int, align: str) -> str:
    """Cut or pad a text to exactly ``width`` cells."""
    text = fitted(text, width)
    padding = " " * (width - cell_len(text))
    return padding + text if align == "right" else text + padding


@dataclass(frozen=True, slots=True)
class Item:
    """A row, and the text to filter."""

    key: str
    cells: tuple[Cell, ...]
    search: str
    trouble: bool = False
    #: What the row shows.
    entry: Any = None


class ItemList(Grid):
    """A panel of items; its border shows how many of them are visible, and why not all."""

    #: Seconds for which an order is kept, so that rows sorted by a rate do not swap places all the time.
    calm: ClassVar[float] = 2.0

    def __init__(
        self,
        columns: Sequence[GridColumn],
        sortable: Sequence[str],
        *,
        id: str,
        noun: str,
        title: str = "",
        sort: str = "",
        descending: bool | None = None,
    ) -> None:
        """``sort`` is the column to sort by first; ``descending`` None: as is usual for that column."""
        super().__init__(columns, id=id)
        self.add_class("panel")
        self.border_title = Content(title)
        self.noun = noun
        self.sortable = tuple(sortable)
        self.sort_column = sort or self.sortable[0]
        self.descending = self._natural(self.sort_column) if descending is None else descending
        self.filter = Filter()
        self.errors_only = False
        self._why_empty, self._is_known = "", True
        self.items: dict[str, Item] = {}
        self._order: list[str] = []
        self._ordered_at = float("-inf")
        self.set_sort_mark(self.sort_column, self.descending)

    @property
    def selected_entry(self) -> Any:
        """What the row under the cursor shows, or None."""
        item = self.items.get(self.cursor_key or "")
        return None if item is None else item.entry

    def set_items(self, items: Sequence[Item], now: float) -> None:
        """Show these items; keep the order for a while, even if their values change."""
        self.items = {item.key: item for item in items}
        if now - self._ordered_at >= self.calm or now < self._ordered_at:
            self._ordered_at = now
            self._order = self._sorted()
        else:
            before = set(self._order)
            self._order = [k for k in self._order if k in self.items]
            self._order += [k for k in self.items if k not in before]
        self._show()

    def say_why_empty(self, text: str, *, is_known: bool = True) -> None:
        """Set the reason for an empty list, which replaces "none yet"; "" removes it.

        If it is unknown whether there are items, the border shows no count.
        """
        if (text, is_known) != (self._why_empty, self._is_known):
            self._why_empty, self._is_known = text, is_known
            self._show()

    def set_filter(self, new: Filter) -> None:
        """Filter by the text that the user typed."""
        self.filter = new
        self._show()

    def toggle_errors_only(self) -> None:
        """Show only items with errors, or all again."""
        self.errors_only = not self.errors_only
        self._show()

    def sort_next(self) -> None:
        """Sort by the next visible sortable column."""
        visible = [c for c in self.sortable if c in self.shown_columns] or list(self.sortable)
        where = visible.index(self.sort_column) + 1 if self.sort_column in visible else 0
        self.sort_by(visible[where % len(visible)])

    def sort_by(self, column: str) -> None:
        """Sort by a column if it is sortable, or reverse the order if it is the present one."""
        if column not in self.sortable:
            return
        if column == self.sort_column:
            self.descending = not self.descending
        else:
            self.sort_column, self.descending = column, self._natural(column)
        self._order = self._sorted()
        self.set_sort_mark(self.sort_column, self.descending)
        self._show()

    def on_grid_title_clicked(self, event: Grid.TitleClicked) -> None:
        event.stop()
        self.sort_by(event.column)

    def _show(self) -> None:
        visible = [item for key in self._order if self._passes(item := self.items[key])]
        clear, every = key_for("back"), key_for("errors_only")
        none = f"no {self.noun} match; {clear} clears the filter, {every} shows all"
        empty = none if self.items else self._why_empty or f"no {self.noun} yet"
        if empty != self.empty_text:
            self.empty_text = empty
            self.refresh()
        self.set_rows([GridRow(item.key, item.cells) for item in visible])
        self.set_remark(self._explain(len(visible)) if self._is_known or self.items else "")

    def _passes(self, item: Item) -> bool:
        return (item.trouble or not self.errors_only) and self.filter.passes(item.search)

    def _explain(self, visible: int) -> str:
        reasons = [r for r in (self.filter.describe(), "errors only" if self.errors_only else "") if r]
        amount = f"{visible} of {len(self.items)}" if reasons else str(len(self.items))
        return " · ".join([*reasons, f"{amount} {self.noun}"])

    def _sorted(self) -> list[str]:
        by_key = sorted(self.items.values(), key=lambda item: item.key)
        at = next(index for index, column in enumerate(self.columns) if column.key == self.sort_column)
        by_key.sort(key=lambda item: item.cells[at].rank, reverse=self.descending)
        return [item.key for item in by_key]

    def _natural(self, key: str) -> bool:
        """Return whether a column sorts in descending order by default, as columns of numbers do."""
        return next(column.align == "right" for column in self.columns if column.key == key)


class SortedItemList(ItemList):
    """A list that is sorted at every update, as its values never change."""

    calm = 0.0
