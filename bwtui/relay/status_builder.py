"""Builds the parts of the `Status` that other processes see, from the report and the rates."""

import dataclasses
import resource
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bwtui.model.backfill import BackfillStatus
from bwtui.model.status import StageStatus, TableStatus
from bwtui.relay.batch import IN_FLIGHT_ROWS
from bwtui.relay.metrics.recent_history import TableMeasures
from bwtui.relay.run_state import RunState, TableCounters

_NOT_MEASURED = TableMeasures()
_WINDOW_SECONDS = 2.0
#: Backfills advance chunk by chunk, so their rates need a longer window.
CHUNKS_SECONDS = 10.0
#: Counters that are not fields of a table's status themselves.
_APART = ("schema_notes", "notes", "snapshot_before", "snapshot_began")
#: Counters that a table's status copies as they are.
_SHARED = tuple(field.name for field in dataclasses.fields(TableCounters) if field.name not in _APART)
_STEP_SECONDS = 0.25


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


def totals(report: RunState) -> dict[str, int]:
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


def backfills(statuses: Sequence[BackfillStatus], rates: Rates) -> tuple[BackfillStatus, ...]:
    """Return the backfills with their rates."""
    paces = rates.update({status.id: status.rows + status.tombstones for status in statuses})
    return tuple(
        replace(status, rows_per_second=paces.get(status.id, 0.0)) if status.state == "running" else status
        for status in statuses
    )


def with_workers(report: RunState) -> tuple[int, float]:
    """Return the resident memory in bytes, and the CPU seconds, of this process and its local workers."""
    workers = [worker for worker in report.snapshot_workers if not worker.host]
    return (
        resident_bytes() + sum(worker.resident_bytes for worker in workers),
        round(cpu_seconds() + report.workers_cpu_seconds + sum(w.cpu_seconds for w in workers), 3),
    )


def tables(
    report: RunState, rates: dict[str, float], measures: Mapping[str, TableMeasures]
) -> dict[str, TableStatus]:
    """Return the statuses of the tables, by name."""
    return {
        name: _table(
            name, counters, rates.get(f"table {name}", 0.0), report, measures.get(name, _NOT_MEASURED)
        )
        for name, counters in sorted(report.tables.items())
    }


def stages(
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


def resident_bytes(*, with_files: bool = True) -> int:
    """Return this process's resident memory in bytes; its peak if /proc is not available.

    Without files: file-backed memory, mostly libraries, exists only once for all processes of a relay.
    """
    try:
        _, pages, of_files, *_ = map(int, Path("/proc/self/statm").read_text().split())
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (pages if with_files else pages - of_files) * resource.getpagesize()


def cpu_seconds() -> float:
    """Return the CPU seconds that this process has used so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return round(usage.ru_utime + usage.ru_stime, 3)


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
