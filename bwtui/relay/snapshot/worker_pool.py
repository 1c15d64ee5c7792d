"""Manage the workers of a snapshot: the engine assigns tasks, and answers.

The engine owns topics, schemas, recording, dead letters, row numbers and counters. If a worker is lost, the
engine reports it, and a different worker reads its task again: rows of a snapshot have no order among each
other, and under one snapshot a range always has the same rows. The engine itself reads what no worker can.
"""

import hashlib
import json
import os
import selectors
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bwtui.errors import BwtuiError, ConnectionFailed, RowError
from bwtui.file_errors import file_failed
from bwtui.model.delivery import Receipt
from bwtui.model.status import SnapshotWorker
from bwtui.pgoutput.messages import Relation
from bwtui.recording.payloads import NoMessageReason
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows.samples import SampledCommit
from bwtui.relay.snapshot.worker_handle import LocalWorkerHandle, SnapshotTask, WorkerHandle
from bwtui.relay.snapshot.worker_protocol import (
    BatchToRecord,
    DeadLetterMessage,
    DeliveryReceipts,
    DependencyRecovered,
    ErrorReported,
    Heartbeat,
    Piece,
    RouteDescription,
    RowNumbersRequest,
    StartWorker,
    TableProgress,
    UnitLocked,
    UnitRequest,
    WiderSchemaRequest,
    WorkerFailed,
    WorkUnit,
)
from bwtui.relay.state.activity_clock import Activity
from bwtui.relay.state.run_state import RunState
from bwtui.relay.stream.context import RelayContext
from bwtui.settings import RelaySettings
from bwtui.source.snapshot import SnapshotTable, TableSize, page_conditions

#: A worker costs half a second and 50 MB: by default none is started for less than this much data.
WORKER_BYTES = 64 << 20
#: Maximum workers by default: with the engine they take 300 MB.
_MOST_WORKERS = 3
#: Maximum size of a range, and its minimum size if it is for an additional worker.
_MOST_BYTES, _LEAST_BYTES = 64 << 20, 8 << 20
#: Number of ranges for each worker, so that the last ones end at about the same time.
_RANGES_EACH = 4
#: Maximum number of small tables that are read as one task.
_MOST_TABLES = 100


