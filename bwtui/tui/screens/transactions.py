"""The transactions of a relay or a recording, and the changes of one."""

import math
import threading
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import ClassVar

from textual import work
from textual.containers import Container
from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.model.lsn import format_lsn
from bwtui.model.service_views import Look, LookName, RelayedTransaction, Transactions
from bwtui.recording.change import Change
from bwtui.recording.playback import (
    LARGEST,
    LONGEST,
    MICROS,
    NEWEST,
    TransactionContents,
    TransactionCounts,
    TransactionFold,
    WindowBounds,
    contents,
    counted,
)
from bwtui.recording.view import RecordedTransaction, RecordingView
from bwtui.tui.base import figures
from bwtui.tui.base.keys import key_for
from bwtui.tui.base.plain import Content, fact
from bwtui.tui.screens.base import DetailedList
from bwtui.tui.screens.changes import RecordedPair, SampledPair
from bwtui.tui.screens.services import ServiceViewScreen
from bwtui.tui.sources.host import Closer, RecordingHost, ScreenHost, ScreenSelection
from bwtui.tui.sources.model import Playhead, ScreenSnapshot
from bwtui.tui.widgets.changes import (
    ChangeDetail,
    RecordedChanges,
    RecordedDetail,
    TransactionChanges,
    no_change_yet,
)
from bwtui.tui.widgets.filter_bar import Filter
from bwtui.tui.widgets.grid import Cell, Grid, GridColumn, Item, ItemList, SortedItemList
from bwtui.tui.widgets.line import Detail, Line
from bwtui.tui.widgets.transport import moment

#: Maximum tables of a transaction that are named; further ones are counted.
_NAMED = 6


def transaction_columns(*durations: GridColumn) -> tuple[GridColumn, ...]:
    """Return the columns of a list; the titles of ``durations`` name the start and end of each duration."""
    return (
        GridColumn("mark", "", 1),
        # Right-aligned columns sort in descending order, so the newest transactions come first.
        GridColumn("commit", "Committed", 12, "right"),
        GridColumn("xid", "Xid", 10, "right"),
        GridColumn("rows", "Rows", 7, "right"),
        GridColumn("bytes", "Bytes", 8, "right"),
        GridColumn("tables", "Tables", 19, grow=90),
        *durations,
        GridColumn("lsn", "Commit LSN", 12, "right", drop=3, grow=17),
    )


def named(tables: Mapping[str, int] | None, more: int = 0) -> str:
    """Return the names of a transaction's tables, those with the most messages first.

    ``more`` is the number of tables that are not in ``tables``; they have fewer messages each.
    """
    if tables is None:
        return "unknown"
    names = sorted(tables, key=lambda name: (-tables[name], name))
    more_count = len(names[_NAMED:]) + more
    end = f" and {more_count:,} more" if more_count else ""
    return ", ".join(names[:_NAMED]) + end if names else "no message"


def tables_cell(tables: Mapping[str, int] | None, more: int = 0) -> Cell:
    """Return the same as a cell."""
    return Cell(named(tables, more), "" if tables else "muted")


def rows_cell(rows: int) -> Cell:
    return Cell(figures.count(rows), "" if rows > 1 else "muted", rows)


def fact_lines(
    xid: int,
    commit_time: float,
    lsn: str,
    text: str,
    tables: Mapping[str, int] | None,
    more: tuple[int, int] = (0, 0),
) -> list[Content]:
    """Return the facts about a transaction in two lines; ``text`` describes its size.

    ``more`` is the number of tables that are not in ``tables``, and the number of their messages.
    """
    when = f"committed {figures.moment(commit_time)}.{int(commit_time * 1000) % 1000:03}"
    counted = {name: number for name, number in (tables or {}).items() if number}
    if counted:
        most = sorted(counted, key=lambda name: (-counted[name], name))
        parts = [f"{name} {counted[name]:,}" for name in most[:_NAMED]]
        more_count = len(most[_NAMED:]) + more[0]
        messages = sum(counted[name] for name in most[_NAMED:]) + more[1]
        parts += [f"{more_count:,} more tables {messages:,}"] if more_count else []
        of = f"messages by table: {', '.join(parts)}"
    elif tables is None:
        of = "tables unknown: too many small transactions of many tables at once"
    else:
        of = f"tables: {named(tables, more[0])}"
    return [
        Content.assemble((f"xid {xid}", "bold"), (f"  {when}  LSN {lsn}  ", "$quiet"), (text, "bold")),
        Content(of),
    ]


