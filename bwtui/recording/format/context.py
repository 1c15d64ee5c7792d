"""State built up from a segment's blocks (relations, routes, schemas), and the summary of a batch."""

from dataclasses import dataclass, field
from typing import cast

from bwtui.errors import BwtuiError, DamagedRecording
from bwtui.model.from_json import from_json_object
from bwtui.model.status import SchemaEntry
from bwtui.pgoutput.frames import PAYLOAD_OFFSET
from bwtui.pgoutput.messages import Relation
from bwtui.recording.format.batch import NO_FRAME, NoMessageReason, RecordedBatch, Transaction, unpack_batch
from bwtui.recording.format.blocks import BlockKind, IndexEntry, JournalBlock, SegmentPlace, damaged
from bwtui.recording.format.parsing import (
    Counts,
    FrameScan,
    count_changes,
    count_messages,
    scan,
    size_of,
    tags,
    truncated,
)
from bwtui.recording.format.relation import unpack_relation
from bwtui.recording.format.statements import Head, Pass, parse_event, parse_head, statement


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
    def seen(self) -> tuple[int, int]:
        """Identity of the newest change that was recorded when the pass began."""
        lsn, ordinal = self.current_pass.get("seen", (0, 0))
        return int(lsn), int(ordinal)

    @property
    def seen_before(self) -> tuple[int, int]:
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
