"""The first screen: the pipeline and the tables; with more space, also history and latencies."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

from textual.containers import Container
from textual.widget import Widget

from bwtui.model.service_views import LookName
from bwtui.model.status import ChangeSample, TableStatus
from bwtui.recording.explain import RowKey
from bwtui.tui.base import assessment, figures
from bwtui.tui.screens.backfills import in_one_line
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.sources.journey import TypedKey, parse_typed_key, plain_key, sampled_key, tables_of
from bwtui.tui.sources.model import ScreenSnapshot
from bwtui.tui.widgets.changes import ChangeList
from bwtui.tui.widgets.filter_bar import Filter, FilterBar
from bwtui.tui.widgets.grid import Cell, Grid, GridColumn, Item, ItemList
from bwtui.tui.widgets.header import Header
from bwtui.tui.widgets.history import EventList, LatencyPanel, RateChart
from bwtui.tui.widgets.journey import KeyBar
from bwtui.tui.widgets.line import Line, Panel
from bwtui.tui.widgets.pipeline import Pipeline
from bwtui.tui.widgets.services import GroupsPanel, RetainedWalPanel

#: Bars of a sparkline, one per second.
TREND = 12
#: Minimum seconds between two paintings: people can't read faster than twice a second, and this halves the
#: work.
PAINT_EVERY = 0.45
COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("table", "Table", 17, grow=44),
    GridColumn("wal", "WAL/s", 7, "right", drop=1),
    GridColumn("share", "WAL%", 5, "right", drop=3),
    GridColumn("rate", "Rows/s", 7, "right"),
    GridColumn("trend", "Trend", TREND, drop=4),
    GridColumn("left", "Left", 9, "right", drop=6),
    GridColumn("p99", "p99 ms", 6, "right", drop=5),
    GridColumn("inserts", "Insert", 6, "right", drop=8),
    GridColumn("updates", "Update", 6, "right", drop=8),
    GridColumn("deletes", "Delete", 6, "right", drop=8),
    GridColumn("truncates", "Trunc", 5, "right", drop=12),
    GridColumn("messages", "Messages", 8, "right", drop=9),
    GridColumn("bytes", "Bytes", 7, "right", drop=6),
    GridColumn("key_id", "KeyId", 5, "right", drop=13),
    GridColumn("value_id", "ValId", 7, "right", drop=7),
    GridColumn("errors", "Errs", 5, "right"),
    GridColumn("dead", "Dead", 5, "right", drop=2),
    # Most topics are named after their tables.
    GridColumn("topic", "Topic", 20, drop=11, grow=30),
    GridColumn("notes", "Notes", 26, drop=10, grow=60),
)
#: Columns that a recording lacks, because it counts changes but measures no times.
_LIVE_ONLY = ("wal", "share", "p99")
SORTABLE = (
    "wal",
    "rate",
    "p99",
    "inserts",
    "updates",
    "deletes",
    "messages",
    "bytes",
    "errors",
    "dead",
    "table",
)


class TableList(ItemList):
    """Lists all tables, one per row."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, SORTABLE, id="tables", noun="tables", title="Tables")
        self._painted = float("-inf")
        self._was_old = False

    def show(self, snapshot: ScreenSnapshot) -> None:
        """Paint what changed, unless the last painting is too recent."""
        status, is_old = snapshot.status, snapshot.as_of is not None
        soon = 0 <= snapshot.received - self._painted < PAINT_EVERY and is_old == self._was_old
        # A recording is moved by hand, and must follow at once.
        if status is None or (soon and snapshot.playhead is None):
            return
        self._painted, self._was_old = snapshot.received, is_old
        omitted = (
            *(_LIVE_ONLY if snapshot.playhead is not None else ()),
            *(() if status.is_copying else ("left",)),
        )
        self.set_columns(_columns(status.is_copying, omitted))
        if self.sort_column in omitted:
            self.sort_by("table")
        items = [
            table_item(name, table, snapshot.rates.get(name, ()), status.is_copying, omitted, is_old=is_old)
            for name, table in status.tables.items()
        ]
        self.set_items(items, snapshot.received)


