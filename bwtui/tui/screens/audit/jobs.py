"""The base of the apps: runs commands in the background, one at a time, and shows their results."""

import json

from textual.app import App
from textual.notifications import SeverityLevel

from bwtui.errors import BwtuiError
from bwtui.escaping import escape
from bwtui.tui.audit.command_process import CommandExit, CommandProcess
from bwtui.tui.audit.session import AuditSession, BackgroundJob
from bwtui.tui.keys import key_for
from bwtui.tui.screens.audit.progress import JobScreen
from bwtui.tui.screens.dialogs import Ending
from bwtui.tui.state import Model


class JobsApp(App[Ending]):
    """Runs background commands for any kind of audit; subclasses decide which."""

    audit: AuditSession
    model: Model

    # Methods for subclasses to override.

    def show_mode(self, mode: str) -> None:
        """Switch to the screen of a mode."""
        raise NotImplementedError

    def ask_to_repair(self) -> None:
        """Do nothing: only a relay can repair; see `bwtui.tui.screens.audit.relay`."""

    def refresh_screens(self) -> None:
        """Paint the visible screen."""
        raise NotImplementedError

    def child(self, arguments: tuple[str, ...]) -> CommandProcess:
        """Return a command to run; tests override this."""
        return CommandProcess(arguments)

    # Running.

    def show_job(self) -> bool:
        """Show the running command; return whether there is one."""
        job = self.audit.job
        if job is not None:
            self.push_screen(JobScreen(job))
        return job is not None

    def start_job(self, job: BackgroundJob) -> None:
        """Run a command, and show its progress; in read-only mode, only a command that changes nothing."""
        if self.model.readonly and not job.child.only_looks:
            self.notify(f"{job.title}: with --readonly the screens only look", severity="warning")
            return
        self.audit.job = job
        self.run_worker(self._run_job(job), group="job", exit_on_error=True)
        self.push_screen(JobScreen(job))

    async def end_job(self) -> None:
        """End the running command, and wait until it has ended."""
        if (job := self.audit.job) is not None:
            await job.child.end()

    async def _run_job(self, job: BackgroundJob) -> None:
        try:
            job.ended = await job.child.run()
        finally:
            self.audit.job = None
        self._show_end(job)

    # Showing.

    def show_background(self) -> None:
        """Show the running command in the second line of every screen."""
        job = self.audit.job
        self.model.background = "" if job is None else job.line()

    def verified(self, output: bytes, in_front: bool) -> None:
        """Show the report of an audit, or a notice about it if its dialog is no longer in front."""
        try:
            report = self.audit.take(output)
        except BwtuiError as error:
            self.notify(str(error), severity="error")
            return
        if in_front:
            self.show_mode("audit")
        else:
            result = "clean" if report.verdict == "clean" else f"{report.verdict}: {report.wrong:,}"
            key = key_for("show('audit')")
            self.notify(f"{key} shows the report", title=f"Verified: {result}", timeout=10)
        self.refresh_screens()

    def _show_end(self, job: BackgroundJob) -> None:
        """Show the result of a command, or its error in its dialog or in a notice."""
        dialog = next((it for it in self.screen_stack if isinstance(it, JobScreen) and it.job is job), None)
        self.show_background()
        if job.failed and not job.child.cancelled and job.title == "Verify":
            self.audit.failed = job.ended
        if job.failed:
            if dialog is not None:
                dialog.look()
            elif job.ended is not None and (job.ended.hint or not job.child.cancelled):
                self._notify_failure(job, job.ended)
            return
        assert job.ended is not None
        if dialog is not None:
            dialog.dismiss()
        try:
            output = job.ended.output if job.title == "Verify" else json.loads(job.ended.output)
        except ValueError:
            self.notify(f"{job.title}: what it said can't be read", severity="error")
            return
        job.then(output, dialog is not None)

    def _notify_failure(self, job: BackgroundJob, ended: CommandExit) -> None:
        text = escape(ended.error) + (f"\n→ {escape(ended.hint)}" if ended.hint else "")
        ended_so = "cancelled" if job.child.cancelled else "failed"
        severity: SeverityLevel = "warning" if job.child.cancelled else "error"
        self.notify(text, title=f"{job.title} {ended_so}", severity=severity, timeout=15)
