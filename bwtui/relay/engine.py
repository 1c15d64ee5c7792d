"""The engine: one relay, from checking its preconditions to its end.

It runs in the main thread of its process. Other threads serve service views, query services and fsync; the
control server's threads read statuses. The engine never waits for a reader.
"""

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2

from bwtui.blocking import StopRequested, check_stop
from bwtui.compiled import version_mismatch
from bwtui.errors import BwtuiError, ConnectionFailed, Indeterminate, RefusedError, SlotLost, StateFailed
from bwtui.model.backfill import BackfillCommand, BackfillRequest, BackfillStatus, FirstSnapshot
from bwtui.model.events import event
from bwtui.model.gaps import unproven
from bwtui.model.history import RelayHistory
from bwtui.model.service_views import Look, LookName
from bwtui.model.status import ChangeSample, SchemaEntry, Status
from bwtui.recording.resume import check_ahead, continue_in
from bwtui.relay.backfill.backfill import Backfill
from bwtui.relay.backfill.chunk_snapshot import ChunkSnapshot, chunk_snapshot_of
from bwtui.relay.backfill.joined_tables import JoinedTables
from bwtui.relay.exactly_once.rejected_row_finder import WholeTransactionPolicy
from bwtui.relay.healing.coverage_prover import CoverageProver
from bwtui.relay.healing.heal import Healing
from bwtui.relay.history.backfill_store import FOLDER, BackfillRequests, BackfillStore
from bwtui.relay.history.coverage_ledger import CATALOG, Coverage, CoverageLedger
from bwtui.relay.history.late_records import LateRecords, RunBounds, TopicEnds
from bwtui.relay.history.promotion import OrphanedKeys, connect_to_newest
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore, newest_checkpoint, with_local_reader
from bwtui.relay.portable_settings import portable
from bwtui.relay.routes.publications import NewTables
from bwtui.relay.routes.routing import CatalogCache, Router, name_topics
from bwtui.relay.rows.journal_recorder import JournalRecorder, recording_source
from bwtui.relay.rows.policy import RowPolicy
from bwtui.relay.rows.recorder import NullRecorder
from bwtui.relay.rows.run_context import RowOutput, RunContext
from bwtui.relay.rows.samples import Samples
from bwtui.relay.rows.toast import ToastFiller
from bwtui.relay.serving.service_views import ServiceViews
from bwtui.relay.snapshot.initial_setup import InitialSetup
from bwtui.relay.snapshot.snapshot_copier import SnapshotCopier, interruptible
from bwtui.relay.state.activity_clock import MainThreadActivity
from bwtui.relay.state.measures import Measures
from bwtui.relay.state.run_state import RunState
from bwtui.relay.state.service_retry import ServiceRetry
from bwtui.relay.state.startup_probe import StartupProbe
from bwtui.relay.status_snapshot import StatusSnapshots
from bwtui.relay.stream import transactional_stream
from bwtui.relay.stream.context import RelayContext, RelayServices, SlotHistory
from bwtui.relay.stream.session import SessionLoop, StreamSession
from bwtui.relay.watch.judge import ending
from bwtui.relay.watch.topic_watch import FILE as TOPICS_FILE
from bwtui.relay.watch.topic_watch import SchemaWatch, TopicWatch
from bwtui.settings import RelaySettings
from bwtui.sink.dead_letters import DeadLetterWriter
from bwtui.sink.destination import Limits, TopicLimits, kind_of
from bwtui.source import slot
from bwtui.source.connection import Connection, statement_failed
from bwtui.source.lag import Blocker, LagSampler
from bwtui.source.preflight import PreflightState, inspect
from bwtui.source.raw_stream import StreamServer
from bwtui.state_folder import state_folder

_log = logging.getLogger(__name__)

#: The hint of a note on a slot that this relay has no checkpoint of.
_UNKNOWN_SLOT = (
    "no action needed if this is intended and the initial snapshot completed on the original host "
    "('bwtui verify --database' shows what topics lack); otherwise stop the relay and choose a "
    "different slot with -s"
)


