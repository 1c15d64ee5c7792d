"""Recent errors and warnings, and the dead letters: rows that were dropped, and how to send them again."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.containers import Container
from textual.widget import Widget
from textual.worker import Worker

from bwtui.errors import BwtuiError
from bwtui.file_errors import file_failed
from bwtui.model.backfill import BackfillStatus
from bwtui.model.service_views import DeadLetterTopic, LookName
from bwtui.model.status import ErrorEntry
from bwtui.relay.dead_letters.letters import (
    DeadLetterAction,
    DeadLetterActionLog,
    DeadLetterState,
    dead_letter_state,
    settled,
)
from bwtui.sink.dead_letters import DeadLetter, DeadLetterFile, DeadLetterRows, DeadLetterWriter, Row
from bwtui.state_folder import state_folder
from bwtui.tui.base import assessment, figures
from bwtui.tui.base.plain import Content, Group, Text, block, fact, with_hint
from bwtui.tui.screens.base import DetailedList, RelayScreen
from bwtui.tui.screens.dialogs import AskScreen
from bwtui.tui.sources.host import Closer, ScreenHost, ScreenSelection
from bwtui.tui.sources.model import ScreenSnapshot
from bwtui.tui.widgets.grid import Cell, Grid, GridColumn, Item, ItemList, SortedItemList
from bwtui.tui.widgets.line import Detail, Line

if TYPE_CHECKING:
    from bwtui.relay.dead_letters.retry import RetryPlan

COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("time", "Last", 8),
    GridColumn("count", "Count", 6, "right"),
    GridColumn("kind", "Kind", 14, drop=1, grow=22),
    GridColumn("table", "Table", 18, drop=2, grow=30),
    GridColumn("message", "Message", 28, grow=200),
)


class ErrorsScreen(DetailedList):
    """Shows the list, and the selected message in full, with its hint."""

    mode: ClassVar[str] = "errors"
    own_keys: ClassVar[frozenset[str]] = frozenset(("open_details('letters')",))
    nothing: ClassVar[str] = "✓ no error selected"

    def body(self) -> Iterable[Widget]:
        listing = ItemList(
            COLUMNS,
            ("time", "count", "kind", "table"),
            id="errors",
            noun="errors and warnings",
            title="Errors",
            descending=True,
        )
        return (listing, Detail(id="error", title="Error"))

    def paint(self, snapshot: ScreenSnapshot) -> None:
        entries = snapshot.status.errors if snapshot.status else ()
        self.query_one(ItemList).set_items([_item(entry) for entry in entries], snapshot.received)
        self.show_selected()

    def row_text(self) -> str:
        entry: ErrorEntry | None = self.selected_entry()
        if entry is None:
            return ""
        return entry.message + (f"\nhint: {entry.hint}" if entry.hint else "")

    def describe(self, entry: ErrorEntry) -> tuple[object, Content]:
        return entry, _text(entry)


def _item(entry: ErrorEntry) -> Item:
    warning = assessment.is_warning(entry) or entry.is_over
    tone: assessment.Tone = "muted" if entry.is_over else "warn" if warning else "bad"
    cells = (
        Cell("✓" if entry.is_over else "▲" if warning else "✗", tone),
        Cell(figures.clock(entry.time), "muted", entry.time),
        Cell(figures.count(entry.count), "", entry.count),
        Cell(entry.kind, tone),
        Cell(entry.table or figures.NONE, "", entry.table or ""),
        Cell(f"{entry.message}; {_lasted(entry)}" if entry.is_over else entry.message),
    )
    # Time and count grow when the same error repeats.
    key = f"{entry.kind}\0{entry.table}\0{entry.message}"
    return Item(key, cells, f"{entry.kind} {entry.table} {entry.message}", not warning, entry)


def _lasted(entry: ErrorEntry) -> str:
    """Return when a past error began and ended, or since when a present one lasts."""
    if entry.since is None:
        return f"last {figures.clock(entry.time)}"
    if entry.until is None:
        return f"since {figures.clock(entry.since)}"
    lasted = figures.duration(entry.until - entry.since)
    return f"resolved, {figures.clock(entry.since)} to {figures.clock(entry.until)} ({lasted})"


def _text(entry: ErrorEntry) -> Content:
    tone = "$quiet" if entry.is_over else "$warning" if assessment.is_warning(entry) else "$error"
    times = "once" if entry.count == 1 else f"{entry.count:,} times in a row"
    where = f"  table {entry.table}" if entry.table else ""
    parts = [
        Content.styled(entry.message, f"bold {tone}"),
        Content.assemble(("→ ", "bold"), (entry.hint or "no hint", "" if entry.hint else "$quiet")),
        Content.styled(f"{entry.kind}{where}  {_lasted(entry)}  {times}", "$quiet"),
    ]
    return Content("\n\n").join(parts)


LETTER_COLUMNS = (
    GridColumn("time", "Time", 16),
    GridColumn("table", "Table", 14, grow=34),
    GridColumn("key", "Key", 12, grow=40),
    GridColumn("reason", "Reason", 16, grow=90),
    GridColumn("operation", "Change", 8, drop=1),
    GridColumn("lsn", "LSN", 14, drop=2, grow=22),
    GridColumn("xid", "Xid", 9, "right", drop=3),
)
#: Where rows come from that belong to no transaction.
_PLACES = {"snapshot": "a row of the snapshot", "backfill": "a backfilled row"}
_HOW = (
    "The relay reads each row by its key and sends it in the order of its stream: a row that no longer "
    "exists becomes a tombstone, and a row of which the stream has already sent a newer state is skipped. "
    "A row that is rejected again gets a new dead letter. Fix the reasons of the dead letters first."
)


class DeadLettersScreen(RelayScreen):
    """Shows the list of dead letters, and the selected one in full."""

    mode: ClassVar[str] = "errors"
    required_view: ClassVar[LookName | None] = "letters"
    own_keys: ClassVar[frozenset[str]] = frozenset(("send_all_again",))
    sends_again: ClassVar[bool] = True

    def __init__(self, host: ScreenHost) -> None:
        super().__init__(host)
        self._file = DeadLetterFile(DeadLetterWriter(state_folder(host.model.name)).path, self._key_columns)
        sortable = ("time", "table", "reason", "operation", "xid")
        self._listing = SortedItemList(LETTER_COLUMNS, sortable, id="letters", noun="dead letters")
        self._letters: dict[str, DeadLetter] = {}
        #: The recorded actions on dead letters, and the size of their file when it was last read.
        self._handled = DeadLetterActionLog(host.model.name)
        self._notes: Mapping[str, Sequence[DeadLetterAction]] = {}
        self._noted = 0
        self._failure = ""
        self._is_read = False
        #: The tasks that had ended before the file was last read, by id and time of request.
        self._ended: frozenset[tuple[str, float]] = frozenset()
        self._reading: Worker[None] | None = None
        #: The offset in the file up to which dead letters are listed, and the dead letter in the detail
        #: panel.
        self._listed = -1
        self._shown: tuple[DeadLetter, str, DeadLetterState] | None = None

    @classmethod
    def of(cls, host: ScreenHost, selection: ScreenSelection) -> Closer:
        """Return the screen, or why there is none: a recording has no dead letters."""
        if host.model.recorded:
            status = host.model.snapshot.status
            dropped = sum(table.dead_letters for table in status.tables.values()) if status else 0
            return (
                f"A recording contains no dead letters; {dropped:,} rows were dropped up to here, "
                "and are in dead-letters.jsonl in the relay's state folder"
            )
        return cls(host)

    def body(self) -> Iterable[Widget]:
        letters = self._listing
        letters.border_title = Content("Dead letters")
        letters.descending = True
        letters.set_sort_mark("time", True)
        pair = Container(
            letters, Detail(id="letter", title="Dead letter"), id="letters-pair", classes="folder"
        )
        return (Line(id="said"), pair)

    def crumbs(self) -> tuple[str, ...]:
        return ("Errors", "Dead letters")

    def view_subjects(self) -> tuple[str, ...]:
        """Return the identity of the selected dead letter, for its place in the dead-letter topic."""
        letter = self._selected()
        return () if letter is None else (letter.identity,)

    def selected_table(self) -> str | None:
        letter = self._selected()
        return None if letter is None else letter.table

    def row_text(self) -> str:
        letter = self._selected()
        try:
            return "" if letter is None else self._file.line(letter)
        except OSError as error:
            self._fail(error)
            return ""

    # -- reading -------------------------------------------------------------------------------------------

    def _key_columns(self, table: str) -> Sequence[str]:
        status = self.host.model.snapshot.status
        table_status = status.tables.get(table) if status else None
        return table_status.key_columns if table_status else ()

    def paint(self, snapshot: ScreenSnapshot) -> None:
        """Show the dead letters, and read their files again if these have changed."""
        status = snapshot.status
        if status is not None and (self._reading is None or self._reading.is_finished):
            ended = frozenset((task.id, task.requested) for task in status.backfills if task.is_over)
            is_behind = not self._is_read or bool(ended - self._ended)
            try:
                if is_behind or self._file.is_changed() or self._handled.size() != self._noted:
                    read = partial(self._read, ended)
                    self._reading = self.run_worker(read, thread=True, exit_on_error=True)
            except OSError as error:
                self._fail(error)
        self._show_all(snapshot)

    def _read(self, ended: frozenset[tuple[str, float]]) -> None:
        """Read the files in a thread, then show the result; the tasks ``ended`` before that."""
        try:
            self._file.read()
            self._failure, self._ended = "", ended
        except OSError as error:
            self._fail(error)
        self._noted = self._handled.size()
        try:
            self._notes = self._handled.read()
        except BwtuiError as error:
            self._failure = with_hint(error)
        self._is_read = True
        self.app.call_from_thread(self.refresh_picture)

    def _fail(self, error: OSError) -> None:
        self._failure = with_hint(file_failed("the dead letters can't be read", error, BwtuiError))

    # -- showing -------------------------------------------------------------------------------------------

    def _show_all(self, snapshot: ScreenSnapshot) -> None:
        listing, file = self._listing, self._file
        listing.say_why_empty(self._why_none(snapshot))
        if file.end != self._listed or not file.letters:
            self._listed = file.end
            self._letters = {str(letter.place): letter for letter in tuple(file.letters)}
            listing.set_items([_letter_item(letter) for letter in self._letters.values()], snapshot.received)
        self.query_one("#said", Line).put(self._sentence(snapshot), layout=True)
        self._show_selected()

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self._show_selected()

    def _why_none(self, snapshot: ScreenSnapshot) -> str:
        if self._failure:
            return "they can't be read"
        if not self._is_read:
            return "reading…"
        if self._file.unreadable:
            return "the file contains no dead letters"
        return "no row was dropped; with --on-error log, dropped rows are listed here"

    def _sentence(self, snapshot: ScreenSnapshot) -> Content:
        if self._failure:
            return Content.styled(f" ✗ {self._failure}", "$error")
        file = self._file
        number = len(file.letters)
        count = "1 dead letter" if number == 1 else f"{number:,} dead letters"
        parts: list[str | tuple[str, str]] = [(f" {count}", "bold"), (f" in {file.path}", "$quiet")]
        if file.unreadable:
            parts.append((f" · ▲ {file.unreadable:,} lines are not dead letters", "$warning"))
        if file.cut:
            parts.append((f" · ▲ {file.cut:,} older ones are not listed", "$warning"))
        if file.skipped:
            parts.append(
                (f" · ▲ the first {figures.size(file.skipped)} of the file were skipped", "$warning")
            )
        return Content("\n").join(
            [line for line in (Content.assemble(*parts), self._topic(snapshot)) if line.plain]
        )

    def _topic(self, snapshot: ScreenSnapshot) -> Content:
        """Return what the dead-letter topic holds, or why that is unknown, or nothing without a topic."""
        view = snapshot.view(DeadLetterTopic)
        if view.failure:
            return Content.styled(f" ✗ {view.failure}", "$error")
        if not view.topic or not view.time:
            return Content("")
        foreign = f", {view.foreign:,} of them not dead letters" if view.foreign else ""
        left_out = f"; {view.left_out:,} older records skipped" if view.left_out else ""
        text = f" {view.records:,} records in topic {view.topic}{foreign}{left_out}"
        return Content.styled(text, "$warning" if view.foreign else "$quiet")

    def _selected(self) -> DeadLetter | None:
        return self._letters.get(self._listing.cursor_key or "")

    def _show_selected(self) -> None:
        detail, letter = self.query_one("#letter", Detail), self._selected()
        if letter is None:
            self._shown = None
            detail.show(None, Content.styled("no dead letter selected", "$quiet"))
            return
        places, outcome = self._places(letter), self._state_of(letter)
        if (letter, places, outcome) != self._shown:
            self._shown = (letter, places, outcome)
            key = (letter.place, places, outcome.state, outcome.detail)
            detail.show(key, _letter_text(letter, self._rows(letter), places, outcome))

    def _state_of(self, letter: DeadLetter) -> DeadLetterState:
        """Return the state of a dead letter; look up the outcome of a retry if it is not recorded yet."""
        notes, status = self._notes.get(letter.id, ()), self.host.model.snapshot.status
        tasks = {task.id: self._as_read(task) for task in status.backfills} if status is not None else None
        if notes and tasks:
            notes = (*notes, *settled([letter], {letter.id: notes}, tasks, self._file))
        return dead_letter_state(notes, tasks)

    def _as_read(self, task: BackfillStatus) -> BackfillStatus:
        """Return a task as still running until the file, with all dead letters of its rows, has been read."""
        is_read = not task.is_over or (task.id, task.requested) in self._ended
        return task if is_read else replace(task, state="running")

    def _places(self, letter: DeadLetter) -> str:
        """Return the dead letter's places in the dead-letter topic, as far as known; "" without a topic."""
        view = self.host.model.snapshot.view(DeadLetterTopic)
        if not view.topic or view.failure or not view.time:
            return ""
        matching = [one for one in view.places if one.identity == letter.identity]
        if matching:
            places = ", ".join(f"{one.partition}@{one.offset}" for one in matching)
            older = f", and {matching[0].before:,} older ones" if matching[0].before else ""
            return f"{view.topic}, partition@offset {places}{older}"
        return f"not found in {view.topic} among {view.records:,} records"

    def _rows(self, letter: DeadLetter) -> DeadLetterRows | None:
        try:
            return self._file.rows(letter)
        except OSError:
            return None

    # -- sending again -------------------------------------------------------------------------------------

    def action_send_again(self) -> None:
        """Ask whether the relay shall send the selected dead letter's row again."""
        letter = self._selected()
        if letter is None:
            self._warn("No dead letter is selected")
        else:
            self._propose([letter])

    def action_send_all_again(self) -> None:
        """Ask whether the relay shall send the rows of all listed dead letters that are open."""
        listed = [self._letters[row.key] for row in self._listing.rows]
        letters = [letter for letter in listed if self._state_of(letter).state == "open"]
        if letters:
            self._propose(letters)
        else:
            self._warn("No dead letter is open" if listed else "There are no dead letters")

    def _propose(self, letters: Sequence[DeadLetter]) -> None:
        from bwtui.relay.dead_letters.retry import plan

        retry = plan(letters)

        def send(go: bool | None) -> None:
            if go:
                # A worker of the screen would be cancelled with it, before the last request.
                self.app.run_worker(self._request(retry), exit_on_error=True)

        many = f"Send the rows of {len(letters):,} dead letters again"
        title = "Send the row again" if len(letters) == 1 else many
        do = "Send" if retry.requests else ""
        self.app.push_screen(AskScreen(title, _proposal(retry, self.app.theme_variables), do), send)

    async def _request(self, retry: "RetryPlan") -> None:
        """Request the rows from the relay, each table separately: one that fails leaves the others."""
        from bwtui.relay.dead_letters.retry import submit

        for one in retry.requests:
            try:
                task, is_running = await asyncio.to_thread(submit, self.host.model.name, one)
            except BwtuiError as error:
                self._warn(with_hint(error))
            else:
                waits = "" if is_running else "; it waits for the relay's next start"
                self.notify(f"Requested from the relay as {task.id}{waits}", timeout=6)


