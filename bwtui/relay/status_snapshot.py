"""The relay's status at one moment, assembled for other threads from what its components report."""

import os
import time
from collections import Counter
from collections.abc import Callable

from bwtui.model.backfill import FirstSnapshot
from bwtui.model.gaps import with_gaps
from bwtui.model.heal import HealStatus
from bwtui.model.lsn import format_lsn
from bwtui.model.status import LAG_IS_OLD, Status
from bwtui.model.verdict import RelayVerdict, ended
from bwtui.relay import status_builder
from bwtui.relay.backfill.store import BackfillStore
from bwtui.relay.dead_letters.letter_state import OpenLetters
from bwtui.relay.metrics.measures import Measures
from bwtui.relay.metrics.recent_history import RecentHistory, SlotLag
from bwtui.relay.recording.recorder import Recorder
from bwtui.relay.run_state import RunState
from bwtui.relay.watch.observation import ServiceNames
from bwtui.relay.watch.relay_watch import RelayWatch
from bwtui.settings import RelaySettings
from bwtui.sink.destination import Destination
from bwtui.source.failover.hosts import describe
from bwtui.source.lag import LagSampler
from bwtui.source.preflight import PreflightState

#: The states in which rows are relayed, or should be.
_UNDER_WAY = ("snapshot", "streaming")
#: Samples of the slot older than this no longer describe the present.
_LAG_IS_OLD_SECONDS = 10.0


class StatusSnapshots:
    """The status snapshots and measurements of one relay; the engine adds components as it creates them."""

    def __init__(
        self,
        settings: RelaySettings,
        report: RunState,
        destination: Destination,
        lag: LagSampler,
        backfills: BackfillStore,
    ) -> None:
        self._settings = settings
        self._report = report
        self._destination = destination
        self._lag = lag
        self._backfills = backfills
        self._rates = status_builder.Rates()
        self._paces = status_builder.Rates(status_builder.CHUNKS_SECONDS)
        #: Description of the database's host, and the findings of the preflight once the relay has connected.
        self.database = describe(settings.postgres)
        self.findings: PreflightState | None = None
        self.recorder: Recorder | None = None
        self.heal: Callable[[], HealStatus | None] = lambda: None
        self.first: Callable[[], FirstSnapshot | None] = lambda: None
        self.recent = RecentHistory(report, self._slot_lag)
        letters = OpenLetters(settings.relay_name, backfills.statuses)
        self.watch = RelayWatch(report, lag, self._names, destination.service.outage, letters.count)

    def status(self) -> Status:
        """Return the current status; any thread may call this."""
        report, settings, lag = self._report, self._settings, self._lag.lag
        findings, recorder = self.findings, self.recorder
        verdict, busy = self._verdict()
        numbers = status_builder.totals(report)
        rates = self._rates.update(numbers)
        confirmed = report.confirmed_lsn
        server = report.server_end(lag.server_lsn)
        resident, cpu = status_builder.with_workers(report)
        status = Status(
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
            database=self.database,
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
            resident_bytes=resident,
            cpu_seconds=cpu,
            snapshot_workers=report.snapshot_workers,
            tables=status_builder.tables(report, rates, self.recent.tables),
            stages=status_builder.stages(report, numbers, rates, busy),
            latency=dict(report.latency.figures.ten_seconds),
            latency_minute=dict(report.latency.figures.minute),
            latency_since_start=dict(report.latency.figures.ever),
            errors=report.errors(),
            not_captured=report.not_captured,
            not_proven=report.not_proven,
            heal=self.heal(),
            first_snapshot=self.first(),
            recording=recorder.status() if recorder is not None else None,
            exactly_once=self._destination.recall.exactly_once(),
            backfills=status_builder.backfills(self._backfills.statuses(), self._paces),
        )
        return with_gaps(status)

    def measures(self, *, is_stopping: bool) -> Measures:
        """Return the current counts and measurements; any thread may call this."""
        report, account = self._report, self._report.account
        return Measures(
            status=self.status(),
            latency=report.latency.figures.distributions,
            errors=report.error_counts,
            sessions=report.sessions,
            copied_before={name: table.snapshot_before for name, table in report.tables.items()},
            schemas=Counter(entry.part for entry in report.schemas.values()),
            audits=report.audits,
            audited_at=report.audited_at,
            activities=dict(account.totals(time.monotonic()).items()),
            turn=account.turn(),
            slot_age=self._lag.age if self._lag.lag.looked_at else None,
            is_stopping=is_stopping,
        )

    def _verdict(self) -> tuple[RelayVerdict, dict[str, float]]:
        report = self._report
        if report.state not in ("stopped", "failed"):
            return self.watch.look()
        error = report.fatal
        confirmed = format_lsn(report.confirmed_lsn) if report.confirmed_lsn else ""
        message, hint = (error.message, error.hint) if error else (None, None)
        first = self.first()
        return ended(message, hint, confirmed=confirmed, left=first.left if first else ""), {}

    def _names(self) -> ServiceNames:
        """Return display names of the services and files that the relay may be blocked on."""
        kind, address = self._destination.service.name, self._destination.address
        return ServiceNames(
            f"PostgreSQL at {self.database}",
            f"{kind} at {address}" if kind else "the sink",
            f"the schema registry at {self._destination.registry.url_without_user}",
            f"the recording in {self._settings.record}" if self._settings.record else "",
            self._destination.service.lingers,
            slot=self._settings.slot,
            heals=self._settings.heal,
        )

    def _detail(self) -> str:
        last = self._lag.lag.time
        if last and time.time() - last > _LAG_IS_OLD_SECONDS and self._report.state in _UNDER_WAY:
            return f"{LAG_IS_OLD} {time.strftime('%T', time.localtime(last))}: the lag shown is that old"
        return self._destination.service.outage() or self._report.detail

    def _slot_lag(self) -> SlotLag:
        """Return the slot's lag and retained WAL, for the history."""
        lag, confirmed = self._lag.lag, self._report.confirmed_lsn
        server = self._report.server_end(lag.server_lsn)
        behind = self._lag.seconds_behind(confirmed) if confirmed else 0.0
        return SlotLag(max(0, server - confirmed) if confirmed else 0, round(behind, 3), lag.retained_bytes)
