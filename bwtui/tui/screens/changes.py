"""The live sample of changes: all, those of one table, and those of one transaction."""

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

from textual.containers import Container
from textual.widget import Widget

from bwtui.model.service_views import Look, LookName, RelayedTransaction, Transactions
from bwtui.model.status import ChangeSample, SchemaEntry, TableStatus
from bwtui.recording.explain import RowKey
from bwtui.tui.base import assessment, figures
from bwtui.tui.base.keys import key_for
from bwtui.tui.base.plain import Content
from bwtui.tui.screens.backfills import of_table
from bwtui.tui.screens.base import DetailedList, Objects, RelayScreen
from bwtui.tui.screens.services import ServiceViewScreen
from bwtui.tui.sources.host import Closer, ScreenHost, ScreenSelection
from bwtui.tui.sources.journey import sampled_key
from bwtui.tui.sources.model import ScreenSnapshot
from bwtui.tui.widgets.changes import (
    ChangeDetail,
    ChangeList,
    TransactionChanges,
    fact_lines,
    named,
    rows_cell,
    rows_text,
    tables_cell,
    transaction_columns,
)
from bwtui.tui.widgets.filter_bar import Filter
from bwtui.tui.widgets.grid import Cell, Grid, GridColumn, Item, ItemList
from bwtui.tui.widgets.line import Detail, Line


class ChangesPair(RelayScreen):
    """Shows a list of changes, and the selected one in full."""

    def action_sort(self) -> None:
        """Explain why there is nothing to sort."""
        self.notify("Changes are always sorted by commit", timeout=3)

    action_reverse = action_sort


class SampledPair(ChangesPair):
    """Shows changes that are sampled from a relay."""

    wants_changes: bool = True
    #: The change in the detail panel.
    _detailed: ChangeSample | None = None

    def paint(self, snapshot: ScreenSnapshot) -> None:
        model = self.host.model
        stands_still = ""
        if model.paused is not None:
            stands_still = f"paused, {key_for('pause')} resumes"
        elif model.link != "live":
            stands_still = "no answer from the relay"
        self.main_grid().show(snapshot, stands_still)
        # The row may now hold a different change, for which no event is sent.
        if self.main_grid().selected() != self._detailed:
            self._show_selected()

    def main_grid(self) -> ChangeList:
        return self.query_one(ChangeList)

    def current_filter(self) -> Filter:
        return self.main_grid().filter

    def apply_filter(self, new: Filter) -> None:
        self.main_grid().set_filter(new)

    def selected_sample(self) -> ChangeSample | None:
        return self.main_grid().selected()

    def selected_key(self) -> RowKey | str:
        return sampled_key(self.selected_sample(), self.host.model.snapshot.status)

    def row_text(self) -> str:
        return self.main_grid().copy_text()

    def selected_objects(self) -> Objects:
        change = self.main_grid().selected()
        return [] if change is None else [dataclasses.asdict(change)]

    def all_objects(self) -> Objects:
        return map(dataclasses.asdict, self.main_grid().shown_changes)

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self._show_selected()

    def _show_selected(self) -> None:
        self._detailed = self.main_grid().selected()
        self.query_one(ChangeDetail).show_change(self._detailed)

    def action_follow(self) -> None:
        """Follow the newest change again; also called from the detail panel."""
        self.focus_list()
        self.main_grid().action_last()


class ChangesScreen(SampledPair):
    """Shows the sampled changes, and the selected one in full."""

    mode: ClassVar[str] = "changes"

    def body(self) -> Iterable[Widget]:
        return (ChangeList(), ChangeDetail())

    def action_errors_only(self) -> None:
        """Show only the changes of tables with errors, or all."""
        status = self.host.model.snapshot.status
        if self.main_grid().only is not None or status is None:
            self.main_grid().show_only(None)
        else:
            troubled = frozenset(n for n, t in status.tables.items() if assessment.has_trouble(t))
            self.main_grid().show_only(troubled)


