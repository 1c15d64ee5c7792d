"""Write the recording: collect frames and messages, and act as the ledger of acknowledgements.

A batch is queued for the journal before it is handed to the sink, and its delivery reports as soon as they
are complete. An LSN is confirmed only when both are on the disk: see `bwtui.relay.ack`.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from bwtui.errors import BwtuiError, StateFailed
from bwtui.model.delivery import Receipt
from bwtui.model.position import Position, RecordedPosition
from bwtui.model.status import ErrorEntry, RecordingStatus, Status
from bwtui.pgoutput.messages import Field, Relation
from bwtui.recording.format.batch import (
    Cells,
    HeaderForm,
    MessageSection,
    NoMessageReason,
    Transaction,
    pack_batch,
)
from bwtui.recording.format.blocks import VERSION, BlockKind
from bwtui.recording.format.parsing import count_messages, size_of
from bwtui.recording.format.statements import Head, Pass, SegmentEnd
from bwtui.recording.journal import Journal, SegmentOpening, cannot_write
from bwtui.recording.resume import ResumePoint, covered
from bwtui.recording.segment import OutgoingBlock
from bwtui.relay.recording.batch_context import BatchContext
from bwtui.relay.recording.change_details import ChangeDetails
from bwtui.relay.recording.deliveries import Deliveries
from bwtui.relay.recording.error_policy import RecordErrorPolicy
from bwtui.relay.recording.gaps import GapReporter, lacking, pass_event
from bwtui.relay.recording.json_blocks import (
    StatusSchedule,
    another_history,
    error_json,
    torn_end,
)
from bwtui.relay.recording.references import References
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.sink.base import MessageTuple

_EVERYTHING = (1 << 64) - 1


class Recorder:
    """Writes what one run reads and sends; the relay's main thread owns it."""

    def __init__(
        self,
        settings: RelaySettings,
        report: RunState,
        session: bytes,
        source: dict[str, Any],
        before: ResumePoint,
    ) -> None:
        """``source`` describes where changes come from and go to; ``before`` is the folder's content.

        Raises StateFailed if the folder can't be written.
        """
        self._settings = settings
        self._report = report
        self._session = session
        self._source = source
        self._before = before
        #: Frames, or lines of a snapshot, of the current batch.
        self.frames: list[bytes] = []
        self._position = self._segment_position = before.position
        self._batch = self._segment_batch = before.batch
        self._seen = before.seen
        self._pass: Pass = {"pass": before.pass_number}
        self._under_way = BatchContext()
        self._unsent = ChangeDetails()
        self._references = References(self._append, report)
        #: Whether this run has taken a snapshot, after which nothing is missing.
        self._began_pass = False
        self._ending = RecordErrorPolicy(settings, report)
        self._gaps = GapReporter(report, partial(self._json, BlockKind.EVENT))
        self._status = StatusSchedule()
        self._journal = Journal(
            before.folder,
            before.number,
            before.previous,
            self._opening(),
            segment_bytes=settings.segment_bytes,
            segment_seconds=settings.segment_seconds,
        )
        self.deliveries = Deliveries(
            self._journal, before.folder, self.settle, in_transactions=settings.exactly_once
        )
        report.on_error = self._error
        #: Number of bytes of a torn end that were cut off, until that is reported.
        self._cut = sum(recovered.cut for recovered in before.recovered)

    # -- the stream ----------------------------------------------------------------------------------------

    def begin_pass(
        self, kind: Literal["snapshot", "stream"], start_lsn: int, behind: Position | None = None
    ) -> None:
        """Record that a snapshot, or streaming, begins at ``start_lsn``; it may repeat recorded changes.

        Nothing up to the position ``behind`` follows, since Kafka already holds it.
        """
        self._forget_batch()
        self._references.begin_pass()
        self._under_way.begin_pass()
        self.deliveries.begin_pass(kind)
        number = self._pass["pass"] + 1
        if kind == "snapshot":
            self._began_pass = True
        else:
            before = self._before.reached
            is_first = number == self._before.pass_number + 1 and not self._began_pass
            reached = max(self._journal.reached, before or 0, covered(self._pass) if behind else 0)
            until = max(start_lsn if is_first else 0, lacking(behind, self._seen, reached))
            # Repeated changes may come from a different server, and are durable only once they are recorded
            # again.
            self._journal.go_back(start_lsn)
            if until and not (behind and self._ending.gave_up):
                since = None if is_first and before is None else reached
                if self._gaps.note(since, until, self._cut):
                    self._cut = 0
        if self._cut:
            self._report.error("notice", torn_end(self._cut))
            self._cut = 0
        exactly_once = self._settings.exactly_once
        begun = pass_event(
            number, kind, start_lsn, self._batch, self._seen, self._session, behind, exactly_once=exactly_once
        )
        if self._json(BlockKind.EVENT, {"event": "pass", **begun}):
            self._pass = begun

    def go_back(self, lsn: int, *, is_gap: bool = False) -> None:
        """Continue with a server whose WAL is the former one's up to ``lsn``, or after a gap that ends there.

        Raises RefusedError if changes beyond ``lsn`` are recorded: the ones that follow would count as the
        same.
        """
        if self._seen[0] >= lsn:
            raise another_history(self._seen[0], lsn)
        if is_gap:
            self._gaps.note(max(self._journal.reached, self._before.reached or 0), lsn)
        self._journal.go_back(lsn)

    def begin_table(self, relation: Relation, lsn: int, time_ms: int, ordinal: int = 0) -> None:
        """Record that the following frames are rows of a snapshot of ``relation``, after row ``ordinal``."""
        self.relation(relation)
        self._under_way.begin_table(relation, lsn, time_ms, ordinal)

    def begin_rows(self, relation: Relation, lsn: int, time_ms: int, ordinal: int) -> None:
        """Record that backfilled rows of ``relation`` follow, until `end_rows`.

        Everything collected before must be written, and no transaction may be open. ``lsn`` is the position
        of the stream: all that commits before it was sent. ``time_ms`` is the timestamp of the messages.
        ``ordinal`` is that of the row before the first one, so that `--headers` and the recording number rows
        alike; a run never gives one ordinal to two rows of a table that have the same ``lsn``. Frames are
        lines of COPY. A batch of messages without any frame contains tombstones, numbered like rows; no batch
        has both.
        """
        assert not self.frames
        self._references.aside(relation)
        self._under_way.begin_rows(relation, lsn, time_ms, ordinal)

    def end_rows(self) -> None:
        """Record that the stream continues after backfilled rows, whether they were written or abandoned."""
        self._under_way.end_rows()
        self._references.back()

    def recorded(self, *, is_new_pass: bool) -> RecordedPosition | None:
        """Return how far this pass, or with ``is_new_pass`` the next, is recorded; None if that has ended."""
        if self._ending.gave_up:
            return None
        return RecordedPosition(self._session.hex(), self._pass["pass"] + is_new_pass, self._position)

    def relation(self, relation: Relation) -> None:
        """Record the current definition of a relation; earlier batches hold rows of its former definition."""
        self._references.relation(relation)

    def forget(self, oid: int) -> None:
        """Forget a relation; it is recorded again before its next row."""
        self._references.forget(oid)

    def resume(self, transaction: Transaction) -> None:
        """Record that the following changes belong to ``transaction``, whose earlier changes Kafka holds."""
        self._under_way.transaction = transaction

    def without(self, route: TableRoute, reason: NoMessageReason, frame: int | None = None) -> None:
        """Record why the current change, or the change of ``frame``, makes no message."""
        self._unsent.without(len(self.frames) if frame is None else frame, route, reason)

    def filled(self, sent: Sequence[Field], completed: Sequence[Field]) -> int:
        """Record the TOAST values that were fetched for the streamed row; return their size in bytes."""
        return self._unsent.fill(len(self.frames), sent, completed)

    def write_batch(self, routes: Sequence[TableRoute]) -> list[Receipt]:
        """Write the batch; return a receipt for each route's messages. Raises StateFailed, see `settle`."""
        frames = self.frames
        past = self._under_way.past_numbering(frames, sum(len(route.messages) for route in routes))
        if (not frames and not routes) or self._ending.gave_up or self._ending.at_last_number(past):
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
        """Write tombstones that clean up after an unfinished snapshot. Raises StateFailed, see `settle`."""
        self._make_room(1)
        section = self._section(route, messages, (), HeaderForm.SESSION)
        parts = pack_batch(self._batch, route.relation.oid, self._under_way.transaction, [], [section])
        counts = count_messages([route.relation.qualified_name], [section], [size_of(section)])
        written = self._write(*self._under_way.rows(parts, 0, [section], counts))
        self._see_failure()
        return self._receipts([section])[0] if written else Receipt(self._batch, 0, len(messages))

    def _write(self, block: OutgoingBlock, last: Transaction) -> bool:
        if not self._journal.write(block):
            # The foot, if one is written, must match what the file holds.
            return False
        self._under_way.transaction = last
        if block.kind == BlockKind.CHANGES:
            self._seen = max(self._seen, (last.commit_lsn, last.ordinal))
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

    # -- segments ------------------------------------------------------------------------------------------

    def _opening(self) -> SegmentOpening:
        head: Head = {
            "version": VERSION,
            "recording": self._before.recording,
            "session": self._session.hex(),
            "first_position": self._position,
            "first_batch": self._batch,
            "seen": list(self._seen),
            "pass": self._pass,
            "source": self._source,
        }
        return SegmentOpening(head, self._references.begin_segment())

    def _end(self, ended: str) -> SegmentEnd:
        return {
            "first_position": self._segment_position,
            "first_batch": self._segment_batch,
            "next_batch": self._batch,
            "seen": list(self._seen),
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

    # -- the ledger: see `bwtui.relay.ack.DurabilityLedger` --------------------------------------------------

    def settled(self, receipts: list[Receipt]) -> None:
        self.deliveries.settled(receipts)

    def given_up(self, receipts: list[Receipt]) -> None:
        self.deliveries.given_up(receipts)

    def reach(self, lsn: int) -> None:
        if not self._ending.gave_up:
            self._journal.reach(lsn)

    @property
    def durable_lsn(self) -> int:
        # A recording that was given up does not hold up confirmation.
        return _EVERYTHING if self._ending.gave_up else self._journal.durable_lsn

    def promise(self, *, soon: bool = False) -> Callable[[], bool]:
        """Return a function that reports whether all written so far is on the disk; see `Journal.promise`."""
        is_durable = self._journal.promise(soon=soon)
        return lambda: self._ending.gave_up or is_durable()

    def settle(self, *, idle: bool = False) -> None:
        """Do periodic work; ``idle`` means that the relay is only waiting for the disk.

        Raises StateFailed if the disk refuses to write and the policy is to stop.
        """
        if self._see_failure():
            return
        self._journal.is_waited_for = idle
        self._journal.write_told()
        if (status := self._status.due()) is not None:
            self._json(BlockKind.STATUS, status)
        if self._journal.is_large or (self._journal.is_old and self._position > self._segment_position):
            self._rotate()

    def _see_failure(self) -> bool:
        """Return whether the disk has refused to write; raise StateFailed if the policy is to stop.

        Call this before a batch goes to the sink: Kafka must not have a message that the recording lacks.
        """
        failure = self._journal.failure
        if failure is not None and not self._ending.gave_up:
            self._ending.give_up(cannot_write(self._before.folder, failure))
        return failure is not None or self._ending.gave_up

    def _close_given_up(self) -> None:
        """Report the gap at the recording's end, in the recording too if the disk has room again."""
        reached = max(self._journal.reached, self._before.reached or 0, covered(self._pass))
        noted, blocks = self._ending.last_blocks(reached)
        self._journal.close_given_up({**self._end("given up"), "noted": noted}, blocks)

    # -- statuses, errors and the end ----------------------------------------------------------------------

    def record_status(self, status: Callable[[], Status]) -> None:
        """Record ``status()`` once a second while it changes."""
        self._status.source = status

    def record_last_status(self) -> None:
        """Record changes of the last second, before the threads that measure are shut down."""
        if (status := self._status.last()) is not None:
            self._json(BlockKind.STATUS, status)

    def status(self) -> RecordingStatus:
        """Return the state of the recording; any thread may call this."""
        return self._before.status(self._journal, stopped=self._ending.gave_up)

    def _error(self, entry: ErrorEntry) -> None:
        self._journal.tell(OutgoingBlock(BlockKind.ERROR, [json.dumps(error_json(entry)).encode()]))

    def _append(self, block: OutgoingBlock) -> bool:
        return self._journal.write(block)

    def _json(self, kind: BlockKind, content: dict[str, Any]) -> bool:
        return not self._ending.gave_up and self._append(OutgoingBlock(kind, [json.dumps(content).encode()]))

    def close(self, error: BwtuiError | None = None) -> None:
        """Finish the recording.

        Raises StateFailed if that fails, was not reported, and the policy is to stop.
        """
        if error is not None and "kind" not in self._pass and self._journal.failure is None:
            # The relay was refused before it read anything, so it leaves no recording.
            self._report.on_error = None
            self._journal.discard(is_expected=self._before.is_expected)
            self._before.give_back()
            return
        if not self._ending.is_reported:
            self._json(BlockKind.EVENT, {"event": "end", "error": error.message if error else None})
        try:
            if self._ending.gave_up:
                self._close_given_up()
            else:
                self._journal.close(self._end("stopped"))
        except StateFailed as failure:
            if not self._ending.is_reported:
                self._ending.give_up(failure)
        finally:
            self.deliveries.close()
            self._report.on_error = None
            self._before.release()
