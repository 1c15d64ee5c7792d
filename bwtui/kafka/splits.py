"""Ranges of offsets, divided into splits for parallel reading."""

from collections.abc import Mapping
from typing import NamedTuple

from bwtui.kafka.offsets import Place, Range

#: A consumer prefetches tens of thousands of messages, which are wasted at the end of a split.
SMALLEST = 50_000
#: Limits the holes that one task keeps, and the cost of a lost executor.
LARGEST = 2_000_000
_SPLITS_A_CORE = 2


class Split(NamedTuple):
    """The offsets ``[low, high)`` of one partition, or a part of them."""

    topic: str
    partition: int
    low: int
    high: int


class Hole(NamedTuple):
    """Offsets ``[low, high)`` that were not delivered; `bwtui.kafka.scan` has the kinds."""

    kind: str
    low: int
    high: int


def split(
    offsets: Mapping[Place, Range], cores: int, smallest: int = SMALLEST, largest: int = LARGEST
) -> list[Split]:
    """Divide ``offsets`` into splits of similar size, a few per core; empty ranges yield none."""
    total = sum(high - low for low, high in offsets.values())
    size = min(max(-(-total // (cores * _SPLITS_A_CORE)), smallest), largest)
    return [
        Split(*place, low + (high - low) * number // count, low + (high - low) * (number + 1) // count)
        for place, (low, high) in sorted(offsets.items())
        # A partition that is only a little larger is not split.
        for count in [max(round((high - low) / size), -(-(high - low) // largest), int(high > low))]
        for number in range(count)
    ]
