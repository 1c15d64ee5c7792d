"""The measurements of the made-up shop's relay for the last ten minutes."""

import math

from bwtui.model.histogram import Histogram
from bwtui.model.history import HISTORY_SECONDS, ChartMark, RelayHistory, Second
from bwtui.model.latency import LATENCY_STAGES, Percentiles

#: Median seconds of a message until each stage.
_TYPICAL = dict(zip(LATENCY_STAGES, (0.0021, 0.00006, 0.00008, 0.0106, 0.0138), strict=True))


def latencies(count: int) -> dict[str, Percentiles]:
    """Return the latencies of ``count`` messages until each stage."""
    return {
        stage: Percentiles(count, typical / 4, typical, typical * 2.1, typical * 4.5, typical * 9)
        for stage, typical in _TYPICAL.items()
    }


def history(now: float, seconds: int = HISTORY_SECONDS, burst: float = 0.0) -> RelayHistory:
    """Return the history up to ``now``: waves, one event of each kind, and maybe a burst."""
    first = math.floor(now) - seconds + 1
    kept = tuple(_second(first + n, burst if n == seconds // 3 else 0.0) for n in range(seconds))
    marks = (
        ChartMark(now - 570, "start", "the relay started"),
        ChartMark(now - 410, "ddl", "public.orders has value schema 6, version 2"),
        ChartMark(now - 300, "error", "the broker at 127.0.0.1:59092 did not answer for 12 s"),
        ChartMark(now - 250, "reconnect", "the stream reconnected"),
        ChartMark(now - 45, "audit", "an audit of the tables ended: everything is there"),
    )
    return RelayHistory(kept, tuple(mark for mark in marks if mark.time >= first), {}, _buckets())


def _second(moment: int, burst: float) -> Second:
    wave = 1 + 0.35 * math.sin(moment / 40) + 0.1 * math.sin(moment / 3)
    # Kafka was unavailable for half a minute, and then got everything at once.
    away, behind = 270 <= moment % 600 < 300, 300 <= moment % 600 < 320
    read = 2800 * wave * (0.3 if away else 1) + burst
    sent = 0.0 if away else read * (2.2 if behind else 1)
    return Second(
        float(moment), round(read, 1), round(sent, 1), 90_000, 0.2, 16_000_000, 0.0138, 0.062, 0.124
    )


def _buckets() -> tuple[tuple[float, float, int], ...]:
    taken = Histogram()
    for n in range(1, 400):
        taken.add(0.0138 * math.exp(0.6 * math.sin(n) + 0.5 * math.cos(n * 1.7)), 400)
    return tuple(taken.buckets())
