"""The detail screens of a recording: its changes, the rows of a table, and its transactions."""

import contextlib
import json
import threading
import time
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

from textual import work
from textual.containers import Container
from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.escaping import escape
from bwtui.model.backfill import whole_tables
from bwtui.model.lsn import format_lsn
from bwtui.model.status import SchemaEntry
from bwtui.pgoutput.messages import UNCHANGED, Relation
from bwtui.recording.as_of import RowOrder, TableFold, TableGaps, TableRow, pages
from bwtui.recording.change import Change, as_text
from bwtui.recording.explain import RowKey
from bwtui.recording.export import change_object, exact
from bwtui.recording.playback import (
    LARGEST,
    LONGEST,
    MICROS,
    NEWEST,
    Matches,
    TransactionContents,
    TransactionCounts,
    TransactionFold,
    WindowBounds,
    contents,
    counted,
)
from bwtui.recording.query_completion import QueryNames
from bwtui.recording.query_language import Query
from bwtui.recording.view import RecordedTransaction, RecordingView
from bwtui.tui.base import figures
from bwtui.tui.base.keys import key_for
from bwtui.tui.base.plain import Content, block
from bwtui.tui.screens.base import Objects, RelayScreen
from bwtui.tui.screens.changes import ChangesPair, FactsScreen, OneTableScreen
from bwtui.tui.sources.host import Closer, RecordingHost, ScreenHost, ScreenSelection
from bwtui.tui.sources.model import Playhead, ScreenSnapshot
from bwtui.tui.widgets.changes import (
    fact_lines,
    named,
    rows_cell,
    rows_text,
    tables_cell,
    transaction_columns,
)
from bwtui.tui.widgets.filter_bar import Filter, FilterBar
from bwtui.tui.widgets.grid import CALM, Cell, Grid, GridColumn, Item, ItemList
from bwtui.tui.widgets.line import Detail, Line
from bwtui.tui.widgets.recorded_changes import RecordedChanges, RecordedDetail, RowsGrid, no_change_yet
from bwtui.tui.widgets.transport import QueryBar, RowQueryBar, moment

#: Maximum changes of a transaction that are counted for its heading.
_COUNTED = 20_000
#: Titles of changes that belong to no transaction.
_ALONE = {"snapshot": "Snapshot row", "backfill": "Backfilled row", "cleanup": "Tombstone"}


class RecordedPair(ChangesPair):
    """Shows a list of recorded changes, and the selected one in full."""

    def __init__(self, host: ScreenHost, *rest: Any, **more: Any) -> None:
        super().__init__(host, *rest, **more)
        self._export_stopped = threading.Event()

    def filter_bar(self) -> FilterBar:
        """Return the line in which a query is typed."""
        end = self.recording.source.view.last_time
        return QueryBar(self._search, end, self._names, self.apply_filter, self.focus_list)

    def _names(self) -> QueryNames:
        """Return the names of tables and columns for queries."""
        snapshot = self.host.model.snapshot
        tables = snapshot.status.tables if snapshot.status is not None else ()
        columns = {**self.main_grid().columns_at_hand, **dict.fromkeys(columns_of(snapshot.schemas))}
        return QueryNames(tuple(tables), tuple(columns))

    def paint(self, snapshot: ScreenSnapshot) -> None:
        self.main_grid().show(snapshot)
        self._show_selected()

    def main_grid(self) -> RecordedChanges:
        return self.query_one(RecordedChanges)

    def selected_change(self) -> Change | None:
        """Return the change under the cursor; until the list is read, the last one at the position."""
        return self.main_grid().selected() if self.main_grid().window else super().selected_change()

    def is_filtered(self) -> bool:
        return self.main_grid().is_filtered

    def row_text(self) -> str:
        return self.main_grid().copy_text()

    def selected_objects(self) -> Objects:
        change = self.main_grid().selected()
        return [] if change is None else [change_object(change)]

    def action_export_all(self) -> None:
        """Write all changes that match to a file, however many there are."""
        self.notify("Reading the recording for the export", timeout=2)
        self.export(self._matching(*self.main_grid().search_scope))

    def _matching(self, bounds: WindowBounds, matches: Matches | None) -> Objects:
        """Yield the exported changes; runs in its own thread with its own view."""
        with contextlib.closing(self.recording.source.reopen()) as view:
            for change in view.changes(bounds.start, bounds.stop):
                if self._export_stopped.is_set():
                    raise BwtuiError(
                        "the export was stopped because its screen was closed",
                        "stay on the screen until it has finished",
                    )
                if matches is None or matches(change):
                    yield change_object(change)

    def on_unmount(self) -> None:
        """Stop the export."""
        self._export_stopped.set()

    def action_back(self) -> None:
        """Stop a search first."""
        if not self.main_grid().stop_searching():
            super().action_back()

    def action_errors_only(self) -> None:
        """Show only changes that were dropped, refused or never confirmed, or all."""
        self.main_grid().toggle_errors_only()

    def _search(self, query: Query | None) -> None:
        self.main_grid().set_query(query.text if query else "", query.matches if query else None)

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self._show_selected()

    def _show_selected(self) -> None:
        """Show the selected change or why there is none; the reason may change while nothing is selected."""
        change, detail = self.main_grid().selected(), self.query_one(RecordedDetail)
        if change is None:
            detail.show_nothing(self.main_grid().why_none)
        else:
            detail.show_change(change)