def _recorded_hint(settings: RelaySettings) -> str:
    """Return the hint of a note on changes that only a recording has."""
    return (
        f"no action needed if this is intended; otherwise run '{settings.drop_command}' and start again: a "
        "new snapshot sends the current rows"
    )


#: The dependency name of an error about a lock; the error lasts until it recovers.
_LOCK = "the lock of a table"


class RelayEngine:
    """One relay; see `bwtui.relay.serving.control_server.StatusSource` for what other threads may call."""

    def __init__(self, settings: RelaySettings) -> None:
        """Check the settings as far as possible without a connection.

        Raises UsageError, and RefusedError or StateFailed for a folder that no process can record to.
        """
        if settings.record:
            check_ahead(Path(settings.record))
        self._settings = settings
        # First, because it reads the environment and working folder, which the other threads leave alone.
        self._portable_settings = portable(settings)
        self._report = RunState()
        self._samples = Samples()
        self._stop = threading.Event()
        self._began = time.monotonic()
        self._destination = kind_of(settings).open_destination(settings)
        server = StreamServer(settings.postgres)
        self._patience = ServiceRetry(server, self._report, self._pulse)
        self._answers = StartupProbe(settings, self._report, self._is_stop_requested)
        self._cluster = ""
        self._slot_in_use = settings.slot
        self._looks = ServiceViews(settings, self._destination.readers, self._report, self._samples)
        self._lag = LagSampler(
            server, lambda: self._slot_in_use, self._on_tick, self._on_lock, self._on_failed_tick
        )
        folder = state_folder(settings.relay_name)
        self._backfills = BackfillStore(folder / FOLDER)
        self._asking = BackfillRequests(self._backfills, self._report)
        self._healing = Healing(settings, self._report, folder, self._is_stop_requested)
        self._picture = StatusSnapshots(
            settings,
            self._report,
            self._destination,
            self._lag,
            self._backfills,
            self._healing.status,
            self._first_snapshot,
        )
        registry, submit = self._destination.registry, self._backfills.submit
        self._orphaned_keys = OrphanedKeys(
            settings, self._report, folder, submit, registry, self._healing.request_comparison
        )
        self._phase: SnapshotCopier | StreamSession | None = None
        self._new_tables = NewTables(settings, self._report)
        self._backfill: Backfill | None = None
        self._joined: JoinedTables | None = None
        self._late: LateRecords | None = None
        self._ends: TopicEnds | None = None
        self._bounds = RunBounds(
            folder / f"sent-{settings.slot}.json",
            self._destination.recall.message_counts(),
            in_transactions=settings.exactly_once,
        )
        self._ledger: CoverageLedger | None = None
        self._first: ChunkSnapshot | None = None
        self._is_ledger_removed = False
        self._proving: CoverageProver | None = None
        self._topics: TopicWatch | None = None
        #: Closed before the destination is.
        self._resources = contextlib.ExitStack()

    # -- for other threads ---------------------------------------------------------------------------------

    def stop(self) -> None:
        self._report.is_stopping = True
        self._stop.set()

    def status(self) -> Status:
        return self._picture.status()

    def measures(self) -> Measures:
        return self._picture.measures()

    def turn(self) -> MainThreadActivity:
        return self._report.clock.turn()

    def history(self, after: float) -> RelayHistory:
        return self._picture.recent.history(after)

    def auditing(self) -> str:
        return self._ledger.moment() if self._ledger is not None else ""

    def audited(
        self,
        verdict: str,
        clean: Sequence[str],
        began: str,
        servers: Sequence[Sequence[Any]],
        differing: Sequence[str] = (),
    ) -> None:
        """Record in the history how an audit of the tables ended, and what it found."""
        if self._ledger is not None and self._patience.server.is_all(servers):
            self._ledger.proven(clean, began)
            self._ledger.differ(differing)
        self._report.audited(verdict)
        self._picture.recent.mark("audit", f"an audit of the tables ended: {verdict}")

    def sent_beside(self, topic: str, records: int) -> None:
        """Expect records of a repair in a topic, so that they are not attributed to another producer."""
        if self._late is not None:
            self._late.expect_beside(topic, records)

    def healed(self, lsn: str) -> bool:
        """Clear a due heal of the slot created at ``lsn``, since a later comparison was clean."""
        return self._healing.healed(lsn)

    def changes(self, after: int) -> list[ChangeSample]:
        return self._samples.after(after)

    def schemas(self) -> list[SchemaEntry]:
        return list(self._report.schemas.values())

    def settings(self) -> RelaySettings:
        settings = self._portable_settings
        # A comparison with a former primary would send old rows.
        return replace(settings, postgres=self._patience.server.lead(settings.postgres))

    def view(self, name: LookName, about: Sequence[str] = (), *, glance: bool = False) -> Look:
        return self._looks.view(name, about, glance=glance)

    def backfill(self, request: BackfillRequest) -> str:
        """Take a request to backfill rows; return its id. Raises RefusedError and StateFailed."""
        return self._asking.submit(request)

    def backfill_control(self, id: str, command: BackfillCommand) -> BackfillStatus:
        """Pause, resume or end a backfill. Raises RefusedError and StateFailed."""
        return self._asking.control(id, command)

    # -- the main thread -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Relay until stopped, or until the target LSN is confirmed. Raises BwtuiError."""
        failure: BwtuiError | None = None
        self._picture.watch.start()
        if (mismatch := version_mismatch()) is not None:
            self._report.error("notice", RefusedError(*mismatch))
        try:
            with contextlib.suppress(StopRequested):
                self._run()
            if self._topics is not None:
                # This check may have requested the stop.
                self._topics.check()
            if self._healing.ended is not None:  # The relay was stopped cleanly for this error.
                raise self._healing.ended
            if self._settings.is_bounded and not self._stop.is_set():
                self._check_end()
            self._picture.recorder.record_last_status()
        except psycopg2.Error as error:
            failure = self._report.failed(statement_failed(error))
            raise failure from error
        except BwtuiError as error:
            failure = self._report.failed(error)
            raise
        finally:
            self._settle(failure)
            self._healing.interrupt()
            if self._proving is not None:
                self._proving.interrupt()
            self._picture.watch.stop()
            self._lag.stop()
            with contextlib.suppress(BwtuiError):
                self._note_files()
            self._orphaned_keys.close()
            self._picture.recent.stop()
            self._looks.close()
            self._resources.close()
            self._destination.close()
            self._patience.close()
            try:
                self._close_recording(failure)
            finally:
                # Last, because the comparison may take a while to end.
                self._healing.close()
                if self._proving is not None:
                    self._proving.close()
        self._report.state = "stopped"
        self._report.detail = ""

    def _settle(self, failure: BwtuiError | None) -> None:
        """Record that nothing is in flight; without these files the next start is more careful."""
        if (self._late is None and self._ends is None) or self._destination.sink.queued():
            return
        with contextlib.suppress(BwtuiError, OSError):
            if self._late is not None:
                self._late.settle()
            if self._ends is not None and failure is None and not self._destination.service.outage():
                self._ends.store()

    def _check_end(self) -> None:
        """Raise Indeterminate if a run that ends on its own leaves topics that may differ from tables."""
        if lack := self._backfills.unsent():
            raise lack
        if reason := unproven(self._picture.status()):
            text, hint = reason
            raise Indeterminate(f"the relay has caught up, but {text}", hint)

    def _close_recording(self, ended: BwtuiError | None) -> None:
        """Finish the recording; a failure to do so is raised only if no other error ended the relay."""
        recorder, self._picture.recorder = self._picture.recorder, NullRecorder()
        try:
            with self._report.clock.during("disk"):
                recorder.close(ended)
        except StateFailed as error:
            if ended is None:
                raise self._report.failed(error) from error
            self._report.error("recording", error)

    def _is_stop_requested(self) -> bool:
        """Return whether to stop; the main thread calls this wherever it waits, to show that it is alive."""
        self._report.clock.turned()
        return self._stop.is_set() or (self._topics is not None and self._topics.refusal is not None)

    def _run(self) -> None:
        settings, report = self._settings, self._report
        report.detail = ", ".join(filter(None, ("checking PostgreSQL", self._destination.checked)))
        connection = self._connect()
        if settings.wait_for_services:
            # Close the session while waiting for other services: it might not survive a wait of hours.
            connection.close()
            self._answers.cluster(self._destination)
            connection = self._connect()
        # Start here, because the checks below may wait for a lock, and the sampler reports who holds it.
        self._lag.start()
        try:
            target = self._target(connection)
            self._healing.prepare(connection)
            findings = self._inspect(connection)
            identity = (findings.system_identifier, findings.database, settings.slot)
            topics = self._watch_topics(findings, identity)
            context = self._make_context(connection, findings, identity, topics)
            findings = transactional_stream.begin(context, connection, findings)
            self._healing.begun(context)
            self._picture.recent.start()
            publications = findings.publications
            is_there = findings.slot is not None
            path = state_folder(settings.relay_name) / "joined.json"
            is_due, coverage = partial(getattr, self._healing, "is_due"), context.history.coverage
            joined = JoinedTables(path, identity, settings, report, self._new_tables, is_due, coverage)
            has_checked = None if settings.skip_snapshot else joined.has_checked
            first = self._first = chunk_snapshot_of(
                settings, identity, self._backfills, report, has_checked, is_there=is_there
            )
            if findings.slot is None:
                # A snapshot has each key once, and none of its rows is read again because another one failed.
                context.output.sink.discard(in_order=False)
                if self._ends is not None:
                    self._ends.forget()
                beginning_of = InitialSetup(context, self._enter, first, joined, topics)
                publications = beginning_of.run(connection, findings)
                context.output.sink.discard(in_order=True)
            else:
                if (note := context.history.checkpoint.check(findings.slot)) is not None:
                    _log.warning("%s", note, extra=event("slot_differs"))
                    report.error("notice", RefusedError(note, _UNKNOWN_SLOT))
                # Not the LSN of the slot checkpoint, which may be ahead: see `SessionLoop.run`.
                report.confirmed_lsn = findings.slot.confirmed_lsn
                if self._ledger is not None:
                    self._check_coverage(self._ledger, context, connection, publications)
            self._check_joined_tables(connection, publications, joined)
            self._note_files()
        finally:
            connection.close()
        self._follow(context, publications, target, first)

    def _check_joined_tables(
        self, connection: Connection, publications: tuple[str, ...], joined: JoinedTables
    ) -> None:
        """Check for new tables once here, since a short run may end before the sampler's thread does it."""
        self._new_tables.reads = publications
        with contextlib.suppress(psycopg2.Error), interruptible(connection, self._is_stop_requested):
            joined.check(connection, self._backfills)
        self._joined = joined

    def _watch_topics(self, findings: PreflightState, identity: tuple[str, str, str]) -> TopicWatch:
        """Open the ledger, and start watching topics. Raises RefusedError and StateFailed."""
        folder = state_folder(self._settings.relay_name)
        coverage = Coverage()
        if not self._settings.record_only:
            coverage = self._ledger = CoverageLedger(folder, identity, self._settings, self._report)
            path = folder / f"ends-{self._settings.slot}.json"
            self._ends = TopicEnds(self._destination, self._report, path, coverage, self._bounds)
            if findings.slot is not None:
                self._ledger.check_settings()
        schemas = SchemaWatch(self._destination.registry, self._report, coverage)
        topics = TopicWatch(self._destination.service, self._report, folder / TOPICS_FILE, schemas, coverage)
        topics.begin_run(self._cluster)
        self._topics = self._resources.enter_context(topics)
        return topics

    def _check_coverage(
        self,
        ledger: CoverageLedger,
        context: RelayContext,
        connection: Connection,
        publications: tuple[str, ...],
    ) -> None:
        """Check what changed while the relay was stopped, before it continues. Raises StateFailed."""
        assert self._ends is not None and self._late is not None
        # Before the ends of topics are stored again.
        ledger.check_files()
        # Before anything is sent.
        self._answers.call("topics", partial(self._ends.check, lambda: check_stop(self._is_stop_requested)))
        self._late.resume(self._ends)
        is_unknown = ledger.is_empty and context.history.checkpoint.was_empty
        # A session that ends here does not end the relay: the next check compares with the same facts.
        with contextlib.suppress(psycopg2.Error), interruptible(connection, self._is_stop_requested):
            ledger.check_catalog(connection, publications, at_once=True)
        if is_unknown:
            ledger.distrust("is sent from a slot that this host has no record of: its topic may differ")
        elif self._is_ledger_removed:
            ledger.distrust("is no longer proven: the coverage ledger of its slot was removed")
        elif context.history.checkpoint.last is None:
            ledger.mark_all(
                f"may lack changes: the slot checkpoint {context.history.checkpoint.path} is missing"
            )

    def _follow(
        self, context: RelayContext, publications: tuple[str, ...], target: int | None, first: ChunkSnapshot
    ) -> None:
        """Stream to the end, across slots that are lost and recreated."""
        while True:
            self._new_tables.reads = publications
            self._backfill = Backfill(context, self._backfills, publications, first, self._is_more_due)
            following = SessionLoop(
                context, self._enter, transactional_stream.around(context, self._backfill)
            )
            try:
                # The target may lie beyond the WAL of the server on which the slot was recreated.
                ends_healed = self._settings.until_caught_up and self._healing.is_due
                following.run(publications, 0 if ends_healed else target)
                return
            except SlotLost as error:
                following.call_back(error)
                publications = self._healing.again(context, error) or publications

    def _first_snapshot(self) -> FirstSnapshot | None:
        """Return the progress of the first snapshot by chunks; None without one."""
        return self._first.status() if self._first is not None else None

    def _enter(self, phase: SnapshotCopier | StreamSession | None, slot_in_use: str) -> None:
        """Record the current phase, and the slot that retains WAL for it."""
        self._phase = phase
        self._slot_in_use = slot_in_use
        if isinstance(phase, StreamSession):
            self._healing.streaming()
            # Changes made while there was no session should be detected soon.
            self._lag.hurry()
            if self._ledger is not None:
                self._ledger.hurry()
                if self._proving is None:
                    self._proving = CoverageProver(
                        self._settings.relay_name,
                        self._ledger,
                        self._may_compare,
                        self._ensure_topics,
                        self._destination.service.delete_command,
                        self._report,
                        gives_up=self._settings.is_bounded,
                    )
                    self._proving.start()

    def _note_files(self) -> None:
        """Record which files say what topics lack, so that a file that is lost alone is noticed.

        Raises StateFailed.
        """
        if self._ledger is not None and self._first is not None:
            ends = self._ends.files() if self._ends is not None else {}
            files = (self._healing.files(), self._first.files(), self._backfills.files(), ends)
            self._ledger.expect({path: tables for each in files for path, tables in each.items()})

    def _take_topics(self, watch: TopicWatch, limits: Limits) -> None:
        """Record the topics' settings and their ends before the first row is sent to them."""
        if self._late is not None:
            # With --skip-snapshot, topics are expected to have the earlier rows.
            used = set() if self._settings.skip_snapshot else watch.first_used(limits)
            created = {one for one, of in limits.items() if isinstance(of, TopicLimits) and of.is_new}
            take = partial(self._late.take, list(limits), created=created, first_used=used)
            self._patience.call(self._destination.service.name, take)
        self._patience.call(self._destination.service.name, partial(watch.take, limits))

    def _ensure_topics(self, tables: Sequence[str]) -> None:
        assert self._ledger is not None and self._topics is not None
        topics = {self._report.table(name).topic: self._ledger.is_keyed(name) for name in tables}
        self._topics.ensure({topic: is_keyed for topic, is_keyed in topics.items() if topic})

    def _may_compare(self) -> bool:
        """Return whether tables can be compared with topics: the relay streams, and no heal compares them."""
        is_streaming = isinstance(self._phase, StreamSession) and self._report.state == "streaming"
        return is_streaming and not self._healing.is_due

    def _is_more_due(self) -> bool:
        """Return whether the relay's own work may still request rows before it has caught up."""
        joined = self._joined
        has_joined = joined is not None and not joined.has_checked(self._began)
        # A heal that gave up stays due, and no table is compared while a heal is due.
        is_comparing = self._ledger is not None and self._ledger.is_comparing and not self._healing.ended
        is_at_work = is_comparing or self._healing.is_at_work or self._orphaned_keys.is_at_work
        return has_joined or is_at_work or not self._has_checked

    @property
    def _has_checked(self) -> bool:
        """Return whether tables and topics were checked since this session began, or can't be."""
        if self._ledger is None or self._topics is None:
            return True
        return self._ledger.is_blind or (self._topics.has_looked() and self._ledger.has_checked)

    def _connect(self) -> Connection:
        settings, report = self._settings, self._report
        return self._answers.call("connect", lambda: connect_to_newest(settings, report, self._waiting))

    def _inspect(self, connection: Connection) -> PreflightState:
        info = connection.info
        self._picture.database = f"{info.host or 'local'}:{info.port}/{info.dbname}"
        with interruptible(connection, self._is_stop_requested):
            try:
                findings = inspect(connection, self._settings, self._waiting)
            except slot.SlotInUse as error:
                raise with_local_reader(error, connection, self._settings.relay_name) from error
        self._cluster = self._answers.cluster(self._destination)
        self._picture.findings = findings
        # A bounded run may end before the next sample.
        self._lag.hurry()
        name_topics(self._settings, self._report, findings.tables)
        return findings

    def _waiting(self, detail: str) -> None:
        self._report.detail = detail
        check_stop(self._is_stop_requested)

    def _target(self, connection: Connection) -> int | None:
        """Return the LSN to end at; with --until-caught-up, the end of everything committed by now."""
        if not self._settings.until_caught_up:
            return self._settings.end_lsn
        now = slot.committed_lsn(connection)
        return now if self._settings.end_lsn is None else min(now, self._settings.end_lsn)

    def _make_context(
        self,
        connection: Connection,
        findings: PreflightState,
        identity: tuple[str, str, str],
        topics: TopicWatch,
    ) -> RelayContext:
        settings, report, destination = self._settings, self._report, self._destination
        folder = state_folder(settings.relay_name)
        session = secrets.token_bytes(8)
        transactions = transactional_stream.transactions_of(settings, destination.sink, session)
        kind = WholeTransactionPolicy if transactions.is_used else RowPolicy
        policy = kind(settings, report, DeadLetterWriter(folder), destination.sink)
        catalog = CatalogCache(folder / "catalog.json", findings.system_identifier, findings.database)
        patience = self._patience
        ends = destination.service, destination.registry
        router = Router(
            settings, *ends, report, patience, catalog, partial(self._take_topics, topics), self._ledger
        )
        drop = settings.drop_command
        checkpoint = SlotCheckpointStore(folder, *identity, without_kafka=settings.record_only, drop=drop)
        self._note_ledger(checkpoint)
        if transactions.is_used:
            transactional_stream.wait_for_maker(connection, findings, self._waiting)
            self._answers.call("topics", partial(transactions.recall, identity, findings.slot, checkpoint))
        if findings.slot is None:
            checkpoint.check(None)
        elif not self._healing.is_due and (
            note := checkpoint.check_kafka(newest_checkpoint(*identity), accept=settings.skip_snapshot)
        ):
            report.error("notice", RefusedError(note, _recorded_hint(settings)))
        apart = dict.fromkeys(settings.side_topics.values(), False)
        limits = (
            self._answers.call("topics", partial(destination.service.ensure_topics, apart)) if apart else {}
        )
        for refusal in limits.values():
            if isinstance(refusal, RefusedError):
                raise refusal
        destination.service.take_limits(limits)
        toast = ToastFiller(settings, patience, self._pulse)
        if settings.record:
            self._picture.recorder = self._begin_recording(findings, session)
        late = self._late_records(findings, checkpoint, session, is_fenced=transactions.is_used)
        coverage = self._ledger or Coverage()
        return RelayContext(
            RunContext(settings, report, session, self._is_stop_requested),
            RowOutput(destination.sink, destination.service, policy, self._samples, self._picture.recorder),
            RelayServices(destination, patience, router, toast),
            SlotHistory(checkpoint, transactions, self._orphaned_keys, late, coverage),
        )

    def _note_ledger(self, checkpoint: SlotCheckpointStore) -> None:
        """Record in the slot checkpoint that a ledger is kept, and check whether one was removed."""
        if self._ledger is not None:
            self._is_ledger_removed = self._ledger.is_missing and checkpoint.has_ledger
            checkpoint.has_ledger = True

    def _late_records(
        self, findings: PreflightState, checkpoint: SlotCheckpointStore, session: bytes, *, is_fenced: bool
    ) -> LateRecords:
        path = checkpoint.path.with_name(f"unsettled-{self._settings.slot}")
        send_again = self._orphaned_keys.send_again
        coverage = self._ledger or Coverage()
        self._late = late = LateRecords(
            self._destination,
            self._report,
            session,
            send_again,
            path,
            coverage,
            self._bounds,
            self._ends,
            is_fenced=is_fenced,
        )
        if findings.slot is not None and checkpoint.last is None:
            # A relay on another host may have been killed.
            late.expect()
        return late

    def _begin_recording(self, findings: PreflightState, session: bytes) -> JournalRecorder:
        """Open the recording, or resume it; changes that it lacks are reported. Raises BwtuiError."""
        settings, report = self._settings, self._report
        source = recording_source(self.status(), findings, settings, self._cluster)
        before = continue_in(Path(settings.record), source)
        try:
            return JournalRecorder(settings, report, session, source, before, self.status)
        except BaseException:
            before.give_back()
            raise

    def _pulse(self, seconds: float) -> None:
        if self._phase is not None:
            self._phase.pulse(seconds)
        else:
            self._destination.sink.poll(seconds)
            check_stop(self._is_stop_requested)

    def _on_lock(self, blockers: tuple[Blocker, ...] | None) -> None:
        """Report that a lock prevents publications from being checked, or that none does."""
        if blockers is None:
            self._report.recovered(_LOCK)
            return
        held = ", ".join(str(blocker._replace(seconds=None)) for blocker in blockers)
        by = f" by {held}" if held else ""
        text = f"publications and new tables can't be checked: a table is locked{by}"
        self._report.error("lock", ConnectionFailed(text, ending(blockers)), dependency=_LOCK)

    def _on_failed_tick(self, reason: str) -> None:
        """Report that the catalog can't be read, although the stream continues."""
        if self._ledger is not None and isinstance(self._phase, StreamSession):
            self._ledger.unseen(CATALOG, reason)

    def _on_tick(self, connection: Connection) -> None:
        """Check tables, publications and backfills once a second, in the sampler's thread."""
        if self._picture.findings is None:
            # These queries may wait for the same locks as the check of the tables.
            return
        self._lag.forget_before(self._report.confirmed_lsn)
        # Without a session another server, or an older copy, may have answered.
        is_in_session = isinstance(self._phase, StreamSession)
        if self._ledger is not None and is_in_session:
            # First, because it waits for no lock.
            self._ledger.check_catalog(connection, self._new_tables.reads)
            self._note_files()
        if self._joined is not None and is_in_session:
            self._joined.check(connection, self._backfills)
        self._new_tables.check(connection)
        if self._backfill is not None and is_in_session:
            self._backfill.check_visible(connection)
        self._looks.tick(connection)
