"""A worker's `SnapshotCopier`: the engine assigns row numbers and schemas, and writes the recording."""

import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.pgoutput.messages import Field, Relation
from bwtui.recording.format.batch import NoMessageReason
from bwtui.relay.batch import BATCH_ROWS
from bwtui.relay.policy import RowPolicy
from bwtui.relay.recording.row_recorder import RowRecorder
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.run_state import RunState
from bwtui.relay.samples import SampledCommit, Samples, cut_long
from bwtui.relay.snapshot.snapshot_copier import SnapshotCopier
from bwtui.relay.snapshot.workers.engine_channel import EngineChannel
from bwtui.relay.snapshot.workers.messages import (
    BatchRecorded,
    BatchToRecord,
    DeliveryReceipts,
    Piece,
    RouteDescription,
    RowNumberRange,
    RowNumbersRequest,
    StartWorker,
    UnitLocked,
    WiderRoute,
    WiderSchemaRequest,
)
from bwtui.settings import RelaySettings
from bwtui.sink.base import Sink
from bwtui.sink.destination import SinkService
from bwtui.source.connection import Connection
from bwtui.source.snapshot import lock_at_once

#: Maximum samples between two heartbeats.
_SAMPLES = 12
_LOOK_SECONDS = 0.05


@dataclass(slots=True)
class WorkerContext:
    """The part of a `bwtui.relay.context.RelayContext` that a worker has."""

    settings: RelaySettings
    report: RunState
    sink: Sink
    service: SinkService
    policy: RowPolicy
    samples: Samples
    session: bytes
    recorder: RowRecorder | None
    #: The engine ends its workers, so they never stop on request.
    stop_requested: Callable[[], bool] = bool


class PieceCopier(SnapshotCopier):
    """Sends the rows of one piece after another."""

    def __init__(self, context: WorkerContext, begin: StartWorker, line: EngineChannel) -> None:
        super().__init__(context, begin.lsn, begin.time_ms, lambda: None, begin.share)
        self._line = line
        self._plans: dict[int, TableRoute] = {}
        #: For each table, the last number used and the last number that its rows may have.
        self._numbers: dict[str, tuple[int, int]] = {}
        self._is_within_row = False
        self._plan = 0

    def take_plans(self, plans: Mapping[int, RouteDescription]) -> None:
        """Build routes from new plans."""
        for number, plan in plans.items():
            self._plans[number] = plan.route(self._context.settings, self._context.report)

    def read(self, connection: Connection, pieces: Sequence[Piece]) -> None:
        """Send all rows of ``pieces``, and return when every one of them is durable.

        If not all of their tables can be locked, nothing is read. Raises BwtuiError and psycopg2.Error.
        """
        locked = lock_at_once(connection, [piece.table for piece in pieces])
        if locked is not None:
            self._line.send(UnitLocked(locked.relation.qualified_name))
            return
        for piece in pieces:
            self._plan = piece.plan
            route = self._plans[piece.plan]
            self._routes[route.topic] = route
            self._copy(connection, piece.table, route)
            name = piece.table.relation.qualified_name
            self._numbers[name] = self._ordinal, self._numbers[name][1]
        self._wait_until_durable()

    @property
    def plan(self) -> int:
        """The number of the current plan."""
        return self._plan

    @property
    def waited_since(self) -> float:
        """When the oldest message began to wait, by the monotonic clock; 0 if none is waiting."""
        return self._acks.oldest_since

    def number_before(self, frames: int) -> int:
        """Return the number of the row before the batch of ``frames`` rows that is handed over."""
        return self._ordinal - frames - self._is_within_row

    def _first_ordinal(self, table: str) -> int:
        before, last = self._numbers.get(table, (0, 0))
        if last - before < BATCH_ROWS:
            numbers = self._line.ask(RowNumbersRequest(table), RowNumberRange)
            before, last = numbers.before, numbers.last
            self._numbers[table] = before, last
        return before

    def wait_until_it_may(self) -> None:
        """Return once messages may be handed over; deliveries are not handled meanwhile."""
        with self._context.report.account.during("room"):
            while not self._line.may_send:
                time.sleep(_LOOK_SECONDS)

    def _may_send(self) -> bool:
        return self._line.may_send

    def _flush(self) -> None:
        while not self._line.may_send:
            self._context.report.account.turn_to("room")
            self.pulse(0.1)
        super()._flush()
        if self._route is None:
            return
        # If a batch ends while a row is handled, that row is the first one of the next batch.
        name, before = self._route.relation.qualified_name, self._ordinal - self._is_within_row
        self._numbers[name] = before, self._numbers[name][1]
        self._ordinal = self._first_ordinal(name) + self._is_within_row

    def _wider(self, route: TableRoute) -> TableRoute:
        self._is_within_row = True
        try:
            return super()._wider(route)
        finally:
            self._is_within_row = False

    def _with_room(self, route: TableRoute) -> TableRoute:
        wider = self._line.ask(WiderSchemaRequest(self._plan), WiderRoute)
        self.take_plans({wider.number: wider.plan})
        if wider.plan.refusal is None:
            self._plan = wider.number
        return self._plans[wider.number]


