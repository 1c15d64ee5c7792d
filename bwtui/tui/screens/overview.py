"""The first screen: the pipeline, and the table of tables."""

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget

from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import Picture
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.pipeline import Pipeline
from bwtui.tui.widgets.tables import TableList


class OverviewScreen(RelayScreen):
    """Everything at a glance."""

    mode: ClassVar[str] = "overview"

    def body(self) -> Iterable[Widget]:
        return (Pipeline(), TableList())

    def paint(self, picture: Picture) -> None:
        self.query_one(Pipeline).show(picture)
        self.query_one(TableList).show(picture)

    def selected_table(self) -> str | None:
        return self.main_grid().cursor_key

    def open_row(self, grid: Grid) -> None:
        self.host.look_closer("table", self)
