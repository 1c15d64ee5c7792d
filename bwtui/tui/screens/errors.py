"""Errors and warnings, with hints."""

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget

from bwtui.model.status import ErrorEntry
from bwtui.tui import assessment, figures
from bwtui.tui.plain import Content
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.columns import Cell, GridColumn
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.item_list import Item, ItemList

COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("time", "Last", 8),
    GridColumn("count", "Count", 6, "right"),
    GridColumn("kind", "Kind", 14, drop=1, grow=22),
    GridColumn("table", "Table", 18, drop=2, grow=30),
    GridColumn("message", "Message", 28, grow=200),
)


class ErrorsScreen(RelayScreen):
    """Shows the list, and the selected message in full, with its hint."""

    mode: ClassVar[str] = "errors"
    own_keys: ClassVar[frozenset[str]] = frozenset(("look_closer('letters')",))

    def body(self) -> Iterable[Widget]:
        listing = ItemList(
            COLUMNS, ("time", "count", "kind", "table"), id="errors", noun="errors and warnings"
        )
        listing.border_title = "Errors"
        listing.descending = True
        listing.set_sort_mark("time", True)
        return (listing, Detail(id="error", title="Error"))

    def paint(self, picture: ScreenSnapshot) -> None:
        entries = picture.status.errors if picture.status else ()
        self.query_one(ItemList).set_items([_item(entry) for entry in entries], picture.received)
        self._show_selected()

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self._show_selected()

    def row_text(self) -> str:
        entry = self._selected()
        if entry is None:
            return ""
        return entry.message + (f"\nhint: {entry.hint}" if entry.hint else "")

    def _selected(self) -> ErrorEntry | None:
        key, status = self.main_grid().cursor_key, self.host.model.picture.status
        return next((e for e in (status.errors if status else ()) if _key(e) == key), None)

    def _show_selected(self) -> None:
        detail, entry = self.query_one("#error", Detail), self._selected()
        if entry is None:
            detail.show(None, Content.styled("✓ no error selected", "$quiet"))
        else:
            detail.show(entry, _text(entry))


def _key(entry: ErrorEntry) -> str:
    # Time and count grow when the same error repeats.
    return f"{entry.kind}\0{entry.table}\0{entry.message}"


def _item(entry: ErrorEntry) -> Item:
    warning = assessment.is_warning(entry) or entry.is_over
    tone: assessment.Tone = "muted" if entry.is_over else "warn" if warning else "bad"
    cells = (
        Cell("✓" if entry.is_over else "▲" if warning else "✗", tone),
        Cell(figures.clock(entry.time), "muted"),
        Cell(figures.count(entry.count)),
        Cell(entry.kind, tone),
        Cell(entry.table or figures.NONE),
        Cell(f"{entry.message}; {_lasted(entry)}" if entry.is_over else entry.message),
    )
    values = {"time": entry.time, "count": entry.count, "kind": entry.kind, "table": entry.table or ""}
    return Item(_key(entry), cells, values, f"{entry.kind} {entry.table} {entry.message}", not warning)


def _lasted(entry: ErrorEntry) -> str:
    """Return when a past error began and ended, or since when a present one lasts."""
    if entry.since is None:
        return f"last {figures.clock(entry.time)}"
    if entry.until is None:
        return f"since {figures.clock(entry.since)}"
    lasted = figures.duration(entry.until - entry.since)
    return f"over, {figures.clock(entry.since)} to {figures.clock(entry.until)} ({lasted})"


def _text(entry: ErrorEntry) -> Content:
    tone = "$quiet" if entry.is_over else "$warning" if assessment.is_warning(entry) else "$error"
    times = "once" if entry.count == 1 else f"{entry.count:,} times in a row"
    where = f"  table {entry.table}" if entry.table else ""
    parts = [
        Content.styled(entry.message, f"bold {tone}"),
        Content.assemble(("→ ", "bold"), (entry.hint or "no hint", "" if entry.hint else "$quiet")),
        Content.styled(f"{entry.kind}{where}  {_lasted(entry)}  {times}", "$quiet"),
    ]
    return Content("\n\n").join(parts)
