"""The journal: appends blocks to segments, and reports up to which LSN they are durable.

The relay's own thread writes the blocks: passing each to another thread costs more than writing it, since
both threads then compete for the interpreter's lock (docs/adr/0022-bind-recording-blocks-to-their-file.md).
Only fsync has a thread of its own, because it waits for the disk without holding that lock.
"""

import contextlib
import errno
import hashlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bwtui.durable_files import sync
from bwtui.errors import StateFailed
from bwtui.recording.blocks import (
    HEADER_SIZE,
    MAX_PAYLOAD,
    UNMARKED,
    BlockKind,
    IndexEntry,
    mark_after,
    pack_header,
    pack_index,
    pack_synced,
    pack_trailer,
    segment_name,
)
from bwtui.recording.folder import next_path, partial_path
from bwtui.recording.payloads import Head, SegmentEnd
from bwtui.recording.walk import BlockStep, Count, SegmentTotals

# Write one segment: consecutive blocks, then its index and foot.

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


#: Maximum size of a segment in bytes, and its maximum age in seconds; then it is finished.
SEGMENT_BYTES = 64 << 20
SEGMENT_SECONDS = 300.0
#: Pause between two calls of fsync, normally and while the relay is idle.
_SYNC_SECONDS = 0.25
_SYNC_IDLE_SECONDS = 0.02


@dataclass(slots=True)
class SegmentOpening:
    """The first blocks of a segment: the HEAD, still without its "previous", and the current descriptions."""

    head: Head
    blocks: list[OutgoingBlock]


