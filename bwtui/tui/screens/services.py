"""What the relay's process learns from its services: slots, consumer groups, its log, and its settings."""

import math
from collections.abc import Iterable, Iterator
from typing import ClassVar

from textual import events
from textual.containers import Container
from textual.widget import Widget

from bwtui.command_log import UNDER_WAY
from bwtui.model.lsn import parse_lsn
from bwtui.model.service_views import (
    CommandEntry,
    Commands,
    Configuration,
    Consumers,
    GroupEntry,
    LongRunningTransaction,
    Look,
    LookName,
    PartitionLag,
    SettingEntry,
    SlotEntry,
    Slots,
    Standby,
)
from bwtui.options import BY_NAME, DEFAULT, PAIR_OPTIONS
from bwtui.settings import drop_command
from bwtui.tui.base import assessment, figures
from bwtui.tui.base.plain import Content, Table
from bwtui.tui.screens.base import DetailedList, RelayScreen
from bwtui.tui.screens.dialogs import AskScreen
from bwtui.tui.sources.model import ScreenSnapshot
from bwtui.tui.widgets.grid import Cell, Grid, GridColumn, Item, ItemList
from bwtui.tui.widgets.line import Detail, Line

#: Seconds after which an answer is reported as old, and a missing one as missing; services are polled every
#: second or two.
OLD_AFTER, MISSING_AFTER = 5.0, 3.0


