"""The report of an audit, and both sides of one finding."""

import asyncio
import shlex
import threading
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import ClassVar

from rich.console import RenderableType
from textual import work
from textual.containers import Container
from textual.widget import Widget

from bwtui.audit.classes import CLEAN, DATABASE, LOST, SIDES, UNDECIDED, Question, audit_class
from bwtui.errors import BwtuiError
from bwtui.recording.change import Change, SentMessage, key_text
from bwtui.recording.explain import RowKey
from bwtui.recording.playback import MICROS
from bwtui.recording.view import RecordingView
from bwtui.tui.audit.records import HOLES, DecodedPart, RecordDecoder, SingleRecordReader, TopicRecord
from bwtui.tui.audit.report import (
    ABSENT,
    LABELS,
    MASKED,
    SAME,
    AuditReport,
    FieldPair,
    ReportFinding,
    SideLabels,
    class_order,
    fields_text,
    full_texts,
    key_of_finding,
    message_of,
    pairs,
    postgresql_texts,
    table_pairs,
    tone_of,
)
from bwtui.tui.audit.session import CommandExit
from bwtui.tui.base import figures
from bwtui.tui.base.assessment import MARKS
from bwtui.tui.base.keys import key_for
from bwtui.tui.base.plain import Content, Group, Table, Text, block, fact, with_hint
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.sources.host import ScreenHost
from bwtui.tui.sources.model import ScreenSnapshot
from bwtui.tui.sources.recorded_model import RecordingSource
from bwtui.tui.widgets.changes import OPERATIONS
from bwtui.tui.widgets.grid import Cell, Grid, GridColumn, GridRow, Item, SortedItemList
from bwtui.tui.widgets.line import Detail, Line

CLASS_COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("class", "Class", 14, grow=22),
    GridColumn("count", "Count", 5, "right"),
)
#: The key of the row for all findings.
ALL = "*"


class ClassGrid(Grid):
    """Lists the worst classes first; classes without findings are hidden until the user asks for them."""

    def __init__(self) -> None:
        super().__init__(CLASS_COLUMNS, id="classes")
        self.add_class("panel")
        self.border_title = "Classes"
        self.empty_text = "no audit yet"
        self._report: AuditReport | None = None
        self.zeros = False

    @property
    def chosen(self) -> str | None:
        """The class under the cursor; None for all."""
        return None if self.cursor_key in (None, ALL) else self.cursor_key

    def show(self, report: AuditReport | None) -> None:
        """Show a report's classes."""
        self._report = report
        self._fill()

    def toggle_zeros(self) -> None:
        """Show or hide the classes without findings."""
        self.zeros = not self.zeros
        self._fill()

    def _fill(self) -> None:
        report = self._report
        if report is None:
            self.set_rows([])
            return
        names = [name for name in class_order(report) if self.zeros or report.classes[name]]
        total = sum(report.totals.values())
        rows = [GridRow(ALL, (Cell(""), Cell("all findings", "strong"), Cell(figures.count(total))))]
        self.set_rows(rows + [_class_row(name, report.classes[name]) for name in names])
        hidden = len(report.classes) - len(names)
        self.set_remark(f"{hidden} empty · {key_for('all_classes')}" if hidden else "")


def _class_row(name: str, count: int) -> GridRow:
    tone = tone_of(name) if count else "muted"
    mark = Cell(MARKS[tone] if count else " ", tone)
    return GridRow(name, (mark, Cell(name, "" if tone == "bad" else tone), Cell(figures.count(count), tone)))


