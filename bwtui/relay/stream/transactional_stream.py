"""Exactly-once delivery over all sessions of a run: where each starts, where Kafka transactions may end.

The functions at the end are the steps of a relay with --exactly-once before it streams.
"""

import dataclasses
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol, cast

from bwtui.model.position import Position, RecordedPosition
from bwtui.model.status import State
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.frames import BODY_OFFSET, PAYLOAD_OFFSET
from bwtui.pgoutput.messages import Truncate
from bwtui.recording.payloads import Transaction
from bwtui.relay.exactly_once.position_store import KafkaTransactions, PositionStore
from bwtui.relay.exactly_once.rejected_row_finder import Refused, RejectedRowFinder, WholeTransactionPolicy
from bwtui.relay.rows.batch import OpenTransaction
from bwtui.relay.rows.batch_bisector import RestartFromConfirmed
from bwtui.relay.rows.recorder import Recorder
from bwtui.relay.stream.context import RelayContext
from bwtui.relay.stream.row_handler import FrameFilter, RowHandler
from bwtui.relay.stream.stream_hook import BackfillStream as BesideStream
from bwtui.relay.stream.stream_hook import StreamHook
from bwtui.settings import RelaySettings
from bwtui.sink.destination import DeliveryFailure, Sink
from bwtui.sink.transactions import TransactionalSink, TransactionChecks
from bwtui.source.connection import Connection, execute
from bwtui.source.preflight import PreflightState, obstacle_to_make, wait_while

_WAIT_SECONDS = 0.05
_oid = struct.Struct(">I").unpack_from
_lsn = struct.Struct(">Q").unpack_from
_BEGIN, _TRUNCATE = map(ord, "BT")
_CHANGES = tuple(map(ord, "IUDT"))
#: Changes, and messages that no row depends on.
_DROPPED = (*_CHANGES, *map(ord, "YOM"))


class TransactionalSession(BesideStream, Protocol):
    """A session of the stream."""

    filters: list[FrameFilter]

    transaction: OpenTransaction

    @property
    def rows(self) -> RowHandler:
        """The handler of row frames."""

    @property
    def careful_until(self) -> int: ...

    def leave_careful_mode(self) -> None:
        """Leave careful mode and send batches of normal size."""