def _proposal(plan: "RetryPlan", colours: dict[str, str]) -> Group:
    """Return what the relay would send, and which dead letters it can't."""
    lines: list[Text | str] = []
    if plan.requests:
        number = sum(len(one.keys) for one in plan.requests)
        rows = "1 row, in its" if number == 1 else f"{number:,} rows, in their"
        lines += [Text(f"{rows} current state", "bold"), "", Text(_HOW, colours["quiet"])]
    else:
        lines.append(Text("No row can be sent again by its key", f"bold {colours['warning']}"))
    if plan.refused:
        lines += ["", Text("Not included:" if plan.requests else "Why:", "bold")]
        lines += [
            Text(f"▲ {len(letters):,}: {why}" if len(letters) > 1 else f"▲ {why}", colours["warning"])
            for why, letters in plan.refused.items()
        ]
    return Group(*lines)


def _letter_key(letter: DeadLetter) -> str:
    return ", ".join(f"{name}={'NULL' if value is None else value}" for name, value in letter.key)


def _letter_item(letter: DeadLetter) -> Item:
    key = _letter_key(letter)
    cells = (
        Cell(
            figures.moment(letter.time)[:16] if letter.time else "unknown",
            "muted",
            (letter.time, letter.place),
        ),
        Cell(letter.table),
        Cell(key or "unknown", "strong" if key else "muted"),
        Cell(letter.error, "bad"),
        Cell(letter.operation),
        Cell(f"{letter.commit_lsn} #{letter.ordinal}", "muted"),
        Cell(str(letter.xid) if letter.xid else figures.NONE, "muted", letter.xid),
    )
    change = f"{letter.operation} {letter.commit_lsn} {letter.xid}"
    search = f"{letter.table} {key} {letter.error} {letter.reason} {change}"
    return Item(str(letter.place), cells, search, True)


