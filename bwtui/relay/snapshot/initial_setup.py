"""Create publication, snapshot and slot, so that a failure at any moment leaves no slot."""

import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial

import psycopg2

from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError
from bwtui.model.events import event
from bwtui.relay.backfill.chunk_snapshot import ChunkSnapshot
from bwtui.relay.backfill.joined_tables import JoinedTables
from bwtui.relay.context import RelayContext
from bwtui.relay.snapshot.interruptible import check_alive, interruptible
from bwtui.relay.snapshot.snapshot_copier import SnapshotCopier
from bwtui.relay.snapshot.snapshot_run import SnapshotRun
from bwtui.relay.watch.topic_watch import TopicWatch
from bwtui.source import publication, slot
from bwtui.source.catalog import TableInfo
from bwtui.source.connection import Connection, connect
from bwtui.source.failover.stream_server import reached_server
from bwtui.source.preflight import PreflightState, chosen_tables, obstacle_to_make, wait_while
from bwtui.source.raw.session import connect_raw
from bwtui.source.raw.timeline import identify
from bwtui.source.slot import TemporarySlot
from bwtui.source.snapshot import (
    SnapshotTable,
    TablesChanged,
    check_unchanged,
    import_snapshot,
    load_tables,
    lock_tables,
    tables_at_export,
)
from bwtui.source.table_facts import read_facts

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
        self._settings = context.settings
        self._report = context.report
        self._context = context
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
            with interruptible(connection, self._context.stop_requested):
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
            self._context.patience.calls.make(partial(time.sleep, seconds))

        wait_while(lambda: obstacle_to_make(connection, name), self._waiting, pause)
        self._process = connection.info.backend_pid
        if slot.slot_state(connection, name) is not None:
            raise RefusedError(
                f"another relay created slot {name} in the meantime",
                "stop the other relay, then start this one again to continue from that slot",
            )

    def _waiting(self, what: str) -> None:
        self._report.detail = what

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
        memory = self._context.checkpoint
        memory.forget()
        self._joined.forget()
        # Read this before creating the slot: later changes then show up as changes.
        facts = read_facts(connection, publications, self._settings)
        self._context.coverage.begin(facts, 0, is_whole=False)
        self._report.confirmed_lsn = slot.create_permanent(connection, self._settings.slot)
        memory.remember(self._report.confirmed_lsn)

    def _snapshot(self, connection: Connection, publications: tuple[str, ...]) -> None:
        self._report.state = "snapshot"
        temporary: TemporarySlot | None = None
        importer: Connection | None = None
        try:
            for _ in range(_EXPORTS):
                self._report.detail = "creating a temporary slot and its snapshot"
                self._report.account.turn_to("catalog")
                with interruptible(connection, self._context.stop_requested):
                    published = publication.published_tables(connection, publications)
                    before = chosen_tables(connection, self._settings, published)
                # This waits for every transaction that is open now.
                self._report.account.turn_to("slot")
                temporary = self._context.patience.calls.make(self._export)
                self._report.account.turn_to("catalog")
                importer = import_snapshot(self._context.patience.server.connect(), temporary.snapshot)
                try:
                    with interruptible(importer, self._context.stop_requested):
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
            self._context.coverage.begin(facts, temporary.consistent_point)
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
        self._context.patience.server.follow(reached_server(connection, self._settings.postgres))
        if self._context.position_store is not None:
            self._context.position_store.server = identify(connection)
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
        account = self._report.account
        # This may wait for locks of other sessions.
        with account.during("locks"):
            lock_tables(importer, tables, account.answered)
        oids = {table.oid for table in (*before, *tables)}
        oids.update(tables_at_export(importer, present, published))
        check_unchanged(importer, present, publications, sorted(oids))
        self._joined.begin(importer, publications, tables)
        return load_tables(importer, tables, published, account.answered)

    def _copy(
        self,
        connection: Connection,
        temporary: TemporarySlot,
        importer: Connection,
        tables: list[SnapshotTable],
    ) -> None:
        lsn = temporary.consistent_point
        copying = SnapshotRun(self._context, temporary, partial(self._ask, connection))
        self._on_phase(copying, temporary.name)
        exactly, beside = self._context.position_store, self._beside(tables)
        if exactly is not None:
            exactly.begin_snapshot(self._context.patience.calls, lsn)
        copying.run(importer, tables, beside)
        # Record changes of topics in the meantime before the slot exists.
        self._context.patience.ask(
            self._context.service.name, partial(self._topics.look, with_beginnings=False)
        )
        with self._report.account.during("state"):
            self._first.ask(beside)
            # From here on a slot at this LSN is ours, with tables that are not done.
            self._first.begin(lsn)
        # Create the slot before its checkpoint is stored. A kill in between leaves a slot at the LSN that is
        # stored with the unfinished snapshot; the reverse order would leave a checkpoint of a slot that never
        # existed.
        with self._report.account.during("catalog"):
            slot.make_permanent(connection, temporary.name, self._settings.slot)
        if exactly is not None:
            # After the slot: a slot whose snapshot is not committed is dropped at the next start.
            exactly.end_snapshot(copying.while_committing, lsn)
            if self._context.recorder is not None:
                self._context.recorder.deliveries.committed()
        with self._report.account.during("state"):
            self._context.checkpoint.remember(lsn, sent_lsn=lsn)
        self._first.note_slot_created()
        self._report.confirmed_lsn = lsn

    def _beside(self, tables: list[SnapshotTable]) -> list[str]:
        """Return the tables that are backfilled while the relay streams: with chunks, all that have a key.

        Rows without a key can't be distinguished from those of the stream, so they are copied as of the slot.
        """
        if self._settings.snapshot_by != "chunks":
            return []
        return [table.relation.qualified_name for table in tables if table.has_key]

    def _ask(self, connection: Connection) -> None:
        """Check that the reservation of the slot is still held: it ends with this session."""
        check_alive(
            connection,
            self._context.stop_requested,
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