class RecordedChangesScreen(RecordedPair):
    """Shows every change of the recording."""

    mode: ClassVar[str] = "changes"

    def body(self) -> Iterable[Widget]:
        return (RecordedChanges(self.recording, "Changes"), RecordedDetail())


class RecordedTableScreen(FactsScreen, RecordedPair):
    """Shows one table as of the position, and its changes."""

    def changes_pair(self) -> Iterable[Widget]:
        return (RecordedChanges(self.recording, "Changes", table=self.table), RecordedDetail())


class TransactionScreen(RecordedPair):
    """Shows all changes of one transaction in order; Esc goes back."""

    mode: ClassVar[str] = "changes"
    own_list = True

    def __init__(self, host: ScreenHost, change: Change, bounds: WindowBounds) -> None:
        super().__init__(host)
        self.change = change
        self._bounds = bounds

    @classmethod
    def of(cls, host: ScreenHost, selection: ScreenSelection) -> Closer:
        """Return the screen of the selected change's transaction."""
        change, recording = selection.selected_change(), host.recording
        if change is None or recording is None:
            return "No change is selected"
        return cls._around(host, recording, change)

    @classmethod
    async def _around(cls, host: ScreenHost, recording: RecordingHost, change: Change) -> "TransactionScreen":
        start, stop = await recording.source.transaction(change.position)
        return cls(host, change, WindowBounds(start, stop))

    def body(self) -> Iterable[Widget]:
        pair = Container(
            RecordedChanges(self.recording, "Its changes", self._bounds),
            RecordedDetail(),
            id="changes-pair",
            classes="folder",
        )
        return (Detail(id="facts", title=self._called), pair)

    def on_mount(self) -> None:
        self.query_one("#facts", Detail).show(None, Content.styled("counting…", "$quiet"))
        self.run_worker(self._count(), exit_on_error=True)

    def crumbs(self) -> tuple[str, ...]:
        return ("Changes", self._called[0].lower() + self._called[1:])

    @property
    def _called(self) -> str:
        return _ALONE.get(self.change.operation, f"Transaction {self.change.xid}")

    async def _count(self) -> None:
        bounds = self._bounds
        stop = min(bounds.stop, bounds.start + _COUNTED)
        try:
            counts = await self.recording.source.study(partial(counted, start=bounds.start, stop=stop))
        except BwtuiError as error:
            self.query_one("#facts", Detail).show(None, Content.styled(error.message, "$error"))
            return
        self.query_one("#facts", Detail).show(0, self._heading(bounds, stop, counts))

    def _heading(self, bounds: WindowBounds, stop: int, counts: TransactionCounts) -> Content:
        change, number = self.change, bounds.stop - bounds.start
        more = "" if stop == bounds.stop else f" (among the first {stop - bounds.start:,})"
        tables = list(counts.by_table.items())[:8]
        width = max(len(name) for name in ("committed", *(table for table, _ in tables)))
        when = f"{moment(change.commit_time)}  LSN {change.lsn_text}  pass {change.pass_number}"
        place = (
            f"position {bounds.start:,}"
            if number == 1
            else f"positions {bounds.start:,} to {bounds.stop - 1:,}"
        )
        where = f"{number:,}{more}, {place}"
        lines = [
            _fact("committed", when, width),
            _fact("changes", where, width),
            *(_fact(table, ", ".join(words), width) for table, words in tables),
            _fact(
                "messages", ", ".join(f"{figures.count(n)} {s}" for s, n in counts.messages.items()), width
            ),
        ]
        if change.is_repeat:
            lines.append(Content.styled("repeated: an earlier pass already recorded it", "$warning"))
        return Content("\n").join(lines)


