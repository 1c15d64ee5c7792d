"""As of: the rows of a table as they were at the recording's position."""

import threading
from collections.abc import Iterable
from typing import Any

from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.pgoutput.messages import UNCHANGED, Relation
from bwtui.recording.export.jsonl import exact
from bwtui.recording.fields import as_text
from bwtui.recording.reading.as_of import Gaps, TableFold, TableRow, pages
from bwtui.recording.reading.explain import Key
from bwtui.recording.view import RecordingView
from bwtui.shown import shown
from bwtui.tui import figures
from bwtui.tui.host import Host
from bwtui.tui.plain import Content, block
from bwtui.tui.screens.exporting import Objects
from bwtui.tui.screens.table import OneTableScreen
from bwtui.tui.state import Picture, Playhead
from bwtui.tui.widgets.columns import Column
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.recording.rows import RowsGrid
from bwtui.tui.widgets.recording.transport import moment


class AsOfScreen(OneTableScreen):
    """Follows the recording's position; Esc goes back."""

    without = frozenset(("filter", "errors_only", "sort", "reverse"))

    def __init__(self, host: Host, table: str) -> None:
        super().__init__(host, table)
        self._fold = TableFold(table)
        self._relation: Relation | None = None
        self._head: Playhead | None = None
        #: The position that the rows on screen belong to.
        self._at: int | None = None
        self._work: threading.Event | None = None
        self._target = 0
        self._count = 0
        self._progress = (0, 0)
        self._gaps = Gaps(False, False, 0)
        self._failure: BwtuiError | None = None

    def body(self) -> Iterable[Widget]:
        """Return the rows, and the selected one in full."""
        return (RowsGrid(f"{self.table} as of this position"), Detail(id="row", title="Row"))

    def paint(self, picture: Picture) -> None:
        """Work the rows out anew when the position has changed."""
        self._head = picture.playhead
        if self._head is None:
            return
        if self._work is not None and self._target > self._head.position:
            # What is under way would lead beyond this place.
            self._work.set()
        if self._work is None and self._at != self._head.position and self._failure is None:
            self._begin(self._head.position)
        self._explain()

    def main_grid(self) -> RowsGrid:
        return self.query_one(RowsGrid)

    def crumbs(self) -> tuple[str, ...]:
        return ("Overview", f"rows of {self.table}")

    def selected_key(self) -> Key | str:
        """Return the key of the selected row, or why there is none."""
        row, relation, columns = self.main_grid().selected(), self._relation, self._fold.key_columns
        if row is None or relation is None:
            return "No row is selected"
        if not columns:
            return f"{self.table} has no key, so its rows can't be told apart"
        values = dict(zip((column.name for column in relation.columns), row.fields, strict=False))
        return Key(self.table, columns, tuple(values.get(name) for name in columns))

    def on_unmount(self) -> None:
        """Stop what is under way, which lets go of the rows at its end; or let go of them."""
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

    def selected_objects(self) -> Objects:
        row, relation = self.main_grid().selected(), self._relation
        return [] if row is None or relation is None else [row_object(relation, row)]

    def action_export_all(self) -> None:
        """Write every row into a file, not only those that are at hand."""
        if self._work is not None:
            self._warn("The rows are not worked out yet")
            return
        if self._relation is None:
            self.export(())
            return
        self._work = threading.Event()
        self.run_worker(self._export_rows(self._fold, self._relation, self._work), exit_on_error=True)

    async def _export_rows(self, fold: TableFold, relation: Relation, work: threading.Event) -> None:
        def objects() -> Objects:
            for row in pages(fold):
                if work.is_set():
                    raise BwtuiError("the export was stopped: another position was asked for", "try it again")
                yield row_object(relation, row)

        await self.write(objects(), self.main_grid().remark)
        self._work = None
        if not self.is_attached:
            fold.close()
        elif self._head is not None:
            self.refresh_picture()

    def _begin(self, position: int) -> None:
        if position < self._fold.position:
            # Nothing can be taken back from a fold: it begins anew.
            self._fold.close()
            self._fold = TableFold(self.table)
        self._target, self._progress = position, (self._fold.position, position)
        self._work = threading.Event()
        self.run_worker(self._advance(position, self._fold, self._work), exit_on_error=True)

    async def _advance(self, position: int, fold: TableFold, work: threading.Event) -> None:
        def progress(done: int, total: int) -> None:
            self._progress = (done, total)

        def advance(view: RecordingView) -> tuple[bool, bool]:
            runs = view.status(position).get("state") == "snapshot"
            return fold.advance(view, position, work.is_set, progress), runs

        try:
            arrived, runs = await self.recording.source.study(advance)
        except BwtuiError as error:
            self._failure, arrived, runs = error, True, False
        self._work = None
        if not self.is_attached:
            fold.close()
            return
        if arrived:
            self._at, self._gaps, self._relation = position, fold.gaps(runs), fold.relation
            self._count = fold.count
            self._show_rows(self.main_grid().first_number)
        if self._head is not None:
            self.refresh_picture()

    def _show_rows(self, offset: int) -> None:
        columns = () if self._relation is None else tuple(c.name for c in self._relation.columns)
        grid = self.main_grid()
        total = self._count
        offset = max(min(offset, total - 1), 0)
        rows = self._fold.rows(offset, RowsGrid.SIZE)
        grid.show_rows(table_columns(columns, self._fold.key_columns), rows, offset, total)
        self.on_grid_highlighted(Grid.Highlighted(grid, grid.cursor_key))
        self._explain()

    def _explain(self) -> None:
        grid = self.main_grid()
        grid.empty_text = self._failure.message if self._failure else "no rows at this position"
        parts = []
        if self._work is not None:
            done, total = self._progress
            grid.empty_text = "working out the rows…"
            parts.append(f"{figures.percent(done / max(total, 1))} of the changes folded")
        elif self._head is not None:
            parts.append(f"{self._count:,} rows as of {moment(self._head.time)}")
        parts += gap_texts(self._gaps)
        grid.set_remark(" · ".join(parts))
        grid.set_class(bool(gap_texts(self._gaps)), "-left")