def tasks_for(
    tables: Sequence[SnapshotTable], sizes: Mapping[int, TableSize], workers: int, server_version: int
) -> list[SnapshotTask]:
    """Return the tasks, largest tables first; small tables are combined."""
    by_size = sorted(tables, key=lambda table: sizes[table.relation.oid].bytes, reverse=True)
    total = sum(size.bytes for size in sizes.values())
    most = min(_MOST_BYTES, max(_LEAST_BYTES, total // (workers * _RANGES_EACH)))
    groups: list[list[SnapshotTable]] = []
    group: list[SnapshotTable] = []
    group_bytes = 0
    for table in by_size:
        size = sizes[table.relation.oid]
        ranges = page_conditions(size, most, server_version)
        if len(ranges) > 1 or size.bytes >= most:
            groups += [[replace(table, pages=pages)] for pages in ranges]
            continue
        if group and (group_bytes + size.bytes > most or len(group) >= _MOST_TABLES):
            groups.append(group)
            group, group_bytes = [], 0
        group.append(table)
        group_bytes += size.bytes
    if group:
        groups.append(group)
    return [SnapshotTask(number, members) for number, members in enumerate(groups, start=1)]


def cores() -> int:
    """Return how many cores this process may use."""
    ours = getattr(os, "sched_getaffinity", None)
    return len(ours(0)) if ours is not None else os.cpu_count() or 1


def workers_for(settings: RelaySettings, cores: int, sizes: Mapping[int, TableSize]) -> int:
    """Return the configured number of workers, or the one that pays off; with 1 the relay reads itself."""
    if settings.snapshot_workers is not None:
        return settings.snapshot_workers
    return max(1, min(cores, _MOST_WORKERS, sum(size.bytes for size in sizes.values()) // WORKER_BYTES))


#: Maximum number of messages whose places wait for those of an earlier batch, at 12 bytes each.
_MOST_UNSETTLED = 1_000_000


class ReceiptOrder:
    """Passes receipts to ``write`` in the order of their batches, whatever the order of the workers."""

    def __init__(self, write: Callable[[list[Receipt]], None]) -> None:
        self._write = write
        #: In the order in which they were recorded; True if the delivery report is complete.
        self._recorded: dict[tuple[int, int], tuple[Receipt, bool]] = {}
        self._messages = 0

    def expect(self, receipts: Iterable[Receipt]) -> None:
        """Add recorded batches."""
        for receipt in receipts:
            self._recorded[receipt.batch, receipt.section] = receipt, False

    def take(self, receipts: Iterable[Receipt]) -> None:
        """Take complete receipts, or those that get no more delivery reports; write what is in order."""
        for receipt in receipts:
            self._recorded[receipt.batch, receipt.section] = receipt, True
            self._messages += len(receipt.partitions)
        ready = []
        for receipt, is_complete in self._recorded.values():
            # This bounds the memory. A reader then treats the places of the earlier batch as unknown.
            if not is_complete and self._messages <= _MOST_UNSETTLED:
                break
            if is_complete:
                ready.append(receipt)
        for receipt in ready:
            del self._recorded[receipt.batch, receipt.section]
            self._messages -= len(receipt.partitions)
        if ready:
            self._write(ready)


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
        self._places = ReceiptOrder(context.output.recorder.take_settled)
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
                member.end.send(self._write(member, message))
            case DeliveryReceipts():
                self._settle(member, message)
            case RowNumbersRequest():
                before = self.numbered.get(message.table, 0)
                self.numbered[message.table] = before + _NUMBERS
                member.end.send((before, before + _NUMBERS))
            case WiderSchemaRequest():
                member.end.send(self._widen(member, message.plan))
            case DeadLetterMessage():
                self._keep(member, message)
                member.end.send(None)
            case ErrorReported():
                self._report_error(message)
            case DependencyRecovered():
                self._context.run.report.recovered(message.dependency)

    # -- the recording ---------------------------------------------------------------------------------------

    def _write(self, member: WorkerHandle, rows: BatchToRecord) -> list[tuple[int, int, int]]:
        """Record a batch; the result is empty once nothing is recorded any more."""
        recorder, route = self._context.output.recorder, self.routes[rows.plan]
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
        receipts: list[Receipt] = []
        for batch, section, partitions, offsets in settled.places:
            receipt = member.receipts.pop((batch, section))
            receipt.partitions, receipt.offsets = partitions, offsets
            receipts.append(receipt)
        self._places.take(receipts)

    def give_up(self, member: WorkerHandle) -> None:
        """Settle a worker's unsettled messages: no more delivery reports will arrive."""
        if member.receipts:
            self._places.take(member.receipts.values())
            member.receipts.clear()

    # -- schemas and dead letters ----------------------------------------------------------------------------

    def _widen(self, member: WorkerHandle, plan: int) -> tuple[int, RouteDescription]:
        """Return the plan with room of a table; a different worker may have requested it before."""
        relation = self.routes[plan].relation
        newest = self._newest[relation.oid]
        if newest == plan:
            newest = self._without_room.get(relation.oid) or self._make_wider(relation)
        member.sent_plans.add(newest)
        return newest, RouteDescription.of(self.routes[newest])

    def _make_wider(self, relation: Relation) -> int:
        wider = self._context.services.router.route(relation, with_room=True)
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
        counters = self._context.run.report.table(letter["table"])
        # All fields except the time and the row's number, which differ when the range is read again.
        content = {key: value for key, value in letter.items() if key not in ("time", "ordinal")}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
        count = task.new_letters[digest] = task.new_letters.get(digest, 0) + 1
        if count <= task.stored_letters.get(digest, 0):
            return
        task.stored_letters[digest] = count
        counters.errors += 1
        error = RowError(letter["error"], message.hint)
        self._context.run.report.error("row", error, letter["table"])
        try:
            with self._context.run.report.clock.during("state"):
                self._context.output.policy.keep(letter)
        except OSError as failure:
            raise file_failed(
                f"the dead letter of a row of {letter['table']} can't be written", failure, RowError
            ) from failure
        counters.dead_letters += 1

    def _report_error(self, message: ErrorReported) -> None:
        if message.kind == "row" and message.table is not None:
            self._context.run.report.table(message.table).errors += 1
        self._context.run.report.error(message.kind, message.fault.error, message.table, message.dependency)

    def note_repeats(self, task: SnapshotTask) -> list[str]:
        """Note on unkeyed tables that some of their rows may be in the topic twice; return these tables."""
        noted = []
        for table in task.tables:
            route = self.routes[self.plan_of(table)]
            if not route.key_columns:
                route.counters.note("unkeyed: rows that a lost worker had sent are in the topic twice")
                noted.append(route.relation.qualified_name)
        return noted


#: Time for workers to end before the wait is reported.
_REPORT_SECONDS = 10.0
#: Timeout of a relay that ends and waits for workers that it can't end itself.
_LAST_SECONDS = 3.0
_REAP_SECONDS = 0.1


class WorkerReaper:
    """Tracks workers that may still send."""

    def __init__(self, report: RunState, pulse: Callable[[float], None]) -> None:
        """``pulse(seconds)`` waits, and raises to stop."""
        self._report = report
        self._pulse = pulse
        self._leaving: list[WorkerHandle] = []

    def add(self, member: WorkerHandle) -> None:
        """Add a worker that was killed."""
        self._leaving.append(member)

    def check(self) -> None:
        """Raise ConnectionFailed if it will never be known whether one of them has ended."""
        for member in self._still_running():
            if member.is_cut_off:
                raise member.unknown_end_error()

    def wait(self) -> None:
        """Wait until each is known to have ended.

        Raises the errors of `check` and ``pulse``; before that, workers that may still run are reported.
        """
        try:
            self._wait()
        except BaseException as error:
            self.report_running(error)
            raise

    def report_running(self, error: BaseException) -> None:
        """Give workers a moment to end, and report those that may still run; ``error`` ends the relay."""
        until = time.monotonic() + _LAST_SECONDS
        while self._still_running() and time.monotonic() < until:
            time.sleep(_REAP_SECONDS)
        for member in self._leaving:
            error_of_worker = member.unknown_end_error()
            if str(error_of_worker) != str(error):
                self._report.error("worker", error_of_worker)

    def _still_running(self) -> list[WorkerHandle]:
        self._leaving = [member for member in self._leaving if not member.has_ended]
        return self._leaving

    def _wait(self) -> None:
        report_at = time.monotonic() + _REPORT_SECONDS
        self._report.clock.turn_to("room")
        while self._still_running():
            names = ", ".join(member.name for member in self._leaving)
            self._report.detail = f"waiting for confirmation that {names} has ended"
            self.check()
            if time.monotonic() > report_at:
                report_at = float("inf")
                for member in self._leaving:
                    self._report.error("worker", member.awaited_end_error())
            self._pulse(_REAP_SECONDS)


#: Timeout for a silent worker, which sends a heartbeat four times a second.
HANGS_SECONDS = 10.0
#: The timeout before its first heartbeat: on a busy machine the start takes a while.
_BEGINS_SECONDS = 60.0
#: Maximum number of workers lost over one task, and of workers lost before they read anything.
_MOST_LOSSES = 3
_IF_AGAIN = (
    "if this repeats, check the system log for out-of-memory kills, and use fewer "
    "workers with --snapshot-workers"
)
_IF_AGAIN_FAR = (
    "if this repeats, check the logs of Spark and of that machine, or take the snapshot "
    "without --spark-master"
)
_LOOK_SECONDS = 0.1
_NOTHING = TableProgress(0, 0, 0)


class WorkerPool:
    """Has workers read ``tasks``."""

    def __init__(
        self,
        context: RelayContext,
        begin: StartWorker,
        tasks: Sequence[SnapshotTask],
        routes: Iterable[TableRoute],
        pulse: Callable[[float], None],
        start: Callable[[StartWorker], WorkerHandle] = LocalWorkerHandle,
    ) -> None:
        """``routes`` are those of all tables. ``pulse(seconds)`` waits, calls `poll`, and raises to stop.

        ``start`` starts a worker; it raises OSError.
        """
        self._context = context
        self._report = context.run.report
        self._begin = begin
        self._pulse = pulse
        self._new_member = start
        self._is_far = is_far = start is not LocalWorkerHandle
        self._if_again = _IF_AGAIN_FAR if is_far else _IF_AGAIN
        self._otherwise = "without --spark-master" if is_far else "with --snapshot-workers 1"
        self._waiting = deque(tasks)
        #: Tasks that no worker can read.
        self._unreadable: list[SnapshotTask] = []
        self.answers = EngineReplies(context, begin.lsn, begin.time_ms, routes)
        self._members: list[WorkerHandle] = []
        #: The worker of each unanswered heartbeat.
        self._unanswered: list[WorkerHandle] = []
        #: Dismissed workers not known to have ended: one on a different machine may still send.
        self._reaper = WorkerReaper(context.run.report, pulse)
        #: Number of unfinished tasks of each table.
        self._unfinished_tasks: dict[str, int] = {}
        for task in tasks:
            for name in task.names:
                self._unfinished_tasks[name] = self._unfinished_tasks.get(name, 0) + 1
        #: Messages of workers that are gone.
        self._answered_before = 0
        self._lost_idle = 0

    def run(self) -> list[SnapshotTask]:
        """Return the tasks that the engine has to read itself, once every row of the others is durable.

        Raises BwtuiError, and the errors of ``pulse``. When it returns, no worker is left that could send
        anything.
        """
        try:
            self._start(self._begin.share)
            while self._members and (self._waiting or any(member.task for member in self._members)):
                self._wait()
                self._pulse(0)
                self._reaper.check()
                for member in list(self._members):
                    self._handle_messages(member)
        except BaseException as error:
            self._dismiss_all()
            self._reaper.report_running(error)
            raise
        self._dismiss_all()
        self._reaper.wait()
        return [*self._unreadable, *self._waiting]

    # -- polled while the engine waits -----------------------------------------------------------------------

    def poll(self, *, is_ours: bool) -> None:
        """Handle the messages of workers; answer heartbeats if the snapshot ``is_ours`` for sure."""
        for member in self._members:
            for beat in member.poll():
                self._take(member, beat)
                self._unanswered.append(member)
        if is_ours:
            # This includes earlier heartbeats, from when that was uncertain: a worker without an answer sends
            # no more.
            for member in self._unanswered:
                if member in self._members:
                    member.answer_heartbeat()
            self._unanswered.clear()
        self._report_workers()

    @property
    def queued(self) -> int:
        """Messages of all workers that are in flight."""
        return sum(member.beat.queued for member in self._members if member.beat)

    @property
    def answered(self) -> int:
        """Messages of all workers that became durable, or failed."""
        now = sum(member.beat.answered for member in self._members if member.beat)
        return self._answered_before + now

    @property
    def waited(self) -> float:
        """Age of the oldest waiting message in seconds; 0 if none is waiting."""
        return max((member.beat.waited for member in self._members if member.beat), default=0.0)

    @property
    def outage(self) -> str | None:
        """Why one of the workers can't deliver anything at present."""
        for member in self._members:
            if member.beat and member.beat.outage:
                # The relay itself may be able to reach it.
                return member.beat.outage + (f", as seen from {member.host}" if member.host else "")
        return None

    # -- workers ---------------------------------------------------------------------------------------------

    def _start(self, count: int) -> None:
        """Start workers; failures are reported once the number of started workers is known."""
        errors: list[BwtuiError] = []
        for _ in range(count):
            try:
                self._members.append(self._new_member(self._begin))
            except OSError as error:
                errors.append(
                    ConnectionFailed(f"the process can't be started: {error.strerror}", self._hint())
                )
        if errors:
            self._do_without(errors[0], len(errors))

    def _wait(self) -> None:
        """Wait until a message from a worker arrives."""
        if any(member.messages for member in self._members):
            return
        with selectors.DefaultSelector() as selector:
            for member in self._members:
                if not member.end.is_over:
                    selector.register(member.end, selectors.EVENT_READ)
            selector.select(_LOOK_SECONDS)

    def _handle_messages(self, member: WorkerHandle) -> None:
        """Handle a worker's messages, and check whether it is still there."""
        while member.messages:
            self._handle(member, member.messages.popleft())
            if member not in self._members:
                return
        if member.is_lost:
            self._lose(member, "")
        elif member.silent_seconds > (most := HANGS_SECONDS if member.beat else _BEGINS_SECONDS):
            self._lose(member, f"sent nothing for {most:.0f} s")
        elif member.is_idle and self._waiting:
            self._assign(member)

    def _handle(self, member: WorkerHandle, message: Any) -> None:
        match message:
            case UnitRequest():
                self._take(member, message.beat)
                self._finish(member)
                member.is_idle = True
                self._describe()
            case UnitLocked():
                self._leave_over(member, message.table)
            case WorkerFailed() if message.at_start:
                self._dismiss(member)
                self._do_without(message.fault.error, place=f" on {member.host}" if member.host else "")
            case WorkerFailed() if message.in_session:
                self._lose(member, "lost its session with PostgreSQL")
            case WorkerFailed():
                raise message.fault.error
            case _:
                self.answers.answer(member, message)

    def _finish(self, member: WorkerHandle) -> None:
        task, member.task = member.task, None
        member.progress = {}
        for name in task.names if task is not None else ():
            self._unfinished_tasks[name] -= 1
            if not self._unfinished_tasks[name]:
                self._report.table(name).snapshot_state = "done"

    def _assign(self, member: WorkerHandle) -> None:
        task = self._waiting.popleft()
        member.task, member.is_idle, member.progress = task, False, {}
        task.new_letters.clear()
        pieces = [Piece(table, self.answers.plan_of(table)) for table in task.tables]
        new = {piece.plan for piece in pieces} - member.sent_plans
        plans = {number: RouteDescription.of(self.answers.routes[number]) for number in new}
        member.sent_plans |= new
        for table in task.tables:
            self._begin_table(table)
        member.end.send(WorkUnit(task.number, pieces, plans))
        self._describe()

    def _begin_table(self, table: SnapshotTable) -> None:
        self._report.table(table.relation.qualified_name).begin_snapshot()

    def _describe(self) -> None:
        names = sorted({name for member in self._members if member.task for name in member.task.names})
        if not names:
            return
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        connected, total = sum(member.beat is not None for member in self._members), len(self._members)
        if self._is_far and connected < total:
            # The others wait for a core, or for Spark.
            more += f" by {connected} of {total} workers so far"
        self._report.detail = f"snapshot of {', '.join(names[:3])}{more}"

    # -- lost and dismissed workers --------------------------------------------------------------------------

    def _do_without(self, error: BwtuiError, count: int = 1, place: str = "") -> None:
        """Report that ``count`` workers could not start, and that the others, or the relay, do their part."""
        other_workers = len(self._members)
        substitute = (
            f"{other_workers} other workers"
            if other_workers > 1
            else "the other worker"
            if other_workers
            else "the relay"
        )
        failed = "a snapshot worker" if count == 1 else f"{count} snapshot workers"
        reason = f"{failed}{place} could not start; {substitute} will read instead: {error.message}"
        self._report.error("notice", type(error)(reason, error.hint))

    def _leave_over(self, member: WorkerHandle, table: str) -> None:
        task, member.task = member.task, None
        assert task is not None
        self._unreadable.append(task)
        reason = (
            f"another session waits to lock {table}, so the relay itself, which already holds a "
            "lock on it, reads it"
        )
        hint = f"no action needed; the session that waits for {table} continues when the snapshot is complete"
        self._report.error("notice", ConnectionFailed(reason, hint))

    def _lose(self, member: WorkerHandle, why: str) -> None:
        task = member.task
        for name, done in member.progress.items():
            self._report.table(name).snapshot_rows -= done.rows
        how = self._dismiss(member)
        self._reaper.check()
        process = f"a snapshot worker ({member.name}) {why or how}"
        if task is not None:
            self._read_again(task, process)
        else:
            self._lost_idle += 1
            self._report.error("worker", ConnectionFailed(f"{process} while it was idle", self._hint()))
        # Whatever ends workers that read nothing would end the next one as well.
        if self._waiting and self._lost_idle < _MOST_LOSSES:
            self._start(1)

    def _read_again(self, task: SnapshotTask, process: str) -> None:
        names = ", ".join(task.names[:3]) + (" …" if len(task.names) > 3 else "")
        description = f"{process} while it was reading {names}"
        task.losses += 1
        if task.losses >= _MOST_LOSSES:
            many = f"{description}, like {task.losses - 1} workers before it"
            raise ConnectionFailed(many, f"start the relay again {self._otherwise}, and check its log")
        unkeyed = self.answers.note_repeats(task)
        self._report.error(
            "worker", ConnectionFailed(f"{description}: those rows will be read again", self._hint(unkeyed))
        )
        self._waiting.appendleft(task)

    def _hint(self, unkeyed: Sequence[str] = ()) -> str:
        """Return the hint for a lost worker; ``unkeyed`` are tables without a key whose rows it sent."""
        so = "if Kafka writes a late request of that worker after a newer row, the relay sends the key again"
        if unkeyed:
            so += (
                "; rows that it had sent of tables without a key are in their topics twice "
                f"({', '.join(unkeyed)})"
            )
        return f"{so}; {self._if_again}"

    def _dismiss_all(self) -> None:
        for member in list(self._members):
            self._dismiss(member)
        self._report_workers()

    def _dismiss(self, member: WorkerHandle) -> str:
        """End a worker; the unknown places of its messages stay unknown."""
        if member in self._members:
            self._members.remove(member)
            self._answered_before += member.beat.answered if member.beat else 0
        is_busy = member.task is not None
        how = member.kill()
        if is_busy and self._context.history.late is not None:
            self._context.history.late.expect()
        if not member.has_ended:
            self._reaper.add(member)
        if member.beat is not None and not member.host:
            self._report.workers_cpu_seconds += member.beat.cpu_seconds
        self.answers.give_up(member)
        return how

    # -- heartbeats ------------------------------------------------------------------------------------------

    def _take(self, member: WorkerHandle, beat: Heartbeat) -> None:
        member.beat = beat
        if member.task is not None and beat.unit == member.task.number:
            for name, done in beat.progress.items():
                self._count(name, member.progress.get(name, _NOTHING), done)
                member.progress[name] = done
        # Each is a sample of the workers' activity, so the relay's time is divided as theirs is.
        self._report.clock.turn_to(self._activity(beat))
        samples = self._context.output.samples
        samples.refill()
        for plan, fields, ordinal in beat.samples:
            if samples.budget > 0:
                commit = SampledCommit(self._begin.lsn, 0, self._begin.time_ms / 1000, ordinal)
                samples.take("snapshot", self.answers.routes[plan], None, None, fields, commit)

    def _activity(self, beat: Heartbeat) -> Activity:
        # The judge measures this process's own processor time to recognize computation.
        return "copy" if beat.activity in ("work", "begin", "state") else beat.activity

    def _count(self, name: str, before: TableProgress, now: TableProgress) -> None:
        counters, report = self._report.table(name), self._report
        rows, messages = now.rows - before.rows, now.messages - before.messages
        counters.snapshot_rows += rows
        counters.messages += messages
        counters.bytes += now.bytes - before.bytes
        report.rows_read += rows
        report.messages += messages

    def _report_workers(self) -> None:
        self._report.snapshot_workers = tuple(
            SnapshotWorker(
                member.pid,
                tuple(member.task.names[:3]) if member.task else (),
                sum(done.rows for done in member.progress.values()),
                member.beat.resident_bytes if member.beat else 0,
                member.beat.cpu_seconds if member.beat else 0.0,
                member.host,
            )
            for member in self._members
            if member.pid
        )
