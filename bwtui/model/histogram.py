"""How often values came: a log-linear histogram, as HdrHistogram is one, in as many buckets as are not empty.

Each power of two is parted into 32 equal buckets, so a percentile, which is told as its bucket's middle, is
off by at most 1/64 (1.6 %) of the value, or by a microsecond where that is more. Count, least and most are
exact. Two histograms are merged by adding up their buckets, and nothing more is lost.
docs/benchmarks/measurements.md compares it with the package hdrhistogram.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

#: The largest relative error of a percentile between `SMALLEST` and `LARGEST`.
ERROR = 1 / 64
#: What is nearer to zero than this is zero; what is further than that stands in the last bucket. Seconds.
SMALLEST, LARGEST = 2.0**-20, 2.0**26
_PARTS = 32
#: What is added to a power of two, so that the number of a bucket above zero is above zero.
_SHIFT = 20
#: The power of two right below `LARGEST`, and the last bucket.
_HIGHEST = 26
_LAST = (_HIGHEST + _SHIFT) * _PARTS + _PARTS - 1
#: Where the few buckets of a `Distribution` end: from 1 ms to 68 minutes. Each is the end of one of ours, so
#: that none of ours is parted.
BOUNDS = tuple(2.0**power for power in (*range(-10, 7), 8, 10, 12))


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram as other systems take it: how many values were below each of `BOUNDS`, and of all."""

    below: tuple[int, ...] = (0,) * len(BOUNDS)
    count: int = 0
    #: Of all values above zero.
    sum: float = 0.0


class Histogram:
    """Values with how often each came; negative ones are mirrored. Not for several threads."""

    __slots__ = ("_counts", "count", "least", "most", "sum")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        #: Of the values above zero, exact but for the arithmetic of floats: it never shrinks.
        self.sum = 0.0
        #: The smallest and the largest value so far.
        self.least = math.inf
        self.most = -math.inf

    def add(self, value: float, count: int = 1) -> None:
        """Take a finite ``value`` that came ``count`` times."""
        counts, bucket = self._counts, _bucket(value)
        counts[bucket] = counts.get(bucket, 0) + count
        self.count += count
        if value > 0:
            self.sum += value * count
        if value < self.least:
            self.least = value
        if value > self.most:
            self.most = value

    def merge(self, other: "Histogram") -> None:
        """Take all that ``other`` holds."""
        counts = self._counts
        for bucket, count in other._counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
        self.count += other.count
        self.sum += other.sum
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)

    def percentile(self, share: float) -> float:
        """Return the value that ``share`` (0 to 1) of all values are not above; NaN where there is none."""
        return self.percentiles((share,))[share]

    def percentiles(self, shares: tuple[float, ...]) -> Mapping[float, float]:
        """Return the value of each share; ``shares`` grow."""
        found = dict.fromkeys(shares, math.nan)
        waiting = iter(shares)
        share = next(waiting, None)
        seen = 0
        for bucket, count in sorted(self._counts.items()):
            seen += count
            while share is not None and seen >= share * self.count:
                lower, upper = _bounds(bucket)
                found[share] = min(max((lower + upper) / 2, self.least), self.most)
                share = next(waiting, None)
        return found

    def distribution(self) -> Distribution:
        """Return it in the few buckets of `BOUNDS`; a value that is exactly a bound is not below it."""
        below, seen, bounds = [], 0, iter(BOUNDS)
        bound = next(bounds, None)
        for bucket, count in sorted(self._counts.items()):
            upper = _bounds(bucket)[1]
            while bound is not None and upper > bound:
                below.append(seen)
                bound = next(bounds, None)
            seen += count
        below += [seen] * (len(BOUNDS) - len(below))
        return Distribution(tuple(below), self.count, self.sum)

    def buckets(self) -> list[tuple[float, float, int]]:
        """Return the buckets that are not empty, in order: from, to, and how many values."""
        found = []
        for bucket, count in sorted(self._counts.items()):
            lower, upper = _bounds(bucket)
            lower = lower if lower > -math.inf else self.least
            found.append((lower, upper if upper < math.inf else self.most, count))
        return found


def _bucket(value: float) -> int:
    if -SMALLEST < value < SMALLEST:
        return 0
    fraction, power = math.frexp(value)
    if power > _HIGHEST:
        return -_LAST if value < 0 else _LAST
    # The fraction is 0.5 or more, and less than 1.
    if value < 0:
        return -((power + _SHIFT) * _PARTS + int(fraction * -2 * _PARTS) - _PARTS)
    return (power + _SHIFT) * _PARTS + int(fraction * 2 * _PARTS) - _PARTS


def _bounds(bucket: int) -> tuple[float, float]:
    """Return where a bucket begins and ends; the outermost ones have no end."""
    if bucket == 0:
        return -SMALLEST, SMALLEST
    power, part = divmod(abs(bucket), _PARTS)
    unit = math.ldexp(1.0, power - _SHIFT) / (2 * _PARTS)
    lower, upper = (part + _PARTS) * unit, (part + _PARTS + 1) * unit
    if abs(bucket) == _LAST:
        upper = math.inf
    return (lower, upper) if bucket > 0 else (-upper, -lower)
