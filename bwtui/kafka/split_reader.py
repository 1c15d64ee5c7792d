"""Read one split into Arrow batches: its records, its holes, and records of aborted transactions.

Every offset of the split is returned once, as a record or within a hole. Spark tasks and bwtui's own threads
use the same reader.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from bwtui.kafka.client import Config
from bwtui.kafka.columns import ABORTED, SplitBatches
from bwtui.kafka.scan import Isolation, SplitScan
from bwtui.kafka.splits import Hole, Split

#: Maximum number of holes to collect before they are yielded as rows.
_MOST_HOLES = 10_000


@dataclass(frozen=True, slots=True)
class SplitReadOptions:
    """The columns to read of a split, and how."""

    columns: tuple[str, ...]
    isolation: Isolation = "read_uncommitted"
    #: With read_committed, return records of aborted transactions as rows of kind ``aborted``.
    aborted: bool = False
    #: Seconds to wait for an open transaction to end, or for a log that ends too early.
    patience: float = 5.0


def read_split(
    config: Config, split: Split, options: SplitReadOptions, check: Callable[[], None] = lambda: None
) -> Iterator[pa.RecordBatch]:
    """Yield the records and the holes of one split.

    ``check`` is called between two reads, and may raise to end the scan. Raises ConnectionFailed, and
    RefusedError for a missing topic.
    """
    batches = SplitBatches(split, options.columns)
    held: list[Hole] = []
    delivered = missing = 0
    keeps_gaps = options.aborted and options.isolation == "read_committed"
    for part in SplitScan(config, split, options.isolation, options.patience, check):
        yield from batches.of_messages(part.messages, part.offsets)
        held += part.holes
        delivered += len(part.offsets)
        missing += sum(high - low for _, low, high in part.holes)
        if len(held) > _MOST_HOLES and not keeps_gaps:
            yield from batches.of_holes(held)
            held = []
    assert delivered + missing == split.high - split.low, "an offset is not accounted for"
    gaps = [hole for hole in held if hole.kind == "gap"] if keeps_gaps else []
    if gaps:
        again = split._replace(low=gaps[0].low, high=gaps[-1].high)
        scan = SplitScan(config, again, "read_uncommitted", options.patience, check)
        yield from _aborted(scan, gaps, batches)
        held = [hole for hole in held if hole.kind != "gap"]
    yield from batches.of_holes(held)


def _aborted(scan: SplitScan, gaps: list[Hole], batches: SplitBatches) -> Iterator[pa.RecordBatch]:
    """Read again from the first gap to the last: the records in the gaps belong to aborted transactions."""
    lows = [gap.low for gap in gaps]
    for part in scan:
        # Compaction may have made more holes meanwhile, where the first scan had records.
        yield from batches.of_holes(within_gaps(part.holes, gaps))
        numbers = [
            number
            for number, offset in enumerate(part.offsets)
            for gap in [gaps[bisect_right(lows, offset) - 1]]
            if offset < gap.high
        ]
        messages = [part.messages[number] for number in numbers]
        yield from batches.of_messages(messages, [part.offsets[number] for number in numbers], ABORTED)


def within_gaps(holes: Sequence[Hole], gaps: Sequence[Hole]) -> list[Hole]:
    """Return the parts of ``holes`` within ``gaps``, which must be in ascending order."""
    lows = [gap.low for gap in gaps]
    result = []
    for kind, low, high in holes:
        for gap in gaps[max(bisect_right(lows, low) - 1, 0) : bisect_right(lows, high - 1)]:
            if max(low, gap.low) < min(high, gap.high):
                result.append(Hole(kind, max(low, gap.low), min(high, gap.high)))
    return result
