"""The fields of a message on both sides, and the lines about each side."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import RenderableType

from bwtui.audit.classes import DATABASE
from bwtui.recording.change import Change, SentMessage
from bwtui.recording.fields import key_text
from bwtui.recording.reading.seek_target import MICROS
from bwtui.tui import figures
from bwtui.tui.audit.field_pairs import ABSENT, SAME, FieldPair, message_of
from bwtui.tui.audit.kafka_records import HOLES, DecodedPart, TopicRecord
from bwtui.tui.audit.labels import SideLabels
from bwtui.tui.audit.report import ReportFinding, fields_text
from bwtui.tui.plain import Group, Text, block
from bwtui.tui.widgets.changes import OPERATIONS
from bwtui.tui.widgets.columns import Cell, GridColumn
from bwtui.tui.widgets.item_list import Item, ItemList


def _columns(labels: SideLabels) -> list[GridColumn]:
    columns = [
        GridColumn("mark", "", 1),
        GridColumn("field", "Field", 14, grow=26),
        GridColumn("sent", labels.left, 20, grow=70),
        GridColumn("kafka", labels.right, 20, grow=70),
    ]
    return columns + ([GridColumn("postgresql", labels.source, 18, drop=1, grow=70)] if labels.source else [])


class FieldPairs(ItemList):
    """Lists fields; those that differ are marked, and the filter for errors shows only them."""

    def __init__(self, labels: SideLabels) -> None:
        super().__init__(_columns(labels), ("field",), id="fields", noun="fields")
        self.border_title = "Fields"
        self._labels = labels
        self._pairs: list[FieldPair] = []
        self._turns = 0.0

    def show_pairs(self, pairs: Sequence[FieldPair], *, has_kafka: bool) -> None:
        """Show these fields; without a row in Kafka, none counts as different."""
        self._pairs, self._turns = list(pairs), self._turns + 10
        has_source = bool(self._labels.source)
        items = [_item(n, pair, has_kafka, has_source) for n, pair in enumerate(self._pairs)]
        self.set_items(items, self._turns)
        # Select the first difference, because the user came for it.
        if first := next((item.key for item in items if item.trouble), None):
            self.move_to_key(first)

    def selected(self) -> FieldPair | None:
        """Return the field under the cursor."""
        return None if self.cursor_key is None else self._pairs[int(self.cursor_key)]

    def _show(self) -> None:
        super()._show()
        if not self.items:
            self.empty_text = self._labels.no_fields


def _item(number: int, pair: FieldPair, has_kafka: bool, has_source: bool) -> Item:
    both = has_kafka and ABSENT not in (pair.sent, pair.kafka)
    differs = both and pair.differs
    mark = Cell("≠", "bad") if differs else Cell("!", "bad") if pair.miscoded else Cell("")
    loud = "bad" if differs else ""
    values = tuple(_shown(value) for value in (pair.sent, pair.kafka, pair.postgresql))
    shown = 5 if has_source else 4
    cells = (
        mark,
        Cell(pair.name, loud or "strong"),
        Cell(values[0], "warn" if differs else "muted" if pair.sent in (None, ABSENT, SAME) else ""),
        Cell(values[1], "bad" if differs else "muted" if pair.kafka in (None, ABSENT) else ""),
        Cell(values[2], "bad" if pair.miscoded else "muted"),
    )
    trouble = differs or pair.miscoded
    order = {"field": number}
    return Item(str(number), cells[:shown], order, " ".join((pair.name, *values)), trouble)


def _shown(value: str | None) -> str:
    return "NULL" if value is None else value or "''"


def value_content(pair: FieldPair | None, labels: SideLabels, colours: dict[str, str]) -> RenderableType:
    """Return a field's values in full, below each other."""
    if pair is None:
        return Text("no field selected", colours["quiet"])
    both = ABSENT not in (pair.sent, pair.kafka)
    loud = f"bold {colours['error']}" if both and pair.differs else ""
    rows = (
        (labels.source, pair.postgresql, ""),
        (labels.left, pair.sent, ""),
        (labels.right, pair.kafka, loud),
    )
    return Group(
        *(
            Text.assemble((f"{name:<16}", colours["quiet"]), (block(_shown(value), 16), style))
            for name, value, style in rows
            if value != ABSENT
        )
    )


