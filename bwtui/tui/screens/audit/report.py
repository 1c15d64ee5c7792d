"""The report of an audit: the verdict, the classes, the findings, and the selected finding in full."""

from collections.abc import Iterable
from typing import ClassVar

from textual import work
from textual.containers import Container
from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.recording.change import Change
from bwtui.recording.reading.explain import RowKey
from bwtui.tui.audit.report import AuditReport, ReportFinding
from bwtui.tui.host import ScreenHost
from bwtui.tui.journey.audit_result import key_of
from bwtui.tui.playback import RecordingSource
from bwtui.tui.screens.audit.comparison import ComparisonScreen
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.audit.classes import ClassGrid
from bwtui.tui.widgets.audit.findings import (
    FindingList,
    finding_content,
    finding_text,
    nothing_content,
    verdict_content,
)
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.line import Line


class ReportScreen(RelayScreen):
    """Shows the report of the last audit, or that there is none yet."""

    mode: ClassVar[str] = "audit"
    audits: ClassVar[bool] = True
    own_list = True
    #: Every finding is an error, unless its class says that it is not.
    without = frozenset(("errors_only",))

    def __init__(self, host: ScreenHost) -> None:
        super().__init__(host)
        self._shown: AuditReport | None = None
        self._listed = False
        self._changes: dict[int, Change] = {}

    def body(self) -> Iterable[Widget]:
        pair = Container(ClassGrid(), FindingList(), id="audit-pair", classes="folder")
        return (Line(id="verdict"), pair, Detail(id="finding", title="Finding"))

    def main_grid(self) -> FindingList:
        return self.query_one(FindingList)

    def first_focus(self) -> Widget:
        return self.query_one(ClassGrid)

    def go_back(self) -> None:
        """Return the focus from the findings to the classes."""
        self.query_one(ClassGrid).focus()

    def paint(self, picture: ScreenSnapshot) -> None:
        """Show the report if it has changed; update the ages always."""
        report = self.host.audit.report
        if report is not self._shown or not self._listed:
            self._shown, self._listed = report, True
            self._changes = {}
            self.query_one(ClassGrid).show(report)
            self._list()
        model = self.host.model
        failed = self.host.audit.failed
        verdict = verdict_content(report, model.clock(), recorded=model.recorded, failed=failed)
        self.query_one("#verdict", Line).put(verdict)

    def crumbs(self) -> tuple[str, ...]:
        name = self.query_one(ClassGrid).chosen
        return ("Audit",) if name is None else ("Audit", name)

    def action_repair(self) -> None:
        """Make the relay send what the audit of its tables found wrong."""
        report, status = self.host.audit.report, self.host.model.live.status
        if status is not None and status.heal is not None:
            # A heal may be ready to end even if nothing differs.
            self.host.ask_to_repair()
        elif report is None:
            self.notify("There is no audit yet: verify the tables first", severity="warning", timeout=4)
        elif not report.wrong:
            self.notify(
                "The audit found nothing wrong: there is nothing to mend", severity="warning", timeout=4
            )
        else:
            self.host.ask_to_repair()

    # The selected finding.

    def selected_finding(self) -> ReportFinding | None:
        """Return the finding under the cursor."""
        key = self.main_grid().cursor_key
        if key is None or self._shown is None:
            return None
        return self._shown.findings[int(key)]

    def selected_change(self) -> Change | None:
        """Return the change of the finding, once it has been read."""
        finding = self.selected_finding()
        return None if finding is None else self._changes.get(finding.number)

    def selected_key(self) -> RowKey | str:
        """Return the key of the finding's change, or else of the finding."""
        finding = self.selected_finding()
        if self.selected_change() is not None or finding is None:
            return super().selected_key() if finding is not None else "No finding is selected"
        return key_of(finding)

    def row_text(self) -> str:
        finding = self.selected_finding()
        if finding is None or self._shown is None:
            return ""
        return finding_text(finding, self.selected_change(), self._shown.question)

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        if isinstance(event.grid, ClassGrid):
            self._list()
        else:
            self._show_finding()

    def open_row(self, grid: Grid) -> None:
        """From a class go to its findings; from a finding open both sides of its message."""
        if isinstance(grid, ClassGrid):
            self.main_grid().focus()
        elif (finding := self.selected_finding()) is not None and self._shown is not None:
            self.app.push_screen(ComparisonScreen(self.host, finding, self.selected_change(), self._shown))

    def action_all_classes(self) -> None:
        """Show or hide the classes without findings."""
        self.query_one(ClassGrid).toggle_zeros()

    def action_place(self) -> None:
        """Go to the finding's change in the list of all changes of the recording."""
        self.go_to_place(self.selected_finding())

    # Details.

    @property
    def _source(self) -> RecordingSource | None:
        """The recording, if it is open and the report is about it."""
        recording, report = self.host.recording, self._shown
        if recording is None or report is None:
            return None
        source = recording.source
        return source if report.recording_id in ("", source.view.source.recording) else None

    def _list(self) -> None:
        name = self.query_one(ClassGrid).chosen
        self.main_grid().show(self._shown, name)
        self._show_finding()

    def _show_finding(self) -> None:
        finding, detail = self.selected_finding(), self.query_one("#finding", Detail)
        if finding is None or self._shown is None:
            detail.border_title = "An audit" if self._shown is None else "Audited data"
            detail.show(
                (id(self._shown), self.app.theme), nothing_content(self._shown, self.host.model.recorded)
            )
            return
        detail.border_title = f"Finding {finding.number + 1:,}"
        change = self._changes.get(finding.number)
        identity = (id(self._shown), finding.number, change is not None, self.app.theme)
        detail.show(identity, finding_content(finding, change, self._shown, self.app.theme_variables))
        if change is None and finding.position is not None and self._source is not None:
            self._read(finding)

    @work(group="finding", exclusive=True)
    async def _read(self, finding: ReportFinding) -> None:
        source, position = self._source, finding.position
        if source is None or position is None:
            return
        try:
            change = await source.search(lambda view: next(view.changes(position, position + 1), None))
        except BwtuiError as error:
            self.notify(error.message, severity="error", markup=False)
            return
        if change is not None:
            self._changes[finding.number] = change
        if self.is_attached and self.selected_finding() is finding:
            self._show_finding()