class ServiceViewScreen(RelayScreen):
    """One or more lists below a sentence; the relay's process polls the service while the screen is shown."""

    #: The name of the polled service, for sentences.
    service: ClassVar[str] = "PostgreSQL"
    #: A command that queries the service without a relay.
    instead: ClassVar[str] = ""
    #: False if the data was collected when the relay started, and does not age.
    ages: ClassVar[bool] = True
    #: The list that had the focus last, for the actions on lists.
    _list: ItemList | None = None
    #: Start of the time without any answer, by the clock of the screens.
    _waiting_since: float | None = None

    def on_screen_resume(self) -> None:
        """Restart the time without an answer: nothing was polled while a different screen was shown."""
        self._waiting_since = None

    def paint(self, snapshot: ScreenSnapshot) -> None:
        assert self.required_view is not None
        view = snapshot.views.get(self.required_view)
        parts = [self._trouble(view, snapshot)]
        is_current = view is not None and bool(view.time) and not view.failure
        for listing in self.query(ItemList):
            listing.say_why_empty("" if is_current else "unknown", is_known=is_current)
        if view is not None and is_current:
            # The screen may have a more specific reason for an empty list.
            parts.insert(0, self.show_view(view, snapshot))
        sentence = self.query_one("#said", Line)
        sentence.put(Content("\n").join([part for part in parts if part.plain]), layout=True)

    def show_view(self, view: Look, snapshot: ScreenSnapshot) -> Content:
        """Fill the lists, and return a sentence about them."""
        raise NotImplementedError

    def _trouble(self, view: Look | None, snapshot: ScreenSnapshot) -> Content:
        """Return why there is no data, that it is old, or what is missing; nothing without a problem."""
        if snapshot.absence and (self.ages or view is None):
            return self._not_queried(view, snapshot)
        if view is not None and view.failure:
            return Content.styled(f" ✗ {view.failure}", "$error")
        if view is None or not view.time:
            return self._no_answer(snapshot)
        self._waiting_since = None
        lines = [Content.styled(f" ▲ {note}", "$warning") for note in view.notes]
        age = snapshot.received - view.time
        if self.ages and age > OLD_AFTER + self.rest_after(view):
            text = f" ▲ {self.service} has not answered for {figures.duration(age)}; this is its last answer"
            lines.insert(0, Content.styled(text, "bold $warning"))
        return Content("\n").join(lines)

    def rest_after(self, view: Look) -> float:
        """Return the seconds for which the relay pauses after a slow poll."""
        return 0.0

    def _no_answer(self, snapshot: ScreenSnapshot) -> Content:
        """Return which service is polled and, after a while, for how long there has been no answer."""
        if self._waiting_since is None:
            self._waiting_since = snapshot.received
        waited = snapshot.received - self._waiting_since
        if waited <= MISSING_AFTER:
            return Content.styled(f" · the relay is querying {self.service}…", "$quiet")
        text = (
            f" ▲ {self.service} has not answered for {figures.duration(waited)}; there is no earlier answer"
        )
        return Content.styled(text, "bold $warning")

    def _not_queried(self, view: Look | None, snapshot: ScreenSnapshot) -> Content:
        """Return that no relay polls the service, how old the lists are, and what to do."""
        last_answer = (
            f"; this is its last answer, of {figures.clock(view.time)}"
            if view is not None and view.time
            else ""
        )
        start = "start it" if snapshot.absence == "does not run" else "see the line above"
        todo = f"{start}, or: {self.instead}" if self.instead else start
        return Content.assemble(
            (f" ▲ not queried: the relay {snapshot.absence}{last_answer}", "bold $warning"),
            (f" → {todo}", "$warning"),
        )

    def main_grid(self) -> ItemList:
        return self._list or self.query(ItemList).first()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Let filter, sort and copy act on the list with the focus."""
        if isinstance(event.widget, ItemList):
            self._list = event.widget


#: A slot without a reader needs attention from this many seconds before its loss on.
SOON = 3600.0
#: The retained WAL of a slot below one segment needs no explanation.
_SEGMENT = 16 * 1024**2
#: Maximum slots without a reader that the sentence names.
_NAMED = 2
SLOTS = (
    GridColumn("mark", "", 1),
    GridColumn("slot", "Slot", 18, grow=40),
    GridColumn("state", "State", 15, grow=28),
    GridColumn("retained", "Retains", 8, "right"),
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
    required_view: ClassVar[LookName | None] = "slots"
    instead: ClassVar[str] = "bwtui slots list -d …"

    def body(self) -> Iterable[Widget]:
        by_slot = ("slot", "retained", "safe", "left", "spill", "database")
        slots = ItemList(SLOTS, by_slot, id="slots", noun="slots", title="Slots", sort="retained")
        by_holder, title = ("open", "transaction", "user", "database"), "Open for 5 s or more"
        holders = ItemList(HOLDERS, by_holder, id="holders", noun="long transactions", title=title)
        by_standby = ("behind", "standby", "time")
        standbys = ItemList(STANDBYS, by_standby, id="standbys", noun="standbys", title="Standbys")
        return (Line(id="said"), slots, Container(holders, standbys, id="held", classes="folder"))

    def show_view(self, view: Look, snapshot: ScreenSnapshot) -> Content:
        assert isinstance(view, Slots)
        own_slot = snapshot.status.slot if snapshot.status else ""
        slots = [_slot_item(slot, own_slot, view.time, snapshot.wal_rate) for slot in view.slots]
        self.query_one("#slots", ItemList).set_items(slots, snapshot.received)
        holders = [_holder_item(holder, view.time) for holder in view.holders]
        self.query_one("#holders", ItemList).set_items(holders, snapshot.received)
        standbys = [_standby_item(standby) for standby in view.standbys]
        self.query_one("#standbys", ItemList).set_items(standbys, snapshot.received)
        return _slots_sentence(view, own_slot, snapshot.wal_rate)

    def open_row(self, grid: Grid) -> None:
        """Show all columns of the row, including those that do not fit."""
        cells = grid.rows[grid.cursor_row].cells
        details = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, show_header=False)
        for column, cell in zip(grid.columns, cells, strict=True):
            if column.title:
                details.add_row(column.title, cell.text or figures.NONE)
        self.app.push_screen(AskScreen(cells[1].text, details))


def _slots_sentence(view: Slots, own_slot: str, rate: float | None) -> Content:
    """Return how fast WAL grows, which slot retains the most of it, and what limits that."""
    writes = "" if rate is None else f" The server writes {figures.size(rate)}/s of WAL. "
    if view.keep_limit_bytes is None:
        limit = "No limit is set (max_slot_wal_keep_size): an unused slot fills the disk."
    else:
        limit = f"A slot that retains more than {figures.size(view.keep_limit_bytes)} is invalidated."
    lost_slots = [slot.name for slot in view.slots if slot.wal_status == "lost"]
    lost = (f" ✗ {', '.join(lost_slots)} lost WAL that it needs. ", "bold $error") if lost_slots else ("", "")
    retaining = [slot for slot in view.slots if slot.retained_wal_bytes is not None]
    if not retaining:
        return Content.assemble(lost, (writes or " ", ""), ("No slot retains WAL. ", ""), (limit, "$quiet"))
    most = max(retaining, key=lambda slot: slot.retained_wal_bytes or 0)
    owner = "This relay's slot" if most.name == own_slot else f"Slot {most.name}"
    verdict = assessment.of_slot(most)
    return Content.assemble(
        lost,
        (writes or " ", ""),
        (f"{owner} retains the most: {figures.size(most.retained_wal_bytes or 0)}", "bold"),
        (_held_back(view, most) or (f" ({verdict.word})" if verdict.tone != "good" else ""), "bold"),
        (". ", "bold"),
        *((f"{more}. ", "bold $warning") for more in _advice(view, most, own_slot)),
        (limit, "$quiet"),
    )


def _advice(view: Slots, most: SlotEntry, own_slot: str) -> Iterator[str]:
    """Yield what else retains much WAL, and what to do about slots without a reader."""
    for slot in view.slots:
        if slot.name == own_slot and slot is not most and (why := _held_back(view, slot)):
            yield f"This relay's slot retains {figures.size(slot.retained_wal_bytes or 0)}{why}"
    # This relay's slot has no reader between two sessions, and must be the last one to be dropped.
    unused = [slot for slot in view.slots if slot.name != own_slot and not slot.active]
    retaining = [slot for slot in unused if (slot.retained_wal_bytes or 0) >= _SEGMENT]
    for slot in sorted(retaining, key=lambda one: -(one.retained_wal_bytes or 0))[:_NAMED]:
        retained, drop = figures.size(slot.retained_wal_bytes or 0), drop_command(slot.name, view.postgres)
        start = "Start" if slot is most else f"{slot.name} is not in use and retains {retained}: start"
        yield f"{start} its consumer, or drop it: {drop}"
    if len(retaining) > _NAMED:
        yield f"{len(retaining) - _NAMED} more are not in use"


def _held_back(view: Slots, slot: SlotEntry) -> str:
    """Return which transaction holds a slot with a reader back, and how to end it; "" without one."""
    if not slot.active or slot.confirmed_lsn is None or slot.restart_lsn is None:
        return ""
    held_bytes = parse_lsn(slot.confirmed_lsn) - parse_lsn(slot.restart_lsn)
    # WAL that the slot's reader has not confirmed is retained because of the reader.
    if held_bytes < max(_SEGMENT, (slot.retained_wal_bytes or 0) / 2):
        return ""
    writing = [one for one in view.holders if one.writes and _open_long(one, view.time)]
    if not writing:
        return ""
    holder = min(writing, key=lambda one: one.since or 0.0)
    since = "" if holder.since is None else f" for {figures.duration(max(view.time - holder.since, 0.0))}"
    if holder.state == "prepared":
        name = holder.name.removeprefix("prepared ")
        quoted = name.replace("'", "''")
        statement = f"ROLLBACK PREPARED '{quoted}';"
        return f", because transaction {name} has been prepared{since}: end it with {statement}"
    who = f"{holder.name} ({holder.application})" if holder.application else holder.name
    state = f" ({holder.state})" if holder.state else ""
    statement = f"SELECT pg_terminate_backend({holder.name.removeprefix('pid ')});"
    return f", because {who} has had a transaction open{since}{state}: end it with {statement}"


def _open_long(holder: LongRunningTransaction, now: float) -> bool:
    return holder.since is None or assessment.is_late(holder.since, now)


def _slot_item(slot: SlotEntry, own_slot: str, now: float, rate: float | None) -> Item:
    verdict = assessment.of_slot(slot)
    inactive = "" if slot.inactive_since is None else f" {figures.duration(now - slot.inactive_since)}"
    state = f"used by {slot.active_pid}" if slot.active else f"unused{inactive}"
    time_left = slot.safe_wal_bytes / rate if slot.safe_wal_bytes is not None and rate else None
    wal = assessment.of_wal_status(slot.wal_status or "")
    notes = [
        "this relay's" if slot.name == own_slot else "",
        slot.invalidation_reason or "",
        "temporary" if slot.temporary else "",
        f"{verdict.word}" if verdict.tone in ("warn", "bad") and slot.active else "",
    ]
    cells = (
        Cell(verdict.mark if verdict.tone != "good" else " ", verdict.tone),
        Cell(slot.name, "strong" if slot.name == own_slot else ""),
        Cell(state, "" if slot.active else "warn"),
        # A lost slot retains nothing, but a slot that is or will be lost matters most.
        _size_cell(slot.retained_wal_bytes, "warn" if assessment.keeps_much(slot) else "")._replace(
            value=math.inf if verdict.tone == "bad" else slot.retained_wal_bytes or 0
        ),
        _size_cell(slot.safe_wal_bytes, unknown=math.inf),
        _time_left_cell(time_left, slot.active),
        Cell(slot.wal_status or figures.NONE, wal.tone if wal.tone != "good" else ""),
        _size_cell(slot.spill_bytes, "warn" if slot.spill_bytes else ""),
        Cell(slot.plugin or slot.type, "muted"),
        Cell(slot.database or figures.NONE, "muted", slot.database or ""),
        Cell(slot.confirmed_lsn or figures.NONE, "muted"),
        Cell(slot.restart_lsn or figures.NONE, "muted"),
        Cell("; ".join(filter(None, notes)), verdict.tone if verdict.tone != "good" else "muted"),
    )
    search = (
        f"{slot.name} {state} {slot.wal_status} {slot.plugin} {slot.type} {slot.database} {' '.join(notes)}"
    )
    return Item(slot.name, cells, search, verdict.tone != "good")


def _time_left_cell(seconds: float | None, active: bool) -> Cell:
    """Return the time until the slot is lost if it is not read any further, at the present WAL rate."""
    if seconds is None:
        return Cell(figures.NONE, "muted", math.inf)
    tone = "muted" if active else "bad" if seconds < SOON else "warn"
    return Cell(figures.duration(seconds), tone, seconds)


def _size_cell(number: int | None, tone: str = "", unknown: float = 0) -> Cell:
    """Return a size; an unknown one sorts as ``unknown``."""
    if number is None:
        return Cell(figures.NONE, "muted", unknown)
    return Cell(figures.size(max(number, 0)), tone or ("" if number > 0 else "muted"), number)


def _holder_item(holder: LongRunningTransaction, now: float) -> Item:
    reasons = ["restart_lsn" if holder.writes else "", "vacuum" if holder.xmin_age is not None else ""]
    retained = ", ".join(filter(None, reasons)) or "nothing"
    age = None if holder.since is None else max(now - holder.since, 0.0)
    tone = "warn" if retained != "nothing" and (age is None or age >= assessment.LAG_SECONDS) else ""
    cells = (
        Cell("▲" if tone else " ", tone),
        Cell(holder.name),
        Cell("unknown" if age is None else figures.duration(age), tone, math.inf if age is None else age),
        Cell(retained, "" if holder.writes else "muted"),
        Cell(holder.state or "unknown", "" if holder.state else "muted"),
        Cell(holder.user, "muted"),
        Cell(holder.application or figures.NONE, "muted"),
        Cell(holder.database or figures.NONE, "muted", holder.database),
    )
    search = f"{holder.name} {retained} {holder.state} {holder.user} {holder.application} {holder.database}"
    return Item(holder.name, cells, search, bool(tone))


def _standby_item(standby: Standby) -> Item:
    seconds, size = standby.replay_lag_seconds, standby.replay_lag_bytes
    late = (seconds or 0) >= assessment.LAG_SECONDS or (size or 0) >= assessment.LAG_BYTES
    tone = "warn" if late else ""
    cells = (
        Cell("▲" if late else " ", tone),
        Cell(standby.name),
        _size_cell(size, tone),
        Cell(figures.NONE if seconds is None else figures.duration(seconds), tone, seconds or 0.0),
        Cell(standby.state or "unknown", "" if standby.state else "muted"),
        Cell(standby.sync_state or figures.NONE, "muted"),
        Cell(standby.client, "muted"),
        Cell(standby.slot or "none", "muted"),
    )
    key = f"{standby.name} {standby.client} {standby.slot}"
    return Item(key, cells, f"{key} {standby.state} {standby.sync_state}", late)


GROUPS = (
    GridColumn("mark", "", 1),
    GridColumn("group", "Group", 20, grow=44),
    GridColumn("verdict", "Verdict", 12),
    GridColumn("unread", "Unread", 8, "right"),
    GridColumn("time", "Behind", 9, "right"),
    GridColumn("state", "State", 9, drop=1, grow=22),
    GridColumn("members", "Members", 7, "right", drop=2),
    GridColumn("partitions", "Parts", 5, "right", drop=3),
    GridColumn("topics", "Topics", 14, drop=4, grow=60),
)
PARTITIONS = (
    GridColumn("mark", "", 1),
    GridColumn("topic", "Topic", 20, grow=60),
    GridColumn("partition", "Part", 4, "right"),
    GridColumn("unread", "Unread", 9, "right"),
    GridColumn("time", "Behind", 9, "right"),
    GridColumn("committed", "Committed", 11, "right"),
    GridColumn("end", "End", 11, "right"),
    GridColumn("since", "First unread is of", 19, drop=1),
)


class ConsumersScreen(ServiceViewScreen):
    """Shows the groups, and the partitions of the selected one."""

    mode: ClassVar[str] = "consumers"
    required_view: ClassVar[LookName | None] = "consumers"
    service: ClassVar[str] = "Kafka"
    instead: ClassVar[str] = "kafka-consumer-groups.sh --bootstrap-server … --all-groups --describe"

    def body(self) -> Iterable[Widget]:
        by = ("unread", "time", "group", "verdict", "members")
        groups = ItemList(GROUPS, by, id="groups", noun="groups", title="Consumer groups")
        by = ("unread", "time", "topic", "partition", "end")
        partitions = ItemList(PARTITIONS, by, id="partitions", noun="partitions", title="Partitions")
        return (Line(id="said"), groups, partitions)

    def show_view(self, view: Look, snapshot: ScreenSnapshot) -> Content:
        assert isinstance(view, Consumers)
        groups = self.query_one("#groups", ItemList)
        groups.set_items([_group_item(group, view.time) for group in view.groups], snapshot.received)
        self._show_partitions(view, snapshot)
        return _groups_sentence(view)

    def rest_after(self, view: Look) -> float:
        """Return the pause of `OnDemandPoller`: 4 times the poll's duration, up to 10 s."""
        assert isinstance(view, Consumers)
        return min(4 * view.seconds, 10.0)

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        snapshot = self.host.model.snapshot
        view = snapshot.views.get("consumers")
        if event.grid.id == "groups" and isinstance(view, Consumers):
            self._show_partitions(view, snapshot)

    def open_row(self, grid: Grid) -> None:
        self.query_one("#partitions").focus()

    def _show_partitions(self, view: Consumers, snapshot: ScreenSnapshot) -> None:
        key = self.query_one("#groups", ItemList).cursor_key
        group = next((one for one in view.groups if one.name == key), None)
        partitions = self.query_one("#partitions", ItemList)
        partitions.border_title = Content("Partitions" if group is None else f"Partitions of {group.name}")
        lags = group.partitions if group else ()
        partitions.set_items([_lag_item(lag, view.time) for lag in lags], snapshot.received)