class OneTableScreen(RelayScreen):
    """A screen about one table; Esc goes back to the screen that opened it."""

    mode: ClassVar[str] = "overview"

    def __init__(self, host: ScreenHost, table: str) -> None:
        super().__init__(host)
        self.table = table

    @classmethod
    def of(cls, host: ScreenHost, selection: ScreenSelection) -> Closer:
        """Return the screen of the selected table."""
        table = selection.selected_table()
        return "No table is selected" if table is None else cls(host, table)

    def selected_table(self) -> str | None:
        return self.table

    def crumbs(self) -> tuple[str, ...]:
        return ("Overview", self.table)


class FactsScreen(OneTableScreen):
    """Mix-in that shows a table's facts above its changes; must precede the class that shows the changes."""

    def body(self) -> Iterable[Widget]:
        pair = Container(*self.changes_pair(), id="changes-pair", classes="folder")
        return (Detail(id="facts", title=self.table), pair)

    def changes_pair(self) -> Iterable[Widget]:
        """Return the list of the table's changes, and the selected one in full."""
        raise NotImplementedError

    def paint(self, snapshot: ScreenSnapshot) -> None:
        self._show_facts(snapshot)
        super().paint(snapshot)

    def _show_facts(self, snapshot: ScreenSnapshot) -> None:
        name = self.table
        table = snapshot.status.tables.get(name) if snapshot.status else None
        facts = self.query_one("#facts", Detail)
        if table is None:
            nothing = (
                "The relay's status does not list this table"
                if snapshot.playhead is None
                else "No change of this table up to here"
            )
            facts.show(None, Content.styled(nothing, "$warning"))
        else:
            schemas = tuple(s for s in snapshot.schemas if s.table == name)
            content = _table_facts(table, schemas, snapshot.rates.get(name, ()), self.has_class("-wide"))
            if again := of_table(snapshot.status, name, snapshot.received):
                content = Content("\n").join([content, _fact("sent again", again)])
            facts.show(content.markup, content)


class TableScreen(FactsScreen, SampledPair):
    """The screen of a table of a running relay, opened from the overview."""

    def changes_pair(self) -> Iterable[Widget]:
        return (ChangeList(self.table), ChangeDetail())


def _table_facts(
    table: TableStatus, schemas: tuple[SchemaEntry, ...], points: tuple[float, ...], wide: bool
) -> Content:
    counters = [
        ("rows/s", figures.rate(table.rows_per_second)),
        ("inserts", f"{table.inserts:,}"),
        ("updates", f"{table.updates:,}"),
        ("deletes", f"{table.deletes:,}"),
        ("truncates", f"{table.truncates:,}"),
        ("snapshot rows", f"{table.snapshot_rows:,}"),
        *((("backfilled", f"{table.backfill_rows:,}"),) if table.backfill_rows else ()),
        ("messages", f"{table.messages:,}"),
        ("bytes", figures.size(table.bytes)),
        ("errors", f"{table.errors:,}"),
        ("dead letters", f"{table.dead_letters:,}"),
    ]
    per_line = 5 if wide else 3
    lines = [
        Content.assemble(*(part for pair in counters[i : i + per_line] for part in _counter(*pair)))
        for i in range(0, len(counters), per_line)
    ]
    lines.append(_fact("trend", _trend(points), "$success"))
    lines.append(_fact("topic", table.topic))
    none = (
        "none: the table is unkeyed"
        if table.has_final_key
        else "unknown so far: this run of the relay has sent no row of it"
    )
    keys = ", ".join(table.key_columns) or none
    lines.append(_fact("key", keys, "" if table.key_columns else "$warning"))
    lines.append(_fact("snapshot", _snapshot(table)))
    if toast := _toast(table):
        lines.append(_fact("large values", toast, "$warning"))
    lines += [_fact(f"{s.part} schema", _schema(s)) for s in schemas]
    lines += [_fact("note", f"▲ {note}", "$warning") for note in table.notes]
    return Content("\n").join(lines)


