"""The live sample of changes."""

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget

from bwtui.model.status import ChangeSample
from bwtui.recording.reading.explain import RowKey
from bwtui.tui import assessment
from bwtui.tui.filtering import Filter
from bwtui.tui.journey.key_history import sampled_key
from bwtui.tui.keys import key_for
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.screens.exporting import Objects
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.changes import ChangeDetail, ChangeList
from bwtui.tui.widgets.grid import Grid


class ChangesPair(RelayScreen):
    """Shows a list of changes, and the selected one in full."""

    def action_sort(self) -> None:
        """Explain why there is nothing to sort."""
        self.notify("Changes stay in the order of their commits", timeout=3)

    action_reverse = action_sort


class SampledPair(ChangesPair):
    """Shows changes that are sampled from a relay."""

    wants_changes: bool = True
    #: The change in the detail panel.
    _told: ChangeSample | None = None

    def paint(self, picture: ScreenSnapshot) -> None:
        model = self.host.model
        stands_still = ""
        if model.paused is not None:
            stands_still = f"paused, {key_for('pause')} resumes"
        elif model.link != "live":
            stands_still = "no news from the relay"
        self.main_grid().show(picture, stands_still)
        # The row may now hold a different change, for which no event is sent.
        if self.main_grid().selected() != self._told:
            self._show_selected()

    def main_grid(self) -> ChangeList:
        return self.query_one(ChangeList)

    def current_filter(self) -> Filter:
        return self.main_grid().filter

    def apply_filter(self, new: Filter) -> None:
        self.main_grid().set_filter(new)

    def selected_sample(self) -> ChangeSample | None:
        return self.main_grid().selected()

    def selected_key(self) -> RowKey | str:
        return sampled_key(self.selected_sample(), self.host.model.picture.status)

    def row_text(self) -> str:
        return self.main_grid().copy_text()

    def selected_objects(self) -> Objects:
        change = self.main_grid().selected()
        return [] if change is None else [dataclasses.asdict(change)]

    def all_objects(self) -> Objects:
        return map(dataclasses.asdict, self.main_grid().shown_changes)

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self._show_selected()

    def _show_selected(self) -> None:
        self._told = self.main_grid().selected()
        self.query_one(ChangeDetail).show_change(self._told)

    def action_follow(self) -> None:
        """Follow the newest change again; also called from the detail panel."""
        self.main_grid().focus()
        self.main_grid().action_last()


class ChangesScreen(SampledPair):
    """Shows the sampled changes, and the selected one in full."""

    mode: ClassVar[str] = "changes"

    def body(self) -> Iterable[Widget]:
        return (ChangeList(), ChangeDetail())

    def action_errors_only(self) -> None:
        """Show only the changes of tables with errors, or all."""
        status = self.host.model.picture.status
        if self.main_grid().only is not None or status is None:
            self.main_grid().show_only(None)
        else:
            troubled = frozenset(n for n, t in status.tables.items() if assessment.has_trouble(t))
            self.main_grid().show_only(troubled)
