"""The dialogs of an audit of a running relay, and of a trial of a DDL file."""

import json
import re
from pathlib import Path
from typing import Any

from bwtui.tui.audit.session import BackgroundJob, RelayAuditSession
from bwtui.tui.plain import Group
from bwtui.tui.registry.ddl_report import trial_content
from bwtui.tui.screens.audit.forms import AskScreen, FormField, FormScreen, repair_content
from bwtui.tui.screens.audit.jobs import JobsApp
from bwtui.tui.screens.base import RelayScreen

_QUESTION = (
    "Do the topics' latest values equal the tables' rows? Both are read as they are at one LSN, while "
    "writes and the relay go on, and nothing is changed."
)
_REPAIR = "The topics are compared once more first, and what differs then is sent."
_END = (
    "Nothing differs that can be compared, and of the tables above no comparison says what readers have. "
    "To end the heal of the slot is to say that they are right."
)
_TRIAL = (
    "Would the schema registry take the tables as they are after a file of DDL? The file runs in a "
    "transaction that is rolled back. It holds its locks until then, and gives up on one after 3 s. "
    "Nothing is registered."
)


class RelayAuditing(JobsApp):
    """Mix-in of the app that audits its relay and tries DDL."""

    #: The last tried file.
    _script = ""

    def ask_to_verify(self) -> None:
        """Ask which tables to audit; while a command runs, show that one."""
        if self.show_job():
            return
        fields = [FormField("--table", "tables", self._meant_tables(), "regex; empty: all", is_typed=True)]
        form = FormScreen("Verify the tables", _QUESTION, fields, "Verify")
        self.push_screen(form, self._verify_tables)

    def _meant_tables(self) -> str:
        """Return a regex of the selected table on the screens of the overview mode; "" elsewhere."""
        shown = next((one for one in reversed(self.screen_stack) if isinstance(one, RelayScreen)), None)
        table = shown.selected_table() if shown is not None and shown.mode == "overview" else None
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

        def looked(plan: Any, _: bool) -> None:
            do = "Send them" if plan.get("messages") else "End the heal" if plan.get("ends_heal") else ""
            shown = repair_content(plan, self.theme_variables)
            content = Group(shown, "", _REPAIR if plan.get("messages") else _END) if do else shown
            ask = AskScreen("What the relay would send", content, do, careful=True)
            self.push_screen(ask, lambda go: self._repair(arguments) if go else None)

        self.start_job(BackgroundJob("Dry run", self.child((*arguments, "--dry-run")), looked))

    def _repair(self, arguments: tuple[str, ...]) -> None:
        def repaired(output: Any, _: bool) -> None:
            if report := output.get("report"):
                # Show the new report, because the old one's findings are out of date.
                self.audit.take(json.dumps(report).encode())
                self.refresh_screens()
            self.push_screen(AskScreen("What the relay sent", repair_content(output, self.theme_variables)))

        self.start_job(BackgroundJob("Repair", self.child((*arguments, "--yes")), repaired))

    def ask_to_try_ddl(self) -> None:
        """Ask for a DDL file; while a command runs, show that one."""
        if self.show_job():
            return
        field = FormField(
            "script", "DDL file", self._script, "empty: the tables as they are now", is_path=True
        )
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
            self.push_screen(
                AskScreen(f"After {script}" if script else "The tables as they are now", content)
            )
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
