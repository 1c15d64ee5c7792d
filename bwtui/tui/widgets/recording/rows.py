"""The rows of a table, of which only a part is in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.message import Message

from bwtui.pgoutput.messages import UNCHANGED, Field
from bwtui.recording.fields import as_text
from bwtui.recording.reading.as_of import TableRow
from bwtui.tui.plain import Content
from bwtui.tui.widgets.columns import Cell, GridColumn, GridRow
from bwtui.tui.widgets.grid import Grid


class RowsGrid(Grid):
    """Holds `SIZE` rows, and requests more when the cursor reaches an end."""

    SIZE: ClassVar[int] = 400

    @dataclass
    class Wanted(Message):
        """Rows from this number on are needed."""

        offset: int

    def __init__(self, title: str) -> None:
        super().__init__((), id="rows")
        self.add_class("panel")
        self.border_title = Content(title)
        self.offset_wanted: int | None = None
        self.first_number = 0
        self.total = 0
        self._table_rows: Sequence[TableRow] = ()

    def show_rows(
        self, columns: Sequence[GridColumn], rows: Sequence[TableRow], first: int, total: int
    ) -> None:
        """Show the rows from number ``first`` on, out of ``total`` rows."""
        self.set_columns(columns)
        self.first_number, self.total, self._table_rows = first, total, rows
        self.set_rows([_row(row, first + i) for i, row in enumerate(rows)])
        if self.offset_wanted is not None:
            self.move_to(self.offset_wanted - first)
            self.offset_wanted = None

    def selected(self) -> TableRow | None:
        """Return the row under the cursor."""
        return self._table_rows[self.cursor_row] if self.rows else None

    def on_grid_moved(self, event: Grid.Moved) -> None:
        """Request more rows when the cursor reaches an end of those in memory."""
        event.stop()
        number = self.first_number + self.cursor_row
        at_top = self.cursor_row == 0 and self.first_number > 0
        at_bottom = self.cursor_row == len(self.rows) - 1 and number < self.total - 1
        if at_top or at_bottom:
            self._want(number)

    def action_first(self, key: str = "") -> None:
        """Go to the table's first row."""
        self._want(0)

    def action_last(self, key: str = "") -> None:
        """Go to the table's last row."""
        self._want(self.total - 1)

    def _want(self, number: int) -> None:
        if self.first_number <= number < self.first_number + len(self.rows) and number in (0, self.total - 1):
            self.move_to(number - self.first_number)
            return
        self.offset_wanted = max(number, 0)
        self.post_message(self.Wanted(max(number - self.SIZE // 2, 0)))


def field_cell(value: Field) -> Cell:
    """Return a value as a cell."""
    if value is None:
        return Cell("NULL", "muted")
    if value is UNCHANGED:
        return Cell("not known", "warn")
    return Cell((as_text(value) or "''")[:200])


def _row(row: TableRow, number: int) -> GridRow:
    return GridRow(str(number), tuple(field_cell(value) for value in row.fields))
