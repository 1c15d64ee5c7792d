"""Summarize a recording from its segments' feet and indexes alone."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bwtui.model.lsn import format_lsn
from bwtui.recording.folder import is_being_written
from bwtui.recording.format.blocks import BlockKind
from bwtui.recording.format.statements import Event
from bwtui.recording.reading.complete_prefix import complete_until
from bwtui.recording.reading.reader import RecordingReader, open_recording
from bwtui.recording.view import RecordingOrigin, TableCounts

SEALED = "sealed"


@dataclass(frozen=True, slots=True)
class PassInfo:
    """A snapshot, or a run of the stream that began at ``start_lsn``."""

    number: int
    kind: str
    session: str
    time: int
    start_lsn: int
    #: The LSN up to which it repeats recorded changes; 0 if it repeats none.
    repeats_until: int
    first_position: int


@dataclass(frozen=True, slots=True)
class RecordingGap:
    """Some changes in ``(from_lsn, to_lsn]`` were relayed without being recorded; no others."""

    from_lsn: int
    to_lsn: int
    time: int


@dataclass(slots=True)
class Notice:
    """An error or notice that the relay showed ``count`` times in all runs; times as in `RecordingInfo`."""

    kind: str
    table: str | None
    message: str
    hint: str | None
    count: int
    first_time: int
    last_time: int


@dataclass(slots=True)
class RecordingInfo:
    """Summary of a recording; times in Unix microseconds."""

    name: str
    source: RecordingOrigin
    #: "finished", "being written", or "unfinished".
    state: str
    sealed: bool
    bytes: int
    segments: int
    changes: int
    transactions: int
    first_lsn: int
    #: Commit LSNs of the newest completely recorded transaction, and of a newer incomplete one, or 0.
    last_lsn: int
    open_lsn: int
    first_time: int
    last_time: int
    tables: dict[str, TableCounts]
    #: Number of schemas registered for each subject.
    schemas: dict[str, int] = field(default_factory=dict)
    sessions: list[str] = field(default_factory=list)
    passes: list[PassInfo] = field(default_factory=list)
    gaps: list[RecordingGap] = field(default_factory=list)
    errors: int = 0
    #: Distinct errors and notices, oldest first.
    told: list[Notice] = field(default_factory=list)
    #: Number of segments missing at the beginning, and of the changes in them.
    missing_segments: int = 0
    missing_changes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; LSNs in PostgreSQL's notation."""
        data = dataclasses.asdict(self)
        for entry in (data, *data["passes"], *data["gaps"]):
            for name, value in entry.items():
                if name.endswith("_lsn") or name == "repeats_until":
                    entry[name] = format_lsn(value)
        return data


def info(folder: Path) -> RecordingInfo:
    """Summarize a recording. Raises UsageError, StateFailed or DamagedRecording."""
    recording = open_recording(folder, may_lack_first=True)
    try:
        return _info(recording, folder)
    finally:
        recording.close()


def _info(recording: RecordingReader, folder: Path) -> RecordingInfo:
    segments = recording.segments
    state = "finished"
    if is_being_written(folder):
        state = "being written"
    elif not segments[-1].is_finished:
        state = "unfinished"
    last_lsn = complete_until(segments, recording.last_lsn)
    summary = RecordingInfo(
        recording.name,
        recording.source,
        state,
        (folder / SEALED).is_dir(),
        sum(segment.file.size for segment in segments),
        len(segments),
        recording.length - recording.first_position,
        sum(segment.foot["transactions"] for segment in segments),
        recording.first_lsn,
        last_lsn,
        recording.last_lsn if recording.last_lsn > last_lsn else 0,
        recording.first_time,
        recording.last_time,
        recording.counts(recording.length),
    )
    for entry in recording.schemas(recording.length):
        summary.schemas[entry.subject] = summary.schemas.get(entry.subject, 0) + 1
    _take_events(recording, summary)
    summary.missing_segments = segments[0].number - 1
    summary.missing_changes = recording.first_position
    return summary


def _take_events(recording: RecordingReader, summary: RecordingInfo) -> None:
    for segment in recording.segments:
        if segment.index and segment.head["session"] not in summary.sessions:
            summary.sessions.append(segment.head["session"])
        for block, error in segment.json_blocks(BlockKind.ERROR):
            summary.errors += 1
            _count_notice(summary, error, block.received)
        for position, entry, event in segment.events():
            if event["event"] == "pass":
                summary.passes.append(_pass(event, entry.received, position))
            elif event["event"] == "gap":
                summary.gaps.append(RecordingGap(event["from_lsn"], event["to_lsn"], entry.received))


def _count_notice(summary: RecordingInfo, error: dict[str, Any], received: int) -> None:
    identity = (error.get("kind", ""), error.get("table"), error.get("message", ""))
    count = int(error.get("count", 1))
    for notice in summary.told:
        if (notice.kind, notice.table, notice.message) == identity:
            notice.count += count
            notice.last_time = received
            return
    summary.told.append(Notice(*identity, error.get("hint"), count, received, received))


def _pass(event: Event, received: int, position: int) -> PassInfo:
    begun, last_seen = int(event["start_lsn"]), int(event["seen"][0])
    repeats = last_seen if event["kind"] == "stream" and last_seen > begun else 0
    return PassInfo(event["pass"], event["kind"], event["session"], received, begun, repeats, position)
