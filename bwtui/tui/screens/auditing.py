"""The dialogs around an audit and a replay of the recording that is open."""

import json
from typing import TYPE_CHECKING, Any, cast

from rich.console import Group
from rich.text import Text

from bwtui.errors import BwtuiError
from bwtui.tui.audit.child import Child, Ended
from bwtui.tui.audit.desk import Connections, Job, RecordingDesk
from bwtui.tui.screens.forms import AskScreen, Field, FormScreen, plan_content
from bwtui.tui.screens.job import JobScreen

if TYPE_CHECKING:
    from bwtui.tui.recording_app import RecordingApp

_VERIFY = (
    "Does Kafka hold what this recording says was sent? Every message and every record is read, "
    "and nothing is changed."
)
_REPLAY = (
    "Writes the recording's messages into topics again. First it only looks, and says what it would do; "
    "then it asks."
)
_MEND = (
    "Sends what the audit found missing, and behind it each key's newest message, so that latest values "
    "are right. Order can't be mended. First it only looks; then it asks."
)


class Auditing:
    """What the app does about audits; `RecordingApp` is one."""

    recording_desk: RecordingDesk

    @property
    def _app(self) -> "RecordingApp":
        return cast("RecordingApp", self)

    @property
    def _recording_id(self) -> str:
        return self._app.source.view.source.recording

    # -- asking --------------------------------------------------------------------------------------------

    def ask_to_verify(self) -> None:
        """Ask where Kafka is; while a command runs, show that."""
        if self._show_job():
            return
        deep = Field("deep", "also compare every message with what PostgreSQL said", is_switch=True)
        form = FormScreen("Verify this recording", _VERIFY, [*self._services(), deep], "Verify")
        self._app.push_screen(form, self._verify)

    def ask_to_replay(self, *, mend: bool) -> None:
        """Ask what to replay; while a command runs, or when a dry run waits to be looked at, show that."""
        if self._show_job():
            return
        if self.recording_desk.plan is not None:
            self._show_plan()
            return
        fields = self._services()
        if not mend:
            fields += [
                Field("--topic-prefix", "topic prefix", "", "empty: into the recorded topics themselves"),
                Field("--table", "tables", "", "regex; empty: all"),
                Field("--rate", "messages/s", "", "empty: as fast as it goes"),
            ]
        title = "Mend what is missing" if mend else "Replay this recording"
        form = FormScreen(title, _MEND if mend else _REPLAY, fields, "Look first")
        self._app.push_screen(form, lambda values: self._look_first(values, mend=mend))

    def _show_job(self) -> bool:
        job = self.recording_desk.job
        if job is not None:
            self._app.push_screen(JobScreen(job))
        return job is not None

    def _services(self) -> list[Field]:
        known = self.recording_desk.connections or Connections("", "")
        source = self._app.source.view.source
        return [
            Field("broker", "brokers", known.broker or source.broker, "host:port, …"),
            Field("registry", "registry", known.registry or source.registry, "http://…"),
        ]

    def _take_services(self, values: dict[str, str]) -> None:
        desk = self.recording_desk
        known = desk.connections or Connections("", "")
        broker, registry = values.pop("broker", ""), values.pop("registry", "")
        desk.connections = Connections(broker, registry, known.arguments, known.connect)

    # -- doing ---------------------------------------------------------------------------------------------

    def child(self, arguments: tuple[str, ...]) -> Child:
        """Return a command that can be run; a test gives one of its own."""
        return Child(arguments)

    def _verify(self, values: dict[str, str] | None) -> None:
        if values is None:
            return
        self._take_services(values)
        arguments = self.recording_desk.verify_arguments(deep=bool(values.get("deep")))
        self._start(Job("Verify", self.child(arguments), self._verified))

    def _look_first(self, values: dict[str, str] | None, *, mend: bool) -> None:
        if values is None:
            return
        self._take_services(values)
        arguments = self.recording_desk.replay_arguments(values, mend=mend)

        def looked(output: Any, in_front: bool) -> None:
            self.recording_desk.plan = (output, arguments)
            if in_front:
                self._show_plan()
            else:
                self._app.notify("r shows what the replay would do", title="The dry run is done")

        self._start(Job("Dry run", self.child((*arguments, "--dry-run")), looked))

    def _show_plan(self) -> None:
        assert self.recording_desk.plan is not None
        plan, arguments = self.recording_desk.plan
        content = plan_content(plan, self._app.theme_variables)

        def answer(go: bool | None) -> None:
            self.recording_desk.plan = None
            if go:
                self._start(Job("Replay", self.child((*arguments, "--yes")), self._replayed))

        do = "Send them" if plan.get("messages") else ""
        self._app.push_screen(AskScreen("What the replay would do", content, do, careful=True), answer)

    def _start(self, job: Job) -> None:
        self.recording_desk.start(self._app, job)
        self._app.push_screen(JobScreen(job))

    # -- ended ---------------------------------------------------------------------------------------------

    def job_ended(self, job: Job) -> None:
        """Show the result of a command; a failed one says why where its dialog is, or in a notice."""
        app = self._app
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
        job = self.recording_desk.job
        self._app.model.background = "" if job is None else job.line()

    def _tell_failure(self, job: Job, ended: Ended) -> None:
        text = ended.error + (f"\n→ {ended.hint}" if ended.hint else "")
        self._app.notify(text, title=f"{job.title} failed", severity="error", timeout=15, markup=False)

    def _verified(self, output: bytes, in_front: bool) -> None:
        app = self._app
        try:
            report = self.recording_desk.keep(output, self._recording_id)
        except BwtuiError as error:
            app.notify(str(error), severity="error", markup=False)
            return
        if in_front:
            app.show_mode("audit")
        else:
            found = "clean" if report.verdict == "clean" else f"{report.verdict}: {report.wrong:,}"
            app.notify("5 shows the report", title=f"Verified: {found}", timeout=10)
        app.refresh_screens()

    def _replayed(self, output: Any, in_front: bool) -> None:
        seconds = float(output.get("seconds") or 0)
        sent = int(output.get("sent", 0))
        rate = f" ({sent / seconds:,.0f}/s)" if seconds else ""
        told = f"sent {sent:,} messages in {seconds:,.1f} s{rate}"
        lines = [Text(f"✓ {told}", f"bold {self._app.theme_variables['success']}")]
        if output.get("doubled_at_most"):
            lines.append(Text(f"▲ at most {output['doubled_at_most']:,} of them are there twice"))
        lines += [Text(f"▲ {note}") for note in output.get("notes", ())]
        topics = output.get("topics", {})
        if any(name == one.get("recorded") for name, one in topics.items()):
            lines.append(Text("v verifies again: the report that is shown is from before"))
        if in_front:
            self._app.push_screen(AskScreen("Replayed", Group(*lines)))
        else:
            self._app.notify(told, title="Replayed", timeout=10)
