"""The relay's status at one moment, assembled for other threads from what its components report."""

import dataclasses
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bwtui.model.backfill import BackfillStatus, FirstSnapshot
from bwtui.model.gaps import with_gaps
from bwtui.model.heal import HealStatus
from bwtui.model.lsn import format_lsn
from bwtui.model.status import LAG_IS_OLD, StageStatus, Status, TableStatus
from bwtui.model.verdict import RelayVerdict, ended
from bwtui.relay.dead_letters.letters import OpenLetters
from bwtui.relay.history.backfill_store import BackfillStore
from bwtui.relay.rows.batch import IN_FLIGHT_ROWS
from bwtui.relay.rows.recorder import NullRecorder, Recorder
from bwtui.relay.state.measures import Measures
from bwtui.relay.state.recent_history import RecentHistory, SlotLag, TableMeasures
from bwtui.relay.state.run_state import RunState, TableCounters, cpu_seconds, resident_bytes
from bwtui.relay.watch.judge import ServiceNames
from bwtui.relay.watch.relay_watch import RelayWatch
from bwtui.settings import RelaySettings
from bwtui.sink.destination import Destination
from bwtui.source.hosts import describe
from bwtui.source.lag import LagSampler
from bwtui.source.preflight import PreflightState

_NOT_MEASURED = TableMeasures()
_WINDOW_SECONDS = 2.0
#: Backfills advance chunk by chunk, so their rates need a longer window.
_CHUNKS_SECONDS = 10.0
#: Counters that are not fields of a table's status themselves.
_APART = ("schema_notes", "notes", "snapshot_before", "snapshot_began")
#: Counters that a table's status copies as they are.
_SHARED = tuple(field.name for field in dataclasses.fields(TableCounters) if field.name not in _APART)
_STEP_SECONDS = 0.25
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
        heal: Callable[[], HealStatus | None],
        first: Callable[[], FirstSnapshot | None],
    ) -> None:
        """``heal`` and ``first`` return the state of the heal, and of the first snapshot by chunks."""
        self._settings = settings
        self._report = report
        self._destination = destination
        self._lag = lag
        self._backfills = backfills
        self._rates = Rates()
        self._paces = Rates(_CHUNKS_SECONDS)
        #: Description of the database's host, and the findings of the preflight once the relay has connected.
        self.database = describe(settings.postgres)
        self.findings: PreflightState | None = None
        self.recorder: Recorder = NullRecorder()
        self._heal = heal
        self._first = first
        self.recent = RecentHistory(report, self._slot_lag)
        letters = OpenLetters(settings.relay_name, backfills.statuses)
        self.watch = RelayWatch(report, lag, self._names, destination.service.outage, letters.count)

    def status(self) -> Status:
        """Return the current status; any thread may call this."""
        report, settings, lag = self._report, self._settings, self._lag.lag
        findings, recorder = self.findings, self.recorder
        verdict, busy = self._verdict()
        numbers = _totals(report)
        rates = self._rates.update(numbers)
        confirmed = report.confirmed_lsn
        server = report.server_end(lag.server_lsn)
        resident, cpu = _with_workers(report)
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
            tables=_tables(report, rates, self.recent.tables),
            stages=_stages(report, numbers, rates, busy),
            latency=dict(report.latency.figures.ten_seconds),
            latency_minute=dict(report.latency.figures.minute),
            latency_since_start=dict(report.latency.figures.ever),
            errors=report.errors(),
            not_captured=report.not_captured,
            not_proven=report.not_proven,
            comparison=report.comparison,
            heal=self._heal(),
            first_snapshot=self._first(),
            recording=recorder.status(),
            exactly_once=self._destination.recall.exactly_once(),
            backfills=_backfills(self._backfills.statuses(), self._paces),
        )
        return with_gaps(status)

    def measures(self) -> Measures:
        """Return the current counts and measurements; any thread may call this."""
        report, clock = self._report, self._report.clock
        return Measures(
            status=self.status(),
            latency=report.latency.figures.distributions,
            errors=report.error_counts,
            sessions=report.sessions,
            copied_before={name: table.snapshot_before for name, table in report.tables.items()},
            schemas=Counter(entry.part for entry in report.schemas.values()),
            audits=report.audits,
            audited_at=report.audited_at,
            activities=dict(clock.totals(time.monotonic()).items()),
            turn=clock.turn(),
            slot_age=self._lag.age if self._lag.lag.sampled_at else None,
            is_stopping=report.is_stopping,
        )

    def _verdict(self) -> tuple[RelayVerdict, dict[str, float]]:
        report = self._report
        if report.state not in ("stopped", "failed"):
            return self.watch.look()
        error = report.fatal
        confirmed = format_lsn(report.confirmed_lsn) if report.confirmed_lsn else ""
        message, hint = (error.message, error.hint) if error else (None, None)
        first = self._first()
        remaining = first.remaining_work if first else ""
        return ended(message, hint, confirmed=confirmed, remaining_work=remaining), {}

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


