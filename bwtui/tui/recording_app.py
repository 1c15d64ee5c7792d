"""The app over a recording: the relay's screens, and those that inspect or audit a recording."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from bwtui.recording.view import RecordingView
from bwtui.tui.app import RelayApp, run_app
from bwtui.tui.audit.session import AuditSession, RecordingAuditSession
from bwtui.tui.base.actions import Kind, tabs
from bwtui.tui.base.choices import Choices
from bwtui.tui.base.plain import Text
from bwtui.tui.screens.audit import ReportScreen
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.screens.changes import RecordedChangesScreen, RecordedTableScreen
from bwtui.tui.screens.dialogs import AskScreen
from bwtui.tui.screens.jobs import RecordingAuditing
from bwtui.tui.screens.journey import RecordedJourney
from bwtui.tui.screens.rows import AsOfScreen
from bwtui.tui.screens.transactions import RecordedTransactionsScreen, TransactionScreen
from bwtui.tui.sources.host import Opener, RecordingHost, ScreenHost
from bwtui.tui.sources.model import Model, ViewSettings
from bwtui.tui.sources.recorded_model import Command, RecordedModel, RecordingSource, Then
from bwtui.tui.widgets.transport import Timeline

#: Seconds after which even a paused recording is repainted, because reports show their age.
QUIET_FOR = 20.0

#: Seconds between two checks for work while nothing moves.
QUIET_TICK = 1.0


class RecordingApp(RecordingAuditing, RelayApp):
    """Plays a recording."""

    MODE_SCREENS: ClassVar[Mapping[str, Callable[[ScreenHost], RelayScreen]]] = {
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
        session: ViewSettings | None = None,
        clock: Callable[[], float] = time.time,
        audit: RecordingAuditSession | None = None,
    ) -> None:
        self.source = source
        self.recording_audit = audit or RecordingAuditSession(Path(source.name))
        self.recording_audit.recording = source.view.source.recording
        model = RecordedModel(source, clock)
        super().__init__(model, session or ViewSettings(rate=10), self.recording_audit)
        model.remark = self.session.remark
        self._ticked = float("-inf")

    @property
    def recording(self) -> RecordingHost:
        return self

    def tick(self) -> None:
        """Take a snapshot, unless nothing can have changed since the last one."""
        now = self.model.clock()
        if self._is_quiet() and abs(now - self._ticked) < QUIET_FOR:
            # The timer alone uses 0.5 % of a core at ten ticks per second.
            self.ticking.pause()
            self.set_timer(QUIET_TICK, self.ticking.resume)
            return
        self._ticked = now
        super().tick()

    def _is_quiet(self) -> bool:
        """Return whether nothing moves, runs or remains to be drawn."""
        if not self.source.stands_still or any(not worker.is_finished for worker in self.workers):
            return False
        timeline = self._timeline()
        return timeline is None or timeline.buckets_needed is None

    async def sample(self) -> None:
        """Take snapshots until every command has been carried out."""
        self.show_background()
        while True:
            await self.model.sample_status()
            await self._fill_timeline()
            self.refresh_screens()
            if not self.source.waiting or self.model.failure is not None:
                return

    def drive(self, command: Command, then: Then | None = None) -> int:
        """Make the player carry out a command at once; return the command's number."""
        number = self.source.command(command, then)
        self.ticking.resume()
        if self._sampling is None or self._sampling.is_finished:
            self._sampling = self.run_worker(self.sample, exit_on_error=True)
        return number

    def ask_to_leave(self) -> None:
        """Leave without a question; but if a child process is running, first ask whether to end it."""
        job = self.recording_audit.job
        if job is None:
            self.exit("quit")
        elif job.child.cancelled:
            self.notify("It is ending; the messages already sent become durable first", timeout=3)
        else:
            more = " Messages already sent stay in their topics, and the same replay continues from there."
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
        if timeline is not None and (range_needed := timeline.buckets_needed) is not None:
            timeline.set_buckets(await self.source.timeline(range_needed))


def run_recording(
    view: RecordingView,
    reopen: Callable[[], RecordingView],
    at: str | None = None,
    remark: str = "",
    audit: RecordingAuditSession | None = None,
    choices: Choices | None = None,
) -> None:
    """Show a recording until the user leaves; ``remark`` is a note about it for the header.

    A report in ``audit`` is shown first; otherwise the last report of this recording is available. Raises
    UsageError, or DamagedRecording if damage was found.
    """
    source = RecordingSource(view, reopen)
    if at is not None:
        source.player.seek_text(at)
    session = ViewSettings(rate=10, remark=remark, choices=choices or Choices())
    app = RecordingApp(source, session, audit=audit)
    if app.recording_audit.report is not None:
        app.first_mode = "audit"
    app.recording_audit.remember()
    run_app(app, "the recording was not changed; 'bwtui open' opens it again")
    if source.damage is not None:
        raise source.damage


class ReportModel(Model):
    """Samples nothing, because a report never changes."""

    kind: Kind = "report"


class ReportApp(RelayApp):
    """Shows one screen, and the expected and actual message as far as the report and Kafka have them."""

    MODE_SCREENS: ClassVar[Mapping[str, Callable[[ScreenHost], RelayScreen]]] = {"audit": ReportScreen}
    DEFAULT_MODE = "audit"

    def __init__(
        self,
        name: str,
        audit: AuditSession,
        clock: Callable[[], float] = time.time,
        choices: Choices | None = None,
    ) -> None:
        is_recorded = audit.report is not None and audit.report.question == "recording"
        remark = "only the report, without its recording" if is_recorded else "only the report"
        model = ReportModel(name, clock)
        super().__init__(model, ViewSettings(rate=1, choices=choices or Choices()), audit)
        model.remark = remark

    def ask_to_leave(self) -> None:
        self.exit("quit")


def run_report(name: str, audit: AuditSession, choices: Choices | None = None) -> None:
    """Show a report until the user leaves."""
    run_app(
        ReportApp(name, audit, choices=choices), "the report was not changed; 'bwtui open' opens it again"
    )
