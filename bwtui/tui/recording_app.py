"""The screens over a recording: the same ones as on a relay, and three that look closer."""

import time
from collections.abc import Callable
from typing import Any, ClassVar

from textual.screen import Screen

from bwtui.recording.change import Change
from bwtui.recording.explain import Key
from bwtui.recording.view import RecordingView
from bwtui.recording.window import Bounds
from bwtui.tui.app import RelayApp
from bwtui.tui.playback import Command, RecordedModel, RecordingSource, Then
from bwtui.tui.screens.as_of import AsOfScreen
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.screens.errors import ErrorsScreen
from bwtui.tui.screens.explain import ExplainScreen
from bwtui.tui.screens.overview import OverviewScreen
from bwtui.tui.screens.recorded import RecordedChangesScreen, RecordedTableScreen, TransactionScreen
from bwtui.tui.screens.registry import RegistryScreen
from bwtui.tui.state import DataSource, Model, Session
from bwtui.tui.widgets.transport import Timeline


class RecordingApp(RelayApp):
    """Plays a recording."""

    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        "overview": OverviewScreen,
        "changes": RecordedChangesScreen,
        "registry": RegistryScreen,
        "errors": ErrorsScreen,
    }

    def __init__(
        self,
        source: RecordingSource,
        session: Session | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.source = source
        super().__init__(source, session or Session(rate=10), clock)
        self.model.remark = self.session.remark

    def make_model(self, source: DataSource, clock: Callable[[], float]) -> Model:
        """Return a model that takes pictures of a recording."""
        assert isinstance(source, RecordingSource)
        return RecordedModel(source, clock)

    def table_screen(self, table: str) -> RelayScreen:
        """Return the screen of one table."""
        return RecordedTableScreen(table)

    async def sample(self) -> None:
        """Take pictures until every command has been carried out."""
        while True:
            await self.model.sample_status()
            await self._fill_timeline()
            self.refresh_screens()
            if not self.source.waiting or self.model.failure is not None:
                return

    def drive(self, command: Command, then: Then | None = None) -> int:
        """Have the player do something at once; return the command's number."""
        number = self.source.command(command, then)
        if self._sampling is None or self._sampling.is_finished:
            self._sampling = self.run_worker(self.sample(), exit_on_error=True)
        return number

    def ask_to_leave(self) -> None:
        """Just leave: nothing runs, and nothing is lost."""
        self.exit("quit")

    def show_transaction(self, change: Change) -> None:
        """Show the transaction of a change."""
        self.run_worker(self._open_transaction(change), exit_on_error=True)

    def show_key(self, key: Key) -> None:
        """Show what became of a row."""
        self.push_screen(ExplainScreen(key))

    def show_rows(self, table: str) -> None:
        """Show a table's rows."""
        self.push_screen(AsOfScreen(table))

    async def _open_transaction(self, change: Change) -> None:
        start, stop = await self.source.transaction(change.position)
        self.push_screen(TransactionScreen(change, Bounds(start, stop)))

    async def _fill_timeline(self) -> None:
        front = self.front
        timeline = next(iter(front.query(Timeline)), None) if front is not None else None
        if timeline is not None and (wanted := timeline.wanted) is not None:
            timeline.set_buckets(await self.source.timeline(wanted))


def run_recording(
    view: RecordingView, reopen: Callable[[], RecordingView], at: str | None = None, remark: str = ""
) -> None:
    """Show a recording until the user leaves; ``remark`` is what should be known of it.

    Raises UsageError, or DamagedRecording when damage was met.
    """
    source = RecordingSource(view, reopen)
    if at is not None:
        source.player.seek_text(at)
    app = RecordingApp(source, Session(rate=10, remark=remark))
    app.run()
    if source.damage is not None:
        raise source.damage
