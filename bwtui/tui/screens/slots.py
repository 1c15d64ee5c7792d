"""The causes of retained WAL on the server: every slot, long transactions, and standbys."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from textual.containers import Container
from textual.widget import Widget

from bwtui.model.lsn import parse_lsn
from bwtui.model.service_views import LongRunningTransaction, Look, LookName, SlotEntry, Slots, Standby
from bwtui.tui import assessment, figures
from bwtui.tui.plain import Content, Table
from bwtui.tui.screens.audit.forms import AskScreen
from bwtui.tui.screens.service_view import ServiceViewScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.columns import Cell, GridColumn
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.item_list import Item, ItemList
from bwtui.tui.widgets.line import Line

#: A slot without a reader needs attention from this many seconds before its loss on.
SOON = 3600.0
#: The retained WAL of a slot below one segment needs no explanation.
_SEGMENT = 16 * 1024**2
#: Maximum slots without a reader that the sentence names.
_TOLD = 2
SLOTS = (
    GridColumn("mark", "", 1),
    GridColumn("slot", "Slot", 18, grow=40),
    GridColumn("state", "State", 15, grow=28),
    GridColumn("kept", "Keeps", 8, "right"),
    GridColumn("safe", "Safe", 8, "right", drop=1),
    GridColumn("left", "Lost in", 9, "right"),
    GridColumn("wal", "WAL status", 10),
    GridColumn("spill", "Spilled", 8, "right", drop=2),
    GridColumn("kind", "Plugin", 9, drop=3, grow=16),
    GridColumn("database", "Database", 10, drop=4, grow=24),
    GridColumn("confirmed", "Confirmed", 12, drop=5, grow=18),
    GridColumn("restart", "Restart at", 12, drop=6, grow=18),
    GridColumn("note", "Note", 20, drop=7, grow=70),
)
HOLDERS = (
    GridColumn("mark", "", 1),
    GridColumn("transaction", "Transaction", 17, grow=30),
    GridColumn("open", "Open for", 9, "right"),
    GridColumn("holds", "Holds back", 19),
    GridColumn("state", "State", 19, drop=1, grow=30),
    GridColumn("user", "Role", 10, drop=2, grow=24),
    GridColumn("application", "Application", 11, drop=4, grow=30),
    GridColumn("database", "Database", 10, drop=3, grow=24),
)
STANDBYS = (
    GridColumn("mark", "", 1),
    GridColumn("standby", "Standby", 14, grow=30),
    GridColumn("behind", "Behind", 8, "right"),
    GridColumn("time", "Time", 9, "right"),
    GridColumn("state", "State", 10, grow=14),
    GridColumn("sync", "Sync", 6, drop=1, grow=10),
    GridColumn("client", "Client", 14, drop=3, grow=30),
    GridColumn("slot", "Slot", 12, drop=2, grow=30),
)


class SlotsScreen(ServiceViewScreen):
    """Shows all slots, and below them what else retains WAL or holds slots back."""

    mode: ClassVar[str] = "slots"
    wants_look: ClassVar[LookName | None] = "slots"
    instead: ClassVar[str] = "bwtui slots list -d …"

    def body(self) -> Iterable[Widget]:
        slots = _listing(SLOTS, ("slot", "kept", "safe", "left", "spill", "database"), "slots", "Slots")
        slots.sort_by("kept")
        holders = _listing(
            HOLDERS,
            ("open", "transaction", "user", "database"),
            "long transactions",
            "Open for 5 s or more",
            "holders",
        )
        standbys = _listing(STANDBYS, ("behind", "standby", "time"), "standbys", "Standbys")
        return (Line(id="said"), slots, Container(holders, standbys, id="held", classes="folder"))

    def show_look(self, look: Look, picture: ScreenSnapshot) -> Content:
        """Fill the lists, and return which slot retains the most WAL."""
        assert isinstance(look, Slots)
        own = picture.status.slot if picture.status else ""
        slots = [_slot(slot, own, look.time, picture.wal_rate) for slot in look.slots]
        self.query_one("#slots", ItemList).set_items(slots, picture.received)
        holders = [_holder(holder, look.time) for holder in look.holders]
        self.query_one("#holders", ItemList).set_items(holders, picture.received)
        standbys = [_standby(standby) for standby in look.standbys]
        self.query_one("#standbys", ItemList).set_items(standbys, picture.received)
        return _sentence(look, own, picture.wal_rate)

    def open_row(self, grid: Grid) -> None:
        """Show all columns of the row, including those that do not fit."""
        cells = grid.rows[grid.cursor_row].cells
        told = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, show_header=False)
        for column, cell in zip(grid.columns, cells, strict=True):
            if column.title:
                told.add_row(column.title, cell.text or figures.NONE)
        self.app.push_screen(AskScreen(cells[1].text, told))


def _listing(
    columns: tuple[GridColumn, ...], sortable: tuple[str, ...], noun: str, title: str, id: str = ""
) -> ItemList:
    listing = ItemList(columns, sortable, id=id or noun, noun=noun)
    listing.border_title = Content(title)
    return listing


def _sentence(look: Slots, own: str, rate: float | None) -> Content:
    """Return how fast WAL grows, which slot retains the most of it, and what limits that."""
    writes = "" if rate is None else f" The server writes {figures.size(rate)}/s of WAL. "
    if look.keep_limit_bytes is None:
        limit = "No limit is set (max_slot_wal_keep_size): a slot that nobody reads fills the disk."
    else:
        limit = f"A slot that keeps more than {figures.size(look.keep_limit_bytes)} is lost."
    gone = [slot.name for slot in look.slots if slot.wal_status == "lost"]
    lost = (f" ✗ {', '.join(gone)} lost the WAL that it needs. ", "bold $error") if gone else ("", "")
    kept = [slot for slot in look.slots if slot.retained_wal_bytes is not None]
    if not kept:
        return Content.assemble(lost, (writes or " ", ""), ("No slot keeps any. ", ""), (limit, "$quiet"))
    most = max(kept, key=lambda slot: slot.retained_wal_bytes or 0)
    whose = "this relay's slot" if most.name == own else f"slot {most.name}"
    verdict = assessment.of_slot(most)
    return Content.assemble(
        lost,
        (writes or " ", ""),
        (f"The most is kept by {whose}: {figures.size(most.retained_wal_bytes or 0)}", "bold"),
        (_held_back(look, most) or (f", which {verdict.word}" if verdict.tone != "good" else ""), "bold"),
        (". ", "bold"),
        *((f"{more}. ", "bold $warning") for more in _besides(look, most, own)),
        (limit, "$quiet"),
    )


def _besides(look: Slots, most: SlotEntry, own: str) -> Iterator[str]:
    """Yield what else retains much WAL, and what to do about slots without a reader."""
    for slot in look.slots:
        if slot.name == own and slot is not most and (why := _held_back(look, slot)):
            yield f"This relay's slot keeps {figures.size(slot.retained_wal_bytes or 0)}{why}"
    # This relay's slot has no reader between two sessions, and must be the last one to be dropped.
    others = [slot for slot in look.slots if slot.name != own and not slot.active]
    unread = [slot for slot in others if (slot.retained_wal_bytes or 0) >= _SEGMENT]
    for slot in sorted(unread, key=lambda one: -(one.retained_wal_bytes or 0))[:_TOLD]:
        whose = f"{slot.name}, which nobody reads, keeps {figures.size(slot.retained_wal_bytes or 0)}: "
        whose += f"read it, or drop it: bwtui slots drop {slot.name}"
        yield whose if slot is not most else f"Read it, or drop it: bwtui slots drop {slot.name}"
    if len(unread) > _TOLD:
        yield f"{len(unread) - _TOLD} more are read by nobody"


def _held_back(look: Slots, slot: SlotEntry) -> str:
    """Return which transaction holds a slot with a reader back, and how to end it; "" without one."""
    if not slot.active or slot.confirmed_lsn is None or slot.restart_lsn is None:
        return ""
    held = parse_lsn(slot.confirmed_lsn) - parse_lsn(slot.restart_lsn)
    # WAL that the slot's reader has not confirmed is retained because of the reader.
    if held < max(_SEGMENT, (slot.retained_wal_bytes or 0) / 2):
        return ""
    writing = [one for one in look.holders if one.writes and _open_long(one, look.time)]
    if not writing:
        return ""
    holder = min(writing, key=lambda one: one.since or 0.0)
    since = "" if holder.since is None else f" for {figures.duration(max(look.time - holder.since, 0.0))}"
    if holder.state == "prepared":
        name = holder.name.removeprefix("prepared ")
        quoted = name.replace("'", "''")
        statement = f"ROLLBACK PREPARED '{quoted}';"
        return f", since transaction {name} has been prepared{since}: end it with {statement}"
    who = f"{holder.name} ({holder.application})" if holder.application else holder.name
    state = f" ({holder.state})" if holder.state else ""
    statement = f"SELECT pg_terminate_backend({holder.name.removeprefix('pid ')});"
    return f", since {who} has had a transaction open{since}{state}: end it with {statement}"


def _open_long(holder: LongRunningTransaction, now: float) -> bool:
    return holder.since is None or assessment.is_late(holder.since, now)


def _slot(slot: SlotEntry, own: str, now: float, rate: float | None) -> Item:
    verdict = assessment.of_slot(slot)
    idle = "" if slot.inactive_since is None else f" {figures.duration(now - slot.inactive_since)}"
    state = f"read by {slot.active_pid}" if slot.active else f"unread{idle}"
    left = slot.safe_wal_bytes / rate if slot.safe_wal_bytes is not None and rate else None
    wal = assessment.of_wal_status(slot.wal_status or "")
    notes = [
        "this relay's" if slot.name == own else "",
        slot.invalidation_reason or "",
        "temporary" if slot.temporary else "",
        f"{verdict.word}" if verdict.tone in ("warn", "bad") and slot.active else "",
    ]
    cells = (
        Cell(verdict.mark if verdict.tone != "good" else " ", verdict.tone),
        Cell(slot.name, "strong" if slot.name == own else ""),
        Cell(state, "" if slot.active else "warn"),
        _size(slot.retained_wal_bytes, "warn" if assessment.keeps_much(slot) else ""),
        _size(slot.safe_wal_bytes),
        _left(left, slot.active),
        Cell(slot.wal_status or figures.NONE, wal.tone if wal.tone != "good" else ""),
        _size(slot.spill_bytes, "warn" if slot.spill_bytes else ""),
        Cell(slot.plugin or slot.type, "muted"),
        Cell(slot.database or figures.NONE, "muted"),
        Cell(slot.confirmed_lsn or figures.NONE, "muted"),
        Cell(slot.restart_lsn or figures.NONE, "muted"),
        Cell("; ".join(filter(None, notes)), verdict.tone if verdict.tone != "good" else "muted"),
    )
    values = {
        "slot": slot.name,
        # A lost slot retains nothing, but a slot that is or will be lost matters most.
        "kept": float("inf") if verdict.tone == "bad" else slot.retained_wal_bytes or 0,
        "safe": float("inf") if slot.safe_wal_bytes is None else slot.safe_wal_bytes,
        "left": float("inf") if left is None else left,
        "spill": slot.spill_bytes or 0,
        "database": slot.database or "",
    }
    search = (
        f"{slot.name} {state} {slot.wal_status} {slot.plugin} {slot.type} {slot.database} {' '.join(notes)}"
    )
    return Item(slot.name, cells, values, search, verdict.tone != "good")


def _left(seconds: float | None, active: bool) -> Cell:
    """Return the time until the slot is lost if it is not read any further, at the present WAL rate."""
    if seconds is None:
        return Cell(figures.NONE, "muted")
    if active:
        return Cell(figures.duration(seconds), "muted")
    return Cell(figures.duration(seconds), "bad" if seconds < SOON else "warn")


def _size(number: int | None, tone: str = "") -> Cell:
    if number is None:
        return Cell(figures.NONE, "muted")
    return Cell(figures.size(max(number, 0)), tone or ("" if number > 0 else "muted"))


def _holder(holder: LongRunningTransaction, now: float) -> Item:
    holds = [
        "restart_lsn" if holder.writes else "",
        "vacuum" if holder.xmin_age is not None else "",
    ]
    held = ", ".join(filter(None, holds)) or "nothing"
    age = None if holder.since is None else max(now - holder.since, 0.0)
    tone = "warn" if held != "nothing" and (age is None or age >= assessment.LAG_SECONDS) else ""
    cells = (
        Cell("▲" if tone else " ", tone),
        Cell(holder.name),
        Cell("not told" if age is None else figures.duration(age), tone),
        Cell(held, "" if holder.writes else "muted"),
        Cell(holder.state or "not told", "" if holder.state else "muted"),
        Cell(holder.user, "muted"),
        Cell(holder.application or figures.NONE, "muted"),
        Cell(holder.database or figures.NONE, "muted"),
    )
    values = {
        "transaction": holder.name,
        "open": float("inf") if age is None else age,
        "user": holder.user,
        "database": holder.database,
    }
    search = f"{holder.name} {held} {holder.state} {holder.user} {holder.application} {holder.database}"
    return Item(holder.name, cells, values, search, bool(tone))


def _standby(standby: Standby) -> Item:
    seconds, size = standby.replay_lag_seconds, standby.replay_lag_bytes
    late = (seconds or 0) >= assessment.LAG_SECONDS or (size or 0) >= assessment.LAG_BYTES
    tone = "warn" if late else ""
    cells = (
        Cell("▲" if late else " ", tone),
        Cell(standby.name),
        _size(size, tone),
        Cell(figures.NONE if seconds is None else figures.duration(seconds), tone),
        Cell(standby.state or "not told", "" if standby.state else "muted"),
        Cell(standby.sync_state or figures.NONE, "muted"),
        Cell(standby.client, "muted"),
        Cell(standby.slot or "none", "muted"),
    )
    values = {"behind": size or 0, "standby": standby.name, "time": seconds or 0.0}
    key = f"{standby.name} {standby.client} {standby.slot}"
    return Item(key, cells, values, f"{key} {standby.state} {standby.sync_state}", late)
