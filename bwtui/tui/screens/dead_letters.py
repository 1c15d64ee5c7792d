"""The dead letters: rows that were dropped, each with its reason and columns, and how to send them again."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from textual.containers import Container
from textual.widget import Widget
from textual.worker import Worker

from bwtui.errors import BwtuiError
from bwtui.file_errors import file_failed
from bwtui.model.service_views import DeadLetterTopic, LookName
from bwtui.relay.dead_letters.action_log import DeadLetterAction, DeadLetterActionLog
from bwtui.relay.dead_letters.letter_state import DeadLetterState, settled, standing
from bwtui.sink.dead_letter_file import DeadLetter, DeadLetterFile, DeadLetterRows, Row
from bwtui.sink.dead_letter_writer import DeadLetterWriter
from bwtui.sink.requeue_sql import RequeuePlan, requeue_plan
from bwtui.state_folder import state_folder
from bwtui.tui import figures
from bwtui.tui.host import Closer, ScreenHost, ScreenSelection
from bwtui.tui.plain import Content, Group, Text, block, with_hint
from bwtui.tui.screens.audit.forms import AskScreen
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.columns import Cell, GridColumn
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.item_list import Item, SortedItemList
from bwtui.tui.widgets.line import Line

COLUMNS = (
    GridColumn("time", "Time", 16),
    GridColumn("table", "Table", 14, grow=34),
    GridColumn("key", "Key", 12, grow=40),
    GridColumn("reason", "Reason", 16, grow=90),
    GridColumn("operation", "Change", 8, drop=1),
    GridColumn("lsn", "LSN", 14, drop=2, grow=22),
    GridColumn("xid", "Xid", 9, "right", drop=3),
)
#: Maximum statements shown; all of them are copied.
_STATEMENTS = 5
#: Where rows come from that belong to no transaction.
_PLACES = {"snapshot": "a row of the snapshot", "backfill": "a row put into the stream"}
_SAFE = (
    "Sent again from here, a row could stand behind a newer one of its key. These statements change no "
    "value: PostgreSQL writes each row, as it is by then, into its WAL, and the relay sends it in its place. "
    "Mend what the letters complain of first. The table's triggers run, and the role needs UPDATE on it."
)
_RETRY = (
    "Without a write into the table, and for rows that were deleted as well: 'bwtui dead-letters retry ID' "
    "has the relay read and send them."
)


class DeadLettersScreen(RelayScreen):
    """Shows the list of dead letters, and the selected one in full."""

    mode: ClassVar[str] = "errors"
    wants_look: ClassVar[LookName | None] = "letters"
    own_keys: ClassVar[frozenset[str]] = frozenset(("send_all_again",))
    sends_again: ClassVar[bool] = True

    def __init__(self, host: ScreenHost) -> None:
        super().__init__(host)
        self._file = DeadLetterFile(DeadLetterWriter(state_folder(host.model.name)).path, self._key_columns)
        sortable = ("time", "table", "reason", "operation", "xid")
        self._listing = SortedItemList(COLUMNS, sortable, id="letters", noun="letters")
        self._letters: dict[str, DeadLetter] = {}
        #: The recorded actions on dead letters, and the size of their file when it was last read.
        self._handled = DeadLetterActionLog(host.model.name)
        self._notes: Mapping[str, Sequence[DeadLetterAction]] = {}
        self._noted = 0
        self._failure = ""
        self._is_read = False
        self._reading: Worker[None] | None = None
        #: The offset in the file up to which dead letters are listed, and the dead letter in the detail
        #: panel.
        self._listed = -1
        self._shown: tuple[DeadLetter, str, DeadLetterState] | None = None

    @classmethod
    def of(cls, host: ScreenHost, selection: ScreenSelection) -> Closer:
        """Return the screen, or why there is none: a recording has no dead letters."""
        if host.model.recorded:
            status = host.model.picture.status
            dropped = sum(table.dead_letters for table in status.tables.values()) if status else 0
            return (
                f"A recording holds no dead letters, of which there were {dropped:,} up to here: they stand "
                "in dead-letters.jsonl of the relay's state folder"
            )
        return cls(host)

    def body(self) -> Iterable[Widget]:
        letters = self._listing
        letters.border_title = Content("Dead letters")
        letters.descending = True
        letters.set_sort_mark("time", True)
        pair = Container(letters, Detail(id="letter", title="Letter"), id="letters-pair", classes="folder")
        return (Line(id="said"), pair)

    def crumbs(self) -> tuple[str, ...]:
        return ("Errors", "Dead letters")

    def look_about(self) -> tuple[str, ...]:
        """Return the identity of the selected dead letter, for its place in the dead-letter topic."""
        letter = self._selected()
        return () if letter is None else (letter.identity,)

    def selected_table(self) -> str | None:
        letter = self._selected()
        return None if letter is None else letter.table

    def row_text(self) -> str:
        """Return the selected dead letter's line of the file."""
        letter = self._selected()
        try:
            return "" if letter is None else self._file.line(letter)
        except OSError as error:
            self._fail(error)
            return ""

    # -- reading -------------------------------------------------------------------------------------------

    def _key_columns(self, table: str) -> Sequence[str]:
        status = self.host.model.picture.status
        known = status.tables.get(table) if status else None
        return known.key_columns if known else ()

    def paint(self, picture: ScreenSnapshot) -> None:
        """Show the dead letters, and read their files again if these have changed."""
        if picture.status is not None and (self._reading is None or self._reading.is_finished):
            try:
                if not self._is_read or self._file.is_changed() or self._handled.size() != self._noted:
                    self._reading = self.run_worker(self._read, thread=True, exit_on_error=True)
            except OSError as error:
                self._fail(error)
        self._show_all(picture)

    def _read(self) -> None:
        """Read the files in a thread, then show the result."""
        try:
            self._file.read()
            self._failure = ""
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

    def _show_all(self, picture: ScreenSnapshot) -> None:
        listing, file = self._listing, self._file
        listing.reason = self._why_none(picture)
        if file.end != self._listed or not file.letters:
            self._listed = file.end
            self._letters = {str(letter.place): letter for letter in tuple(file.letters)}
            listing.set_items([_item(letter) for letter in self._letters.values()], picture.received)
        self.query_one("#said", Line).put(self._sentence(picture), layout=True)
        self._show_selected()

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self._show_selected()

    def _why_none(self, picture: ScreenSnapshot) -> str:
        if self._failure:
            return "they can't be read"
        if not self._is_read:
            return "reading…"
        if self._file.unreadable:
            return "no line of the file is a letter"
        return "no row was dropped: with --on-error log each one that is would stand here"

    def _sentence(self, picture: ScreenSnapshot) -> Content:
        if self._failure:
            return Content.styled(f" ✗ {self._failure}", "$error")
        file = self._file
        number = len(file.letters)
        count = "1 letter" if number == 1 else f"{number:,} letters"
        parts: list[str | tuple[str, str]] = [(f" {count}", "bold"), (f" in {file.path}", "$quiet")]
        if file.unreadable:
            parts.append((f" · ▲ {file.unreadable:,} lines of it are no letters", "$warning"))
        if file.cut:
            parts.append((f" · ▲ {file.cut:,} older ones are not listed", "$warning"))
        if file.left_out:
            parts.append((f" · ▲ its first {figures.size(file.left_out)} were left out", "$warning"))
        return Content("\n").join(
            [line for line in (Content.assemble(*parts), self._topic(picture)) if line.plain]
        )

    def _topic(self, picture: ScreenSnapshot) -> Content:
        """Return what the dead-letter topic holds, or why that is unknown, or nothing without a topic."""
        look = picture.looks.get("letters")
        if not isinstance(look, DeadLetterTopic):
            return Content("")
        if look.failure:
            return Content.styled(f" ✗ {look.failure}", "$error")
        if not look.topic or not look.time:
            return Content("")
        foreign = f", {look.foreign:,} of which are no letters" if look.foreign else ""
        left_out = f"; {look.left_out:,} before them were left out" if look.left_out else ""
        text = f" {look.records:,} records in topic {look.topic}{foreign}{left_out}"
        return Content.styled(text, "$warning" if look.foreign else "$quiet")

    def _selected(self) -> DeadLetter | None:
        return self._letters.get(self._listing.cursor_key or "")

    def _show_selected(self) -> None:
        detail, letter = self.query_one("#letter", Detail), self._selected()
        if letter is None:
            self._shown = None
            detail.show(None, Content.styled("no dead letter selected", "$quiet"))
            return
        places, how = self._places(letter), self._standing(letter)
        if (letter, places, how) != self._shown:
            self._shown = (letter, places, how)
            key = (letter.place, places, how.state, how.detail)
            detail.show(key, _text(letter, self._rows(letter), places, how))

    def _standing(self, letter: DeadLetter) -> DeadLetterState:
        """Return the state of a dead letter; look up the outcome of a retry if it is not recorded yet."""
        notes, status = self._notes.get(letter.id, ()), self.host.model.picture.status
        tasks = {task.id: task for task in status.backfills} if status is not None else None
        if notes and notes[-1].what == "retry" and tasks and notes[-1].task in tasks:
            ended = settled([letter], {letter.id: notes}, tasks, self._file)
            notes = [*notes, *ended]
        return standing(notes, tasks)

    def _places(self, letter: DeadLetter) -> str:
        """Return the dead letter's places in the dead-letter topic, as far as known; "" without a topic."""
        look = self.host.model.picture.looks.get("letters")
        if not isinstance(look, DeadLetterTopic) or not look.topic or look.failure or not look.time:
            return ""
        found = [one for one in look.places if one.identity == letter.identity]
        if found:
            places = ", ".join(f"{one.partition}@{one.offset}" for one in found)
            older = f", and {found[0].before:,} older ones" if found[0].before else ""
            return f"{look.topic}, partition@offset {places}{older}"
        return f"not found in {look.topic}, of which {look.records:,} records were read"

    def _rows(self, letter: DeadLetter) -> DeadLetterRows | None:
        try:
            return self._file.rows(letter)
        except OSError:
            return None

    # -- sending again -------------------------------------------------------------------------------------

    def action_send_again(self) -> None:
        """Show the statements that send the selected dead letter's row again."""
        letter = self._selected()
        if letter is None:
            self._warn("No letter is selected")
        else:
            self._propose([letter])

    def action_send_all_again(self) -> None:
        """Show the statements that send the rows of all listed dead letters again."""
        letters = [self._letters[row.key] for row in self._listing.rows]
        if letters:
            self._propose(letters)
        else:
            self._warn("There is no letter")

    def _propose(self, letters: Sequence[DeadLetter]) -> None:
        made = requeue_plan((letter, self._rows(letter)) for letter in letters)

        def copy(go: bool | None) -> None:
            if go:
                self.app.copy_to_clipboard("\n".join(made.statements))
                self.notify("Copied; run them in psql, as a role that may UPDATE the tables", timeout=6)

        do = "Copy" if made.statements else ""
        title = (
            "Send the row again" if len(letters) == 1 else f"Send the rows of {len(letters):,} letters again"
        )
        self.app.push_screen(AskScreen(title, _proposal(made, self.app.theme_variables), do), copy)