def _groups_sentence(view: Consumers) -> Content:
    """Return which group has the largest lag, and where."""
    late = [group for group in view.groups if assessment.is_behind(group, view.time)]
    unknown = "".join(f" {_unknown_position(group)}" for group in view.groups if group.uncommitted)
    if not view.groups:
        return Content.styled(" No consumer group has committed an offset in these topics.", "$quiet")
    readers = "1 group reads" if len(view.groups) == 1 else f"{len(view.groups)} groups read"
    if not late and unknown:
        return Content.styled(f" ▲{unknown}", "$warning")
    if not late:
        return Content.assemble((" ✓ ", "$success"), f"{readers} these topics, none of them late.")
    worst = max(late, key=lambda group: (_age(group.unread_since, view.time), group.unread))
    age = "" if worst.unread_since is None else f", {figures.duration(_age(worst.unread_since, view.time))}"
    where = worst.partitions[0] if worst.partitions else None
    place = f", mostly in {where.topic}[{where.partition}]" if where is not None and where.unread else ""
    inactive = "" if worst.members != 0 else "; it has no running consumer"
    return Content.assemble(
        (" ▲ ", "$warning"),
        (f"{worst.name} has the largest lag: {assessment.unread_of(worst)} messages{age}", "bold"),
        f"{place}{inactive}. ",
        (f"{len(late)} of {len(view.groups)} groups late.", "$quiet"),
        (unknown, "$warning"),
    )


