"""Write the recording: collect frames and messages, and act as the ledger of acknowledgements.

A batch is queued for the journal before it is handed to the sink, and its delivery reports as soon as they
are complete. An LSN is confirmed only when both are on the disk: see `bwtui.relay.state.ack`.
"""

import io
import json
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from bwtui.encode.names import subject_names
from bwtui.errors import BwtuiError, RefusedError, StateFailed
from bwtui.model.delivery import REFUSED, UNKNOWN, Receipt
from bwtui.model.lsn import format_lsn
from bwtui.model.position import Position, RecordedPosition
from bwtui.model.status import ErrorEntry, RecordingStatus, Status
from bwtui.pgoutput.messages import UNCHANGED, Field, Relation
from bwtui.recording.blocks import VERSION, BlockKind
from bwtui.recording.journal import Journal, OutgoingBlock, SegmentOpening, cannot_write
from bwtui.recording.payloads import (
    LARGEST_ORDINAL,
    NO_FRAME,
    Cells,
    DeliveredRange,
    FilledValue,
    Head,
    HeaderForm,
    MessageSection,
    NoMessageReason,
    Pass,
    SegmentEnd,
    Transaction,
    pack_batch,
    pack_delivery,
    pack_relation,
)
from bwtui.recording.resume import ResumePoint, covered
from bwtui.recording.walk import Counts, count_changes, count_messages, scan, size_of, tags
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows.recorder import Recorder
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.sink.destination import MessageTuple
from bwtui.source.preflight import PreflightState

_EVERYTHING = (1 << 64) - 1
#: A section refers to its route by a u16.
ROUTES = 1 << 16
_LENGTH = 4
_SECONDS, _IDLE_SECONDS = 1.0, 60.0
#: Fields of a status that are in the recording elsewhere, or too long.
_LEFT_OUT = frozenset({"tables", "errors", "latency_minute", "latency_since_start"})
#: Fields that change although nothing happens. The recording itself grows with every status that is written.
_RESTLESS = frozenset(
    {
        "exactly_once",
        "latency",
        "time",
        "cpu_seconds",
        "resident_bytes",
        "wal_lag_seconds",
        "recording",
        "verdict",
        "reason",
    }
)
#: Fields that assess a running relay.
_WHILE_IT_WORKS = frozenset({"verdict", "reason", "outages"})
#: Fields of an ERROR block; older versions refuse additional ones.
_ERROR = ("time", "kind", "table", "message", "hint", "count")
#: Fields of an outage in a status, and the maximum number of outages.
_OUTAGE, _OUTAGES = ("kind", "table", "message", "since", "until"), 20


