"""Recovery: cuts the torn tail of the segment that a crash left unfinished, and finishes it."""

import json
from dataclasses import dataclass
from pathlib import Path

from bwtui.errors import DamagedRecording, StateFailed
from bwtui.recording.folder import FolderLock, SegmentPath, existing_segments
from bwtui.recording.format import Block, IndexEntry, Kind, SegmentFile
from bwtui.recording.known import Known, read_batch, summarize
from bwtui.recording.segment import SegmentWriter

_BATCHES = (Kind.CHANGES, Kind.ROWS)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of an unfinished segment; sizes in bytes. ``segment``: its new name, or empty."""

    segment: str
    changes: int
    transactions: int
    last_lsn: int
    kept: int
    cut: int
    reason: str


def recover(folder: Path) -> list[Recovered]:
    """Finish every unfinished segment of ``folder``; nothing to do is no error.

    Raises UsageError, RefusedError when somebody is writing it, StateFailed, or DamagedRecording when a whole
    block says what no relay writes.
    """
    existing_segments(folder)
    lock = FolderLock(folder)
    try:
        return recover_locked(folder)
    finally:
        lock.release()


def recover_locked(folder: Path) -> list[Recovered]:
    """Do what `recover` does, for a caller that holds the lock."""
    found = []
    for segment in existing_segments(folder):
        if not segment.is_finished:
            try:
                found.append(_recover_segment(segment))
            except OSError as error:
                raise StateFailed(f"{segment.path} can't be recovered: {error.strerror or error}") from error
    return found


def _recover_segment(segment: SegmentPath) -> Recovered:
    with segment.path.open("rb") as file:
        source = SegmentFile(file, segment.path.name)
        writer = SegmentWriter.reopen(segment.path, segment.number)
        known = Known()
        state = _State()
        reason = "nothing was torn"
        try:
            for block in source.blocks():
                file.seek(block.offset)
                _adopt(writer, block, file.read(block.end - block.offset), known, state, source.name)
        except DamagedRecording as error:
            if state.in_content:
                raise
            reason = error.message.rpartition(": ")[2]
        cut = source.size - writer.size
    if not known.head:
        # Not even its first block is whole: there is nothing of it to keep.
        writer.abandon()
        segment.path.unlink()
        return Recovered("", 0, 0, 0, 0, cut, reason)
    kept = writer.size
    writer.cut_back()
    path, _ = writer.finish(
        {
            "first_position": known.head["first_position"],
            "first_batch": known.head["first_batch"],
            "next_batch": state.next_batch or known.head["first_batch"],
            "seen": list(max(state.seen, known.seen)),
            "pass": known.current_pass,
            "ended": "recovered",
        }
    )
    totals = writer.totals
    return Recovered(path.name, totals.changes, totals.transactions, totals.last_lsn, kept, cut, reason)


class _State:
    def __init__(self) -> None:
        self.next_batch = 0
        self.seen = (0, 0)
        #: Whether a block's content, not its frame, is being looked at.
        self.in_content = False


def _adopt(
    writer: SegmentWriter, block: Block, raw: bytes, known: Known, state: _State, segment: str
) -> None:
    state.in_content = True
    entry = IndexEntry(block.offset, block.kind, 0, 0, block.received, block.first_lsn, block.last_lsn)
    transactions = b""
    if block.kind in _BATCHES:
        batch = read_batch(block, segment)
        summary = summarize(block, batch, known, writer.totals.changes)
        entry, transactions = summary.entry, summary.transactions
        for table, counter, number in summary.counts:
            writer.totals.count(table, counter, number)
        state.next_batch = batch.number + 1
        if block.kind == Kind.CHANGES:
            state.seen = max(state.seen, (summary.last.commit_lsn, summary.last.ordinal))
    else:
        known.take(block, segment)
    writer.adopt(raw, entry, transactions)
    state.in_content = False


def foot_of(segment: SegmentPath) -> dict[str, object]:
    """Return the FOOT of a finished segment. Raises DamagedRecording or StateFailed."""
    try:
        with segment.path.open("rb") as file:
            source = SegmentFile(file, segment.path.name)
            for block in source.blocks(source.index_offset()):
                if block.kind == Kind.FOOT:
                    content: dict[str, object] = json.loads(block.payload)
                    return content
            raise DamagedRecording(f"the recording is damaged: {source.name} has no foot")
    except OSError as error:
        raise StateFailed(f"{segment.path} can't be read: {error.strerror}") from error
