"""The screens over a recording: the same ones as on a relay, and those that look closer or audit it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from textual.screen import Screen

from bwtui.recording.change import Change
from bwtui.recording.reading.explain import Key
from bwtui.recording.reading.window import Bounds
from bwtui.recording.view import RecordingView
from bwtui.tui.app import RelayApp
from bwtui.tui.audit.desk import RecordingDesk
from bwtui.tui.plain import Text
from bwtui.tui.playback import Command, RecordedModel, RecordingSource, Then
from bwtui.tui.running import run_app
from bwtui.tui.screens.as_of import AsOfScreen
from bwtui.tui.screens.auditing import Auditing
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.screens.errors import ErrorsScreen
from bwtui.tui.screens.explain import ExplainScreen
from bwtui.tui.screens.forms import AskScreen
from bwtui.tui.screens.overview import OverviewScreen
from bwtui.tui.screens.recorded import RecordedChangesScreen, RecordedTableScreen, TransactionScreen
from bwtui.tui.screens.registry import RegistryScreen
from bwtui.tui.screens.report import ReportScreen
from bwtui.tui.state import DataSource, Model, Session
from bwtui.tui.widgets.transport import Timeline


class RecordingApp(Auditing, RelayApp):
    """Plays a recording."""

    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        "overview": OverviewScreen,
        "changes": RecordedChangesScreen,
        "registry": RegistryScreen,
        "errors": ErrorsScreen,
        "audit": ReportScreen,
    }

    def __init__(
        self,
        source: RecordingSource,
        session: Session | None = None,
        clock: Callable[[], float] = time.time,
        desk: RecordingDesk | None = None,
    ) -> None:
        self.source = source
        self.recording_desk = desk or RecordingDesk(Path(source.name))
        super().__init__(source, session or Session(rate=10), clock, self.recording_desk)
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
        self.show_background()
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
        """Just leave; but while a command runs beside the screens, say that it ends with them."""
        job = self.recording_desk.job
        if job is None:
            self.exit("quit")
        elif job.child.cancelled:
            self.notify("It is ending: what it sent becomes durable first", timeout=3)
        else:
            more = " What it has sent stays, and the same replay goes on from there."
            text = f"{job.title} is still running, and ends with the screens."
            content = Text(text + (more if job.title == "Replay" else ""))
            self.push_screen(AskScreen("Leave", content, "End it and leave", careful=True), self._leave_jobs)

    def _leave_jobs(self, go: bool | None) -> None:
        if go:
            self._end_with("quit")

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
    view: RecordingView,
    reopen: Callable[[], RecordingView],
    at: str | None = None,
    remark: str = "",
    desk: RecordingDesk | None = None,
) -> None:
    """Show a recording until the user leaves; ``remark`` is what should be known of it.

    With a report on the desk it is shown first, otherwise the last one of this recording is at hand.
    Raises UsageError, or DamagedRecording when damage was met.
    """
    source = RecordingSource(view, reopen)
    if at is not None:
        source.player.seek_text(at)
    app = RecordingApp(source, Session(rate=10, remark=remark), desk=desk)
    if app.recording_desk.report is not None:
        app.first_mode = "audit"
    app.recording_desk.remember(view.source.recording)
    run_app(app, "the recording is as it was: 'bwtui open' shows it again")
    if source.damage is not None:
        raise source.damage
