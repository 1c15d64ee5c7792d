"""Read a batch's frames without decoding them: count changes by table, and list transactions."""

import dataclasses
import shlex
import struct
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, cast

from bwtui.compiled import Tags, speedups
from bwtui.errors import BwtuiError, DamagedRecording
from bwtui.model.from_json import from_json_object
from bwtui.model.status import SchemaEntry
from bwtui.pgoutput.frames import PAYLOAD_OFFSET, POSTGRES_EPOCH_US
from bwtui.pgoutput.messages import Relation
from bwtui.recording.blocks import (
    ENDING,
    TRANSACTION_ENTRY,
    BlockKind,
    DamagedAt,
    IndexEntry,
    JournalBlock,
    SegmentFile,
    SegmentPlace,
    damaged,
    synced_before,
)
from bwtui.recording.payloads import (
    NO_FRAME,
    Foot,
    Head,
    MessageSection,
    NoMessageReason,
    Pass,
    RecordedBatch,
    SegmentEnd,
    Transaction,
    digest_kind,
    parse_event,
    parse_head,
    statement,
    unpack_batch,
    unpack_relation,
)

_tag = itemgetter(PAYLOAD_OFFSET)
#: The tag and the relation's oid of a frame that has one.
_tag_and_oid = itemgetter(slice(PAYLOAD_OFFSET, PAYLOAD_OFFSET + 5))
_begin = struct.Struct(">QqI").unpack_from
_truncate = struct.Struct(">IB").unpack_from

_COUNTERS = {ord("I"): "inserts", ord("U"): "updates", ord("D"): "deletes"}
_BEGIN, _TRUNCATE = ord("B"), ord("T")
#: 1 for the tags of changes, 0 for all others.
_IS_CHANGE = bytes(tag in b"IUDT" for tag in range(256))
_compiled: Tags | None = speedups.tags if speedups is not None else None

_NO_FRAME = NO_FRAME.to_bytes(4, "big")

#: An increment of a table's counter: table, counter, and number.
Count = tuple[str, str, int]
Counts = list[Count]


class FrameScan(NamedTuple):
    """The result of `scan`; ``last`` is the transaction open after the frames, or else the last one."""

    changes: int
    #: Packed TRANSACTIONS entries; ``transactions`` is their number.
    entries: bytes
    transactions: int
    first_lsn: int
    last: Transaction


def tags(frames: Sequence[bytes]) -> bytes:
    """Return the pgoutput tag of every frame."""
    if (
        _compiled is not None
        and isinstance(frames, list)
        and (frame_tags := _compiled(frames, PAYLOAD_OFFSET))
    ):
        return frame_tags
    return bytes(map(_tag, frames))


def scan(frames: Sequence[bytes], tags: bytes, before: Transaction, first_position: int) -> FrameScan:
    """Number the changes of a batch and list the transactions that begin in it.

    ``tags`` are the frames' tags, ``before`` is the transaction that is open at their beginning, and
    ``first_position`` is the number of changes before them in the segment.
    """
    is_change = tags.translate(_IS_CHANGE)
    entries = []
    position, start, last = first_position, 0, before
    first_lsn = before.commit_lsn if tags[:1] != b"B" else 0
    at = tags.find(_BEGIN)
    while at >= 0:
        position += is_change.count(1, start, at)
        start = at
        lsn, time, xid = _begin(frames[at], PAYLOAD_OFFSET + 1)
        time += POSTGRES_EPOCH_US
        first_lsn = first_lsn or lsn
        entries.append(TRANSACTION_ENTRY.pack(lsn, time, xid, position))
        at = tags.find(_BEGIN, at + 1)
    if entries:
        last = Transaction(lsn, time, xid)
    last = last._replace(ordinal=last.ordinal + is_change.count(1, start))
    return FrameScan(is_change.count(1), b"".join(entries), len(entries), first_lsn, last)