class WorkerRecorder:
    """A worker's recorder: the engine writes each batch before it is sent, and its delivery reports."""

    def __init__(self, line: EngineChannel) -> None:
        self.frames: list[bytes] = []
        self.reading: PieceCopier | None = None
        self._line = line
        self._without: list[tuple[int, int]] = []
        self._before = 0
        self.durable_lsn = 0

    def begin_table(self, relation: Relation, lsn: int, time_ms: int) -> None:
        """Do nothing: the engine gets the table with each batch."""

    def without(self, route: TableRoute, reason: NoMessageReason) -> None:
        """Note that the current row makes no message."""
        self._without.append((len(self.frames), int(reason)))

    def write_batch(self, routes: Sequence[TableRoute]) -> list[Receipt]:
        """Let the engine write the batch, and wait for it."""
        reading = self.reading
        assert reading is not None and len(routes) <= 1
        messages = routes[0].messages if routes else []
        positions = routes[0].positions if routes else array("I")
        if not self.frames:
            return []
        keys, values = [message[0] for message in messages], [message[1] for message in messages]
        without = [entry for entry in self._without if entry[0] < len(self.frames)]
        before = reading.number_before(len(self.frames))
        rows = BatchToRecord(reading.plan, before, self.frames, keys, values, positions, without)
        places = self._line.ask(rows, BatchRecorded).places
        # The engine may have stood still before it wrote the batch.
        reading.wait_until_it_may()
        self.frames.clear()
        self._without.clear()
        return [Receipt(*place) for place in places]

    def settle(self, *, idle: bool = False) -> None:
        """Do nothing: the engine settles."""

    def settled(self, receipts: list[Receipt]) -> None:
        """Send the places of messages to the engine."""
        places = [(r.batch, r.section, r.partitions, r.offsets) for r in receipts]
        self._line.send(DeliveryReceipts(places))

    def given_up(self, receipts: list[Receipt]) -> None:
        """Do nothing: the engine does this when it ends the worker."""

    def reach(self, lsn: int) -> None:
        """Do nothing: the engine does this when all workers are done."""


class WorkerSamples(Samples):
    """Samples that the engine decodes: only a few at a time, with long values cut."""

    def __init__(self) -> None:
        super().__init__()
        self.reading: PieceCopier | None = None
        self._taken: deque[tuple[int, Sequence[Field], int]] = deque(maxlen=_SAMPLES)

    def take(
        self,
        operation: str,
        route: TableRoute,
        key: bytes | None,
        before: Sequence[Field] | None,
        after: Sequence[Field] | None,
        commit: SampledCommit,
        span: DeliverySpan | None = None,
    ) -> None:
        """Keep one row until the next heartbeat."""
        self.budget -= 1
        fields = cut_long(after)
        if self.reading is not None and fields is not None:
            self._taken.append((self.reading.plan, fields, commit.ordinal))

    def taken(self) -> list[tuple[int, Sequence[Field], int]]:
        """Return the samples since the last call; any thread may call it."""
        samples = []
        while self._taken:
            samples.append(self._taken.popleft())
        return samples