def _counter(name: str, value: str) -> list[tuple[str, str]]:
    tone = "bold $error" if name in ("errors", "dead letters") and value != "0" else "bold"
    return [(f"{name:<14}", "$quiet"), (f"{value:>9}", tone), ("   ", "")]


def _fact(name: str, value: str, tone: str = "") -> Content:
    return Content.assemble((f"{name:<14}", "$quiet"), (value, tone))


def _trend(points: tuple[float, ...]) -> str:
    """Return the rates of the last minute as bars, and their peak if a bar is cut off."""
    shown = points[-60:]
    bars = figures.sparkline(shown, 60).lstrip() or figures.NONE
    peak = max(shown, default=0.0)
    return f"{bars} ▲{figures.rate(peak)}/s" if peak > figures.ceiling(shown) else bars


def _toast(table: TableStatus) -> str:
    """Return how unchanged TOAST values of UPDATEs were handled, or "" if there were none."""
    counts = (
        (table.toast_fetched, "fetched by key"),
        (table.toast_placeholders, "sent as placeholder"),
        (table.toast_superseded, "skipped: row deleted"),
    )
    return " · ".join(f"{number:,} {handling}" for number, handling in counts if number)


def _snapshot(table: TableStatus) -> str:
    if table.snapshot_state == "none":
        return "not in this run"
    estimate = "" if table.snapshot_estimate is None else f" of ~{figures.count(table.snapshot_estimate)}"
    time_left = f", {time_left}" if (time_left := figures.remaining(table.snapshot_seconds_left)) else ""
    return f"{table.snapshot_state}, {table.snapshot_rows:,}{estimate} rows{time_left}"


def _schema(schema: SchemaEntry) -> str:
    version = "" if schema.version is None else f" version {schema.version}"
    return f"{schema.subject} · id {schema.id}{version}"


#: Seconds without acknowledgement from which on a transaction needs attention.
LATE = 3.0
#: The key of the row of the transaction that is being read.
OPEN = "open"
COLUMNS = transaction_columns(
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
            COLUMNS, sortable, id="transactions", noun="transactions", title="Transactions", sort="rows"
        )
        return (Line(id="said"), listing, Detail(id="transaction", title="Transaction"))

    def show_view(self, view: Look, snapshot: ScreenSnapshot) -> Content:
        """Fill the list, and return what is listed and what is being read."""
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
        """Open the selected transaction's sampled changes."""
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
    view = snapshot.views.get("transactions")
    return (*view.under_way, *view.transactions) if isinstance(view, Transactions) else ()


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
        Cell(figures.precise_clock(one.commit_time), "muted"),
        Cell(str(one.xid), "strong"),
        rows_cell(one.rows),
        Cell(figures.size(one.bytes)),
        tables_cell(one.tables, one.more_tables),
        _relayed(one, waits),
        _duration_cell(one.commit_seconds),
        Cell(one.commit_lsn, "muted"),
    )
    values = {
        "commit": one.commit_time,
        "xid": one.xid,
        "rows": one.rows,
        "bytes": one.bytes,
        "relayed": waits if one.relayed_seconds is None else one.relayed_seconds,
        "behind": -1.0 if one.commit_seconds is None else one.commit_seconds,
    }
    search = f"{one.xid} {one.commit_lsn} {named(one.tables, one.more_tables)}"
    return Item(str(one.number) if one.number else OPEN, cells, values, search, is_trouble, one)


def _relayed(one: RelayedTransaction, waits: float) -> Cell:
    if one.is_given_up:
        return Cell("abandoned", "warn")
    if not one.acknowledged:
        return Cell(f"{figures.elapsed(waits)}…", "warn" if waits >= LATE else "muted")
    return _duration_cell(one.relayed_seconds)


def _duration_cell(seconds: float | None) -> Cell:
    return Cell(figures.NONE, "muted") if seconds is None else Cell(figures.elapsed(seconds))


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