def _unknown_position(group: GroupEntry) -> str:
    noun = "a partition that holds" if group.uncommitted == 1 else f"{group.uncommitted} partitions that hold"
    return f"{group.name} has committed no offset in {noun} messages, so its position there is unknown."


def _age(since: float | None, now: float) -> float:
    return 0.0 if since is None else max(now - since, 0.0)


def _group_item(group: GroupEntry, now: float) -> Item:
    verdict = assessment.of_group(group, now)
    topics = ", ".join(group.topics)
    if group.uncommitted:
        noun = "partition" if group.uncommitted == 1 else "partitions"
        topics = f"{group.uncommitted} {noun} without a commit; {topics}"
    cells = (
        Cell(verdict.mark, verdict.tone),
        Cell(group.name, "strong"),
        Cell(verdict.word, verdict.tone),
        Cell(assessment.unread_of(group), "" if group.unread else "muted", group.unread),
        _behind_cell(group.unread or group.uncommitted, group.unread_since, now),
        Cell(group.state, "muted"),
        Cell(
            figures.NONE if group.members is None else str(group.members),
            "warn" if group.members == 0 else "",
            group.members or 0,
        ),
        Cell(str(group.partition_count), "muted"),
        Cell(topics, "warn" if group.uncommitted else "muted"),
    )
    search = f"{group.name} {verdict.word} {group.state} {topics}"
    return Item(group.name, cells, search, verdict.tone != "good")