class TransactionalStream:
    """A `StreamHook` that wraps another one, and the whole stream, in Kafka transactions."""

    def __init__(self, context: RelayContext, exactly: PositionStore, inner: StreamHook) -> None:
        sink, policy = context.output.sink, context.output.policy
        assert isinstance(sink, TransactionalSink) and isinstance(policy, WholeTransactionPolicy)
        self._sink, self._policy = sink, policy
        self._context = context
        self._exactly = exactly
        self._inner = inner
        self._stream: TransactionalSession | None = None
        #: Rows that Kafka is known to reject, and whether this session searches for more of them.
        self._refused: Refused = {}
        self._is_careful = False
        self._checks = TransactionChecks(
            exactly.is_fenced, partial(context.output.recorder.promise, soon=True), self._may_split
        )

    @property
    def pause(self) -> float:
        return self._inner.pause

    @property
    def phase(self) -> State:
        return self._inner.phase

    @property
    def is_due(self) -> bool:
        return self._inner.is_due

    @property
    def wants_boundary(self) -> bool:
        """Whether backfill rows or a commit wait for the end of a transaction."""
        return self._sink.wants_boundary or self._inner.wants_boundary

    def begin_session(self, stream: BesideStream) -> None:
        """Read the stream's position in Kafka, and skip the changes that Kafka already holds."""
        self._stream = session = cast(TransactionalSession, stream)
        # After a mere outage no row is to blame, so careful mode is not needed.
        is_careful = bool(session.careful_until) and (self._policy.is_sought or bool(self._sink.refused))
        self._policy.is_sought = False
        if is_careful:
            stream.batch.bisector = RejectedRowFinder(
                self._sink, self._policy, stream.while_settling, self._refused, self._context.output.recorder
            )
        else:
            session.leave_careful_mode()
        position = self._begin(is_careful=is_careful, is_new_pass=True)
        self._exactly.check_tables(position)
        self._exactly.check_history(position)
        # A different relay may have sent more changes since this one read the position.
        self._context.history.checkpoint.remember_sent(position.lsn + 1)
        # A chunk that was sent but not committed is sent again.
        self._exactly.position, self._exactly.chunks = position, dict(position.chunks)
        recorder = self._context.output.recorder
        recorder.begin_pass("stream", self._exactly.start_lsn, position)
        session.filters.append(DuplicateFilter(session.rows, session.transaction, position, recorder))
        self._inner.begin_session(stream)

    def _begin(self, *, is_careful: bool, is_new_pass: bool) -> Position:
        context = self._context
        call = partial(context.services.patience.call, context.services.destination.service.name)
        recorded = self._recorded(is_new_pass=is_new_pass)
        producer, position = self._exactly.begin(call, one_by_one=is_careful, recorded=recorded)
        self._sink.begin(producer, self._checks, one_by_one=is_careful)
        self._is_careful = self._sink.is_eager = self._policy.is_alone = is_careful
        return position

    def end_session(self) -> None:
        """Abandon the backfill chunk in progress."""
        self._inner.end_session()
        self._stream = None

    def claim_failures(self, failures: list[DeliveryFailure]) -> list[DeliveryFailure]:
        return self._inner.claim_failures(failures)

    def turn(self, position: int, seconds: float, *, at_boundary: bool, is_idle: bool) -> None:
        """Run the wrapped hook, then mark where a Kafka transaction may end."""
        self._inner.turn(position, seconds, at_boundary=at_boundary, is_idle=is_idle)
        stream, sink = self._stream, self._sink
        assert stream is not None
        if stream.batch.bisector is not None:
            failures = self._policy.undelivered(self.claim_failures(sink.take_failures()))
            if failures:
                raise RestartFromConfirmed(failures)
        if sink.has_uncommitted:
            now = self._position(stream, position, at_boundary=at_boundary)
            sink.mark(now, is_whole=at_boundary, is_idle=is_idle)
            sink.commit_when_due()
        if self._is_careful and stream.batch.bisector is None and at_boundary:
            self._end_care(stream)

    def _position(self, stream: TransactionalSession, passed: int, *, at_boundary: bool) -> Position:
        base, current = self._exactly.position, stream.transaction
        lsn, part = current.commit_lsn, current.part + 1
        ordinal: int | None = current.ordinal
        changes: int | None = current.ordinal
        if lsn < base.lsn or (lsn == base.lsn and base.ordinal is None):
            lsn, ordinal, part, changes = base.lsn, base.ordinal, base.part, base.changes
        elif at_boundary:
            ordinal, part = None, 0
        elif lsn == base.lsn:
            ordinal = max(current.ordinal, base.ordinal or 0)
        server = self._exactly.server
        mine = self._exactly.covering(lsn, ordinal, part, passed, server, current.events, changes)
        return replace(mine, recorded=self._recorded(is_new_pass=False))

    def _recorded(self, *, is_new_pass: bool) -> RecordedPosition | None:
        """Return how far the current session is recorded, or with ``is_new_pass`` the session that begins."""
        return self._context.output.recorder.recorded(is_new_pass=is_new_pass)

    def _end_care(self, stream: TransactionalSession) -> None:
        """Return to requests of many messages."""
        while not self._sink.flush(_WAIT_SECONDS):
            stream.pulse(0)
        if self._sink.is_clean:
            self._begin(is_careful=False, is_new_pass=False)

    def _may_split(self) -> bool:
        stream = self._stream
        if stream is None or stream.batch.routes:
            # The encoded messages already carry their part number.
            return False
        stream.transaction.part += 1
        return True