def count_changes(
    frames: Sequence[bytes], frame_tags: bytes, relations: Mapping[int, Relation], only: str | None = None
) -> Counts:
    """Return the increments of the tables' counters; ``frame_tags`` are the frames' tags.

    ``only`` is the single table of all changes, if there is just one: then no frame needs to be read.
    """
    if only is not None and _TRUNCATE not in frame_tags:
        letters = ((counter, frame_tags.count(letter)) for letter, counter in _COUNTERS.items())
        return [(only, counter, number) for counter, number in letters if number]
    counts = []
    for start, number in Counter(map(_tag_and_oid, frames)).items():
        counter = _COUNTERS.get(start[0])
        if counter is not None:
            oid = int.from_bytes(start[1:], "big")
            counts.append((relations[oid].qualified_name, counter, number))
    at = frame_tags.find(_TRUNCATE)
    while at >= 0:
        # A TRUNCATE also names tables that the relay excludes; these are not recorded here.
        names = [relations[oid].qualified_name for oid in truncated(frames[at]) if oid in relations]
        counts += [(name, "truncates", 1) for name in names]
        at = frame_tags.find(_TRUNCATE, at + 1)
    return counts


def truncated(frame: bytes) -> tuple[int, ...]:
    """Return the oids of the relations that a TRUNCATE frame names."""
    (number, _) = _truncate(frame, PAYLOAD_OFFSET + 1)
    return struct.unpack_from(f">{number}I", frame, PAYLOAD_OFFSET + 6)


def count_messages(tables: Sequence[str], sections: Sequence[MessageSection], sizes: Sequence[int]) -> Counts:
    """Return what sections add to the counters of their ``tables``; ``sizes`` come from `size_of`."""
    counts = []
    for table, section, size in zip(tables, sections, sizes, strict=True):
        counts += [(table, "messages", len(section.keys)), (table, "bytes", size)]
        if cleared := _cleared(section.frames):
            counts.append((table, "cleanups", cleared))
    return counts


def _cleared(frames: Sequence[int]) -> int:
    # Tombstones without a row are rare, and a search for their bytes takes a tenth of the time of count().
    if isinstance(frames, array) and _NO_FRAME not in frames.tobytes():
        return 0
    return frames.count(NO_FRAME)


def size_of(section: MessageSection) -> int:
    """Return the total size of the section's keys and values in bytes."""
    return _size(section.keys) + _size(section.values)


def _size(cells: Sequence[bytes | None]) -> int:
    try:
        return sum(map(len, cells))  # type: ignore[arg-type]
    except TypeError:
        # At least one cell is null.
        return sum(len(cell) for cell in cells if cell is not None)


# The totals of a segment, as its foot records them.
#
# The first versions do not know backfilled rows: they count them as snapshot rows, and compare the foot with
# that count. So the foot records them twice, within snapshot_rows and separately.


@dataclass(slots=True)
class SegmentTotals:
    """Totals of the blocks so far; times in Unix microseconds. ``tables`` maps names to counters."""

    changes: int = 0
    transactions: int = 0
    first_lsn: int = 0
    last_lsn: int = 0
    first_received: int = 0
    last_received: int = 0
    #: The LSN up to which everything was durable at the sink.
    reached: int = 0
    tables: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, entry: IndexEntry, counts: Sequence[Count]) -> None:
        """Add one block, and its increments of the tables' counters."""
        self.changes += entry.changes
        self.transactions += entry.transactions
        self.first_received = self.first_received or entry.received
        self.last_received = max(self.last_received, entry.received)
        if entry.kind in (BlockKind.CHANGES, BlockKind.ROWS):
            self.first_lsn = self.first_lsn or entry.first_lsn
            self.last_lsn = max(self.last_lsn, entry.last_lsn)
        elif entry.kind == BlockKind.REACHED:
            self.reached = max(self.reached, entry.last_lsn)
        for table, counter, number in counts:
            counters = self.tables.setdefault(table, {})
            counters[counter] = counters.get(counter, 0) + number

    def to_json(self) -> dict[str, Any]:
        """Return the totals in the form of the foot."""
        tables = {table: dict(counters) for table, counters in self.tables.items()}
        backfilled = {table: counters.pop(_PUT, 0) for table, counters in tables.items()}
        for table, rows in backfilled.items():
            if rows:
                tables[table][_ROWS] = tables[table].get(_ROWS, 0) + rows
        content = {**dataclasses.asdict(self), "tables": tables}
        return {**content, _PUT: {table: rows for table, rows in backfilled.items() if rows}}


