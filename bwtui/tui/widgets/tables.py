"""The list of tables."""

import math
from collections.abc import Sequence
from dataclasses import replace

from bwtui.model.status import TableStatus
from bwtui.tui import assessment, figures
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.columns import Cell, GridColumn
from bwtui.tui.widgets.item_list import Item, ItemList

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
        super().__init__(COLUMNS, SORTABLE, id="tables", noun="tables")
        self.border_title = "Tables"
        self._painted = float("-inf")
        self._was_old = False

    def show(self, picture: ScreenSnapshot) -> None:
        """Paint what changed, unless the last painting is too recent."""
        status, is_old = picture.status, picture.as_of is not None
        soon = 0 <= picture.received - self._painted < PAINT_EVERY and is_old == self._was_old
        # A recording is moved by hand, and must follow at once.
        if status is None or (soon and picture.playhead is None):
            return
        self._painted, self._was_old = picture.received, is_old
        left_out = (
            *(_LIVE_ONLY if picture.playhead is not None else ()),
            *(() if status.is_copying else ("left",)),
        )
        self.set_columns(_columns(status.is_copying, left_out))
        if self.sort_column in left_out:
            self.sort_by("table")
        items = [
            table_item(name, table, picture.rates.get(name, ()), status.is_copying, left_out, is_old=is_old)
            for name, table in status.tables.items()
        ]
        self.set_items(items, picture.received)


def _columns(snapshot: bool, left_out: Sequence[str]) -> list[GridColumn]:
    title = "Snapshot" if snapshot else "Trend"
    columns = [replace(c, title=title) if c.key == "trend" else c for c in COLUMNS]
    return [column for column in columns if column.key not in left_out]


def table_item(
    name: str,
    table: TableStatus,
    points: tuple[float, ...],
    snapshot: bool,
    left_out: Sequence[str] = (),
    *,
    is_old: bool = False,
) -> Item:
    """Return the row of a table without the columns in ``left_out``; an old status has no rates."""
    trouble = assessment.has_trouble(table)
    trend = _progress(table) if snapshot else _trend(points)
    share = table.wal_share
    cells = (
        Cell("✗", "bad") if trouble else Cell("▲", "warn") if table.notes else Cell(""),
        Cell(name, "bad" if trouble else "strong"),
        _rate(figures.size(table.wal_bytes_per_second), table.wal_bytes_per_second, is_old),
        _rate("<1%" if 0 < share < 0.01 else figures.percent(share), share, is_old),
        _rate(figures.rate(table.rows_per_second), table.rows_per_second, is_old),
        trend,
        _left(table.snapshot_seconds_left),
        _milliseconds(None if is_old else table.latency_p99),
        *(_count(n) for n in (table.inserts, table.updates, table.deletes, table.truncates, table.messages)),
        Cell(figures.size(table.bytes), "" if table.bytes else "muted"),
        _id(table.key_schema_id),
        _id(table.value_schema_id, table.value_schema_version),
        _count(table.errors, "bad"),
        _count(table.dead_letters, "bad"),
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
    if left_out:
        cells = tuple(cell for cell, column in zip(cells, COLUMNS, strict=True) if column.key not in left_out)
    return Item(name, cells, values, f"{name} {table.topic} {' '.join(table.notes)}", trouble)


def _count(number: int, tone: str = "") -> Cell:
    return Cell(figures.count(number), tone if number else "muted")


def _id(number: int | None, version: int | None = None) -> Cell:
    if number is None:
        return Cell(figures.NONE, "muted")
    return Cell(str(number) if version is None else f"{number} v{version}")


def _rate(text: str, rate: float, is_old: bool) -> Cell:
    return Cell(figures.NONE if is_old else text, "" if rate and not is_old else "muted")


def _milliseconds(seconds: float | None) -> Cell:
    return Cell(figures.NONE, "muted") if seconds is None else Cell(figures.milliseconds(seconds))


def _left(seconds: float | None) -> Cell:
    return Cell(figures.NONE, "muted") if seconds is None else Cell(figures.duration(seconds))


def _trend(points: tuple[float, ...]) -> Cell:
    moving = any(points[-TREND:])
    return Cell(figures.sparkline(points, TREND), "good" if moving else "muted")


def _progress(table: TableStatus) -> Cell:
    share = assessment.snapshot_share(table)
    if table.snapshot_state == "done":
        return Cell(f"✓ {figures.count(table.snapshot_rows)} rows", "good")
    if share is None:
        running = table.snapshot_state == "running"
        return Cell(f"{figures.count(table.snapshot_rows)} rows" if running else figures.NONE, "muted")
    return Cell(f"{figures.gauge(share, 7)} {figures.percent(share).rjust(4)}", "good" if share else "muted")