def _letter_text(
    letter: DeadLetter, rows: DeadLetterRows | None, places: str, outcome: DeadLetterState
) -> Content:
    place = _PLACES.get(letter.operation, f"transaction {letter.xid}")
    lines = [
        Content.styled(letter.error, "bold $error"),
        Content.styled(f"{letter.reason}", "$quiet"),
        Content(""),
        _fact("change", f"{letter.operation} on {letter.table}"),
        _fact("key", _letter_key(letter) or "unknown: the table is not captured in this run, or has no key"),
        _fact("place", f"{letter.commit_lsn} #{letter.ordinal}, {place}"),
        _fact("topic", letter.topic),
        _fact("dropped", f"{figures.moment(letter.time) if letter.time else 'unknown'}, id {letter.id}"),
    ]
    if outcome.notes:
        lines.append(
            _fact("state", f"{outcome.state}: {outcome.detail}" if outcome.detail else outcome.state)
        )
    if places:
        lines.append(_fact("record", places))
    if rows is None:
        lines += [
            Content(""),
            Content.styled(f"the row ({figures.size(letter.size)}) is not available", "$warning"),
        ]
    else:
        lines += _columns("row to send", rows.after) + _columns("row before the change", rows.before)
        if rows.after is None and rows.before is None:
            lines += [Content(""), Content.styled("the dead letter has no row", "$warning")]
    return Content("\n").join(lines)


_fact = partial(fact, width=9)


def _columns(title: str, row: Row | None) -> list[Content]:
    if row is None:
        return []
    width = min(max(map(len, row), default=0), 24)
    lines = [Content(""), Content.styled(title, "bold")]
    for name, value in row.items():
        shown = ("NULL", "$quiet") if value is None else (block(value, width + 4), "")
        lines.append(Content.assemble("  ", (f"{name:<{width}}  ", "$primary"), shown))
    return lines