def _lag_item(lag: PartitionLag, now: float) -> Item:
    late = lag.unread > 0 and lag.unread_since is not None and assessment.is_late(lag.unread_since, now)
    key = f"{lag.topic}[{lag.partition}]"
    unknown = lag.committed is None and lag.end > 0
    cells = (
        Cell("▲" if late else " ", "warn" if late else ""),
        Cell(lag.topic),
        Cell(str(lag.partition), "", lag.partition),
        Cell("unknown" if unknown else figures.count(lag.unread), "" if lag.unread else "muted", lag.unread),
        Cell(figures.NONE, "muted", _age(lag.unread_since, now))
        if unknown
        else _behind_cell(lag.unread, lag.unread_since, now),
        Cell("never", "warn") if lag.committed is None else Cell(str(lag.committed)),
        Cell(str(lag.end), "muted", lag.end),
        Cell(figures.NONE if lag.unread_since is None else figures.moment(lag.unread_since), "muted"),
    )
    return Item(key, cells, key, late)


def _behind_cell(unread: int, since: float | None, now: float) -> Cell:
    age = _age(since, now)
    if not unread:
        return Cell(figures.duration(0), "muted", age)
    if since is None:
        return Cell("unknown", "muted", age)
    return Cell(figures.duration(age), "warn" if assessment.is_late(since, now) else "", age)


