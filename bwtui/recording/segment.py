"""Writes one segment: blocks one after the other, then its index and foot."""

import errno
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bwtui.durable import sync
from bwtui.recording.folder import next_path, partial_path
from bwtui.recording.format.blocks import (
    HEADER_SIZE,
    MAX_PAYLOAD,
    UNMARKED,
    IndexEntry,
    Kind,
    mark_after,
    pack_header,
    pack_index,
    pack_trailer,
    segment_name,
)
from bwtui.recording.format.parsing import Count
from bwtui.recording.format.statements import SegmentEnd
from bwtui.recording.format.totals import Totals
from bwtui.recording.format.walk import Step

#: A segment with so many blocks is large, whatever they hold: its index is kept in memory.
_BLOCKS = 1 << 18
#: So many parts are written at once; the system takes 1,024 (IOV_MAX).
_PARTS = 512


@dataclass(slots=True)
class BlockOut:
    """A block on its way into a segment."""

    kind: Kind
    #: The payload is these, one after the other.
    parts: Sequence[bytes]
    #: The first and the last commit LSN in it.
    lsns: tuple[int, int] = (0, 0)
    changes: int = 0
    #: Its entries of TRANSACTIONS, packed, and how many.
    transactions: bytes = b""
    n_transactions: int = 0
    #: What to add to the tables' counters.
    counts: Sequence[Count] = ()
    received: int = 0


class SegmentWriter:
    """One segment that is being written. Every method raises OSError."""

    path: Path

    def __init__(self, folder: Path, number: int, *, ahead: bool = False) -> None:
        """Make the segment's file, which must not exist. ``ahead``: only announce it, until `take_place`."""
        path = next_path(folder, number) if ahead else partial_path(folder, number)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if ahead else os.O_EXCL)
        self._begin(path, number, os.open(path, flags, 0o600))
        try:
            # What is synced into a file whose name is not on the disk is lost with it.
            sync(folder)
            if not ahead:
                next_path(folder, number).unlink(missing_ok=True)
        except OSError:
            self.discard()
            raise

    def take_place(self) -> None:
        """Give a segment that was announced the name of one that is being written."""
        final = partial_path(self.folder, self.number)
        self.path.rename(final)
        self.path = final
        sync(self.folder)

    def put_back(self) -> None:
        """Take everything away but that the segment was to be begun."""
        os.ftruncate(self._fd, 0)
        self.abandon()
        self.path.rename(next_path(self.folder, self.number))
        sync(self.folder)

    def _begin(self, path: Path, number: int, fd: int) -> None:
        self.folder = path.parent
        self.number = number
        self.path = path
        self.totals = Totals()
        self.size = 0
        self._fd = fd
        #: Of the headers of all blocks.
        self._headers = hashlib.sha256()
        self._mark = UNMARKED
        #: Entries of INDEX and TRANSACTIONS, packed: a segment may have a quarter of a million of them.
        self._index = bytearray()
        self._transactions = bytearray()
        self.blocks = 0

    def append(self, block: BlockOut, received: int) -> None:
        """Write one block, ``received`` in Unix microseconds.

        A payload larger than `MAX_PAYLOAD` raises OSError (EMSGSIZE), and nothing of it is written.
        """
        kind, parts, lsns = block.kind, block.parts, block.lsns
        length = sum(map(len, parts))
        if length > MAX_PAYLOAD:
            raise OSError(errno.EMSGSIZE, f"a block of {length} bytes is larger than the format allows")
        entry = IndexEntry(self.size, kind, block.changes, block.n_transactions, received, *lsns)
        header = pack_header(kind, self.blocks, received, *lsns, parts, self._mark)
        self._write([header, *parts])
        self._headers.update(header)
        if kind == Kind.HEAD:
            self._mark = mark_after(header, b"".join(parts))
        self._note(entry, block.transactions, block.counts)

    def _note(self, entry: IndexEntry, transactions: bytes, counts: Sequence[Count]) -> None:
        self._index += pack_index([entry])
        self._transactions += transactions
        self.blocks += 1
        self.totals.add(entry, counts)

    @property
    def has_many_blocks(self) -> bool:
        """Whether the index is as large as it should become."""
        return self.blocks >= _BLOCKS

    @classmethod
    def reopen(cls, path: Path, number: int) -> "SegmentWriter":
        """Open an unfinished segment: `adopt` its whole blocks, `cut_back` what is after them, and go on."""
        writer = cls.__new__(cls)
        writer._begin(path, number, os.open(path, os.O_RDWR | os.O_CLOEXEC))
        return writer

    def adopt(self, raw: bytes, step: Step) -> None:
        """Take a block into account that stands in the file already."""
        self._headers.update(raw[:HEADER_SIZE])
        if step.block.kind == Kind.HEAD:
            self._mark = mark_after(raw, step.block.payload)
        self.size += len(raw)
        self._note(step.entry, step.transactions, step.counts)

    def sync(self) -> None:
        """Wait until everything written so far is on the disk; any thread may."""
        os.fsync(self._fd)

    def is_in_place(self) -> bool:
        """Whether the file still stands where it was made."""
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False

    def finish(self, end: SegmentEnd) -> tuple[Path, str]:
        """Write index and foot, make all of it durable, and give the file its name.

        Return that name and the digest that the next segment's head repeats.
        """
        begins = self.size
        try:
            digest = self._write_ending(end)
        except OSError:
            # Half an ending is none.
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
        headers.update(self._final(Kind.INDEX, received, lsns, bytes(self._index)))
        headers.update(self._final(Kind.TRANSACTIONS, received, lsns, bytes(self._transactions)))
        digest = headers.hexdigest()
        foot = {**end, "headers_sha256": digest, "blocks": self.blocks, **totals.to_json()}
        self._final(Kind.FOOT, received, lsns, json.dumps(foot).encode())
        self._write([pack_trailer(begins)])
        return digest

    def cut_back(self) -> None:
        """Take away what a write that failed has left after the last whole block."""
        os.ftruncate(self._fd, self.size)
        os.lseek(self._fd, self.size, os.SEEK_SET)

    def discard(self) -> None:
        """Close the file and take it away."""
        self.abandon()
        self.path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Close the file as it is."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _final(self, kind: Kind, received: int, lsns: tuple[int, int], payload: bytes) -> bytes:
        number = self.blocks + kind - Kind.INDEX
        header = pack_header(kind, number, received, *lsns, [payload], self._mark)
        self._write([header, payload])
        return header

    def _write(self, parts: Sequence[bytes]) -> None:
        size = sum(map(len, parts))
        for start in range(0, len(parts), _PARTS):
            some = parts[start : start + _PARTS]
            taken = os.writev(self._fd, some)
            if taken < sum(map(len, some)):
                self._write_rest(some, taken)
        self.size += size

    def _write_rest(self, parts: Sequence[bytes], taken: int) -> None:
        """Write what ``os.writev`` left, which takes nearly always everything; nothing is copied."""
        for part in parts:
            left = memoryview(part)[taken:]
            taken = max(0, taken - len(part))
            while left:
                left = left[os.write(self._fd, left) :]
