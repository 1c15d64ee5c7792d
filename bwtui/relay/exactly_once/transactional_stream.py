"""Exactly-once delivery over all sessions of a run: where each starts, where Kafka transactions may end."""

from dataclasses import replace
from functools import partial
from typing import Protocol, cast

from bwtui.model.position import Position, RecordedPosition
from bwtui.model.status import State
from bwtui.relay.backfill.stream_hook import BackfillStream as BesideStream
from bwtui.relay.backfill.stream_hook import StreamHook
from bwtui.relay.batch_bisector import RestartFromConfirmed
from bwtui.relay.context import RelayContext
from bwtui.relay.exactly_once.duplicate_filter import DuplicateFilter
from bwtui.relay.exactly_once.duplicate_filter import FilterableSession as FrameStream
from bwtui.relay.exactly_once.position_store import PositionStore
from bwtui.relay.exactly_once.rejected_row_finder import Refused, RejectedRowFinder, WholeTransactionPolicy
from bwtui.sink.base import DeliveryFailure
from bwtui.sink.transactions import TransactionalSink

_WAIT_SECONDS = 0.05


class TransactionalSession(BesideStream, FrameStream, Protocol):
    """A session of the stream."""

    @property
    def careful_until(self) -> int: ...

    def without_care(self) -> None:
        """Leave careful mode and send batches of normal size."""


class TransactionalStream:
    """A `StreamHook` that wraps another one, and the whole stream, in Kafka transactions."""

    def __init__(self, context: RelayContext, exactly: PositionStore, inner: StreamHook) -> None:
        sink, policy = context.sink, context.policy
        assert isinstance(sink, TransactionalSink) and isinstance(policy, WholeTransactionPolicy)
        self._sink, self._policy = sink, policy
        self._context = context
        self._exactly = exactly
        self._inner = inner
        self._stream: TransactionalSession | None = None
        #: Rows that Kafka is known to reject, and whether this session searches for more of them.
        self._refused: Refused = {}
        self._is_careful = False
        sink.may_split = self._may_split

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
            stream.batch.careful = RejectedRowFinder(
                self._sink, self._policy, stream.while_settling, self._refused, self._context.recorder
            )
        else:
            session.without_care()
        position = self._begin(is_careful=is_careful, is_new_pass=True)
        self._exactly.check_tables(position)
        self._exactly.check_history(position)
        # A different relay may have sent more changes since this one read the position.
        self._context.checkpoint.remember_sent(position.lsn + 1)
        # A chunk that was sent but not committed is sent again.
        self._exactly.position, self._exactly.chunks = position, dict(position.chunks)
        recorder = self._context.recorder
        if recorder is not None:
            recorder.begin_pass("stream", self._exactly.start_lsn, position)
        DuplicateFilter(session, position, recorder)
        self._inner.begin_session(stream)

    def _begin(self, *, is_careful: bool, is_new_pass: bool) -> Position:
        context = self._context
        ask = partial(context.patience.ask, context.destination.service.name)
        recorded = self._recorded(is_new_pass=is_new_pass)
        producer, position = self._exactly.begin(ask, one_by_one=is_careful, recorded=recorded)
        self._sink.begin(producer, one_by_one=is_careful)
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
        if stream.batch.careful is not None:
            failures = self._policy.undelivered(self.claim_failures(sink.take_failures()))
            if failures:
                raise RestartFromConfirmed(failures)
        if sink.has_uncommitted:
            now = self._position(stream, position, at_boundary=at_boundary)
            sink.mark(now, is_whole=at_boundary, is_idle=is_idle)
            sink.commit_when_due()
        if self._is_careful and stream.batch.careful is None and at_boundary:
            self._end_care(stream)

    def _position(self, stream: TransactionalSession, passed: int, *, at_boundary: bool) -> Position:
        base, rows = self._exactly.position, stream.rows
        lsn, part = rows.commit_lsn, rows.part + 1
        ordinal: int | None = rows.ordinal
        changes: int | None = rows.ordinal
        if lsn < base.lsn or (lsn == base.lsn and base.ordinal is None):
            lsn, ordinal, part, changes = base.lsn, base.ordinal, base.part, base.changes
        elif at_boundary:
            ordinal, part = None, 0
        elif lsn == base.lsn:
            ordinal = max(rows.ordinal, base.ordinal or 0)
        server = self._exactly.server
        mine = self._exactly.mine(lsn, ordinal, part, passed, server, rows.events, changes)
        return replace(mine, recorded=self._recorded(is_new_pass=False))

    def _recorded(self, *, is_new_pass: bool) -> RecordedPosition | None:
        """Return how far the current session is recorded, or with ``is_new_pass`` the session that begins."""
        recorder = self._context.recorder
        return None if recorder is None else recorder.recorded(is_new_pass=is_new_pass)

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
        stream.rows.part += 1
        return True
