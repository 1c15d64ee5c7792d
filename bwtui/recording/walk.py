"""A segment's blocks one by one, with what follows from each for index and foot."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from bwtui.errors import BwtuiError
from bwtui.recording.batch import Batch
from bwtui.recording.format import ENDING, Block, DamagedAt, IndexEntry, Kind, Place, SegmentFile, damaged
from bwtui.recording.known import Known, read_batch, summarize
from bwtui.recording.parsing import Counts

BATCHES = (Kind.CHANGES, Kind.ROWS)
#: What must be known to read the blocks behind them.
DESCRIBING = (Kind.HEAD, Kind.RELATION, Kind.ROUTE, Kind.SCHEMA, Kind.EVENT)


@dataclass(frozen=True, slots=True)
class Step:
    """One block, and what index and foot are to say of it."""

    block: Block
    entry: IndexEntry
    batch: Batch | None = None
    transactions: bytes = b""
    counts: Sequence[tuple[str, str, int]] | Counts = ()


class Walk:
    """Takes the blocks of one segment in order."""

    def __init__(self, segment: str) -> None:
        self._segment = segment
        self.known = Known()
        self.changes = 0
        #: Which block comes next; who passes over damage says so.
        self.number = 0
        #: The batch behind the last one, or None.
        self.next_batch: int | None = None
        #: The identity of the newest change of the stream.
        self.seen = (0, 0)

    def take(self, block: Block) -> Step:
        """Take a block with its payload. Raises DamagedAt when it says what no relay writes."""
        place = Place(self._segment, block.offset)
        if block.number != self.number or (block.kind == Kind.HEAD) != (block.number == 0):
            raise damaged(place, f"block {self.number} should stand here")
        self.number += 1
        entry = IndexEntry(block.offset, block.kind, 0, 0, block.received, block.first_lsn, block.last_lsn)
        if block.kind not in BATCHES:
            self.known.take(block, self._segment)
            if block.kind == Kind.HEAD:
                self.seen = self.known.seen_before
            return Step(block, entry)
        batch = read_batch(block, self._segment)
        try:
            summary = summarize(block, batch, self.known, self.changes)
        except (BwtuiError, LookupError, ValueError, ArithmeticError, struct.error) as error:
            raise damaged(place, "a batch refers to what was not recorded") from error
        self.next_batch = batch.number + 1
        if block.kind == Kind.CHANGES:
            self.seen = max(self.seen, (summary.last.commit_lsn, summary.last.ordinal))
        self.changes += summary.entry.changes
        return Step(block, summary.entry, batch, summary.transactions, summary.counts)


def is_synced_behind(file: SegmentFile, damage: DamagedAt, number: int) -> bool:
    """Whether what lies at ``damage``, where block ``number`` should stand, was on the disk for sure once.

    A REACHED block stands before a sync, and the next one, like the segment's ending, is not written before
    that has returned. So where both stand behind the damage, no crash has torn it.
    """
    reached = False
    offset: int | None = damage.place.offset
    while offset is not None and (offset := file.resume(offset, number)) is not None:
        try:
            for block in file.blocks(offset):
                if reached and (block.kind == Kind.REACHED or block.kind in ENDING):
                    return True
                number, offset = block.number + 1, block.end
                reached = reached or block.kind == Kind.REACHED
        except DamagedAt as more:
            offset = more.place.offset + 1
            continue
        return False
    return False
