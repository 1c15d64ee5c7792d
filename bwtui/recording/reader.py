"""Assemble a batch's changes: decoded frames with their messages and delivery reports."""

import bisect
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bwtui.errors import DamagedRecording, StateFailed, UsageError
from bwtui.model.delivery import REFUSED, UNKNOWN
from bwtui.model.from_json import from_json_object
from bwtui.model.headers import SESSION, make_headers
from bwtui.model.status import ErrorEntry, SchemaEntry
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.frames import PAYLOAD_OFFSET
from bwtui.pgoutput.messages import Begin, Delete, Field, Insert, Relation, Truncate, Update
from bwtui.recording import segment_reader
from bwtui.recording.blocks import BlockKind, JournalBlock, SegmentPlace, damaged
from bwtui.recording.change import COUNTERS, OF_TRANSACTIONS, Change, DeliveryState, Operation, SentMessage
from bwtui.recording.folder import existing_segments, is_being_written
from bwtui.recording.payloads import (
    NO_FRAME,
    Head,
    HeaderForm,
    MessageSection,
    RecordedBatch,
    Transaction,
    is_sent,
)
from bwtui.recording.segment_reader import DeliveryBook, Outages, SegmentReader
from bwtui.recording.view import RecordedTransaction, RecordingOrigin, TableCounts, TimelineBucket
from bwtui.recording.walk import (
    BATCHES,
    DESCRIBING,
    RecordedRoute,
    SegmentContext,
    counters_of,
    digest_of,
    read_batch,
    summarize,
)

#: (batch, section) → partitions and offsets, one per message.
Deliveries = Mapping[tuple[int, int], tuple["list[int]", "list[int]"]]
NO_TIMES: Mapping[tuple[int, int], int] = MappingProxyType({})


class _MessageSlot(NamedTuple):
    section: int
    place: int


