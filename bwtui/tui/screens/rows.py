"""The rows of a table as of the position of a recording."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from textual.message import Message
from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.escaping import escape
from bwtui.model.backfill import whole_tables
from bwtui.pgoutput.messages import UNCHANGED, Field, Relation
from bwtui.recording.as_of import RowOrder, TableFold, TableGaps, TableRow, pages
from bwtui.recording.change import as_text
from bwtui.recording.explain import RowKey
from bwtui.recording.export import exact
from bwtui.recording.query_completion import QueryNames
from bwtui.recording.query_language import Query
from bwtui.recording.view import RecordingView
from bwtui.tui.base import figures
from bwtui.tui.base.keys import key_for
from bwtui.tui.base.plain import Content, block
from bwtui.tui.screens.base import Objects
from bwtui.tui.screens.changes import OneTableScreen
from bwtui.tui.sources.host import ScreenHost
from bwtui.tui.sources.model import Playhead, ScreenSnapshot
from bwtui.tui.widgets.filter_bar import FilterBar
from bwtui.tui.widgets.grid import Cell, Grid, GridColumn, GridRow
from bwtui.tui.widgets.line import Detail
from bwtui.tui.widgets.transport import RowQueryBar, moment


class RowsGrid(Grid):
    """Holds `SIZE` rows, and requests more when the cursor reaches an end."""

    SIZE: ClassVar[int] = 400

    @dataclass
    class RowsRequested(Message):
        """Rows from this number on are needed."""

        offset: int

    def __init__(self, title: str) -> None:
        super().__init__((), id="rows")
        self.add_class("panel")
        self.border_title = Content(title)
        self.target_number: int | None = None
        self.first_number = 0
        self.total = 0
        self._table_rows: Sequence[TableRow] = ()

    def show_rows(
        self, columns: Sequence[GridColumn], rows: Sequence[TableRow], first: int, total: int
    ) -> None:
        """Show the rows from number ``first`` on, out of ``total`` rows."""
        self.set_columns(columns)
        self.first_number, self.total, self._table_rows = first, total, rows
        self.set_rows([_grid_row(row, first + i) for i, row in enumerate(rows)])
        if self.target_number is not None:
            self.move_to(self.target_number - first)
            self.target_number = None

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
            self._go_to(number)

    def action_first(self, key: str = "") -> None:
        self._go_to(0)

    def action_last(self, key: str = "") -> None:
        self._go_to(self.total - 1)

    def _go_to(self, number: int) -> None:
        if self.first_number <= number < self.first_number + len(self.rows) and number in (0, self.total - 1):
            self.move_to(number - self.first_number)
            return
        self.target_number = max(number, 0)
        self.post_message(self.RowsRequested(max(number - self.SIZE // 2, 0)))


def field_cell(value: Field) -> Cell:
    """Return a value as a cell."""
    if value is None:
        return Cell("NULL", "muted")
    if value is UNCHANGED:
        return Cell("unknown", "warn")
    return Cell((as_text(value) or "''")[:200])


def _grid_row(row: TableRow, number: int) -> GridRow:
    return GridRow(str(number), tuple(field_cell(value) for value in row.fields))


_MICROS = 1_000_000
#: Requests that cover all rows of a table.
_ALL_ROWS = ("snapshot", "joined", "first")


class _RowsRequest(NamedTuple):
    """The target: the table as of a position, the rows that match a query, and their order."""

    position: int
    query: Query | None
    order: RowOrder | None


class AsOfScreen(OneTableScreen):
    """Shows the rows as of the recording's position, and follows it; Esc goes back."""

    without = frozenset(("errors_only",))

    def __init__(self, host: ScreenHost, table: str) -> None:
        super().__init__(host, table)
        self._fold = TableFold(table)
        self._relation: Relation | None = None
        self._head: Playhead | None = None
        self._query: Query | None = None
        self._order: RowOrder | None = None
        #: The target that the rows on screen belong to.
        self._at: _RowsRequest | None = None
        self._work: threading.Event | None = None
        self._target = _RowsRequest(0, None, None)
        self._count = self._shown = 0
        self._progress = (0, 0)
        self._doing = ""
        self._gaps = TableGaps(False, False, 0, 0)
        self._failure: BwtuiError | None = None

    def body(self) -> Iterable[Widget]:
        return (RowsGrid(f"{self.table} as of this position"), Detail(id="row", title="Row"))

    def filter_bar(self) -> FilterBar:
        end = self.recording.source.view.last_time
        return RowQueryBar(self._search, end, QueryNames, self.apply_filter, self.focus_list)

    def paint(self, snapshot: ScreenSnapshot) -> None:
        self._head = snapshot.playhead
        if self._head is None:
            return
        self._follow(self._head)
        self._explain()

    def _follow(self, head: Playhead) -> None:
        request, target = _RowsRequest(head.position, self._query, self._order), self._target
        if self._work is not None and (target.position > head.position or target[1:] != request[1:]):
            # The running work would pass this position, or select different rows.
            self._work.set()
        if self._work is None and self._at != request and self._failure is None:
            self._begin(request)

    def main_grid(self) -> RowsGrid:
        return self.query_one(RowsGrid)

    def crumbs(self) -> tuple[str, ...]:
        return ("Overview", f"rows of {self.table}")

    def selected_key(self) -> RowKey | str:
        row, relation, columns = self.main_grid().selected(), self._relation, self._fold.key_columns
        if row is None or relation is None:
            return "No row is selected"
        if not columns:
            return f"{self.table} has no key, so its rows can't be distinguished"
        values = dict(zip((column.name for column in relation.columns), row.fields, strict=False))
        return RowKey(self.table, columns, tuple(values.get(name) for name in columns))

    def on_unmount(self) -> None:
        """Stop the running work; without any, close the rows."""
        if self._work is not None:
            self._work.set()
        else:
            self._fold.close()

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        row = self.main_grid().selected()
        detail = self.query_one("#row", Detail)
        if row is None or self._relation is None:
            detail.show(None, Content.styled("no row selected", "$quiet"))
        else:
            detail.show((self._at, row), row_content(self._relation, row))

    def on_rows_grid_rows_requested(self, event: RowsGrid.RowsRequested) -> None:
        if self._work is None:
            self._show_rows(event.offset)

    # Filtering and sorting.

    def is_filtered(self) -> bool:
        return self._query is not None

    def _search(self, query: Query | None) -> None:
        """Show only the rows that match a query, or all."""
        self._query = query
        self.refresh_picture()

    def action_sort(self) -> None:
        """Sort by the next visible column, and after the last one by the key again."""
        columns = self.main_grid().shown_columns
        now = self._order.column if self._order is not None else None
        at = columns.index(now) + 1 if now in columns else 0
        self._sort_by(RowOrder(columns[at]) if at < len(columns) else None)

    def action_reverse(self) -> None:
        """Reverse the order, also that of the key."""
        column, descending = self._order or RowOrder()
        turned = RowOrder(column, not descending)
        self._sort_by(None if turned == RowOrder() else turned)

    def on_grid_title_clicked(self, event: Grid.TitleClicked) -> None:
        if self._order is not None and self._order.column == event.column:
            self.action_reverse()
        else:
            self._sort_by(RowOrder(event.column))

    def _sort_by(self, order: RowOrder | None) -> None:
        self._order = order
        self.refresh_picture()

    def selected_objects(self) -> Objects:
        row, relation = self.main_grid().selected(), self._relation
        return [] if row is None or relation is None else [row_object(relation, row)]

    def action_export_all(self) -> None:
        """Write every row to a file, not only those in memory."""
        if self._work is not None:
            self._warn("The rows are not ready yet")
            return
        if self._relation is None:
            self.export(())
            return
        self._work = threading.Event()
        self.app.run_worker(self._export_rows(self._fold, self._relation, self._work), exit_on_error=True)

    async def _export_rows(self, fold: TableFold, relation: Relation, work: threading.Event) -> None:
        def objects() -> Objects:
            for row in pages(fold):
                if work.is_set():
                    why = "its screen was closed, or another position was requested"
                    raise BwtuiError(f"the export was stopped: {why}", "export again")
                yield row_object(relation, row)

        await self.write(objects(), self.main_grid().remark)
        self._work = None
        if not self.is_attached:
            fold.close()
        elif self._head is not None:
            self.refresh_picture()

    # Reading.

    def _begin(self, request: _RowsRequest) -> None:
        if request.position < self._fold.position:
            # A fold can't go backwards, so it starts from scratch.
            self._fold.close()
            self._fold = TableFold(self.table)
        self._target, self._progress = request, (self._fold.position, request.position)
        self._doing = "of the changes applied"
        self._work = threading.Event()
        # The worker outlives the screen, to close the rows.
        self.app.run_worker(self._advance(request, self._fold, self._work), exit_on_error=True)

    async def _advance(self, request: _RowsRequest, fold: TableFold, work: threading.Event) -> None:
        def progress(done: int, total: int) -> None:
            self._progress = (done, total)

        def advance(view: RecordingView) -> tuple[bool, TableGaps]:
            status = view.status(request.position)
            arrived = fold.advance(view, request.position, work.is_set, progress)
            if arrived:
                self._doing = "of the rows sorted"
                matches = request.query.matches if request.query is not None else None
                arrived = fold.arrange(matches, request.order, work.is_set, progress)
            gaps = fold.gaps(status.get("state") == "snapshot")
            if self.table in whole_tables(status, view.first_time / _MICROS, _ALL_ROWS):
                gaps = gaps._replace(no_snapshot=False)
            return arrived, gaps

        try:
            arrived, gaps = await self.recording.source.study(advance)
        except BwtuiError as error:
            self._failure, arrived, gaps = error, True, fold.gaps(False)
        self._work = None
        if not self.is_attached:
            fold.close()
            return
        if arrived:
            moved = self._at is None or self._at[1:] != request[1:]
            self._at, self._gaps, self._relation = request, gaps, fold.relation
            self._count, self._shown = fold.count, fold.shown
            if moved:
                self.main_grid().target_number = 0
            self._show_rows(0 if moved else self.main_grid().first_number)
        if self._head is not None:
            self.refresh_picture()

    def _show_rows(self, offset: int) -> None:
        columns = () if self._relation is None else tuple(c.name for c in self._relation.columns)
        grid = self.main_grid()
        offset = max(min(offset, self._shown - 1), 0)
        rows = self._fold.rows(offset, RowsGrid.SIZE)
        grid.show_rows(table_columns(columns, self._fold.key_columns), rows, offset, self._shown)
        order = self._at.order if self._at is not None else None
        if order is not None and order.column is not None:
            grid.set_sort_mark(order.column, order.descending)
        else:
            grid.set_sort_mark("", False)
        self.on_grid_highlighted(Grid.Highlighted(grid, grid.cursor_key))
        self._explain()

    def _explain(self) -> None:
        grid = self.main_grid()
        if self._failure is not None:
            grid.empty_text = self._failure.message
        elif self._query is not None:
            grid.empty_text = f"no row at this position matches; {key_for('back')} shows all"
        else:
            grid.empty_text = "no rows at this position"
        parts = []
        if self._work is not None:
            done, total = self._progress
            grid.empty_text = "applying the changes…"
            parts.append(f"{figures.percent(done / max(total, 1))} {self._doing}")
        elif self._head is not None:
            parts.append(self._number(self._head))
        parts += gap_texts(self._gaps)
        grid.set_remark(" · ".join(parts))
        grid.set_class(bool(gap_texts(self._gaps)), "-left")

    def _number(self, head: Playhead) -> str:
        """Return the number of rows, how many of them are shown, and their order."""
        number = f"{self._count:,} rows as of {moment(head.time)}"
        if self._query is not None:
            number = f"/{self._query.text} · {self._shown:,} of {number}"
        if self._order == RowOrder(None, True):
            number += " · sorted by key, descending"
        return number


