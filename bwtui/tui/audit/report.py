"""The report of ``bwtui verify --json``, parsed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bwtui.audit.classes import CLASSES, LOST, Question, Severity, audit_class
from bwtui.errors import UsageError
from bwtui.file_errors import file_failed
from bwtui.tui.assessment import Tone

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
        asked = self.raw.get("question")
        return asked if asked in ("database", "recordings") else "recording"

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
        raise file_failed(f"{path} can't be read", error, UsageError) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no report of an audit", _HINT) from error


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
