"""The screens over a recording: the same ones as on a relay, and those that look closer or audit it."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from bwtui.recording.view import RecordingView
from bwtui.tui.actions import tabs
from bwtui.tui.app import RelayApp
from bwtui.tui.audit.session import RecordingAuditSession
from bwtui.tui.choices.chosen import Choices
from bwtui.tui.host import Host, Opener, RecordingHost
from bwtui.tui.plain import Text
from bwtui.tui.playback import Command, RecordedModel, RecordingSource, Then
from bwtui.tui.running import run_app
from bwtui.tui.screens.audit.forms import AskScreen
from bwtui.tui.screens.audit.recording import RecordingAuditing
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.screens.journey.recorded import RecordedJourney
from bwtui.tui.screens.recording.changes import RecordedChangesScreen, RecordedTableScreen, TransactionScreen
from bwtui.tui.screens.recording.rows import AsOfScreen
from bwtui.tui.screens.recording.transactions import RecordedTransactionsScreen
from bwtui.tui.state import Session
from bwtui.tui.widgets.recording.transport import Timeline

#: Seconds after which even a recording that is paused is painted: reports say how old they are.
QUIET_FOR = 20.0

#: Seconds between two looks at whether anything is to be done, while nothing moves.
QUIET_TICK = 1.0


class RecordingApp(RecordingAuditing, RelayApp):
    """Plays a recording."""

    MODE_SCREENS: ClassVar[Mapping[str, Callable[[Host], RelayScreen]]] = {
        **{mode: screen for mode, screen in RelayApp.MODE_SCREENS.items() if mode in tabs("recording")},
        "changes": RecordedChangesScreen,
        "transactions": RecordedTransactionsScreen,
    }
    OPENERS: ClassVar[Mapping[str, Opener]] = {
        **RelayApp.OPENERS,
        "table": RecordedTableScreen.of,
        "transaction": TransactionScreen.of,
        "journey": RecordedJourney.of,
        "rows": AsOfScreen.of,
    }

    def __init__(
        self,
        source: RecordingSource,
        session: Session | None = None,
        clock: Callable[[], float] = time.time,
        audit: RecordingAuditSession | None = None,
    ) -> None:
        self.source = source
        self.recording_audit = audit or RecordingAuditSession(Path(source.name))
        self.recording_audit.recording = source.view.source.recording
        model = RecordedModel(source, clock)
        super().__init__(model, session or Session(rate=10), self.recording_audit)
        model.remark = self.session.remark
        self._ticked = float("-inf")

    @property
    def recording(self) -> RecordingHost:
        """The recording is played here."""
        return self

    def tick(self) -> None:
        """Take a picture, unless nothing can have changed since the last one."""
        now = self.model.clock()
        if self._is_quiet() and abs(now - self._ticked) < QUIET_FOR:
            # A timer alone costs half of a percent of a core at ten turns a second.
            self.ticking.pause()
            self.set_timer(QUIET_TICK, self.ticking.resume)
            return
        self._ticked = now
        super().tick()

    def _is_quiet(self) -> bool:
        """Tell whether nothing moves, runs, or is still to be drawn."""
        if not self.source.stands_still or any(not worker.is_finished for worker in self.workers):
            return False
        timeline = self._timeline()
        return timeline is None or timeline.wanted is None

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
        self.ticking.resume()
        if self._sampling is None or self._sampling.is_finished:
            self._sampling = self.run_worker(self.sample, exit_on_error=True)
        return number

    def ask_to_leave(self) -> None:
        """Just leave; but while a command runs beside the screens, say that it ends with them."""
        job = self.recording_audit.job
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

    def _timeline(self) -> Timeline | None:
        return next(iter(self.front.query(Timeline)), None) if self.front is not None else None

    async def _fill_timeline(self) -> None:
        timeline = self._timeline()
        if timeline is not None and (wanted := timeline.wanted) is not None:
            timeline.set_buckets(await self.source.timeline(wanted))


def run_recording(
    view: RecordingView,
    reopen: Callable[[], RecordingView],
    at: str | None = None,
    remark: str = "",
    audit: RecordingAuditSession | None = None,
    choices: Choices | None = None,
) -> None:
    """Show a recording until the user leaves; ``remark`` is what should be known of it.

    With a report in ``audit`` that is shown first, otherwise the last one of this recording is at hand.
    Raises UsageError, or DamagedRecording when damage was met.
    """
    source = RecordingSource(view, reopen)
    if at is not None:
        source.player.seek_text(at)
    session = Session(rate=10, remark=remark, choices=choices or Choices())
    app = RecordingApp(source, session, audit=audit)
    if app.recording_audit.report is not None:
        app.first_mode = "audit"
    app.recording_audit.remember()
    run_app(app, "the recording is as it was: 'bwtui open' shows it again")
    if source.damage is not None:
        raise source.damage