FINDING_COLUMNS = (
    GridColumn("mark", "", 1),
    GridColumn("class", "Class", 14, grow=20),
    GridColumn("table", "Table", 14, drop=2, grow=30),
    GridColumn("key", "Key", 17, grow=34),
    GridColumn("topic", "Topic", 14, drop=4, grow=30),
    GridColumn("place", "Part@offset", 11, "right", drop=1, grow=16),
    GridColumn("lsn", "LSN", 11, "right", drop=3, grow=17),
    GridColumn("hop", "Hop", 6, drop=5, grow=10),
    GridColumn("differs", "Differs", 12, drop=6, grow=60),
)
#: Sorting by the mark keeps the report's own order: the worst first.
_SORTABLE = ("mark", "class", "table", "key", "topic", "place", "lsn")
_HOPS = {
    "broker": "the broker",
    "relay": "the relay",
    "stream": "the stream from PostgreSQL",
    "other": "another producer",
}
_NO_COLOURS = dict.fromkeys(("quiet", "foreground", "warning", "error", "secondary"), "")
#: A line as texts, some with a style: escaped and cut when shown, exact when copied.
_Line = list[str | tuple[str, str]]


class FindingList(SortedItemList):
    """Lists the findings of one class, or of all."""

    def __init__(self) -> None:
        super().__init__(FINDING_COLUMNS, _SORTABLE, id="findings", noun="findings")
        self.border_title = "Findings"
        self._name: str | None = None
        self._report: AuditReport | None = None

    def show(self, report: AuditReport | None, name: str | None) -> None:
        """Show the findings of a class, or all."""
        self._report, self._name = report, name
        # A value that all rows share needs no column.
        if name is not None and self.sort_column == "class":
            self.sort_by("mark")
        self.set_columns([column for column in FINDING_COLUMNS if name is None or column.key != "class"])
        self.border_title = Content("Findings" if name is None else name)
        self.say_why_empty(self._reason())
        listed = report.listed(name) if report is not None else []
        self.set_items([_finding_item(finding, with_class=name is None) for finding in listed], 0)

    def _explain(self, shown: int) -> str:
        text = super()._explain(shown)
        text = "1 finding" if text == "1 findings" else text
        unlisted = self._report.unlisted(self._name) if self._report is not None else 0
        return f"{text} · {unlisted:,} more are only counted" if unlisted else text

    def _reason(self) -> str:
        report, name = self._report, self._name
        if report is None:
            return f"no audit yet; {key_for('verify')} runs one"
        if name is None:
            return "✓ no anomalies" if report.verdict == "clean" else "no finding is listed"
        if not report.classes.get(name):
            return "none"
        return "only counted, not listed: not an anomaly"


def _finding_item(finding: ReportFinding, *, with_class: bool) -> Item:
    tone = tone_of(finding.name)
    names = ", ".join(str(field.get("field", "")) for field in finding.fields)
    texts = (
        finding.name,
        finding.table or figures.NONE,
        finding.key_text or figures.NONE,
        finding.topic or figures.NONE,
        finding.place or figures.NONE,
        finding.lsn or figures.NONE,
        finding.hop,
        names,
    )
    tones = (tone if tone != "plain" else "", "strong", "", "", "muted", "muted", "muted", "warn")
    number = finding.number
    lsn = tuple(int(part, 16) for part in (finding.lsn or "0/0").split("/"))
    place = (
        finding.topic or "",
        finding.partition or 0,
        finding.offset if finding.offset is not None else -1,
    )
    ranks = (number, None, None, None, place, lsn, None, None)
    cells = (Cell(MARKS[tone], tone, number), *map(Cell, texts, tones, ranks))
    search = " ".join((*texts, finding.note or "", finding.operation or ""))
    shown = cells if with_class else (*cells[:1], *cells[2:])
    return Item(str(number), shown, search, tone == "bad")


