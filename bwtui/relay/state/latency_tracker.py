"""The latency of messages, measured once per batch.

The relay's thread only records raw times (`LatencyTracker.take`); the thread of
`bwtui.relay.state.recent_history` adds them to histograms once a second (`LatencyTracker.tick`), and
publishes figures that any thread may read.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from bwtui.model.delivery import DeliverySpan, Part
from bwtui.model.histogram import Distribution, Histogram
from bwtui.model.latency import LATENCY_STAGES, Percentiles

#: Maximum batches recorded between two ticks; beyond that the oldest are dropped. A second has room for that
#: many only if the batches are tiny.
_MOST = 8_192
_SLOTS = 10
#: Maximum age of the figures of the last minute, of the whole run and of tables.
_PAUSE_SECONDS = 5.0
_MICROS = 1_000_000
#: When a span passed each stage, the offset of the system clock from these times, and its tables.
_Noted = tuple[float, float, float, float, float, list[Part]]


class LatencyWindow:
    """The values of the last ``seconds``, in ten slots: each new slot replaces the oldest."""

    def __init__(self, seconds: float) -> None:
        self._width = seconds / _SLOTS
        self._slots: deque[tuple[int, Histogram]] = deque()

    def take(self, fresh: Histogram | None, now: float) -> None:
        """Add the values up to ``now``, and drop expired ones."""
        slots, slot = self._slots, int(now / self._width)
        if fresh is not None and fresh.count:
            if not slots or slots[-1][0] != slot:
                slots.append((slot, Histogram()))
            slots[-1][1].merge(fresh)
        while slots and slots[0][0] <= slot - _SLOTS:
            slots.popleft()

    def merged(self) -> Histogram | None:
        """Return the values as one histogram, or None if there are none."""
        if not self._slots:
            return None
        whole = Histogram()
        for _, histogram in self._slots:
            whole.merge(histogram)
        return whole


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """The latest figures, by stage; a stage without messages is missing. Immutable."""

    #: Of messages acknowledged since the previous tick, in the last ten seconds, the last minute, and ever.
    second: Percentiles | None = None
    ten_seconds: Mapping[str, Percentiles] = field(default_factory=dict)
    minute: Mapping[str, Percentiles] = field(default_factory=dict)
    ever: Mapping[str, Percentiles] = field(default_factory=dict)
    #: From COMMIT to acknowledgement in the last minute: by table with messages, and for all tables together.
    tables: Mapping[str, Percentiles] = field(default_factory=dict)
    buckets: tuple[tuple[float, float, int], ...] = ()
    #: For the whole run, by stage: all stages, from the first tick on.
    distributions: Mapping[str, Distribution] = field(default_factory=dict)


class LatencyTracker:
    """The latencies of one run; `take` belongs to the relay's thread, and `tick` to one other thread."""

    def __init__(self) -> None:
        self.figures = LatencyFigures()
        self._noted: deque[_Noted] = deque(maxlen=_MOST)
        self._ten = {stage: LatencyWindow(10) for stage in LATENCY_STAGES}
        self._minute = {stage: LatencyWindow(60) for stage in LATENCY_STAGES}
        self._ever = {stage: Histogram() for stage in LATENCY_STAGES}
        self._tables: dict[str, LatencyWindow] = {}
        self._due = 0.0

    def take(self, span: DeliverySpan, now: float) -> None:
        """Record that all of ``span`` was acknowledged, ``now`` by the monotonic clock."""
        self._noted.append((span.received, span.encoded, span.produced, now, span.clock, span.parts))

    def tick(self, now: float, *, is_last: bool = False) -> None:
        """Recompute the figures, ``now`` by the monotonic clock; long windows only every few seconds."""
        stages: dict[str, Histogram] = {stage: Histogram() for stage in LATENCY_STAGES}
        tables: dict[str, Histogram] = {}
        # Spans that arrive meanwhile belong to the next tick.
        for _ in range(len(self._noted)):
            _sort(self._noted.popleft(), stages, tables)
        for stage, fresh in stages.items():
            self._ten[stage].take(fresh, now)
            self._minute[stage].take(fresh, now)
            self._ever[stage].merge(fresh)
        for table, fresh in tables.items():
            self._tables.setdefault(table, LatencyWindow(60)).take(fresh, now)
        total = stages["total"]
        self.figures = replace(
            self.figures,
            second=Percentiles.of(total) if total.count else None,
            ten_seconds=_figures((stage, window.merged()) for stage, window in self._ten.items()),
        )
        if is_last or now >= self._due or not self.figures.ever:
            self._due = now + _PAUSE_SECONDS
            self._work_out_long_windows(now)

    def _work_out_long_windows(self, now: float) -> None:
        merged: dict[str, Histogram] = {}
        for table, window in list(self._tables.items()):
            window.take(None, now)
            if (whole := window.merged()) is None:
                del self._tables[table]
            else:
                merged[table] = whole
        total = self._minute["total"].merged()
        self.figures = replace(
            self.figures,
            minute=_figures((stage, window.merged()) for stage, window in self._minute.items()),
            ever=_figures(self._ever.items()),
            tables=_figures(merged.items()),
            buckets=tuple(total.buckets()) if total is not None else (),
            distributions={stage: histogram.distribution() for stage, histogram in self._ever.items()},
        )


def _sort(noted: _Noted, stages: dict[str, Histogram], tables: dict[str, Histogram]) -> None:
    """Add the times of one span to the histograms; every message counts as the oldest of its batch."""
    received, encoded, produced, acknowledged, clock, parts = noted
    count = sum(messages for _, messages, _ in parts)
    oldest = min(committed for _, _, committed in parts) / _MICROS - clock
    stages["received"].add(received - oldest, count)
    stages["encoded"].add(encoded - received, count)
    stages["produced"].add(produced - encoded, count)
    stages["acknowledged"].add(acknowledged - produced, count)
    stages["total"].add(acknowledged - oldest, count)
    for table, messages, committed in parts:
        histogram = tables.get(table)
        if histogram is None:
            histogram = tables[table] = Histogram()
        histogram.add(acknowledged + clock - committed / _MICROS, messages)


def _figures(histograms: Iterable[tuple[str, Histogram | None]]) -> dict[str, Percentiles]:
    return {
        name: Percentiles.of(histogram)
        for name, histogram in histograms
        if histogram is not None and histogram.count
    }
