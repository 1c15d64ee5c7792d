"""Audits on the screens: the report of an audit, its result for one change, and the commands to run."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bwtui.audit.classes import CLASSES, LOST, Question, Severity, audit_class
from bwtui.errors import UsageError
from bwtui.file_errors import file_failed
from bwtui.model.lsn import parse_lsn
from bwtui.pgoutput.messages import UNCHANGED
from bwtui.recording.change import Change, SentMessage, as_text
from bwtui.recording.explain import RowKey
from bwtui.tui.audit.records import DecodedPart
from bwtui.tui.base import figures
from bwtui.tui.base.assessment import Tone
from bwtui.tui.base.keys import key_for


@dataclass(frozen=True, slots=True)
class SideLabels:
    """The names of both sides."""

    #: Titles of the two sides.
    expected: str
    actual: str
    #: Titles of their values.
    left: str
    right: str
    #: Title of PostgreSQL's value, if that is neither of the two.
    source: str = ""
    #: Shown if there are no fields.
    no_fields: str = "neither side has a row, so there are no fields to compare"

    @property
    def of_fields(self) -> Mapping[str, str]:
        """The title of each value of a field in a report."""
        return {"postgresql": self.source or self.left, "sent": self.left, "kafka": self.right}


LABELS: Mapping[Question, SideLabels] = {
    "recording": SideLabels(
        "Expected: the sent message", "Actual: the record in Kafka", "Sent", "Kafka has", "PostgreSQL sent"
    ),
    "database": SideLabels(
        "Expected: the table's row", "Actual: the topic's latest value", "Table has", "Topic has"
    ),
    "recordings": SideLabels(
        "Expected: the first recording",
        "Actual: the second recording",
        "First has",
        "Second has",
        no_fields="the report has no fields; see this position in the recordings",
    ),
}
#: Shown if a report has no values.
MASKED = "values are masked; use 'bwtui verify --show-values' to show them"


_TONES: Mapping[Severity, Tone] = {"anomaly": "bad", "undecided": "warn"}
_HINT = "give the output of 'bwtui verify RECORDING --json'"
#: Replaces a value that the report masks.
_MASK = "…"
#: Keys that a finding in a report may lack; they are then None.
_OPTIONAL = (
    *("topic", "partition", "offset", "lsn", "ordinal", "position"),
    *("table", "operation", "key", "note"),
)


def fields_text(fields: Mapping[str, Any]) -> str:
    """Return fields in one line, as ``id=7, part=NULL``."""
    return ", ".join(f"{name}={'NULL' if value is None else value}" for name, value in fields.items())


@dataclass(frozen=True, slots=True)
class ReportFinding:
    """One finding of an audit; unknown attributes are None."""

    #: Its number in the report.
    number: int
    name: str
    topic: str | None
    partition: int | None
    offset: int | None
    lsn: str | None
    ordinal: int | None
    position: int | None
    part: int
    table: str | None
    operation: str | None
    key: Mapping[str, Any] | None
    #: The fields that differ: "field", and perhaps "sent", "postgresql" and "kafka".
    fields: tuple[Mapping[str, Any], ...]
    hop: str
    note: str | None

    @property
    def key_text(self) -> str:
        """The key as ``id=7``."""
        return fields_text(self.key or {})

    @property
    def is_masked(self) -> bool:
        """Whether its key or a value is masked."""
        values = [*(self.key or {}).values(), *(value for field_ in self.fields for value in field_.values())]
        return _MASK in values

    @property
    def place(self) -> str:
        """Partition and offset, or an empty string."""
        if self.offset is None:
            return ""
        return f"{'' if self.partition is None else self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The output of ``bwtui verify --json``: verdict, counts by class, and the listed findings."""

    verdict: str
    expected: int
    actual: int
    classes: Mapping[str, int]
    #: Class → number of findings, which may exceed those listed.
    totals: Mapping[str, int]
    findings: tuple[ReportFinding, ...]
    notes: tuple[str, ...]
    #: The whole report as parsed JSON.
    raw: Mapping[str, Any] = field(repr=False)
    path: Path | None = None

    @property
    def recording(self) -> Path | None:
        """The audited folder; None if the audit was of a database or of two recordings."""
        name = self.raw.get("recording")
        return Path(name) if isinstance(name, str) and "other" not in self.raw else None

    @property
    def question(self) -> Question:
        """The question of the audit; old reports, which lack it, are of recordings."""
        question = self.raw.get("question")
        return question if question in ("database", "recordings") else "recording"

    @property
    def masked(self) -> bool:
        """Whether keys or values are masked; values that can't be decoded do not count."""
        masked = self.raw.get("masked")
        if masked is None:
            # Old reports have only the command that created them.
            masked = "--show-values" not in str(self.raw.get("command", ""))
        return bool(masked) and any(finding.is_masked for finding in self.findings)

    @property
    def recording_id(self) -> str:
        """The id of the audited recording, or an empty string."""
        return str(self.raw.get("recording_id") or "")

    @property
    def when(self) -> float | None:
        """When it was created, in Unix seconds, or None if unknown."""
        now = self.raw.get("window", {}).get("now_ms")
        return now / 1000 if isinstance(now, int) else None

    @property
    def missing(self) -> int:
        """The number of lost messages."""
        return sum(self.classes.get(name, 0) for name in LOST)

    @property
    def wrong(self) -> int:
        """The number of anomalies."""
        return sum(number for name, number in self.classes.items() if tone_of(name) == "bad")

    def listed(self, name: str | None) -> list[ReportFinding]:
        """Return the listed findings of a class, or all of them."""
        return [finding for finding in self.findings if name is None or finding.name == name]

    def unlisted(self, name: str | None) -> int:
        """Return how many findings of a class, or of all, the report counts but does not list."""
        total = sum(self.totals.values()) if name is None else self.totals.get(name, 0)
        return max(total - len(self.listed(name)), 0)


