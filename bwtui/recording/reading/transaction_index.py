"""List a recording's transactions from its indexes, without reading changes."""

import bisect
from collections import deque
from collections.abc import Iterator, Sequence

from bwtui.recording.format.blocks import TRANSACTION_ENTRY, BlockKind, TransactionEntry
from bwtui.recording.reading.segment_reader import SegmentReader
from bwtui.recording.view import RecordedTransaction

#: The fields of a transaction that is not confirmed yet.
_Unconfirmed = tuple[int, int, int, int, int, int, int]


def newest_transactions(segments: Sequence[SegmentReader], stop: int, most: int) -> int:
    """Return where the segments begin that have about ``most`` transactions before ``stop``, or all."""
    count = 0
    for segment in reversed(segments[1:]):
        if segment.changes and segment.first_position < stop:
            count += segment.foot["transactions"]
            if count >= most:
                return segment.first_position
    return segments[0].first_position


def transactions(segments: Sequence[SegmentReader], start: int, stop: int) -> Iterator[RecordedTransaction]:
    """Yield the transactions that begin in ``[start, stop)``, each when confirmed, the rest at the end."""
    walk = _IndexWalk(start, stop)
    for segment in segments:
        # If a transaction begins at a segment's end, its first change is in the next segment.
        if segment.stop_position >= start:
            yield from walk.segment(segment)
            if walk.is_over and not walk.waiting:
                return
    yield from walk.end()


class _IndexWalk:
    """Walks through segments in order."""

    def __init__(self, start: int, stop: int) -> None:
        self._start, self._stop = start, stop
        #: Start position and entry of the open transaction.
        self._open: tuple[int, TransactionEntry] | None = None
        #: Its number of changes so far, and when the first was recorded.
        self._rows = self._received = 0
        #: Transactions that have ended but are not confirmed yet, without their last field.
        self.waiting: deque[_Unconfirmed] = deque()
        #: True if all requested transactions have begun and ended.
        self.is_over = False

    def segment(self, segment: SegmentReader) -> Iterator[RecordedTransaction]:
        """Yield the transactions whose confirmation is in a segment."""
        begins = _TransactionStarts(segment, self._start)
        first = segment.batch_at(self._start) if segment.first_position < self._start else 0
        for at in range(first, len(segment.index)):
            entry, position = segment.index[at], segment.first_position + segment.starts[at]
            if entry.kind == BlockKind.REACHED:
                while self.waiting and self.waiting[0][4] < entry.last_lsn:
                    yield RecordedTransaction(*self.waiting.popleft(), entry.received)
            elif self.is_over:
                if not self.waiting:
                    return
            elif entry.kind == BlockKind.ROWS and entry.changes:
                # Rows of a snapshot or a backfill; a transaction that is open before them continues no
                # further.
                self._close(position)
                while begins.before(position + entry.changes) is not None:
                    pass
            elif entry.changes:
                self._block(begins, position, position + entry.changes, entry.received)
        while not self.is_over and (begin := begins.before(segment.stop_position + 1)) is not None:
            self._begin(begin)

    def end(self) -> Iterator[RecordedTransaction]:
        """Yield the remaining transactions, which have no confirmation."""
        self._close(self._stop)
        for one in self.waiting:
            yield RecordedTransaction(*one)

    def _block(self, begins: "_TransactionStarts", start: int, stop: int, received: int) -> None:
        while (begin := begins.before(stop)) is not None:
            self._add(begin[0] - start, received)
            start = begin[0]
            self._begin(begin)
            if self.is_over:
                return
        self._add(stop - start, received)

    def _begin(self, begin: tuple[int, TransactionEntry]) -> None:
        self._close(begin[0])
        if not self.is_over:
            self._open, self._rows = begin, 0

    def _add(self, rows: int, received: int) -> None:
        if rows and not self._rows:
            self._received = received
        self._rows += rows

    def _close(self, position: int) -> None:
        # Possibly only its BEGIN was recorded.
        if self._open is not None and self._rows:
            (start, entry), rows = self._open, self._rows
            self.waiting.append(
                (start, start + rows, rows, entry.xid, entry.commit_lsn, entry.commit_time, self._received)
            )
        self._open = None
        self.is_over = position >= self._stop


class _TransactionStarts:
    """Iterates over the start positions of a segment's transactions, from a given position on."""

    def __init__(self, segment: SegmentReader, start: int) -> None:
        self._first = segment.first_position
        self._packed = segment.transaction_entries()
        self._count = len(self._packed) // TRANSACTION_ENTRY.size
        relative = start - self._first
        self._next = bisect.bisect_left(range(self._count), relative, key=lambda at: self._entry(at).position)

    def before(self, position: int) -> tuple[int, TransactionEntry] | None:
        """Return the next start position and its entry, if it is before ``position``."""
        if self._next >= self._count:
            return None
        entry = self._entry(self._next)
        if self._first + entry.position >= position:
            return None
        self._next += 1
        return self._first + entry.position, entry

    def _entry(self, at: int) -> TransactionEntry:
        return TransactionEntry(*TRANSACTION_ENTRY.unpack_from(self._packed, at * TRANSACTION_ENTRY.size))