def _fact(name: str, value: str, width: int) -> Content:
    return Content.assemble((f"{name:<{width}}  ", "$quiet"), value)


@lru_cache(8)
def columns_of(schemas: tuple[SchemaEntry, ...]) -> tuple[str, ...]:
    """Return the distinct column names of these schemas."""
    names: dict[str, None] = {}
    for entry in schemas:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            names |= dict.fromkeys(str(field["name"]) for field in json.loads(entry.schema)["fields"])
    return tuple(names)


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
        end = self.recording.source.view.last_time
        return RowQueryBar(self._search, end, QueryNames, self.apply_filter, self.focus_list)

    def paint(self, snapshot: ScreenSnapshot) -> None:
        """Compute the rows again if the position has changed."""
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
        """Return the key of the selected row, or why there is none."""
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


#: Maximum changes of one transaction that are read for its tables and bytes, and maximum seconds for that at
#: a time.
_READ, _READ_SECONDS = 5_000, 0.3
#: Maximum changes to read for a new position in the thread of quick queries; more are read in the background.
_NEAR = 20_000
COLUMNS = transaction_columns(
    GridColumn("confirmed", "Recv→conf", 9, "right"), GridColumn("behind", "Commit→conf", 11, "right", drop=2)
)


class RecordedList(ItemList):
    """A list that also reports changes of the visible rows caused by sorting."""

    def sort_by(self, column: str) -> None:
        super().sort_by(column)
        if self.is_attached:
            self._tell_moved()