class JournalRecorder(Recorder):
    """Writes what one run reads and sends; the relay's main thread owns it."""

    is_recording = True

    def __init__(
        self,
        settings: RelaySettings,
        report: RunState,
        session: bytes,
        source: dict[str, Any],
        before: ResumePoint,
        status: Callable[[], Status] | None = None,
    ) -> None:
        """``source`` describes where changes come from and go to; ``before`` is the folder's content.

        ``status()`` is recorded once a second while it changes. Raises StateFailed if the folder can't be
        written.
        """
        super().__init__()
        self._settings = settings
        self._report = report
        self._session = session
        self._source = source
        self._before = before
        self._position = self._segment_position = before.position
        self._batch = self._segment_batch = before.batch
        self._newest_change = before.seen
        self._pass: Pass = {"pass": before.pass_number}
        self._under_way = _BatchContext()
        self._unsent = _ChangeDetails()
        self._references = _References(self._write_block, report)
        #: Whether this run has taken a snapshot, after which nothing is missing.
        self._began_pass = False
        #: True if a disk error was reported, and true if the relay then continued without recording.
        self._is_reported = self._gave_up = False
        self._last_errors: list[ErrorEntry] = []
        self._status = StatusSchedule(status)
        self._journal = Journal(
            before.folder,
            before.number,
            before.previous,
            self._opening(),
            segment_bytes=settings.segment_bytes,
            segment_seconds=settings.segment_seconds,
        )
        self._deliveries = _Deliveries(
            self._journal, before.folder, self.settle, in_transactions=settings.exactly_once
        )
        report.listen(self._error)
        #: Number of bytes of a torn end that were cut off, until that is reported.
        self._cut = sum(recovered.cut for recovered in before.recovered)

    # -- the stream ----------------------------------------------------------------------------------------

    def begin_pass(
        self, kind: Literal["snapshot", "stream"], start_lsn: int, behind: Position | None = None
    ) -> None:
        self._forget_batch()
        self._references.begin_pass()
        self._under_way.begin_pass()
        self._deliveries.begin_pass(kind)
        number = self._pass["pass"] + 1
        if kind == "snapshot":
            self._began_pass = True
        else:
            before = self._before.reached
            is_first = number == self._before.pass_number + 1 and not self._began_pass
            reached = max(self._journal.reached, before or 0, covered(self._pass) if behind else 0)
            until = max(start_lsn if is_first else 0, lacking(behind, self._newest_change, reached))
            # Repeated changes may come from a different server, and are durable only once they are recorded
            # again.
            self._journal.go_back(start_lsn)
            if until and not (behind and self._gave_up):
                since = None if is_first and before is None else reached
                if self._note_gap(since, until, self._cut):
                    self._cut = 0
        if self._cut:
            self._report.error("notice", _torn_end(self._cut))
            self._cut = 0
        begun = self._pass_event(number, kind, start_lsn, behind)
        if self._json(BlockKind.EVENT, {"event": "pass", **begun}):
            self._pass = begun

    def _pass_event(
        self, number: int, kind: Literal["snapshot", "stream"], start_lsn: int, behind: Position | None
    ) -> Pass:
        content: Pass = {
            "pass": number,
            "kind": kind,
            "start_lsn": start_lsn,
            "first_batch": self._batch,
            "seen": list(self._newest_change),
            "session": self._session.hex(),
        }
        if self._settings.exactly_once:
            content["exactly_once"] = True
        if behind is not None:
            content["behind"] = {"lsn": behind.lsn, "ordinal": behind.ordinal}
            if behind.recorded is not None:
                recorded = behind.recorded
                content["behind"]["recorded"] = {
                    "session": recorded.session,
                    "pass": recorded.pass_number,
                    "position": recorded.position,
                }
        return content

    def go_back(self, lsn: int, *, is_gap: bool = False) -> None:
        if self._newest_change[0] >= lsn:
            raise _another_history(self._newest_change[0], lsn)
        if is_gap:
            self._note_gap(max(self._journal.reached, self._before.reached or 0), lsn)
        self._journal.go_back(lsn)

    def begin_table(self, relation: Relation, lsn: int, time_ms: int, ordinal: int = 0) -> None:
        self.relation(relation)
        self._under_way.begin_table(relation, lsn, time_ms, ordinal)

    def begin_rows(self, relation: Relation, lsn: int, time_ms: int, ordinal: int) -> None:
        assert not self.frames
        self._references.aside(relation)
        self._under_way.begin_rows(relation, lsn, time_ms, ordinal)

    def end_rows(self) -> None:
        self._under_way.end_rows()
        self._references.back()

    def recorded(self, *, is_new_pass: bool) -> RecordedPosition | None:
        if self._gave_up:
            return None
        return RecordedPosition(self._session.hex(), self._pass["pass"] + is_new_pass, self._position)

    def relation(self, relation: Relation) -> None:
        self._references.relation(relation)

    def forget(self, oid: int) -> None:
        self._references.forget(oid)

    def resume(self, transaction: Transaction) -> None:
        self._under_way.transaction = transaction

    def without(self, route: TableRoute, reason: NoMessageReason, frame: int | None = None) -> None:
        self._unsent.without(len(self.frames) if frame is None else frame, route, reason)

    def filled(self, sent: Sequence[Field], completed: Sequence[Field]) -> int:
        return self._unsent.fill(len(self.frames), sent, completed)

    def write_batch(self, routes: Sequence[TableRoute]) -> list[Receipt]:
        frames = self.frames
        past = self._under_way.past_numbering(frames, sum(len(route.messages) for route in routes))
        if (not frames and not routes) or self._gave_up or self._is_past_numbering(past):
            self._forget_batch()
            return []
        self._make_room(len(routes) + len(self._unsent))
        self._unsent.keep(len(frames))
        for route in self._unsent.routes:
            self._references.number(route)
        sections = [self._section(route, route.messages, route.positions) for route in routes]
        under_way = self._under_way
        tables = [route.relation.qualified_name for route in routes]
        counts = count_messages(tables, sections, [route.bytes for route in routes]) + self._unsent.counts()
        parts = pack_batch(
            self._batch,
            under_way.table.oid if under_way.table else 0,
            under_way.transaction,
            frames,
            sections,
            self._unsent.reasons,
            self._unsent.filled,
        )
        if under_way.table is None:
            tables += [route.relation.qualified_name for route in self._unsent.routes]
            # Every change either makes a message or is listed as making none.
            only = tables[0] if len(set(tables)) == 1 else None
            position = self._position - self._segment_position
            relations = self._references.relations
            written = self._write(*under_way.changes(parts, frames, counts, relations, only, position))
        else:
            written = self._write(*under_way.rows(parts, len(frames), sections, counts))
        self._forget_batch()
        self._see_failure()
        return self._receipts(sections) if written else []

    def write_cleanup(self, route: TableRoute, messages: Sequence[MessageTuple]) -> Receipt:
        self._make_room(1)
        section = self._section(route, messages, (), HeaderForm.SESSION)
        parts = pack_batch(self._batch, route.relation.oid, self._under_way.transaction, [], [section])
        counts = count_messages([route.relation.qualified_name], [section], [size_of(section)])
        written = self._write(*self._under_way.rows(parts, 0, [section], counts))
        self._see_failure()
        return self._receipts([section])[0] if written else Receipt(self._batch, 0, len(messages))

    def _write_block(self, block: OutgoingBlock) -> None:
        self._journal.write(block)

    def _write(self, block: OutgoingBlock, last: Transaction) -> bool:
        if not self._journal.write(block):
            # The foot, if one is written, must match what the file holds.
            return False
        self._under_way.transaction = last
        if block.kind == BlockKind.CHANGES:
            self._newest_change = max(self._newest_change, (last.commit_lsn, last.ordinal))
        self._position += block.changes
        return True

    def _section(
        self,
        route: TableRoute,
        messages: Sequence[MessageTuple],
        positions: Sequence[int],
        headers: HeaderForm | None = None,
    ) -> MessageSection:
        if headers is None:
            headers = HeaderForm.FULL if self._settings.headers else self._under_way.headers
        frames = self._under_way.frames_of(messages, positions, len(self.frames))
        number = self._references.number(route)
        return MessageSection(number, headers, frames, Cells(messages, 0), Cells(messages, 1))

    def _receipts(self, sections: Sequence[MessageSection]) -> list[Receipt]:
        batch = self._batch
        self._batch += 1
        if self._settings.record_only:
            return []
        return [Receipt(batch, index, len(section.keys)) for index, section in enumerate(sections)]

    def _forget_batch(self) -> None:
        self.frames.clear()
        self._unsent.clear()

    def committed(self) -> None:
        self._deliveries.committed()

    # -- segments ------------------------------------------------------------------------------------------

    def _opening(self) -> SegmentOpening:
        head: Head = {
            "version": VERSION,
            "recording": self._before.recording,
            "session": self._session.hex(),
            "first_position": self._position,
            "first_batch": self._batch,
            "seen": list(self._newest_change),
            "pass": self._pass,
            "source": self._source,
        }
        return SegmentOpening(head, self._references.begin_segment())

    def _end(self, ended: str) -> SegmentEnd:
        return {
            "first_position": self._segment_position,
            "first_batch": self._segment_batch,
            "next_batch": self._batch,
            "seen": list(self._newest_change),
            "pass": self._pass,
            "ended": ended,
        }

    def _make_room(self, routes: int) -> None:
        """Begin a new segment if this one has no numbers left for ``routes`` more."""
        if not self._references.has_room(routes):
            self._rotate()

    def _rotate(self) -> None:
        self._status.forget()
        self._journal.rotate(self._end("rotated"), self._opening())
        self._segment_position = self._position
        self._segment_batch = self._batch

    # -- the ledger: see `bwtui.relay.state.ack.DurabilityLedger` --------------------------------------------

    def take_settled(self, receipts: list[Receipt]) -> None:
        self._deliveries.take_settled(receipts)

    def take_unsettled(self, receipts: list[Receipt]) -> None:
        self._deliveries.take_unsettled(receipts)

    def reach(self, lsn: int) -> None:
        if not self._gave_up:
            self._journal.reach(lsn)

    @property
    def durable_lsn(self) -> int:
        # A recording that was given up does not hold up confirmation.
        return _EVERYTHING if self._gave_up else self._journal.durable_lsn

    def promise(self, *, soon: bool = False) -> Callable[[], bool]:
        is_durable = self._journal.promise(soon=soon)
        return lambda: self._gave_up or is_durable()

    def settle(self, *, idle: bool = False) -> None:
        if self._see_failure():
            return
        self._journal.is_waited_for = idle
        self._journal.write_queued()
        if (status := self._status.due()) is not None:
            self._json(BlockKind.STATUS, status)
        if self._journal.is_large or (self._journal.is_old and self._position > self._segment_position):
            self._rotate()

    def _see_failure(self) -> bool:
        """Return whether the disk has refused to write; raise StateFailed if the policy is to stop.

        Call this before a batch goes to the sink: Kafka must not have a message that the recording lacks.
        """
        failure = self._journal.failure
        if failure is not None and not self._gave_up:
            self._give_up(cannot_write(self._before.folder, failure))
        return failure is not None or self._gave_up

    def _is_past_numbering(self, subject: str) -> bool:
        """Give up if ``subject`` has run out of numbers, and return whether it has. Raises StateFailed."""
        if subject:
            hint = "relay these without --record, then start again with --record"
            text = f"a recording can't number more than {LARGEST_ORDINAL:,} {subject}"
            self._give_up(StateFailed(text, hint))
        return bool(subject)

    def _give_up(self, error: StateFailed) -> None:
        """Report that the recording ended. Raises ``error`` unless the relay may continue without it."""
        self._is_reported = True
        if self._settings.record_only:
            raise error
        if self._settings.on_record_error == "stop":
            hint = (
                f"{error.hint}; with --on-record-error stop-recording the relay would continue "
                "without recording"
            )
            raise StateFailed(error.message, hint)
        self._gave_up = True
        hint = f"the relay continues without recording; {error.hint}"
        self._report.error("recording", StateFailed(error.message, hint))

    def _note_gap(self, since: int | None, until: int, cut: int = 0) -> bool:
        """Report that commits from ``since`` to ``until`` are not recorded; None: from the very beginning.

        ``cut``: the number of bytes that were cut off a torn end. Returns whether there is a gap.
        """
        if since is None:
            self._report.error("notice", _late_beginning(until))
        elif until > since:
            self._json(BlockKind.EVENT, _gap_json(since, until))
            self._report.error("recording", _gap_error(since, until, cut))
            return True
        return False

    def _close_abandoned(self) -> None:
        """Report the gap at the recording's end, in the recording too if the disk has room again."""
        reached = max(self._journal.reached, self._before.reached or 0, covered(self._pass))
        until = self._report.confirmed_lsn
        blocks = []
        if until > reached:
            self._report.error("recording", _gap_error(reached, until))
            blocks.append(_block(BlockKind.EVENT, _gap_json(reached, until)))
        blocks += [_block(BlockKind.ERROR, _error_json(entry)) for entry in self._last_errors]
        noted = max(reached, until)
        self._journal.close_abandoned({**self._end("given up"), "noted": noted}, blocks)

    # -- statuses, errors and the end ----------------------------------------------------------------------

    def record_last_status(self) -> None:
        if (status := self._status.last()) is not None:
            self._json(BlockKind.STATUS, status)

    def status(self) -> RecordingStatus:
        return self._before.status(self._journal, stopped=self._gave_up)

    def _error(self, entry: ErrorEntry) -> None:
        if not self._gave_up:
            self._journal.enqueue(_block(BlockKind.ERROR, _error_json(entry)))
        elif entry.kind == "recording":
            self._last_errors.append(entry)

    def _json(self, kind: BlockKind, content: dict[str, Any]) -> bool:
        return not self._gave_up and self._journal.write(_block(kind, content))

    def close(self, error: BwtuiError | None = None) -> None:
        if error is not None and "kind" not in self._pass and self._journal.failure is None:
            # The relay was refused before it read anything, so it leaves no recording.
            self._report.listen(None)
            self._journal.discard(is_expected=self._before.is_expected)
            self._before.give_back()
            return
        if not self._is_reported:
            self._json(BlockKind.EVENT, {"event": "end", "error": error.message if error else None})
        try:
            if self._gave_up:
                self._close_abandoned()
            else:
                self._journal.close(self._end("stopped"))
        except StateFailed as failure:
            if not self._is_reported:
                self._give_up(failure)
        finally:
            self._deliveries.close()
            self._report.listen(None)
            self._before.release()


