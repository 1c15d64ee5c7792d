"""Lists of changes, sampled from a relay or read from a recording, and one change field by field."""

import threading
from collections.abc import Callable, Iterable, Sequence

from rich.console import RenderableType
from textual import events

from bwtui.errors import BwtuiError
from bwtui.model.status import ChangeSample, FieldChange
from bwtui.recording.change import Change, SentMessage, differences, key_text
from bwtui.recording.playback import MICROS, ChangeWindow, Matches, Player, WindowBounds, window
from bwtui.tui.base import figures
from bwtui.tui.base.assessment import Tone
from bwtui.tui.base.keys import key_for, keys_of
from bwtui.tui.base.plain import Content, Group, Table, Text, block
from bwtui.tui.sources.host import RecordingHost
from bwtui.tui.sources.model import Playhead, ScreenSnapshot
from bwtui.tui.widgets.filter_bar import Filter
from bwtui.tui.widgets.grid import Cell, Grid, GridColumn, GridRow
from bwtui.tui.widgets.line import Detail

SAMPLE_COLUMNS = (
    GridColumn("time", "Committed", 12),
    GridColumn("op", "Op", 10),
    GridColumn("table", "Table", 18, drop=1, grow=34),
    GridColumn("key", "Key", 12, grow=40),
    GridColumn("lsn", "LSN", 12, "right", drop=3, grow=17),
    GridColumn("xid", "Xid", 10, "right", drop=2),
    GridColumn("fields", "Changed", 18, drop=5, grow=60),
)
#: Sign and tone of every operation.
OPERATIONS = {
    "insert": ("+", "good"),
    "update": ("~", "warn"),
    "delete": ("-", "bad"),
    "truncate": ("✗", "bad"),
    "snapshot": ("·", "muted"),
    "cleanup": ("·", "muted"),
    "backfill": ("·", "good"),
}
#: Sign, theme colour and words of every mark of a field.
_MARKS = {
    "new": ("+", "success", ""),
    "gone": ("-", "error", ""),
    "changed": ("~", "warning", "changed"),
    "same": (" ", "quiet", ""),
    "unknown before": ("?", "secondary", "unknown before"),
    "unchanged TOAST": ("=", "secondary", "unchanged, not sent (TOAST)"),
}


