"""The dialog before an audit of a relay that runs: its tables against its topics."""

from bwtui.errors import BwtuiError
from bwtui.tui.audit.desk import Job, RelayDesk
from bwtui.tui.screens.forms import Field, FormScreen
from bwtui.tui.screens.jobs import Jobs

_WORDS = (
    "Do the topics' latest values equal the tables' rows? Both are read as they are at one LSN, while "
    "writes and the relay go on, and nothing is changed."
)


class RelayAuditing(Jobs):
    """What the app does about audits of the relay that it shows."""

    def ask_to_verify(self) -> None:
        """Ask which tables; while an audit runs, show that."""
        if self.show_job():
            return
        fields = [Field("--table", "tables", "", "regex; empty: all")]
        form = FormScreen("Verify the tables", _WORDS, fields, "Verify")
        self._screens.push_screen(form, self._verify_tables)

    def _verify_tables(self, values: dict[str, str] | None) -> None:
        if values is None:
            return
        assert isinstance(self.desk, RelayDesk)
        arguments = self.desk.verify_arguments(values.get("--table", ""))
        self.start_job(Job("Verify", self.child(arguments), self._tables_verified))

    def _tables_verified(self, output: bytes, in_front: bool) -> None:
        assert isinstance(self.desk, RelayDesk)
        try:
            report = self.desk.take(output)
        except BwtuiError as error:
            self._screens.notify(str(error), severity="error", markup=False)
            return
        self.show_report(report, in_front)