class _BatchContext:
    """The recorder's current position; only the recorder calls its methods."""

    def __init__(self) -> None:
        #: The open transaction. For rows: their LSN, their time, 0, and the ordinal of the last row.
        self.transaction = Transaction()
        #: The table whose rows the frames are, or None for frames of the stream.
        self.table: Relation | None = None
        #: The place where the stream continues after backfilled rows; None if there are none.
        self._stream: Transaction | None = None

    def begin_pass(self) -> None:
        """Begin a pass without an open transaction."""
        self.transaction, self.table, self._stream = Transaction(), None, None

    def begin_table(self, relation: Relation, lsn: int, time_ms: int, ordinal: int = 0) -> None:
        """Begin a table of a snapshot; ``ordinal`` is that of the row before."""
        self.table = relation
        self.transaction = Transaction(lsn, time_ms * 1000, 0, ordinal)

    def begin_rows(self, relation: Relation, lsn: int, time_ms: int, ordinal: int) -> None:
        """Begin backfilled rows; ``ordinal`` is that of the row before them."""
        if self._stream is None:
            self._stream = self.transaction
        self.table = relation
        self.transaction = Transaction(lsn, time_ms * 1000, 0, ordinal)

    def end_rows(self) -> None:
        """Return to the stream."""
        if self._stream is not None:
            self.transaction, self.table, self._stream = self._stream, None, None

    @property
    def headers(self) -> HeaderForm:
        """The headers that messages carry without --headers."""
        return HeaderForm.SESSION if self.table else HeaderForm.NONE

    def frames_of(
        self, messages: Sequence[MessageTuple], positions: Sequence[int], frames: int
    ) -> Sequence[int]:
        """Return the frame of each message: ``positions`` among ``frames`` frames, none for tombstones."""
        if self.table is None:
            return positions
        if frames:
            # Tombstones among rows would not be counted.
            assert not positions or positions[-1] < frames
            return positions
        assert all(message[1] is None for message in messages)
        return array("I", [NO_FRAME]) * len(messages)

    def past_numbering(self, frames: Sequence[bytes], messages: int) -> str:
        """Return a description of what exceeds the available numbers in this batch, or an empty string."""
        if self.transaction.ordinal + (len(frames) or messages) <= LARGEST_ORDINAL:
            return ""
        if self.table is not None:
            return "rows of one table"
        return "" if tags(frames[:1]) == b"B" else "changes of one transaction"

    def rows(
        self, parts: Sequence[bytes], frames: int, sections: Sequence[MessageSection], counts: Counts
    ) -> tuple[OutgoingBlock, Transaction]:
        """Return the block of a batch of rows or of tombstones, and the position after it."""
        assert self.table is not None
        before, tombstones = self.transaction, sum(len(section.keys) for section in sections)
        if frames:
            counter = "snapshot_rows" if self._stream is None else "backfill_rows"
            counts = [*counts, (self.table.qualified_name, counter, frames)]
        # Tombstones that clean up after a snapshot are not numbered.
        numbered = frames if self._stream is None else frames or tombstones
        lsns = (before.commit_lsn, before.commit_lsn)
        block = OutgoingBlock(BlockKind.ROWS, parts, lsns, frames or tombstones, counts=counts)
        return block, before._replace(ordinal=before.ordinal + numbered)

    def changes(
        self,
        parts: Sequence[bytes],
        frames: Sequence[bytes],
        counts: Counts,
        relations: Mapping[int, Relation],
        only: str | None,
        position: int,
    ) -> tuple[OutgoingBlock, Transaction]:
        """Return the block of a batch of the stream, and the transaction that is open after it.

        ``only`` is the table of all changes if there is only one, and known; ``position`` is the number of
        changes in the segment before this batch.
        """
        letters = tags(frames)
        result = scan(frames, letters, self.transaction, position)
        counts = count_changes(frames, letters, relations, only) + counts
        lsns = (result.first_lsn, result.last.commit_lsn)
        block = OutgoingBlock(
            BlockKind.CHANGES, parts, lsns, result.changes, result.entries, result.transactions, counts
        )
        return block, result.last


