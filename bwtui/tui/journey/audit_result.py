"""The result of the last audit for one change or its key: good, bad, or why neither is known."""

from collections.abc import Mapping
from dataclasses import dataclass

from bwtui.errors import UsageError
from bwtui.model.lsn import parse_lsn
from bwtui.recording.reading.explain import RowKey
from bwtui.tui import figures
from bwtui.tui.assessment import Tone
from bwtui.tui.audit.report import AuditReport, ReportFinding, tone_of
from bwtui.tui.keys import key_for


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of an audit, as a tone and in words."""

    tone: Tone
    words: str


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
        return AuditResult("muted", f"not audited: {key_for('verify')} does it")
    if report.question == "recordings":
        return AuditResult("muted", "the last audit compared recordings, and not Kafka")
    is_of_recording = report.question == "recording"
    if is_of_recording and report.recording_id not in ("", subject.recording):
        return AuditResult("muted", "the last audit was of another recording")
    found = [finding for finding in report.findings if _is_of(finding, subject)]
    own = [finding for finding in found if _is_at(finding, subject)] if is_of_recording else found
    if own:
        worst = min(own, key=lambda finding: _RANKS.get(tone_of(finding.name), 3))
        others = f", and {len(own) - 1} more" if len(own) > 1 else ""
        note = f": {worst.note}" if worst.note else ""
        return AuditResult(tone_of(worst.name), f"{worst.name}{note}{others}{_when(report, now)}")
    return _nothing_of(report, subject, len(found), _when(report, now))


def key_of(finding: ReportFinding) -> RowKey | str:
    """Return the key of a finding, or why it is unknown."""
    if finding.table is None or not finding.key:
        return "The finding names no key"
    if finding.is_masked:
        return "The report does not show its keys: 'bwtui verify --show-values' does"
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
            "the topic's latest value is right",
        )
    else:
        end, well = _lsn([report.raw.get("window", {}).get("last_lsn")]), "nothing wrong was found with it"
    if (later := _is_later(report, subject, end)) is not False:
        told = "it came" if later else "it is not known whether it came"
        return AuditResult("muted", f"{told} after the last audit{when}: {key_for('verify')} audits again")
    if report.unlisted(None):
        return AuditResult(
            "warn",
            f"not among the findings that the report lists: {report.unlisted(None):,} are only counted",
        )
    if report.masked:
        return AuditResult("warn", "the report does not show its keys: 'bwtui verify --show-values' does")
    if report.verdict == "indeterminate":
        return AuditResult("warn", f"the audit could not decide everything{when}")
    more = f"; {elsewhere} of this key at another change" if elsewhere else ""
    if subject.lsn is None:
        # No tick: a relay that lags sends records of old commits, and other producers may write any
        # timestamp.
        older = "if the record is older than that audit, as its timestamp says"
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


def _when(report: AuditReport, now: float) -> str:
    return "" if report.when is None else f" ({figures.when(report.when, now)})"