def verdict_content(
    report: AuditReport | None, now: float, *, recorded: bool = True, failed: CommandExit | None = None
) -> Content:
    """Return the verdict in two lines; without a report, the question that an audit would answer.

    ``failed`` is a later audit that ended without a report.
    """
    if failed is not None:
        return _failure(report, failed, now)
    if report is None:
        question = "does Kafka contain what was sent?" if recorded else "do the topics equal the tables?"
        method = "message by message" if recorded else "each key's latest value, while writes continue"
        return Content.assemble(
            (" ? NOT AUDITED  ", "bold $warning"),
            (question, "bold"),
            "\n",
            (f"   {key_for('verify')} verifies it, {method}", "$quiet"),
        )
    tone, label = {
        "clean": ("$success", "✓ CLEAN"),
        "anomalies": ("$error", "✗ ANOMALIES"),
        "indeterminate": ("$warning", "▲ INDETERMINATE"),
    }[report.verdict]
    left_side, right = SIDES[report.question]
    sides = f"{report.expected:,} {left_side}, {report.actual:,} {right}"
    if report.verdict == "anomalies":
        sides = f"{report.wrong:,} in {sides}"
    elif report.verdict == "indeterminate":
        sides = f"{report.classes.get(UNDECIDED, 0):,} of {sides} undecided"
    parts: list[tuple[str, str]] = [(f" {label}  ", f"bold {tone}"), (sides, "bold")]
    remarks = [] if report.when is None else [(f"{figures.clock_and_age(report.when, now)} · ", "$quiet")]
    remarks += [("values are masked · ", "$warning")] if report.masked else []
    return Content.assemble(*parts, "\n   ", *remarks) + _summary(report)


def _failure(report: AuditReport | None, failed: CommandExit, now: float) -> Content:
    """Return why the last audit ended without a report, and that the shown report is an older one's."""
    older = ""
    if report is not None:
        older = (
            "this is the report of the audit before · "
            if report.when is None
            else (f"this is the report of {figures.clock_and_age(report.when, now)} · ")
        )
    return Content.assemble(
        (" ✗ AUDIT FAILED  ", "bold $error"),
        (failed.error or f"it ended with exit code {failed.code}", "bold"),
        "\n   ",
        (older, "$warning"),
        (f"→ {failed.hint}" if failed.hint else f"{key_for('verify')} tries again", "$quiet"),
    )


def _summary(report: AuditReport) -> Content:
    if report.verdict == "clean":
        excused = [f"{c:,} {n}" for n, c in report.classes.items() if c and tone_of(n) == "muted"]
        text = CLEAN[report.question]
        more = ", ".join(excused)
        return Content.styled(text + (f"; {more}" if more else ""), "$quiet")
    parts = [f"{report.missing:,} lost"] if report.missing else []
    parts += [
        f"{count:,} {name}"
        for name, count in report.classes.items()
        if count and name not in LOST and tone_of(name) in ("bad", "warn")
    ]
    return Content.styled(" · ".join(parts), "$quiet")


_BEFORE_RECORDING = (
    "An audit reads the recording and the topics, and assigns each message and each record one "
    "class: lost, duplicated, changed, reordered, removed by compaction or retention, or correct. "
    "It changes nothing. It needs the brokers and the schema registry."
)
_BEFORE_RELAY = (
    "An audit reads the tables as of one LSN, and the latest record of each key in their topics: "
    "every row must be there and equal, and no other key. It waits for concurrent writes, and "
    "never reports them. It changes nothing. Audits of single messages need a recording (--record)."
)


def nothing_content(report: AuditReport | None, recorded: bool) -> Content:
    """Return what was audited and what was not; without a report, what an audit would do."""
    if report is None:
        return Content(_BEFORE_RECORDING if recorded else _BEFORE_RELAY)
    lines = [fact(name, value, width=11) for name, value in _facts(report)]
    notes = [*report.notes, *([MASKED] if report.masked else [])]
    lines += [Content.styled(f"▲ {note}", "$warning") for note in notes]
    if recorded and report.verdict == "clean":
        lines.append(
            Content.styled(
                f"{key_for('verify')} verifies again; this report does not cover later changes", "$quiet"
            )
        )
    return Content("\n").join(lines)


