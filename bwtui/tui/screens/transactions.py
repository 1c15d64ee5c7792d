"""The transactions of a relay: their sizes, latencies and tables."""

from collections.abc import Iterable
from typing import ClassVar

from textual.containers import Container
from textual.widget import Widget

from bwtui.model.service_views import Look, LookName, RelayedTransaction, Transactions
from bwtui.tui import figures
from bwtui.tui.filtering import Filter
from bwtui.tui.host import ScreenHost
from bwtui.tui.keys import key_for
from bwtui.tui.plain import Content
from bwtui.tui.screens.changes import SampledPair
from bwtui.tui.screens.service_view import ServiceViewScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.changes import ChangeDetail
from bwtui.tui.widgets.columns import Cell, GridColumn
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.item_list import Item, ItemList
from bwtui.tui.widgets.line import Line
from bwtui.tui.widgets.transactions import (
    TransactionChanges,
    fact_lines,
    named,
    rows_cell,
    rows_text,
    tables_cell,
    transaction_columns,
)

#: Seconds without acknowledgement from which on a transaction needs attention.
LATE = 3.0
#: The key of the row of the transaction that is being read.
OPEN = "open"
COLUMNS = transaction_columns(
    GridColumn("relayed", "Recv→ack", 9, "right"), GridColumn("behind", "Commit→ack", 10, "right", drop=2)
)

#: The action that shows what the relay is doing.
_OVERVIEW = "show('overview')"


class TransactionsScreen(ServiceViewScreen):
    """Shows the newest and largest transactions, and the selected one; Enter opens its sampled changes."""

    mode: ClassVar[str] = "transactions"
    wants_look: ClassVar[LookName | None] = "transactions"
    service: ClassVar[str] = "its own process"

    def body(self) -> Iterable[Widget]:
        sortable = ("commit", "xid", "rows", "bytes", "relayed", "behind")
        listing = ItemList(COLUMNS, sortable, id="transactions", noun="transactions")
        listing.border_title = "Transactions"
        listing.sort_by("rows")
        return (Line(id="said"), listing, Detail(id="transaction", title="Transaction"))

    def show_look(self, look: Look, picture: ScreenSnapshot) -> Content:
        """Fill the list, and return what is listed and what is being read."""
        assert isinstance(look, Transactions)
        listing = self.query_one("#transactions", ItemList)
        is_copying = picture.status is not None and picture.status.is_copying
        listing.say_why_empty(
            "the snapshot is under way: its rows belong to no transaction"
            if is_copying
            else f"no transaction of the relay's tables yet; {key_for(_OVERVIEW)} shows what it is doing"
        )
        every = (*look.under_way, *look.transactions)
        listing.set_items([_item(one, look.time) for one in every], picture.received)
        self._show_selected()
        what = (
            f" {look.total:,} transactions since the relay's start. Listed are the newest "
            f"{look.newest:,}, and the largest {look.largest} by rows and by bytes of the last ten minutes. "
        )
        return Content.assemble((what, "$quiet"), (_under_way(look), "bold"))

    def open_row(self, grid: Grid) -> None:
        """Open the selected transaction's sampled changes."""
        if (selected := self._selected()) is not None:
            self.app.push_screen(SampledTransactionScreen(self.host, selected))

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self._show_selected()

    def _selected(self) -> RelayedTransaction | None:
        key = self.query_one("#transactions", ItemList).cursor_key
        return next((one for one in _of(self.host.model.picture) if _key(one) == key), None)

    def _show_selected(self) -> None:
        detail, one = self.query_one("#transaction", Detail), self._selected()
        if one is None:
            detail.show(None, Content.styled("nothing selected", "$quiet"))
        else:
            now = self.host.model.picture.received
            detail.show((one, round(now) if not one.acknowledged else 0), _facts(one, now))


