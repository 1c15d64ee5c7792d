"""Both sides of a finding: the message as it was recorded, and the record as Kafka has it now."""

import asyncio
import threading
from collections.abc import Iterable
from typing import ClassVar

from textual.containers import Container
from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.recording.change import Change
from bwtui.recording.view import RecordingView
from bwtui.tui.audit.field_pairs import FieldPairs, found_lines, sent_lines, value_content
from bwtui.tui.audit.kafka import Decoded, KafkaSide, Reader, Record
from bwtui.tui.audit.report import AuditReport, Finding, fields_text
from bwtui.tui.audit.sides import FieldPair, full_texts, message_of, pairs, said_by, table_pairs
from bwtui.tui.audit.words import WORDS
from bwtui.tui.plain import Content, Text
from bwtui.tui.playback import RecordedModel, RecordingSource
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.state import Picture
from bwtui.tui.widgets.compared_sides import recording_lines, table_lines
from bwtui.tui.widgets.detail import Detail
from bwtui.tui.widgets.grid import Grid


class SidesScreen(RelayScreen):
    """Filled as the two sides are read; Esc goes back."""

    mode: ClassVar[str] = "audit"
    audits: ClassVar[bool] = True
    own_list = True

    def __init__(self, finding: Finding, change: Change | None, report: AuditReport) -> None:
        super().__init__()
        self.finding = finding
        self.report = report
        self._words = WORDS[report.question]
        self.change = change
        #: The message that is meant: the finding's own, or the one whose copy it is.
        self._part = finding.part
        self._is_copy = False
        self._sent: Decoded | None = None
        self._found: Decoded | None = None
        self._found_key: Decoded | None = None
        self._record: Record | str | None = None
        self._problem = ""
        self._miscoded: frozenset[str] = frozenset()
        self._searching = False
        self._cancelled = threading.Event()

    def body(self) -> Iterable[Widget]:
        """Return the two sides, their fields, and the selected field in full."""
        sides = Container(
            Detail(id="sent", title=self._words.expected),
            Detail(id="found", title=self._words.found),
            id="sides",
            classes="folder",
        )
        return (sides, FieldPairs(self._words), Detail(id="value", title="Value"))

    def on_mount(self) -> None:
        """Look at both sides."""
        self.run_worker(self._look(), exit_on_error=True)

    def on_unmount(self) -> None:
        """Stop what is under way."""
        self._cancelled.set()

    def paint(self, picture: Picture) -> None:
        """Show nothing else: the finding stays what it is."""

    def main_grid(self) -> FieldPairs:
        """Return the fields."""
        return self.query_one(FieldPairs)

    def crumbs(self) -> tuple[str, ...]:
        """Return the path here."""
        return (
            "Audit",
            self.finding.name,
            self._key_text or self.finding.place or self.finding.lsn or "message",
        )

    def go_back(self) -> None:
        """Return to the findings."""
        self.app.pop_screen()

    def selected_change(self) -> Change | None:
        """Return the change that the message is of."""
        return self.change

    def action_place(self) -> None:
        """Go to the change among all changes of the recording."""
        self.go_to_place(self.finding, self.change)

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        """Show the selected field in full."""
        pair = self.main_grid().selected()
        detail = self.query_one("#value", Detail)
        detail.border_title = Content("Value" if pair is None else pair.name)
        detail.show((pair, self.app.theme), value_content(pair, self._words, self.app.theme_variables))

    def on_grid_opened(self, event: Grid.Opened) -> None:
        """Go into the selected field's values."""
        self.query_one("#value", Detail).focus()

    @property
    def _key_text(self) -> str:
        """The key as the report has it, or where that has masked it, as the record has it."""
        key = self._found_key
        if self.finding.is_masked and key is not None and key.state == "row":
            return fields_text(key.fields)
        return self.finding.key_text

    # Reading.

    @property
    def _source(self) -> RecordingSource | None:
        model = self.relay.model
        return model.recording if isinstance(model, RecordedModel) else None

    async def _look(self) -> None:
        self._show()
        finding = self.finding
        try:
            side = await asyncio.to_thread(self.relay.desk.side)
        except BwtuiError as error:
            self._problem = _told(error)
            self._show()
            return
        if None not in (finding.topic, finding.partition, finding.offset):
            await self._look_at_kafka(side)
        elif finding.offset is not None:
            self._problem = "the report does not say in which partition it is"
        self._decode(side)
        self._show()
        if self.change is None and isinstance(self._record, Record):
            await self._find_original(self._record)
            self._decode(side)
            self._show()

    async def _look_at_kafka(self, side: KafkaSide | None) -> None:
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
            self._problem = _told(error)

    async def _find_original(self, record: Record) -> None:
        """A copy belongs to no message: look for the one whose bytes it repeats."""
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
            found = await source.study(find)
        except BwtuiError as error:
            self.notify(error.message, severity="error", markup=False)
            found = None
        self._searching = False
        if found is not None:
            self.change, self._part = found
            self._is_copy = True

    def _decode(self, side: KafkaSide | None) -> None:
        source, ask = self._source, side.ask if side is not None else _nobody
        output_format, texts = "avro", {}
        if source is not None:
            output_format = source.view.source.output_format
            schemas = self.relay.model.picture.schemas
            texts = {entry.id: entry.schema for entry in schemas}
        reader = Reader(output_format, texts, ask)
        self._miscoded = frozenset()
        message = None if self.change is None else message_of(self.change, self._part)
        if message is not None:
            self._sent = reader.read(message.value)
            assert self.change is not None
            self._miscoded = reader.miscoded(message.value, full_texts(self.change))
        if isinstance(self._record, Record):
            self._found = reader.read(self._record.value)
            self._found_key = None if self._record.key is None else reader.read(self._record.key)

    # Showing.

    def _show(self) -> None:
        if not self.is_attached:
            return
        sent, found = self._expected_lines(), self._found_lines()
        self.query_one("#sent", Detail).show(tuple(map(str, sent)), Text("\n").join(sent))
        self.query_one("#found", Detail).show(tuple(map(str, found)), Text("\n").join(found))
        grid = self.main_grid()
        # The report of a database says by itself what differs.
        has_found = self._found is not None or self.report.question == "database"
        grid.show_pairs(self._pairs(), has_found=has_found)
        if self._record is None and not self._problem and self.finding.offset is not None:
            grid.empty_text = "asking Kafka…"
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

    def _found_lines(self) -> list[Text]:
        finding, colours = self.finding, self.app.theme_variables
        if self.report.question == "recordings":
            return recording_lines(finding, self.report, colours, second=True)
        sides = self._found_key, self._found
        return found_lines(finding, self._record, sides, self._problem, colours)

    def _pairs(self) -> list[FieldPair]:
        if self.report.question == "database":
            return table_pairs(self.finding, self._found)
        message = None if self.change is None else message_of(self.change, self._part)
        said = None if self.change is None or message is None else said_by(self.change, message)
        if self._sent is None and self._found is None:
            return [
                FieldPair(str(one.get("field")), one.get("postgresql"), one.get("sent"), one.get("kafka"))
                for one in self.finding.fields
            ]
        return pairs(said, self._sent, self._found, self._miscoded)


def _nobody(number: int) -> str | None:
    """Know no schema."""
    return None


def _told(error: BwtuiError) -> str:
    return error.message + (f": {error.hint}" if error.hint else "")
