"""The live sample of changes: a list that follows the newest one, the details of one, and transactions."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import RenderableType

from bwtui.model.status import ChangeSample, FieldChange
from bwtui.tui.base import figures
from bwtui.tui.base.keys import key_for, keys_of
from bwtui.tui.base.plain import Content, Group, Table, Text, block
from bwtui.tui.sources.model import ScreenSnapshot
from bwtui.tui.widgets.filter_bar import Filter
from bwtui.tui.widgets.grid import Cell, Grid, GridColumn, GridRow
from bwtui.tui.widgets.line import Detail

COLUMNS = (
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
        columns = [c for c in COLUMNS if table is None or c.key != "table"]
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
        head = f"{change.operation} {change.table} key={change.key} lsn={change.lsn} xid={change.xid}"
        return "\n".join([head, *field_lines(change.fields)])

    def on_grid_moved(self, event: Grid.Moved) -> None:
        """Stop following the newest change, or resume."""
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
            id(one): before.get(id(one)) or (one, change_row(one, with_table)) for one in changes
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
            self.show((change, self.app.theme), _change(change, self.app.theme_variables))


def change_row(change: ChangeSample, with_table: bool) -> GridRow:
    """Return a change as a row."""
    sign, tone = OPERATIONS.get(change.operation, (" ", ""))
    changed = ", ".join(f.name for f in change.fields if f.mark == "changed")
    cells = [
        Cell(figures.precise_clock(change.commit_time), "muted"),
        Cell(f"{sign} {change.operation}", tone),
        Cell(change.table, "strong"),
        Cell(change.key or figures.NONE),
        Cell(change.lsn, "muted"),
        Cell(str(change.xid), "muted"),
        Cell(changed, "warn"),
    ]
    if not with_table:
        del cells[2]
    return GridRow(str(change.sequence), tuple(cells))


def _change(change: ChangeSample, colours: dict[str, str]) -> RenderableType:
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


def field_lines(fields: Sequence[FieldChange]) -> list[str]:
    """Return a change's columns, before and after, as plain text to copy."""
    return [f"{f.name}: {_plain(f.before)} → {_plain(f.after)}" for f in fields]


def _plain(value: str | None) -> str:
    return "NULL" if value is None else value


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
    return Cell(figures.count(rows), "" if rows > 1 else "muted")


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
