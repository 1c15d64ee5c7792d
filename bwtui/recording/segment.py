"""Write one segment: consecutive blocks, then its index and foot."""

import errno
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bwtui.durable_files import sync
from bwtui.recording.folder import next_path, partial_path
from bwtui.recording.format.blocks import (
    HEADER_SIZE,
    MAX_PAYLOAD,
    UNMARKED,
    BlockKind,
    IndexEntry,
    mark_after,
    pack_header,
    pack_index,
    pack_trailer,
    segment_name,
)
from bwtui.recording.format.parsing import Count
from bwtui.recording.format.statements import SegmentEnd
from bwtui.recording.format.totals import SegmentTotals
from bwtui.recording.format.walk import BlockStep

#: Maximum number of blocks in a segment, since its index is kept in memory.
_BLOCKS = 1 << 18
#: Maximum number of parts per write; the system's limit is 1,024 (IOV_MAX).
_PARTS = 512


@dataclass(slots=True)
class OutgoingBlock:
    """A block to be written into a segment."""

    kind: BlockKind
    #: The payload is the concatenation of these.
    parts: Sequence[bytes]
    #: The first and the last commit LSN in it.
    lsns: tuple[int, int] = (0, 0)
    changes: int = 0
    #: Its packed TRANSACTIONS entries, and their number.
    transactions: bytes = b""
    n_transactions: int = 0
    #: Increments of the tables' counters.
    counts: Sequence[Count] = ()
    received: int = 0