def rows_text(rows: int) -> str:
    """Return a number of rows in words."""
    return "1 row" if rows == 1 else f"{rows:,} rows"


#: Seconds without acknowledgement from which on a transaction needs attention.
LATE = 3.0
#: The key of the row of the transaction that is being read.
OPEN = "open"
RELAYED = transaction_columns(
    GridColumn("relayed", "Recv→ack", 9, "right"), GridColumn("behind", "Commit→ack", 10, "right", drop=2)
)
#: The action that shows what the relay is doing.
_OVERVIEW = "show('overview')"


class TransactionsScreen(DetailedList, ServiceViewScreen):
    """Shows the newest and largest transactions, and the selected one; Enter opens its sampled changes."""

    mode: ClassVar[str] = "transactions"
    required_view: ClassVar[LookName | None] = "transactions"
    service: ClassVar[str] = "its own process"

    def body(self) -> Iterable[Widget]:
        sortable = ("commit", "xid", "rows", "bytes", "relayed", "behind")
        listing = ItemList(
            RELAYED, sortable, id="transactions", noun="transactions", title="Transactions", sort="rows"
        )
        return (Line(id="said"), listing, Detail(id="transaction", title="Transaction"))

    def show_view(self, view: Look, snapshot: ScreenSnapshot) -> Content:
        assert isinstance(view, Transactions)
        listing = self.query_one("#transactions", ItemList)
        is_copying = snapshot.status is not None and snapshot.status.is_copying
        listing.say_why_empty(
            "the snapshot is running; its rows belong to no transaction"
            if is_copying
            else f"no transaction of the relay's tables yet; {key_for(_OVERVIEW)} shows the relay's state"
        )
        every = (*view.under_way, *view.transactions)
        listing.set_items([_transaction_item(one, view.time) for one in every], snapshot.received)
        self.show_selected()
        selection_text = (
            f" {view.total:,} transactions since the relay's start. Listed are the newest "
            f"{view.newest:,}, and of the last ten minutes the {view.largest} largest by rows and "
            "by bytes. "
        )
        return Content.assemble((selection_text, "$quiet"), (_under_way(view), "bold"))

    def open_row(self, grid: Grid) -> None:
        if (selected := self.selected_entry()) is not None:
            self.app.push_screen(SampledTransactionScreen(self.host, selected))

    def describe(self, entry: RelayedTransaction) -> tuple[object, Content]:
        now = self.host.model.snapshot.received
        return (entry, round(now) if not entry.acknowledged else 0), _transaction_facts(entry, now)


class SampledTransactionScreen(SampledPair):
    """Shows a transaction and its sampled changes; Esc goes back."""

    mode: ClassVar[str] = "transactions"
    required_view: ClassVar[LookName | None] = "transactions"

    def __init__(self, host: ScreenHost, transaction: RelayedTransaction) -> None:
        super().__init__(host)
        self.transaction = transaction

    def body(self) -> Iterable[Widget]:
        changes = TransactionChanges(self.transaction.xid, self.transaction.commit_lsn)
        pair = Container(changes, ChangeDetail(), id="changes-pair", classes="folder")
        return (Detail(id="facts", title=f"Transaction {self.transaction.xid}"), pair)

    def paint(self, snapshot: ScreenSnapshot) -> None:
        """Show the present state; a transaction that has left the list keeps its last one."""
        self.transaction = next(
            (one for one in _transactions_of(snapshot) if _is_same(one, self.transaction)), self.transaction
        )
        one, grid = self.transaction, self.main_grid()
        super().paint(snapshot)
        sampled = grid.number_sampled
        unsampled = max(one.rows - sampled, 0)
        if not unsampled:
            text = "All of its changes were sampled." if one.number else ""
        else:
            text = f"{sampled:,} of its changes were sampled, {unsampled:,} were not."
        text += " A recording has all of them: 'bwtui connect --record DIR'" if unsampled else ""
        now = snapshot.received
        identity = (one, sampled, round(now) if not one.acknowledged else 0)
        facts = Content.assemble(
            _transaction_facts(one, now), "\n", (text, "$warning" if unsampled else "$quiet")
        )
        self.query_one("#facts", Detail).show(identity, facts)
        self.query_one(ChangeDetail).show_change(grid.selected())

    def main_grid(self) -> TransactionChanges:
        return self.query_one(TransactionChanges)

    def current_filter(self) -> Filter:
        return self.main_grid().filter

    def crumbs(self) -> tuple[str, ...]:
        return ("Transactions", f"xid {self.transaction.xid}")


