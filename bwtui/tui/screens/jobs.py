"""Commands that run behind the screens, and the dialogs of audits, replays, repairs and DDL trials."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.notifications import SeverityLevel
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from bwtui.errors import BwtuiError
from bwtui.escaping import escape
from bwtui.recording.explain import RowKey
from bwtui.tui.audit.session import (
    AuditSession,
    BackgroundJob,
    CommandExit,
    CommandPhase,
    CommandProcess,
    CommandProgress,
    Connections,
    RecordingAuditSession,
    RelayAuditSession,
)
from bwtui.tui.base import figures
from bwtui.tui.base.actions import why_absent
from bwtui.tui.base.keys import key_for
from bwtui.tui.base.plain import Content, Group, Text, fitted
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.screens.dialogs import (
    AskScreen,
    Ending,
    FormField,
    FormScreen,
    plan_content,
    repair_content,
    topic_to_type,
)
from bwtui.tui.screens.registry import trial_content
from bwtui.tui.sources.journey import query_of
from bwtui.tui.sources.model import Model
from bwtui.tui.sources.recorded_model import RecordingSource

_BAR = 40
_PER_SECOND = 5
#: Maximum phases shown before the present one.
_BEFORE = 6


class JobScreen(ModalScreen[None]):
    """Shows a command; Esc leaves it running in the background, c cancels it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Background", key_display="Esc"),
        Binding("c", "cancel", "Cancel"),
        Binding("right", "app.focus_next", show=False),
        Binding("left", "app.focus_previous", show=False),
    ]

    def __init__(self, job: BackgroundJob) -> None:
        super().__init__()
        self.job = job

    def compose(self) -> ComposeResult:
        with Vertical(id="job", classes="dialog") as box:
            box.border_title = Content(self.job.title)
            yield Static("", id="phases", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("In the background (Esc)", id="background", variant="primary", compact=True)
                yield Button("Cancel it (c)", id="cancel", compact=True)

    def on_mount(self) -> None:
        self.set_interval(1 / _PER_SECOND, self.refresh_progress)
        self.set_focus(self.query_one("#background"))
        self.refresh_progress()

    def refresh_progress(self) -> None:
        """Show the progress, or how the command ended."""
        job = self.job
        content = job_content(job)
        self.query_one("#phases", Static).update(content)
        self.query_one("#cancel").display = job.ended is None and not job.child.cancelled
        if job.ended is not None:
            self.query_one("#background", Button).label = "Close (Esc)"

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "cancel":
            self.action_cancel()
        else:
            self.dismiss()

    def action_cancel(self) -> None:
        """Interrupt the command; its result is shown when it has ended."""
        if self.job.ended is None:
            self.job.child.cancel()
            self.refresh_progress()


def job_content(job: BackgroundJob) -> Content:
    """Return the phases of a command with the progress of the present one, or its error."""
    progress = job.child.progress
    lines = [_past(one, after) for one, after in _finished(progress)]
    if job.ended is not None:
        return Content("\n").join([*lines, *_ending(job)])
    if job.child.cancelled:
        lines.append(Content.styled("▲ ending: waiting for the current work to finish", "bold $warning"))
    else:
        lines += _present(progress)
    return Content("\n").join(lines)


def _finished(progress: CommandProgress) -> list[tuple[CommandPhase, float]]:
    phases = progress.phases
    times = [phase.began for phase in phases[1:]]
    return [(p, end - p.began) for p, end in zip(phases, times, strict=False)][-_BEFORE:]


def _past(phase: CommandPhase, seconds: float) -> Content:
    rows = f"  {phase.total:,} rows" if phase.total else ""
    return Content.assemble(
        ("✓ ", "$success"), phase.name.partition(":")[0], (f"{rows}  {figures.duration(seconds)}", "$quiet")
    )


def _present(progress: CommandProgress) -> list[Content]:
    now, elapsed = progress.now, figures.duration(progress.clock() - progress.began)
    if now is None:
        return [Content.styled("starting…", "bold"), Content.styled(f"{elapsed} so far", "$quiet")]
    lines = [Content.assemble(("▸ ", "$primary"), (now.name.partition(":")[0], "bold"))]
    if now.total:
        share = progress.share or 0.0
        lines.append(
            Content.assemble(
                ("  " + figures.gauge(share, _BAR), "$primary"), (f" {figures.percent(share)}", "bold")
            )
        )
        rate, time_left = progress.rate, progress.left
        parts = [f"  {now.done:,} of {now.total:,}"]
        parts += [f"{figures.rate(rate)} rows/s"] if rate else []
        parts += [f"{figures.duration(time_left)} left"] if time_left is not None else []
        lines.append(Content(" · ".join(parts)))
    else:
        lines.append(Content.styled(f"  {figures.duration(progress.clock() - now.began)}", "$quiet"))
    return [*lines, Content.styled(f"{elapsed} so far", "$quiet")]


def _ending(job: BackgroundJob) -> list[Content]:
    ended = job.ended
    assert ended is not None
    if job.child.cancelled:
        # A relay continues with what it was asked to send; only the command knows whether it had asked.
        message = ended.error if ended.hint else "cancelled: the command has ended"
        lines = [Content.styled(f"■ {message}", "bold $warning")]
        return [*lines, Content.styled(f"→ {ended.hint}", "$warning")] if ended.hint else lines
    lines = [Content.styled(f"✗ {ended.error or f'exit code {ended.code}'}", "bold $error")]
    return [*lines, Content.styled(f"→ {ended.hint}", "$warning")] if ended.hint else lines


class JobsApp(App[Ending]):
    """Runs background commands for any kind of audit; subclasses decide which."""

    audit: AuditSession
    model: Model

    # Methods for subclasses to override.

    def show_mode(self, mode: str) -> None:
        """Switch to the screen of a mode."""
        raise NotImplementedError

    def ask_to_repair(self) -> None:
        """Do nothing: only a relay can repair; see `RelayAuditing`."""

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
        if self.model.readonly and not job.child.is_read_only:
            self.notify(f"{job.title}: not available with --readonly", severity="warning")
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
                dialog.refresh_progress()
            elif job.ended is not None and (job.ended.hint or not job.child.cancelled):
                self._notify_failure(job, job.ended)
            return
        assert job.ended is not None
        if dialog is not None:
            dialog.dismiss()
        try:
            output = job.ended.output if job.title == "Verify" else json.loads(job.ended.output)
        except ValueError:
            self.notify(f"{job.title}: its output can't be read", severity="error")
            return
        job.then(output, dialog is not None)

    def _notify_failure(self, job: BackgroundJob, ended: CommandExit) -> None:
        text = escape(ended.error) + (f"\n→ {escape(ended.hint)}" if ended.hint else "")
        ended_so = "cancelled" if job.child.cancelled else "failed"
        severity: SeverityLevel = "warning" if job.child.cancelled else "error"
        self.notify(text, title=f"{job.title} {ended_so}", severity=severity, timeout=15)


_QUESTION = (
    "Do the topics' latest values equal the tables' rows? Both are read as of one LSN, while "
    "writes and the relay continue; nothing is changed."
)
_REPAIR_AGAIN = "The topics are compared again first; the differences found then are sent."
_END = (
    "No difference remains that can be compared, but the tables above have no reliable comparison. "
    "Ending the heal of the slot accepts their topics as they are."
)
_TRIAL = (
    "Would the schema registry accept the tables as they would be after a DDL file? The file runs "
    "in a transaction that is rolled back. It holds its locks until then, with a lock timeout of 3 "
    "s. No schema is registered."
)


class RelayAuditing(JobsApp):
    """Mix-in of the app that audits its relay and tries DDL."""

    #: The last tried file.
    _script = ""

    def ask_to_verify(self) -> None:
        """Ask which tables to audit; while a command runs, show that one."""
        if self.show_job():
            return
        fields = [
            FormField("--table", "tables", self._selected_table_regex(), "regex; empty: all", is_typed=True)
        ]
        form = FormScreen("Verify the tables", _QUESTION, fields, "Verify")
        self.push_screen(form, self._verify_tables)

    def _selected_table_regex(self) -> str:
        """Return a regex of the selected table on the screens of the overview mode; "" elsewhere."""
        screen = next((one for one in reversed(self.screen_stack) if isinstance(one, RelayScreen)), None)
        table = screen.selected_table() if screen is not None and screen.mode == "overview" else None
        return re.escape(table) if table else ""

    def _verify_tables(self, values: dict[str, str] | None) -> None:
        if values is None:
            return
        assert isinstance(self.audit, RelayAuditSession)
        arguments = self.audit.verify_arguments(values.get("--table", ""))
        self.start_job(BackgroundJob("Verify", self.child(arguments), self.verified))

    def ask_to_repair(self) -> None:
        """Compare again, show what would be sent, and ask; while a command runs, show that one."""
        report = self.audit.report
        status = self.model.live.status
        is_due = status is not None and status.heal is not None
        if self.show_job() or (report is None and not is_due):
            return
        assert isinstance(self.audit, RelayAuditSession)
        # A heal always covers all tables.
        arguments = self.audit.repair_arguments(None if is_due else report)

        def show_plan(plan: Any, _: bool) -> None:
            do = "Send them" if plan.get("messages") else "End the heal" if plan.get("ends_heal") else ""
            summary = repair_content(plan, self.theme_variables)
            content = Group(summary, "", _REPAIR_AGAIN if plan.get("messages") else _END) if do else summary
            ask = AskScreen("Planned repair", content, do, careful=True)
            self.push_screen(ask, lambda go: self._repair(arguments) if go else None)

        self.start_job(BackgroundJob("Dry run", self.child((*arguments, "--dry-run")), show_plan))

    def _repair(self, arguments: tuple[str, ...]) -> None:
        def repaired(output: Any, _: bool) -> None:
            if report := output.get("report"):
                # Show the new report, because the old one's findings are out of date.
                self.audit.take(json.dumps(report).encode())
                self.refresh_screens()
            self.push_screen(AskScreen("Result of the repair", repair_content(output, self.theme_variables)))

        self.start_job(BackgroundJob("Repair", self.child((*arguments, "--yes")), repaired))

    def ask_to_try_ddl(self) -> None:
        """Ask for a DDL file; while a command runs, show that one."""
        if self.show_job():
            return
        field = FormField("script", "DDL file", self._script, "empty: the present tables", is_path=True)
        self.push_screen(FormScreen("Try a DDL file", _TRIAL, [field], "Try it"), self._try_ddl)

    def _try_ddl(self, values: dict[str, str] | None) -> None:
        if values is None:
            return
        self._script = values.get("script", "")
        # An absolute path can't be mistaken for an option or for stdin.
        path = absolute(self._script)
        assert isinstance(self.audit, RelayAuditSession)

        def tried(output: Any, in_front: bool) -> None:
            self._show_trial(output, Path(path).name, in_front)

        self.start_job(BackgroundJob("Try DDL", self.child(self.audit.trial_arguments(path)), tried))

    def _show_trial(self, output: Any, script: str, in_front: bool) -> None:
        content = trial_content(output, script, self.theme_variables)
        if in_front or output.get("ok") is False:
            self.push_screen(AskScreen(f"After {script}" if script else "The present tables", content))
        else:
            self.notify("every table is compatible", title=f"Tried {script or 'the tables'}", timeout=10)


def absolute(path: str) -> str:
    """Return the absolute form of a path; "" stays empty."""
    if not path:
        return ""
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError:
        # The user name after ~ does not exist.
        return str(Path(path).absolute())


_VERIFY = (
    "Does Kafka contain what this recording says was sent? Every message and every record is read; "
    "nothing is changed."
)
_REPLAY = (
    "Writes the recording's messages into topics again. A dry run first shows what it would send; "
    "then it asks for confirmation."
)
_MEND = (
    "Sends the messages that the audit reported missing, and after them the newest message of each "
    "key, so that latest values are right. The order can't be restored. A dry run first shows what "
    "it would send; then it asks for confirmation."
)
_AGAIN = (
    "Sends the recorded messages of {key} again. A dry run first shows what it would send; then it "
    "asks for confirmation."
)


class RecordingAuditing(JobsApp):
    """Mix-in of the app that audits and replays its recording."""

    recording_audit: RecordingAuditSession
    source: RecordingSource

    # -- dialogs -------------------------------------------------------------------------------------------

    def ask_to_verify(self) -> None:
        """Ask for the addresses of Kafka and the registry; while a command runs, show that one."""
        if self.show_job():
            return
        deep = FormField("deep", "also compare every message with PostgreSQL's data", is_switch=True)
        form = FormScreen("Verify this recording", _VERIFY, [*self._services(), deep], "Verify")
        self.push_screen(form, self._verify)

    def ask_to_try_ddl(self) -> None:
        """Explain why a recording can't try DDL."""
        self.notify(why_absent("try_ddl"), severity="warning", timeout=4)

    def ask_to_replay(self, *, mend: bool) -> None:
        """Ask what to replay; if a command is running or a dry run has ended, show that instead."""
        if self.show_job():
            return
        if self.recording_audit.plan is not None:
            self._show_plan()
            return
        fields = self._services()
        if not mend:
            fields += [
                FormField("--topic-prefix", "topic prefix", "", "empty: the recorded topics themselves"),
                FormField("--table", "tables", "", "regex; empty: all"),
                FormField("--rate", "messages/s", "", "empty: as fast as possible"),
            ]
        title = "Replay missing messages" if mend else "Replay this recording"
        form = FormScreen(title, _MEND if mend else _REPLAY, fields, "Dry run first")
        self.push_screen(form, lambda values: self._dry_run(values, mend=mend))

    def ask_to_send_again(self, key: RowKey, position: int, remark: str) -> None:
        """Ask how to send a key again; its newest message belongs to the change at ``position``."""
        if self.show_job():
            return
        if self.recording_audit.plan is not None:
            self._show_plan()
            return
        fields = [
            *self._services(),
            FormField("newest", "only its newest message, instead of all in order", "yes", is_switch=True),
            FormField("--topic-prefix", "topic prefix", "", "empty: the recorded topic itself"),
        ]

        def answer(values: dict[str, str] | None) -> None:
            if values is not None:
                query = query_of(key, position if values.pop("newest", "") else None)
                values["--where"] = query or ""
            self._dry_run(values, mend=False)

        words = f"{_AGAIN.format(key=fitted(f'{key.table} {key}', 200))} {remark}".strip()
        self.push_screen(FormScreen("Send this key again", words, fields, "Dry run first"), answer)

    def _services(self) -> list[FormField]:
        services = self.recording_audit.connections or Connections("", "")
        source = self.source.view.source
        return [
            FormField("broker", "brokers", services.broker or source.broker, "host:port, …"),
            FormField("registry", "registry", services.registry or source.registry, "http://…"),
        ]

    def _take_services(self, values: dict[str, str]) -> None:
        audit = self.recording_audit
        audit.connections = replace(
            audit.connections or Connections("", ""),
            broker=values.pop("broker", ""),
            registry=values.pop("registry", ""),
        )

    # -- commands ------------------------------------------------------------------------------------------

    def _verify(self, values: dict[str, str] | None) -> None:
        if values is None:
            return
        self._take_services(values)
        arguments = self.recording_audit.verify_arguments(deep=bool(values.get("deep")))
        self.start_job(BackgroundJob("Verify", self.child(arguments), self.verified))

    def _dry_run(self, values: dict[str, str] | None, *, mend: bool) -> None:
        if values is None:
            return
        self._take_services(values)
        arguments = self.recording_audit.replay_arguments(values, mend=mend)

        def keep_plan(output: Any, in_front: bool) -> None:
            self.recording_audit.plan = (output, arguments)
            if in_front:
                self._show_plan()
            else:
                self.notify(f"{key_for('replay')} shows the planned replay", title="The dry run has finished")

        self.start_job(BackgroundJob("Dry run", self.child((*arguments, "--dry-run")), keep_plan))

    def _show_plan(self) -> None:
        assert self.recording_audit.plan is not None
        plan, arguments = self.recording_audit.plan
        content = plan_content(plan, self.theme_variables)

        def answer(go: bool | None) -> None:
            self.recording_audit.plan = None
            if go:
                self.start_job(BackgroundJob("Replay", self.child((*arguments, "--yes")), self._replayed))

        do = "Send them" if plan.get("messages") else ""
        ask = AskScreen("Planned replay", content, do, careful=True, name=topic_to_type(plan))
        self.push_screen(ask, answer)

    # -- results -------------------------------------------------------------------------------------------

    def _replayed(self, output: Any, in_front: bool) -> None:
        seconds = float(output.get("seconds") or 0)
        sent = int(output.get("sent", 0))
        rate = f" ({sent / seconds:,.0f}/s)" if seconds else ""
        result = f"sent {sent:,} messages in {seconds:,.1f} s{rate}"
        lines = [Text(f"✓ {result}", f"bold {self.theme_variables['success']}")]
        if output.get("doubled_at_most"):
            lines.append(Text(f"▲ at most {output['doubled_at_most']:,} of them are duplicates"))
        lines += [Text(f"▲ {note}") for note in output.get("notes", ())]
        topics = output.get("topics", {})
        if any(name == topic.get("recorded") for name, topic in topics.items()):
            lines.append(
                Text(f"{key_for('verify')} verifies again: the report shown is older than this replay")
            )
        if in_front:
            self.push_screen(AskScreen("Replayed", Group(*lines)))
        else:
            self.notify(result, title="Replayed", timeout=10)