_ROWS, _PUT = "snapshot_rows", "backfill_rows"


def counters_of(foot: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the tables' counters from a foot, as they were given to `SegmentTotals.add`."""
    tables = {table: dict(counters) for table, counters in foot["tables"].items()}
    for table, rows in foot.get(_PUT, {}).items():
        tables[table][_ROWS] -= rows
        tables[table][_PUT] = rows
        if not tables[table][_ROWS]:
            del tables[table][_ROWS]
    return tables


# State built up from a segment's blocks (relations, routes, schemas), and the summary of a batch.


@dataclass(frozen=True, slots=True)
class RecordedRoute:
    """The topic, key and schemas of a relation's rows."""

    relation_oid: int
    table: str
    topic: str
    key_columns: tuple[str, ...]
    key_schema_id: int | None
    value_schema_id: int | None


@dataclass(slots=True)
class SegmentContext:
    """The state that a segment's blocks build up; pass them to `take` in order."""

    #: Empty until the HEAD block was taken.
    head: Head = field(default_factory=lambda: cast(Head, {}))
    relations: dict[int, Relation] = field(default_factory=dict)
    routes: dict[int, RecordedRoute] = field(default_factory=dict)
    #: The newest route of each relation, by oid.
    route_of: dict[int, RecordedRoute] = field(default_factory=dict)
    schemas: dict[tuple[str, int], SchemaEntry] = field(default_factory=dict)
    current_pass: Pass = field(default_factory=lambda: cast(Pass, {}))

    @property
    def pass_number(self) -> int:
        """Number of the pass that the blocks belong to."""
        return int(self.current_pass.get("pass", 0))

    @property
    def puts_rows(self) -> bool:
        """Return whether ROWS blocks contain backfilled rows rather than snapshot rows."""
        return self.current_pass.get("kind") == "stream"

    @property
    def newest_before_pass(self) -> tuple[int, int]:
        """Identity of the newest change that was recorded when the pass began."""
        lsn, ordinal = self.current_pass.get("seen", (0, 0))
        return int(lsn), int(ordinal)

    @property
    def newest_before_segment(self) -> tuple[int, int]:
        """Identity of the newest change that was recorded before the segment began."""
        lsn, ordinal = self.head["seen"]
        return int(lsn), int(ordinal)

    def take(self, block: JournalBlock, segment: str) -> None:
        """Apply a block, which must have its payload. Raises DamagedRecording."""
        try:
            self._take(block, segment)
        except DamagedRecording:
            raise
        except (BwtuiError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise damaged(
                SegmentPlace(segment, block.offset), f"a {block.kind.name} block is invalid"
            ) from error

    def _take(self, block: JournalBlock, segment: str) -> None:
        if block.kind == BlockKind.RELATION:
            relation = unpack_relation(block.payload)
            self.relations[relation.oid] = relation
        elif block.kind == BlockKind.ROUTE:
            data = statement(block, segment)
            route = RecordedRoute(
                data["relation"],
                data["table"],
                data["topic"],
                tuple(data["key_columns"]),
                data["key_schema_id"],
                data["value_schema_id"],
            )
            self.routes[data["route"]] = self.route_of[route.relation_oid] = route
        elif block.kind == BlockKind.SCHEMA:
            entry = from_json_object(SchemaEntry, statement(block, segment))
            self.schemas[entry.subject, entry.id] = entry
        elif block.kind == BlockKind.HEAD:
            self.head = parse_head(block, segment)
            self.current_pass = self.head["pass"]
        elif block.kind == BlockKind.EVENT:
            event = parse_event(block, segment)
            if event["event"] == "pass":
                details = {name: value for name, value in event.items() if name != "event"}
                self.current_pass = cast(Pass, details)


def read_batch(block: JournalBlock, segment: str) -> RecordedBatch:
    """Return the batch of a CHANGES or ROWS block. Raises DamagedRecording."""
    try:
        return unpack_batch(block.payload)
    except ValueError as error:
        raise damaged(SegmentPlace(segment, block.offset), "a batch can't be parsed") from error


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """The entries of a batch in the index and the foot."""

    entry: IndexEntry
    transactions: bytes
    counts: Counts
    #: The transaction that is open after the batch, or else its last one.
    last: Transaction


def summarize(
    block: JournalBlock, batch: RecordedBatch, context: SegmentContext, position: int
) -> BatchSummary:
    """Return the summary of a batch as the writer recorded it.

    ``position`` is the number of changes before it in the segment. Raises KeyError when the batch refers to
    something that the segment has not described.
    """
    tables = [context.routes[section.route].table for section in batch.sections]
    counts = count_messages(tables, batch.sections, [size_of(section) for section in batch.sections])
    for frame, reason in batch.without.items():
        if reason == NoMessageReason.DROPPED:
            counts.append((_table_of(block.kind, batch, frame, context), "dropped", 1))
    if block.kind == BlockKind.ROWS:
        table = context.relations[batch.relation].qualified_name
        changes = len(batch.frames) or sum(
            frame == NO_FRAME for section in batch.sections for frame in section.frames
        )
        if batch.frames:
            counter = "backfill_rows" if context.puts_rows else "snapshot_rows"
            counts.append((table, counter, len(batch.frames)))
        last = batch.before._replace(ordinal=batch.before.ordinal + len(batch.frames))
        scanned = FrameScan(changes, b"", 0, batch.before.commit_lsn, last)
    else:
        letters = tags(batch.frames)
        scanned = scan(batch.frames, letters, batch.before, position)
        counts = count_changes(batch.frames, letters, context.relations) + counts
    entry = IndexEntry(
        block.offset,
        block.kind,
        scanned.changes,
        scanned.transactions,
        block.received,
        scanned.first_lsn,
        scanned.last.commit_lsn,
    )
    return BatchSummary(entry, scanned.entries, counts, scanned.last)


def _table_of(kind: BlockKind, batch: RecordedBatch, frame: int, context: SegmentContext) -> str:
    oid = batch.relation
    if kind == BlockKind.CHANGES:
        data = batch.frames[frame]
        at = PAYLOAD_OFFSET + 1
        named = truncated(data) if data[PAYLOAD_OFFSET] == ord("T") else ()
        oid = named[0] if named else int.from_bytes(data[at : at + 4], "big")
    return context.relations[oid].qualified_name


# The digest in a segment's foot, as recorded and as computed from the file.


def digest_of(foot: Foot) -> str:
    """Return the digest that the next segment's head repeats; empty if the segment is unfinished."""
    return str(foot.get(digest_kind(foot), ""))


def read_digest(file: SegmentFile, foot: Foot, stop: int) -> str:
    """Compute the digest of all blocks before the foot, which begins at ``stop``.

    Raises DamagedRecording if a header is damaged, or OSError.
    """
    return file.sha256(stop) if digest_kind(foot) == "sha256" else file.headers_sha256(stop)


# Walk through a segment's blocks, and derive the index and the foot from them.

BATCHES = (BlockKind.CHANGES, BlockKind.ROWS)
#: Kinds of blocks that later blocks refer to.
DESCRIBING = (BlockKind.HEAD, BlockKind.RELATION, BlockKind.ROUTE, BlockKind.SCHEMA, BlockKind.EVENT)


@dataclass(frozen=True, slots=True)
class BlockStep:
    """One block, and its contribution to index and foot."""

    block: JournalBlock
    entry: IndexEntry
    batch: RecordedBatch | None = None
    transactions: bytes = b""
    counts: Sequence[Count] = ()


class SegmentWalk:
    """Processes the blocks of one segment in order."""

    def __init__(self, segment: str) -> None:
        self._segment = segment
        self.context = SegmentContext()
        self.totals = SegmentTotals()
        self.index: list[IndexEntry] = []
        #: The entries of TRANSACTIONS, packed.
        self.transactions = bytearray()
        #: Number of the next block; a caller that skips damage must set it.
        self.number = 0
        #: Number after the last batch, or None if there was no batch.
        self.next_batch: int | None = None
        #: Identity of the newest change of the stream.
        self.newest_change = (0, 0)

    def end(self, ended: str) -> SegmentEnd:
        """Return the end of a segment that has the blocks so far, which must include a HEAD."""
        head = self.context.head
        return {
            "first_position": head["first_position"],
            "first_batch": head["first_batch"],
            "next_batch": head["first_batch"] if self.next_batch is None else self.next_batch,
            "seen": list(self.newest_change),
            "pass": self.context.current_pass,
            "ended": ended,
        }

    def take(self, block: JournalBlock) -> BlockStep:
        """Process a block, which must have its payload. Raises DamagedAt if no relay writes such a block."""
        step = self._step(block)
        self.totals.add(step.entry, step.counts)
        self.index.append(step.entry)
        self.transactions += step.transactions
        return step

    def _step(self, block: JournalBlock) -> BlockStep:
        place = SegmentPlace(self._segment, block.offset)
        if block.number != self.number or (block.kind == BlockKind.HEAD) != (block.number == 0):
            raise damaged(place, f"expected block {self.number} here")
        self.number += 1
        entry = IndexEntry(block.offset, block.kind, 0, 0, block.received, block.first_lsn, block.last_lsn)
        if block.kind == BlockKind.REACHED:
            _check_synced(block, place)
        if block.kind not in BATCHES:
            self.context.take(block, self._segment)
            if block.kind == BlockKind.HEAD:
                self.newest_change = self.context.newest_before_segment
            return BlockStep(block, entry)
        batch = read_batch(block, self._segment)
        try:
            summary = summarize(block, batch, self.context, self.totals.changes)
        except (BwtuiError, LookupError, ValueError, ArithmeticError, struct.error) as error:
            raise damaged(place, "a batch refers to a relation or route that was not recorded") from error
        self.next_batch = batch.number + 1
        if block.kind == BlockKind.CHANGES:
            self.newest_change = max(self.newest_change, (summary.last.commit_lsn, summary.last.ordinal))
        return BlockStep(block, summary.entry, batch, summary.transactions, summary.counts)


def _check_synced(block: JournalBlock, place: SegmentPlace) -> None:
    try:
        synced = synced_before(block)
    except ValueError as error:
        raise damaged(place, "a REACHED block is invalid") from error
    if synced is not None and synced > block.offset:
        raise damaged(place, "a REACHED block reports more bytes on disk than precede it")


def durable_damage(file: SegmentFile, damage: DamagedAt, number: int) -> DamagedAt | None:
    """Return ``damage`` of block ``number``, with its byte range, if that block was once on disk.

    Return None if a crash may have torn it, that is, if nothing after it proves that it was synced. The
    search covers the rest of the file, however large the damaged range is.
    """
    begins, intact_at, reached = damage.place.offset, None, 0
    offset: int | None = begins
    while offset is not None and (offset := file.resume(offset, number)) is not None:
        intact_at = offset if intact_at is None else intact_at
        try:
            for block in file.blocks(offset):
                until, reached = _synced_by(block, reached)
                if until > begins:
                    return _with_range(damage, intact_at, file.folder)
                offset = block.end
        except DamagedAt as more:
            offset = more.place.offset + 1
            continue
        return None
    return None


def _synced_by(block: JournalBlock, reached: int) -> tuple[int, int]:
    """Return how many bytes were synced before ``block``, and the end of the last REACHED without a size.

    Older relays write a REACHED without a size before each sync. They write the next one, like the segment's
    ending, only after that sync has returned.
    """
    if block.kind in ENDING:
        return reached, reached
    if block.kind != BlockKind.REACHED:
        return 0, reached
    try:
        # If bytes are missing from the file, this can be more than precedes the block.
        synced = synced_before(block)
    except ValueError:
        return 0, reached
    return (reached, block.end) if synced is None else (synced, 0)


def _with_range(damage: DamagedAt, intact_at: int, folder: Path) -> DamagedAt:
    hint = f"restore the file from a backup, or cut off everything from here with '{force_command(folder)}'"
    begins = damage.place.offset
    if intact_at == begins:
        # The next intact block is at the damaged offset but is not the expected one, which is gone
        # completely.
        return damaged(damage.place, f"{damage.reason}; this data had already been synced to disk", hint)
    reason = f"{damage.reason}; bytes {begins:,} to {intact_at - 1:,} had already been synced to disk"
    return damaged(damage.place, reason, hint)


def force_command(folder: Path) -> str:
    """Return the command that cuts off damaged and missing data of the recording in ``folder``."""
    return f"bwtui recording recover --force {shlex.quote(str(folder))}"
