"""The first screen: the pipeline and the tables; with more space, also history and latencies."""

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from textual.containers import Container
from textual.widget import Widget

from bwtui.model.service_views import LookName
from bwtui.model.status import ChangeSample
from bwtui.recording.reading.explain import RowKey
from bwtui.tui.filtering import Filter
from bwtui.tui.journey.key_history import sampled_key
from bwtui.tui.journey.typed_key import TypedKey, asked_key, plain_key, tables_of
from bwtui.tui.screens.backfills import in_one_line
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.changes import ChangeList
from bwtui.tui.widgets.chart import RateChart
from bwtui.tui.widgets.events import EventList
from bwtui.tui.widgets.filter_bar import FilterBar
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.header import Header
from bwtui.tui.widgets.journey.key_bar import KeyBar
from bwtui.tui.widgets.latency import LatencyPanel
from bwtui.tui.widgets.line import Line
from bwtui.tui.widgets.overview.consumer_groups import GroupsPanel
from bwtui.tui.widgets.overview.retained_wal import RetainedWalPanel
from bwtui.tui.widgets.panel import Panel
from bwtui.tui.widgets.pipeline import Pipeline
from bwtui.tui.widgets.tables import TableList

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
            left = body - _BOXES - chart
            return cls(chart, 0, *_shared(left, tables)) if left >= _TABLES + _LATEST else cls(chart)
        if width < WIDE and height >= 34:
            chart = _CHART + 2 * min((height - 34) // 6, 2)
            latency = 11 if height >= 48 else 0
            left = body - _FLAT - chart - latency
            return cls(chart, latency, *_shared(left, tables)) if height >= 58 else cls(chart, latency)
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
        self.update_classes(self._parts(self._rooms(self.host.model.picture)), update=False)
        yield Pipeline()
        yield Line(id="again")
        yield Container(RateChart(), LatencyPanel(), id="measured", classes="folder")
        yield TableList()
        services = Container(RetainedWalPanel(), GroupsPanel(), id="services", classes="folder")
        yield Container(services, EventList(), ChangeList(), id="latest", classes="folder")

    def filter_bar(self) -> FilterBar:
        """Return the line in which a filter or a key is typed."""
        return KeyBar(self._understood, self.names)

    def action_filter(self) -> None:
        """Remember the selected table for a key without a table: a filter may hide it."""
        self._table = self.main_grid().cursor_key or self._table
        super().action_filter()

    def on_key_bar_key_asked(self, event: KeyBar.KeyAsked) -> None:
        self.host.look_closer("journey", TypedKey(event.key))

    def _understood(self, text: str) -> RowKey | str | None:
        """Return the key that a text names, or what is wrong with it; None if it is a filter of tables."""
        tables = tables_of(self.host.model.picture.status)
        if (named := asked_key(text, tables, self._table)) is not None:
            return named
        wanted = Filter.parse(text)
        items = self.query_one(TableList).items.values()
        if not text.strip() or wanted.inverse or any(wanted.passes(item.search) for item in items):
            return None
        return plain_key(text, tables, self._table)

    def paint(self, picture: ScreenSnapshot) -> None:
        self._show_again(picture)
        rooms = self._rooms(picture)
        self._arrange(rooms)
        self.query_one(Pipeline).show(picture)
        if rooms.chart:
            self.query_one(RateChart).show(picture)
        if self.has_class("-timed"):
            self.query_one(LatencyPanel).show(picture)
        self.query_one(TableList).show(picture)
        if rooms.latest:
            self.query_one(RetainedWalPanel).show(picture)
            self.query_one(GroupsPanel).show(picture)
        if self.has_class("-eventful"):
            self.query_one(EventList).show(picture)
        if self.wants_changes:
            self.query_one(ChangeList).show(picture, "" if self.host.model.link == "live" else "no news")

    def _show_again(self, picture: ScreenSnapshot) -> None:
        """Show the requests in progress in a line that is visible only while there are any."""
        line, content = self.query_one("#again", Line), in_one_line(picture.status, picture.received)
        if line.display != (content is not None):
            line.display = content is not None
        if content is not None:
            line.put(content)

    def _rooms(self, picture: ScreenSnapshot) -> PanelHeights:
        # A recording has no history of its relay: the pipeline shows the recorded figures instead.
        if picture.playhead is not None:
            return PanelHeights()
        width, height = self.app.size
        # The header has a third line, and more, if something is wrong.
        around = 3
        if self.ready:
            around = max(self.query_one(Header).size.height, 2) + 1 + bool(self.query_one(FilterBar).display)
            around += bool(self.query_one("#again").display)
        tables = len(picture.status.tables) if picture.status else 0
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
        return sampled_key(self.selected_sample(), self.host.model.picture.status)

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
            self.host.look_closer("table", self)
        else:
            self.host.show_mode("changes" if isinstance(grid, ChangeList) else "errors")

    def on_panel_opened(self, event: Panel.Opened) -> None:
        """Switch to the screen with the details of a panel."""
        self.host.show_mode(event.mode)

    def _restore(self) -> None:
        super()._restore()
        self.refresh_picture()
