"""One segment that is open for reading: its index, its foot, and its changes from any place on."""

import bisect
import contextlib
import json
import struct
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from bwtui.errors import DamagedRecording, StateFailed
from bwtui.recording.folder import SegmentPath
from bwtui.recording.format import (
    TRANSACTION_ENTRY,
    Block,
    IndexEntry,
    Kind,
    Place,
    SegmentFile,
    TransactionEntry,
    damaged,
    unpack_index,
)
from bwtui.recording.known import Known, read_batch, summarize

BATCHES = (Kind.CHANGES, Kind.ROWS)


class SegmentReader:
    """A segment, finished or not; what is not whole at the end of an unfinished one is left out."""

    def __init__(self, segment: SegmentPath) -> None:
        """Open the file and read its foot. Raises DamagedRecording or StateFailed."""
        self.name = segment.path.name
        self.number = segment.number
        self.is_finished = segment.is_finished
        try:
            self.file = SegmentFile(segment.path.open("rb"), self.name)
        except OSError as error:
            raise StateFailed(f"{segment.path} can't be read: {error.strerror}") from error
        #: Why an unfinished segment's end is left out, or empty.
        self.torn = ""
        self._transactions = b""
        try:
            if self.is_finished:
                self._read_foot()
            else:
                self._walk()
        except BaseException:
            self.file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _read_foot(self) -> None:
        self._index_offset = self.file.index_offset()
        index, self._transactions_block, foot = self._last_blocks()
        self.foot: dict[str, Any] = json.loads(foot.payload)
        self._index_block = index
        self.changes = int(self.foot["changes"])
        self.first_position = int(self.foot["first_position"])

    def _last_blocks(self) -> tuple[Block, Block, Block]:
        found: list[Block] = []
        offset = self._index_offset
        for kind in (Kind.INDEX, Kind.TRANSACTIONS, Kind.FOOT):
            block = self.file.block(offset, with_payload=kind != Kind.TRANSACTIONS)
            if block.kind != kind:
                raise damaged(Place(self.name, offset), f"a {kind.name} block should stand here")
            found.append(block)
            offset = block.end
        return found[0], found[1], found[2]

    def _walk(self) -> None:
        """Make the index of a segment that has none yet."""
        known, entries, transactions = Known(), [], []
        counts: dict[str, dict[str, int]] = {}
        changes = 0
        try:
            for block in self.file.blocks():
                entry = IndexEntry(
                    block.offset, block.kind, 0, 0, block.received, block.first_lsn, block.last_lsn
                )
                if block.kind in BATCHES:
                    summary = summarize(block, read_batch(block, self.name), known, changes)
                    entry = summary.entry
                    transactions.append(summary.transactions)
                    for table, counter, number in summary.counts:
                        table_counts = counts.setdefault(table, {})
                        table_counts[counter] = table_counts.get(counter, 0) + number
                else:
                    known.take(block, self.name)
                entries.append(entry)
                changes += entry.changes
        except DamagedRecording as error:
            self.torn = error.message
        self.index = entries
        self._transactions = b"".join(transactions)
        self.changes = changes
        batches = [entry for entry in entries if entry.kind in BATCHES]
        self.first_position = int(known.head.get("first_position", 0))
        self.foot = {
            "first_position": self.first_position,
            "changes": changes,
            "transactions": sum(entry.transactions for entry in entries),
            "first_lsn": batches[0].first_lsn if batches else 0,
            "last_lsn": max((entry.last_lsn for entry in batches), default=0),
            "first_received": entries[0].received if entries else 0,
            "last_received": entries[-1].received if entries else 0,
            "reached": max((e.last_lsn for e in entries if e.kind == Kind.REACHED), default=0),
            "tables": counts,
            "ended": "unfinished",
        }

    @cached_property
    def index(self) -> list[IndexEntry]:
        """Every block, but for index and foot themselves."""
        return unpack_index(self._index_block.payload)

    @cached_property
    def starts(self) -> list[int]:
        """The position before each block of the index, counted from the segment's first change."""
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
        """Return the packed TRANSACTIONS entries; they are not kept."""
        if not self.is_finished:
            return self._transactions
        return self.file.block(self._transactions_block.offset).payload

    def transactions(self) -> Iterator[TransactionEntry]:
        """Yield the transactions that begin in the segment."""
        for entry in TRANSACTION_ENTRY.iter_unpack(self.transaction_entries()):
            yield TransactionEntry(*entry)

    def find_xid(self, xid: int, start: int) -> int | None:
        """Return the first position from ``start`` on at which transaction ``xid`` begins, or None."""
        packed = self.transaction_entries()
        wanted = struct.pack("<I", xid)
        at = packed.find(wanted)
        while at >= 0:
            if at % TRANSACTION_ENTRY.size == 16:
                entry = TransactionEntry(*TRANSACTION_ENTRY.unpack_from(packed, at - 16))
                if self.first_position + entry.position >= start:
                    return self.first_position + entry.position
            at = packed.find(wanted, at + 1)
        return None

    def batch_at(self, position: int) -> int:
        """Return the number, in the index, of the block that holds the change at ``position``."""
        at = bisect.bisect_right(self.starts, position - self.first_position) - 1
        while at > 0 and not self.index[at].changes:
            at -= 1
        return at

    def known_before(self, number: int) -> Known:
        """Return what the segment's blocks before block ``number`` of the index have said."""
        known = Known()
        for entry in self.index[:number]:
            if entry.kind in (Kind.HEAD, Kind.RELATION, Kind.ROUTE, Kind.SCHEMA, Kind.EVENT):
                known.take(self.file.block(entry.offset), self.name)
        return known

    def json_blocks(self, kind: Kind, stop: int | None = None) -> Iterator[tuple[Block, dict[str, Any]]]:
        """Yield the blocks of a kind that hold JSON, up to block ``stop`` of the index."""
        for entry in self.index[:stop]:
            if entry.kind == kind:
                block = self.file.block(entry.offset)
                with contextlib.suppress(ValueError):
                    yield block, json.loads(block.payload)
