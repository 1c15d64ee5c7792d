"""The engine: one relay from its preconditions to its end.

It runs in the main thread of its process. Other threads look, ask services and sync; the control
server's threads read statuses. The engine never waits for a reader.
"""

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import psycopg2

from bwtui.blocking import BlockingCalls
from bwtui.encode.names import colliding_topics, topic_name
from bwtui.errors import BwtuiError, RefusedError, StateFailed
from bwtui.model.history import History
from bwtui.model.looks import Look, LookName
from bwtui.model.lsn import format_lsn
from bwtui.model.status import LAG_IS_OLD, ChangeSample, SchemaEntry, Status
from bwtui.model.verdict import Verdict, ended
from bwtui.recording.continuing import check_ahead, continue_in
from bwtui.relay import status_builder
from bwtui.relay.context import RelayContext, StopRequested, check_stop
from bwtui.relay.following import Following
from bwtui.relay.measured.recent import Recent, Slot
from bwtui.relay.memory import SlotMemory, newest_memory
from bwtui.relay.patience import Patience
from bwtui.relay.policy import RowPolicy
from bwtui.relay.portable_settings import portable
from bwtui.relay.process.looks import Looks
from bwtui.relay.recording.as_json import recording_source
from bwtui.relay.recording.recorder import Recorder
from bwtui.relay.report import Report
from bwtui.relay.routes.catalog_memory import CatalogMemory
from bwtui.relay.routes.new_tables import NewTables
from bwtui.relay.routes.routing import Router, refuse_shared, topics_collide
from bwtui.relay.samples import Samples
from bwtui.relay.snapshot.beginning import Beginning
from bwtui.relay.snapshot.copying import Copying
from bwtui.relay.streaming import Streaming
from bwtui.relay.toast import ToastFill
from bwtui.relay.watch.account import Activity
from bwtui.relay.watch.seen import Names
from bwtui.relay.watch.watch import Watch
from bwtui.settings import RelaySettings
from bwtui.sink.dead_letter import DeadLetters
from bwtui.sink.destination import kind_of
from bwtui.source import slot
from bwtui.source.connection import Connection, connect, describe, statement_failed
from bwtui.source.lag import LagSampler
from bwtui.source.preflight import Findings, inspect
from bwtui.state_folder import state_folder

_log = logging.getLogger(__name__)
#: The states in which rows pass, or should.
_UNDER_WAY = ("snapshot", "streaming")
#: Past this age the last look at the slot says nothing of the present.
_LAG_IS_OLD_SECONDS = 10.0


T = TypeVar("T")

#: The hint of a note on a slot that this relay does not remember.
_UNKNOWN_SLOT = "nothing need be done if that is meant; otherwise stop, and name a slot of its own with -s"
#: The hint of a note on what went to a recording alone.
_RECORDED = "nothing need be done if that is meant; otherwise 'bwtui slots drop' and a new snapshot bring it"


