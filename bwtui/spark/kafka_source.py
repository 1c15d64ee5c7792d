"""Kafka as a Spark source, in which no offset is lost from sight.

::

    pinned = pin(config, topics)
    rows = read_kafka(spark, config, pinned.offsets, columns=("kind", "topic", "partition", "offset", "key"))

Every offset of the pinned ranges is in the DataFrame once. A row of kind ``record`` is a message; its
``offset_end`` is ``offset + 1``. A row of another kind is a hole: the offsets ``[offset, offset_end)`` were
not delivered, for a reason that `bwtui.kafka.scan` names; its other columns are null. So

    sum(offset_end - offset) = sum(high - low)

holds for each partition, whatever compaction, retention and transactions did, and one pass gives both
sides of the account.

With ``isolation="read_committed"`` the records of aborted transactions are within the holes. With
``aborted=True`` they come as rows of the kind ``aborted`` instead, with all columns; that costs a second
reading, of splits that have holes only.

Only the columns that are asked for are made: headers cost more than all others together. Rows of a
partition are in order within a split, and splits are Spark's partitions.

The settings of the client never become options of the source, which Spark shows in plans and logs: the tasks
get them from `bwtui.spark.handover`, by way of the class that is registered.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bwtui.kafka.client import Config
from bwtui.kafka.columns import ABORTED, COLUMNS, Batches
from bwtui.kafka.offsets import Place, Range
from bwtui.kafka.scan import Isolation, SplitScan
from bwtui.kafka.splits import LARGEST, SMALLEST, Hole, Split, split
from bwtui.spark.failure import in_task
from bwtui.spark.handover import Handed, hand_over

FORMAT = "bwtui_kafka"

ALL_COLUMNS = tuple(COLUMNS)
#: Without headers, which are slow.
PLAIN_COLUMNS = tuple(name for name in COLUMNS if name != "headers")

#: Holes are kept until there are so many, then sent as rows.
_MOST_HOLES = 10_000


def read_kafka(
    spark: SparkSession,
    config: Config,
    offsets: Mapping[Place, Range],
    *,
    columns: Sequence[str] = ALL_COLUMNS,
    isolation: Isolation = "read_uncommitted",
    aborted: bool = False,
    patience: float = 5.0,
    split_sizes: tuple[int, int] = (SMALLEST, LARGEST),
) -> DataFrame:
    """Return the records and the holes in ``offsets``, as they are when the DataFrame is evaluated.

    ``config`` has librdkafka's properties with bootstrap.servers. ``patience`` is how many seconds to wait
    for a transaction that is still open, or for a log that ends too early. ``split_sizes`` bounds the number
    of offsets that one task reads. An evaluation raises ConnectionFailed, and RefusedError for a topic that
    is gone, by way of `bwtui.spark.failure.plain_errors`, which the session has around it.
    """
    assert columns, "at least one column is needed"
    splits = split(offsets, spark.sparkContext.defaultParallelism, *split_sizes)
    handed = hand_over(spark, dict(config), config)
    request = Request(handed, tuple(splits), tuple(columns), isolation, aborted, patience)
    spark.dataSource.register(_bound(request))
    return spark.read.format(FORMAT).load()


@dataclass(frozen=True, slots=True)
class Request:
    """What one DataFrame reads."""

    config: Handed[dict[str, Any]]
    splits: tuple[Split, ...]
    columns: tuple[str, ...]
    isolation: Isolation
    aborted: bool
    patience: float


class KafkaDataSource(DataSource):
    """The source that Spark sees; a subclass of it knows what to read."""

    request: ClassVar[Request]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns that were asked for."""
        return ", ".join(f"`{name}` {COLUMNS[name]}" for name in self.request.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        return KafkaReader(self.request)


class SplitPartition(InputPartition):
    """A split as one of Spark's partitions."""

    def __init__(self, value: Split) -> None:
        super().__init__(tuple(value))


class KafkaReader(DataSourceReader):
    """Reads splits; it goes to the tasks."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def partitions(self) -> Sequence[InputPartition]:
        """Return the splits."""
        return [SplitPartition(one) for one in self._request.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what is in one split."""
        # Without any split Spark makes up a partition without a value.
        return iter(()) if partition.value is None else read_split(self._request, Split(*partition.value))


def _bound(request: Request) -> type[DataSource]:
    # A class that is made in a function is pickled with what it holds.
    bound: type[DataSource] = type("BoundKafkaDataSource", (KafkaDataSource,), {"request": request})
    bound.__module__ = "__main__"
    return bound


@in_task
def read_split(request: Request, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the records and the holes of one split, in a task."""
    batches = Batches(split, request.columns)
    held: list[Hole] = []
    delivered = missing = 0
    keeps_gaps = request.aborted and request.isolation == "read_committed"
    for part in SplitScan(request.config.take(), split, request.isolation, request.patience):
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
        yield from _aborted(request, split, gaps, batches)
        held = [hole for hole in held if hole.kind != "gap"]
    yield from batches.of_holes(held)


def _aborted(request: Request, split: Split, gaps: list[Hole], batches: Batches) -> Iterator[pa.RecordBatch]:
    """Read again from the first gap to the last: what is in them is of aborted transactions."""
    within = split._replace(low=gaps[0].low, high=gaps[-1].high)
    lows = [gap.low for gap in gaps]
    for part in SplitScan(request.config.take(), within, "read_uncommitted", request.patience):
        # Compaction may have made more holes meanwhile, where the first reading had its records.
        yield from batches.of_holes(within_gaps(part.holes, gaps))
        found = [
            number
            for number, offset in enumerate(part.offsets)
            for gap in [gaps[bisect_right(lows, offset) - 1]]
            if offset < gap.high
        ]
        messages = [part.messages[number] for number in found]
        yield from batches.of_messages(messages, [part.offsets[number] for number in found], ABORTED)


def within_gaps(holes: Sequence[Hole], gaps: Sequence[Hole]) -> list[Hole]:
    """Return what of ``holes`` lies in ``gaps``, which rise."""
    lows = [gap.low for gap in gaps]
    found = []
    for kind, low, high in holes:
        for gap in gaps[max(bisect_right(lows, low) - 1, 0) : bisect_right(lows, high - 1)]:
            if max(low, gap.low) < min(high, gap.high):
                found.append(Hole(kind, max(low, gap.low), min(high, gap.high)))
    return found