class _ChangeDetails:
    """Collects the details of the current batch; ``frame`` is the change's number in the batch."""

    def __init__(self) -> None:
        self._without: list[tuple[int, NoMessageReason, TableRoute]] = []
        self.filled: list[FilledValue] = []

    def without(self, frame: int, route: TableRoute, reason: NoMessageReason) -> None:
        """Record why a change makes no message."""
        self._without.append((frame, reason, route))

    def fill(self, frame: int, sent: Sequence[Field], completed: Sequence[Field]) -> int:
        """Record the TOAST values that were fetched for the streamed row; return their size in bytes."""
        filled = [
            FilledValue(frame, column, new)
            for column, (old, new) in enumerate(zip(sent, completed, strict=True))
            if old is UNCHANGED and isinstance(new, bytes)
        ]
        self.filled += filled
        return sum(len(value.text) for value in filled)

    def keep(self, frames: int) -> None:
        """Forget a change that ended the relay halfway: it has no frame."""
        self._without = [change for change in self._without if change[0] < frames]
        self.filled = [value for value in self.filled if value.frame < frames]

    def clear(self) -> None:
        """Begin a new batch."""
        self._without, self.filled = [], []

    def __len__(self) -> int:
        """Return the number of changes that make no message."""
        return len(self._without)

    @property
    def routes(self) -> list[TableRoute]:
        """The routes of the changes that make no message: each names the key columns."""
        return [route for _, _, route in self._without]

    @property
    def reasons(self) -> list[tuple[int, NoMessageReason]]:
        """Frames, and why they make no message."""
        return [(frame, reason) for frame, reason, _ in self._without]

    def counts(self) -> Counts:
        """Return the counters of the rows that were dropped."""
        return [
            (route.relation.qualified_name, "dropped", 1)
            for _, reason, route in self._without
            if reason == NoMessageReason.DROPPED
        ]


