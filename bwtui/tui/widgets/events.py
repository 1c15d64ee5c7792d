"""The last events: starts, reconnects, schemas and audits from the history, and the errors."""

from collections.abc import Iterator

from bwtui.model.history import ChartMark
from bwtui.model.status import ErrorEntry
from bwtui.tui import assessment, figures
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.chart import MARKS
from bwtui.tui.widgets.columns import Cell, GridColumn, GridRow
from bwtui.tui.widgets.grid import Grid

#: Maximum events shown; the screen of errors has all errors.
MOST = 100
COLUMNS = (
    GridColumn("time", "Time", 8),
    GridColumn("what", "What", 11),
    GridColumn("text", "", 20, grow=200),
)


class EventList(Grid):
    """Lists events, newest first."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, id="events")
        self.add_class("panel")
        self.border_title = "Last events"
        self.empty_text = "nothing happened in the last ten minutes"
        self._drawn: object = None

    def show(self, picture: ScreenSnapshot) -> None:
        """Update the list if there are new events."""
        errors = picture.status.errors if picture.status else ()
        drawn = (errors, picture.history.marks)
        if drawn != self._drawn:
            self._drawn = drawn
            found = sorted((*_marks(picture.history.marks), *_errors(errors)), key=lambda event: -event[0])
            self.set_rows([row for _, row in found[:MOST]])


def _marks(marks: tuple[ChartMark, ...]) -> Iterator[tuple[float, GridRow]]:
    """Yield all marks except errors, of which the error entries have more details."""
    for mark in marks:
        if mark.kind != "error":
            sign, _, word = MARKS[mark.kind]
            tone = "warn" if mark.kind in ("ddl", "reconnect") else "strong"
            yield (
                mark.time,
                _row(f"m{mark.time}{mark.text}", mark.time, Cell(f"{sign} {word}", tone), mark.text),
            )


def _errors(errors: tuple[ErrorEntry, ...]) -> Iterator[tuple[float, GridRow]]:
    for entry in errors:
        if entry.is_over:
            what, text = Cell("✓ resolved", "muted"), f"{entry.message}; {_lasted(entry)}"
        elif assessment.is_warning(entry):
            what, text = Cell("▲ warning", "warn"), entry.message
        else:
            what, text = Cell("✗ error", "bad"), entry.message
        times = f"{figures.count(entry.count)} times: " if entry.count > 1 else ""
        key = f"e{entry.kind}\0{entry.table}\0{entry.message}"
        yield entry.time, _row(key, entry.time, what, times + text)


def _lasted(entry: ErrorEntry) -> str:
    start = entry.time if entry.since is None else entry.since
    return f"{figures.clock(start)} to {figures.clock(entry.until or entry.time)}"


def _row(key: str, moment: float, what: Cell, text: str) -> GridRow:
    return GridRow(key, (Cell(figures.clock(moment), "muted"), what, Cell(text)))