class SampledTransactionScreen(SampledPair):
    """Shows a transaction and its sampled changes; Esc goes back."""

    mode: ClassVar[str] = "transactions"
    wants_look: ClassVar[LookName | None] = "transactions"

    def __init__(self, host: ScreenHost, transaction: RelayedTransaction) -> None:
        super().__init__(host)
        self.transaction = transaction

    def body(self) -> Iterable[Widget]:
        changes = TransactionChanges(self.transaction.xid, self.transaction.commit_lsn)
        pair = Container(changes, ChangeDetail(), id="changes-pair", classes="folder")
        return (Detail(id="facts", title=f"Transaction {self.transaction.xid}"), pair)

    def paint(self, picture: ScreenSnapshot) -> None:
        """Show the present state; a transaction that has left the list keeps its last one."""
        self.transaction = next(
            (one for one in _of(picture) if _is_same(one, self.transaction)), self.transaction
        )
        one, grid = self.transaction, self.main_grid()
        super().paint(picture)
        sampled = grid.number_sampled
        others = max(one.rows - sampled, 0)
        if not others:
            text = "All of its changes were sampled." if one.number else ""
        else:
            text = f"{sampled:,} of its changes are in the sample at hand, {others:,} are not."
        text += " A recording has every one: 'bwtui connect --record DIR'" if others else ""
        now = picture.received
        identity = (one, sampled, round(now) if not one.acknowledged else 0)
        facts = Content.assemble(_facts(one, now), "\n", (text, "$warning" if others else "$quiet"))
        self.query_one("#facts", Detail).show(identity, facts)
        self.query_one(ChangeDetail).show_change(grid.selected())

    def main_grid(self) -> TransactionChanges:
        return self.query_one(TransactionChanges)

    def current_filter(self) -> Filter:
        return self.main_grid().filter

    def crumbs(self) -> tuple[str, ...]:
        return ("Transactions", f"xid {self.transaction.xid}")


def _of(picture: ScreenSnapshot) -> tuple[RelayedTransaction, ...]:
    look = picture.looks.get("transactions")
    return (*look.under_way, *look.transactions) if isinstance(look, Transactions) else ()


def _is_same(one: RelayedTransaction, other: RelayedTransaction) -> bool:
    """Return whether both are the same transaction, even if one was still being read."""
    return (one.xid, one.commit_lsn) == (other.xid, other.commit_lsn) and (
        one.number == other.number or not other.number
    )


def _key(one: RelayedTransaction) -> str:
    return str(one.number) if one.number else OPEN


def _under_way(look: Transactions) -> str:
    if not look.under_way:
        return ""
    one = look.under_way[0]
    since = figures.took(max(look.time - one.received, 0.0))
    return f"Being read now: xid {one.xid}, {one.rows:,} rows so far, for {since}."


def _item(one: RelayedTransaction, now: float) -> Item:
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
        _took(one.commit_seconds),
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
    words = f"{one.xid} {one.commit_lsn} {named(one.tables, one.more_tables)}"
    return Item(_key(one), cells, values, words, is_trouble)


def _relayed(one: RelayedTransaction, waits: float) -> Cell:
    if one.is_given_up:
        return Cell("given up", "warn")
    if not one.acknowledged:
        return Cell(f"{figures.took(waits)}…", "warn" if waits >= LATE else "muted")
    return _took(one.relayed_seconds)


def _took(seconds: float | None) -> Cell:
    return Cell(figures.NONE, "muted") if seconds is None else Cell(figures.took(seconds))


def _facts(one: RelayedTransaction, now: float) -> Content:
    what = f"{rows_text(one.rows)}, {figures.size(one.bytes)} of messages"
    more = (one.more_tables, one.more_messages)
    lines = fact_lines(one.xid, one.commit_time, one.commit_lsn, what, one.tables, more)
    received = f"received {figures.precise_clock(one.received)}"
    tone = "$quiet"
    if not one.number:
        words, tone = "is being read: rows and bytes are those so far", "$primary"
    elif one.is_given_up:
        words, tone = "given up: the server that answers now does not have it", "$warning"
    elif not one.acknowledged:
        words, tone = f"not acknowledged yet, for {figures.took(max(now - one.received, 0.0))}", "$warning"
    elif one.relayed_seconds is None or one.commit_seconds is None:
        words = "acknowledged at an unknown time"
    else:
        since = figures.took(one.commit_seconds)
        words = f"acknowledged after {figures.took(one.relayed_seconds)}, {since} after its COMMIT"
    lines.append(Content.assemble((f"{received}, ", "$quiet"), (words, tone)))
    if one.reads > 1:
        again = f"read {one.reads} times: the stream was opened again before it was acknowledged"
        lines.append(Content.styled(again, "$warning"))
    return Content("\n").join(lines)