class ChangeList(Grid):
    """Follows the newest change until the user moves the cursor; End resumes following."""

    def __init__(self, table: str | None = None) -> None:
        columns = [c for c in SAMPLE_COLUMNS if table is None or c.key != "table"]
        super().__init__(columns, id="changes")
        self.add_class("panel")
        self.border_title = "Recent changes" if table else "Changes"
        self.empty_text = "no changes yet"
        self.table = table
        self.filter = Filter()
        self.only: frozenset[str] | None = None
        self.following = True
        self._stands_still = ""
        self._snapshot = ScreenSnapshot()
        self._source: tuple[ChangeSample, ...] = ()
        self._paused_changes: tuple[ChangeSample, ...] = ()
        self._listed: dict[str, ChangeSample] = {}
        #: The existing rows, by the identity of their changes.
        self._row_cache: dict[int, tuple[ChangeSample, GridRow]] = {}
        self._drawn: object = None

    def show(self, snapshot: ScreenSnapshot, stands_still: str = "") -> None:
        """Show the changes of a status snapshot, or only count them if the user has left the newest one.

        ``stands_still`` is the reason why no changes arrive, if there is one.
        """
        self._snapshot, self._stands_still = snapshot, stands_still
        if self._paused_changes and (
            not snapshot.changes or snapshot.changes[-1].sequence < self._paused_changes[-1].sequence
        ):
            # A different engine counts from the start again.
            self.following = True
        self._refill()

    def set_filter(self, new: Filter) -> None:
        """Show only the changes that match."""
        self.filter = new
        self._refill()

    def show_only(self, tables: frozenset[str] | None) -> None:
        """Show only the changes of these tables, or of all."""
        self.only = tables
        self._refill()

    def selected(self) -> ChangeSample | None:
        """Return the change under the cursor."""
        return self._listed.get(self.cursor_key or "")

    @property
    def shown_changes(self) -> Iterable[ChangeSample]:
        """The changes that match the filter, oldest first."""
        return self._listed.values()

    def copy_text(self) -> str:
        """Return the selected change with its fields as text to copy."""
        change = self.selected()
        if change is None:
            return ""
        return _copied(change, change.key, change.lsn, change.fields)

    def on_grid_moved(self, event: Grid.Moved) -> None:
        event.stop()
        following = event.to_end
        if following == self.following:
            return
        self.following = following
        self._paused_changes = self._source
        self._refill()

    def _refill(self) -> None:
        self._source = self._snapshot.changes if self.following else self._paused_changes
        # Compare the change, not its number: a different engine counts from the start again.
        ends = (len(self._source), self._source[-1:])
        drawn = (ends, self.filter.text, self.only, self.following)
        if drawn != self._drawn:
            self._drawn = drawn
            matching = [c for c in self._source if self._passes(c)]
            self._listed = {str(c.sequence): c for c in matching}
            self.empty_text = self._reason_for_nothing()
            self.set_rows(self._rows(matching), tail=self.following)
        self._explain()

    def _rows(self, changes: Sequence[ChangeSample]) -> list[GridRow]:
        """Return the changes' rows; rows that were shown before are reused."""
        before, with_table = self._row_cache, self.table is None
        self._row_cache = {
            id(one): before.get(id(one)) or (one, sample_row(one, with_table)) for one in changes
        }
        return [row for _, row in self._row_cache.values()]

    def _passes(self, change: ChangeSample) -> bool:
        if self.table is not None and change.table != self.table:
            return False
        if self.only is not None and change.table not in self.only:
            return False
        text = f"{change.operation} {change.table} {change.key} {change.lsn} {change.xid}"
        return not self.filter or self.filter.passes(text)

    def _reason_for_nothing(self) -> str:
        if not self._source:
            return "no changes yet"
        if self.only is not None:
            return f"no sampled changes of tables with errors; {key_for('errors_only')} shows all"
        if self.filter:
            return f"no sampled changes match; {key_for('back')} clears the filter"
        return "no sampled changes of this table yet"

    def _explain(self) -> None:
        parts = [self.filter.describe(), "errors only" if self.only is not None else ""]
        if self.following:
            parts.append(self._stands_still or "following")
        else:
            last = self._paused_changes[-1].sequence if self._paused_changes else 0
            new = sum(c.sequence > last and self._passes(c) for c in self._snapshot.changes)
            parts.append(f"+{new} new · {key_for('last')} follows")
        self.set_remark(" · ".join(p for p in parts if p))
        self.set_class(not self.following, "-left")


class ChangeDetail(Detail):
    """Shows one change field by field, before and after; End makes the list follow the newest change."""

    def __init__(self) -> None:
        super().__init__(id="change", title="Change")
        for key in keys_of("last"):
            self._bindings.bind(key, "screen.follow", show=False)

    def show_change(self, change: ChangeSample | None) -> None:
        """Show a change, or that none is selected."""
        if change is None:
            self.show(None, Text("no change selected"))
        else:
            self.show((change, self.app.theme), _sample_content(change, self.app.theme_variables))


def _cells(
    seconds: float, operation: str, table: str, key: str, lsn: str, xid: str, fields: Sequence[FieldChange]
) -> list[Cell]:
    """Return the cells that the rows of both lists have."""
    sign, tone = OPERATIONS.get(operation, (" ", ""))
    return [
        Cell(figures.precise_clock(seconds), "muted"),
        Cell(f"{sign} {operation}", tone),
        Cell(table, "strong"),
        Cell(key or figures.NONE),
        Cell(lsn, "muted"),
        Cell(xid, "muted"),
        Cell(", ".join(field.name for field in fields if field.mark == "changed"), "warn"),
    ]


def sample_row(change: ChangeSample, with_table: bool) -> GridRow:
    """Return a sampled change as a row."""
    cells = _cells(
        change.commit_time,
        change.operation,
        change.table,
        change.key,
        change.lsn,
        str(change.xid),
        change.fields,
    )
    return GridRow(str(change.sequence), tuple(cells if with_table else (*cells[:2], *cells[3:])))