#: Seconds from which on a command counts as slow.
SLOW = 1.0
COMMANDS = (
    GridColumn("mark", "", 1),
    GridColumn("time", "Last", 8),
    GridColumn("count", "Count", 6, "right"),
    GridColumn("service", "Service", 10),
    GridColumn("mean", "Mean ms", 8, "right"),
    GridColumn("slowest", "Slowest", 8, "right", drop=1),
    GridColumn("text", "Statement or request", 24, grow=200),
    GridColumn("result", "Result", 9, grow=24),
)


class CommandsScreen(DetailedList, ServiceViewScreen):
    """Shows the list, newest first, and the selected command in full."""

    mode: ClassVar[str] = "log"
    required_view: ClassVar[LookName | None] = "commands"
    service: ClassVar[str] = "its own process"

    def body(self) -> Iterable[Widget]:
        sortable = ("time", "count", "service", "mean", "slowest", "text", "result")
        noun = "statements and requests"
        listing = ItemList(COMMANDS, sortable, id="commands", noun=noun, title="Log", descending=True)
        return (Line(id="said"), listing, Detail(id="command", title="Command"))

    def show_view(self, view: Look, snapshot: ScreenSnapshot) -> Content:
        assert isinstance(view, Commands)
        self.query_one("#commands", ItemList).set_items(
            [_command_item(one) for one in view.commands], snapshot.received
        )
        self.show_selected()
        total = sum(entry.count for entry in view.commands)
        failed = sum(entry.count for entry in view.commands if _has_failed(entry))
        dropped = f", {view.forgotten:,} older entries dropped" if view.forgotten else ""
        return Content.assemble(
            f" {total:,} statements and requests of the relay's process, ",
            (f"{failed:,} failed" if failed else "none failed", "$error" if failed else "$success"),
            (f"{dropped}. Equal entries share a line; values of rows are not shown.", "$quiet"),
        )

    def row_text(self) -> str:
        entry: CommandEntry | None = self.selected_entry()
        return "" if entry is None else entry.text

    def describe(self, entry: CommandEntry) -> tuple[object, Content]:
        return entry, _command_text(entry)