def _facts(report: AuditReport) -> list[tuple[str, str]]:
    raw, window = report.raw, report.raw.get("window", {})
    topics = {str(topic.get("topic")) for topic in raw.get("topics", ())}
    facts = [("recording", str(raw.get("recording") or "")), ("second", str(raw.get("other") or ""))]
    facts.append(("tables", ", ".join(map(str, raw.get("tables") or ()))))
    facts.append(("fences", ", ".join(map(str, window.get("fences") or ()))))
    if "first_lsn" in window:
        facts.append(("LSNs", f"{window['first_lsn']} to {window['last_lsn']}"))
    if "confirmed_lsn" in window:
        facts.append(("confirmed", str(window["confirmed_lsn"])))
    if topics:
        records = sum(int(topic.get("high", 0)) - int(topic.get("low", 0)) for topic in raw["topics"])
        facts.append(("topics", f"{len(topics)} with {records:,} offsets: {', '.join(sorted(topics))}"))
    facts.append(("cluster", str(raw.get("cluster") or "")))
    if (compared := raw.get("compared_with_postgresql")) is not None:
        facts.append(("compared", f"{compared:,} messages also compared with PostgreSQL's data"))
    without = raw.get("without_message") or {}
    facts.append(("no message", ", ".join(f"{count:,} {name}" for name, count in without.items())))
    seconds = raw.get("seconds") or {}
    if "audit" in seconds:
        facts.append(("took", figures.duration(sum(seconds.values()))))
    return [(name, value) for name, value in facts if value]


def finding_content(
    finding: ReportFinding, change: Change | None, report: AuditReport, colours: dict[str, str]
) -> RenderableType:
    """Return a finding in full; ``change`` is set if the recording is available."""
    hint = f"  {key_for('drill')}: expected and actual message"
    parts = _lines(finding, change, report.question, colours, hint)
    lines: list[RenderableType] = [Text.assemble(*line) for line in parts]
    if report.masked and finding.is_masked:
        lines.append(Text(MASKED, colours["warning"]))
    if finding.fields:
        lines += ["", _fields(finding, report.question, colours)]
    return Group(*lines)


def finding_text(finding: ReportFinding, change: Change | None, question: Question) -> str:
    """Return a finding as plain text to copy: exact, with all characters."""
    parts = _lines(finding, change, question, _NO_COLOURS)
    lines = ["".join(part if isinstance(part, str) else part[0] for part in line) for line in parts]
    for field in finding.fields:
        sides = {side: text for side, text in field.items() if side != "field"}
        lines.append(f"{field.get('field')}: {fields_text(sides)}")
    return "\n".join(lines)


def _lines(
    finding: ReportFinding, change: Change | None, question: Question, colours: dict[str, str], hint: str = ""
) -> list[_Line]:
    quiet, tone = colours["quiet"], tone_of(finding.name)
    style = {"bad": colours["error"], "warn": colours["warning"]}.get(tone, quiet)
    kind = audit_class(finding.name, question)
    head: _Line = [(f"{MARKS[tone]} {finding.name}  ", f"bold {style}"), (kind.meaning, style)]
    lines = [
        head,
        _about(finding, change, quiet),
        _sent(finding, change, quiet),
        _placed(finding, quiet, hint),
    ]
    fault = f"at fault: {_HOPS[finding.hop]}" if finding.hop in _HOPS else ""
    # The meaning of the class already contains the note that all its findings share.
    note = (finding.note or "").removeprefix(kind.note).removeprefix("; ")
    if why := " · ".join(part for part in (note, fault) if part):
        lines.append([(why, colours["secondary"])])
    return [line for line in lines if line]


def _about(finding: ReportFinding, change: Change | None, quiet: str) -> _Line:
    subject = " ".join(filter(None, (finding.operation, finding.table))) or "no change of this recording"
    parts: _Line = [(subject, "bold"), ("  key ", quiet), finding.key_text or figures.NONE]
    if finding.lsn:
        parts += [("  lsn ", quiet), f"{finding.lsn} #{finding.ordinal}"]
    if change is not None:
        parts += [("  xid ", quiet), str(change.xid) if change.xid else figures.NONE]
        parts += [("  committed ", quiet), figures.precise_clock(change.commit_time / MICROS)]
    return parts


