"""The first screen: the pipeline, and the table of tables; with more room, how it was and what it took."""

from collections.abc import Iterable
from typing import ClassVar

from textual.containers import Horizontal
from textual.widget import Widget

from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import Picture
from bwtui.tui.widgets.chart import RateChart
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.latency import LatencyPanel
from bwtui.tui.widgets.pipeline import Pipeline
from bwtui.tui.widgets.tables import TableList

#: From this size on there is room for the chart and the latencies.
ROOMY = (150, 42)


class OverviewScreen(RelayScreen):
    """Everything at a glance."""

    mode: ClassVar[str] = "overview"

    def body(self) -> Iterable[Widget]:
        yield Pipeline()
        yield Horizontal(RateChart(), LatencyPanel(), id="measured", classes="folder")
        yield TableList()

    def paint(self, picture: Picture) -> None:
        width, height = self.app.size
        # A recording has no history of its relay: the pipeline shows what was recorded instead.
        self.set_class(picture.playhead is None and width >= ROOMY[0] and height >= ROOMY[1], "-roomy")
        self.query_one(Pipeline).show(picture)
        if self.has_class("-roomy"):
            self.query_one(RateChart).show(picture)
            self.query_one(LatencyPanel).show(picture)
        self.query_one(TableList).show(picture)

    def on_resize(self) -> None:
        """Paint at once for the new size."""
        super().on_resize()
        self.refresh_picture()

    def selected_table(self) -> str | None:
        return self.main_grid().cursor_key

    def open_row(self, grid: Grid) -> None:
        self.host.look_closer("table", self)