class _References:
    """Describes what the segment does not contain yet; the relay's main thread owns it."""

    def __init__(self, write: Callable[[OutgoingBlock], object], report: RunState) -> None:
        """``write`` appends one block to the segment."""
        self._write = write
        self._report = report
        #: The relations whose rows may follow, by oid.
        self.relations: dict[int, Relation] = {}
        self._former: Relation | None = None
        #: Numbers by the route's description in the segment.
        self._numbers: dict[tuple[Any, ...], int] = {}
        #: The route of each relation, by oid, that the segment described last: readers use it for changes
        #: that make no message.
        self._newest: dict[int, int] = {}
        #: Subject and id of the schemas that the segment holds.
        self._schemas: set[tuple[str, int]] = set()

    def begin_pass(self) -> None:
        """Forget the relations: PostgreSQL announces them again in every session."""
        self.relations.clear()

    def relation(self, relation: Relation) -> None:
        """Describe a relation from here on, unless the segment has the same description of it."""
        if self.relations.get(relation.oid) != relation:
            self.relations[relation.oid] = relation
            self._write(_relation_block(relation))

    def aside(self, relation: Relation) -> None:
        """Describe a relation as backfilled rows have it, until `back`."""
        self._former = self.relations.get(relation.oid)
        self.relation(relation)

    def back(self) -> None:
        """Restore the description that the stream uses, if the stream has announced the relation."""
        if self._former is not None:
            self.relation(self._former)

    def forget(self, oid: int) -> None:
        """Forget a relation, which is described again before its next row."""
        self.relations.pop(oid, None)

    def begin_segment(self) -> list[OutgoingBlock]:
        """Forget what the previous segment has described; return the first blocks of the next one."""
        self._numbers.clear()
        self._newest.clear()
        self._schemas.clear()
        return [_relation_block(relation) for relation in self.relations.values()]

    def has_room(self, routes: int) -> bool:
        """True if the segment has numbers left for this many routes, even if all of them are new."""
        return len(self._numbers) + routes <= ROUTES

    def number(self, route: TableRoute) -> int:
        """Return the route's number in this segment, and describe it if it is not its relation's newest."""
        relation = route.relation
        name = (relation.oid, relation.namespace, relation.name, route.topic)
        description = (*name, route.key_columns, route.key_schema_id, route.value_schema_id)
        number = self._numbers.setdefault(description, len(self._numbers))
        if self._newest.get(relation.oid) != number:
            self._newest[relation.oid] = number
            self._describe(number, route)
        return number

    def _describe(self, number: int, route: TableRoute) -> None:
        ids = (route.key_schema_id, route.value_schema_id)
        for subject, schema_id in zip(subject_names(route.topic), ids, strict=True):
            if schema_id is None or (subject, schema_id) in self._schemas:
                continue
            entry = self._report.schemas.get((subject, schema_id))
            if entry is not None:
                self._schemas.add((subject, schema_id))
                self._write(_block(BlockKind.SCHEMA, asdict(entry)))
        self._write(_block(BlockKind.ROUTE, _route_json(number, route)))


