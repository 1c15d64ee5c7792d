"""The report of ``bwtui verify --json``, read back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bwtui.audit.classes import CLASSES, LOST, Question, Severity, audit_class
from bwtui.errors import UsageError
from bwtui.file_errors import file_failed
from bwtui.tui.judgement import Tone

_TONES: Mapping[Severity, Tone] = {"anomaly": "bad", "undecided": "warn"}
_HINT = "give the output of 'bwtui verify RECORDING --json'"
#: Stands for a value that the report does not show.
_MASK = "…"
#: What a report may leave out of a finding, and what is then None.
_OPTIONAL = (
    *("topic", "partition", "offset", "lsn", "ordinal", "position"),
    *("table", "operation", "key", "note"),
)


def fields_text(fields: Mapping[str, Any]) -> str:
    """Return fields in one line, as ``id=7, part=NULL``."""
    return ", ".join(f"{name}={'NULL' if value is None else value}" for name, value in fields.items())


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found; what is not known of it is None."""

    #: Its place in the report.
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
    #: Those that differ: "field", and perhaps "sent", "postgresql" and "kafka".
    fields: tuple[Mapping[str, Any], ...]
    hop: str
    note: str | None

    @property
    def key_text(self) -> str:
        """The key as ``id=7``."""
        return fields_text(self.key or {})

    @property
    def is_masked(self) -> bool:
        """Whether a mask stands for its key or a value."""
        values = [*(self.key or {}).values(), *(value for field_ in self.fields for value in field_.values())]
        return _MASK in values

    @property
    def place(self) -> str:
        """Partition and offset, or empty."""
        if self.offset is None:
            return ""
        return f"{'' if self.partition is None else self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What ``bwtui verify --json`` said: verdict, counts by class, and the findings that it lists."""

    verdict: str
    expected: int
    actual: int
    classes: Mapping[str, int]
    #: Class → how many findings there are; not all need to be listed.
    totals: Mapping[str, int]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    #: Everything, as it was read.
    raw: Mapping[str, Any] = field(repr=False)
    path: Path | None = None

    @property
    def recording(self) -> Path | None:
        """The folder that was audited; None if it was a database, or two recordings."""
        name = self.raw.get("recording")
        return Path(name) if isinstance(name, str) and "other" not in self.raw else None

    @property
    def question(self) -> Question:
        """What the audit was asked; reports of old say nothing of it, and were of recordings."""
        asked = self.raw.get("question")
        return asked if asked in ("database", "recordings") else "recording"

    @property
    def masked(self) -> bool:
        """Whether it does not show keys and values; what can't be decoded is no such one."""
        masked = self.raw.get("masked")
        if masked is None:
            # Reports of old do not say it, but how they were made.
            masked = "--show-values" not in str(self.raw.get("command", ""))
        return bool(masked) and any(finding.is_masked for finding in self.findings)

    @property
    def recording_id(self) -> str:
        """The id of the recording that was audited, or empty."""
        return str(self.raw.get("recording_id") or "")

    @property
    def when(self) -> float | None:
        """When it was made, in Unix seconds, if it says so."""
        now = self.raw.get("window", {}).get("now_ms")
        return now / 1000 if isinstance(now, int) else None

    @property
    def missing(self) -> int:
        """How many messages are lost."""
        return sum(self.classes.get(name, 0) for name in LOST)

    @property
    def wrong(self) -> int:
        """How many anomalies there are."""
        return sum(number for name, number in self.classes.items() if tone_of(name) == "bad")

    def listed(self, name: str | None) -> list[Finding]:
        """Return the findings of a class, or all."""
        return [finding for finding in self.findings if name is None or finding.name == name]

    def unlisted(self, name: str | None) -> int:
        """Return how many findings of a class, or of all, the report only counts."""
        total = sum(self.totals.values()) if name is None else self.totals.get(name, 0)
        return max(total - len(self.listed(name)), 0)


def tone_of(name: str) -> Tone:
    """Return how bad a class is: "bad", "warn" for undecided, "muted" for what is excused or only a note."""
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


def _finding(number: int, data: Mapping[str, Any]) -> Finding:
    return Finding(
        number,
        name=str(data["class"]),
        part=int(data.get("part") or 0),
        fields=tuple(data.get("fields") or ()),
        hop=str(data.get("hop") or ""),
        **{name: data.get(name) for name in _OPTIONAL},
    )
