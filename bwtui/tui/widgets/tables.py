"""The table of tables."""

from bwtui.model.status import TableStatus
from bwtui.tui import figures, judgement
from bwtui.tui.state import Picture
from bwtui.tui.widgets.columns import Cell, Column
from bwtui.tui.widgets.listing import Item, Listing

#: Bars in a sparkline, which are also seconds.
TREND = 12
#: Seconds between two paintings: twice a second is as fast as people read, and half the work of four times.
PAINT_EVERY = 0.45
COLUMNS = (
    Column("mark", "", 1),
    Column("table", "Table", 17, grow=44),
    Column("rate", "Rows/s", 7, "right"),
    Column("trend", "Trend", TREND, drop=4),
    Column("inserts", "Insert", 6, "right"),
    Column("updates", "Update", 6, "right"),
    Column("deletes", "Delete", 6, "right"),
    Column("truncates", "Trunc", 5, "right", drop=8),
    Column("messages", "Messages", 8, "right", drop=7),
    Column("bytes", "Bytes", 7, "right", drop=5),
    Column("key_id", "KeyId", 5, "right", drop=9),
    Column("value_id", "ValId", 5, "right", drop=9),
    Column("errors", "Errs", 5, "right"),
    Column("dead", "Dead", 5, "right", drop=2),
    Column("topic", "Topic", 14, drop=10, grow=30),
    Column("notes", "Notes", 16, drop=11, grow=60),
)
SORTABLE = ("table", "rate", "inserts", "updates", "deletes", "messages", "bytes", "errors", "dead")


class TableList(Listing):
    """All tables, one a row."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, SORTABLE, id="tables", noun="tables")
        self.border_title = "Tables"
        self._painted = float("-inf")

    def show(self, picture: Picture) -> None:
        """Paint what changed, if the last time is long enough ago."""
        status = picture.status
        soon = 0 <= picture.received - self._painted < PAINT_EVERY
        # A recording is moved by hand, and must follow at once.
        if status is None or (soon and picture.playhead is None):
            return
        self._painted = picture.received
        self._title_trend(status.is_copying)
        items = [
            table_item(name, table, picture.rates.get(name, ()), status.is_copying)
            for name, table in status.tables.items()
        ]
        self.set_items(items, picture.received)

    def _title_trend(self, snapshot: bool) -> None:
        title = "Snapshot" if snapshot else "Trend"
        columns = [Column(c.key, title, c.width, c.align, c.drop) if c.key == "trend" else c for c in COLUMNS]
        self.set_columns(columns)


def table_item(name: str, table: TableStatus, points: tuple[float, ...], snapshot: bool) -> Item:
    """Return the row of a table."""
    trouble = judgement.has_trouble(table)
    trend = _progress(table) if snapshot else _trend(points)
    cells = (
        Cell("✗", "bad") if trouble else Cell("▲", "warn") if table.notes else Cell(""),
        Cell(name, "bad" if trouble else "strong"),
        Cell(figures.rate(table.rows_per_second), "" if table.rows_per_second else "muted"),
        trend,
        *(_count(n) for n in (table.inserts, table.updates, table.deletes, table.truncates, table.messages)),
        Cell(figures.size(table.bytes), "" if table.bytes else "muted"),
        _id(table.key_schema_id),
        _id(table.value_schema_id),
        _count(table.errors, "bad"),
        _count(table.dead_letters, "bad"),
        Cell(table.topic, "muted"),
        Cell("; ".join(table.notes), "warn"),
    )
    values = {
        "table": name,
        "rate": table.rows_per_second,
        "inserts": table.inserts,
        "updates": table.updates,
        "deletes": table.deletes,
        "messages": table.messages,
        "bytes": table.bytes,
        "errors": table.errors,
        "dead": table.dead_letters,
    }
    return Item(name, cells, values, f"{name} {table.topic} {' '.join(table.notes)}", trouble)


def _count(number: int, tone: str = "") -> Cell:
    return Cell(figures.count(number), tone if number else "muted")


def _id(number: int | None) -> Cell:
    return Cell(figures.NONE, "muted") if number is None else Cell(str(number))


def _trend(points: tuple[float, ...]) -> Cell:
    moving = any(points[-TREND:])
    return Cell(figures.sparkline(points, TREND), "good" if moving else "muted")


def _progress(table: TableStatus) -> Cell:
    share = judgement.snapshot_share(table)
    if table.snapshot_state == "done":
        return Cell(f"✓ {figures.count(table.snapshot_rows)} rows", "good")
    if share is None:
        running = table.snapshot_state == "running"
        return Cell(f"{figures.count(table.snapshot_rows)} rows" if running else figures.NONE, "muted")
    return Cell(f"{figures.gauge(share, 7)} {figures.percent(share).rjust(4)}", "good" if share else "muted")
