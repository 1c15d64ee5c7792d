"""Summarize a recording from its segments' feet and indexes, and note what it lacks."""

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bwtui.model.backfill import FirstSnapshot, whole_tables
from bwtui.model.lsn import format_lsn
from bwtui.recording.blocks import BlockKind
from bwtui.recording.folder import is_being_written
from bwtui.recording.payloads import Event
from bwtui.recording.reader import RecordingReader, open_recording
from bwtui.recording.segment_reader import complete_until
from bwtui.recording.view import RecordingOrigin, RecordingView, TableCounts

# Summarize a recording from its segments' feet and indexes alone.

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
    notices: int = 0
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
            if error.get("kind") == "notice":
                summary.notices += 1
            else:
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
    start_lsn, last_seen = int(event["start_lsn"]), int(event["seen"][0])
    repeats = last_seen if event["kind"] == "stream" and last_seen > start_lsn else 0
    return PassInfo(event["pass"], event["kind"], event["session"], received, start_lsn, repeats, position)


# Collect what a recording lacks, for the notes of an export: gaps, a snapshot, its end, its beginning.


@dataclass(frozen=True, slots=True)
class ExportGap:
    """Changes that commit in ``(from_lsn, to_lsn]`` are missing."""

    from_lsn: int
    to_lsn: int

    @property
    def line(self) -> str:
        """A sentence that describes the gap."""
        between = f"after {format_lsn(self.from_lsn)} and up to {format_lsn(self.to_lsn)}"
        return f"some changes that commit {between} were not recorded"


@dataclass(frozen=True, slots=True)
class ExportFacts:
    """The facts about a recording that `facts` collects."""

    gaps: Sequence[ExportGap] = ()
    #: True if it contains the rows that existed before the recording began.
    has_snapshot: bool = True
    #: Progress of an unfinished first snapshot by chunks, as a sentence; empty if there is none.
    first_snapshot: str = ""
    #: Number of changes missing at the beginning, because their segments are missing.
    first_position: int = 0
    #: Commit LSN of an incompletely recorded transaction at the end, or 0.
    open_lsn: int = 0
    #: The command that finishes the recording; empty if it is finished.
    recover_command: str = ""
    is_being_written: bool = False

    @property
    def lines(self) -> list[str]:
        """Notes on what is missing at the beginning and at the end, one line each."""
        notes = []
        if self.first_position:
            notes.append(f"the recording's first segments, with {self.first_position:,} changes, are missing")
        elif not self.has_snapshot:
            notes.append("the recording has no snapshot: rows from before it began are missing")
        if self.first_snapshot:
            notes.append(f"{self.first_snapshot} at the end of the recording")
        if self.is_being_written:
            notes.append("the recording is being written: later changes are missing")
        elif self.recover_command:
            notes.append(f"the recording is unfinished: '{self.recover_command}' reports what was cut off")
        if self.open_lsn:
            notes.append(f"the last transaction, {format_lsn(self.open_lsn)}, was recorded incompletely")
        return notes

    @property
    def notes(self) -> list[str]:
        """Notes on everything that is missing, one line each."""
        lines = self.lines
        if self.gaps:
            more = f"; and {counted(len(self.gaps) - 1, 'more gap')}" if len(self.gaps) > 1 else ""
            lines.append(f"{self.gaps[0].line}{more}")
        return lines


NOTHING = ExportFacts()


def facts(view: RecordingView) -> ExportFacts:
    """Collect what a recording lacks."""
    if not isinstance(view, RecordingReader):
        return NOTHING
    gaps, kinds = [], set()
    for segment in view.segments:
        for _, _, event in segment.events():
            if event["event"] == "gap":
                gaps.append(ExportGap(event["from_lsn"], event["to_lsn"]))
            elif event["event"] == "pass":
                kinds.add(event["kind"])
    complete_lsn = complete_until(view.segments, view.last_lsn)
    status = view.status(view.length)
    by_chunks = whole_tables(status, view.first_time / 1_000_000, ("first",))
    is_finished = view.segments[-1].is_finished
    return ExportFacts(
        gaps,
        has_snapshot="snapshot" in kinds or bool(by_chunks),
        first_position=view.first_position,
        open_lsn=view.last_lsn if view.last_lsn > complete_lsn else 0,
        first_snapshot=_first_snapshot(status),
        recover_command="" if is_finished else f"bwtui recording recover {shlex.quote(str(view.folder))}",
        is_being_written=is_being_written(view.folder),
    )


def _first_snapshot(status: dict[str, Any]) -> str:
    first = status.get("first_snapshot")
    return FirstSnapshot.from_json(first).sentence if isinstance(first, dict) and first else ""


def counted(count: int, noun: str) -> str:
    """Return the count with its noun in singular or plural."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
