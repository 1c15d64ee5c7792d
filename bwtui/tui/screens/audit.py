"""The report of an audit, and both sides of one finding."""

import asyncio
import threading
from collections.abc import Iterable
from typing import ClassVar

from textual import work
from textual.containers import Container
from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.recording.change import Change
from bwtui.recording.explain import RowKey
from bwtui.recording.view import RecordingView
from bwtui.tui.audit.records import DecodedPart, RecordDecoder, SingleRecordReader, TopicRecord
from bwtui.tui.audit.report import (
    LABELS,
    AuditReport,
    FieldPair,
    ReportFinding,
    fields_text,
    full_texts,
    key_of_finding,
    message_of,
    pairs,
    postgresql_texts,
    table_pairs,
)
from bwtui.tui.base.plain import Content, Text, with_hint
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.sources.host import ScreenHost
from bwtui.tui.sources.model import ScreenSnapshot
from bwtui.tui.sources.recorded_model import RecordingSource
from bwtui.tui.widgets.audit import (
    ClassGrid,
    FieldPairs,
    FindingList,
    finding_content,
    finding_text,
    kafka_lines,
    nothing_content,
    recording_lines,
    sent_lines,
    table_lines,
    value_content,
    verdict_content,
)
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.line import Detail, Line


class ComparisonScreen(RelayScreen):
    """Shows each side as soon as it has been read; Esc goes back."""

    mode: ClassVar[str] = "audit"
    audits: ClassVar[bool] = True
    own_list = True

    def __init__(
        self, host: ScreenHost, finding: ReportFinding, change: Change | None, report: AuditReport
    ) -> None:
        super().__init__(host)
        self.finding = finding
        self.report = report
        self._labels = LABELS[report.question]
        self.change = change
        #: The number of the finding's message, or of the message whose copy it is.
        self._part = finding.part
        self._is_copy = False
        self._sent: DecodedPart | None = None
        self._kafka: DecodedPart | None = None
        self._kafka_key: DecodedPart | None = None
        self._record: TopicRecord | str | None = None
        self._problem = ""
        self._miscoded: frozenset[str] = frozenset()
        self._searching = False
        self._cancelled = threading.Event()

    def body(self) -> Iterable[Widget]:
        sides = Container(
            Detail(id="expected", title=self._labels.expected),
            Detail(id="actual", title=self._labels.actual),
            id="sides",
            classes="folder",
        )
        return (sides, FieldPairs(self._labels), Detail(id="value", title="Value"))

    def on_mount(self) -> None:
        self.run_worker(self._load(), exit_on_error=True)

    def on_unmount(self) -> None:
        self._cancelled.set()

    def paint(self, snapshot: ScreenSnapshot) -> None:
        """Do nothing, because a finding never changes."""

    def main_grid(self) -> FieldPairs:
        return self.query_one(FieldPairs)

    def crumbs(self) -> tuple[str, ...]:
        return (
            "Audit",
            self.finding.name,
            self._key_text or self.finding.place or self.finding.lsn or "message",
        )

    def selected_change(self) -> Change | None:
        return self.change

    def selected_key(self) -> RowKey | str:
        """Return the key of the change, or else of the finding."""
        return key_of_finding(self.finding) if self.change is None else super().selected_key()

    def action_place(self) -> None:
        """Go to the change in the list of all changes of the recording."""
        self.go_to_place(self.finding, self.change)

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        pair = self.main_grid().selected()
        detail = self.query_one("#value", Detail)
        detail.border_title = Content("Value" if pair is None else pair.name)
        detail.show((pair, self.app.theme), value_content(pair, self._labels, self.app.theme_variables))

    @property
    def _key_text(self) -> str:
        """The key from the report or, if it is masked there, from the record."""
        key = self._kafka_key
        if self.finding.is_masked and key is not None and key.state == "row":
            return fields_text(key.fields)
        return self.finding.key_text

    # Reading.

    @property
    def _source(self) -> RecordingSource | None:
        recording = self.host.recording
        return None if recording is None else recording.source

    async def _load(self) -> None:
        self._show()
        finding = self.finding
        try:
            side = await asyncio.to_thread(self.host.audit.side)
        except BwtuiError as error:
            self._problem = with_hint(error)
            self._show()
            return
        if None not in (finding.topic, finding.partition, finding.offset):
            await self._fetch_from_kafka(side)
        elif finding.offset is not None:
            self._problem = "the report does not name its partition"
        self._decode(side)
        self._show()
        if self.change is None and isinstance(self._record, TopicRecord):
            await self._find_original(self._record)
            self._decode(side)
            self._show()

    async def _fetch_from_kafka(self, side: SingleRecordReader | None) -> None:
        finding = self.finding
        assert finding.topic is not None and finding.partition is not None and finding.offset is not None
        if side is None:
            self._problem = "the Kafka brokers are unknown; name them with 'bwtui open -b'"
            return
        try:
            self._record = await asyncio.to_thread(
                side.fetch, finding.topic, finding.partition, finding.offset
            )
        except BwtuiError as error:
            self._problem = with_hint(error)

    async def _find_original(self, record: TopicRecord) -> None:
        """Find the message whose bytes a copy repeats, because a copy belongs to no message itself."""
        source = self._source
        if source is None or (record.key is None and record.value is None):
            return

        def find(view: RecordingView) -> tuple[Change, int] | None:
            for change in view.changes():
                if self._cancelled.is_set():
                    return None
                for message in change.messages:
                    if message.key == record.key and message.value == record.value:
                        return change, message.part
            return None

        self._searching = True
        self._show()
        try:
            copied = await source.study(find)
        except BwtuiError as error:
            self.notify(error.message, severity="error", markup=False)
            copied = None
        self._searching = False
        if copied is not None:
            self.change, self._part = copied
            self._is_copy = True

    def _decode(self, side: SingleRecordReader | None) -> None:
        source, ask = self._source, side.ask if side is not None else lambda schema_id: None
        output_format, texts = "avro", {}
        if source is not None:
            output_format = source.view.source.output_format
            schemas = self.host.model.snapshot.schemas
            texts = {entry.id: entry.schema for entry in schemas}
        reader = RecordDecoder(output_format, texts, ask)
        self._miscoded = frozenset()
        message = None if self.change is None else message_of(self.change, self._part)
        if message is not None:
            self._sent = reader.read(message.value)
            assert self.change is not None
            self._miscoded = reader.miscoded(message.value, full_texts(self.change))
        if isinstance(self._record, TopicRecord):
            self._kafka = reader.read(self._record.value)
            self._kafka_key = None if self._record.key is None else reader.read(self._record.key)

    # Showing.

    def _show(self) -> None:
        if not self.is_attached:
            return
        expected, actual = self._expected_lines(), self._actual_lines()
        self.query_one("#expected", Detail).show(tuple(map(str, expected)), Text("\n").join(expected))
        self.query_one("#actual", Detail).show(tuple(map(str, actual)), Text("\n").join(actual))
        grid = self.main_grid()
        # The report of a database audit has the differences itself.
        has_kafka = self._kafka is not None or self.report.question == "database"
        grid.show_pairs(self._pairs(), has_kafka=has_kafka)
        if self._record is None and not self._problem and self.finding.offset is not None:
            grid.empty_text = "querying Kafka…"
        self.on_grid_highlighted(Grid.Highlighted(grid, grid.cursor_key))

    def _expected_lines(self) -> list[Text]:
        finding, colours = self.finding, self.app.theme_variables
        if self.report.question == "database":
            return table_lines(finding, self._key_text, self.report, colours)
        if self.report.question == "recordings":
            return recording_lines(finding, self.report, colours, second=False)
        if self._searching:
            return [Text("searching for the message that this record duplicates…", colours["quiet"])]
        return sent_lines(finding, self.change, self._part, colours, is_copy=self._is_copy)

    def _actual_lines(self) -> list[Text]:
        finding, colours = self.finding, self.app.theme_variables
        if self.report.question == "recordings":
            return recording_lines(finding, self.report, colours, second=True)
        sides = self._kafka_key, self._kafka
        return kafka_lines(finding, self._record, sides, self._problem, colours)

    def _pairs(self) -> list[FieldPair]:
        if self.report.question == "database":
            return table_pairs(self.finding, self._kafka)
        message = None if self.change is None else message_of(self.change, self._part)
        postgresql = (
            None if self.change is None or message is None else postgresql_texts(self.change, message)
        )
        if self._sent is None and self._kafka is None:
            return [
                FieldPair(str(one.get("field")), one.get("postgresql"), one.get("sent"), one.get("kafka"))
                for one in self.finding.fields
            ]
        return pairs(postgresql, self._sent, self._kafka, self._miscoded)


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
        """Return the focus from the findings to the classes; from these, leave the screen."""
        classes = self.query_one(ClassGrid)
        if self.focused is classes:
            super().go_back()
        else:
            classes.focus()

    def paint(self, snapshot: ScreenSnapshot) -> None:
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
            self.notify("There is no audit yet; verify the tables first", severity="warning", timeout=4)
        elif not report.wrong:
            self.notify(
                "The audit found no anomaly, so there is nothing to repair", severity="warning", timeout=4
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
        return key_of_finding(finding)

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