def gap_texts(gaps: Gaps) -> list[str]:
    """Say what is not known of a table."""
    texts = []
    if gaps.no_snapshot:
        texts.append("▲ no snapshot is recorded: rows from before are unknown")
    if gaps.snapshot_runs:
        texts.append("▲ the snapshot is under way here")
    if gaps.unknown_rows and not gaps.no_snapshot:
        texts.append(f"▲ {gaps.unknown_rows:,} changes of rows that are not recorded")
    return texts


def table_columns(names: tuple[str, ...], key: tuple[str, ...]) -> tuple[Column, ...]:
    """Return columns for a table's own; the last ones are dropped first, the key never."""
    return tuple(
        Column(name, name, min(max(len(name), 8), 16), drop=0 if name in key or not i else i, grow=40)
        for i, name in enumerate(names)
    )


def row_object(relation: Relation, row: TableRow) -> dict[str, Any]:
    """Return a row for an export; a value that is not known is left out."""
    pairs = zip(relation.columns, row.fields, strict=False)
    return {column.name: exact(value) for column, value in pairs if value is not UNCHANGED}


def row_content(relation: Relation, row: TableRow) -> Content:
    """Return a row in full, and which change made it."""
    width = max((len(shown(c.name)) for c in relation.columns), default=0)
    lines = [Content.assemble(("as left by the change at position ", "$quiet"), f"{row.position:,}", "\n")]
    for column, value in zip(relation.columns, row.fields, strict=False):
        text, tone = as_text(value), "$foreground"
        if value is UNCHANGED:
            text, tone = "not known: PostgreSQL did not send it", "$secondary"
        elif text is None:
            text, tone = "NULL", "$secondary"
        name = f"{shown(column.name):<{width}}  "
        lines.append(Content.assemble((name, "$quiet"), (block(text or "''", len(name)), tone)))
    return Content("\n").join(lines)