def _proposal(made: RequeuePlan, colours: dict[str, str]) -> Group:
    lines: list[Text | str] = []
    if made.statements:
        rows = "1 row" if made.rows == 1 else f"{made.rows:,} rows"
        lines += [
            Text(f"{rows}, as it is by then" if made.rows == 1 else f"{rows}, as they are by then", "bold")
        ]
        lines += ["", Text(_SAFE, colours["quiet"]), ""]
        lines += [Text(statement) for statement in made.statements[:_STATEMENTS]]
        more = len(made.statements) - _STATEMENTS
        if more > 0:
            lines.append(Text(f"and {more:,} more statements, which are also copied", colours["quiet"]))
    else:
        lines.append(Text("Nothing can be sent again safely", f"bold {colours['warning']}"))
    if made.refused:
        lines += ["", Text("Not included:" if made.statements else "Why:", "bold")]
        lines += [
            Text(f"▲ {number:,}: {why}" if number > 1 else f"▲ {why}", colours["warning"])
            for why, number in made.refused.items()
        ]
    return Group(*lines, "", Text(_RETRY, colours["quiet"]))


def _key(letter: DeadLetter) -> str:
    return ", ".join(f"{name}={'NULL' if value is None else value}" for name, value in letter.key)


def _item(letter: DeadLetter) -> Item:
    key = _key(letter)
    cells = (
        Cell(figures.moment(letter.time)[:16] if letter.time else "not known", "muted"),
        Cell(letter.table),
        Cell(key or "not known", "strong" if key else "muted"),
        Cell(letter.error, "bad"),
        Cell(letter.operation),
        Cell(f"{letter.commit_lsn} #{letter.ordinal}", "muted"),
        Cell(str(letter.xid) if letter.xid else figures.NONE, "muted"),
    )
    values = {
        "time": (letter.time, letter.place),
        "table": letter.table,
        "reason": letter.error,
        "operation": letter.operation,
        "xid": letter.xid,
    }
    change = f"{letter.operation} {letter.commit_lsn} {letter.xid}"
    search = f"{letter.table} {key} {letter.error} {letter.reason} {change}"
    return Item(str(letter.place), cells, values, search, True)