class Journal:
    """Writes segments into ``folder``, from ``number`` on; only `enqueue` may be called from any thread.

    A disk error raises nothing here: it is stored in `failure`, and nothing is written or durable after it.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        previous: str,
        opening: SegmentOpening,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        segment_seconds: float = SEGMENT_SECONDS,
    ) -> None:
        """``previous`` is the digest in the foot of the segment before, or empty. Raises StateFailed."""
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segment_seconds = segment_seconds
        #: Every commit up to this LSN is on disk, with the delivery reports of its messages.
        self.durable_lsn = 0
        #: The error that stopped writing, if any.
        self.failure: OSError | None = None
        #: True if the file still ends with a complete block after a failed write.
        self._is_whole = False
        #: Number of segments that this journal has finished, and their bytes.
        self.segments = 0
        self._finished_bytes = 0
        self._queued: deque[OutgoingBlock] = deque()
        self._requested_lsn = 0
        #: Bytes of the segment that a sync was requested for, that are synced, and that a REACHED block
        #: names.
        self._requested_size = self._synced_size = self._named_size = 0
        self._synced_at = 0.0
        #: True if the relay is waiting for written blocks to become durable.
        self.is_waited_for = False
        self._begun = time.monotonic()
        try:
            self._segment = SegmentWriter(folder, number)
        except OSError as error:
            raise cannot_write(folder, error) from error
        try:
            self._begin_segment(opening, previous)
        except OSError as error:
            with contextlib.suppress(OSError):
                # The segment before may say that this one follows.
                self._segment.put_back() if number > 1 else self._segment.discard()
            raise cannot_write(folder, error) from error
        self._sync_requested = threading.Semaphore(0)
        self._synced = threading.Event()
        self._synced.set()
        self._ended = False
        self._thread = threading.Thread(target=self._sync_on_request, name="journal", daemon=True)
        self._thread.start()

    @property
    def reached(self) -> int:
        """The LSN of the last REACHED block, or 0."""
        return self._requested_lsn

    @property
    def bytes_written(self) -> int:
        """Total bytes that this journal has written."""
        return self._finished_bytes + self._segment.size

    def write(self, block: OutgoingBlock) -> bool:
        """Append one block; return whether it was written."""
        if self.failure is not None:
            return False
        try:
            self._append(block)
        except OSError as error:
            self.fail(error)
            return False
        return True

    def enqueue(self, block: OutgoingBlock) -> None:
        """Queue a block, which the relay's thread writes in `write_queued`; any thread may call this."""
        block.received = time.time_ns() // 1000
        self._queued.append(block)

    def write_queued(self) -> None:
        """Append the blocks that other threads have queued."""
        while self._queued:
            self.write(self._queued.popleft())
        self._name_synced()

    def _name_synced(self) -> None:
        """Record in the file how much of it is on disk: damage there is never mistaken for a torn end."""
        if self._synced.is_set() and self._synced_size > self._named_size:
            self._write_reached(self.durable_lsn)

    def _write_reached(self, lsn: int) -> bool:
        synced = self._synced_size
        written = self.write(OutgoingBlock(BlockKind.REACHED, [pack_synced(synced)], (lsn, lsn)))
        if written:
            self._named_size = synced
        return written

    def promise(self, *, soon: bool = False) -> Callable[[], bool]:
        """Return a function that returns whether all bytes written so far are on disk, or requests a sync.

        ``soon`` syncs as often as while the relay is idle.
        """
        written = self.bytes_written

        def is_durable() -> bool:
            if self._finished_bytes + self._synced_size < written:
                self.reach(self._requested_lsn, anew=True, soon=soon)
            return self._finished_bytes + self._synced_size >= written

        return is_durable

    def reach(self, lsn: int, *, anew: bool = False, soon: bool = False) -> None:
        """Request a sync of everything written so far, after which `durable_lsn` is ``lsn``.

        Only one request runs at a time, so a caller repeats its request until the LSN is durable. ``anew``
        requests a sync even if that LSN was requested before. ``soon``: see `promise`.
        """
        is_new = lsn > self._requested_lsn or anew
        if not is_new or not self._synced.is_set() or self.failure is not None:
            return
        now = time.monotonic()
        pause = _SYNC_IDLE_SECONDS if soon or self.is_waited_for else _SYNC_SECONDS
        if now >= self._synced_at + pause:
            self._synced_at = now
            if not self._segment.is_in_place():
                # The file has been unlinked: its data is lost when this process ends.
                missing = "its file" if self._folder.is_dir() else "the folder"
                self.failure = OSError(errno.ENOENT, f"{missing} was moved or removed")
                return
            if not self._write_reached(lsn):
                # Without the block, a later run would not know that the LSN was reached.
                return
            self._requested_lsn = lsn
            self._requested_size = self._segment.size
            self._synced.clear()
            self._sync_requested.release()

    def go_back(self, lsn: int) -> None:
        """Treat nothing after ``lsn`` as durable any more: the stream continues there on a new timeline."""
        self._synced.wait()
        self._requested_lsn = min(self._requested_lsn, lsn)
        self.durable_lsn = min(self.durable_lsn, lsn)

    @property
    def is_large(self) -> bool:
        """Return whether the segment is large enough to finish."""
        segment = self._segment
        return segment.size - self._opened >= self._segment_bytes or segment.has_many_blocks

    @property
    def is_old(self) -> bool:
        """Return whether the segment is old enough to finish, if it has any content."""
        return time.monotonic() - self._begun >= self._segment_seconds

    def rotate(self, end: SegmentEnd, opening: SegmentOpening) -> None:
        """Finish the segment with ``end`` in its foot, and begin the next."""
        self._begun = time.monotonic()
        self._synced.wait()
        self._name_synced()
        if self.failure is not None:
            return
        try:
            # Announce the next segment first, so that a rotated segment without a successor proves a loss.
            following = SegmentWriter(self._folder, self._segment.number + 1, ahead=True)
        except OSError as error:
            self.fail(error)
            return
        try:
            _, previous = self._segment.finish(end)
        except OSError as error:
            # Keep the announcement: the file may have been renamed anyway, and an extra marker is harmless.
            following.abandon()
            self._fail_between(error)
            return
        self._finished_bytes += self._segment.size
        self.segments += 1
        self._segment = following
        try:
            following.take_place()
            self._begin_segment(opening, previous)
        except OSError as error:
            self._fail_between(error)

    def close(self, end: SegmentEnd) -> None:
        """Finish the segment. Raises StateFailed when that or an earlier write has failed."""
        self.write_queued()
        self._end_thread()
        try:
            if self.failure is None:
                self._segment.finish(end)
        except OSError as error:
            self._fail_between(error)
        if self.failure is not None:
            self._segment.abandon()
            raise cannot_write(self._folder, self.failure) from self.failure

    def discard(self, *, is_expected: bool) -> None:
        """Remove the empty segment; ``is_expected`` means that an earlier segment announces this one."""
        self._end_thread()
        with contextlib.suppress(OSError):
            self._segment.put_back() if is_expected or self.segments else self._segment.discard()

    def close_abandoned(self, end: SegmentEnd, final_blocks: Sequence[OutgoingBlock]) -> bool:
        """Finish the segment with ``final_blocks`` after a failed write; return whether there was room.

        This does nothing if the file's contents are uncertain.
        """
        self._end_thread()
        try:
            if not self._is_whole or not self._segment.is_in_place():
                return False
            for block in final_blocks:
                self._append(block)
            self._segment.finish(end)
        except OSError as error:
            self._fail_between(error)
            return False
        finally:
            self._segment.abandon()
        return True

    def _end_thread(self) -> None:
        self._ended = True
        self._sync_requested.release()
        self._thread.join()

    def _append(self, block: OutgoingBlock) -> None:
        self._segment.append(block, block.received or time.time_ns() // 1000)

    def _begin_segment(self, opening: SegmentOpening, previous: str) -> None:
        self._requested_size = self._synced_size = self._named_size = 0
        head = json.dumps({**opening.head, "previous": previous}).encode()
        self._append(OutgoingBlock(BlockKind.HEAD, [head]))
        for block in opening.blocks:
            self._append(block)
        self._opened = self._segment.size

    def fail(self, error: OSError) -> None:
        """Stop writing, and keep complete blocks: a partly written block is cut off."""
        is_first = self.failure is None
        self.failure = error
        is_cut = self._cut_back()
        # After a failed fsync the file's contents are uncertain.
        if is_first:
            self._is_whole = is_cut

    def _cut_back(self) -> bool:
        try:
            self._segment.cut_back()
        except OSError:
            return False
        return True

    def _fail_between(self, error: OSError) -> None:
        """Stop writing after an error at a segment's end or beginning: the file's contents are uncertain."""
        self.failure = error
        self._cut_back()

    # -- the thread of fsync -------------------------------------------------------------------------------

    def _sync_on_request(self) -> None:
        while True:
            self._sync_requested.acquire()
            if self._ended:
                return
            lsn, size = self._requested_lsn, self._requested_size
            try:
                self._segment.sync()
                self.durable_lsn, self._synced_size = lsn, size
            except OSError as error:
                # Data that a failed fsync has dropped can't be written again, so the file ends here.
                self.failure = error
                self._is_whole = False
            finally:
                self._synced.set()


def cannot_write(folder: Path, error: OSError) -> StateFailed:
    """Return the error that explains why the recording can't continue."""
    hint = "free disk space, and start the relay again"
    if error.errno == errno.EMSGSIZE:
        # The recording of one row is not split over blocks. A restart reads the same row again.
        hint = "exclude the table with the large row (--exclude-table), or relay without --record"
    elif error.errno in (errno.ENOENT, errno.ENOTDIR):
        hint = "restore it, or record into a different folder"
    return StateFailed(f"the recording in {folder} can't be written: {error.strerror or error}", hint)