def _columns(snapshot: bool, omitted: Sequence[str]) -> list[GridColumn]:
    title = "Snapshot" if snapshot else "Trend"
    columns = [replace(c, title=title) if c.key == "trend" else c for c in COLUMNS]
    return [column for column in columns if column.key not in omitted]


def table_item(
    name: str,
    table: TableStatus,
    points: tuple[float, ...],
    snapshot: bool,
    omitted: Sequence[str] = (),
    *,
    is_old: bool = False,
) -> Item:
    """Return the row of a table without the columns in ``omitted``; an old status has no rates."""
    trouble = assessment.has_trouble(table)
    trend = _progress_cell(table) if snapshot else _trend_cell(points)
    share = table.wal_share
    cells = (
        Cell("✗", "bad") if trouble else Cell("▲", "warn") if table.notes else Cell(""),
        Cell(name, "bad" if trouble else "strong"),
        _rate_cell(figures.size(table.wal_bytes_per_second), table.wal_bytes_per_second, is_old),
        _rate_cell("<1%" if 0 < share < 0.01 else figures.percent(share), share, is_old),
        _rate_cell(figures.rate(table.rows_per_second), table.rows_per_second, is_old),
        trend,
        _time_left_cell(table.snapshot_seconds_left),
        _milliseconds_cell(None if is_old else table.latency_p99),
        *(
            _count_cell(n)
            for n in (table.inserts, table.updates, table.deletes, table.truncates, table.messages)
        ),
        Cell(figures.size(table.bytes), "" if table.bytes else "muted"),
        _id_cell(table.key_schema_id),
        _id_cell(table.value_schema_id, table.value_schema_version),
        _count_cell(table.errors, "bad"),
        _count_cell(table.dead_letters, "bad"),
        Cell(table.topic, "muted"),
        Cell("; ".join(table.notes), "warn"),
    )
    values = {
        "table": name,
        "rate": table.rows_per_second,
        "wal": table.wal_bytes_per_second,
        "p99": -math.inf if table.latency_p99 is None else table.latency_p99,
        "inserts": table.inserts,
        "updates": table.updates,
        "deletes": table.deletes,
        "messages": table.messages,
        "bytes": table.bytes,
        "errors": table.errors,
        "dead": table.dead_letters,
    }
    if omitted:
        cells = tuple(cell for cell, column in zip(cells, COLUMNS, strict=True) if column.key not in omitted)
    return Item(name, cells, values, f"{name} {table.topic} {' '.join(table.notes)}", trouble)


def _count_cell(number: int, tone: str = "") -> Cell:
    return Cell(figures.count(number), tone if number else "muted")


def _id_cell(number: int | None, version: int | None = None) -> Cell:
    if number is None:
        return Cell(figures.NONE, "muted")
    return Cell(str(number) if version is None else f"{number} v{version}")


def _rate_cell(text: str, rate: float, is_old: bool) -> Cell:
    return Cell(figures.NONE if is_old else text, "" if rate and not is_old else "muted")


def _milliseconds_cell(seconds: float | None) -> Cell:
    return Cell(figures.NONE, "muted") if seconds is None else Cell(figures.milliseconds(seconds))


def _time_left_cell(seconds: float | None) -> Cell:
    return Cell(figures.NONE, "muted") if seconds is None else Cell(figures.duration(seconds))


def _trend_cell(points: tuple[float, ...]) -> Cell:
    moving = any(points[-TREND:])
    return Cell(figures.sparkline(points, TREND), "good" if moving else "muted")


def _progress_cell(table: TableStatus) -> Cell:
    share = assessment.snapshot_share(table)
    if table.snapshot_state == "done":
        return Cell(f"✓ {figures.count(table.snapshot_rows)} rows", "good")
    if share is None:
        running = table.snapshot_state == "running"
        return Cell(f"{figures.count(table.snapshot_rows)} rows" if running else figures.NONE, "muted")
    return Cell(f"{figures.gauge(share, 7)} {figures.percent(share).rjust(4)}", "good" if share else "muted")


