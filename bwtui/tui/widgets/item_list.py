"""A grid of items that can be sorted, filtered, and reduced to those with errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bwtui.tui.filtering import Filter
from bwtui.tui.keys import key_for
from bwtui.tui.widgets.columns import Cell, GridColumn, GridRow
from bwtui.tui.widgets.grid import Grid

#: Seconds for which an order is kept, so that rows sorted by a rate do not swap places all the time.
CALM = 2.0


@dataclass(frozen=True, slots=True)
class Item:
    """A row with a value for each sortable column, and the text to filter."""

    key: str
    cells: tuple[Cell, ...]
    values: Mapping[str, Any]
    search: str
    trouble: bool = False


class ItemList(Grid):
    """A panel of items; its border shows how many of them are visible, and why not all."""

    def __init__(self, columns: Sequence[GridColumn], sortable: Sequence[str], *, id: str, noun: str) -> None:
        super().__init__(columns, id=id)
        self.add_class("panel")
        self.noun = noun
        self.sortable = tuple(sortable)
        self.sort_column = self.sortable[0]
        self.descending = self._natural(self.sort_column)
        self.filter = Filter()
        self.errors_only = False
        self._why_empty, self._is_known = "", True
        self.items: dict[str, Item] = {}
        self._order: list[str] = []
        self._ordered_at = float("-inf")
        self.set_sort_mark(self.sort_column, self.descending)

    def set_items(self, items: Sequence[Item], now: float) -> None:
        """Show these items; keep the order for a while, even if their values change."""
        self.items = {item.key: item for item in items}
        if now - self._ordered_at >= CALM or now < self._ordered_at:
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
        shown = [c for c in self.sortable if c in self.shown_columns] or list(self.sortable)
        where = shown.index(self.sort_column) + 1 if self.sort_column in shown else 0
        self.sort_by(shown[where % len(shown)])

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
        shown = [item for key in self._order if self._passes(item := self.items[key])]
        if not self.items:
            self.empty_text = self._why_empty or f"no {self.noun} yet"
        else:
            clear, every = key_for("back"), key_for("errors_only")
            self.empty_text = f"no {self.noun} match: {clear} clears the filter, {every} shows all"
        self.set_rows([GridRow(item.key, item.cells) for item in shown])
        self.set_remark(self._explain(len(shown)) if self._is_known or self.items else "")

    def _passes(self, item: Item) -> bool:
        return (item.trouble or not self.errors_only) and self.filter.passes(item.search)

    def _explain(self, shown: int) -> str:
        reasons = [r for r in (self.filter.describe(), "errors only" if self.errors_only else "") if r]
        amount = f"{shown} of {len(self.items)}" if reasons else str(len(self.items))
        return " · ".join([*reasons, f"{amount} {self.noun}"])

    def _sorted(self) -> list[str]:
        by_key = sorted(self.items.values(), key=lambda item: item.key)
        by_key.sort(key=lambda item: item.values[self.sort_column], reverse=self.descending)
        return [item.key for item in by_key]

    def _natural(self, key: str) -> bool:
        """Return whether a column sorts in descending order by default, as columns of numbers do."""
        return next(column.align == "right" for column in self.columns if column.key == key)


class SortedItemList(ItemList):
    """A list that is sorted at every update, as its values never change; also explains why it is empty."""

    reason = ""

    def set_items(self, items: Sequence[Item], now: float) -> None:
        self._ordered_at = float("-inf")
        super().set_items(items, now)

    def _show(self) -> None:
        super()._show()
        if not self.items and self.reason:
            self.empty_text = self.reason
