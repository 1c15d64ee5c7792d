"""The changes of a recording: a list in which the cursor is the recording's position."""

import threading

from textual import events

from bwtui.errors import BwtuiError
from bwtui.recording.change import Change
from bwtui.recording.fields import differences, key_text
from bwtui.recording.reading.player import Player
from bwtui.recording.reading.window import ChangeWindow, Matches, WindowBounds, window
from bwtui.tui import figures
from bwtui.tui.host import RecordingHost
from bwtui.tui.keys import key_for
from bwtui.tui.plain import Content
from bwtui.tui.state import Playhead, ScreenSnapshot
from bwtui.tui.widgets.changes import field_lines
from bwtui.tui.widgets.columns import Cell, GridColumn, GridRow
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.recording.change import change_row, has_trouble

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
        self._given_up = False
        self._failure: BwtuiError | None = None

    # Methods for the owner.

    def show(self, picture: ScreenSnapshot) -> None:
        """Follow the recording's position."""
        head = picture.playhead
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
    def asked(self) -> tuple[WindowBounds, Matches | None]:
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
        self._given_up = True
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
        head = (
            f"{change.operation} {change.table} key={key_text(change)} lsn={change.lsn_text} xid={change.xid}"
        )
        return "\n".join([head, *field_lines(differences(change))])

    @property
    def why_none(self) -> str:
        """Why no change is selected, for the detail panel."""
        if self.window is None or not self.rows:
            return self._reason_for_nothing()
        if self._matches() is not None:
            return f"none of them has happened yet; {key_for('down')} goes to the first one"
        return f"nothing has happened yet; {key_for('step(1)')} goes to the first change"

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
            self._given_up = False
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

        self._given_up = False
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
        self.window, self._given_up = None, False
        self._load()
        self._explain()

    def _load(self) -> None:
        head, shown = self._head, self.window
        if head is None or self._given_up or self._is_searching:
            return
        position = self._clamped(head.position)
        if shown is not None and (position == self._read_for or shown.covers(position, 2 * self._page)):
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
            self._failure, self._given_up = error, True
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
        if self._given_up:
            return f"the search was stopped; {key_for('filter')} or {key_for('errors_only')} searches again"
        if self.window is None or self._is_searching:
            return "searching…" if self._matches() is not None else "reading…"
        if self._query is not None:
            return f"no change matches the query; {key_for('back')} shows all"
        if self.errors_only:
            return f"no message was dropped, refused or left unconfirmed; {key_for('errors_only')} shows all"
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
        elif self._given_up and self._failure is None:
            parts.append("search stopped")
        self.set_remark(" · ".join(p for p in parts if p))
        self._say_why_empty()