def sent_lines(
    finding: ReportFinding, change: Change | None, part: int, colours: dict[str, str], *, is_copy: bool
) -> list[Text]:
    """Return the lines about the sent message."""
    quiet = colours["quiet"]
    if change is None:
        what = "no message of the recording has these bytes"
        if finding.position is not None:
            what = f"position {finding.position:,} of the recording, which is not open here"
        return [Text(what, colours["warning"]), Text("from the report: " + _reported(finding), quiet)]
    sign, _ = OPERATIONS.get(change.operation, (" ", ""))
    head = Text.assemble(
        (f"{sign} {change.operation} {change.table}", "bold"), ("  key ", quiet), key_text(change)
    )
    lines = [Text("this is a copy of:", colours["warning"])] if is_copy else []
    lines += [head, _committed(change, quiet)]
    message = message_of(change, part)
    if message is None:
        return [*lines, Text(f"no message: {change.without or 'no reason is recorded'}", colours["warning"])]
    return [*lines, _placed(message, quiet), _bytes(message.key, message.value, _ids(message), quiet)]


def _reported(finding: ReportFinding) -> str:
    facts = (finding.operation, finding.table, finding.key_text, finding.lsn)
    return ", ".join(filter(None, facts)) or "only the position is known"


def _committed(change: Change, quiet: str) -> Text:
    return Text.assemble(
        ("lsn ", quiet), change.lsn_text,
        ("  xid ", quiet), str(change.xid) if change.xid else figures.NONE,
        ("  committed ", quiet), figures.precise_clock(change.commit_time / MICROS),
    )  # fmt: skip


def _placed(message: SentMessage, quiet: str) -> Text:
    place = figures.NONE if message.offset is None else f"{message.partition}@{message.offset}"
    return Text.assemble((message.topic, "bold"), f" {place}", (f"  {message.state}", quiet))


def _ids(message: SentMessage) -> tuple[int | None, int | None]:
    return message.key_schema_id, message.value_schema_id


def _bytes(key: bytes | None, value: bytes | None, ids: tuple[int | None, int | None], quiet: str) -> Text:
    def size_of(name: str, data: bytes | None, number: int | None) -> str:
        if data is None:
            return f"{name} null"
        return f"{name} {figures.size(len(data))}" + ("" if number is None else f" schema {number}")

    kind = "  tombstone" if value is None and key is not None else ""
    return Text(f"{size_of('key', key, ids[0])} · {size_of('value', value, ids[1])}{kind}", quiet)


def kafka_lines(
    finding: ReportFinding,
    record: TopicRecord | str | None,
    sides: tuple[DecodedPart | None, DecodedPart | None],
    problem: str,
    colours: dict[str, str],
) -> list[Text]:
    """Return the lines about Kafka's record; ``sides`` are its decoded key and value."""
    quiet = colours["quiet"]
    key, value = sides
    where = Text.assemble((finding.topic or figures.NONE, "bold"), f" {finding.place}")
    if key is not None and key.state == "row":
        where.append("  key ", quiet)
        where.append(fields_text(key.fields))
    if problem:
        return [where, Text(f"✗ {problem}", colours["error"])]
    if finding.offset is None:
        return [where, Text(_nowhere(finding), colours["warning"])]
    if record is None:
        return [where, Text("querying Kafka…", quiet)]
    if isinstance(record, str):
        return [where, Text(f"✗ {HOLES.get(record, record)}", colours["error"])]
    stamp = datetime.fromtimestamp(record.timestamp / 1000).strftime("%Y-%m-%d %H:%M:%S")
    ids = (None if key is None else key.schema_id, None if value is None else value.schema_id)
    lines = [where]
    if key is not None and key.state == "unreadable":
        lines.append(Text(f"✗ key: {key.problem}", colours["error"]))
    lines += [Text.assemble(("timestamp ", quiet), stamp), _bytes(record.key, record.value, ids, quiet)]
    if record.headers:
        lines.append(Text("headers " + ", ".join(name for name, _ in record.headers), quiet))
    if value is not None and value.state == "unreadable":
        lines.append(Text(f"✗ {value.problem}", colours["error"]))
    elif value is not None and value.state == "null":
        lines.append(Text("a tombstone: it has no fields", colours["warning"]))
    return lines


def _nowhere(finding: ReportFinding) -> str:
    if finding.name in DATABASE:
        return "no record of it is there"
    return "it has no place: no word of it ever came" if finding.topic is None else "unknown offset"
