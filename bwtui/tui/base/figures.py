"""Times, bars and gauges as text, in addition to the numbers of `bwtui.model.number_format`."""

import math
import time
from collections.abc import Sequence
from datetime import datetime

from bwtui.model.number_format import count as count
from bwtui.model.number_format import duration as duration
from bwtui.model.number_format import milliseconds as milliseconds
from bwtui.model.number_format import rate as rate
from bwtui.model.number_format import size as size

_BARS = "▁▂▃▄▅▆▇█"
#: Shown in place of an unknown figure.
NONE = "–"


def clock(moment: float) -> str:
    """Return the local time of day: ``12:04:05``."""
    return time.strftime("%H:%M:%S", time.localtime(moment))


def precise_clock(moment: float) -> str:
    """Return the local time of day with milliseconds: ``12:04:05.123``."""
    return f"{clock(moment)}.{int(moment * 1000) % 1000:03}"


def elapsed(seconds: float) -> str:
    """Return how long something took: ``0.31 ms``, ``12.4 ms``, ``3.2 s``, ``3 m 05 s``."""
    return f"{milliseconds(seconds)} ms" if seconds < 0.9995 else duration(seconds)


def moment(seconds: float) -> str:
    """Return a local date and time of day: ``2026-01-15 12:04:05``."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def when(seconds: float, now: float) -> str:
    """Return the local time of day, with the date if it is not today's; both arguments are Unix seconds."""
    text, today = moment(seconds), moment(now)
    return clock(seconds) if text[:10] == today[:10] else text


def remaining(seconds: float | None) -> str:
    """Return the remaining time as ``12 s left``, or an empty string if it is unknown."""
    return "" if seconds is None else f"{duration(seconds)} left"


def percent(share: float) -> str:
    """Return a share of one as a percentage, never rounded up to 100."""
    return f"{min(int(share * 100), 100)}%"


def ceiling(values: Sequence[float]) -> float:
    """Return the value at which a chart is cut off, so that a short burst does not flatten the rest.

    This is the largest value, unless it exceeds three times the 90th percentile of the values above zero, or
    of few values the second largest; then it is 1.5 times that.
    """
    busy = sorted(value for value in values if value > 0)
    largest = busy[-1] if busy else 0.0
    if len(busy) < 4:
        return largest
    usual = busy[min(math.ceil(len(busy) * 0.9) - 1, len(busy) - 2)]
    return largest if largest <= 3 * usual else 1.5 * usual


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last ``width`` values as bars, right-aligned, scaled to their `ceiling`."""
    visible = list(values[-width:])
    top = ceiling(visible)
    if top <= 0:
        return (_BARS[0] * len(visible)).rjust(width)
    last = len(_BARS) - 1
    return "".join(_BARS[round(min(value / top, 1.0) * last)] for value in visible).rjust(width)


def bars(values: Sequence[float], height: int) -> list[str]:
    """Return the values as bars over ``height`` lines; the highest value fills all lines."""
    top, steps = max(values, default=0), len(_BARS)
    # Every value above zero is visible.
    levels = [math.ceil(value / top * height * steps) if value > 0 else 0 for value in values]
    return [
        "".join(" " if level <= base else _BARS[min(level - base, steps) - 1] for level in levels)
        for base in range((height - 1) * steps, -1, -steps)
    ]


def gauge(share: float, width: int) -> str:
    """Return a bar of ``width`` cells filled to ``share``; any share above zero fills at least one cell."""
    filled = min(width, max(round(share * width), 1 if share > 0 else 0))
    return "▰" * filled + "▱" * (width - filled)


def clock_and_age(moment: float, now: float) -> str:
    """Return the time of day, and the age in one unit, so that it rarely changes."""
    seconds = now - moment
    units = ((86_400, "d"), (3_600, "h"), (60, "m"))
    ago = next((f"{int(seconds // size)} {unit} ago" for size, unit in units if seconds >= size), "just now")
    day = "" if seconds < 43_200 else "%Y-%m-%d "
    return f"{datetime.fromtimestamp(moment).strftime(day + '%H:%M')}, {ago}"