def _sample_content(change: ChangeSample, colours: dict[str, str]) -> RenderableType:
    quiet = colours["quiet"]
    sign, _ = OPERATIONS.get(change.operation, (" ", ""))
    head = Text.assemble(
        (f"{sign} {change.operation} {change.table}", "bold"), ("  key ", quiet), change.key or figures.NONE
    )
    place = Text.assemble(
        ("committed ", quiet), figures.precise_clock(change.commit_time), ("  xid ", quiet), str(change.xid),
        ("  lsn ", quiet), change.lsn, ("  topic ", quiet), change.topic,
    )  # fmt: skip
    return Group(head, place, "", fields_table(change.operation, change.fields, colours))


def fields_table(operation: str, fields: Sequence[FieldChange], colours: dict[str, str]) -> Table:
    """Return a change's columns, before and after, with their marks."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style=f"bold {colours['quiet']}")
    table.add_column("", width=1)
    table.add_column("Field", max_width=24, overflow="fold")
    both = operation == "update"
    if both or operation == "delete":
        table.add_column("Before", overflow="fold")
    if operation != "delete":
        table.add_column("After", overflow="fold")
    if both:
        table.add_column("", overflow="fold")
    for field in fields:
        table.add_row(*_field(field, operation, colours))
    return table


def _field(field: FieldChange, operation: str, colours: dict[str, str]) -> list[Text]:
    sign, colour, words = _MARKS.get(field.mark, (" ", "quiet", field.mark))
    style = colours[colour]
    loud = f"bold {style}" if field.mark == "changed" else style if field.mark == "same" else ""
    cells = [Text(sign, f"bold {style}"), Text(field.name, loud or colours["foreground"])]
    if operation == "update":
        is_available = field.mark not in ("unknown before", "unchanged TOAST")
        before = style if field.mark == "changed" else colours["quiet"]
        cells.append(_value(field.before, colours, before, is_available))
    elif operation == "delete":
        cells.append(_value(field.before, colours, colours["foreground"], True))
    if operation != "delete":
        is_available = field.mark != "unchanged TOAST" or field.after is not None
        cells.append(_value(field.after, colours, loud or colours["foreground"], is_available))
    if operation == "update":
        cells.append(Text(words, style))
    return cells


def _value(value: str | None, colours: dict[str, str], style: str, is_available: bool) -> Text:
    if not is_available:
        return Text(figures.NONE, colours["quiet"])
    if value is None:
        return Text("NULL", f"italic {colours['secondary']}")
    return Text("''" if value == "" else block(value), style)


def _copied(change: ChangeSample | Change, key: str, lsn: str, fields: Sequence[FieldChange]) -> str:
    """Return a change with its fields, before and after, as plain text to copy."""
    head = f"{change.operation} {change.table} key={key} lsn={lsn} xid={change.xid}"
    return "\n".join([head, *(f"{f.name}: {_plain(f.before)} → {_plain(f.after)}" for f in fields)])


def _plain(value: str | None) -> str:
    return "NULL" if value is None else value


class TransactionChanges(ChangeList):
    """Lists the sampled changes of one transaction."""

    def __init__(self, xid: int, lsn: str) -> None:
        super().__init__()
        self._xid, self._lsn = xid, lsn
        self.border_title = "Its sampled changes"

    @property
    def number_sampled(self) -> int:
        """The number of sampled changes, whatever the filter."""
        return sum(self._is_of(change) for change in self._source)

    def _is_of(self, change: ChangeSample) -> bool:
        return (change.xid, change.lsn) == (self._xid, self._lsn)

    def _passes(self, change: ChangeSample) -> bool:
        return self._is_of(change) and super()._passes(change)

    def _reason_for_nothing(self) -> str:
        if not self.number_sampled:
            return "none of its changes was sampled; the relay samples about 50 per second"
        return super()._reason_for_nothing()


WITHOUT = {
    "dropped": "dropped by --on-error log: see the dead letters, and the errors for the reason",
    "superseded": "skipped: the row was deleted before its unchanged large value could be read",
    "unkeyed": "a delete in a table without a key has no tombstone",
    "truncated": "TRUNCATE has no message, unless --truncate-topic is set",
}


class RecordedDetail(Detail):
    """Shows one recorded change: PostgreSQL's data, the messages made from it, and their places."""

    def __init__(self) -> None:
        super().__init__(id="change", title="Change")

    def show_nothing(self, reason: str) -> None:
        """Show why there is no change."""
        self.border_title = "Change"
        self.show(reason, Text(reason))

    def show_change(self, change: Change, fields: tuple[FieldChange, ...] | None = None) -> None:
        """Show a change; ``fields`` are set if more is known about the old row than the change contains."""
        colours = self.app.theme_variables
        value_text = differences(change) if fields is None else fields
        self.border_title = f"Change at position {change.position:,}"
        self.show((change.position, value_text), change_content(change, value_text, colours))


