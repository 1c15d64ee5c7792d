"""A segment that is open for reading: its index, its foot, and its changes."""

import bisect
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any, cast

from bwtui.file_errors import file_failed
from bwtui.model.status import ErrorEntry
from bwtui.recording.blocks import (
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
from bwtui.recording.folder import SegmentPath, open_segment
from bwtui.recording.payloads import (
    Event,
    Foot,
    Head,
    RecordedBatch,
    parse_foot,
    parse_outages,
    statement,
    unpack_delivery,
)
from bwtui.recording.view import RecordedTransaction
from bwtui.recording.walk import (
    DESCRIBING,
    SegmentContext,
    SegmentWalk,
    durable_damage,
    read_batch,
    tags,
)


class SegmentReader:
    """A segment, finished or not; an incomplete block at the end of an unfinished one is ignored."""

    def __init__(self, segment: SegmentPath) -> None:
        """Open the file and read its foot. Raises DamagedRecording or StateFailed."""
        self.name = segment.path.name
        self.number = segment.number
        self.is_finished = segment.is_finished
        try:
            self.file = SegmentFile(open_segment(segment.path), self.name, segment.path.parent)
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
            "seen": walk.newest_change,
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


# Find the delivery reports of a batch's messages: the DELIVERY blocks after it, until its pass ends.

#: Number of batches whose delivery reports are kept while reading forward: about a million messages.
_KEPT = 250


class DeliveryBook:
    """Reads ahead of a reader of consecutive batches; after a jump, call `go_to`."""

    def __init__(self, segments: Sequence[SegmentReader]) -> None:
        self._segments = segments
        self._segment = 0
        self._number = 0
        self._newest = -1
        #: True if everything was read: a delivery report not found so far may still be written.
        self.is_at_end = False
        self.found: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        #: When the relay recorded that, in Unix microseconds: the whole batch was acknowledged at that time.
        self.noted: dict[tuple[int, int], int] = {}

    def go_to(self, segment: int, number: int) -> None:
        """Restart at block ``number`` of a segment's index."""
        self._segment, self._number = segment, number
        self._newest = -1
        self.is_at_end = False
        self.found.clear()
        self.noted.clear()

    def read_for(self, batch: int) -> None:
        """Read until all recorded delivery reports of ``batch`` are in ``found``."""
        if len(self.found) > _KEPT:
            for key in [key for key in self.found if key[0] < batch]:
                del self.found[key]
                self.noted.pop(key, None)
        while self._newest <= batch and not self.is_at_end:
            self._step(batch)

    def _step(self, batch: int) -> None:
        segment = self._segments[self._segment]
        if self._number >= len(segment.index):
            if self._segment + 1 == len(self._segments):
                self.is_at_end = True
            else:
                self._segment, self._number = self._segment + 1, 0
            return
        entry = segment.index[self._number]
        self._number += 1
        if entry.kind == BlockKind.DELIVERY:
            block = segment.block(entry)
            try:
                delivery = unpack_delivery(block.payload)
            except ValueError as error:
                raise damaged(
                    SegmentPlace(segment.name, entry.offset), "a DELIVERY block can't be parsed"
                ) from error
            self._newest = max(self._newest, delivery.batch)
            if delivery.batch < batch:
                # No caller needs it any more. An exactly-once snapshot has all its reports after its last
                # row.
                return
            self.noted[delivery.batch, delivery.section] = block.received
            partitions, offsets = self.found.setdefault((delivery.batch, delivery.section), ([], []))
            if delivery.first > len(partitions):
                # No relay writes a report that skips messages, and filling the gap could take any memory.
                raise damaged(
                    SegmentPlace(segment.name, entry.offset), "a DELIVERY block skips earlier messages"
                )
            stop = delivery.first + len(delivery.partitions)
            partitions.extend([-1] * (stop - len(partitions)))
            offsets.extend([-1] * (stop - len(offsets)))
            partitions[delivery.first : stop] = delivery.partitions
            offsets[delivery.first : stop] = delivery.offsets
        elif entry.kind == BlockKind.EVENT:
            event = segment.event_at(entry)
            if event["event"] == "pass" and event["first_batch"] > batch:
                # Messages in flight have their delivery reports recorded by now, or never will.
                self._newest = max(self._newest, event["first_batch"])


# Find the last completely recorded transaction: the last one of a recording may be incomplete.


def complete_until(segments: Sequence[SegmentReader], last_lsn: int) -> int:
    """Return the commit LSN of the newest complete transaction, or 0; ``last_lsn`` is that of the newest.

    In every pass only the last transaction can be incomplete: when another one begins, the one before it has
    ended.
    """
    complete_lsn, is_last_of_pass, open_lsn = 0, True, 0
    for segment in reversed(segments):
        before = sum(entry.transactions for entry in segment.index)
        for entry in reversed(segment.index):
            before -= entry.transactions
            if entry.kind == BlockKind.EVENT and segment.event_at(entry)["event"] == "pass":
                is_last_of_pass, open_lsn = True, 0
            elif entry.kind == BlockKind.ROWS:
                complete_lsn = max(complete_lsn, entry.last_lsn)
            elif entry.kind == BlockKind.CHANGES and is_last_of_pass:
                is_open = _ends_open(read_batch(segment.block(entry), segment.name))
                is_last_of_pass = is_open is None
                if is_open:
                    open_lsn = entry.last_lsn
                elif is_open is not None:
                    complete_lsn = max(complete_lsn, entry.last_lsn)
            if entry.kind == BlockKind.CHANGES and open_lsn:
                stop = before + entry.transactions
                begun = islice(segment.transactions(), before, stop) if entry.transactions else ()
                lsns = (entry.first_lsn, *(transaction.commit_lsn for transaction in begun))
                ended = max(lsn if lsn < open_lsn else 0 for lsn in lsns)
                if ended:
                    # Earlier blocks of this pass are older.
                    complete_lsn, open_lsn = max(complete_lsn, ended), 0
            if complete_lsn >= last_lsn:
                return complete_lsn
    return complete_lsn


def _ends_open(batch: RecordedBatch) -> bool | None:
    """Return whether a transaction is open after a batch of the stream; None when it holds no frames."""
    letters = tags(batch.frames)
    begun, ended = letters.rfind(b"B"), letters.rfind(b"C")
    if begun < 0 and ended < 0:
        return True if letters else None
    return begun > ended


# When the outages in a recording began and ended.
#
# An ERROR block records that an outage began. Later STATUS blocks record its end, in a form that older
# versions ignore (see `bwtui.relay.rows.journal_recorder.recorded_status`).

_OutageKey = tuple[str, str | None, str]


class Outages:
    """The outages in the last status of each session; pass the segments in reverse order."""

    def __init__(self) -> None:
        self._session = ""
        self._is_former = False
        self._has_status = False
        self._outages: dict[_OutageKey, ErrorEntry] = {}

    def go_back_to(self, segment: SegmentReader, stop: int) -> None:
        """Read the blocks of ``segment`` before ``stop``, unless a later status of its session was found."""
        session = segment.head["session"]
        if session != self._session:
            self._is_former, self._session = bool(self._session), session
            self._has_status, self._outages = False, {}
        if self._has_status:
            return
        for entry in reversed(segment.index[:stop]):
            if entry.kind == BlockKind.STATUS:
                self._has_status = True
                status = segment.json_at(entry)
                self._outages = {
                    _key_of(one): self._ended(one, status.get("time", 0.0)) for one in parse_outages(status)
                }
                return

    def _ended(self, outage: ErrorEntry, time: float) -> ErrorEntry:
        if outage.until is not None or outage.since is None or not self._is_former:
            return outage
        # The session that was waiting has ended.
        return replace(outage, until=max(time, outage.since))

    def known(self, entry: ErrorEntry) -> ErrorEntry:
        """Return an entry with the recorded beginning and end of its outage."""
        outage = self._outages.get(_key_of(entry))
        return replace(entry, since=outage.since if outage else None, until=outage.until if outage else None)


def _key_of(entry: ErrorEntry) -> _OutageKey:
    return entry.kind, entry.table, entry.message


# List a recording's transactions from its indexes, without reading changes.

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