def _text(letter: DeadLetter, rows: DeadLetterRows | None, places: str, how: DeadLetterState) -> Content:
    place = _PLACES.get(letter.operation, f"transaction {letter.xid}")
    lines = [
        Content.styled(letter.error, "bold $error"),
        Content.styled(f"{letter.reason}", "$quiet"),
        Content(""),
        _fact("change", f"{letter.operation} on {letter.table}"),
        _fact("key", _key(letter) or "not known: its table is not one of this run, or has none"),
        _fact("place", f"{letter.commit_lsn} #{letter.ordinal}, {place}"),
        _fact("topic", letter.topic),
        _fact("dropped", f"{figures.moment(letter.time) if letter.time else 'not known'}, id {letter.id}"),
    ]
    if how.notes:
        lines.append(_fact("state", f"{how.state}: {how.detail}" if how.detail else how.state))
    if places:
        lines.append(_fact("letter", places))
    if rows is None:
        lines += [
            Content(""),
            Content.styled(f"the row is not shown: {figures.size(letter.size)}", "$warning"),
        ]
    else:
        lines += _columns("as it was to be sent", rows.after) + _columns("as it was before", rows.before)
        if rows.after is None and rows.before is None:
            lines += [Content(""), Content.styled("the dead letter has no row", "$warning")]
    return Content("\n").join(lines)


def _fact(name: str, value: str) -> Content:
    return Content.assemble((f"{name:<9}", "$quiet"), value)


def _columns(title: str, row: Row | None) -> list[Content]:
    if row is None:
        return []
    width = min(max(map(len, row), default=0), 24)
    lines = [Content(""), Content.styled(title, "bold")]
    for name, value in row.items():
        shown = ("NULL", "$quiet") if value is None else (block(value, width + 4), "")
        lines.append(Content.assemble("  ", (f"{name:<{width}}  ", "$primary"), shown))
    return lines