def has_trouble(change: Change) -> bool:
    """Return whether a message was dropped, refused or never confirmed."""
    return change.without == "dropped" or any(m.state in ("refused", "unknown") for m in change.messages)


def change_row(change: Change, with_table: bool) -> GridRow:
    """Return a recorded change as a row."""
    message = change.messages[-1] if change.messages else None
    is_placed = message is not None and message.offset is not None
    place = f"{message.partition}@{message.offset}" if message and is_placed else figures.NONE
    tables = ", ".join(change.tables) or change.table
    xid = str(change.xid) if change.in_transaction else ""
    seconds, fields = change.commit_time / MICROS, differences(change)
    *cells, changed = _cells(
        seconds, change.operation, tables, key_text(change), change.lsn_text, xid, fields
    )
    cells = cells if with_table else [*cells[:2], *cells[3:]]
    return GridRow(str(change.position), (_mark(change), *cells, Cell(place, "muted"), changed))


def _mark(change: Change) -> Cell:
    if change.without == "dropped" or any(m.state == "refused" for m in change.messages):
        return Cell("✗", "bad")
    if any(m.state == "unknown" for m in change.messages):
        return Cell("?", "warn")
    return Cell("»", "muted") if change.is_repeat else Cell("")


def change_content(
    change: Change, fields: tuple[FieldChange, ...], colours: dict[str, str]
) -> RenderableType:
    """Return everything about a change."""
    quiet = colours["quiet"]
    sign, _ = OPERATIONS.get(change.operation, (" ", ""))
    xid = str(change.xid) if change.in_transaction else figures.NONE
    head = Text.assemble(
        (f"{sign} {change.operation} {', '.join(change.tables)}", "bold"),
        ("  key ", quiet), key_text(change) or figures.NONE,
    )  # fmt: skip
    place = Text.assemble(
        ("committed ", quiet), figures.precise_clock(change.commit_time / MICROS),
        ("  recorded ", quiet), figures.precise_clock(change.received / MICROS),
        ("  lsn ", quiet), change.lsn_text, ("  xid ", quiet), xid,
        ("  change " if change.in_transaction else "  row ", quiet), f"{change.ordinal:,}",
        (" of its transaction" if change.in_transaction else " of its table", quiet),
        ("  pass ", quiet), str(change.pass_number),
    )  # fmt: skip
    lines: list[RenderableType] = [head, place]
    if change.is_repeat:
        lines.append(Text("» repeated: an earlier pass already recorded this change", colours["secondary"]))
    lines += [_message(message, colours) for message in change.messages]
    if not change.messages:
        reason = WITHOUT.get(change.without or "", change.without or "no reason recorded")
        style = colours["error"] if change.without == "dropped" else colours["warning"]
        lines.append(Text(f"no message: {reason}", style))
    if change.filled:
        names = ", ".join(change.filled)
        lines.append(
            Text(f"filled in by the relay, because PostgreSQL did not send it: {names}", colours["secondary"])
        )
    operation = "delete" if change.after is None else change.operation
    return Group(*lines, *(("", fields_table(operation, fields, colours)) if fields else ()))