class Assembly:
    """Makes the changes of one batch. Raises ValueError or KeyError when the batch is inconsistent."""

    def __init__(
        self,
        block: JournalBlock,
        batch: RecordedBatch,
        context: SegmentContext,
        deliveries: Deliveries,
        position: int,
        noted: Mapping[tuple[int, int], int] = NO_TIMES,
    ) -> None:
        """``context`` is the state before the block; ``position`` is that of the first change.

        ``noted`` is when each section was recorded as delivered, in Unix microseconds.
        """
        self._block = block
        self._batch = batch
        self._context = context
        self._deliveries = deliveries
        self._noted = noted
        self._position = position
        self._session = bytes.fromhex(context.head["session"])
        self.is_sent = is_sent(context.head)
        self._sent: dict[int, list[_MessageSlot]] = {}
        for number, section in enumerate(batch.sections):
            for index, frame in enumerate(section.frames):
                self._sent.setdefault(frame, []).append(_MessageSlot(number, index))
        self._filled: dict[int, list[tuple[int, bytes]]] = {}
        for frame, column, text in batch.filled:
            self._filled.setdefault(frame, []).append((column, text))

    def changes(self) -> Iterator[Change]:
        """Yield the changes of the batch."""
        if self._block.kind == BlockKind.ROWS:
            yield from self._rows()
        else:
            yield from self._stream()

    def _rows(self) -> Iterator[Change]:
        relation = self._context.relations[self._batch.relation]
        before, puts_rows = self._batch.before, self._context.puts_rows
        operation: Operation = "backfill" if puts_rows else "snapshot"
        for frame, line in enumerate(self._batch.frames):
            transaction = before._replace(ordinal=before.ordinal + frame + 1)
            row = tuple(unescape_copy_line(line)) if relation.columns else ()
            yield self._change(operation, frame, transaction, relation, None, row)
        transaction = before
        for sent in self._sent.get(NO_FRAME, ()):
            if puts_rows:
                transaction = transaction._replace(ordinal=transaction.ordinal + 1)
            yield self._change("cleanup", NO_FRAME, transaction, relation, None, None, only=sent)

    def _stream(self) -> Iterator[Change]:
        transaction = self._batch.before
        for frame, data in enumerate(self._batch.frames):
            message = decode(data[PAYLOAD_OFFSET:])
            if isinstance(message, Begin):
                transaction = Transaction(message.final_lsn, message.commit_time, message.xid)
            elif isinstance(message, Insert | Update | Delete | Truncate):
                transaction = transaction._replace(ordinal=transaction.ordinal + 1)
                yield self._of_message(message, frame, transaction)

    def _of_message(
        self, message: Insert | Update | Delete | Truncate, frame: int, transaction: Transaction
    ) -> Change:
        if isinstance(message, Truncate):
            named = [
                self._context.relations[oid]
                for oid in message.relation_oids
                if oid in self._context.relations
            ]
            return self._change("truncate", frame, transaction, named[0], None, None, truncated=tuple(named))
        relation = self._context.relations[message.relation_oid]
        if isinstance(message, Insert):
            return self._change("insert", frame, transaction, relation, None, message.new)
        old_is_key = message.old_kind == "K"
        if isinstance(message, Delete):
            return self._change("delete", frame, transaction, relation, message.old, None, old_is_key)
        return self._change("update", frame, transaction, relation, message.old, message.new, old_is_key)

    def _change(
        self,
        operation: Operation,
        frame: int,
        transaction: Transaction,
        relation: Relation,
        before: list[Field] | None,
        after: tuple[Field, ...] | list[Field] | None,
        before_is_key: bool = False,
        *,
        truncated: tuple[Relation, ...] = (),
        only: _MessageSlot | None = None,
    ) -> Change:
        filled = self._filled.get(frame, [])
        if filled and after is not None:
            completed = list(after)
            for column, text in filled:
                completed[column] = text
            after = completed
        sent = [only] if only is not None else self._sent.get(frame, [])
        messages = tuple(self._message(part, one, operation, transaction) for part, one in enumerate(sent))
        route = self._context.route_of.get(relation.oid)
        if sent:
            route = self._context.routes[self._batch.sections[sent[0].section].route]
        without = self._batch.without.get(frame)
        identity = (transaction.commit_lsn, transaction.ordinal)
        position = self._position
        self._position += 1
        return Change(
            position=position,
            pass_number=self._context.pass_number,
            lsn=transaction.commit_lsn,
            ordinal=transaction.ordinal,
            xid=transaction.xid,
            commit_time=transaction.commit_time,
            received=self._block.received,
            operation=operation,
            relation=relation,
            tables=tuple(one.qualified_name for one in truncated or (relation,)),
            truncated=truncated,
            key_columns=key_columns(route, relation),
            before=tuple(before) if before is not None else None,
            before_is_key=before_is_key,
            after=tuple(after) if after is not None else None,
            filled=tuple(relation.columns[column].name for column, _ in filled),
            messages=messages,
            without=without.name.lower() if without is not None else None,
            is_repeat=operation in OF_TRANSACTIONS and identity <= self._context.newest_before_pass,
        )

    def _message(
        self, part: int, sent: _MessageSlot, operation: Operation, transaction: Transaction
    ) -> SentMessage:
        section = self._batch.sections[sent.section]
        route = self._context.routes[section.route]
        key, value = section.keys[sent.place], section.values[sent.place]
        state, partition, offset = self._delivery(sent)
        return SentMessage(
            part=part,
            topic=route.topic,
            key=key,
            value=value,
            key_schema_id=route.key_schema_id if key is not None else None,
            value_schema_id=route.value_schema_id if value is not None else None,
            state=state,
            partition=partition,
            offset=offset,
            headers=self._headers(section, value, operation, transaction),
            noted=self._noted.get((self._batch.number, sent.section)) if partition is not None else None,
        )

    def _delivery(self, sent: _MessageSlot) -> tuple[DeliveryState, int | None, int | None]:
        if not self.is_sent:
            return "unsent", None, None
        reports = self._deliveries.get((self._batch.number, sent.section))
        partition = reports[0][sent.place] if reports is not None else UNKNOWN
        if reports is None or partition == UNKNOWN:
            return "unknown", None, None
        if partition == REFUSED:
            return "refused", None, None
        return "acknowledged", partition, reports[1][sent.place]

    def _headers(
        self, section: MessageSection, value: bytes | None, operation: str, transaction: Transaction
    ) -> tuple[tuple[str, bytes], ...]:
        if section.headers == HeaderForm.NONE:
            return ()
        if section.headers == HeaderForm.SESSION:
            return ((SESSION, self._session),)
        named = "delete" if value is None else operation
        return tuple(
            make_headers(transaction.commit_lsn, transaction.ordinal, named, transaction.xid, self._session)
        )


def key_columns(route: RecordedRoute | None, relation: Relation) -> tuple[str, ...]:
    """Return the columns of a row's key, from its route, or without a route from the replica identity."""
    if route is not None:
        return route.key_columns
    if relation.replica_identity == "f":
        return ()
    return tuple(column.name for column in relation.columns if column.is_key)


# An open recording: a `RecordingView` of a folder's segments, through their indexes.