class Engine:
    """One relay; see `bwtui.relay.process.server.StatusSource` for what other threads may call."""

    def __init__(self, settings: RelaySettings) -> None:
        """Check the settings as far as that needs no connection.

        Raises UsageError, and RefusedError or StateFailed for a folder in which nobody can record.
        """
        if settings.record:
            check_ahead(Path(settings.record))
        self._settings = settings
        # At once: it looks at this process's variables and folder, which the other threads leave alone.
        self._portable_settings = portable(settings)
        self._report = Report()
        self._samples = Samples()
        self._rates = status_builder.Rates()
        self._stop = threading.Event()
        self._destination = kind_of(settings).open_destination(settings)
        self._recorder: Recorder | None = None
        self._patience = Patience(settings.postgres, self._report, self._pulse)
        self._cluster = ""
        self._slot_in_use = settings.slot
        self._looks = Looks(settings, self._destination.readers, self._report, self._samples)
        self._lag = LagSampler(settings.postgres, lambda: self._slot_in_use, self._on_tick)
        self._recent = Recent(self._report, self._slot_stands)
        self._findings: Findings | None = None
        self._phase: Copying | Streaming | None = None
        self._new_tables = NewTables(settings, self._report)
        self._database = describe(settings.postgres)
        self._watch = Watch(self._report, self._lag, self._names, self._destination.service.outage)

    # -- for other threads ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask for a clean stop; returns at once."""
        self._stop.set()

    def status(self) -> Status:
        """Return the status of this moment."""
        report, settings, lag, findings = self._report, self._settings, self._lag.lag, self._findings
        verdict, busy = self._verdict()
        numbers = status_builder.totals(report)
        rates = self._rates.update(numbers)
        confirmed = report.confirmed_lsn
        server = max(lag.server_lsn, report.server_lsn)
        return Status(
            state="stalled"
            if verdict.condition == "stalled" and report.state in _UNDER_WAY
            else report.state,
            phase=report.state,
            verdict=verdict,
            name=settings.relay_name,
            slot=settings.slot,
            detail=self._detail(),
            pid=os.getpid(),
            started=report.started,
            time=time.time(),
            publication=settings.publication_name,
            database=self._database,
            broker=self._destination.address,
            registry=self._destination.registry.url_without_user,
            server_version=findings.server_version if findings else "",
            confirmed_lsn=confirmed,
            received_lsn=report.received_lsn,
            server_lsn=server,
            restart_lsn=lag.restart_lsn,
            wal_lag_bytes=max(0, server - confirmed) if confirmed else 0,
            wal_lag_seconds=round(self._lag.seconds_behind(confirmed), 3) if confirmed else 0.0,
            retained_wal_bytes=lag.retained_bytes,
            wal_status=lag.wal_status,
            safe_wal_bytes=lag.safe_wal_bytes,
            spill_bytes=lag.spill_bytes,
            transactions=report.transactions,
            resident_bytes=status_builder.resident_bytes(),
            cpu_seconds=status_builder.cpu_seconds(),
            tables=status_builder.tables(report, rates, self._recent.tables),
            stages=status_builder.stages(report, numbers, rates, busy),
            latency=dict(report.latency.figures.ten_seconds),
            latency_minute=dict(report.latency.figures.minute),
            latency_since_start=dict(report.latency.figures.ever),
            errors=report.errors(),
            not_captured=report.not_captured,
            recording=self._recorder.status() if self._recorder is not None else None,
        )

    def _verdict(self) -> tuple[Verdict, dict[str, float]]:
        report = self._report
        if report.state not in ("stopped", "failed"):
            return self._watch.look()
        error = report.fatal
        confirmed = format_lsn(report.confirmed_lsn) if report.confirmed_lsn else ""
        return ended(error.message if error else None, error.hint if error else None, confirmed=confirmed), {}

    def _names(self) -> Names:
        """Return what those are called that the relay waits for."""
        kind, address = self._destination.service.name, self._destination.address
        return Names(
            f"PostgreSQL at {self._database}",
            f"{kind} at {address}" if kind else "the sink",
            f"the schema registry at {self._destination.registry.url_without_user}",
            f"the recording in {self._settings.record}" if self._settings.record else "",
            self._destination.service.lingers,
        )

    def _detail(self) -> str:
        last = self._lag.lag.time
        if last and time.time() - last > _LAG_IS_OLD_SECONDS and self._report.state in _UNDER_WAY:
            return f"{LAG_IS_OLD} {time.strftime('%T', time.localtime(last))}: the lag shown is that old"
        return self._destination.service.outage() or self._report.detail

    def _slot_stands(self) -> Slot:
        """Return how the slot stands, for the history."""
        lag, confirmed = self._lag.lag, self._report.confirmed_lsn
        server = max(lag.server_lsn, self._report.server_lsn)
        behind = self._lag.seconds_behind(confirmed) if confirmed else 0.0
        return Slot(max(0, server - confirmed) if confirmed else 0, round(behind, 3), lag.retained_bytes)

    def history(self, after: float) -> History:
        """Return the last ten minutes behind ``after``."""
        return self._recent.history(after)

    def audited(self, verdict: str) -> None:
        """Mark in the history how an audit of the tables has ended."""
        self._recent.mark("audit", f"an audit of the tables ended: {verdict}")

    def changes(self, after: int) -> list[ChangeSample]:
        """Return sampled changes after sequence ``after``, oldest first."""
        return self._samples.after(after)

    def schemas(self) -> list[SchemaEntry]:
        """Return every schema that was registered."""
        return list(self._report.schemas.values())

    def settings(self) -> RelaySettings:
        """Return settings that mean the same in another process."""
        return self._portable_settings

    def look(self, name: LookName, about: Sequence[str] = (), *, glance: bool = False) -> Look:
        """Return what is asked of the services while somebody looks; see `bwtui.relay.process.looks`."""
        return self._looks.look(name, about, glance=glance)

    # -- the main thread -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Relay until stopped, or until the target LSN is confirmed. Raises BwtuiError."""
        failure: BwtuiError | None = None
        self._watch.start()
        try:
            self._run()
        except StopRequested:
            pass
        except psycopg2.Error as error:
            failure = self._failed(statement_failed(error))
            raise failure from error
        except BwtuiError as error:
            failure = self._failed(error)
            raise
        finally:
            self._watch.stop()
            self._lag.stop()
            self._recent.stop()
            self._looks.close()
            self._destination.close()
            self._patience.close()
            self._close_recording(failure)
        self._report.state = "stopped"
        self._report.detail = ""

    def _close_recording(self, ended: BwtuiError | None) -> None:
        """Finish the recording; that it can't be is an error of its own only where there is no other."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        try:
            with self._report.account.during("disk"):
                recorder.close(ended)
        except StateFailed as error:
            if ended is None:
                raise self._failed(error) from error
            self._report.error("recording", error)

    def _failed(self, error: BwtuiError) -> BwtuiError:
        self._report.error("fatal", error)
        self._report.fatal = error
        self._report.state = "failed"
        self._report.detail = error.message
        return error

    def _run(self) -> None:
        self._report.detail = ", ".join(filter(None, ("checking PostgreSQL", self._destination.checked)))
        connection = self._ask("connect", lambda: connect(self._settings.postgres))
        try:
            target = self._target(connection)
            findings = self._inspect(connection)
            context = self._make_context(findings)
            self._lag.start()
            self._recent.start()
            publications = findings.publications
            if findings.slot is None:
                # A snapshot has each key once, and no row of it is read again for another's sake.
                context.sink.discard(in_order=False)
                publications = Beginning(context, self._enter).run(connection, findings)
                context.sink.discard(in_order=True)
            else:
                note = context.memory.check(findings.slot)
                if note is not None:
                    _log.warning("%s", note)
                    self._report.error("notice", RefusedError(note, _UNKNOWN_SLOT))
                # Not the remembered LSN, which may be ahead: see `Following.run`.
                self._report.confirmed_lsn = findings.slot.confirmed_lsn
        finally:
            connection.close()
        self._new_tables.reads = publications
        Following(context, self._enter).run(publications, target)

    def _enter(self, phase: Copying | Streaming | None, slot_in_use: str) -> None:
        """Take note of the phase whose turn it is, and of the slot that holds the WAL for it."""
        self._phase = phase
        self._slot_in_use = slot_in_use

    def _inspect(self, connection: Connection) -> Findings:
        info = connection.info
        self._database = f"{info.host or 'local'}:{info.port}/{info.dbname}"
        findings = inspect(connection, self._settings, self._waiting)
        self._cluster = self._ask("topics", self._destination.service.check)
        if self._settings.output_format == "avro":
            self._ask("registry", self._destination.registry.check)
        self._findings = findings
        self._name_topics(findings)
        return findings

    def _waiting(self, what: str) -> None:
        self._report.detail = what
        check_stop(self._stop.is_set)

    def _ask(self, activity: Activity, call: Callable[[], T]) -> T:
        """Return a service's answer, before there is a stream to keep alive. Raises StopRequested too."""
        before = self._report.account.turn_to(activity)
        calls = BlockingCalls(lambda _: check_stop(self._stop.is_set))
        try:
            return calls.make(call)
        finally:
            self._report.account.turn_to(before)
            calls.close()

    def _name_topics(self, findings: Findings) -> None:
        """Show every table before its first row, and refuse topics that can't be told apart."""
        topics = {}
        for table in findings.tables:
            counters = self._report.table(table.qualified_name)
            counters.topic = topic_name(self._settings.topic_prefix, table.namespace, table.name)
            refuse_shared(self._settings, counters.topic, table.qualified_name)
            topics[counters.topic] = table.qualified_name
        for group in colliding_topics(topics):
            raise topics_collide([topics[topic] for topic in group], group)

    def _target(self, connection: Connection) -> int | None:
        """Return the LSN to end at; with --until-caught-up, that of everything committed by now."""
        if not self._settings.until_caught_up:
            return self._settings.end_lsn
        now = slot.committed_lsn(connection)
        return now if self._settings.end_lsn is None else min(now, self._settings.end_lsn)

    def _make_context(self, findings: Findings) -> RelayContext:
        settings, report, destination = self._settings, self._report, self._destination
        folder = state_folder(settings.relay_name)
        policy = RowPolicy(settings, report, DeadLetters(folder), destination.sink)
        seen = CatalogMemory(folder / "catalog.json", findings.system_identifier, findings.database)
        patience = self._patience
        router = Router(settings, destination.service, destination.registry, report, patience, seen)
        identity = (findings.system_identifier, findings.database, settings.slot)
        memory = SlotMemory(folder, *identity, without_kafka=settings.record_only)
        if findings.slot is None:
            memory.check(None)
        elif note := memory.check_kafka(newest_memory(*identity), accept=settings.skip_snapshot):
            report.error("notice", RefusedError(note, _RECORDED))
        apart = dict.fromkeys(filter(None, (settings.dead_letter_topic, settings.truncate_topic)), False)
        limits = destination.service.ensure_topics(apart) if apart else {}
        for refusal in limits.values():
            if isinstance(refusal, RefusedError):
                raise refusal
        destination.service.take_limits(limits)
        toast = ToastFill(settings, patience.look, self._pulse)
        session = secrets.token_bytes(8)
        if settings.record:
            self._recorder = self._begin_recording(findings, session)
        return RelayContext(
            settings,
            report,
            destination,
            patience,
            router,
            policy,
            toast,
            self._samples,
            memory,
            self._stop.is_set,
            session,
            self._recorder,
        )

    def _begin_recording(self, findings: Findings, session: bytes) -> Recorder:
        """Open the recording, or go on with it; what it misses is reported. Raises BwtuiError."""
        settings, report = self._settings, self._report
        source = recording_source(self.status(), findings, settings, self._cluster)
        before = continue_in(Path(settings.record), source)
        try:
            recorder = Recorder(settings, report, session, source, before)
        except BaseException:
            before.give_back()
            raise
        recorder.record_status(self.status)
        return recorder

    def _pulse(self, seconds: float) -> None:
        if self._phase is not None:
            self._phase.pulse(seconds)
        else:
            self._destination.sink.poll(seconds)
            check_stop(self._stop.is_set)

    def _on_tick(self, connection: Connection) -> None:
        """Once a second, in the sampler's thread: report tables that the publication leaves out, and look."""
        self._lag.forget_before(self._report.confirmed_lsn)
        self._new_tables.look(connection)
        self._looks.tick(connection)
