"""Manage the workers of a snapshot: the engine assigns tasks, and answers.

The engine owns topics, schemas, recording, dead letters, row numbers and counters. If a worker is lost, the
engine reports it, and a different worker reads its task again: rows of a snapshot have no order among each
other, and under one snapshot a range always has the same rows. The engine itself reads what no worker can.
"""

import selectors
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.model.status import SnapshotWorker
from bwtui.relay.context import RelayContext
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.samples import SampledCommit
from bwtui.relay.snapshot.workers.engine_replies import EngineReplies
from bwtui.relay.snapshot.workers.messages import (
    Heartbeat,
    Piece,
    RouteDescription,
    StartWorker,
    TableProgress,
    UnitLocked,
    UnitRequest,
    WorkerFailed,
    WorkUnit,
)
from bwtui.relay.snapshot.workers.snapshot_tasks import SnapshotTask
from bwtui.relay.snapshot.workers.worker_handle import LocalWorkerHandle, WorkerHandle
from bwtui.relay.snapshot.workers.worker_reaper import WorkerReaper
from bwtui.relay.watch.activity_clock import Activity
from bwtui.source.snapshot import SnapshotTable

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
        self._report = context.report
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
        self._reaper = WorkerReaper(context.report, pulse)
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
        task.letters_seen.clear()
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
        if is_busy and self._context.late is not None:
            self._context.late.expect()
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
        self._report.account.turn_to(self._activity(beat))
        samples = self._context.samples
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