def tone_of(name: str) -> Tone:
    """Return the tone of a class: "bad", "warn" if undecided, "muted" if excused or only a note."""
    return _TONES.get(audit_class(name).severity, "muted")


def class_order(report: AuditReport) -> list[str]:
    """Return the report's classes, the worst first."""
    order = {name: at for at, name in enumerate(CLASSES)}
    ranks: dict[Tone, int] = {"bad": 0, "warn": 1}
    return sorted(report.classes, key=lambda name: (ranks.get(tone_of(name), 2), order.get(name, -1), name))


def read_report(path: Path) -> AuditReport:
    """Read a report. Raises UsageError."""
    try:
        return parse_report(json.loads(path.read_bytes()), path)
    except OSError as error:
        raise file_failed(f"report {path} can't be read", error, UsageError) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not an audit report", _HINT) from error


def parse_report(data: Mapping[str, Any], path: Path | None = None) -> AuditReport:
    """Return a report from its JSON. Raises KeyError, ValueError, TypeError or AttributeError."""
    if data["verdict"] not in ("clean", "anomalies", "indeterminate"):
        raise ValueError("no such verdict")
    findings = tuple(_finding(number, entry) for number, entry in enumerate(data["findings"]))
    classes = {str(name): int(number) for name, number in data["classes"].items()}
    return AuditReport(
        str(data["verdict"]),
        int(data["expected"]),
        int(data["actual"]),
        classes,
        {str(name): int(number) for name, number in data.get("findings_total", classes).items()},
        findings,
        tuple(map(str, data.get("notes", ()))),
        data,
        path,
    )