def _block(kind: BlockKind, content: Mapping[str, Any]) -> OutgoingBlock:
    return OutgoingBlock(kind, [json.dumps(content).encode()])


def _relation_block(relation: Relation) -> OutgoingBlock:
    return OutgoingBlock(BlockKind.RELATION, [pack_relation(relation)])


class _Deliveries:
    """Writes the delivery reports of messages; the relay's main thread owns it."""

    def __init__(
        self, journal: Journal, folder: Path, settle: Callable[[], None], *, in_transactions: bool
    ) -> None:
        """``settle`` does periodic work during long writes; ``in_transactions`` means --exactly-once."""
        self._journal = journal
        self._folder = folder
        self._settle = settle
        self._in_transactions = in_transactions
        #: Held delivery reports of an uncommitted snapshot. The file is unbuffered: a buffer would keep the
        #: data that the disk has refused, and fail again wherever the file is closed.
        self._held: io.FileIO | None = None

    def begin_pass(self, kind: str) -> None:
        """Begin a pass; delivery reports that an earlier pass has held are discarded."""
        self.close()
        if self._in_transactions and kind == "snapshot":
            try:
                self._held = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            except OSError as error:
                self._journal.fail(error)

    def take_settled(self, receipts: Iterable[Receipt]) -> None:
        """Write delivery reports, or hold them until their transaction is committed."""
        for receipt in receipts:
            parts = pack_delivery(
                DeliveredRange(receipt.batch, receipt.section, 0, receipt.partitions, receipt.offsets)
            )
            if self._held is None:
                self._journal.write(OutgoingBlock(BlockKind.DELIVERY, parts))
            else:
                self._hold(self._held, b"".join(parts))

    def take_unsettled(self, receipts: Iterable[Receipt]) -> None:
        """Write the partial delivery reports of unsettled messages, without places in an open transaction.

        Kafka aborts that transaction. If its commit was in progress and succeeds, the relay does not learn of
        it.
        """
        if self._in_transactions:
            for receipt in receipts:
                partitions = (REFUSED if at == REFUSED else UNKNOWN for at in receipt.partitions)
                receipt.partitions = array("i", partitions)
                receipt.offsets = array("q", [UNKNOWN]) * len(receipt.offsets)
        self.take_settled(receipts)

    def committed(self) -> None:
        """Write the held delivery reports, since their transaction is committed."""
        held, self._held = self._held, None
        if held is None:
            return
        try:
            # This reader only reads, so closing it has nothing left to write, whatever the disk reports.
            with io.BufferedReader(held) as places:
                places.seek(0)
                while length := places.read(_LENGTH):
                    self._journal.write(
                        OutgoingBlock(BlockKind.DELIVERY, [places.read(int.from_bytes(length))])
                    )
                    self._settle()
        except OSError as error:
            self._journal.fail(error)

    def close(self) -> None:
        """Discard held delivery reports, since their transaction is not committed, or may not be."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _hold(self, file: io.FileIO, payload: bytes) -> None:
        remaining = memoryview(len(payload).to_bytes(_LENGTH) + payload)
        try:
            while remaining:
                remaining = remaining[file.write(remaining) :]
        except OSError as error:
            self._journal.fail(error)
            # The recording is not written any more, and neither are these reports.
            self.close()


def lacking(covered: Position | None, newest_change: tuple[int, int], reached: int) -> int:
    """Return the LSN up to which Kafka has unrecorded changes that are not read again; 0 if there are none.

    Everything up to ``reached`` is recorded, and so is everything up to ``newest_change``. An older relay did
    not count the changes of a complete transaction, so ``newest_change`` may or may not be its last change.
    Reporting a gap that does not exist is better than hiding one.
    """
    if covered is None or not covered.lsn or covered.lsn < reached:
        return 0
    newest = covered.changes if covered.ordinal is None else covered.ordinal
    is_recorded = newest is not None and (covered.lsn, newest) <= newest_change
    return 0 if is_recorded else covered.lsn + 1


class StatusSchedule:
    """Decides when to write a status: once a second while something happens, otherwise once a minute."""

    def __init__(self, source: Callable[[], Status] | None) -> None:
        self._source = source
        self._read_at = self._written_at = float("-inf")
        self._last: dict[str, Any] = {}
        self._recorded: dict[str, Any] = {}

    def due(self) -> dict[str, Any] | None:
        """Return the status to write now, or None."""
        now = time.monotonic()
        if self._source is None or now - self._read_at < _SECONDS:
            return None
        self._read_at, self._recorded = now, recorded_status(self._source())
        return self._changed(self._recorded, now)

    def last(self) -> dict[str, Any] | None:
        """Return the last status if anything has changed since the previous one, or None.

        The assessment of a running relay keeps its previous values, since the relay is ending.
        """
        if self._source is None:
            return None
        status = recorded_status(self._source())
        status |= {name: self._recorded[name] for name in _WHILE_IT_WORKS & self._recorded.keys()}
        return self._changed(status, time.monotonic())

    def _changed(self, status: dict[str, Any], now: float) -> dict[str, Any] | None:
        # A stall is part of the verdict, whose other figures change all the time.
        stalled = status["verdict"]["condition"] == "stalled"
        lasting = {name: value for name, value in status.items() if name not in _RESTLESS}
        lasting["stalled"] = stalled
        # Write once that nothing is measured any more.
        lasting["measured"] = bool(status["latency"])
        if lasting == self._last and now - self._written_at < _IDLE_SECONDS:
            return None
        self._written_at, self._last = now, lasting
        return status

    def forget(self) -> None:
        """Write the next status in any case: a new segment begins with the current status."""
        self._written_at = float("-inf")


def recorded_status(status: Status) -> dict[str, Any]:
    """Return the content of a STATUS block.

    Older versions refuse a state that they don't know, so ``state`` is the phase, and a stall is only in the
    verdict. They ignore ``outages``, the periods of errors.
    """
    content = {name: value for name, value in status.to_json().items() if name not in _LEFT_OUT}
    # Older versions read the verdict from this field.
    content["verdict"] = content.pop("verdict_details")
    if status.state == "stalled":
        content["state"] = status.phase or "streaming"
    content["outages"] = [
        {name: getattr(entry, name) for name in _OUTAGE}
        for entry in [entry for entry in status.errors if entry.since is not None][-_OUTAGES:]
    ]
    return content


def _error_json(entry: ErrorEntry) -> dict[str, Any]:
    """Return the content of an ERROR block: the fields of the first version, which refuses any other."""
    return {name: getattr(entry, name) for name in _ERROR}


def recording_source(
    status: Status, findings: PreflightState, settings: RelaySettings, cluster: str
) -> dict[str, Any]:
    """Return where a recording comes from, for the HEAD of its segments; it contains no passwords."""
    return {
        "database": findings.database,
        "server": status.database,
        "system_identifier": findings.system_identifier,
        "server_version": findings.server_version,
        "slot": settings.slot,
        "publication": settings.publication_name,
        "broker": status.broker,
        "cluster": cluster,
        "registry": status.registry,
        "output_format": settings.output_format,
        "topic_prefix": settings.topic_prefix,
        "headers": settings.headers,
        "bwtui": version("bwtui"),
    }


def _route_json(number: int, route: TableRoute) -> dict[str, Any]:
    """Return the content of a ROUTE block."""
    return {
        "route": number,
        "relation": route.relation.oid,
        "table": route.relation.qualified_name,
        "topic": route.topic,
        "key_columns": route.key_columns,
        "key_schema_id": route.key_schema_id,
        "value_schema_id": route.value_schema_id,
    }


def _gap_json(since: int, until: int) -> dict[str, Any]:
    """Return the EVENT for a gap."""
    return {"event": "gap", "from_lsn": since, "to_lsn": until}


def _gap_error(since: int, until: int, cut: int = 0) -> RefusedError:
    """Return the notice for a gap; ``cut`` is the number of bytes that were cut off a torn end."""
    says = f"the recording lacks changes relayed from {format_lsn(since)} to {format_lsn(until)}"
    if cut:
        return RefusedError(
            f"{says}: its last file was shortened after it was written, and the torn {cut} bytes at its end "
            "were cut off",
            "stop the relay, and restore the recording's files from a backup; without one, these changes "
            "stay missing in the recording, and are in Kafka alone",
        )
    return RefusedError(
        says, "the relay ran without --record, its recording could not be written, or its slot was lost"
    )


def _late_beginning(start_lsn: int) -> RefusedError:
    """Return the notice for a recording that does not begin with a snapshot."""
    return RefusedError(
        f"the recording begins at {format_lsn(start_lsn)} without a snapshot: it lacks everything "
        "before that",
        "use a new slot to record the existing rows of the tables as well",
    )


def _another_history(recorded: int, until: int) -> RefusedError:
    """Return the error for changes recorded up to ``recorded`` that the server has only up to ``until``."""
    return RefusedError(
        f"the recording holds changes up to {format_lsn(recorded)}, but this server's history has them only "
        f"up to {format_lsn(until)}",
        "record into a different folder",
    )


def _torn_end(cut: int) -> RefusedError:
    """Return the notice that ``cut`` bytes after a crash were cut off."""
    return RefusedError(
        f"a crash tore the recording's end: {cut} bytes were cut off",
        "no action needed: none of it was confirmed, so the relay reads and records it again",
    )
