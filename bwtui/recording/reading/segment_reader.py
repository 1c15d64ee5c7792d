"""A segment that is open for reading: its index, its foot, and its changes."""

import bisect
import struct
from collections.abc import Iterator
from functools import cached_property
from typing import Any, cast

from bwtui.file_errors import file_failed
from bwtui.recording.folder import SegmentPath, open_segment
from bwtui.recording.format.blocks import (
    ENDING,
    TRANSACTION_ENTRY,
    BlockKind,
    DamagedAt,
    IndexEntry,
    JournalBlock,
    SegmentFile,
    SegmentPlace,
    TransactionEntry,
    damaged,
    is_sensible,
    unpack_index,
)
from bwtui.recording.format.context import SegmentContext
from bwtui.recording.format.statements import Event, Foot, Head, parse_foot, statement
from bwtui.recording.format.walk import BATCHES as BATCHES
from bwtui.recording.format.walk import DESCRIBING, SegmentWalk, durable_damage


class SegmentReader:
    """A segment, finished or not; an incomplete block at the end of an unfinished one is ignored."""

    def __init__(self, segment: SegmentPath) -> None:
        """Open the file and read its foot. Raises DamagedRecording or StateFailed."""
        self.name = segment.path.name
        self.number = segment.number
        self.is_finished = segment.is_finished
        try:
            self.file = SegmentFile(open_segment(segment.path), self.name)
        except OSError as error:
            raise file_failed(f"{segment.path} can't be read", error) from error
        #: Why an unfinished segment's end is ignored, or empty.
        self.torn = ""
        self._transactions = b""
        self.changes = 0
        self.first_position = 0
        self.foot: Foot
        try:
            if self.is_finished:
                self._read_foot()
            else:
                self._walk()
        except BaseException:
            self.file.close()
            raise

    def close(self) -> None:
        self.file.close()

    def _read_foot(self) -> None:
        self._index_offset = self.file.index_offset()
        index, self._transactions_block, foot = self._last_blocks()
        self.foot, self.foot_offset = parse_foot(foot, self.name), foot.offset
        self._index_block = index
        self.changes = self.foot["changes"]
        self.first_position = self.foot["first_position"]

    def _last_blocks(self) -> tuple[JournalBlock, JournalBlock, JournalBlock]:
        blocks: list[JournalBlock] = []
        offset = self._index_offset
        for kind in (BlockKind.INDEX, BlockKind.TRANSACTIONS, BlockKind.FOOT):
            block = self.file.block(offset, with_payload=kind != BlockKind.TRANSACTIONS)
            if block.kind != kind:
                raise damaged(SegmentPlace(self.name, offset), f"expected a {kind.name} block here")
            blocks.append(block)
            offset = block.end
        return blocks[0], blocks[1], blocks[2]

    def _walk(self) -> None:
        """Build the index of an unfinished segment."""
        walk = SegmentWalk(self.name)
        try:
            for block in self.file.blocks():
                if block.kind in ENDING:
                    break
                walk.take(block)
        except DamagedAt as damage:
            durable = durable_damage(self.file, damage, walk.number)
            if durable is not None:
                raise durable from damage
            self.torn = damage.message
        self.index = walk.index
        self._transactions = bytes(walk.transactions)
        self.changes = walk.totals.changes
        self.first_position = int(walk.context.head.get("first_position", 0))
        foot = {
            "first_position": self.first_position,
            "ended": "unfinished",
            "seen": walk.seen,
            "pass": walk.context.current_pass,
            **walk.totals.to_json(),
        }
        # It has no digest, and has confirmed nothing.
        self.foot = cast(Foot, foot)

    @cached_property
    def index(self) -> list[IndexEntry]:
        """Entries of every block except the index and what follows it."""
        place = SegmentPlace(self.name, self._index_offset)
        try:
            entries = unpack_index(self._index_block.payload)
        except ValueError as error:
            raise damaged(place, "the index can't be parsed") from error
        if sum(entry.changes for entry in entries) != self.changes:
            raise damaged(place, "the number of changes in the index differs from the foot")
        before = -1
        for entry in entries:
            if not before < entry.offset < self._index_offset or not is_sensible(entry):
                raise damaged(place, "the index is invalid")
            before = entry.offset
        return entries

    @cached_property
    def head(self) -> Head:
        """The segment's HEAD, with its origin."""
        return self.context_before(1).head

    @cached_property
    def starts(self) -> list[int]:
        """Number of changes before each block of the index, counted from the segment's first change."""
        starts, position = [], 0
        for entry in self.index:
            starts.append(position)
            position += entry.changes
        return starts

    @property
    def stop_position(self) -> int:
        """One past the position of the segment's last change."""
        return self.first_position + self.changes

    def transaction_entries(self) -> bytes:
        """Return the packed TRANSACTIONS entries, without caching them."""
        if not self.is_finished:
            return self._transactions
        payload = self.file.block(self._transactions_block.offset).payload
        if len(payload) % TRANSACTION_ENTRY.size:
            place = SegmentPlace(self.name, self._transactions_block.offset)
            raise damaged(place, "the list of transactions can't be parsed")
        return payload

    def transactions(self) -> Iterator[TransactionEntry]:
        """Yield the transactions that begin in the segment."""
        for entry in TRANSACTION_ENTRY.iter_unpack(self.transaction_entries()):
            yield TransactionEntry(*entry)

    def last_transaction(self) -> TransactionEntry | None:
        """Return the last transaction that begins in the segment, without unpacking the others."""
        packed = self.transaction_entries()
        if not packed:
            return None
        return TransactionEntry(*TRANSACTION_ENTRY.unpack_from(packed, len(packed) - TRANSACTION_ENTRY.size))

    def find_xid(self, xid: int, start: int) -> Iterator[int]:
        """Yield the positions, from ``start`` on, at which transaction ``xid`` begins."""
        packed = self.transaction_entries()
        packed_xid = struct.pack("<I", xid)
        at = packed.find(packed_xid)
        while at >= 0:
            if at % TRANSACTION_ENTRY.size == 16:
                entry = TransactionEntry(*TRANSACTION_ENTRY.unpack_from(packed, at - 16))
                if self.first_position + entry.position >= start:
                    yield self.first_position + entry.position
            at = packed.find(packed_xid, at + 1)

    def batch_at(self, position: int) -> int:
        """Return the number in the index of the block that has the change at ``position``."""
        at = bisect.bisect_right(self.starts, position - self.first_position) - 1
        while at > 0 and not self.index[at].changes:
            at -= 1
        return at

    def context_before(self, number: int) -> SegmentContext:
        """Return the state built up by the blocks before block ``number`` of the index."""
        context = SegmentContext()
        for entry in self.index[:number]:
            if entry.kind in DESCRIBING:
                context.take(self.block(entry), self.name)
        return context

    def next_start(self, position: int) -> int | None:
        """Return the segment's first position after ``position`` where a new unit begins, or None.

        A unit is a transaction or the rows of a snapshot.
        """
        packed, size = self.transaction_entries(), TRANSACTION_ENTRY.size
        relative = position - self.first_position

        def begin(number: int) -> int:
            return TransactionEntry(*TRANSACTION_ENTRY.unpack_from(packed, number * size)).position

        count = len(packed) // size
        following = bisect.bisect_right(range(count), relative, key=begin)
        later_blocks = range(bisect.bisect_right(self.starts, relative), len(self.index))
        begins = [begin(following)] if following < count else []
        rows = next((self.starts[at] for at in later_blocks if self.index[at].kind == BlockKind.ROWS), None)
        begins += [] if rows is None else [rows]
        return self.first_position + min(begins) if begins else None

    def block(self, entry: IndexEntry) -> JournalBlock:
        """Read the block of an index entry. Raises DamagedRecording, also if it does not match the entry."""
        block = self.file.block(entry.offset)
        actual = (block.kind, block.received, block.first_lsn, block.last_lsn)
        if actual != (entry.kind, entry.received, entry.first_lsn, entry.last_lsn):
            raise damaged(SegmentPlace(self.name, entry.offset), "the index has a different block here")
        return block

    def json_at(self, entry: IndexEntry) -> dict[str, Any]:
        """Parse a block that has a JSON object. Raises DamagedRecording."""
        return statement(self.block(entry), self.name)

    def event_at(self, entry: IndexEntry) -> Event:
        """Parse an EVENT. Raises DamagedRecording."""
        return cast(Event, self.json_at(entry))

    def events(self) -> Iterator[tuple[int, IndexEntry, Event]]:
        """Yield each EVENT with its position in the recording and its index entry."""
        for entry, start in zip(self.index, self.starts, strict=True):
            if entry.kind == BlockKind.EVENT:
                yield self.first_position + start, entry, self.event_at(entry)

    def json_blocks(
        self, kind: BlockKind, stop: int | None = None
    ) -> Iterator[tuple[JournalBlock, dict[str, Any]]]:
        """Yield the JSON blocks of a kind, up to block ``stop`` of the index."""
        for entry in self.index[:stop]:
            if entry.kind == kind:
                yield (block := self.block(entry)), statement(block, self.name)
