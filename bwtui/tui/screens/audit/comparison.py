"""Both sides of a finding: the message as it was recorded, and Kafka's present record."""

import asyncio
import threading
from collections.abc import Iterable
from typing import ClassVar

from textual.containers import Container
from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.recording.change import Change
from bwtui.recording.reading.explain import RowKey
from bwtui.recording.view import RecordingView
from bwtui.tui.audit.field_pairs import (
    FieldPair,
    full_texts,
    message_of,
    pairs,
    postgresql_texts,
    table_pairs,
)
from bwtui.tui.audit.kafka_records import DecodedPart, RecordDecoder, SingleRecordReader, TopicRecord
from bwtui.tui.audit.labels import LABELS
from bwtui.tui.audit.report import AuditReport, ReportFinding, fields_text
from bwtui.tui.host import ScreenHost
from bwtui.tui.journey.audit_result import key_of
from bwtui.tui.plain import Content, Text, with_hint
from bwtui.tui.playback import RecordingSource
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.audit.comparison_lines import recording_lines, table_lines
from bwtui.tui.widgets.audit.field_pairs import FieldPairs, kafka_lines, sent_lines, value_content
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.grid import Grid


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
        self.run_worker(self._look(), exit_on_error=True)

    def on_unmount(self) -> None:
        self._cancelled.set()

    def paint(self, picture: ScreenSnapshot) -> None:
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
        return key_of(self.finding) if self.change is None else super().selected_key()

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

    async def _look(self) -> None:
        self._show()
        finding = self.finding
        try:
            side = await asyncio.to_thread(self.host.audit.side)
        except BwtuiError as error:
            self._problem = with_hint(error)
            self._show()
            return
        if None not in (finding.topic, finding.partition, finding.offset):
            await self._look_at_kafka(side)
        elif finding.offset is not None:
            self._problem = "the report does not say in which partition it is"
        self._decode(side)
        self._show()
        if self.change is None and isinstance(self._record, TopicRecord):
            await self._find_original(self._record)
            self._decode(side)
            self._show()

    async def _look_at_kafka(self, side: SingleRecordReader | None) -> None:
        finding = self.finding
        assert finding.topic is not None and finding.partition is not None and finding.offset is not None
        if side is None:
            self._problem = "it is not known where Kafka is: give -b to 'bwtui open'"
            return
        try:
            self._record = await asyncio.to_thread(
                side.look, finding.topic, finding.partition, finding.offset
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
            schemas = self.host.model.picture.schemas
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
            return [Text("looking for the message whose copy this is…", colours["quiet"])]
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
