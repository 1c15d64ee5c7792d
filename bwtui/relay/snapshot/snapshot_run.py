"""Take the first snapshot: copy every table under the exported snapshot, in one or more processes."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bwtui.blocking import check_stop
from bwtui.errors import BwtuiError
from bwtui.relay.context import RelayContext
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.snapshot.interruptible import check_alive
from bwtui.relay.snapshot.leftovers import Leftovers
from bwtui.relay.snapshot.snapshot_copier import SnapshotCopier
from bwtui.relay.snapshot.workers.messages import StartWorker
from bwtui.relay.snapshot.workers.snapshot_tasks import cores, tasks_for, workers_for
from bwtui.relay.snapshot.workers.worker_handle import LocalWorkerHandle
from bwtui.relay.snapshot.workers.worker_pool import WorkerPool
from bwtui.sink.base import Message
from bwtui.sink.destination import Offsets
from bwtui.source.chunks.page_ranges import sizes
from bwtui.source.connection import Connection
from bwtui.source.failover.hosts import complete
from bwtui.source.slot import TemporarySlot
from bwtui.source.snapshot import SnapshotTable

if TYPE_CHECKING:
    from bwtui.relay.snapshot.cluster.spark_worker_pool import SparkWorkerPool


class SnapshotRun(SnapshotCopier):
    """Takes a snapshot, and returns when every row of it is durable."""

    _context: RelayContext

    def __init__(self, context: RelayContext, temporary: TemporarySlot, ask: Callable[[], None]) -> None:
        """``temporary`` has exported the snapshot; ``ask`` is as in `SnapshotCopier`."""
        super().__init__(context, temporary.consistent_point, temporary.time_ms, ask)
        self._snapshot = temporary.snapshot
        self._pool: WorkerPool | None = None

    def run(
        self, connection: Connection, tables: Sequence[SnapshotTable], beside: Collection[str] = ()
    ) -> None:
        """Copy ``tables`` through ``connection``, which has imported the snapshot.

        Tables that ``beside`` names are backfilled later, while the relay streams: this only prepares them,
        and removes what an earlier attempt sent.

        Raises StopRequested, RowError, RefusedError (no right to read a table) or ConnectionFailed.
        """
        if self._context.recorder is not None:
            self._context.recorder.begin_pass("snapshot", self._lsn)
        for table in tables:
            counters = self._context.report.table(table.relation.qualified_name)
            counters.snapshot_state = "pending"
            counters.snapshot_estimate = table.estimate
        self._context.report.account.turn_to("work")
        routes = self._prepare(tables)
        before = self._context.checkpoint.unfinished_marks()
        sessions = self._context.checkpoint.unfinished_sessions()
        self._routes = {route.topic: route for route in routes if route is not None}
        begun = self._remember_ends(list(self._routes.values()), before)
        chosen = [
            (table, route)
            for table, route in zip(tables, routes, strict=True)
            if route is not None and table.relation.qualified_name not in beside
        ]
        self._copy_all(connection, chosen)
        self._context.report.account.turn_to("work")
        self._context.report.detail = "waiting until every row of the snapshot is durable"
        self._batch.flush()
        self._wait_until_durable()
        self._remove_leftovers(before, begun, sessions)
        # Everything is delivered up to the consistent point; while recording, it must be recorded as well.
        self._acks.keepalive(self._lsn)
        self._wait_until_durable()

    def while_committing(self) -> None:
        """Keep the recording running while the snapshot is committed. Raises StopRequested, StateFailed."""
        if self._context.recorder is not None:
            self._context.recorder.settle(idle=True)
        check_stop(self._context.stop_requested)

    # -- with several processes ------------------------------------------------------------------------------

    def _copy_all(self, connection: Connection, chosen: Sequence[tuple[SnapshotTable, TableRoute]]) -> None:
        # With --exactly-once the snapshot is one transaction of one producer.
        crew = self._crew(connection) if chosen and self._context.position_store is None else None
        try:
            self._pool = self._pool_for(connection, chosen, crew)
            unread = self._pool.run() if self._pool is not None else []
            if self._pool is not None:
                self._check_locks_held(connection)
            if crew is not None:
                crew.end(self.pulse)
        finally:
            if crew is not None:
                crew.close()
        if self._pool is None:
            for table, route in chosen:
                self._copy(connection, table, route)
            return
        for task in unread:
            for table in task.tables:
                answers = self._pool.answers
                self._copy(connection, table, answers.route_of(table))
                answers.numbered[table.relation.qualified_name] = self._ordinal

    def _check_locks_held(self, connection: Connection) -> None:
        """Check that the session that has locked all tables lived while workers read.

        Raises ConnectionFailed.

        Without its locks a table may have been rewritten, which looks empty to the workers' snapshot
        (PostgreSQL documentation, "MVCC Caveats"), and the stream contains no rows of a rewrite.
        """
        check_alive(
            connection,
            self._context.stop_requested,
            "the session that locks the tables ended, so a table that was rewritten in the "
            "meantime may have been read as empty",
            "start the relay again: it reads all tables from scratch",
        )

    def _crew(self, connection: Connection) -> "SparkWorkerPool | None":
        """Return the workers of a Spark cluster; None without --spark-master, or if Spark can't start."""
        context, master = self._context, self._context.settings.spark_master
        if not master:
            return None
        from bwtui.relay.snapshot.cluster.spark_worker_pool import SparkWorkerPool, reachable

        context.report.detail = f"starting Spark at {master}"
        # This takes seconds, in which nothing is at fault, and no row is waiting.
        context.report.account.turn_to("room")
        crew = SparkWorkerPool(
            context.report, {**context.settings.to_json(), "postgres": reachable(connection)}
        )
        try:
            crew.open(master, self.pulse)
        except BwtuiError as error:
            crew.close()
            reason = (
                f"the Spark cluster can't take the snapshot, so the relay takes it itself: {error.message}"
            )
            context.report.error("notice", type(error)(reason, error.hint))
            return None
        except BaseException:
            crew.close()
            raise
        return crew

    def _first_ordinal(self, table: str) -> int:
        return self._pool.answers.numbered.get(table, 0) if self._pool is not None else 0

    def _pool_for(
        self,
        connection: Connection,
        chosen: Sequence[tuple[SnapshotTable, TableRoute]],
        crew: "SparkWorkerPool | None",
    ) -> WorkerPool | None:
        """Return the pool of workers; None if one process reads alone.

        With --exactly-once the snapshot is one transaction, and so always read by one process.
        """
        context = self._context
        if context.position_store is not None or not chosen:
            return None
        table_sizes = sizes(connection, [table.relation.oid for table, _ in chosen])
        count = workers_for(context.settings, cores(), table_sizes)
        if crew is not None:
            count = context.settings.snapshot_workers or crew.parallelism
        tasks = tasks_for([table for table, _ in chosen], table_sizes, count, connection.server_version)
        count = min(count, len(tasks))
        if count < 2 and crew is None:
            return None
        begin = StartWorker(
            replace(context.settings, postgres=complete(context.settings.postgres)).to_json(),
            context.session,
            self._snapshot,
            self._lsn,
            self._timestamp,
            count,
            context.recorder is not None,
        )
        start = crew.member if crew is not None else LocalWorkerHandle
        return WorkerPool(context, begin, tasks, [route for _, route in chosen], self.pulse, start)

    def pulse(self, seconds: float) -> None:
        """Wait, handle deliveries and failures, and raise StopRequested if a stop was requested."""
        super().pulse(seconds)
        if self._pool is not None:
            # If this process stood still since the last check, the snapshot may be another relay's by now.
            self._pool.poll(is_ours=time.monotonic() < self._ask_at)

    def _take_deliveries(self) -> None:
        pool, report = self._pool, self._context.report
        if pool is None:
            super()._take_deliveries()
            return
        sink, now = self._context.sink, time.monotonic()
        report.outage(self._context.destination.service.outage() or pool.outage)
        waits = [since for since in (self._acks.oldest_since, now - pool.waited) if since and since < now]
        report.oldest_since, report.ledger_since = min(waits, default=0.0), self._acks.ledger_since
        report.in_flight = sink.queued() + pool.queued
        report.durable, report.settled_at = sink.answered() + pool.answered, now

    def _prepare(self, tables: Sequence[SnapshotTable]) -> list[TableRoute | None]:
        """Return the tables' routes; create topics and register schemas before the first row is sent."""
        router, settings = self._context.router, self._context.settings
        routes = router.routes([table.relation for table in tables])
        for route in routes:
            if route is not None and route.refusal is not None and settings.on_error == "exit":
                raise route.refusal
        return routes

    def _remember_ends(self, routes: Sequence[TableRoute], before: dict[str, Offsets]) -> dict[str, Offsets]:
        """Store where the topics end before anything is sent; see `bwtui.relay.snapshot.leftovers`."""
        context = self._context
        begun: dict[str, Offsets] = {}
        filled: list[str] = []
        for route in routes:
            if route.refusal is None:
                topic = route.topic
                begun[topic] = self._end_offsets(topic)
                if any(before.get(topic, begun[topic]).values()):
                    filled.append(route.relation.qualified_name)
                    route.counters.note("the topic contained messages before this snapshot")
        if filled:
            text = (
                "had messages in its topic before its snapshot, which may include rows that were "
                "deleted since"
            )
            context.coverage.mark_all(text, filled)
        with context.report.account.during("state"):
            context.checkpoint.remember_snapshot(self._lsn, begun | before, context.session)
        return begun

    def _end_offsets(self, topic: str) -> Offsets:
        destination = self._context.destination
        return self._context.patience.ask(
            destination.service.name, lambda: destination.readback.end_offsets(topic)
        )

    def _remove_leftovers(
        self, before: dict[str, Offsets], begun: dict[str, Offsets], sessions: list[bytes]
    ) -> None:
        """Remove from the topics what an earlier attempt sent and this one did not."""
        leftovers = Leftovers(self._context, self.pulse, self._end_offsets)
        for topic in sorted(set(before) & set(begun)):
            route = self._routes[topic]
            if route.key_columns:
                tombstone = Message(b"", None, self._timestamp, self._session_header)
                if self._context.recorder is not None:
                    self._context.recorder.begin_table(route.relation, self._lsn, self._timestamp)
                leftovers.remove(route, before[topic], begun[topic], sessions, tombstone)
            elif before[topic] != begun[topic]:
                route.counters.note("unkeyed: rows of an interrupted snapshot are in the topic twice")

    def _with_room(self, route: TableRoute) -> TableRoute:
        wider = self._context.router.route(route.relation, with_room=True)
        assert wider is not None
        return wider
