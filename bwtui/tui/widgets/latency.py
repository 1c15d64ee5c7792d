"""Latencies from COMMIT to acknowledgement: percentiles by stage, and a histogram."""

import math
from collections.abc import Mapping, Sequence

from bwtui.model.latency import LATENCY_STAGES, Percentiles
from bwtui.model.status import Status
from bwtui.tui import figures
from bwtui.tui.plain import Content
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.panel import Panel

#: The latency stage of each pipeline stage; decoding and encoding are measured as one.
STAGE_OF: Mapping[str, str] = {
    "read": "received",
    "encode": "encoded",
    "produce": "produced",
    "acknowledge": "acknowledged",
}
_WORDS = {"total": "commit → ack"}
_NAME, _FIGURE = 14, 9
#: Minimum lines of the histogram.
_BARS = 3

Buckets = Sequence[tuple[float, float, int]]


class LatencyPanel(Panel):
    """Percentiles by stage, and below them a histogram of the total in the remaining space."""

    def __init__(self) -> None:
        super().__init__("Commit → acknowledgement", id="latency")

    def shown_of(self, picture: ScreenSnapshot) -> object:
        """Return everything that the drawing depends on, which changes at most once per second."""
        return _shown(picture) if picture.status is not None else None

    def draw(self, picture: ScreenSnapshot, width: int, height: int) -> None:
        """Draw the latest measurements."""
        if picture.status is None:
            return
        taken, over, buckets = _shown(picture)
        lines = _stages(taken) if taken else [Content.styled("nothing acknowledged yet", "$quiet")]
        if buckets and height >= len(lines) + _BARS + 1:
            left = height - len(lines) - 1
            gap = left > _BARS
            lines += [Content("")] * gap + histogram(buckets, width, left - gap)
        self.put(lines)
        total = taken.get("total")
        self.set_remark(f"{over} · {figures.count(total.count)} messages" if total else "")


def _shown(picture: ScreenSnapshot) -> tuple[Mapping[str, Percentiles], str, Buckets]:
    assert picture.status is not None
    taken, over = taken_by(picture.status)
    return taken, over, picture.history.latency if over == "last minute" else ()


def taken_by(status: Status) -> tuple[Mapping[str, Percentiles], str]:
    """Return the latest available percentiles by stage, and the period that they cover."""
    for taken, over in (
        (status.latency_minute, "last minute"),
        (status.latency, "last 10 s"),
        (status.latency_since_start, "since start"),
    ):
        if taken:
            return taken, over
    return {}, ""


def brief(seconds: float) -> str:
    """Return a duration in at most six characters: ``12.4ms``, ``3.1 s``."""
    return f"{figures.milliseconds(seconds)}ms" if seconds < 0.9995 else figures.duration(seconds)


def summary(status: Status) -> Content | None:
    """Return the total latency in one line; None if it is unknown."""
    taken, over = taken_by(status)
    total = taken.get("total")
    if total is None:
        return None
    return Content.assemble(
        ("commit → ack ", "$quiet"), ("p50 ", "$quiet"), brief(total.p50), (" p99 ", "$quiet"),
        (brief(total.p99), "bold"), (" max ", "$quiet"), brief(total.max), (f" {over}", "$quiet"),
    )  # fmt: skip


def _stages(taken: Mapping[str, Percentiles]) -> list[Content]:
    titles = "".join(title.rjust(_FIGURE) for title in ("p50", "p99", "max"))
    lines = [Content.styled("ms".ljust(_NAME) + titles, "$quiet")]
    for stage in LATENCY_STAGES:
        if (one := taken.get(stage)) is None:
            continue
        told = "".join(figures.milliseconds(v).rjust(_FIGURE) for v in (one.p50, one.p99, one.max))
        loud = "bold" if stage == "total" else ""
        lines.append(
            Content.assemble((_WORDS.get(stage, stage).ljust(_NAME), loud or "$quiet"), (told, loud))
        )
    received = taken.get("received")
    if received is not None and received.p50 < 0:
        lines.append(Content.styled("▲ PostgreSQL's clock is ahead of this one", "$warning"))
    return lines


def histogram(buckets: Buckets, width: int, height: int) -> list[Content]:
    """Return a histogram of the durations as bars over a logarithmic axis.

    Values at or below the beginning of the axis are counted in its first bar.
    """
    middles = [((lower + upper) / 2, count) for lower, upper, count in buckets]
    above = [middle for middle, _ in middles if middle > 0] or [0.001]
    first = math.floor(math.log10(max(min(above), 1e-5)))
    last = max(math.ceil(math.log10(max(above))), first + 1)
    counts = [0] * width
    for middle, count in middles:
        place = (math.log10(middle) - first) / (last - first) if middle > 0 else 0.0
        counts[min(max(int(place * width), 0), width - 1)] += count
    bars = [Content.styled(line, "$success") for line in figures.bars(counts, height)]
    return [*bars, Content.styled(_axis(first, last, width), "$quiet")]


def _axis(first: int, last: int, width: int) -> str:
    """Return the labels of the powers of ten at their places; the last one is at the end."""
    text = [" "] * width
    powers = range(first, last + 1)
    every = math.ceil(len(powers) * 8 / width)
    for power in powers[::every]:
        label = _power(power)
        start = min(round((power - first) / (last - first) * width), width - len(label))
        text[start : start + len(label)] = label
    return "".join(text)


def _power(power: int) -> str:
    if power < -3:
        return f"{10 ** (power + 6):g} µs"
    return f"{10 ** (power + 3):g} ms" if power < 0 else f"{10**power:g} s"
