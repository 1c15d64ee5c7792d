"""The findings of an audit: as rows, one of them in full, and the texts shown without any."""

from datetime import datetime

from rich.console import RenderableType

from bwtui.audit.classes import CLEAN, LOST, SIDES, UNDECIDED, Question, audit_class
from bwtui.recording.change import Change
from bwtui.recording.reading.seek_target import MICROS
from bwtui.tui import figures
from bwtui.tui.assessment import MARKS
from bwtui.tui.audit.command_process import CommandExit
from bwtui.tui.audit.field_pairs import message_of
from bwtui.tui.audit.labels import LABELS, MASKED
from bwtui.tui.audit.report import AuditReport, ReportFinding, fields_text, tone_of
from bwtui.tui.keys import key_for
from bwtui.tui.plain import Content, Group, Table, Text, block
from bwtui.tui.widgets.columns import Cell, GridColumn
from bwtui.tui.widgets.item_list import Item, ItemList

COLUMNS = (
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


class FindingList(ItemList):
    """Lists the findings of one class, or of all."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, _SORTABLE, id="findings", noun="findings")
        self.border_title = "Findings"
        self._name: str | None = None
        self._report: AuditReport | None = None
        self._turns = 0.0

    def show(self, report: AuditReport | None, name: str | None) -> None:
        """Show the findings of a class, or all."""
        self._report, self._name = report, name
        # A value that all rows share needs no column.
        if name is not None and self.sort_column == "class":
            self.sort_by("mark")
        self.set_columns([column for column in COLUMNS if name is None or column.key != "class"])
        self.border_title = Content("Findings" if name is None else name)
        # Advance the time, so that the different class is sorted at once.
        self._turns += 10
        listed = report.listed(name) if report is not None else []
        self.set_items([_item(finding, with_class=name is None) for finding in listed], self._turns)

    def _show(self) -> None:
        super()._show()
        if not self.items:
            self.empty_text = self._reason()
            self.refresh()

    def _explain(self, shown: int) -> str:
        text = super()._explain(shown)
        text = "1 finding" if text == "1 findings" else text
        unlisted = self._report.unlisted(self._name) if self._report is not None else 0
        return f"{text} · {unlisted:,} more are only counted" if unlisted else text

    def _reason(self) -> str:
        report, name = self._report, self._name
        if report is None:
            return f"nothing was audited yet: {key_for('verify')} does it"
        if name is None:
            return "✓ nothing was found" if report.verdict == "clean" else "no finding is listed"
        if not report.classes.get(name):
            return "none"
        return "counted, and not listed one by one: it is no anomaly"


def _item(finding: ReportFinding, *, with_class: bool) -> Item:
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
    cells = (Cell(MARKS[tone], tone), *(Cell(text, one) for text, one in zip(texts, tones, strict=True)))
    number = finding.number
    lsn = tuple(int(part, 16) for part in (finding.lsn or "0/0").split("/"))
    place = (
        finding.topic or "",
        finding.partition or 0,
        finding.offset if finding.offset is not None else -1,
    )
    _, table, key, topic, *_ = texts
    values = {"mark": number, "class": number, "table": table, "key": key, "topic": topic}
    values |= {"place": place, "lsn": lsn}
    search = " ".join((*texts, finding.note or "", finding.operation or ""))
    shown = cells if with_class else (*cells[:1], *cells[2:])
    return Item(str(number), shown, values, search, tone == "bad")


def verdict_content(
    report: AuditReport | None, now: float, *, recorded: bool = True, failed: CommandExit | None = None
) -> Content:
    """Return the verdict in two lines; without a report, the question that an audit would answer.

    ``failed`` is a later audit that ended without a report.
    """
    if failed is not None:
        return _failure(report, failed, now)
    if report is None:
        question = "does Kafka hold what was sent?" if recorded else "do the topics equal the tables?"
        how = "message by message" if recorded else "each key's latest value, while writes go on"
        return Content.assemble(
            (" ? NOT AUDITED  ", "bold $warning"),
            (question, "bold"),
            "\n",
            (f"   {key_for('verify')} verifies it, {how}", "$quiet"),
        )
    tone, word = {
        "clean": ("$success", "✓ CLEAN"),
        "anomalies": ("$error", "✗ ANOMALIES"),
        "indeterminate": ("$warning", "▲ INDETERMINATE"),
    }[report.verdict]
    left, right = SIDES[report.question]
    sides = f"{report.expected:,} {left}, {report.actual:,} {right}"
    if report.verdict == "anomalies":
        sides = f"{report.wrong:,} in {sides}"
    elif report.verdict == "indeterminate":
        sides = f"{report.classes.get(UNDECIDED, 0):,} of {sides} undecided"
    parts: list[tuple[str, str]] = [(f" {word}  ", f"bold {tone}"), (sides, "bold")]
    remarks = [] if report.when is None else [(f"{_when(report.when, now)} · ", "$quiet")]
    remarks += [("values are masked · ", "$warning")] if report.masked else []
    return Content.assemble(*parts, "\n   ", *remarks) + _summary(report)


def _failure(report: AuditReport | None, failed: CommandExit, now: float) -> Content:
    """Return why the last audit ended without a report, and that the shown report is an older one's."""
    older = ""
    if report is not None:
        older = (
            "this is the report of one before · "
            if report.when is None
            else (f"this is the report of {_when(report.when, now)} · ")
        )
    return Content.assemble(
        (" ✗ AUDIT FAILED  ", "bold $error"),
        (failed.error or f"it ended with exit code {failed.code}", "bold"),
        "\n   ",
        (older, "$warning"),
        (f"→ {failed.hint}" if failed.hint else f"{key_for('verify')} tries again", "$quiet"),
    )


def _when(moment: float, now: float) -> str:
    """Return the time of day, and the age in one unit, so that it rarely changes."""
    seconds = now - moment
    units = ((86_400, "d"), (3_600, "h"), (60, "m"))
    ago = next((f"{int(seconds // size)} {unit} ago" for size, unit in units if seconds >= size), "just now")
    day = "" if seconds < 43_200 else "%Y-%m-%d "
    return f"{datetime.fromtimestamp(moment).strftime(day + '%H:%M')}, {ago}"


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
    "An audit reads the recording and the topics, and gives each message and each record one class: "
    "lost, doubled, changed, out of order, excused by compaction or retention, or simply there. "
    "It changes nothing. It needs the brokers and the schema registry."
)
_BEFORE_RELAY = (
    "An audit reads the tables as they are at one LSN, and the latest record of each key in their topics: "
    "every row is there, is missing or differs, and no key is left over. What is written meanwhile is waited "
    "for, never blamed. It changes nothing. Single messages are audited with a recording (--record)."
)