class RecordedTransactionsScreen(RelayScreen):
    """Shows what has ended by the position: the newest, the largest and the slowest transactions."""

    mode: ClassVar[str] = "transactions"
    own_list = True
    without = frozenset(("errors_only",))

    def __init__(self, host: ScreenHost) -> None:
        super().__init__(host)
        self._fold = TransactionFold()
        self._head: Playhead | None = None
        #: The position that the list belongs to.
        self._at: int | None = None
        self._work: threading.Event | None = None
        self._target = 0
        self._progress = (0, 0)
        self._listed: dict[str, RecordedTransaction] = {}
        self._contents: dict[str, TransactionContents] = {}
        self._failure: BwtuiError | None = None
        self._filled = 0.0
        self._looks_up = False

    def body(self) -> Iterable[Widget]:
        sortable = ("commit", "xid", "rows", "confirmed", "behind")
        listing = RecordedList(COLUMNS, sortable, id="transactions", noun="transactions")
        listing.border_title = "Transactions"
        listing.sort_by("rows")
        return (Line(id="said"), listing, Detail(id="transaction", title="Transaction"))

    def paint(self, snapshot: ScreenSnapshot) -> None:
        """Update the list if the position has changed."""
        self._head = snapshot.playhead
        if self._head is None:
            return
        position = self._head.position
        if self._work is not None and self._target > position:
            self._work.set()
        if self._work is None and self._at != position and self._failure is None:
            self._begin(position)
        self._say()

    def on_unmount(self) -> None:
        if self._work is not None:
            self._work.set()

    def action_back(self) -> None:
        """Stop reading first."""
        if self._work is not None and not self._work.is_set():
            self._work.set()
        else:
            super().action_back()

    def action_open_details(self, name: str) -> None:
        """Open the selected transaction: no change is selected here."""
        if name == "transaction":
            self.open_row(self.main_grid())
        else:
            super().action_open_details(name)

    def open_row(self, grid: Grid) -> None:
        """Open the selected transaction's changes."""
        if (one := self._selected()) is not None:
            self._open(one)

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        """Show the selected transaction, and read the contents of the visible ones."""
        self._show_selected()
        self._look_up()

    def on_grid_moved(self, event: Grid.Moved) -> None:
        """Read the contents of the visible transactions."""
        self._look_up()

    def selected_table(self) -> str | None:
        """Return the selected transaction's table, if it has only one."""
        loaded = self._contents.get(self.main_grid().cursor_key or "")
        return next(iter(loaded.tables)) if loaded is not None and len(loaded.tables) == 1 else None

    # Reading.

    def _begin(self, position: int) -> None:
        if position < self._fold.position:
            # A fold can't go backwards, so it starts from scratch.
            self._fold = TransactionFold()
        self._target, self._progress = position, (0, 1)
        self._work = threading.Event()
        self.run_worker(self._advance(position, self._fold, self._work), exit_on_error=True)

    async def _advance(self, position: int, fold: TransactionFold, work: threading.Event) -> None:
        def progress(done: int, total: int) -> None:
            self._progress = (done, total)

        def advance(view: RecordingView) -> bool:
            return fold.advance(view, position, work.is_set, progress)

        source = self.recording.source
        ask = source.search if fold.position and position - fold.position < _NEAR else source.study
        try:
            await ask(advance)
        except BwtuiError as error:
            self._failure = error
        self._work = None
        if not self.is_attached:
            return
        # Also if it was stopped: moving the position resumes the reading.
        self._at = position
        self._listed = {str(one.start): one for one in fold.listed()}
        self._contents = {key: one for key, one in self._contents.items() if key in self._listed}
        self._fill()
        self._look_up()
        self.refresh_picture()

    def apply_filter(self, new: Filter) -> None:
        """Filter; this needs the tables of all listed transactions, not only of the visible ones."""
        super().apply_filter(new)
        self._look_up()

    @work(group="contents")
    async def _look_up(self) -> None:
        """Read tables and bytes of the visible transactions, a few at a time."""
        if self._looks_up:
            # The running call continues with the rows that are visible then.
            return
        self._looks_up = True
        try:
            while self._failure is None and self.is_attached and (unread := self._visible_unread()):
                self._contents |= await self.recording.source.search(partial(self._read, unread))
                self._fill()
        except BwtuiError as error:
            self._failure = error
        finally:
            self._looks_up = False

    def _read(self, unread: list[RecordedTransaction], view: RecordingView) -> dict[str, TransactionContents]:
        result, until = {}, time.monotonic() + _READ_SECONDS
        for one in unread:
            result[str(one.start)] = contents(view, one, _READ)
            if time.monotonic() > until:
                break
        return result

    def _visible_unread(self) -> list[RecordedTransaction]:
        grid = self.query_one("#transactions", ItemList)
        if grid.filter:
            keys = list(self._listed)
        else:
            top = grid.scroll_offset.y
            keys = [row.key for row in grid.rows[top : top + max(grid.size.height - 1, 1)]]
        return [self._listed[key] for key in keys if key not in self._contents and key in self._listed]

    @work(group="open", exclusive=True)
    async def _open(self, one: RecordedTransaction) -> None:
        try:
            change = await self.recording.source.search(
                lambda view: next(view.changes(one.start, one.start + 1))
            )
        except BwtuiError as error:
            self.notify(error.message, severity="error", markup=False)
            return
        self.app.push_screen(TransactionScreen(self.host, change, WindowBounds(one.start, one.stop)))

    # Showing.

    def _selected(self) -> RecordedTransaction | None:
        return self._listed.get(self.main_grid().cursor_key or "")

    def _fill(self) -> None:
        # No value here changes on its own, so sort at every update.
        self._filled += CALM
        items = [_item(one, self._contents.get(key)) for key, one in self._listed.items()]
        self.query_one("#transactions", ItemList).set_items(items, self._filled)
        self._show_selected()

    def _show_selected(self) -> None:
        one, detail = self._selected(), self.query_one("#transaction", Detail)
        if one is None:
            detail.show(None, Content.styled("nothing selected", "$quiet"))
        else:
            loaded = self._contents.get(str(one.start))
            detail.show((one, loaded), _facts(one, loaded))

    def _say(self) -> None:
        self.query_one("#said", Line).put(self._sentence(), layout=True)
        fold, listing = self._fold, self.query_one("#transactions", ItemList)
        if self._failure is not None:
            why = self._failure.message
        elif self._work is not None:
            why = "reading the recording's indexes…"
        elif fold.first >= fold.position:
            why = no_change_yet()
        else:
            key = key_for("step_transaction(1)")
            why = f"no transaction ends before this position; {key} goes to the end of the next one"
        listing.say_why_empty(why)

    def _sentence(self) -> Content:
        fold = self._fold
        if self._failure is not None:
            return Content.styled(f" ✗ {self._failure.message}", "$error")
        if self._work is not None:
            done, total = self._progress
            share = figures.percent(done / max(total, 1))
            return Content.styled(f" reading, {share} · {key_for('back')} stops", "$quiet")
        listed = "all are listed. "
        if fold.count > NEWEST:
            listed = (
                f"listed are the newest {NEWEST}, the {LARGEST} largest, and the {LONGEST} that "
                "took longest to be confirmed, durable in Kafka and recorded. "
            )
        parts = [f" {fold.count:,} transactions up to here: {listed}"]
        if fold.first > 0:
            parts.append(f"Transactions before position {fold.first:,} were not read. ")
        stopped = self._head is not None and fold.position != self._head.position
        notes = (
            [f"▲ Stopped at position {fold.position:,}; moving the position continues reading. "]
            if stopped
            else []
        )
        if fold.under_way is not None and not stopped:
            one = fold.under_way
            so_far = fold.position - one.start
            notes.append(f"Open at this position: xid {one.xid}, {so_far:,} of {rows_text(one.rows)}.")
        return Content.assemble(("".join(parts), "$quiet"), ("".join(notes), "bold"))


