"""The engine's answers to its workers: it records, numbers rows, widens schemas and stores dead letters."""

import hashlib
import json
from array import array
from collections.abc import Iterable
from typing import Any

from bwtui.errors import RowError
from bwtui.file_errors import file_failed
from bwtui.model.delivery import Receipt
from bwtui.pgoutput.messages import Relation
from bwtui.recording.format.batch import NoMessageReason
from bwtui.relay.context import RelayContext
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.snapshot.workers.messages import (
    BatchRecorded,
    BatchToRecord,
    DeadLetterMessage,
    DeadLetterStored,
    DeliveryReceipts,
    DependencyRecovered,
    ErrorReported,
    RouteDescription,
    RowNumberRange,
    RowNumbersRequest,
    WiderRoute,
    WiderSchemaRequest,
)
from bwtui.relay.snapshot.workers.receipt_order import ReceiptOrder
from bwtui.relay.snapshot.workers.snapshot_tasks import SnapshotTask
from bwtui.relay.snapshot.workers.worker_handle import WorkerHandle
from bwtui.source.snapshot import SnapshotTable

#: Number of row numbers that a worker gets at a time; those that it does not use stay unused.
_NUMBERS = 100_000


class EngineReplies:
    """Answers the messages of workers; the engine's main thread owns it."""

    def __init__(self, context: RelayContext, lsn: int, time_ms: int, routes: Iterable[TableRoute]) -> None:
        self._context = context
        self._lsn = lsn
        self._time_ms = time_ms
        #: Indexed by the number of the plan.
        self.routes = list(routes)
        #: The plan of each table for rows from now on.
        self._newest = {route.relation.oid: number for number, route in enumerate(self.routes)}
        #: The plan of each table whose schema can't have room: it refuses the rows that need it.
        self._without_room: dict[int, int] = {}
        self._places = ReceiptOrder(context.recorder.settled) if context.recorder is not None else None
        #: The last number that a row of each table may have.
        self.numbered: dict[str, int] = {}

    def plan_of(self, table: SnapshotTable) -> int:
        """Return the plan for rows of ``table``."""
        return self._newest[table.relation.oid]

    def route_of(self, table: SnapshotTable) -> TableRoute:
        """Return the engine's route of ``table``."""
        return self.routes[self.plan_of(table)]

    def answer(self, member: WorkerHandle, message: Any) -> None:
        """Answer one message. Raises BwtuiError, and StopRequested while waiting."""
        match message:
            case BatchToRecord():
                member.end.send(BatchRecorded(self._write(member, message)))
            case DeliveryReceipts():
                self._settle(member, message)
            case RowNumbersRequest():
                before = self.numbered.get(message.table, 0)
                self.numbered[message.table] = before + _NUMBERS
                member.end.send(RowNumberRange(before, before + _NUMBERS))
            case WiderSchemaRequest():
                member.end.send(self._widen(member, message.plan))
            case DeadLetterMessage():
                self._keep(member, message)
                member.end.send(DeadLetterStored())
            case ErrorReported():
                self._report_error(message)
            case DependencyRecovered():
                self._context.report.recovered(message.dependency)

    # -- the recording ---------------------------------------------------------------------------------------

    def _write(self, member: WorkerHandle, rows: BatchToRecord) -> list[tuple[int, int, int]]:
        """Record a batch; the result is empty once nothing is recorded any more."""
        recorder, route = self._context.recorder, self.routes[rows.plan]
        assert recorder is not None
        assert self._places is not None
        recorder.begin_table(route.relation, self._lsn, self._time_ms, rows.before)
        recorder.frames.extend(rows.frames)
        for frame, reason in rows.without:
            recorder.without(route, NoMessageReason(reason), frame)
        cells = zip(rows.keys, rows.values, strict=True)
        route.messages = [(key, value, self._time_ms, None) for key, value in cells]
        route.positions = rows.positions
        route.bytes = sum(len(cell or b"") for cells in (rows.keys, rows.values) for cell in cells)
        try:
            receipts = recorder.write_batch([route] if route.messages else [])
        finally:
            route.messages, route.positions, route.bytes = [], array("I"), 0
        for receipt in receipts:
            member.receipts[receipt.batch, receipt.section] = receipt
        self._places.expect(receipts)
        return [(receipt.batch, receipt.section, len(receipt.partitions)) for receipt in receipts]

    def _settle(self, member: WorkerHandle, settled: DeliveryReceipts) -> None:
        assert self._places is not None
        receipts: list[Receipt] = []
        for batch, section, partitions, offsets in settled.places:
            receipt = member.receipts.pop((batch, section))
            receipt.partitions, receipt.offsets = partitions, offsets
            receipts.append(receipt)
        self._places.take(receipts)

    def give_up(self, member: WorkerHandle) -> None:
        """Settle a worker's unsettled messages: no more delivery reports will arrive."""
        if member.receipts and self._places is not None:
            self._places.take(member.receipts.values())
            member.receipts.clear()

    # -- schemas and dead letters ----------------------------------------------------------------------------

    def _widen(self, member: WorkerHandle, plan: int) -> WiderRoute:
        """Return the plan with room of a table; a different worker may have requested it before."""
        relation = self.routes[plan].relation
        newest = self._newest[relation.oid]
        if newest == plan:
            newest = self._without_room.get(relation.oid) or self._make_wider(relation)
        member.sent_plans.add(newest)
        return WiderRoute(newest, RouteDescription.of(self.routes[newest]))

    def _make_wider(self, relation: Relation) -> int:
        wider = self._context.router.route(relation, with_room=True)
        assert wider is not None
        self.routes.append(wider)
        number = len(self.routes) - 1
        by_oid = self._newest if wider.refusal is None else self._without_room
        by_oid[relation.oid] = number
        return number

    def _keep(self, member: WorkerHandle, message: DeadLetterMessage) -> None:
        """Store a dead letter, unless it was stored when the range was read before."""
        letter, task = message.letter, member.task
        assert task is not None
        counters = self._context.report.table(letter["table"])
        # All fields except the time and the row's number, which differ when the range is read again.
        content = {key: value for key, value in letter.items() if key not in ("time", "ordinal")}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
        count = task.letters_seen[digest] = task.letters_seen.get(digest, 0) + 1
        if count <= task.stored_letters.get(digest, 0):
            return
        task.stored_letters[digest] = count
        counters.errors += 1
        error = RowError(letter["error"], message.hint)
        self._context.report.error("row", error, letter["table"])
        try:
            with self._context.report.account.during("state"):
                self._context.policy.keep(letter)
        except OSError as failure:
            raise file_failed(
                f"the dead letter of a row of {letter['table']} can't be written", failure, RowError
            ) from failure
        counters.dead_letters += 1

    def _report_error(self, message: ErrorReported) -> None:
        if message.kind == "row" and message.table is not None:
            self._context.report.table(message.table).errors += 1
        self._context.report.error(message.kind, message.fault.error, message.table, message.dependency)

    def note_repeats(self, task: SnapshotTask) -> list[str]:
        """Note on unkeyed tables that some of their rows may be in the topic twice; return these tables."""
        noted = []
        for table in task.tables:
            route = self.routes[self.plan_of(table)]
            if not route.key_columns:
                route.counters.note("unkeyed: rows that a lost worker had sent are in the topic twice")
                noted.append(route.relation.qualified_name)
        return noted