def _transactions_of(snapshot: ScreenSnapshot) -> tuple[RelayedTransaction, ...]:
    view = snapshot.view(Transactions)
    return (*view.under_way, *view.transactions)


def _is_same(one: RelayedTransaction, second: RelayedTransaction) -> bool:
    """Return whether both are the same transaction, even if one was still being read."""
    return (one.xid, one.commit_lsn) == (second.xid, second.commit_lsn) and (
        one.number == second.number or not second.number
    )


def _under_way(view: Transactions) -> str:
    if not view.under_way:
        return ""
    one = view.under_way[0]
    since = figures.elapsed(max(view.time - one.received, 0.0))
    return f"Being read: xid {one.xid}, {one.rows:,} rows so far, for {since}."


def _transaction_item(one: RelayedTransaction, now: float) -> Item:
    waits = 0.0 if one.acknowledged or one.is_given_up else max(now - one.received, 0.0)
    is_trouble = waits >= LATE or one.is_given_up
    if not one.number:
        mark = Cell("▸", "strong")
    else:
        mark = Cell("▲", "warn") if is_trouble else Cell("»", "muted") if one.reads > 1 else Cell(" ")
    cells = (
        mark,
        Cell(figures.precise_clock(one.commit_time), "muted", one.commit_time),
        Cell(str(one.xid), "strong", one.xid),
        rows_cell(one.rows),
        Cell(figures.size(one.bytes), "", one.bytes),
        tables_cell(one.tables, one.more_tables),
        _relayed(one, waits),
        _known_duration(one.commit_seconds, -1.0),
        Cell(one.commit_lsn, "muted"),
    )
    search = f"{one.xid} {one.commit_lsn} {named(one.tables, one.more_tables)}"
    return Item(str(one.number) if one.number else OPEN, cells, search, is_trouble, one)


def _relayed(one: RelayedTransaction, waits: float) -> Cell:
    if one.is_given_up:
        return Cell("abandoned", "warn", waits if one.relayed_seconds is None else one.relayed_seconds)
    if not one.acknowledged:
        return Cell(f"{figures.elapsed(waits)}…", "warn" if waits >= LATE else "muted", waits)
    return _known_duration(one.relayed_seconds, waits)


def _known_duration(seconds: float | None, unknown: float) -> Cell:
    """Return a duration; an unknown one sorts as ``unknown``."""
    if seconds is None:
        return Cell(figures.NONE, "muted", unknown)
    return Cell(figures.elapsed(seconds), "", seconds)


def _transaction_facts(one: RelayedTransaction, now: float) -> Content:
    amount = f"{rows_text(one.rows)}, {figures.size(one.bytes)} of messages"
    more = (one.more_tables, one.more_messages)
    lines = fact_lines(one.xid, one.commit_time, one.commit_lsn, amount, one.tables, more)
    received = f"received {figures.precise_clock(one.received)}"
    tone = "$quiet"
    if not one.number:
        outcome, tone = "being read: rows and bytes so far", "$primary"
    elif one.is_given_up:
        outcome, tone = "abandoned: the current server does not have it", "$warning"
    elif not one.acknowledged:
        outcome, tone = (
            f"not acknowledged yet, for {figures.elapsed(max(now - one.received, 0.0))}",
            "$warning",
        )
    elif one.relayed_seconds is None or one.commit_seconds is None:
        outcome = "acknowledged at an unknown time"
    else:
        since = figures.elapsed(one.commit_seconds)
        outcome = f"acknowledged after {figures.elapsed(one.relayed_seconds)}, {since} after its COMMIT"
    lines.append(Content.assemble((f"{received}, ", "$quiet"), (outcome, tone)))
    if one.reads > 1:
        again = f"read {one.reads} times: the stream was restarted before it was acknowledged"
        lines.append(Content.styled(again, "$warning"))
    return Content("\n").join(lines)


