"""Recover a recording: cut the torn tail of the segment that a crash left unfinished, and finish it."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from bwtui.durable_files import private_file, sync
from bwtui.errors import DamagedRecording
from bwtui.file_errors import file_failed
from bwtui.recording.blocks import ENDING, BlockKind, DamagedAt, SegmentFile, SegmentPlace, damaged
from bwtui.recording.folder import (
    FolderLock,
    SegmentPath,
    existing_segments,
    lacks_following_segments,
    next_path,
    partial_path,
    segments,
)
from bwtui.recording.journal import SegmentWriter
from bwtui.recording.payloads import Foot, Head, parse_foot
from bwtui.recording.segment_reader import SegmentReader, complete_until
from bwtui.recording.walk import SegmentWalk, digest_of, durable_damage, force_command

_NOT_TORN = "all blocks are intact"
MISSING_BEHIND = "the segment after it is missing"


def missing_hint(folder: Path) -> str:
    """Return what to do about a segment that is missing at the end of the recording in ``folder``."""
    return f"restore it from a backup, or treat it as empty with '{force_command(folder)}'"


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """The result for an unfinished segment; sizes in bytes. ``segment`` is its new name, or empty."""

    #: Its name before.
    file: str
    segment: str
    changes: int
    transactions: int
    #: Commit LSN of its newest complete transaction, or 0.
    last_lsn: int
    #: Commit LSN of a newer, incomplete one, or 0.
    open_lsn: int
    kept: int
    cut: int
    reason: str


def recover(folder: Path, *, force: bool = False) -> list[RecoveryResult]:
    """Finish every unfinished segment of ``folder``; it is not an error if there is none.

    Raises UsageError, RefusedError when another process is writing it, StateFailed, or DamagedRecording: when
    an intact block has contents that no relay writes, when the file does not follow the segment before it,
    and, unless ``force``, when the damaged part was once on disk.
    """
    existing_segments(folder)
    lock = FolderLock(folder)
    try:
        return recover_locked(folder, force=force)
    finally:
        lock.release()


def recover_locked(folder: Path, *, force: bool = False) -> list[RecoveryResult]:
    """Do the same as `recover` for a caller that holds the lock."""
    recovered = []
    before: SegmentPath | None = None
    for segment in existing_segments(folder):
        if not segment.is_finished:
            _check_number(segment, before.number if before else 0)
            try:
                recovered.append(_recover_segment(segment, before, force=force))
            except OSError as error:
                raise file_failed(f"{segment.path} can't be recovered", error) from error
        before = segment
    if force:
        recovered += _announce_missing(folder)
    return recovered


def _announce_missing(folder: Path) -> list[RecoveryResult]:
    """Treat a missing segment after the last one as empty: the next segment takes its place."""
    last = segments(folder)[-1:]
    # The check reports damage in the last segment's foot.
    with contextlib.suppress(DamagedRecording):
        if last and last[0].is_finished and lacks_following_segments(last[0], foot_of(last[0])["ended"]):
            number = last[0].number + 1
            try:
                private_file(next_path(folder, number))
                sync(folder)
            except OSError as error:
                raise file_failed(f"{folder} can't be recovered", error) from error
            reason = "it is missing and treated as empty"
            return [RecoveryResult(partial_path(folder, number).name, "", 0, 0, 0, 0, 0, 0, reason)]
    return []


def _check_number(segment: SegmentPath, before: int) -> None:
    """Raise DamagedRecording unless the file's number is the next one: it may be another recording's."""
    if segment.number == before + 1:
        return
    name, missing = segment.path.name, segment.number - before - 1
    reason = f"segments {before + 1} to {segment.number - 1} are missing before it"
    if missing < 0:
        reason = "a different segment has the same number"
    elif missing == 1:
        reason = f"segment {before + 1} is missing before it"
    hint = "restore the missing segments from a backup" if missing > 0 else "check where it comes from"
    raise damaged(SegmentPlace(name, 0), reason, f"{hint}, or move {name} elsewhere")


def _check_follows(segment: SegmentPath, before: SegmentPath | None, head: Head) -> None:
    """Raise DamagedRecording when the digest in ``head`` is not that of the segment before it."""
    if before is None or not before.is_finished:
        return
    try:
        digest = digest_of(foot_of(before))
    except DamagedRecording:
        # The damage is in the segment before, and reported there.
        return
    if head["previous"] != digest:
        name = segment.path.name
        hint = f"move {name} elsewhere if it belongs to a different recording"
        raise damaged(SegmentPlace(name, 0), "it does not follow the previous segment", hint)


def _recover_segment(segment: SegmentPath, before: SegmentPath | None, *, force: bool) -> RecoveryResult:
    name = segment.path.name
    writer = SegmentWriter.reopen(segment.path, segment.number)
    try:
        with segment.path.open("rb") as file:
            source = SegmentFile(file, segment.path.name, segment.path.parent)
            walk = SegmentWalk(source.name)
            reason = _adopt(writer, source, walk, force=force)
            cut = source.size - writer.size
        if not walk.context.head:
            # Not even its first block is intact: there is nothing to keep.
            writer.discard() if before is None else writer.put_back()
            return RecoveryResult(name, "", 0, 0, 0, 0, 0, cut, reason)
        _check_follows(segment, before, walk.context.head)
        size = writer.size
        writer.cut_back()
        path, _ = writer.finish(walk.end("recovered"))
    finally:
        writer.abandon()
    totals = writer.totals
    finished = SegmentPath(path, segment.number, totals.first_lsn, totals.last_lsn)
    with contextlib.closing(SegmentReader(finished)) as reader:
        complete_lsn = complete_until([reader], totals.last_lsn)
    open_lsn = totals.last_lsn if totals.last_lsn > complete_lsn else 0
    numbers = (totals.changes, totals.transactions)
    return RecoveryResult(name, path.name, *numbers, complete_lsn, open_lsn, size, cut, reason)


def _adopt(writer: SegmentWriter, source: SegmentFile, walk: SegmentWalk, *, force: bool) -> str:
    """Adopt every intact block up to the first that is not; return why the rest is cut off."""
    blocks = source.blocks()
    while True:
        try:
            block = next(blocks, None)
        except DamagedAt as torn:
            durable = durable_damage(source, torn, walk.number)
            if durable is None:
                return torn.reason
            if not force:
                raise durable from torn
            return durable.reason
        if block is None or block.kind in ENDING:
            # Write the index again if the segment was not renamed.
            return _NOT_TORN
        writer.adopt(source.raw(block), walk.take(block))


def check_end(last: SegmentPath, foot: Foot) -> None:
    """Raise DamagedRecording when segments are missing after ``last``, a finished one."""
    if lacks_following_segments(last, foot["ended"]):
        place = SegmentPlace(last.path.name, last.path.stat().st_size)
        raise damaged(place, MISSING_BEHIND, missing_hint(last.path.parent))


def foot_of(segment: SegmentPath) -> Foot:
    """Return the FOOT of a finished segment. Raises DamagedRecording or StateFailed."""
    try:
        with segment.path.open("rb") as file:
            source = SegmentFile(file, segment.path.name, segment.path.parent)
            for block in source.blocks(source.index_offset()):
                if block.kind == BlockKind.FOOT:
                    return parse_foot(block, segment.path.name)
            raise damaged(SegmentPlace(source.name, source.size), "there is no foot")
    except OSError as error:
        raise file_failed(f"{segment.path} can't be read", error) from error
