"""The journal: appends blocks to segments, and says up to where they are durable.

Blocks are written by the relay's own thread: handing each to another thread costs more than writing it,
since both threads then compete for the interpreter's lock
(docs/adr/0022-bind-recording-blocks-to-their-file.md). Only fsync, which waits for the disk, lets the relay
run meanwhile; it has a thread of its own.
"""

import contextlib
import errno
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bwtui.errors import StateFailed
from bwtui.recording.format.blocks import Kind, pack_synced
from bwtui.recording.format.statements import Head, SegmentEnd
from bwtui.recording.segment import BlockOut, SegmentWriter

#: A segment is finished when it has this many bytes, or is this old in seconds.
SEGMENT_BYTES = 64 << 20
SEGMENT_SECONDS = 300.0
#: Between two calls of fsync, and while the relay has nothing else to do.
_SYNC_SECONDS = 0.25
_SYNC_IDLE_SECONDS = 0.02


@dataclass(slots=True)
class Opening:
    """The first blocks of a segment: the HEAD, which still lacks its "previous", and what is live."""

    head: Head
    blocks: list[BlockOut]


class Journal:
    """Writes segments into ``folder``, from ``number`` on; but for `tell`, for the relay's thread alone.

    A disk that refuses raises nothing here: `failure` says so, and nothing is written or durable any more.
    """

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
        """``previous`` is the digest in the foot of the segment before, or empty. Raises StateFailed."""
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segment_seconds = segment_seconds
        #: Every commit up to this LSN is on the disk, with what became of its messages.
        self.durable_lsn = 0
        #: Why nothing is written any more.
        self.failure: OSError | None = None
        #: Whether the file ends after a whole block though a write has failed.
        self._is_whole = False
        #: Finished by this journal, and the bytes in those.
        self.segments = 0
        self._finished_bytes = 0
        self._told: deque[BlockOut] = deque()
        self._asked_lsn = 0
        #: Bytes of the segment: that are to be on the disk, that are, and that it says are.
        self._asked_size = self._synced_size = self._named_size = 0
        self._synced_at = 0.0
        #: Whether the relay waits for what is written to be durable.
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
                # The segment before may say that it goes over into this one.
                self._segment.put_back() if number > 1 else self._segment.discard()
            raise cannot_write(folder, error) from error
        self._wanted = threading.Semaphore(0)
        self._synced = threading.Event()
        self._synced.set()
        self._ended = False
        self._thread = threading.Thread(target=self._sync_when_asked, name="journal", daemon=True)
        self._thread.start()

    @property
    def reached(self) -> int:
        """The LSN of the last REACHED block, or 0."""
        return self._asked_lsn

    @property
    def bytes_written(self) -> int:
        """Bytes of all segments that this journal wrote."""
        return self._finished_bytes + self._segment.size

    def write(self, block: BlockOut) -> bool:
        """Append one block; return whether it was."""
        if self.failure is not None:
            return False
        try:
            self._append(block)
        except OSError as error:
            self.fail(error)
            return False
        return True

    def tell(self, block: BlockOut) -> None:
        """Leave a block for the relay's thread to write at its next `write_told`; any thread may."""
        block.received = time.time_ns() // 1000
        self._told.append(block)

    def write_told(self) -> None:
        """Append the blocks that other threads have left."""
        while self._told:
            self.write(self._told.popleft())
        self._name_synced()

    def _name_synced(self) -> None:
        """Say in the file itself what is on the disk: damage there is never taken for a torn end."""
        if self._synced.is_set() and self._synced_size > self._named_size:
            self._write_reached(self.durable_lsn)

    def _write_reached(self, lsn: int) -> bool:
        synced = self._synced_size
        written = self.write(BlockOut(Kind.REACHED, [pack_synced(synced)], (lsn, lsn)))
        if written:
            self._named_size = synced
        return written

    def promise(self, *, soon: bool = False) -> Callable[[], bool]:
        """Return what says whether all that was written so far is on the disk, and asks for it until then.

        ``soon``: as often as while the relay has nothing else to do.
        """
        written = self.bytes_written

        def is_kept() -> bool:
            if self._finished_bytes + self._synced_size < written:
                self.reach(self._asked_lsn, anew=True, soon=soon)
            return self._finished_bytes + self._synced_size >= written

        return is_kept

    def reach(self, lsn: int, *, anew: bool = False, soon: bool = False) -> None:
        """Ask for everything written so far to become durable, and `durable_lsn` then to be ``lsn``.

        One request at a time is under way, so a caller that wants an LSN goes on asking until it is durable.
        ``anew``: also where that LSN was asked for before. ``soon``: see `promise`.
        """
        is_new = lsn > self._asked_lsn or anew
        if not is_new or not self._synced.is_set() or self.failure is not None:
            return
        now = time.monotonic()
        pause = _SYNC_IDLE_SECONDS if soon or self.is_waited_for else _SYNC_SECONDS
        if now >= self._synced_at + pause:
            self._synced_at = now
            if not self._segment.is_in_place():
                # What is written has no name any more, so it is lost with this process.
                gone = "its file" if self._folder.is_dir() else "the folder"
                self.failure = OSError(errno.ENOENT, f"{gone} is gone")
                return
            if not self._write_reached(lsn):
                # A later run could not know that the LSN was reached.
                return
            self._asked_lsn = lsn
            self._asked_size = self._segment.size
            self._synced.clear()
            self._wanted.release()

    def go_back(self, lsn: int) -> None:
        """Take nothing after ``lsn`` for durable any more: another history goes on from there."""
        self._synced.wait()
        self._asked_lsn = min(self._asked_lsn, lsn)
        self.durable_lsn = min(self.durable_lsn, lsn)

    @property
    def is_large(self) -> bool:
        """Whether the segment is large enough to be finished."""
        segment = self._segment
        return segment.size - self._opened >= self._segment_bytes or segment.has_many_blocks

    @property
    def is_old(self) -> bool:
        """Whether the segment is old enough to be finished, if it holds anything."""
        return time.monotonic() - self._begun >= self._segment_seconds

    def rotate(self, end: SegmentEnd, opening: Opening) -> None:
        """Finish the segment, whose foot says ``end``, and begin the next."""
        self._begun = time.monotonic()
        self._synced.wait()
        self._name_synced()
        if self.failure is not None:
            return
        try:
            # Announced first: where a segment goes over into another, that one is there or is gone.
            following = SegmentWriter(self._folder, self._segment.number + 1, ahead=True)
        except OSError as error:
            self.fail(error)
            return
        try:
            _, previous = self._segment.finish(end)
        except OSError as error:
            # The announcement stays: the file may have its name all the same, and one too many harms nobody.
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
        """Finish the segment. Raises StateFailed when that, or anything before, has failed."""
        self.write_told()
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
        """Take away the segment, which holds nothing; ``is_expected``: an earlier run goes over into it."""
        self._end_thread()
        with contextlib.suppress(OSError):
            self._segment.put_back() if is_expected or self.segments else self._segment.discard()

    def close_given_up(self, end: SegmentEnd, last_words: Sequence[BlockOut]) -> bool:
        """Finish the segment with ``last_words`` after a write that failed; return whether there was room.

        Nothing is tried where it is not certain what the file holds.
        """
        self._end_thread()
        try:
            if not self._is_whole or not self._segment.is_in_place():
                return False
            for block in last_words:
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
        self._wanted.release()
        self._thread.join()

    def _append(self, block: BlockOut) -> None:
        self._segment.append(block, block.received or time.time_ns() // 1000)

    def _begin_segment(self, opening: Opening, previous: str) -> None:
        self._asked_size = self._synced_size = self._named_size = 0
        head = json.dumps({**opening.head, "previous": previous}).encode()
        self._append(BlockOut(Kind.HEAD, [head]))
        for block in opening.blocks:
            self._append(block)
        self._opened = self._segment.size

    def fail(self, error: OSError) -> None:
        """Write no more, and keep what is whole: a block that was written in part is cut off again."""
        is_first = self.failure is None
        self.failure = error
        is_cut = self._cut_back()
        # Behind a failed fsync nobody knows what the file holds.
        if is_first:
            self._is_whole = is_cut

    def _cut_back(self) -> bool:
        try:
            self._segment.cut_back()
        except OSError:
            return False
        return True

    def _fail_between(self, error: OSError) -> None:
        """Write no more, where a segment ends or begins: what its file holds is not certain."""
        self.failure = error
        self._cut_back()

    # -- the thread of fsync -------------------------------------------------------------------------------

    def _sync_when_asked(self) -> None:
        while True:
            self._wanted.acquire()
            if self._ended:
                return
            lsn, size = self._asked_lsn, self._asked_size
            try:
                self._segment.sync()
                self.durable_lsn, self._synced_size = lsn, size
            except OSError as error:
                # What a failed fsync has dropped can't be written again, so the file ends here.
                self.failure = error
                self._is_whole = False
            finally:
                self._synced.set()


def cannot_write(folder: Path, error: OSError) -> StateFailed:
    """Return the error that says why the recording can't go on."""
    hint = "free disk space, and start again"
    if error.errno == errno.EMSGSIZE:
        # What is recorded of one row is not divided. A restart reads the same row again.
        hint = "leave the table of so large a row out (--exclude-table), or relay it without a recording"
    elif error.errno in (errno.ENOENT, errno.ENOTDIR):
        hint = "it was moved or removed meanwhile: put it back, or record into another folder"
    return StateFailed(f"the recording in {folder} can't be written: {error.strerror or error}", hint)
