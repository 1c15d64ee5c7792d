"""What the app does about a command that runs beside the screens, whatever it audits."""

import json
from typing import TYPE_CHECKING, Any, cast

from bwtui.shown import shown
from bwtui.tui.audit.child import Child, Ended
from bwtui.tui.audit.desk import Desk, Job
from bwtui.tui.audit.report import AuditReport
from bwtui.tui.screens.job import JobScreen

if TYPE_CHECKING:
    from bwtui.tui.app import RelayApp


class Jobs:
    """One command at a time; `RelayApp` is one."""

    desk: Desk

    @property
    def _screens(self) -> "RelayApp":
        return cast("RelayApp", self)

    def child(self, arguments: tuple[str, ...]) -> Child:
        """Return a command that can be run; a test gives one of its own."""
        return Child(arguments)

    def show_job(self) -> bool:
        """Show what runs; return whether anything does."""
        job = self.desk.job
        if job is not None:
            self._screens.push_screen(JobScreen(job))
        return job is not None

    def start_job(self, job: Job) -> None:
        """Run a command, and show how far it is."""
        self.desk.start(self._screens, job)
        self._screens.push_screen(JobScreen(job))

    def job_ended(self, job: Job) -> None:
        """Show the result of a command; a failed one says why where its dialog is, or in a notice."""
        app = self._screens
        dialog = next(
            (one for one in app.screen_stack if isinstance(one, JobScreen) and one.job is job), None
        )
        self.show_background()
        if job.failed or job.child.cancelled:
            if dialog is not None:
                dialog.look()
            elif job.ended is not None and not job.child.cancelled:
                self._tell_failure(job, job.ended)
            return
        assert job.ended is not None
        if dialog is not None:
            dialog.dismiss()
        try:
            output = job.ended.output if job.title == "Verify" else json.loads(job.ended.output)
        except ValueError:
            app.notify(f"{job.title}: what it said can't be read", severity="error", markup=False)
            return
        job.then(output, dialog is not None)

    def show_background(self) -> None:
        """Say in every screen's second line what runs."""
        job = self.desk.job
        self._screens.model.background = "" if job is None else job.line()

    def show_report(self, report: AuditReport, in_front: bool) -> None:
        """Show what an audit found; who looks at something else by now is told of it."""
        app = self._screens
        if in_front:
            app.show_mode("audit")
        else:
            found = "clean" if report.verdict == "clean" else f"{report.verdict}: {report.wrong:,}"
            app.notify("5 shows the report", title=f"Verified: {found}", timeout=10)
        app.refresh_screens()

    async def end_job(self) -> None:
        """End what runs, and wait until it has ended."""
        if (job := self.desk.job) is not None:
            await job.child.end()

    def _tell_failure(self, job: Job, ended: Ended) -> None:
        text = shown(ended.error) + (f"\n→ {shown(ended.hint)}" if ended.hint else "")
        told: Any = self._screens.notify
        told(text, title=f"{job.title} failed", severity="error", timeout=15, markup=False)