class DuplicateFilter:
    """Drops changes that Kafka already holds, until the frames are newer than a position.

    BEGIN and COMMIT are handled, and not recorded. The relation of each row is announced all the same.
    """

    def __init__(
        self, rows: RowHandler, transaction: OpenTransaction, position: Position, recorder: Recorder
    ) -> None:
        self._rows = rows
        self._transaction = transaction
        self._position = position
        self._recorder = recorder
        self.is_over = False
        #: Whether Kafka holds only a part of the current transaction, up to the ordinal of the position.
        self._is_partial = False

    def __call__(self, data: bytes) -> bytes | None:
        tag = data[PAYLOAD_OFFSET]
        if tag == _BEGIN:
            return self._begin(data)
        if self._is_partial:
            self._resume_when_reached()
        if not self._transaction.is_repeated or tag not in _DROPPED:
            return data
        if self._is_partial and tag in _CHANGES:
            self._count(data)
        else:
            self._rows.skip()
        return None

    def _begin(self, data: bytes) -> bytes:
        position, (commit_lsn,) = self._position, _lsn(data, BODY_OFFSET)
        self.is_over = commit_lsn > position.lsn
        self._transaction.is_repeated = not self.is_over
        self._is_partial = commit_lsn == position.lsn and position.ordinal is not None
        return data

    def _count(self, data: bytes) -> None:
        """Count a change as `RowHandler` does, up to the last change that Kafka holds."""
        if data[PAYLOAD_OFFSET] == _TRUNCATE:
            message = decode(data[PAYLOAD_OFFSET:])
            assert isinstance(message, Truncate)
            oids = message.relation_oids
        else:
            oids = (_oid(data, BODY_OFFSET)[0],)
        # Look up all of them, as `RowHandler` does: a route that is built once stays.
        routes = [self._rows.routes[oid] for oid in oids]
        if any(route is not None for route in routes):
            self._transaction.ordinal += 1
            self._resume_when_reached()

    def _resume_when_reached(self) -> None:
        current, position = self._transaction, self._position
        if current.ordinal < (position.ordinal or 0):
            return
        self._is_partial = current.is_repeated = False
        current.part, current.events = position.part, dict(position.events)
        self._recorder.resume(
            Transaction(current.commit_lsn, current.commit_time(), current.xid, current.ordinal)
        )


def transactions_of(settings: RelaySettings, sink: Sink, session: bytes) -> KafkaTransactions:
    """Return the Kafka transactions of this run: those of a `PositionStore` with --exactly-once."""
    return (
        PositionStore(settings, sink, session) if isinstance(sink, TransactionalSink) else KafkaTransactions()
    )


def around(context: RelayContext, inner: StreamHook) -> StreamHook:
    """Return the stream hook for backfills, wrapped in Kafka transactions with --exactly-once."""
    transactions = context.history.transactions
    if not isinstance(transactions, PositionStore):
        return inner
    return TransactionalStream(context, transactions, inner)


def wait_for_maker(connection: Connection, findings: PreflightState, on_wait: Callable[[str], None]) -> None:
    """Wait until no other relay is creating the slot, and none can while ``connection`` is open.

    A relay creates its slot before Kafka commits its snapshot. Until that commit, the slot looks like one
    that a killed relay left. Raises RefusedError.
    """
    if findings.slot is not None:
        wait_while(partial(obstacle_to_make, connection, findings.slot.name), on_wait)


def begin(context: RelayContext, connection: Connection, findings: PreflightState) -> PreflightState:
    """Drop a slot whose snapshot Kafka did not commit.

    Such a slot exists if the relay was killed between creating it and the commit. No LSN of that slot was
    confirmed, and read_committed consumers see no row of that snapshot.
    """
    slot = findings.slot
    if slot is None or not context.history.transactions.is_torn(slot):
        return findings
    execute(connection, "select pg_drop_replication_slot(%s)", slot.name)
    context.history.checkpoint.forget()
    return dataclasses.replace(findings, slot=None)