def _item(one: RecordedTransaction, loaded: TransactionContents | None) -> Item:
    # The bytes of a partly read transaction are a minimum.
    least = "≥" if loaded is not None and loaded.read < one.rows else ""
    size = "…" if loaded is None else f"{least}{figures.size(loaded.bytes)}"
    confirmed = (one.confirmed - one.received) / MICROS if one.confirmed else None
    behind = (one.confirmed - one.commit_time) / MICROS if one.confirmed else None
    cells = (
        Cell("»", "muted") if one.is_repeat else Cell(" "),
        Cell(figures.precise_clock(one.commit_time / MICROS), "muted"),
        Cell(str(one.xid), "strong"),
        rows_cell(one.rows),
        Cell(size, "" if loaded else "muted"),
        Cell("…", "muted") if loaded is None else tables_cell(loaded.tables),
        _duration_cell(confirmed),
        _duration_cell(behind),
        Cell(format_lsn(one.lsn), "muted"),
    )
    values = {
        "commit": one.commit_time,
        "xid": one.xid,
        "rows": one.rows,
        # A transaction that was never confirmed sorts as the slowest.
        "confirmed": float("inf") if confirmed is None else confirmed,
        "behind": float("inf") if behind is None else behind,
    }
    names = "" if loaded is None else named(loaded.tables)
    return Item(str(one.start), cells, values, f"{one.xid} {format_lsn(one.lsn)} {names}")


def _duration_cell(seconds: float | None) -> Cell:
    return Cell("never", "warn") if seconds is None else Cell(figures.elapsed(seconds))


def _facts(one: RecordedTransaction, loaded: TransactionContents | None) -> Content:
    amount = rows_text(one.rows)
    if loaded is not None:
        part = f" in the first {loaded.read:,}" if loaded.read < one.rows else ""
        amount += f", {figures.size(loaded.bytes)} of messages{part}"
    lines = fact_lines(
        one.xid, one.commit_time / MICROS, format_lsn(one.lsn), amount, loaded.tables if loaded else {}
    )
    if loaded is None:
        lines[1] = Content.styled("reading its tables…", "$quiet")
    place = f"positions {one.start:,} to {one.stop - 1:,}" if one.rows > 1 else f"position {one.start:,}"
    received = f"{place}, received {figures.precise_clock(one.received / MICROS)}, "
    if one.confirmed:
        duration = figures.elapsed((one.confirmed - one.received) / MICROS)
        lag = figures.elapsed((one.confirmed - one.commit_time) / MICROS)
        end = f"confirmed after {duration}, {lag} after its COMMIT"
        lines.append(Content.styled(received + end, "$quiet"))
    else:
        never = "not confirmed in this recording"
        lines.append(Content.assemble((received, "$quiet"), (never, "$warning")))
    if one.is_repeat:
        lines.append(Content.styled("repeated: an earlier pass already recorded it", "$warning"))
    return Content("\n").join(lines)
