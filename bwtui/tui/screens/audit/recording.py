"""The dialogs of an audit and a replay of the open recording."""

from dataclasses import replace
from typing import Any

from bwtui.recording.reading.explain import RowKey
from bwtui.tui.actions import why_absent
from bwtui.tui.audit.session import BackgroundJob, Connections, RecordingAuditSession
from bwtui.tui.journey.replay_query import query_of
from bwtui.tui.keys import key_for
from bwtui.tui.plain import Group, Text, fitted
from bwtui.tui.playback import RecordingSource
from bwtui.tui.screens.audit.forms import AskScreen, FormField, FormScreen, plan_content, topic_to_type
from bwtui.tui.screens.audit.jobs import JobsApp

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


_AGAIN = (
    "Sends what was recorded of {key} once more. First it only looks, and says what it would do; then asks."
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
        deep = FormField("deep", "also compare every message with what PostgreSQL said", is_switch=True)
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
                FormField("--rate", "messages/s", "", "empty: as fast as it goes"),
            ]
        title = "Mend what is missing" if mend else "Replay this recording"
        form = FormScreen(title, _MEND if mend else _REPLAY, fields, "Dry run first")
        self.push_screen(form, lambda values: self._look_first(values, mend=mend))

    def ask_to_send_again(self, key: RowKey, position: int, remark: str) -> None:
        """Ask how to send a key again; its newest message belongs to the change at ``position``."""
        if self.show_job():
            return
        if self.recording_audit.plan is not None:
            self._show_plan()
            return
        fields = [
            *self._services(),
            FormField(
                "newest", "its newest message only, not all of them in their order", "yes", is_switch=True
            ),
            FormField("--topic-prefix", "topic prefix", "", "empty: the recorded topic itself"),
        ]

        def answer(values: dict[str, str] | None) -> None:
            if values is not None:
                query = query_of(key, position if values.pop("newest", "") else None)
                values["--where"] = query or ""
            self._look_first(values, mend=False)

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

    def _look_first(self, values: dict[str, str] | None, *, mend: bool) -> None:
        if values is None:
            return
        self._take_services(values)
        arguments = self.recording_audit.replay_arguments(values, mend=mend)

        def looked(output: Any, in_front: bool) -> None:
            self.recording_audit.plan = (output, arguments)
            if in_front:
                self._show_plan()
            else:
                self.notify(
                    f"{key_for('replay')} shows what the replay would send", title="The dry run is done"
                )

        self.start_job(BackgroundJob("Dry run", self.child((*arguments, "--dry-run")), looked))

    def _show_plan(self) -> None:
        assert self.recording_audit.plan is not None
        plan, arguments = self.recording_audit.plan
        content = plan_content(plan, self.theme_variables)

        def answer(go: bool | None) -> None:
            self.recording_audit.plan = None
            if go:
                self.start_job(BackgroundJob("Replay", self.child((*arguments, "--yes")), self._replayed))

        do = "Send them" if plan.get("messages") else ""
        ask = AskScreen("What the replay would send", content, do, careful=True, name=topic_to_type(plan))
        self.push_screen(ask, answer)

    # -- results -------------------------------------------------------------------------------------------

    def _replayed(self, output: Any, in_front: bool) -> None:
        seconds = float(output.get("seconds") or 0)
        sent = int(output.get("sent", 0))
        rate = f" ({sent / seconds:,.0f}/s)" if seconds else ""
        result = f"sent {sent:,} messages in {seconds:,.1f} s{rate}"
        lines = [Text(f"✓ {result}", f"bold {self.theme_variables['success']}")]
        if output.get("doubled_at_most"):
            lines.append(Text(f"▲ at most {output['doubled_at_most']:,} of them are there twice"))
        lines += [Text(f"▲ {note}") for note in output.get("notes", ())]
        topics = output.get("topics", {})
        if any(name == topic.get("recorded") for name, topic in topics.items()):
            lines.append(Text(f"{key_for('verify')} verifies again: the report that is shown is from before"))
        if in_front:
            self.push_screen(AskScreen("Replayed", Group(*lines)))
        else:
            self.notify(result, title="Replayed", timeout=10)