#: Minimum cells for the latencies, and maximum cells that the chart can use, including frame and axis.
NARROWEST, WIDEST = 46, 161
#: Minimum width for panels side by side.
WIDE = 150
#: Lines that the pipeline takes next to a chart, as boxes and flat, and minimum lines of the chart, the
#: tables and the row below them.
_BOXES, _FLAT, _CHART, _TABLES, _LATEST = 12, 8, 11, 7, 8
#: Minimum lines of the lowest row for the changes, and for panels above each other.
_VAST = 17


#: The service views in the lowest row.
SERVICES: tuple[LookName, ...] = ("slots", "consumers")


class PanelHeights(NamedTuple):
    """Lines of each optional part; 0: it is hidden."""

    chart: int = 0
    #: 0 also if they are next to the chart.
    latency: int = 0
    #: None: all remaining lines.
    tables: int | None = None
    latest: int = 0

    @classmethod
    def of(cls, width: int, height: int, body: int, tables: int) -> "PanelHeights":
        """Return the parts that fit into a terminal of this size, of which ``body`` lines are available."""
        # Both halves of the chart have the same height, so its number of lines is odd.
        if width >= WIDE and height >= 42:
            chart = 13 + 2 * min(max(height - 45, 0) // 6, 4)
            while body - _BOXES - chart < _TABLES + _LATEST and chart > _CHART:
                chart -= 2
            remaining = body - _BOXES - chart
            return (
                cls(chart, 0, *_shared(remaining, tables)) if remaining >= _TABLES + _LATEST else cls(chart)
            )
        if width < WIDE and height >= 34:
            chart = _CHART + 2 * min((height - 34) // 6, 2)
            latency = 11 if height >= 48 else 0
            remaining = body - _FLAT - chart - latency
            return cls(chart, latency, *_shared(remaining, tables)) if height >= 58 else cls(chart, latency)
        return cls()


def _shared(lines: int, tables: int) -> tuple[int, int]:
    """Divide lines between the list of ``tables`` tables and the row below it."""
    needed = min(max(tables + 3, _TABLES), lines - _LATEST)
    return needed, lines - needed


class OverviewScreen(RelayScreen):
    """Shows pipeline, history, latencies, tables, services, events and changes, as far as they fit."""

    mode: ClassVar[str] = "overview"
    _arranged: object = None
    #: The table that was selected when the filter was opened.
    _table: str | None = None

    def body(self) -> Iterable[Widget]:
        # The first painting is styled with these classes, and need not be styled twice.
        self.update_classes(self._parts(self._rooms(self.host.model.snapshot)), update=False)
        yield Pipeline()
        yield Line(id="again")
        yield Container(RateChart(), LatencyPanel(), id="measured", classes="folder")
        yield TableList()
        services = Container(RetainedWalPanel(), GroupsPanel(), id="services", classes="folder")
        yield Container(services, EventList(), ChangeList(), id="latest", classes="folder")

    def filter_bar(self) -> FilterBar:
        """Return the line in which a filter or a key is typed."""
        return KeyBar(self._understood, self._open_key, self.apply_filter, self.focus_list, self.names)

    def action_filter(self) -> None:
        """Remember the selected table for a key without a table: a filter may hide it."""
        self._table = self.main_grid().cursor_key or self._table
        super().action_filter()

    def _open_key(self, key: RowKey) -> None:
        self.host.open_details("journey", TypedKey(key))

    def _understood(self, text: str) -> RowKey | str | None:
        """Return the key that a text names, or what is wrong with it; None if it is a filter of tables."""
        tables = tables_of(self.host.model.snapshot.status)
        if (typed := parse_typed_key(text, tables, self._table)) is not None:
            return typed
        parsed = Filter.parse(text)
        items = self.query_one(TableList).items.values()
        if not text.strip() or parsed.inverse or any(parsed.passes(item.search) for item in items):
            return None
        return plain_key(text, tables, self._table)

    def paint(self, snapshot: ScreenSnapshot) -> None:
        self._show_again(snapshot)
        rooms = self._rooms(snapshot)
        self._arrange(rooms)
        self.query_one(Pipeline).show(snapshot)
        if rooms.chart:
            self.query_one(RateChart).show(snapshot)
        if self.has_class("-timed"):
            self.query_one(LatencyPanel).show(snapshot)
        self.query_one(TableList).show(snapshot)
        if rooms.latest:
            self.query_one(RetainedWalPanel).show(snapshot)
            self.query_one(GroupsPanel).show(snapshot)
        if self.has_class("-eventful"):
            self.query_one(EventList).show(snapshot)
        if self.wants_changes:
            self.query_one(ChangeList).show(snapshot, "" if self.host.model.link == "live" else "no answer")

    def _show_again(self, snapshot: ScreenSnapshot) -> None:
        """Show the requests in progress in a line that is visible only while there are any."""
        line, content = self.query_one("#again", Line), in_one_line(snapshot.status, snapshot.received)
        if line.display != (content is not None):
            line.display = content is not None
        if content is not None:
            line.put(content)

    def _rooms(self, snapshot: ScreenSnapshot) -> PanelHeights:
        # A recording has no history of its relay: the pipeline shows the recorded figures instead.
        if snapshot.playhead is not None:
            return PanelHeights()
        width, height = self.app.size
        # The header has a third line, and more, if something is wrong.
        around = 3
        if self.ready:
            around = max(self.query_one(Header).size.height, 2) + 1 + bool(self.query_one(FilterBar).display)
            around += bool(self.query_one("#again").display)
        tables = len(snapshot.status.tables) if snapshot.status else 0
        return PanelHeights.of(width, height, height - around, tables)

    def _arrange(self, rooms: PanelHeights) -> None:
        """Set the height of each part; a maximised panel has all lines."""
        wide, alone = self.app.size.width >= WIDE, self.has_class("-maximised")
        arranged = (rooms, self.app.size.width, alone)
        if arranged == self._arranged:
            return
        self._arranged = arranged
        self.wants_changes = wide and rooms.latest >= _VAST
        self.glances = SERVICES if rooms.latest else ()
        # Set all classes at once: Textual styles every widget again after each change.
        self.update_classes(self._parts(rooms), animate=False)
        for where, lines in (
            ("#measured", rooms.chart + rooms.latency),
            ("#tables", rooms.tables),
            ("#latest", rooms.latest),
        ):
            self.query_one(where).styles.height = None if alone or not lines else lines
        latency = self.query_one(LatencyPanel)
        beside = wide and not alone
        latency.styles.width = max(NARROWEST, self.app.size.width - WIDEST) if beside else None
        latency.styles.height = rooms.latency if rooms.latency and not alone else None

    def _parts(self, rooms: PanelHeights) -> dict[str, bool]:
        wide = self.app.size.width >= WIDE
        return {
            "-chart": rooms.chart > 0,
            "-timed": rooms.latency > 0 or (wide and rooms.chart > 0),
            "-roomy": wide and rooms.chart > 0,
            "-served": rooms.latest > 0,
            "-eventful": wide and rooms.latest > 0,
            "-vast": wide and rooms.latest >= _VAST,
        }

    def on_resize(self) -> None:
        """Paint at once for the new size."""
        self.refresh_picture()

    def action_maximise(self) -> None:
        super().action_maximise()
        self.refresh_picture()

    def selected_table(self) -> str | None:
        return self.main_grid().cursor_key

    def selected_sample(self) -> ChangeSample | None:
        return self.focused.selected() if isinstance(self.focused, ChangeList) else None

    def selected_key(self) -> RowKey | str:
        """Return the key of the selected change in the list of changes, or of a recording's last change."""
        if self.host.model.recorded:
            return super().selected_key()
        return sampled_key(self.selected_sample(), self.host.model.snapshot.status)

    def row_text(self) -> str:
        grid = self.focused
        if isinstance(grid, ChangeList):
            return grid.copy_text()
        if isinstance(grid, EventList):
            return "\t".join(cell.text for cell in grid.rows[grid.cursor_row].cells) if grid.rows else ""
        return super().row_text()

    def open_row(self, grid: Grid) -> None:
        """Open a table; for an event or a change, switch to the screen with all of them."""
        if grid is self.main_grid():
            self.host.open_details("table", self)
        else:
            self.host.show_mode("changes" if isinstance(grid, ChangeList) else "errors")

    def on_panel_opened(self, event: Panel.Opened) -> None:
        """Switch to the screen with the details of a panel."""
        self.host.show_mode(event.mode)

    def _restore(self) -> None:
        super()._restore()
        self.refresh_picture()