def nothing_content(report: AuditReport | None, recorded: bool) -> Content:
    """Return what was audited and what was not; without a report, what an audit would do."""
    if report is None:
        return Content(_BEFORE_RECORDING if recorded else _BEFORE_RELAY)
    lines = [_fact(name, value) for name, value in _facts(report)]
    notes = [*report.notes, *([MASKED] if report.masked else [])]
    lines += [Content.styled(f"▲ {note}", "$warning") for note in notes]
    if recorded and report.verdict == "clean":
        lines.append(
            Content.styled(
                f"{key_for('verify')} verifies again: what was written since is not in this report", "$quiet"
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
        facts.append(("compared", f"{compared:,} messages also with what PostgreSQL said"))
    without = raw.get("without_message") or {}
    facts.append(("no message", ", ".join(f"{count:,} {name}" for name, count in without.items())))
    seconds = raw.get("seconds") or {}
    if "audit" in seconds:
        facts.append(("took", figures.duration(sum(seconds.values()))))
    return [(name, value) for name, value in facts if value]


def _fact(name: str, value: str) -> Content:
    return Content.assemble((f"{name:<11}", "$quiet"), value)


def finding_content(
    finding: ReportFinding, change: Change | None, report: AuditReport, colours: dict[str, str]
) -> RenderableType:
    """Return a finding in full; ``change`` is set if the recording is available."""
    parts = _lines(finding, change, report.question, colours)
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
    finding: ReportFinding, change: Change | None, question: Question, colours: dict[str, str]
) -> list[_Line]:
    quiet, tone = colours["quiet"], tone_of(finding.name)
    style = {"bad": colours["error"], "warn": colours["warning"]}.get(tone, quiet)
    kind = audit_class(finding.name, question)
    head: _Line = [(f"{MARKS[tone]} {finding.name}  ", f"bold {style}"), (kind.meaning, style)]
    lines = [head, _about(finding, change, quiet), _sent(finding, change, quiet), _placed(finding, quiet)]
    fault = f"at fault: {_HOPS[finding.hop]}" if finding.hop in _HOPS else ""
    # The meaning of the class already contains the note that all its findings share.
    note = (finding.note or "").removeprefix(kind.note).removeprefix("; ")
    if why := " · ".join(part for part in (note, fault) if part):
        lines.append([(why, colours["secondary"])])
    return [line for line in lines if line]


def _about(finding: ReportFinding, change: Change | None, quiet: str) -> _Line:
    what = " ".join(filter(None, (finding.operation, finding.table))) or "no change of this recording"
    parts: _Line = [(what, "bold"), ("  key ", quiet), finding.key_text or figures.NONE]
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


def _placed(finding: ReportFinding, quiet: str) -> _Line:
    if finding.topic is None:
        return []
    where = f"{finding.topic} {finding.place}".rstrip()
    return [("place  ", quiet), where, ("  Enter: both sides", quiet)]


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
