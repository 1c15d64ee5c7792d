"""The rows of a table as of the recording's position."""

import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.escaping import escape
from bwtui.model.backfill import whole_tables
from bwtui.pgoutput.messages import UNCHANGED, Relation
from bwtui.recording.export.jsonl import exact
from bwtui.recording.fields import as_text
from bwtui.recording.query.language import Query
from bwtui.recording.reading.as_of import RowOrder, TableFold, TableGaps, TableRow, pages
from bwtui.recording.reading.explain import RowKey
from bwtui.recording.view import RecordingView
from bwtui.tui import figures
from bwtui.tui.host import ScreenHost
from bwtui.tui.keys import key_for
from bwtui.tui.plain import Content, block
from bwtui.tui.screens.exporting import Objects
from bwtui.tui.screens.table import OneTableScreen
from bwtui.tui.state import Playhead, ScreenSnapshot
from bwtui.tui.widgets.columns import GridColumn
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.filter_bar import FilterBar
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.recording.query_bar import QueryBar, RowQueryBar
from bwtui.tui.widgets.recording.rows import RowsGrid
from bwtui.tui.widgets.recording.transport import moment

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
        """Return the line in which a query is typed."""
        return RowQueryBar(self.recording.source.view.last_time)

    def paint(self, picture: ScreenSnapshot) -> None:
        """Compute the rows again if the position has changed."""
        self._head = picture.playhead
        if self._head is None:
            return
        self._follow(self._head)
        self._explain()

    def _follow(self, head: Playhead) -> None:
        wanted, target = _RowsRequest(head.position, self._query, self._order), self._target
        if self._work is not None and (target.position > head.position or target[1:] != wanted[1:]):
            # The running work would pass this position, or select different rows.
            self._work.set()
        if self._work is None and self._at != wanted and self._failure is None:
            self._begin(wanted)

    def main_grid(self) -> RowsGrid:
        return self.query_one(RowsGrid)

    def crumbs(self) -> tuple[str, ...]:
        return ("Overview", f"rows of {self.table}")

    def selected_key(self) -> RowKey | str:
        """Return the key of the selected row, or why there is none."""
        row, relation, columns = self.main_grid().selected(), self._relation, self._fold.key_columns
        if row is None or relation is None:
            return "No row is selected"
        if not columns:
            return f"{self.table} has no key, so its rows can't be told apart"
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

    def on_rows_grid_wanted(self, event: RowsGrid.Wanted) -> None:
        if self._work is None:
            self._show_rows(event.offset)

    # Filtering and sorting.

    def is_filtered(self) -> bool:
        return self._query is not None

    def on_query_bar_asked(self, event: QueryBar.Asked) -> None:
        """Show only the rows that match a query, or all."""
        self._query = event.query
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
        """Sort by the clicked title."""
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
            self._warn("The rows are not worked out yet")
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

    def _begin(self, wanted: _RowsRequest) -> None:
        if wanted.position < self._fold.position:
            # A fold can't go backwards, so it starts from scratch.
            self._fold.close()
            self._fold = TableFold(self.table)
        self._target, self._progress = wanted, (self._fold.position, wanted.position)
        self._doing = "of the changes folded"
        self._work = threading.Event()
        # The worker outlives the screen, to close the rows.
        self.app.run_worker(self._advance(wanted, self._fold, self._work), exit_on_error=True)

    async def _advance(self, wanted: _RowsRequest, fold: TableFold, work: threading.Event) -> None:
        def progress(done: int, total: int) -> None:
            self._progress = (done, total)

        def advance(view: RecordingView) -> tuple[bool, TableGaps]:
            status = view.status(wanted.position)
            arrived = fold.advance(view, wanted.position, work.is_set, progress)
            if arrived:
                self._doing = "of the rows arranged"
                matches = wanted.query.matches if wanted.query is not None else None
                arrived = fold.arrange(matches, wanted.order, work.is_set, progress)
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
            moved = self._at is None or self._at[1:] != wanted[1:]
            self._at, self._gaps, self._relation = wanted, gaps, fold.relation
            self._count, self._shown = fold.count, fold.shown
            if moved:
                self.main_grid().offset_wanted = 0
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
            number += " · the last key first"
        return number


def gap_texts(gaps: TableGaps) -> list[str]:
    """Return what is unknown about a table."""
    texts = []
    if gaps.no_snapshot:
        texts.append("▲ no snapshot is recorded: rows from before are unknown")
    if gaps.snapshot_runs:
        texts.append("▲ the snapshot is under way here")
    if gaps.unknown_rows and not gaps.no_snapshot:
        texts.append(f"▲ {gaps.unknown_rows:,} changes of rows that are not recorded")
    if gaps.unknown_tombstones:
        texts.append(f"▲ {gaps.unknown_tombstones:,} rows that a repair found gone may still stand here")
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
    lines = [Content.assemble(("as left by the change at position ", "$quiet"), f"{row.position:,}", "\n")]
    for column, value in zip(relation.columns, row.fields, strict=False):
        text, tone = as_text(value), "$foreground"
        if value is UNCHANGED:
            text, tone = "not known: PostgreSQL did not send it", "$secondary"
        elif text is None:
            text, tone = "NULL", "$secondary"
        name = f"{escape(column.name):<{width}}  "
        lines.append(Content.assemble((name, "$quiet"), (block(text or "''", len(name)), tone)))
    return Content("\n").join(lines)