#: Maximum changes of a transaction that are counted for its heading.
_COUNTED = 20_000
#: Titles of changes that belong to no transaction.
_ALONE = {"snapshot": "Snapshot row", "backfill": "Backfilled row", "cleanup": "Tombstone"}


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
        width = 2 + max(len(name) for name in ("committed", *(table for table, _ in tables)))
        when = f"{moment(change.commit_time)}  LSN {change.lsn_text}  pass {change.pass_number}"
        place = (
            f"position {bounds.start:,}"
            if number == 1
            else f"positions {bounds.start:,} to {bounds.stop - 1:,}"
        )
        where = f"{number:,}{more}, {place}"
        messages = ", ".join(f"{figures.count(n)} {s}" for s, n in counts.messages.items())
        lines = [
            fact("committed", when, width=width),
            fact("changes", where, width=width),
            *(fact(table, ", ".join(words), width=width) for table, words in tables),
            fact("messages", messages, width=width),
        ]
        if change.is_repeat:
            lines.append(Content.styled("repeated: an earlier pass already recorded it", "$warning"))
        return Content("\n").join(lines)


#: Maximum changes of one transaction that are read for its tables and bytes, and maximum seconds for that at
#: a time.
_READ, _READ_SECONDS = 5_000, 0.3
#: Maximum changes to read for a new position in the thread of quick queries; more are read in the background.
_NEAR = 20_000
RECORDED = transaction_columns(
    GridColumn("confirmed", "Recv→conf", 9, "right"), GridColumn("behind", "Commit→conf", 11, "right", drop=2)
)


class RecordedList(SortedItemList):
    """A list that also reports changes of the visible rows caused by sorting."""

    def sort_by(self, column: str) -> None:
        super().sort_by(column)
        if self.is_attached:
            self._tell_moved()


class RecordedTransactionsScreen(DetailedList):
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
        self._looks_up = False

    def body(self) -> Iterable[Widget]:
        sortable = ("commit", "xid", "rows", "confirmed", "behind")
        listing = RecordedList(RECORDED, sortable, id="transactions", noun="transactions")
        listing.border_title = "Transactions"
        listing.sort_by("rows")
        return (Line(id="said"), listing, Detail(id="transaction", title="Transaction"))

    def paint(self, snapshot: ScreenSnapshot) -> None:
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
        if (one := self.selected_entry()) is not None:
            self._open(one)

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self._look_up()

    def on_grid_moved(self, event: Grid.Moved) -> None:
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

    def _fill(self) -> None:
        items = [_recorded_item(one, self._contents.get(key)) for key, one in self._listed.items()]
        self.query_one("#transactions", ItemList).set_items(items, 0)
        self.show_selected()

    def describe(self, entry: RecordedTransaction) -> tuple[object, Content]:
        loaded = self._contents.get(str(entry.start))
        return (entry, loaded), _recorded_facts(entry, loaded)

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


def _recorded_item(one: RecordedTransaction, loaded: TransactionContents | None) -> Item:
    # The bytes of a partly read transaction are a minimum.
    least = "≥" if loaded is not None and loaded.read < one.rows else ""
    size = "…" if loaded is None else f"{least}{figures.size(loaded.bytes)}"
    confirmed = (one.confirmed - one.received) / MICROS if one.confirmed else None
    behind = (one.confirmed - one.commit_time) / MICROS if one.confirmed else None
    cells = (
        Cell("»", "muted") if one.is_repeat else Cell(" "),
        Cell(figures.precise_clock(one.commit_time / MICROS), "muted", one.commit_time),
        Cell(str(one.xid), "strong", one.xid),
        rows_cell(one.rows),
        Cell(size, "" if loaded else "muted"),
        Cell("…", "muted") if loaded is None else tables_cell(loaded.tables),
        _duration_cell(confirmed),
        _duration_cell(behind),
        Cell(format_lsn(one.lsn), "muted"),
    )
    names = "" if loaded is None else named(loaded.tables)
    return Item(str(one.start), cells, f"{one.xid} {format_lsn(one.lsn)} {names}", entry=one)


def _duration_cell(seconds: float | None) -> Cell:
    # A transaction that was never confirmed sorts as the slowest.
    if seconds is None:
        return Cell("never", "warn", math.inf)
    return Cell(figures.elapsed(seconds), "", seconds)


def _recorded_facts(one: RecordedTransaction, loaded: TransactionContents | None) -> Content:
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
