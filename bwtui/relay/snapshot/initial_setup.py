"""Create publication, snapshot and slot, so that a failure at any moment leaves no slot."""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import psycopg2

from bwtui.blocking import check_stop
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError
from bwtui.model.events import event
from bwtui.relay.backfill.chunk_snapshot import ChunkSnapshot
from bwtui.relay.backfill.joined_tables import JoinedTables
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.snapshot.snapshot_copier import SnapshotCopier, check_alive, interruptible
from bwtui.relay.snapshot.worker_handle import LocalWorkerHandle
from bwtui.relay.snapshot.worker_pool import WorkerPool, cores, tasks_for, workers_for
from bwtui.relay.snapshot.worker_protocol import StartWorker
from bwtui.relay.stream.context import RelayContext
from bwtui.relay.watch.topic_watch import TopicWatch
from bwtui.sink.destination import Message, Offsets
from bwtui.source import publication, slot
from bwtui.source.catalog import TableInfo
from bwtui.source.connection import Connection, connect
from bwtui.source.hosts import complete
from bwtui.source.preflight import PreflightState, chosen_tables, obstacle_to_make, wait_while
from bwtui.source.raw_session import connect_raw
from bwtui.source.raw_stream import reached_server
from bwtui.source.slot import TemporarySlot
from bwtui.source.snapshot import (
    SnapshotTable,
    TablesChanged,
    check_unchanged,
    import_snapshot,
    load_tables,
    lock_tables,
    sizes,
    tables_at_export,
)
from bwtui.source.table_facts import read_facts

if TYPE_CHECKING:
    from bwtui.relay.snapshot.spark_worker_pool import SparkWorkerPool
import sqlite3
from collections.abc import Iterator

from bwtui.model.delivery import DeliverySpan
from bwtui.sink.destination import KeyRecord
from bwtui.sink.topics import BATCH, each, in_batches, keys_on_disk

_log = logging.getLogger(__name__)
#: Maximum number of exports of a snapshot, if a table is altered right after each export.
_EXPORTS = 5


