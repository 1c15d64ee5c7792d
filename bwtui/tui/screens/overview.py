"""The first screen: the pipeline, and the table of tables; with more room, how it was and what it took."""

from collections.abc import Iterable
from typing import ClassVar

from textual.containers import Horizontal
from textual.widget import Widget

from bwtui.model.status import ChangeSample
from bwtui.recording.reading.explain import Key
from bwtui.tui.journey.moments import sampled_key
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import Picture
from bwtui.tui.widgets.changes import ChangeList
from bwtui.tui.widgets.chart import RateChart
from bwtui.tui.widgets.events import EventList
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.latency import LatencyPanel
from bwtui.tui.widgets.pipeline import Pipeline
from bwtui.tui.widgets.tables import TableList

#: From this size on there is room for the chart and the latencies.
ROOMY = (150, 42)
#: And from this one on for what happened last, and what goes by.
VAST = (150, 60)
#: Cells that the latencies need, and what the chart has any use for, frame and axis included.
NARROWEST, WIDEST = 46, 161


class OverviewScreen(RelayScreen):
    """Everything at a glance."""

    mode: ClassVar[str] = "overview"

    def body(self) -> Iterable[Widget]:
        yield Pipeline()
        yield Horizontal(RateChart(), LatencyPanel(), id="measured", classes="folder")
        yield TableList()
        yield Horizontal(EventList(), ChangeList(), id="latest", classes="folder")

    def paint(self, picture: Picture) -> None:
        # A recording has no history of its relay: the pipeline shows what was recorded instead.
        is_live = picture.playhead is None
        self.set_class(is_live and self._has_room(ROOMY), "-roomy")
        self.wants_changes = is_live and self._has_room(VAST)
        self.set_class(self.wants_changes, "-vast")
        self.query_one(Pipeline).show(picture)
        if self.has_class("-roomy"):
            self.query_one(RateChart).show(picture)
            latency = self.query_one(LatencyPanel)
            latency.styles.width = max(NARROWEST, self.app.size.width - WIDEST)
            latency.show(picture)
        self.query_one(TableList).show(picture)
        if self.has_class("-vast"):
            self.query_one(EventList).show(picture)
            self.query_one(ChangeList).show(picture, "" if self.host.model.link == "live" else "no news")

    def _has_room(self, size: tuple[int, int]) -> bool:
        return self.app.size.width >= size[0] and self.app.size.height >= size[1]

    def on_resize(self) -> None:
        """Paint at once for the new size."""
        super().on_resize()
        self.refresh_picture()

    def selected_table(self) -> str | None:
        return self.main_grid().cursor_key

    def selected_sample(self) -> ChangeSample | None:
        return self.focused.selected() if isinstance(self.focused, ChangeList) else None

    def selected_key(self) -> Key | str:
        """Return the key of the selected change where changes are shown, or of a recording's last one."""
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
        """Open a table; an event or a change is looked at where all of them are."""
        if grid is self.main_grid():
            self.host.look_closer("table", self)
        else:
            self.host.show_mode("changes" if isinstance(grid, ChangeList) else "errors")