def gap_texts(gaps: TableGaps) -> list[str]:
    """Return what is unknown about a table."""
    texts = []
    if gaps.no_snapshot:
        texts.append("▲ no snapshot is recorded, so earlier rows are unknown")
    if gaps.snapshot_runs:
        texts.append("▲ the snapshot is still incomplete at this position")
    if gaps.unknown_rows and not gaps.no_snapshot:
        texts.append(f"▲ {gaps.unknown_rows:,} changes apply to rows that are not recorded")
    if gaps.unknown_tombstones:
        texts.append(f"▲ {gaps.unknown_tombstones:,} rows that a repair found deleted may still be listed")
    return texts


def table_columns(names: tuple[str, ...], key: tuple[str, ...]) -> tuple[GridColumn, ...]:
    """Return the columns of a table; the last ones are dropped first, those of the key never."""
    return tuple(
        GridColumn(name, name, min(max(len(name), 8), 16), drop=0 if name in key or not i else i, grow=40)
        for i, name in enumerate(names)
    )


def row_object(relation: Relation, row: TableRow) -> dict[str, Any]:
    """Return a row for export, without unknown values."""
    pairs = zip(relation.columns, row.fields, strict=False)
    return {column.name: exact(value) for column, value in pairs if value is not UNCHANGED}


def row_content(relation: Relation, row: TableRow) -> Content:
    """Return a row in full, with the change that produced it."""
    width = max((len(escape(c.name)) for c in relation.columns), default=0)
    lines = [Content.assemble(("as of the change at position ", "$quiet"), f"{row.position:,}", "\n")]
    for column, value in zip(relation.columns, row.fields, strict=False):
        text, tone = as_text(value), "$foreground"
        if value is UNCHANGED:
            text, tone = "unknown: PostgreSQL did not send it", "$secondary"
        elif text is None:
            text, tone = "NULL", "$secondary"
        name = f"{escape(column.name):<{width}}  "
        lines.append(Content.assemble((name, "$quiet"), (block(text or "''", len(name)), tone)))
    return Content("\n").join(lines)