def _has_failed(entry: CommandEntry) -> bool:
    # The registry answers 404 when it is asked whether something exists, so that is not a failure.
    return entry.result not in ("", UNDER_WAY, "HTTP 404")


def _mean_seconds(entry: CommandEntry) -> float:
    return entry.total / max(entry.count, 1)


def _command_tone(entry: CommandEntry) -> str:
    if _has_failed(entry):
        return "bad"
    return "warn" if entry.result == UNDER_WAY and entry.seconds >= SLOW else ""


def _command_item(entry: CommandEntry) -> Item:
    tone, mean = _command_tone(entry), _mean_seconds(entry)
    marks = {"bad": "✗", "warn": "▲"}
    cells = (
        Cell(marks.get(tone, " "), tone),
        Cell(figures.clock(entry.time), "muted", entry.time),
        Cell(figures.count(entry.count), "" if entry.count > 1 else "muted", entry.count),
        Cell(entry.service),
        Cell(figures.milliseconds(mean), "warn" if mean >= SLOW else "", mean),
        Cell(
            figures.milliseconds(entry.slowest), "warn" if entry.slowest >= SLOW else "muted", entry.slowest
        ),
        Cell(entry.text, "strong" if entry.result == UNDER_WAY else ""),
        Cell(entry.result or "✓", tone or ("muted" if entry.result else "good"), entry.result),
    )
    return Item(
        f"{entry.service}\0{entry.text}\0{entry.result}",
        cells,
        f"{entry.service} {entry.text} {entry.result}",
        tone == "bad",
        entry,
    )


