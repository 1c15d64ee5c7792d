"""One table: all its counters, its notes, its schemas, and its recent changes."""

from collections.abc import Iterable
from typing import ClassVar

from textual.containers import Container
from textual.widget import Widget

from bwtui.model.status import SchemaEntry, TableStatus
from bwtui.tui import figures
from bwtui.tui.host import Closer, ScreenHost, ScreenSelection
from bwtui.tui.plain import Content
from bwtui.tui.screens.backfills import of_table
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.screens.changes import SampledPair
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.changes import ChangeDetail, ChangeList
from bwtui.tui.widgets.detail import Detail


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

    def paint(self, picture: ScreenSnapshot) -> None:
        self._show_facts(picture)
        super().paint(picture)

    def _show_facts(self, picture: ScreenSnapshot) -> None:
        name = self.table
        table = picture.status.tables.get(name) if picture.status else None
        facts = self.query_one("#facts", Detail)
        if table is None:
            nothing = (
                "The relay does not know this table any more"
                if picture.playhead is None
                else "Nothing of this table has happened up to here"
            )
            facts.show(None, Content.styled(nothing, "$warning"))
        else:
            schemas = tuple(s for s in picture.schemas if s.table == name)
            content = _facts(table, schemas, picture.rates.get(name, ()), self.has_class("-wide"))
            if again := of_table(picture.status, name, picture.received):
                content = Content("\n").join([content, _fact("sent again", again)])
            facts.show(content.markup, content)


class TableScreen(FactsScreen, SampledPair):
    """The screen of a table of a running relay, opened from the overview."""

    def changes_pair(self) -> Iterable[Widget]:
        return (ChangeList(self.table), ChangeDetail())


def _facts(
    table: TableStatus, schemas: tuple[SchemaEntry, ...], points: tuple[float, ...], wide: bool
) -> Content:
    counters = [
        ("rows/s", figures.rate(table.rows_per_second)),
        ("inserts", f"{table.inserts:,}"),
        ("updates", f"{table.updates:,}"),
        ("deletes", f"{table.deletes:,}"),
        ("truncates", f"{table.truncates:,}"),
        ("snapshot rows", f"{table.snapshot_rows:,}"),
        *((("put again", f"{table.backfill_rows:,}"),) if table.backfill_rows else ()),
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
        if table.is_key_known
        else "not known yet: the relay has sent no row of it since it began"
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
    return " · ".join(f"{number:,} {what}" for number, what in counts if number)


def _snapshot(table: TableStatus) -> str:
    if table.snapshot_state == "none":
        return "not in this run"
    estimate = "" if table.snapshot_estimate is None else f" of ~{figures.count(table.snapshot_estimate)}"
    left = f", {left}" if (left := figures.left(table.snapshot_seconds_left)) else ""
    return f"{table.snapshot_state}, {table.snapshot_rows:,}{estimate} rows{left}"


def _schema(schema: SchemaEntry) -> str:
    version = "" if schema.version is None else f" version {schema.version}"
    return f"{schema.subject} · id {schema.id}{version}"