class InitialSetup:
    """The first run of a relay, up to the moment when its slot exists."""

    def __init__(
        self,
        context: RelayContext,
        on_phase: Callable[[SnapshotCopier | None, str], None],
        first: ChunkSnapshot,
        joined: JoinedTables,
        topics: TopicWatch,
    ) -> None:
        """``on_phase`` is called with the snapshot's phase, and the slot that holds the WAL for it."""
        self._topics = topics
        self._first = first
        self._joined = joined
        self._settings = context.run.settings
        self._report = context.run.report
        self._context, self._run, self._output = context, context.run, context.output
        self._on_phase = on_phase
        #: The server process that holds the reservation.
        self._process = 0

    def run(self, connection: Connection, findings: PreflightState) -> tuple[str, ...]:
        """Create what is missing, take the snapshot, and return the publications to read.

        Whatever it raises, no permanent slot is left.
        """
        self._reserve(connection)
        # The state of an abandoned first start. No other relay can be starting now.
        self._first.forget()
        with contextlib.suppress(OSError):
            self._topics.forget()
        created: tuple[str, ...] = ()
        publications = findings.publications
        self._check_publications(connection, publications)
        if not publications:
            self._report.detail = "creating the publications"
            name = self._settings.publication_name
            with interruptible(connection, self._run.stop_requested):
                created = publications = publication.create(connection, name, findings.tables)
        try:
            if self._settings.skip_snapshot:
                self._skip(connection, publications)
            else:
                self._snapshot(connection, publications)
        except BaseException:
            # The publication was created for this slot, which does not exist, so it is dropped again.
            self._drop_quietly(created)
            raise
        return publications

    def _reserve(self, connection: Connection) -> None:
        """Make sure that no other relay creates this slot until ``connection`` is closed.

        Raises RefusedError.
        """
        name = self._settings.slot

        def pause(seconds: float) -> None:
            self._context.services.patience.calls.make(partial(time.sleep, seconds))

        wait_while(lambda: obstacle_to_make(connection, name), self._waiting, pause)
        self._process = connection.info.backend_pid
        if slot.slot_state(connection, name) is not None:
            raise RefusedError(
                f"another relay created slot {name} in the meantime",
                "stop the other relay, then start this one again to continue from that slot",
            )

    def _waiting(self, detail: str) -> None:
        self._report.detail = detail

    def _check_publications(self, connection: Connection, expected: tuple[str, ...]) -> None:
        """Make sure that the publications are unchanged: a snapshot has no tables of a missing publication.

        A different relay, whose end this one has waited for, may have created or dropped them. Raises
        RefusedError.
        """
        if publication.existing(connection, self._settings.publication_name) != expected:
            raise RefusedError(
                "publications of the relay were created or dropped while it was starting",
                "start again; if this repeats, another relay or a script creates and drops them",
            )

    def _skip(self, connection: Connection, publications: tuple[str, ...]) -> None:
        memory = self._context.history.checkpoint
        memory.forget()
        self._joined.forget()
        # Read this before creating the slot: later changes then show up as changes.
        facts = read_facts(connection, publications, self._settings)
        self._context.history.coverage.begin(facts, 0, is_whole=False)
        self._report.confirmed_lsn = slot.create_permanent(connection, self._settings.slot)
        memory.remember(self._report.confirmed_lsn)

    def _snapshot(self, connection: Connection, publications: tuple[str, ...]) -> None:
        self._report.state = "snapshot"
        temporary: TemporarySlot | None = None
        importer: Connection | None = None
        try:
            for _ in range(_EXPORTS):
                self._report.detail = "creating a temporary slot and its snapshot"
                self._report.clock.turn_to("catalog")
                with interruptible(connection, self._run.stop_requested):
                    published = publication.published_tables(connection, publications)
                    before = chosen_tables(connection, self._settings, published)
                # This waits for every transaction that is open now.
                self._report.clock.turn_to("slot")
                temporary = self._context.services.patience.calls.make(self._export)
                self._report.clock.turn_to("catalog")
                importer = import_snapshot(
                    self._context.services.patience.server.connect(), temporary.snapshot
                )
                try:
                    with interruptible(importer, self._run.stop_requested):
                        tables = self._tables(importer, connection, publications, before)
                        facts = read_facts(importer, publications, self._settings)
                    break
                except TablesChanged:
                    importer.close()
                    temporary.close()
            else:
                raise ConnectionFailed(
                    "tables or publications kept changing while the snapshot was starting",
                    "start again once no statement alters the relay's tables and publications",
                )
            self._context.history.coverage.begin(facts, temporary.consistent_point)
            self._copy(connection, temporary, importer, tables)
        except psycopg2.Error as error:
            reason = " ".join(str(error).split())
            raise ConnectionFailed(
                f"the snapshot was interrupted: {reason}", "start the relay again"
            ) from error
        finally:
            self._on_phase(None, self._settings.slot)
            if importer is not None:
                importer.close()
            if temporary is not None:
                temporary.close()

    def _export(self) -> TemporarySlot:
        """Create the temporary slot; other queries go to the same server from now on."""
        connection = connect_raw(self._settings.postgres)
        # Do this first: the next statement in the session ends the export.
        self._context.services.patience.server.follow(reached_server(connection, self._settings.postgres))
        self._context.history.transactions.identify_server(connection)
        return slot.create_temporary(connection)

    def _tables(
        self,
        importer: Connection,
        present: Connection,
        publications: tuple[str, ...],
        before: tuple[TableInfo, ...],
    ) -> list[SnapshotTable]:
        """Return the tables to copy.

        Raises TablesChanged if the slot's stream would begin with different ones.

        ``before`` are the tables from before the export; one that has left since is in no publication any
        more.
        """
        published = publication.published_tables(importer, publications)
        self._check_publications(present, publications)
        tables = chosen_tables(importer, self._settings, published)
        clock = self._report.clock
        # This may wait for locks of other sessions.
        with clock.during("locks"):
            lock_tables(importer, tables, clock.answered)
        oids = {table.oid for table in (*before, *tables)}
        oids.update(tables_at_export(importer, present, published))
        check_unchanged(importer, present, publications, sorted(oids))
        self._joined.begin(importer, publications, tables)
        return load_tables(importer, tables, published, clock.answered)

    def _copy(
        self,
        connection: Connection,
        temporary: TemporarySlot,
        importer: Connection,
        tables: list[SnapshotTable],
    ) -> None:
        lsn = temporary.consistent_point
        copying = SnapshotRun(self._context, temporary, partial(self._check_reservation, connection))
        self._on_phase(copying, temporary.name)
        transactions, beside = self._context.history.transactions, self._beside(tables)
        transactions.begin_snapshot(self._context.services.patience.calls, lsn, self._output.recorder)
        copying.run(importer, tables, beside)
        # Record changes of topics in the meantime before the slot exists.
        self._context.services.patience.call(
            self._output.service.name, partial(self._topics.look, with_beginnings=False)
        )
        with self._report.clock.during("state"):
            self._first.store_tasks(beside)
            # From here on a slot at this LSN is ours, with tables that are not done.
            self._first.begin(lsn)
        # Create the slot before its checkpoint is stored. A kill in between leaves a slot at the LSN that is
        # stored with the unfinished snapshot; the reverse order would leave a checkpoint of a slot that never
        # existed.
        with self._report.clock.during("catalog"):
            slot.make_permanent(connection, temporary.name, self._settings.slot)
        # After the slot: a slot whose snapshot is not committed is dropped at the next start.
        transactions.end_snapshot(copying.while_committing, lsn, self._output.recorder)
        with self._report.clock.during("state"):
            self._context.history.checkpoint.remember(lsn, sent_lsn=lsn)
        self._first.note_slot_created()
        self._report.confirmed_lsn = lsn

    def _beside(self, tables: list[SnapshotTable]) -> list[str]:
        """Return the tables that are backfilled while the relay streams: with chunks, all that have a key.

        Rows without a key can't be distinguished from those of the stream, so they are copied as of the slot.
        """
        if self._settings.snapshot_by != "chunks":
            return []
        return [table.relation.qualified_name for table in tables if table.has_key]

    def _check_reservation(self, connection: Connection) -> None:
        """Check that the reservation of the slot is still held: it ends with this session."""
        check_alive(
            connection,
            self._run.stop_requested,
            "the session that reserves the slot ended, so another relay may have started a snapshot",
            "no slot is left behind; stop the other relay, if there is one, and start this one again",
        )

    def _drop_quietly(self, publications: tuple[str, ...]) -> None:
        try:
            connection = connect(self._settings.postgres)
            # A relay that has replaced this one may be reading them by now.
            is_ours = slot.reserve(connection, self._settings.slot) in (None, self._process)
            # The slot may have been created and only the answer lost. Then it needs its publication.
            if is_ours and slot.slot_state(connection, self._settings.slot) is None:
                publication.drop(connection, publications)
            connection.close()
        except (BwtuiError, psycopg2.Error):
            _log.warning(
                "could not drop publication %s", ", ".join(publications), extra=event("publication_left")
            )