def _finding(number: int, data: Mapping[str, Any]) -> ReportFinding:
    return ReportFinding(
        number,
        name=str(data["class"]),
        part=int(data.get("part") or 0),
        fields=tuple(data.get("fields") or ()),
        hop=str(data.get("hop") or ""),
        **{name: data.get(name) for name in _OPTIONAL},
    )


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of an audit, as a tone and as text."""

    tone: Tone
    text: str


@dataclass(frozen=True, slots=True)
class AuditSubject:
    """The change that is looked up in the report; unknown attributes are None."""

    table: str
    #: Text by column.
    key: Mapping[str, str | None]
    #: None if the record does not identify its change.
    lsn: int | None
    #: The id of the open recording, and the change's number in it; both None for a relay.
    recording: str | None = None
    position: int | None = None
    #: Topic, partition and offset.
    place: tuple[str, int, int] | None = None
    #: When the change was committed, or the timestamp of its record, in Unix seconds.
    time: float | None = None


def audited(report: AuditReport | None, subject: AuditSubject, now: float) -> AuditResult:
    """Return the last report's result and time; its date is left out on the day of ``now`` (Unix seconds)."""
    if report is None:
        return AuditResult("muted", f"not audited; {key_for('verify')} runs an audit")
    if report.question == "recordings":
        return AuditResult("muted", "the last audit compared recordings, not Kafka")
    is_of_recording = report.question == "recording"
    if is_of_recording and report.recording_id not in ("", subject.recording):
        return AuditResult("muted", "the last audit covered a different recording")
    matching = [finding for finding in report.findings if _is_of(finding, subject)]
    at_change = [finding for finding in matching if _is_at(finding, subject)] if is_of_recording else matching
    if at_change:
        worst = min(at_change, key=lambda finding: _RANKS.get(tone_of(finding.name), 3))
        more_findings = f", and {len(at_change) - 1} more" if len(at_change) > 1 else ""
        note = f": {worst.note}" if worst.note else ""
        return AuditResult(tone_of(worst.name), f"{worst.name}{note}{more_findings}{_of_time(report, now)}")
    return _nothing_of(report, subject, len(matching), _of_time(report, now))


def key_of_finding(finding: ReportFinding) -> RowKey | str:
    """Return the key of a finding, or why it is unknown."""
    if finding.table is None or not finding.key:
        return "The finding names no key"
    if finding.is_masked:
        return "The keys are masked in the report; use 'bwtui verify --show-values'"
    values = tuple(None if value is None else str(value).encode() for value in finding.key.values())
    return RowKey(finding.table, tuple(finding.key), values)


_RANKS: Mapping[Tone, int] = {"bad": 0, "warn": 1}


def _nothing_of(report: AuditReport, subject: AuditSubject, elsewhere: int, when: str) -> AuditResult:
    """Return whether the absence of findings proves that the change is correct."""
    if report.question == "database":
        if subject.table not in report.raw.get("tables", ()):
            return AuditResult("muted", "the last audit did not read this table")
        end, well = (
            _lsn(report.raw.get("window", {}).get("fences", ())[-1:]),
            "the topic's latest value is correct",
        )
    else:
        end, well = _lsn([report.raw.get("window", {}).get("last_lsn")]), "no anomaly found"
    if (later := _is_later(report, subject, end)) is not False:
        order = "committed" if later else "possibly committed"
        return AuditResult("muted", f"{order} after the last audit{when}; {key_for('verify')} audits again")
    if report.unlisted(None):
        return AuditResult(
            "warn", f"not among the listed findings; the report only counts {report.unlisted(None):,} more"
        )
    if report.masked:
        return AuditResult("warn", "the keys are masked in the report; use 'bwtui verify --show-values'")
    if report.verdict == "indeterminate":
        return AuditResult("warn", f"the audit was indeterminate{when}")
    more = f"; other findings of this key: {elsewhere}" if elsewhere else ""
    if subject.lsn is None:
        # No tick: a relay that lags sends records of old commits, and other producers may write any
        # timestamp.
        older = "if the record is older than that audit, as its timestamp suggests"
        return AuditResult("muted", f"{well}{more}{when}, {older}")
    return AuditResult("good", f"{well}{more}{when}")


def _is_later(report: AuditReport, subject: AuditSubject, end: int | None) -> bool | None:
    """Return whether a change is later than the audited range, which ends at LSN ``end``; None if unknown."""
    if subject.lsn is not None:
        return None if end is None else subject.lsn > end
    if subject.time is None or report.when is None:
        return None
    return subject.time > report.when


def _is_of(finding: ReportFinding, subject: AuditSubject) -> bool:
    """Return whether a finding is about the subject's key or its place."""
    key = {name: None if value is None else str(value) for name, value in (finding.key or {}).items()}
    return _is_at(finding, subject) or (finding.table == subject.table and bool(key) and key == subject.key)