class Rates:
    """Rates of growing totals over the last seconds; safe to call from several threads."""

    def __init__(self, seconds: float = _WINDOW_SECONDS) -> None:
        self._seconds = seconds
        self._samples: deque[tuple[float, dict[str, int]]] = deque()
        self._lock = threading.Lock()

    def update(self, totals: dict[str, int]) -> dict[str, float]:
        """Record the current ``totals``, and return the growth of each per second."""
        now = time.monotonic()
        with self._lock:
            samples = self._samples
            if not samples or now - samples[-1][0] >= _STEP_SECONDS:
                samples.append((now, totals))
            while len(samples) > 2 and now - samples[1][0] >= self._seconds:
                samples.popleft()
            then, before = samples[0]
        seconds = now - then
        if seconds <= 0:
            return dict.fromkeys(totals, 0.0)
        return {name: round(max(0, n - before.get(name, 0)) / seconds, 1) for name, n in totals.items()}


def _totals(report: RunState) -> dict[str, int]:
    """Return the totals whose rates the status shows: one per stage, and one per table."""
    read = report.rows_read
    stages = {
        "read": read,
        "decode": read,
        "encode": report.messages,
        "produce": report.durable + report.in_flight,
        "acknowledge": report.durable,
    }
    return stages | {f"table {name}": counters.rows for name, counters in report.tables.items()}


def _backfills(statuses: Sequence[BackfillStatus], rates: Rates) -> tuple[BackfillStatus, ...]:
    """Return the backfills with their rates."""
    paces = rates.update({status.id: status.rows + status.tombstones for status in statuses})
    return tuple(
        replace(status, rows_per_second=paces.get(status.id, 0.0)) if status.state == "running" else status
        for status in statuses
    )


def _with_workers(report: RunState) -> tuple[int, float]:
    """Return the resident memory in bytes, and the CPU seconds, of this process and its local workers."""
    workers = [worker for worker in report.snapshot_workers if not worker.host]
    return (
        resident_bytes() + sum(worker.resident_bytes for worker in workers),
        round(cpu_seconds() + report.workers_cpu_seconds + sum(w.cpu_seconds for w in workers), 3),
    )


def _tables(
    report: RunState, rates: dict[str, float], measures: Mapping[str, TableMeasures]
) -> dict[str, TableStatus]:
    """Return the statuses of the tables, by name."""
    return {
        name: _table(
            name, counters, rates.get(f"table {name}", 0.0), report, measures.get(name, _NOT_MEASURED)
        )
        for name, counters in sorted(report.tables.items())
    }


def _stages(
    report: RunState, numbers: dict[str, int], rates: dict[str, float], busy: dict[str, float]
) -> dict[str, StageStatus]:
    """Return the statuses of the stages; rows that wait for Kafka count in produce, bounded by ``capacity``.

    ``busy`` is the share of time spent in each stage.
    """
    queues = {"produce": (report.in_flight, IN_FLIGHT_ROWS), "acknowledge": (report.in_flight, None)}
    statuses = {}
    for name in ("read", "decode", "encode", "produce", "acknowledge"):
        queue, capacity = queues.get(name, (0, None))
        statuses[name] = StageStatus(
            rates.get(name, 0.0), queue, numbers[name], capacity, busy.get(name, 0.0)
        )
    return statuses


def _table(
    name: str, counters: TableCounters, rate: float, report: RunState, measures: TableMeasures
) -> TableStatus:
    shared = {name: getattr(counters, name) for name in _SHARED}
    latency = report.latency.figures.tables.get(name)
    return TableStatus(
        **shared,
        snapshot_seconds_left=counters.snapshot_seconds_left,
        rows_per_second=rate,
        bytes_per_second=measures.bytes_per_second,
        wal_share=measures.wal_share,
        wal_bytes_per_second=measures.wal_bytes_per_second,
        latency_p50=latency.p50 if latency else None,
        latency_p99=latency.p99 if latency else None,
        value_schema_version=measures.value_schema_version,
        notes=(*counters.schema_notes, *counters.notes),
    )