class SnapshotRun(SnapshotCopier):
    """Takes a snapshot, and returns when every row of it is durable."""

    def __init__(
        self, context: RelayContext, temporary: TemporarySlot, check_reservation: Callable[[], None]
    ) -> None:
        """``temporary`` has exported the snapshot; ``check_reservation`` is as in `SnapshotCopier`."""
        super().__init__(
            context.run, context.output, temporary.consistent_point, temporary.time_ms, check_reservation
        )
        self._context = context
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
        self._output.recorder.begin_pass("snapshot", self._lsn)
        for table in tables:
            counters = self._run.report.table(table.relation.qualified_name)
            counters.snapshot_state = "pending"
            counters.snapshot_estimate = table.estimate
        self._run.report.clock.turn_to("work")
        routes = self._prepare(tables)
        before = self._context.history.checkpoint.unfinished_marks()
        sessions = self._context.history.checkpoint.unfinished_sessions()
        self._routes = {route.topic: route for route in routes if route is not None}
        begun = self._remember_ends(list(self._routes.values()), before)
        chosen = [
            (table, route)
            for table, route in zip(tables, routes, strict=True)
            if route is not None and table.relation.qualified_name not in beside
        ]
        self._copy_all(connection, chosen)
        self._run.report.clock.turn_to("work")
        self._run.report.detail = "waiting until every row of the snapshot is durable"
        self._batch.flush()
        self._wait_until_durable()
        self._remove_leftovers(before, begun, sessions)
        # Everything is delivered up to the consistent point; while recording, it must be recorded as well.
        self._acks.keepalive(self._lsn)
        self._wait_until_durable()

    def while_committing(self) -> None:
        """Keep the recording running while the snapshot is committed. Raises StopRequested, StateFailed."""
        self._output.recorder.settle(idle=True)
        check_stop(self._run.stop_requested)

    # -- with several processes ------------------------------------------------------------------------------

    def _copy_all(self, connection: Connection, chosen: Sequence[tuple[SnapshotTable, TableRoute]]) -> None:
        # With --exactly-once the snapshot is one transaction of one producer.
        crew = self._crew(connection) if chosen and not self._context.history.transactions.is_used else None
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
            self._run.stop_requested,
            "the session that locks the tables ended, so a table that was rewritten in the "
            "meantime may have been read as empty",
            "start the relay again: it reads all tables from scratch",
        )

    def _crew(self, connection: Connection) -> "SparkWorkerPool | None":
        """Return the workers of a Spark cluster; None without --spark-master, or if Spark can't start."""
        context, master = self._context, self._run.settings.spark_master
        if not master:
            return None
        from bwtui.relay.snapshot.spark_worker_pool import SparkWorkerPool, reachable

        context.run.report.detail = f"starting Spark at {master}"
        # This takes seconds, in which nothing is at fault, and no row is waiting.
        context.run.report.clock.turn_to("room")
        crew = SparkWorkerPool(
            context.run.report, {**context.run.settings.to_json(), "postgres": reachable(connection)}
        )
        try:
            crew.open(master, self.pulse)
        except BwtuiError as error:
            crew.close()
            reason = (
                f"the Spark cluster can't take the snapshot, so the relay takes it itself: {error.message}"
            )
            context.run.report.error("notice", type(error)(reason, error.hint))
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
        if context.history.transactions.is_used or not chosen:
            return None
        table_sizes = sizes(connection, [table.relation.oid for table, _ in chosen])
        count = workers_for(context.run.settings, cores(), table_sizes)
        if crew is not None:
            count = context.run.settings.snapshot_workers or crew.parallelism
        tasks = tasks_for([table for table, _ in chosen], table_sizes, count, connection.server_version)
        count = min(count, len(tasks))
        if count < 2 and crew is None:
            return None
        begin = StartWorker(
            replace(context.run.settings, postgres=complete(context.run.settings.postgres)).to_json(),
            context.run.session,
            self._snapshot,
            self._lsn,
            self._timestamp,
            count,
            context.output.recorder.is_recording,
        )
        start = crew.member if crew is not None else LocalWorkerHandle
        return WorkerPool(context, begin, tasks, [route for _, route in chosen], self.pulse, start)

    def pulse(self, seconds: float) -> None:
        """Wait, handle deliveries and failures, and raise StopRequested if a stop was requested."""
        super().pulse(seconds)
        if self._pool is not None:
            # If this process stood still since the last check, the snapshot may be another relay's by now.
            self._pool.poll(is_ours=time.monotonic() < self._next_check)

    def _take_deliveries(self) -> None:
        pool, report = self._pool, self._run.report
        if pool is None:
            super()._take_deliveries()
            return
        sink, now = self._output.sink, time.monotonic()
        report.outage(self._context.services.destination.service.outage() or pool.outage)
        waits = [since for since in (self._acks.oldest_since, now - pool.waited) if since and since < now]
        report.oldest_since, report.ledger_since = min(waits, default=0.0), self._acks.ledger_since
        report.in_flight = sink.queued() + pool.queued
        report.durable, report.settled_at = sink.answered() + pool.answered, now

    def _prepare(self, tables: Sequence[SnapshotTable]) -> list[TableRoute | None]:
        """Return the tables' routes; create topics and register schemas before the first row is sent."""
        router, settings = self._context.services.router, self._run.settings
        routes = router.routes([table.relation for table in tables])
        for route in routes:
            if route is not None and route.refusal is not None and settings.on_error == "exit":
                raise route.refusal
        return routes

    def _remember_ends(self, routes: Sequence[TableRoute], before: dict[str, Offsets]) -> dict[str, Offsets]:
        """Store where the topics end before anything is sent; see `Leftovers`."""
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
            context.history.coverage.mark_all(text, filled)
        with context.run.report.clock.during("state"):
            context.history.checkpoint.remember_snapshot(self._lsn, begun | before, context.run.session)
        return begun

    def _end_offsets(self, topic: str) -> Offsets:
        destination = self._context.services.destination
        return self._context.services.patience.call(
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
                self._output.recorder.begin_table(route.relation, self._lsn, self._timestamp)
                leftovers.remove(route, before[topic], begun[topic], sessions, tombstone)
            elif before[topic] != begun[topic]:
                route.counters.note("unkeyed: rows of an interrupted snapshot are in the topic twice")

    def _with_room(self, route: TableRoute) -> TableRoute:
        wider = self._context.services.router.route(route.relation, with_room=True)
        assert wider is not None
        return wider


_DELETE = "delete from left_over where key = ?"


class Leftovers:
    """Removes what a killed snapshot left in a topic: rows that were deleted before this snapshot began.

    A snapshot that was cut off has sent rows. The next one starts over, at a later consistent point. A row
    that was deleted in between is in neither the new snapshot nor the stream, so nothing would ever remove it
    from the topic. So the first attempt stores where each topic ended before it sent anything. The next
    attempt finds every key that was sent since then and that its own snapshot has not sent again, and sends
    tombstones. A request of the first attempt may be written as late as during the next one, after that
    one's row.

    A topic may hold another producer's rows. So every row of a snapshot carries its run's id in the header
    ``bwtui.session``, the ids of unfinished runs are stored, and a key counts as left over only if its last
    record carries one of them. Memory stays bounded, since the keys are kept on disk.
    """

    def __init__(
        self, context: RelayContext, pulse: Callable[[float], None], end_offsets: Callable[[str], Offsets]
    ) -> None:
        """``pulse(seconds)`` waits, handles deliveries, and raises to stop the relay.

        ``end_offsets`` is `TopicScanner.end_offsets`, but waits while the broker is unavailable.
        """
        self._destination = context.services.destination
        self._report = context.run.report
        self._recorder = context.output.recorder
        self._orphaned_keys, self._late = context.history.orphaned_keys, context.history.late
        self._pulse = pulse
        self._end_offsets = end_offsets

    def remove(
        self,
        route: TableRoute,
        before: Offsets,
        begun: Offsets,
        sessions: Collection[bytes],
        message: Message,
    ) -> None:
        """Send tombstones for keys that ``sessions`` wrote last in ``[before, begun)``, with no record since.

        A request of an earlier attempt may be written during this one, so its records after ``begun`` are not
        this attempt's: such a key gets a tombstone, too, or is sent again if this attempt has its row.

        ``before`` is where the topic ended before the first attempt, ``begun`` where it ended before this
        one; ``message`` is a tombstone without its key. All tombstones are durable when this returns. Raises
        ConnectionFailed.
        """
        table, topic = route.relation.qualified_name, route.topic
        clock = self._report.clock
        self._report.detail = f"searching topic {topic} for rows of an interrupted snapshot"
        with keys_on_disk("left_over (key blob primary key)") as database:
            database.execute("create table late (key blob primary key) without rowid")
            with clock.during("readback"):
                end = self._end_offsets(topic)
                if self._late is not None:
                    self._late.note(table, topic, end)
                self._collect(database, topic, before, (begun, end), sessions)
            count = self._send(database, route, message)
            self._send_again(database, table)
        if count:
            self._report.table(table).note(f"{count} rows of an interrupted snapshot were removed")

    def _collect(
        self,
        database: sqlite3.Connection,
        topic: str,
        before: Offsets,
        attempt: tuple[Offsets, Offsets],
        sessions: Collection[bytes],
    ) -> None:
        """Collect the leftovers, and the late records; this attempt's records are within ``attempt``."""
        for records in in_batches(self._records(topic, before, attempt[0])):
            # The last record of each key counts.
            last = {record.key: record.session in sessions and not record.is_tombstone for record in records}
            each(database, "insert or ignore into left_over values (?)", (k for k in last if last[k]))
            each(database, _DELETE, (key for key in last if not last[key]))
        for records in in_batches(self._records(topic, *attempt)):
            late = {record.key: record.session in sessions and not record.is_tombstone for record in records}
            each(database, "delete from late where key = ?", (key for key in late if not late[key]))
            each(database, "insert or ignore into late values (?)", (key for key in late if late[key]))
            each(database, _DELETE, _sent(records, sessions))
        ((is_late,),) = database.execute("select exists (select 1 from late)")
        if not is_late:
            return
        database.execute("insert or ignore into left_over select key from late")
        for records in in_batches(self._records(topic, *attempt)):
            each(database, _DELETE, _sent(records, sessions))
        database.execute("delete from late where key in (select key from left_over)")

    def _send_again(self, database: sqlite3.Connection, table: str) -> None:
        """Re-send keys if this snapshot's row is followed by a row of an earlier snapshot."""
        ((count,),) = database.execute("select count(*) from late")
        if not count or self._orphaned_keys is None:
            return
        unknown = self._orphaned_keys.send_again(
            table, (key for (key,) in database.execute("select key from late"))
        )
        text = f"{count} rows of an interrupted snapshot were written after newer ones"
        hint = "no action needed: the relay sends these keys again"
        if unknown:
            hint = f"{unknown} keys can't be looked up in the table: run 'bwtui repair --table {table}'"
        self._report.error("topic", RefusedError(text, hint), table)

    def _records(self, topic: str, start: Offsets, end: Offsets) -> Iterator[KeyRecord]:
        """Read a part of ``topic``, and report at each pause if records arrived since the previous one."""
        count = reported = 0

        def wait() -> None:
            nonlocal reported
            if count > reported:
                self._report.clock.answered()
            reported = count
            self._pulse(0)

        for record in self._destination.readback.keys(topic, start, end, wait):
            count += 1
            yield record

    def _send(self, database: sqlite3.Connection, route: TableRoute, message: Message) -> int:
        count = 0
        rows = database.execute("select key from left_over")
        while batch := rows.fetchmany(BATCH):
            span = DeliverySpan()
            messages = [message._replace(key=key) for (key,) in batch]
            receipt = self._recorder.write_cleanup(route, messages)
            self._destination.sink.send(route.topic, messages, span, receipt)
            with self._report.clock.during("settling"):
                while span.pending:
                    self._pulse(0.05)
            if receipt is not None:
                self._recorder.take_settled([receipt])
            count += len(batch)
        return count


def _sent(records: list[KeyRecord], sessions: Collection[bytes]) -> set[bytes]:
    """Return the keys of ``records`` that none of ``sessions`` has written."""
    return {record.key for record in records if record.session not in sessions}