class SegmentWriter:
    """A segment that is being written. Every method raises OSError."""

    path: Path

    def __init__(self, folder: Path, number: int, *, ahead: bool = False) -> None:
        """Create the segment's file, which must not exist; ``ahead`` only announces it (see `take_place`)."""
        path = next_path(folder, number) if ahead else partial_path(folder, number)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if ahead else os.O_EXCL)
        self._begin(path, number, os.open(path, flags, 0o600))
        try:
            # If the directory entry is not on disk, synced contents of the file are lost with it.
            sync(folder)
            if not ahead:
                next_path(folder, number).unlink(missing_ok=True)
        except OSError:
            self.discard()
            raise

    def take_place(self) -> None:
        """Rename an announced segment to one that is being written."""
        final = partial_path(self.folder, self.number)
        self.path.rename(final)
        self.path = final
        sync(self.folder)

    def put_back(self) -> None:
        """Empty the file and turn it back into the announcement of the segment."""
        os.ftruncate(self._fd, 0)
        self.abandon()
        self.path.rename(next_path(self.folder, self.number))
        sync(self.folder)

    def _begin(self, path: Path, number: int, fd: int) -> None:
        self.folder = path.parent
        self.number = number
        self.path = path
        self.totals = SegmentTotals()
        self.size = 0
        self._fd = fd
        #: Digest of the headers of all blocks.
        self._headers = hashlib.sha256()
        self._mark = UNMARKED
        #: Packed entries of INDEX and TRANSACTIONS: a segment may have a quarter of a million of them.
        self._index = bytearray()
        self._transactions = bytearray()
        self.blocks = 0

    def append(self, block: OutgoingBlock, received: int) -> None:
        """Write one block; ``received`` is in Unix microseconds.

        A payload larger than `MAX_PAYLOAD` raises OSError (EMSGSIZE), and nothing is written.
        """
        kind, parts, lsns = block.kind, block.parts, block.lsns
        length = sum(map(len, parts))
        if length > MAX_PAYLOAD:
            raise OSError(errno.EMSGSIZE, f"a block of {length} bytes is larger than the format allows")
        entry = IndexEntry(self.size, kind, block.changes, block.n_transactions, received, *lsns)
        header = pack_header(kind, self.blocks, received, *lsns, parts, self._mark)
        self._write([header, *parts])
        self._headers.update(header)
        if kind == BlockKind.HEAD:
            self._mark = mark_after(header, b"".join(parts))
        self._note(entry, block.transactions, block.counts)

    def _note(self, entry: IndexEntry, transactions: bytes, counts: Sequence[Count]) -> None:
        self._index += pack_index([entry])
        self._transactions += transactions
        self.blocks += 1
        self.totals.add(entry, counts)

    @property
    def has_many_blocks(self) -> bool:
        """Return whether the index has reached its maximum size."""
        return self.blocks >= _BLOCKS

    @classmethod
    def reopen(cls, path: Path, number: int) -> "SegmentWriter":
        """Open an unfinished segment, to `adopt` its intact blocks, `cut_back` the rest, and continue."""
        writer = cls.__new__(cls)
        writer._begin(path, number, os.open(path, os.O_RDWR | os.O_CLOEXEC))
        return writer

    def adopt(self, raw: bytes, step: BlockStep) -> None:
        """Add a block that is already in the file to index and totals."""
        self._headers.update(raw[:HEADER_SIZE])
        if step.block.kind == BlockKind.HEAD:
            self._mark = mark_after(raw, step.block.payload)
        self.size += len(raw)
        self._note(step.entry, step.transactions, step.counts)

    def sync(self) -> None:
        """Wait until everything written so far is on disk; any thread may call this."""
        os.fsync(self._fd)

    def is_in_place(self) -> bool:
        """Return whether the file is still at the path where it was created."""
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False

    def finish(self, end: SegmentEnd) -> tuple[Path, str]:
        """Write index and foot, make everything durable, and rename the file.

        Return the new path and the digest that the next segment's head repeats.
        """
        begins = self.size
        try:
            digest = self._write_ending(end)
        except OSError:
            # Discard a partial ending.
            self.size = begins
            raise
        self.sync()
        os.close(self._fd)
        self._fd = -1
        totals = self.totals
        final = self.folder / segment_name(self.number, totals.first_lsn, totals.last_lsn)
        self.path.rename(final)
        sync(self.folder)
        self.path = final
        return final, digest

    def _write_ending(self, end: SegmentEnd) -> str:
        totals = self.totals
        begins = self.size
        received = totals.last_received
        lsns = (totals.first_lsn, totals.last_lsn)
        headers = self._headers.copy()
        headers.update(self._final(BlockKind.INDEX, received, lsns, bytes(self._index)))
        headers.update(self._final(BlockKind.TRANSACTIONS, received, lsns, bytes(self._transactions)))
        digest = headers.hexdigest()
        foot = {**end, "headers_sha256": digest, "blocks": self.blocks, **totals.to_json()}
        self._final(BlockKind.FOOT, received, lsns, json.dumps(foot).encode())
        self._write([pack_trailer(begins)])
        return digest

    def cut_back(self) -> None:
        """Remove what a failed write has left after the last complete block."""
        os.ftruncate(self._fd, self.size)
        os.lseek(self._fd, self.size, os.SEEK_SET)

    def discard(self) -> None:
        """Close and delete the file."""
        self.abandon()
        self.path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Close the file without changing it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _final(self, kind: BlockKind, received: int, lsns: tuple[int, int], payload: bytes) -> bytes:
        number = self.blocks + kind - BlockKind.INDEX
        header = pack_header(kind, number, received, *lsns, [payload], self._mark)
        self._write([header, payload])
        return header

    def _write(self, parts: Sequence[bytes]) -> None:
        size = sum(map(len, parts))
        for start in range(0, len(parts), _PARTS):
            chunk = parts[start : start + _PARTS]
            written = os.writev(self._fd, chunk)
            if written < sum(map(len, chunk)):
                self._write_rest(chunk, written)
        self.size += size

    def _write_rest(self, parts: Sequence[bytes], written: int) -> None:
        """Write the remainder that ``os.writev`` left (rarely any), without copying it."""
        for part in parts:
            remaining = memoryview(part)[written:]
            written = max(0, written - len(part))
            while remaining:
                remaining = remaining[os.write(self._fd, remaining) :]