_STATES: dict[str, tuple[str, str, Callable[[SentMessage], str]]] = {
    "acknowledged": ("✓", "success", lambda m: f"partition {m.partition} offset {m.offset}"),
    "refused": ("✗", "error", lambda m: "rejected by Kafka, and dropped by --on-error log"),
    "unknown": (
        "?",
        "warning",
        lambda m: "no delivery report before the relay ended: it may be in the topic",
    ),
    "unsent": ("·", "quiet", lambda m: "not sent: recorded without Kafka"),
}
#: The tone of each colour in `_STATES`.
_TONES: dict[str, Tone] = {"success": "good", "error": "bad", "warning": "warn", "quiet": "muted"}


def delivery_words(message: SentMessage) -> tuple[Tone, str]:
    """Return the delivery state of a message, and whether it is good or bad."""
    _, colour, where = _STATES[message.state]
    return _TONES[colour], where(message)


def _message(message: SentMessage, colours: dict[str, str]) -> Text:
    quiet = colours["quiet"]
    sign, colour, where = _STATES[message.state]
    kind = "tombstone" if message.value is None else figures.size(len(message.value))
    parts: list[str | tuple[str, str]] = [
        (f"{sign} ", colours[colour]), (f"{message.topic} ", "bold"), (where(message), colours[colour]),
        (f"  {kind}", quiet),
    ]  # fmt: skip
    for name, number in (("key schema", message.key_schema_id), ("value schema", message.value_schema_id)):
        if number is not None:
            parts += [(f"  {name} ", quiet), str(number)]
    return Text.assemble(*parts)


COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("time", "Committed", 12),
    GridColumn("op", "Op", 10),
    GridColumn("table", "Table", 16, drop=1, grow=34),
    GridColumn("key", "Key", 12, grow=40),
    GridColumn("lsn", "LSN", 11, "right", drop=4, grow=17),
    GridColumn("xid", "Xid", 8, "right", drop=2),
    GridColumn("place", "Part@offset", 12, "right", drop=3, grow=18),
    GridColumn("fields", "Changed", 14, drop=5, grow=60),
)
#: The key of the row for the beginning, before the first change.
BEGINNING = "beginning"
#: Minimum rows that stay visible on both sides of the cursor, if there are any.
_CONTEXT = 3
#: Rows that one turn of the mouse wheel moves by.
_WHEEL = 3


def no_change_yet() -> str:
    """Return why nothing is listed at the beginning of a recording."""
    return f"no change before this position; {key_for('step(1)')} goes to the first change"