def _is_at(finding: ReportFinding, subject: AuditSubject) -> bool:
    if finding.position is not None and subject.position is not None:
        return finding.position == subject.position
    return subject.place is not None and subject.place == (finding.topic, finding.partition, finding.offset)


def _lsn(texts: object) -> int | None:
    for text in texts if isinstance(texts, list | tuple) else ():
        try:
            return parse_lsn(str(text))
        except (UsageError, ValueError):
            return None
    return None


def _of_time(report: AuditReport, now: float) -> str:
    return "" if report.when is None else f" ({figures.when(report.when, now)})"


#: Shown for a field that a side lacks.
ABSENT = "–"
#: Shown for a value of a table's row that the report omits because it equals the topic's.
SAME = "no difference"


@dataclass(frozen=True, slots=True)
class FieldPair:
    """One field: PostgreSQL's value, the sent value, and Kafka's value; None is NULL.

    In an audit of tables, ``sent`` is the table's value, and ``postgresql`` is absent.
    """

    name: str
    postgresql: str | None
    sent: str | None
    kafka: str | None
    #: The sent value differs from PostgreSQL's.
    miscoded: bool = False
    #: True or False if the report says whether the sides differ: their values may be masked or written
    #: differently.
    judged: bool | None = None

    @property
    def differs(self) -> bool:
        """Whether Kafka's value differs from the sent one; with only one side, nothing differs."""
        return self.sent != self.kafka if self.judged is None else self.judged


def pairs(
    postgresql: Mapping[str, str | None] | None,
    sent: DecodedPart | None,
    kafka: DecodedPart | None,
    miscoded: Collection[str] = (),
) -> list[FieldPair]:
    """Return every field that a side has, in the order of the message; none for what is not a row."""
    sides = [
        postgresql,
        *(None if side is None or side.state != "row" else side.fields for side in (sent, kafka)),
    ]
    names = dict.fromkeys(name for side in (*sides[1:], sides[0]) if side is not None for name in side)
    every = []
    for name in names:
        texts = [ABSENT if side is None else side.get(name, ABSENT) for side in sides]
        every.append(FieldPair(name, texts[0], texts[1], texts[2], name in miscoded))
    return every


def table_pairs(finding: ReportFinding, kafka: DecodedPart | None) -> list[FieldPair]:
    """Return the fields of a row in the table and in the topic, as far as report and record have them."""
    row = kafka.fields if kafka is not None and kafka.state == "row" else {}
    listed = {str(field.get("field")): field for field in finding.fields}
    if not row and not listed:
        key = (finding.key or {}).items()
        if finding.name == "extra_key":
            # The record's own fields are more informative, or explain why they can't be read.
            return [FieldPair(name, ABSENT, ABSENT, value) for name, value in key] if kafka is None else []
        return [FieldPair(name, ABSENT, value, ABSENT) for name, value in key]
    unlisted = SAME if finding.name == "different_row" else ABSENT
    every = []
    for name in dict.fromkeys((*row, *listed)):
        if (field := listed.get(name)) is None:
            every.append(FieldPair(name, ABSENT, unlisted, row[name], judged=False))
        else:
            there = row.get(name, field.get("kafka"))
            every.append(FieldPair(name, ABSENT, field.get("postgresql"), there, judged=True))
    return every


def postgresql_texts(change: Change, message: SentMessage) -> dict[str, str | None] | None:
    """Return PostgreSQL's texts of the row of a message; None for a tombstone."""
    if message.value is None or change.after is None:
        return None
    columns = change.relation.columns
    return {
        column.name: as_text(value)
        for column, value in zip(columns, change.after, strict=False)
        if value is not UNCHANGED
    }


def full_texts(change: Change) -> dict[str, str | None]:
    """Return the new row's texts as PostgreSQL sent them, uncut; omit columns without a text."""
    columns = zip(change.relation.columns, change.after or (), strict=False)
    return {
        column.name: None if value is None else value.decode("utf-8", "replace")
        for column, value in columns
        if value is None or isinstance(value, bytes)
    }


def message_of(change: Change, part: int) -> SentMessage | None:
    """Return a message of a change by its number."""
    return next((message for message in change.messages if message.part == part), None)
