"""The journal: appends blocks to segments in a thread of its own, and says up to where they are durable.

The relay's thread only packs and queues. Checksums, writing and fsync happen in the writer's thread, in calls
that let the relay run meanwhile. What is queued is bounded by the relay, which waits while it is too much.
"""

import contextlib
import json
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bwtui.errors import StateFailed
from bwtui.recording.format import Kind
from bwtui.recording.segment import SegmentWriter

#: A segment is finished when it has this many bytes, or is this old in seconds.
SEGMENT_BYTES = 64 << 20
SEGMENT_SECONDS = 300.0
#: Between two calls of fsync.
_SYNC_SECONDS = 0.1


@dataclass(slots=True)
class BlockOut:
    """A block on its way into the journal; see `SegmentWriter.append`."""

    kind: Kind
    parts: Sequence[bytes]
    lsns: tuple[int, int] = (0, 0)
    changes: int = 0
    transactions: bytes = b""
    n_transactions: int = 0
    #: Counters to add: (table, counter, number).
    counts: Sequence[tuple[str, str, int]] = ()
    received: int = 0


@dataclass(slots=True)
class _Sync:
    lsn: int


@dataclass(slots=True)
class Opening:
    """The first blocks of a segment: the HEAD, which still lacks its "previous", and what is live."""

    head: dict[str, Any]
    blocks: list[BlockOut]


@dataclass(slots=True)
class _Rotate:
    foot: dict[str, Any]
    opening: Opening


class Journal:
    """Writes segments into ``folder``, from ``number`` on; but for `write`, for the relay's thread alone."""

    def __init__(
        self,
        folder: Path,
        number: int,
        previous: str,
        opening: Opening,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        segment_seconds: float = SEGMENT_SECONDS,
    ) -> None:
        """``previous`` is the sha256 of the segment before, or empty. Raises StateFailed."""
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segment_seconds = segment_seconds
        self._queue: queue.SimpleQueue[BlockOut | _Sync | _Rotate | None] = queue.SimpleQueue()
        #: Every commit up to this LSN is on the disk, with what became of its messages.
        self.durable_lsn = 0
        #: Why nothing is written any more.
        self.failure: OSError | None = None
        self.bytes_written = 0
        self.segments = 0
        self._asked_lsn = 0
        self._next_sync = 0.0
        self._queued_bytes = 0
        self._taken_bytes = 0
        self._size = 0
        self._begun = time.monotonic()
        self._foot: dict[str, Any] = {}
        self._lock = threading.Lock()
        try:
            self._segment = SegmentWriter(folder, number)
            self._begin_segment(opening, previous)
        except OSError as error:
            raise cannot_write(folder, error) from error
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def write(self, block: BlockOut) -> None:
        """Queue one block; any thread may."""
        if not block.received:
            block.received = time.time_ns() // 1000
        size = sum(map(len, block.parts))
        with self._lock:
            self._queued_bytes += size
            self._size += size
        self._queue.put(block)

    def reach(self, lsn: int) -> None:
        """Ask for everything queued so far to become durable, and `durable_lsn` then to be ``lsn``.

        One request at a time is under way, so whoever wants an LSN goes on asking until it is durable.
        """
        if lsn <= self._asked_lsn or self._asked_lsn > self.durable_lsn:
            return
        now = time.monotonic()
        if now >= self._next_sync:
            self._next_sync = now + _SYNC_SECONDS
            self._asked_lsn = lsn
            self._queue.put(_Sync(lsn))

    @property
    def backlog(self) -> int:
        """Bytes that wait to be written."""
        return self._queued_bytes - self._taken_bytes

    @property
    def wants_rotation(self) -> bool:
        """Whether the segment is large or old enough to be finished."""
        return self._size >= self._segment_bytes or time.monotonic() - self._begun >= self._segment_seconds

    def rotate(self, foot: dict[str, Any], opening: Opening) -> None:
        """Finish the segment with ``foot``, and begin the next."""
        self._size = 0
        self._begun = time.monotonic()
        self._queue.put(_Rotate(foot, opening))

    def close(self, foot: dict[str, Any]) -> None:
        """Write what is queued, and finish the segment. Raises StateFailed when that fails."""
        self._foot = foot
        self._queue.put(None)
        self._thread.join()
        if self.failure is not None:
            raise cannot_write(self._folder, self.failure) from self.failure

    # -- the writer's thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, BlockOut):
                    self._append(item)
                elif isinstance(item, _Sync):
                    self._sync(item.lsn)
                else:
                    _, previous = self._segment.finish(item.foot)
                    self._segment = SegmentWriter(self._folder, self._segment.number + 1)
                    self._begin_segment(item.opening, previous)
                    self.segments += 1
            self._segment.finish(self._foot)
        except OSError as error:
            self._fail(error)

    def _append(self, block: BlockOut) -> None:
        before = self._segment.size
        self._segment.append(
            block.kind,
            block.received,
            block.lsns,
            block.parts,
            block.changes,
            block.transactions,
            block.n_transactions,
        )
        for table, counter, number in block.counts:
            self._segment.totals.count(table, counter, number)
        self.bytes_written += self._segment.size - before
        self._taken_bytes += sum(map(len, block.parts))

    def _sync(self, lsn: int) -> None:
        self._segment.append(Kind.REACHED, time.time_ns() // 1000, (lsn, lsn), [])
        self._segment.sync()
        self.durable_lsn = lsn

    def _begin_segment(self, opening: Opening, previous: str) -> None:
        now = time.time_ns() // 1000
        head = json.dumps({**opening.head, "previous": previous}).encode()
        self._segment.append(Kind.HEAD, now, (0, 0), [head])
        for block in opening.blocks:
            self._segment.append(block.kind, block.received or now, block.lsns, block.parts)

    def _fail(self, error: OSError) -> None:
        """Keep what is whole; a disk that is full may still take the end of it away, and the foot."""
        self.failure = error
        with contextlib.suppress(OSError):
            self._segment.cut_back()
        self._segment.abandon()


def cannot_write(folder: Path, error: OSError) -> StateFailed:
    """Return the error that says why the recording can't go on."""
    return StateFailed(
        f"the recording in {folder} can't be written: {error.strerror or error}",
        "free disk space, or go on without a recording with --on-record-error stop-recording",
    )