def _sent(finding: ReportFinding, change: Change | None, quiet: str) -> _Line:
    message = None if change is None else message_of(change, finding.part)
    if message is None:
        return []
    placed = "" if message.offset is None else f" {message.partition}@{message.offset}"
    kind = "a tombstone" if message.value is None else figures.size(len(message.value))
    state = f"  {message.state}, {kind}"
    return [("sent   ", quiet), f"{message.topic}{placed}", (state, quiet)]


def _placed(finding: ReportFinding, quiet: str, hint: str) -> _Line:
    if finding.topic is None:
        return []
    where = f"{finding.topic} {finding.place}".rstrip()
    return [("place  ", quiet), where, (hint, quiet)]


def _fields(finding: ReportFinding, question: Question, colours: dict[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style=f"bold {colours['quiet']}")
    sides = [
        name for name in ("postgresql", "sent", "kafka") if any(name in field for field in finding.fields)
    ]
    if all(field.get("postgresql") == field.get("sent") for field in finding.fields) and len(sides) == 3:
        sides.remove("postgresql")
    titles = LABELS[question].of_fields
    table.add_column("Differs", max_width=24, overflow="fold")
    for side in sides:
        table.add_column(titles[side], overflow="fold")
    for field in finding.fields:
        cells = [_value(field.get(side), colours, loud=side == "kafka") for side in sides]
        table.add_row(Text(str(field.get("field")), f"bold {colours['warning']}"), *cells)
    return table


def _value(value: object, colours: dict[str, str], *, loud: bool) -> Text:
    if value is None:
        return Text("NULL", f"italic {colours['secondary']}")
    return Text(block(str(value)) or "''", f"bold {colours['warning']}" if loud else colours["foreground"])


#: Shown for a class of a report that a newer version wrote.
_UNKNOWN = "unknown in this version of bwtui"


def table_lines(finding: ReportFinding, key: str, report: AuditReport, colours: dict[str, str]) -> list[Text]:
    """Return the lines about the table's side."""
    quiet = colours["quiet"]
    head = Text.assemble((finding.table or figures.NONE, "bold"), ("  key ", quiet), key or figures.NONE)
    lines = [head, Text(audit_class(finding.name, "database").left or _UNKNOWN, colours["warning"])]
    if finding.note:
        lines.append(Text(finding.note, colours["warning"]))
    if report.masked and finding.is_masked:
        lines.append(Text(MASKED, quiet))
    fences = [str(fence) for fence in report.raw.get("window", {}).get("fences") or ()]
    if fences:
        behind = f", and again up to {fences[-1]}" if len(fences) > 1 else ""
        lines.append(Text(f"read as of {fences[0]}{behind}", quiet))
    return lines


def recording_lines(
    finding: ReportFinding, report: AuditReport, colours: dict[str, str], *, second: bool
) -> list[Text]:
    """Return the lines about one of two recordings."""
    quiet = colours["quiet"]
    folder = str(report.raw.get("other" if second else "recording") or "")
    change = " ".join(part for part in (finding.operation, finding.table) if part)
    kind = audit_class(finding.name, "recordings")
    has = (kind.right if second else kind.left) or "it has the row"
    # For a change that both recordings have, the report has the first one's position.
    if finding.position is not None and second == (finding.name == "extra"):
        has += f", at position {finding.position:,}"
    lines = [
        Text.assemble((folder or figures.NONE, "bold")),
        Text.assemble(change or figures.NONE, ("  lsn ", quiet), f"{finding.lsn} #{finding.ordinal}"),
        Text(has, colours["warning"]),
    ]
    if ("actual" if second else "expected") in kind.sides and folder and finding.lsn:
        lines.append(Text(f"bwtui open {shlex.quote(folder)} --at {finding.lsn}", quiet))
    return lines


def _pair_columns(labels: SideLabels) -> list[GridColumn]:
    columns = [
        GridColumn("mark", "", 1),
        GridColumn("field", "Field", 14, grow=26),
        GridColumn("sent", labels.left, 20, grow=70),
        GridColumn("kafka", labels.right, 20, grow=70),
    ]
    return columns + ([GridColumn("postgresql", labels.source, 18, drop=1, grow=70)] if labels.source else [])


class FieldPairs(SortedItemList):
    """Lists fields; those that differ are marked, and the filter for errors shows only them."""

    def __init__(self, labels: SideLabels) -> None:
        super().__init__(_pair_columns(labels), ("field",), id="fields", noun="fields")
        self.border_title = "Fields"
        self._labels = labels
        self.say_why_empty(labels.no_fields)

    def show_pairs(self, pairs: Sequence[FieldPair], *, has_kafka: bool) -> None:
        """Show these fields; without a row in Kafka, none counts as different."""
        has_source = bool(self._labels.source)
        items = [_pair_item(n, pair, has_kafka, has_source) for n, pair in enumerate(pairs)]
        self.set_items(items, 0)
        # Select the first difference, because the user came for it.
        if first := next((item.key for item in items if item.trouble), None):
            self.move_to_key(first)

    def selected(self) -> FieldPair | None:
        """Return the field under the cursor."""
        pair: FieldPair | None = self.selected_entry
        return pair


def _pair_item(number: int, pair: FieldPair, has_kafka: bool, has_source: bool) -> Item:
    both = has_kafka and ABSENT not in (pair.sent, pair.kafka)
    differs = both and pair.differs
    mark = Cell("≠", "bad") if differs else Cell("!", "bad") if pair.miscoded else Cell("")
    loud = "bad" if differs else ""
    values = tuple(_shown(value) for value in (pair.sent, pair.kafka, pair.postgresql))
    shown = 5 if has_source else 4
    cells = (
        mark,
        Cell(pair.name, loud or "strong", number),
        Cell(values[0], "warn" if differs else "muted" if pair.sent in (None, ABSENT, SAME) else ""),
        Cell(values[1], "bad" if differs else "muted" if pair.kafka in (None, ABSENT) else ""),
        Cell(values[2], "bad" if pair.miscoded else "muted"),
    )
    trouble = differs or pair.miscoded
    return Item(str(number), cells[:shown], " ".join((pair.name, *values)), trouble, pair)


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
        text = "no message of the recording has these bytes"
        if finding.position is not None:
            text = f"position {finding.position:,} of the recording, which is not open here"
        return [Text(text, colours["warning"]), Text("from the report: " + _reported(finding), quiet)]
    sign, _ = OPERATIONS.get(change.operation, (" ", ""))
    head = Text.assemble(
        (f"{sign} {change.operation} {change.table}", "bold"), ("  key ", quiet), key_text(change)
    )
    lines = [Text("duplicate of:", colours["warning"])] if is_copy else []
    lines += [head, _committed(change, quiet)]
    message = message_of(change, part)
    if message is None:
        return [*lines, Text(f"no message: {change.without or 'no reason is recorded'}", colours["warning"])]
    return [*lines, _place_of(message, quiet), _bytes(message.key, message.value, _ids(message), quiet)]


def _reported(finding: ReportFinding) -> str:
    facts = (finding.operation, finding.table, finding.key_text, finding.lsn)
    return ", ".join(filter(None, facts)) or "only the position is known"


def _committed(change: Change, quiet: str) -> Text:
    return Text.assemble(
        ("lsn ", quiet), change.lsn_text,
        ("  xid ", quiet), str(change.xid) if change.xid else figures.NONE,
        ("  committed ", quiet), figures.precise_clock(change.commit_time / MICROS),
    )  # fmt: skip


def _place_of(message: SentMessage, quiet: str) -> Text:
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
        return "the topic has no record of this key"
    if finding.topic is None:
        return "no delivery report arrived, so its place is unknown"
    return "unknown offset"


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
        finding = self.selected_finding()
        return None if finding is None else self._changes.get(finding.number)

    def selected_key(self) -> RowKey | str:
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