def _command_text(entry: CommandEntry) -> Content:
    times = "once" if entry.count == 1 else f"{entry.count:,} times since {figures.clock(entry.first)}"
    duration = f"last {figures.milliseconds(entry.seconds)} ms"
    if entry.count > 1:
        mean, slowest = figures.milliseconds(_mean_seconds(entry)), figures.milliseconds(entry.slowest)
        duration += f", mean {mean} ms, slowest {slowest} ms, together {figures.duration(entry.total)}"
    result = entry.result or "succeeded"
    return Content("\n\n").join(
        [
            Content.styled(entry.text, "bold"),
            Content.styled(f"{entry.service}: {result}", "$error" if _has_failed(entry) else "$success"),
            Content.styled(f"{times}, last at {figures.precise_clock(entry.time)}; {duration}", "$quiet"),
        ]
    )


SETTINGS = (
    GridColumn("mark", "", 1),
    GridColumn("setting", "Setting", 18, grow=36),
    GridColumn("value", "Value", 30, grow=120),
    GridColumn("origin", "From", 22, grow=60),
)


class SettingsScreen(DetailedList, ServiceViewScreen):
    """Shows the list, and the help of the selected setting."""

    mode: ClassVar[str] = "settings"
    required_view: ClassVar[LookName | None] = "configuration"
    ages: ClassVar[bool] = False
    service: ClassVar[str] = "its own process"

    def body(self) -> Iterable[Widget]:
        by = ("setting", "value", "origin")
        listing = ItemList(SETTINGS, by, id="settings", noun="settings", title="Settings")
        return (Line(id="said"), listing, Detail(id="setting", title="Setting"))

    def show_view(self, view: Look, snapshot: ScreenSnapshot) -> Content:
        assert isinstance(view, Configuration)
        items = [_setting_item(index, entry) for index, entry in enumerate(view.settings)]
        self.query_one("#settings", ItemList).set_items(items, snapshot.received)
        self.show_selected()
        changed = sum(entry.origin != DEFAULT for entry in view.settings)
        text = f" {changed} of {len(view.settings)} were set when the relay was started (●). "
        return Content(text) + Content.styled("A change takes effect at the next start.", "$quiet")

    def describe(self, entry: SettingEntry) -> tuple[object, Content]:
        return entry, _setting_text(entry)


def _setting_item(index: int, entry: SettingEntry) -> Item:
    is_default = entry.origin == DEFAULT
    cells = (
        Cell(" " if is_default else "●", "strong"),
        # Sort in the order of the help, until the user sorts them.
        Cell(entry.name, "" if is_default else "strong", index),
        Cell(entry.text, "muted" if is_default else ""),
        Cell(entry.origin, "muted" if is_default else ""),
    )
    return Item(entry.name, cells, f"{entry.name} {entry.text} {entry.origin}", not is_default, entry)


def _setting_text(entry: SettingEntry) -> Content:
    table, _, key = entry.name.partition(".")
    option = PAIR_OPTIONS.get(table) if key else BY_NAME.get(entry.name)
    parts = [
        Content.assemble((entry.name, "bold"), " = ", (entry.text, "bold $primary")),
        Content.styled(f"from: {entry.origin}", "$quiet"),
    ]
    if option is not None and option.help:
        parts.append(Content(option.help))
    if option is not None and not key:
        flag = f"-{option.flag}, " if option.flag else ""
        ways = f"{flag}--{option.name} · {option.variable} · {option.name} in bwtui.toml"
        parts.append(Content.styled(ways, "$quiet"))
    return Content("\n\n").join(parts)
