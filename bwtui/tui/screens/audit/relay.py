"""The dialog before an audit of a relay that runs: its tables against its topics."""

from bwtui.tui.audit.session import Job, RelayAuditSession
from bwtui.tui.screens.audit.forms import Field, FormScreen
from bwtui.tui.screens.audit.jobs import JobsApp

_QUESTION = (
    "Do the topics' latest values equal the tables' rows? Both are read as they are at one LSN, while "
    "writes and the relay go on, and nothing is changed."
)


class RelayAuditing(JobsApp):
    """What the app does about audits of the relay that it shows."""

    def ask_to_verify(self) -> None:
        """Ask which tables; while an audit runs, show that."""
        if self.show_job():
            return
        fields = [Field("--table", "tables", "", "regex; empty: all")]
        form = FormScreen("Verify the tables", _QUESTION, fields, "Verify")
        self.push_screen(form, self._verify_tables)

    def _verify_tables(self, values: dict[str, str] | None) -> None:
        if values is None:
            return
        assert isinstance(self.audit, RelayAuditSession)
        arguments = self.audit.verify_arguments(values.get("--table", ""))
        self.start_job(Job("Verify", self.child(arguments), self.verified))
