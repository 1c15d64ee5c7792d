"""The last ten minutes of the relay, one sample per second, for clients that attach later.

One thread samples, and reads the report's counters like any other thread. While PostgreSQL is unavailable,
sampling continues, and lag and WAL are as old as the last sample of the slot.
"""

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bwtui.model.history import HISTORY_SECONDS, TREND_SECONDS, ChartMark, MarkKind, RelayHistory, Second
from bwtui.relay.state.run_state import RunState

_MARKS = 200
#: Minimum seconds before the same error is marked again.
_SAME_SECONDS = 60.0
#: Time window for the shares of the tables.
_SHARE_SECONDS = 10
#: Approximate WAL bytes of a row in addition to its values: its header and its entry in one index.
_ROW_OVERHEAD = 120


class SlotLag(NamedTuple):
    """The slot's lag and retained WAL, in bytes and seconds."""

    lag_bytes: int
    lag_seconds: float
    retained_bytes: int


@dataclass(frozen=True, slots=True)
class TableMeasures:
    """Measurements of one table in addition to its counters; see `bwtui.model.status.TableStatus`."""

    bytes_per_second: float = 0.0
    wal_share: float = 0.0
    wal_bytes_per_second: float = 0.0
    value_schema_version: int | None = None


class RecentHistory:
    """Samples a relay once a second, from `start` to `stop`."""

    def __init__(self, report: RunState, slot: Callable[[], SlotLag]) -> None:
        """``slot`` is called in the sampling thread, and returns at once."""
        self._report, self._latency, self._slot = report, report.latency, slot
        self._seconds: deque[Second] = deque(maxlen=HISTORY_SECONDS)
        self._marks: deque[ChartMark] = deque(
            [ChartMark(report.started, "start", "the relay started")], maxlen=_MARKS
        )
        self._trends: dict[str, array[float]] = {}
        #: Replaced whole.
        self.tables: Mapping[str, TableMeasures] = {}
        self._before = _SampledTotals(0, 0, {})
        self._weights: deque[tuple[float, dict[str, tuple[int, int]]]] = deque(maxlen=_SHARE_SECONDS)
        self._at = time.monotonic()
        self._sessions = 0
        self._schemas: Mapping[tuple[str, int], object] = {}
        self._versions: dict[str, int | None] = {}
        self._marked_at: dict[tuple[str, str | None, str], float] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recent", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the thread; the last latencies count as well."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
            self._latency.tick(time.monotonic(), is_last=True)
            self._report.transaction_log.tick(time.monotonic())

    def history(self, after: float = 0.0) -> RelayHistory:
        """Return the samples after ``after`` (Unix seconds); with ``after`` above 0, without trends."""
        with self._lock:
            trends = {} if after > 0 else self._trends
            seconds = self._behind(after)
            # If the clock was set back, times don't show which marks the client already has.
            is_set_back = any(one.time <= after for one in seconds)
            return RelayHistory(
                seconds,
                tuple(mark for mark in self._marks if is_set_back or mark.time > after),
                {table: tuple(round(point, 1) for point in points) for table, points in trends.items()},
                self._latency.figures.buckets,
            )

    def _behind(self, after: float) -> tuple[Second, ...]:
        """Return the samples after the one of ``after``, even if the clock was set back."""
        seconds = tuple(self._seconds)
        for at in range(len(seconds) - 1, -1, -1):
            if seconds[at].time == after:
                return seconds[at + 1 :]
        return tuple(one for one in seconds if one.time > after)

    def mark(self, kind: MarkKind, text: str, moment: float | None = None) -> None:
        """Record an event, now or at ``moment`` (Unix seconds); any thread may call this."""
        with self._lock:
            self._marks.append(ChartMark(time.time() if moment is None else moment, kind, text))

    def _run(self) -> None:
        due = time.monotonic() + 1.0
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            self.sample()
            # Missed seconds, such as those of a suspended process, are not made up for.
            due = max(due + 1.0, time.monotonic())

    def sample(self) -> None:
        now = time.monotonic()
        self._latency.tick(now)
        self._report.transaction_log.tick(now)
        seconds, self._at = now - self._at, now
        if seconds <= 0:
            return
        self._mark_events()
        totals = _SampledTotals.of(self._report)
        before, self._before = self._before, totals
        taken = self._latency.figures.second
        slot = self._slot()
        second = Second(
            time=round(time.time(), 3),
            read_per_second=_rate(totals.read - before.read, seconds),
            # The number of acknowledged messages falls when messages are sent again.
            acknowledged_per_second=_rate(max(0, totals.durable - before.durable), seconds),
            lag_bytes=slot.lag_bytes,
            lag_seconds=slot.lag_seconds,
            retained_wal_bytes=slot.retained_bytes,
            p50=taken.p50 if taken else None,
            p99=taken.p99 if taken else None,
            max=taken.max if taken else None,
        )
        grown = totals.growth(before)
        with self._lock:
            self._seconds.append(second)
            self._extend_trends({table: rows / seconds for table, (rows, _, _) in grown.items()})
        self._weights.append((seconds, {table: (size, rows) for table, (rows, size, _) in grown.items()}))
        self.tables = self._measures()

    def _extend_trends(self, rates: dict[str, float]) -> None:
        trends = self._trends
        for table in rates:
            if table not in trends:
                trends[table] = array("f", bytes(4 * min(len(self._seconds) - 1, TREND_SECONDS)))
        for table, points in list(trends.items()):
            points.append(rates.get(table, 0.0))
            del points[:-TREND_SECONDS]
            if not any(points):
                del trends[table]

    def _measures(self) -> dict[str, TableMeasures]:
        seconds = sum(one for one, _ in self._weights)
        sizes: dict[str, int] = {}
        weights: dict[str, int] = {}
        for _, tables in self._weights:
            for table, (size, rows) in tables.items():
                sizes[table] = sizes.get(table, 0) + size
                weights[table] = weights.get(table, 0) + size + rows * _ROW_OVERHEAD
        whole = sum(weights.values()) or 1
        return {
            table: TableMeasures(
                _rate(sizes.get(table, 0), seconds),
                round(weights.get(table, 0) / whole, 4),
                _rate(weights.get(table, 0), seconds),
                self._versions.get(table),
            )
            for table in sizes.keys() | self._versions.keys()
        }

    # -- marks ---------------------------------------------------------------------------------------------

    def _mark_events(self) -> None:
        sessions, self._sessions = self._sessions, self._report.sessions
        if self._sessions > max(sessions, 1):
            self.mark("reconnect", "the stream reconnected")
        self._mark_errors()
        schemas, self._schemas = self._schemas, self._report.schemas
        if schemas is not self._schemas:
            self._mark_schemas(schemas)

    def _mark_errors(self) -> None:
        marked, self._marked_at = self._marked_at, {}
        for entry in self._report.errors():
            if entry.kind == "notice":
                continue
            which = (entry.kind, entry.table, entry.message)
            last = marked.get(which, 0.0)
            if is_new := entry.time - last > _SAME_SECONDS:
                self.mark("error", entry.message, entry.time)
            self._marked_at[which] = entry.time if is_new else last

    def _mark_schemas(self, before: Mapping[tuple[str, int], object]) -> None:
        subjects = {subject for subject, _ in before}
        for key, entry in self._report.schemas.items():
            if entry.part != "value":
                continue
            self._versions[entry.table] = entry.version
            if key not in before and entry.subject in subjects:
                version = "" if entry.version is None else f", version {entry.version}"
                self.mark("ddl", f"{entry.table} has value schema {entry.id}{version}", entry.time)


@dataclass(frozen=True, slots=True)
class _SampledTotals:
    """The counts at one moment."""

    read: int
    durable: int
    #: Rows, bytes and messages.
    tables: dict[str, tuple[int, int, int]]

    @classmethod
    def of(cls, report: RunState) -> "_SampledTotals":
        tables = {name: (table.rows, table.bytes, table.messages) for name, table in report.tables.items()}
        return cls(report.rows_read, report.durable, tables)

    def growth(self, before: "_SampledTotals") -> dict[str, tuple[int, int, int]]:
        """Return what was added since ``before``, for tables with additions."""
        nothing = (0, 0, 0)
        return {
            name: (now[0] - old[0], now[1] - old[1], now[2] - old[2])
            for name, now in self.tables.items()
            if now != (old := before.tables.get(name, nothing))
        }


def _rate(number: float, seconds: float) -> float:
    return round(number / seconds, 1) if seconds > 0 else 0.0
