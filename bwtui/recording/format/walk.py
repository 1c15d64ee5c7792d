"""Walk through a segment's blocks, and derive the index and the foot from them."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from bwtui.errors import BwtuiError
from bwtui.recording.format.batch import RecordedBatch
from bwtui.recording.format.blocks import (
    ENDING,
    BlockKind,
    DamagedAt,
    IndexEntry,
    JournalBlock,
    SegmentFile,
    SegmentPlace,
    damaged,
    synced_before,
)
from bwtui.recording.format.context import SegmentContext, read_batch, summarize
from bwtui.recording.format.parsing import Count
from bwtui.recording.format.statements import SegmentEnd
from bwtui.recording.format.totals import SegmentTotals

BATCHES = (BlockKind.CHANGES, BlockKind.ROWS)
#: Kinds of blocks that later blocks refer to.
DESCRIBING = (BlockKind.HEAD, BlockKind.RELATION, BlockKind.ROUTE, BlockKind.SCHEMA, BlockKind.EVENT)


@dataclass(frozen=True, slots=True)
class BlockStep:
    """One block, and its contribution to index and foot."""

    block: JournalBlock
    entry: IndexEntry
    batch: RecordedBatch | None = None
    transactions: bytes = b""
    counts: Sequence[Count] = ()


class SegmentWalk:
    """Processes the blocks of one segment in order."""

    def __init__(self, segment: str) -> None:
        self._segment = segment
        self.context = SegmentContext()
        self.totals = SegmentTotals()
        self.index: list[IndexEntry] = []
        #: The entries of TRANSACTIONS, packed.
        self.transactions = bytearray()
        #: Number of the next block; a caller that skips damage must set it.
        self.number = 0
        #: Number after the last batch, or None if there was no batch.
        self.next_batch: int | None = None
        #: Identity of the newest change of the stream.
        self.seen = (0, 0)

    def end(self, ended: str) -> SegmentEnd:
        """Return the end of a segment that has the blocks so far, which must include a HEAD."""
        head = self.context.head
        return {
            "first_position": head["first_position"],
            "first_batch": head["first_batch"],
            "next_batch": head["first_batch"] if self.next_batch is None else self.next_batch,
            "seen": list(self.seen),
            "pass": self.context.current_pass,
            "ended": ended,
        }

    def take(self, block: JournalBlock) -> BlockStep:
        """Process a block, which must have its payload. Raises DamagedAt if no relay writes such a block."""
        step = self._step(block)
        self.totals.add(step.entry, step.counts)
        self.index.append(step.entry)
        self.transactions += step.transactions
        return step

    def _step(self, block: JournalBlock) -> BlockStep:
        place = SegmentPlace(self._segment, block.offset)
        if block.number != self.number or (block.kind == BlockKind.HEAD) != (block.number == 0):
            raise damaged(place, f"expected block {self.number} here")
        self.number += 1
        entry = IndexEntry(block.offset, block.kind, 0, 0, block.received, block.first_lsn, block.last_lsn)
        if block.kind == BlockKind.REACHED:
            _check_synced(block, place)
        if block.kind not in BATCHES:
            self.context.take(block, self._segment)
            if block.kind == BlockKind.HEAD:
                self.seen = self.context.seen_before
            return BlockStep(block, entry)
        batch = read_batch(block, self._segment)
        try:
            summary = summarize(block, batch, self.context, self.totals.changes)
        except (BwtuiError, LookupError, ValueError, ArithmeticError, struct.error) as error:
            raise damaged(place, "a batch refers to a relation or route that was not recorded") from error
        self.next_batch = batch.number + 1
        if block.kind == BlockKind.CHANGES:
            self.seen = max(self.seen, (summary.last.commit_lsn, summary.last.ordinal))
        return BlockStep(block, summary.entry, batch, summary.transactions, summary.counts)


def _check_synced(block: JournalBlock, place: SegmentPlace) -> None:
    try:
        synced = synced_before(block)
    except ValueError as error:
        raise damaged(place, "a REACHED block is invalid") from error
    if synced is not None and synced > block.offset:
        raise damaged(place, "a REACHED block reports more bytes on disk than precede it")


def durable_damage(file: SegmentFile, damage: DamagedAt, number: int) -> DamagedAt | None:
    """Return ``damage`` of block ``number``, with its byte range, if that block was once on disk.

    Return None if a crash may have torn it, that is, if nothing after it proves that it was synced. The
    search covers the rest of the file, however large the damaged range is.
    """
    begins, intact_at, reached = damage.place.offset, None, 0
    offset: int | None = begins
    while offset is not None and (offset := file.resume(offset, number)) is not None:
        intact_at = offset if intact_at is None else intact_at
        try:
            for block in file.blocks(offset):
                until, reached = _synced_by(block, reached)
                if until > begins:
                    return _with_range(damage, intact_at)
                offset = block.end
        except DamagedAt as more:
            offset = more.place.offset + 1
            continue
        return None
    return None


def _synced_by(block: JournalBlock, reached: int) -> tuple[int, int]:
    """Return how many bytes were synced before ``block``, and the end of the last REACHED without a size.

    Older relays write a REACHED without a size before each sync. They write the next one, like the segment's
    ending, only after that sync has returned.
    """
    if block.kind in ENDING:
        return reached, reached
    if block.kind != BlockKind.REACHED:
        return 0, reached
    try:
        # If bytes are missing from the file, this can be more than precedes the block.
        synced = synced_before(block)
    except ValueError:
        return 0, reached
    return (reached, block.end) if synced is None else (synced, 0)


def _with_range(damage: DamagedAt, intact_at: int) -> DamagedAt:
    begins = damage.place.offset
    if intact_at == begins:
        # The next intact block is at the damaged offset but is not the expected one, which is gone
        # completely.
        return damaged(
            damage.place, f"{damage.reason}; this data had already been synced to disk", _DURABLE_HINT
        )
    reason = f"{damage.reason}; bytes {begins:,} to {intact_at - 1:,} had already been synced to disk"
    return damaged(damage.place, reason, _DURABLE_HINT)


_DURABLE_HINT = (
    "restore the file from a copy, or cut off everything from here with 'bwtui recording recover --force'"
)