class RecordedChanges(Grid):
    """Lists the changes around the position, or those that match a query; the cursor is the position.

    Changes after the position are painted as not having happened yet. Only a window of the recording is in
    memory.
    """

    def __init__(
        self,
        recording: RecordingHost,
        title: str,
        bounds: WindowBounds | None = None,
        table: str | None = None,
    ) -> None:
        columns = [c for c in COLUMNS if table is None or c.key != "table"]
        super().__init__(columns, id="changes")
        self.add_class("panel", "recorded")
        self.border_title = Content(title)
        self.empty_text = "reading…"
        self.recording = recording
        self.table = table
        self._bounds = bounds
        self._query: Matches | None = None
        self._query_text = ""
        self.errors_only = False
        self.window: ChangeWindow | None = None
        self._head: Playhead | None = None
        self._commands = 0
        self._search: threading.Event | None = None
        self._read = (0, 0)
        #: The position that the window was read for.
        self._read_for = -1
        #: The search was cancelled or failed; the next one starts when the user moves, or changes the query.
        self._is_stopped = False
        self._failure: BwtuiError | None = None

    # Methods for the owner.

    def show(self, snapshot: ScreenSnapshot) -> None:
        """Follow the recording's position."""
        head = snapshot.playhead
        if head is None or head.commands < self._commands:
            return
        self._head = head
        self._place()
        self._load()
        self._explain()

    def set_query(self, text: str, query: Matches | None) -> None:
        """Show only the changes that match a query, or everything."""
        self._query_text, self._query = text, query
        self._ask_again()

    @property
    def search_scope(self) -> tuple[WindowBounds, Matches | None]:
        """The listed part of the recording, and the test of its changes; None for all."""
        return self._range, self._matches()

    @property
    def columns_at_hand(self) -> dict[str, None]:
        """The distinct columns of the tables with changes in memory."""
        relations = {c.relation for c in self.window.changes} if self.window is not None else ()
        return dict.fromkeys(column.name for relation in relations for column in relation.columns)

    @property
    def is_filtered(self) -> bool:
        return self._query is not None

    def toggle_errors_only(self) -> None:
        """Show only changes with a message that was dropped, refused or never confirmed; or all again."""
        self.errors_only = not self.errors_only
        self._ask_again()

    def stop_searching(self) -> bool:
        """Cancel the running search; return whether there was one."""
        if self._search is None or self._search.is_set() or not self._matches():
            return False
        self._search.set()
        self._is_stopped = True
        return True

    def selected(self) -> Change | None:
        """Return the change under the cursor."""
        if self.window is None or self.cursor_key in (None, BEGINNING):
            return None
        return self.window.changes[self._cursor - self._first]

    def copy_text(self) -> str:
        """Return the selected change with its fields as text to copy."""
        change = self.selected()
        if change is None:
            return ""
        return _copied(change, key_text(change), change.lsn_text, differences(change))

    @property
    def why_none(self) -> str:
        """Why no change is selected, for the detail panel."""
        if self.window is None or not self.rows:
            return self._reason_for_nothing()
        if self._matches() is not None:
            return f"no matching change before this position; {key_for('down')} goes to the first one"
        return no_change_yet()

    # Moving: the list sends commands to the player, and follows its position.

    def _tell_moved(self, *, to_end: bool = False) -> None:
        """Move the recording to the row at once: an older status snapshot would move the cursor back."""
        change = self.selected()
        self._go(self._range.start if change is None else change.position + 1)

    def action_first(self, key: str = "") -> None:
        start = self._range.start
        self._go(start if self._bounds is None else start + 1)

    def action_last(self, key: str = "") -> None:
        self._go(self._range.stop)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp | None = None) -> None:
        self._turn(event, -_WHEEL)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown | None = None) -> None:
        self._turn(event, _WHEEL)

    def on_unmount(self) -> None:
        if self._search is not None:
            self._search.set()

    def _step(self, rows: int) -> None:
        """Move within a transaction or the matches; otherwise make the player step, and show that at once."""
        if self._bounds is not None or self._matches() is not None:
            super()._step(rows)
        else:
            # Step relative to the player, not to the row under the cursor, which lags while keys are repeated
            # quickly.
            self.move_to(self._cursor + rows)
            self._is_stopped = False
            self._commands = self.recording.drive(lambda player: player.step(rows))

    def _turn(self, event: events.MouseEvent | None, rows: int) -> None:
        if event is not None:
            event.prevent_default()
            event.stop()
        self._step(rows)

    def _go(self, position: int) -> None:
        def command(player: Player) -> None:
            player.pause()
            player.seek(position)

        self._is_stopped = False
        self._commands = self.recording.drive(command)

    # Reading.

    @property
    def _range(self) -> WindowBounds:
        return self._bounds or WindowBounds(0, self._head.length if self._head else 0)

    @property
    def _is_searching(self) -> bool:
        return self._search is not None and not self._search.is_set()

    def _matches(self) -> Matches | None:
        tests: list[Matches] = []
        if self.table is not None:
            table = self.table
            tests.append(lambda change: table in change.tables)
        if self.errors_only:
            tests.append(has_trouble)
        if self._query is not None:
            tests.append(self._query)
        if len(tests) < 2:
            return tests[0] if tests else None
        return lambda change: all(test(change) for test in tests)

    def _ask_again(self) -> None:
        if self._search is not None:
            self._search.set()
        self.window, self._is_stopped = None, False
        self._load()
        self._explain()

    def _load(self) -> None:
        head, visible = self._head, self.window
        if head is None or self._is_stopped or self._is_searching:
            return
        position = self._clamped(head.position)
        if visible is not None and (position == self._read_for or visible.covers(position, 2 * self._page)):
            # A window of large rows may never cover enough, so read only once for each position.
            return
        self._read_for = position
        self._search, self._read = threading.Event(), (0, 0)
        self.run_worker(self._fetch(position, self._search), exit_on_error=True)

    async def _fetch(self, position: int, search: threading.Event) -> None:
        bounds, matches = self._range, self._matches()

        def progress(done: int, total: int) -> None:
            if search is self._search:
                self._read = (done, total)

        try:
            result = await self.recording.source.search(
                lambda view: window(view, position, bounds, matches, search.is_set, progress)
            )
        except BwtuiError as error:
            self._failure, self._is_stopped = error, True
            result = self.window or ChangeWindow(bounds=bounds)
        if search is not self._search:
            # A newer request has replaced this one.
            return
        self._search = None
        self.window = result
        self._fill()
        self._load()
        self._explain()

    # Showing.

    @property
    def _first(self) -> int:
        """The number of rows before the first change."""
        return int(bool(self.rows) and self.rows[0].key == BEGINNING)

    def _clamped(self, position: int) -> int:
        return min(max(position, self._range.start), self._range.stop)

    def _fill(self) -> None:
        assert self.window is not None
        changes = self.window.changes
        rows = [change_row(change, self.table is None) for change in changes]
        if self._bounds is None and self.window.low <= 0 and changes:
            cells = [Cell("") for _ in self.columns]
            cells[1], cells[2] = Cell("", "muted"), Cell("beginning", "muted")
            rows.insert(0, GridRow(BEGINNING, tuple(cells)))
        line = self._cursor - self.scroll_offset.y
        self.set_rows(rows)
        self.virtual_size = self.virtual_size.with_height(len(rows) + 1)
        self._place(line)

    def _say_why_empty(self) -> None:
        text = self._reason_for_nothing()
        if text != self.empty_text:
            self.empty_text = text
            self.refresh()

    def _place(self, line: int | None = None) -> None:
        """Put the cursor on the last change at the position, with some rows around it."""
        if self.window is None or self._head is None or not self.rows:
            return
        position = self._head.position
        happened = sum(change.position < position for change in self.window.changes)
        cursor = happened + self._first - 1
        if self.fade_behind != cursor:
            self.fade_behind = cursor
            self.refresh()
        if line is not None:
            self._scroll(cursor - line)
        self.move_to(cursor)
        context = min(_CONTEXT, self._page // 3)
        top = self.scroll_offset.y
        self._scroll(min(max(top, self._cursor - self._page + 1 + context), max(self._cursor - context, 0)))

    def _scroll(self, top: int) -> None:
        if top != self.scroll_offset.y:
            self.scroll_to(y=top, animate=False, immediate=True, force=True)

    def _reason_for_nothing(self) -> str:
        if self._failure is not None:
            return self._failure.message
        if self._is_stopped:
            return f"the search was stopped; {key_for('filter')} or {key_for('errors_only')} searches again"
        if self.window is None or self._is_searching:
            return "searching…" if self._matches() is not None else "reading…"
        if self._query is not None:
            return f"no change matches the query; {key_for('back')} shows all"
        if self.errors_only:
            return f"no message was dropped, rejected or left unconfirmed; {key_for('errors_only')} shows all"
        return "the recording holds no changes" if self.table is None else "no changes of this table"

    def _explain(self) -> None:
        parts = [
            f"/{self._query_text}" if self._query_text else "",
            "errors only" if self.errors_only else "",
        ]
        done, total = self._read
        if self._is_searching and done and self._matches() is not None:
            if self.window is None:
                # The search takes longer than a moment: the rows of the previous query would be misleading.
                self.set_rows([])
            parts.append(f"searching, {figures.percent(done / max(total, 1))} read · {key_for('back')} stops")
        elif self._is_stopped and self._failure is None:
            parts.append("search stopped")
        self.set_remark(" · ".join(p for p in parts if p))
        self._say_why_empty()
