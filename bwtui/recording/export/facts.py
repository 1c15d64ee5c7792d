"""Collect what a recording lacks, for the notes of an export: gaps, a snapshot, its end, its beginning."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bwtui.model.backfill import FirstSnapshot, whole_tables
from bwtui.model.lsn import format_lsn
from bwtui.recording.folder import is_being_written
from bwtui.recording.reading.complete_prefix import complete_until
from bwtui.recording.reading.reader import RecordingReader
from bwtui.recording.view import RecordingView

_LISTED = 5


@dataclass(frozen=True, slots=True)
class ExportGap:
    """Changes that commit in ``(from_lsn, to_lsn]`` are missing before the change at ``position``."""

    position: int
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
    is_unfinished: bool = False
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
        elif self.is_unfinished:
            notes.append("the recording is unfinished: 'bwtui recording recover' reports what was cut off")
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
        for position, _, event in segment.events():
            if event["event"] == "gap":
                gaps.append(ExportGap(position, event["from_lsn"], event["to_lsn"]))
            elif event["event"] == "pass":
                kinds.add(event["kind"])
    complete_lsn = complete_until(view.segments, view.last_lsn)
    status = view.status(view.length)
    by_chunks = whole_tables(status, view.first_time / 1_000_000, ("first",))
    return ExportFacts(
        gaps,
        has_snapshot="snapshot" in kinds or bool(by_chunks),
        first_position=view.first_position,
        open_lsn=view.last_lsn if view.last_lsn > complete_lsn else 0,
        first_snapshot=_first_snapshot(status),
        is_unfinished=not view.segments[-1].is_finished,
        is_being_written=is_being_written(view.folder),
    )


def _first_snapshot(status: dict[str, Any]) -> str:
    first = status.get("first_snapshot")
    return FirstSnapshot.from_json(first).sentence if isinstance(first, dict) and first else ""


def counted(count: int, noun: str) -> str:
    """Return the count with its noun in singular or plural."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Return the number of names, and the first of them."""
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - _LISTED:,} more" if len(distinct) > _LISTED else ""
    return f"{len(distinct):,} ({', '.join(distinct[:_LISTED])}{more})"
