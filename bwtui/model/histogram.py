"""A log-linear histogram in the manner of HdrHistogram, with only as many buckets as are not empty.

Each power of two is divided into 32 equal buckets, so a percentile, reported as the middle of its bucket, has
an error of at most 1/64 (1.6 %) of the value, or a microsecond if that is more. Count, minimum and maximum
are exact. Merging two histograms adds their buckets, and loses no further precision.
docs/benchmarks/measurements.md compares it with the package hdrhistogram.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

#: Maximum relative error of a percentile between `SMALLEST` and `LARGEST`.
ERROR = 1 / 64
#: Values nearer to zero count as zero; larger ones are in the last bucket. In seconds.
SMALLEST, LARGEST = 2.0**-20, 2.0**26
_PARTS = 32
#: Added to a power of two, so that buckets above zero have positive numbers.
_SHIFT = 20
#: The power of two of `LARGEST`, and the last bucket.
_HIGHEST = 26
_LAST = (_HIGHEST + _SHIFT) * _PARTS + _PARTS - 1
#: Upper ends of the few buckets of a `Distribution`, from 1 ms to 68 minutes. Each is also the end of a
#: bucket of the histogram, so that none has to be divided.
BOUNDS = tuple(2.0**power for power in (*range(-10, 7), 8, 10, 12))


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram for other systems: number of values below each of `BOUNDS`, and of all values."""

    below: tuple[int, ...] = (0,) * len(BOUNDS)
    count: int = 0
    #: Sum of the values above zero.
    sum: float = 0.0


class Histogram:
    """Values with their frequency; negative ones are mirrored. Not thread-safe."""

    __slots__ = ("_counts", "count", "least", "most", "sum")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        #: Sum of the values above zero, exact except for float rounding; it never shrinks.
        self.sum = 0.0
        #: The smallest and the largest value so far.
        self.least = math.inf
        self.most = -math.inf

    def add(self, value: float, count: int = 1) -> None:
        """Add a finite ``value`` that occurred ``count`` times."""
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
        """Add all values of ``other``."""
        counts = self._counts
        for bucket, count in other._counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
        self.count += other.count
        self.sum += other.sum
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)

    def percentile(self, share: float) -> float:
        """Return the smallest value that a ``share`` (0 to 1) of all values do not exceed; NaN if empty."""
        return self.percentiles((share,))[share]

    def percentiles(self, shares: tuple[float, ...]) -> Mapping[float, float]:
        """Return the percentile of each share; ``shares`` must be ascending."""
        result = dict.fromkeys(shares, math.nan)
        waiting = iter(shares)
        share = next(waiting, None)
        counted = 0
        for bucket, count in sorted(self._counts.items()):
            counted += count
            while share is not None and counted >= share * self.count:
                lower, upper = _bounds(bucket)
                result[share] = min(max((lower + upper) / 2, self.least), self.most)
                share = next(waiting, None)
        return result

    def distribution(self) -> Distribution:
        """Return it in the few buckets of `BOUNDS`; a value equal to a bound is not below it."""
        below, counted, bounds = [], 0, iter(BOUNDS)
        bound = next(bounds, None)
        for bucket, count in sorted(self._counts.items()):
            upper = _bounds(bucket)[1]
            while bound is not None and upper > bound:
                below.append(counted)
                bound = next(bounds, None)
            counted += count
        below += [counted] * (len(BOUNDS) - len(below))
        return Distribution(tuple(below), self.count, self.sum)

    def buckets(self) -> list[tuple[float, float, int]]:
        """Return the non-empty buckets in order: lower end, upper end, and number of values."""
        result = []
        for bucket, count in sorted(self._counts.items()):
            lower, upper = _bounds(bucket)
            lower = lower if lower > -math.inf else self.least
            result.append((lower, upper if upper < math.inf else self.most, count))
        return result


def _bucket(value: float) -> int:
    if -SMALLEST < value < SMALLEST:
        return 0
    fraction, power = math.frexp(value)
    if power > _HIGHEST:
        return -_LAST if value < 0 else _LAST
    # The fraction is in [0.5, 1).
    if value < 0:
        return -((power + _SHIFT) * _PARTS + int(fraction * -2 * _PARTS) - _PARTS)
    return (power + _SHIFT) * _PARTS + int(fraction * 2 * _PARTS) - _PARTS


def _bounds(bucket: int) -> tuple[float, float]:
    """Return a bucket's lower and upper end; the outermost buckets are open-ended."""
    if bucket == 0:
        return -SMALLEST, SMALLEST
    power, part = divmod(abs(bucket), _PARTS)
    unit = math.ldexp(1.0, power - _SHIFT) / (2 * _PARTS)
    lower, upper = (part + _PARTS) * unit, (part + _PARTS + 1) * unit
    if abs(bucket) == _LAST:
        upper = math.inf
    return (lower, upper) if bucket > 0 else (-upper, -lower)