_ERRORS = 1_000
#: Maximum attempts to open the folder while its last segment is being finished.
_ATTEMPTS = 3
_SOURCE_FIELDS = frozenset(RecordingOrigin.__dataclass_fields__) - {"more", "recording"}


class RecordingReader:
    """A recording's segments as one; `bwtui.recording.view.RecordingView` documents its methods."""

    def __init__(self, folder: Path, *, may_lack_first: bool = False) -> None:
        """Open every segment's foot. Raises UsageError, DamagedRecording or StateFailed.

        With ``may_lack_first``, the first segments may be missing: positions then begin at
        ``first_position``.
        """
        self.folder = folder
        self._may_lack_first = may_lack_first
        # Unlike Path.resolve, this does not raise for a loop of links; opening the folder reports it.
        self.name = Path(os.path.realpath(folder)).name
        self.segments: list[SegmentReader] = []
        try:
            self._open()
            self._head = self._read_head()
        except BaseException:
            self.close()
            raise
        self.source = _source(self._head)
        self.first_position = self.segments[0].first_position
        last = self.segments[-1]
        self.length = last.stop_position
        feet = [segment.foot for segment in self.segments]
        self.first_time = min((f["first_received"] for f in feet if f["first_received"]), default=0)
        self.last_time: int = max(f["last_received"] for f in feet)
        self.first_lsn = next((f["first_lsn"] for f in feet if f["first_lsn"]), 0)
        self.last_lsn = max(f["last_lsn"] for f in feet)

    def _open(self) -> None:
        """Open every segment; retry if the writer finishes one at the same moment."""
        for attempt in range(_ATTEMPTS):
            try:
                for path in existing_segments(self.folder):
                    self.segments.append(SegmentReader(path))
                self._check_order()
                return
            except (StateFailed, DamagedRecording):
                self.close()
                self.segments.clear()
                if attempt + 1 == _ATTEMPTS or not is_being_written(self.folder):
                    raise

    def close(self) -> None:
        for segment in self.segments:
            segment.close()

    @property
    def torn(self) -> str:
        """Why the end of an unfinished recording is ignored, or empty."""
        return self.segments[-1].torn

    def _check_order(self) -> None:
        """Raise DamagedRecording unless the segments form a chain without missing or foreign ones."""
        position, previous, first = 0, "", 1
        if self._may_lack_first and self.segments[0].number > 1 and self.segments[0].index:
            # Every segment is self-contained, so old ones may have been removed to free space.
            position, previous = self.segments[0].first_position, self.segments[0].head["previous"]
            first = self.segments[0].number
        for number, segment in enumerate(self.segments, first):
            is_last = segment is self.segments[-1]
            if segment.number != number or (segment.changes and segment.first_position != position):
                raise damaged(SegmentPlace(segment.name, 0), f"expected segment {number} here")
            if not segment.is_finished and not is_last:
                raise damaged(SegmentPlace(segment.name, 0), "it is unfinished, but later segments follow it")
            if segment.index and segment.head["previous"] != previous:
                raise damaged(SegmentPlace(segment.name, 0), "it does not follow the previous segment")
            position += segment.changes
            previous = digest_of(segment.foot)

    def _read_head(self) -> Head:
        for segment in self.segments:
            if segment.index:
                return segment.head
        raise UsageError(
            f"the recording {self.folder} is empty", "the relay ended before it wrote any change"
        )

    # -- changes -------------------------------------------------------------------------------------------

    def changes(self, start: int = 0, stop: int | None = None) -> Iterator[Change]:
        stop = self.length if stop is None else min(stop, self.length)
        start = max(start, self.first_position)
        if start >= stop:
            return
        for change in self._from_batch_of(start):
            if change.position >= start:
                yield change
            if change.position + 1 >= stop:
                # Do not even read what follows.
                return

    def _from_batch_of(self, position: int) -> Iterator[Change]:
        at = self._segment_at(position)
        number = self.segments[at].batch_at(position)
        # Its own book, because several readers may be active.
        book = DeliveryBook(self.segments)
        book.go_to(at, number)
        context = self.segments[at].context_before(number)
        for index in range(at, len(self.segments)):
            segment = self.segments[index]
            if index > at:
                number, context = 0, SegmentContext()
            yield from self._of_segment(segment, number, context, book)

    def _of_segment(
        self, segment: SegmentReader, number: int, context: SegmentContext, book: DeliveryBook
    ) -> Iterator[Change]:
        for at in range(number, len(segment.index)):
            entry = segment.index[at]
            if entry.kind in BATCHES:
                if entry.changes:
                    position = segment.first_position + segment.starts[at]
                    yield from self._of_block(segment, segment.block(entry), context, book, position)
            elif entry.kind in DESCRIBING:
                context.take(segment.block(entry), segment.name)

    def _of_block(
        self,
        segment: SegmentReader,
        block: JournalBlock,
        context: SegmentContext,
        book: DeliveryBook,
        position: int,
    ) -> Iterator[Change]:
        batch = read_batch(block, segment.name)
        try:
            assembly = Assembly(block, batch, context, book.found, position, book.noted)
            if batch.sections and assembly.is_sent:
                book.read_for(batch.number)
            yield from assembly.changes()
        except (KeyError, ValueError, IndexError) as error:
            reason = "a batch refers to a relation or route that was not recorded"
            raise damaged(SegmentPlace(segment.name, block.offset), reason) from error

    # -- places --------------------------------------------------------------------------------------------

    def _segment_at(self, position: int) -> int:
        starts = [segment.first_position for segment in self.segments]
        at = bisect.bisect_right(starts, position) - 1
        while at > 0 and not self.segments[at].changes:
            at -= 1
        return max(at, 0)

    def at_time(self, time: int) -> int:
        for segment in self.segments:
            if segment.foot["last_received"] < time:
                continue
            for at, entry in enumerate(segment.index):
                if entry.changes and entry.received >= time:
                    return int(segment.first_position + segment.starts[at])
        return self.length

    def at_lsn(self, lsn: int) -> int:
        for segment in self.segments:
            if segment.foot["last_lsn"] < lsn:
                continue
            for at, entry in enumerate(segment.index):
                if entry.changes and entry.last_lsn >= lsn:
                    start = segment.first_position + segment.starts[at]
                    for change in self.changes(start, start + entry.changes):
                        if change.lsn >= lsn:
                            return change.position
        return self.length

    def of_xid(self, xid: int, start: int = 0) -> int | None:
        for segment in self.segments:
            if segment.stop_position >= start:
                for candidate in segment.find_xid(xid, start):
                    # A session may have ended right after the BEGIN.
                    change = next(self.changes(candidate, candidate + 1), None)
                    if change is not None and change.xid == xid:
                        return candidate
        return None

    def transaction(self, position: int) -> tuple[int, int]:
        change = next(self.changes(position, position + 1), None)
        if change is None:
            raise IndexError(position)
        if not change.xid:
            return position, position + 1
        # The ordinal is the distance from the transaction's beginning.
        return max(0, position - change.ordinal + 1), self._next_start(position)

    def _next_start(self, position: int) -> int:
        """Return the start of the first transaction, or snapshot row, after ``position``."""
        for segment in self.segments[self._segment_at(position) :]:
            start = segment.next_start(position)
            if start is not None:
                return start
        return self.length

    def transactions(self, start: int, stop: int) -> Iterator[RecordedTransaction]:
        return segment_reader.transactions(self.segments, start, stop)

    def newest_transactions(self, stop: int, most: int) -> int:
        return segment_reader.newest_transactions(self.segments, stop, most)

    def time_at(self, position: int) -> int:
        if position >= self.length:
            return self.last_time
        segment = self.segments[self._segment_at(position)]
        return int(segment.index[segment.batch_at(position)].received)

    # -- state as of a position ------------------------------------------------------------------------------

    def counts(self, position: int) -> dict[str, TableCounts]:
        totals: dict[str, dict[str, int]] = {}
        routes: dict[str, dict[str, Any]] = {}
        for segment in self.segments:
            if segment.first_position >= position and segment.changes:
                break
            whole = segment.stop_position <= position
            for table, counters in counters_of(segment.foot).items() if whole else ():
                _add(totals.setdefault(table, {}), counters)
            context = self._replay(segment, position, None if whole else totals)
            for route in context.routes.values():
                routes[route.table] = {
                    "topic": route.topic,
                    "key_schema_id": route.key_schema_id,
                    "value_schema_id": route.value_schema_id,
                    "key_columns": route.key_columns,
                }
        names: Any = TableCounts.__dataclass_fields__
        by_table = {}
        for table in dict.fromkeys([*totals, *routes]):
            numbers = {name: number for name, number in totals.get(table, {}).items() if name in names}
            by_table[table] = TableCounts(**{**numbers, **routes.get(table, {})})
        return by_table

    def _replay(
        self, segment: SegmentReader, position: int, totals: dict[str, dict[str, int]] | None
    ) -> SegmentContext:
        """Return the state before ``position``; add its batches to ``totals`` unless that is None."""
        if totals is None:
            return segment.context_before(len(segment.index))
        context = SegmentContext()
        for at, entry in enumerate(segment.index):
            place = segment.first_position + segment.starts[at]
            if place >= position and entry.changes:
                break
            if entry.kind in DESCRIBING:
                context.take(segment.block(entry), segment.name)
            elif entry.kind in BATCHES and place + entry.changes <= position:
                block = segment.block(entry)
                summary = summarize(block, read_batch(block, segment.name), context, 0)
                for table, counter, number in summary.counts:
                    _add(totals.setdefault(table, {}), {counter: number})
            elif entry.kind in BATCHES:
                self._count_part(place, position, totals)
        return context

    def _count_part(self, start: int, stop: int, totals: dict[str, dict[str, int]]) -> None:
        for change in self.changes(start, stop):
            for table in change.tables:
                counters = totals.setdefault(table, {})
                added = {
                    COUNTERS[change.operation]: 1,
                    "messages": len(change.messages),
                    "bytes": change.message_bytes,
                    "dropped": int(change.without == "dropped"),
                }
                _add(counters, added)

    def status(self, position: int) -> dict[str, Any]:
        time = self.time_at(position)
        for segment in reversed(self.segments):
            if segment.first_position > position:
                continue
            for entry in reversed(segment.index):
                if entry.kind == BlockKind.STATUS and entry.received <= time:
                    return _with_stall(segment.json_at(entry))
        return {}

    def errors(self, position: int) -> list[ErrorEntry]:
        entries: list[ErrorEntry] = []
        outages = Outages()
        for segment in reversed(self.segments):
            if segment.first_position > position:
                continue
            until = self._blocks_until(segment, position)
            outages.go_back_to(segment, until)
            here = [
                outages.known(from_json_object(ErrorEntry, content))
                for block, content in segment.json_blocks(BlockKind.ERROR, until)
            ]
            entries = here + entries
            if len(entries) >= _ERRORS:
                break
        return entries[-_ERRORS:]

    def schemas(self, position: int) -> list[SchemaEntry]:
        newest: dict[tuple[str, int], SchemaEntry] = {}
        for segment in self.segments:
            if segment.first_position > position:
                break
            for _, content in segment.json_blocks(BlockKind.SCHEMA, self._blocks_until(segment, position)):
                entry = from_json_object(SchemaEntry, content)
                newest.setdefault((entry.subject, entry.id), entry)
        return list(newest.values())

    def _blocks_until(self, segment: SegmentReader, position: int) -> int:
        """Return the number of the segment's blocks before ``position``."""
        if position >= segment.stop_position:
            return len(segment.index)
        return bisect.bisect_right(segment.starts, position - segment.first_position)

    def timeline(self, buckets: int) -> list[TimelineBucket]:
        begin, width = self.first_time, max(1, (self.last_time - self.first_time) // buckets + 1)
        number = min(buckets, (self.last_time - begin) // width + 1)
        counts, errors, firsts = [0] * number, [0] * number, [-1] * number
        for segment in self.segments:
            for entry, start in zip(segment.index, segment.starts, strict=True):
                at = min(max(entry.received - begin, 0) // width, number - 1)
                if entry.changes:
                    counts[at] += entry.changes
                    if firsts[at] < 0:
                        firsts[at] = segment.first_position + start
                errors[at] += entry.kind == BlockKind.ERROR
        following = self.length
        for at in range(number - 1, -1, -1):
            following = firsts[at] if firsts[at] >= 0 else following
            firsts[at] = following
        return [
            TimelineBucket(begin + at * width, begin + (at + 1) * width, counts[at], errors[at], firsts[at])
            for at in range(number)
        ]


def open_recording(path: str | Path, *, may_lack_first: bool = False) -> RecordingReader:
    """Open a recording, which may still be written (see `RecordingReader`)."""
    return RecordingReader(Path(path), may_lack_first=may_lack_first)


def _with_stall(status: dict[str, Any]) -> dict[str, Any]:
    """Return a status with state "stalled", which a recording has only in its verdict."""
    verdict = status.get("verdict")
    is_stalled = isinstance(verdict, dict) and verdict.get("condition") == "stalled"
    return {**status, "state": "stalled"} if is_stalled else status


def _source(head: Head) -> RecordingOrigin:
    source = head["source"]
    fields = {name: source[name] for name in _SOURCE_FIELDS if name in source}
    return RecordingOrigin(
        recording=head["recording"],
        **fields,
        more={name: value for name, value in source.items() if name not in _SOURCE_FIELDS},
    )


def _add(counters: dict[str, int], more: dict[str, int]) -> None:
    for name, number in more.items():
        counters[name] = counters.get(name, 0) + number
