"""The transactions of a recording, as of its position."""

import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from textual import work
from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.model.lsn import format_lsn
from bwtui.recording.reading.seek_target import MICROS
from bwtui.recording.reading.transactions import (
    LARGEST,
    LONGEST,
    NEWEST,
    TransactionContents,
    TransactionFold,
    contents,
)
from bwtui.recording.reading.window import WindowBounds
from bwtui.recording.view import RecordedTransaction, RecordingView
from bwtui.tui import figures
from bwtui.tui.filtering import Filter
from bwtui.tui.host import ScreenHost
from bwtui.tui.keys import key_for
from bwtui.tui.plain import Content
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.screens.recording.changes import TransactionScreen
from bwtui.tui.state import Playhead, ScreenSnapshot
from bwtui.tui.widgets.columns import Cell, GridColumn
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.item_list import CALM, Item, ItemList
from bwtui.tui.widgets.line import Line
from bwtui.tui.widgets.transactions import (
    fact_lines,
    named,
    rows_cell,
    rows_text,
    tables_cell,
    transaction_columns,
)

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

    def paint(self, picture: ScreenSnapshot) -> None:
        """Update the list if the position has changed."""
        self._head = picture.playhead
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

    def action_look_closer(self, name: str) -> None:
        """Open the selected transaction: no change is selected here."""
        if name == "transaction":
            self.open_row(self.main_grid())
        else:
            super().action_look_closer(name)

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
        found = self._contents.get(self.main_grid().cursor_key or "")
        return next(iter(found.tables)) if found is not None and len(found.tables) == 1 else None

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
            while self._failure is None and self.is_attached and (wanted := self._wanted()):
                self._contents |= await self.recording.source.search(partial(self._read, wanted))
                self._fill()
        except BwtuiError as error:
            self._failure = error
        finally:
            self._looks_up = False

    def _read(self, wanted: list[RecordedTransaction], view: RecordingView) -> dict[str, TransactionContents]:
        found, until = {}, time.monotonic() + _READ_SECONDS
        for one in wanted:
            found[str(one.start)] = contents(view, one, _READ)
            if time.monotonic() > until:
                break
        return found

    def _wanted(self) -> list[RecordedTransaction]:
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
            found = self._contents.get(str(one.start))
            detail.show((one, found), _facts(one, found))

    def _say(self) -> None:
        self.query_one("#said", Line).put(self._sentence(), layout=True)
        fold, listing = self._fold, self.query_one("#transactions", ItemList)
        if self._failure is not None:
            why = self._failure.message
        elif self._work is not None:
            why = "reading the recording's indexes…"
        elif fold.first >= fold.position:
            why = f"nothing has happened yet; {key_for('step(1)')} goes to the first change"
        else:
            key = key_for("step_transaction(1)")
            why = f"no transaction has ended up to here; {key} goes to the end of the next one"
        listing.say_why_empty(why)

    def _sentence(self) -> Content:
        fold = self._fold
        if self._failure is not None:
            return Content.styled(f" ✗ {self._failure.message}", "$error")
        if self._work is not None:
            done, total = self._progress
            share = figures.percent(done / max(total, 1))
            return Content.styled(f" reading, {share} · {key_for('back')} stops", "$quiet")
        listed = "all of them are listed. "
        if fold.count > NEWEST:
            listed = (
                f"listed are the newest {NEWEST}, the {LARGEST} largest, and the {LONGEST} that took longest "
                "to be confirmed, durable in Kafka and recorded. "
            )
        parts = [f" {fold.count:,} transactions up to here: {listed}"]
        if fold.first > 0:
            parts.append(f"Those before position {fold.first:,} were not looked at. ")
        stopped = self._head is not None and fold.position != self._head.position
        notes = (
            [f"▲ Stopped at position {fold.position:,}; moving the position continues reading. "]
            if stopped
            else []
        )
        if fold.under_way is not None and not stopped:
            one = fold.under_way
            so_far = fold.position - one.start
            notes.append(f"Under way here: xid {one.xid}, {so_far:,} of {rows_text(one.rows)}.")
        return Content.assemble(("".join(parts), "$quiet"), ("".join(notes), "bold"))


def _item(one: RecordedTransaction, found: TransactionContents | None) -> Item:
    # The bytes of a partly read transaction are a minimum.
    least = "≥" if found is not None and found.read < one.rows else ""
    size = "…" if found is None else f"{least}{figures.size(found.bytes)}"
    confirmed = (one.confirmed - one.received) / MICROS if one.confirmed else None
    behind = (one.confirmed - one.commit_time) / MICROS if one.confirmed else None
    cells = (
        Cell("»", "muted") if one.is_repeat else Cell(" "),
        Cell(figures.precise_clock(one.commit_time / MICROS), "muted"),
        Cell(str(one.xid), "strong"),
        rows_cell(one.rows),
        Cell(size, "" if found else "muted"),
        Cell("…", "muted") if found is None else tables_cell(found.tables),
        _took(confirmed),
        _took(behind),
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
    names = "" if found is None else named(found.tables)
    return Item(str(one.start), cells, values, f"{one.xid} {format_lsn(one.lsn)} {names}")


def _took(seconds: float | None) -> Cell:
    return Cell("never", "warn") if seconds is None else Cell(figures.took(seconds))


def _facts(one: RecordedTransaction, found: TransactionContents | None) -> Content:
    what = rows_text(one.rows)
    if found is not None:
        part = f" in the first {found.read:,}" if found.read < one.rows else ""
        what += f", {figures.size(found.bytes)} of messages{part}"
    lines = fact_lines(
        one.xid, one.commit_time / MICROS, format_lsn(one.lsn), what, found.tables if found else {}
    )
    if found is None:
        lines[1] = Content.styled("reading its tables…", "$quiet")
    place = f"positions {one.start:,} to {one.stop - 1:,}" if one.rows > 1 else f"position {one.start:,}"
    received = f"{place}, received {figures.precise_clock(one.received / MICROS)}, "
    if one.confirmed:
        took, behind = one.confirmed - one.received, one.confirmed - one.commit_time
        end = (
            f"confirmed after {figures.took(took / MICROS)}, {figures.took(behind / MICROS)} after its COMMIT"
        )
        lines.append(Content.styled(received + end, "$quiet"))
    else:
        never = "and not confirmed in this recording"
        lines.append(Content.assemble((received, "$quiet"), (never, "$warning")))
    if one.is_repeat:
        lines.append(Content.styled("recorded before: an earlier pass has it already", "$warning"))
    return Content("\n").join(lines)
