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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bwtui.kafka.client import Config
from bwtui.kafka.columns import COLUMNS
from bwtui.kafka.offsets import Place, Range
from bwtui.kafka.reading import Wanted, read_split
from bwtui.kafka.scan import Isolation
from bwtui.kafka.splits import LARGEST, SMALLEST, Split, split
from bwtui.spark.failure import in_task
from bwtui.spark.handover import Handed, hand_over

FORMAT = "bwtui_kafka"

ALL_COLUMNS = tuple(COLUMNS)
#: Without headers, which are slow.
PLAIN_COLUMNS = tuple(name for name in COLUMNS if name != "headers")


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
    request = Request(handed, tuple(splits), Wanted(tuple(columns), isolation, aborted, patience))
    spark.dataSource.register(_bound(request))
    return spark.read.format(FORMAT).load()


@dataclass(frozen=True, slots=True)
class Request:
    """What one DataFrame reads."""

    config: Handed[dict[str, Any]]
    splits: tuple[Split, ...]
    wanted: Wanted


class KafkaDataSource(DataSource):
    """The source that Spark sees; a subclass of it knows what to read."""

    request: ClassVar[Request]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns that were asked for."""
        return ", ".join(f"`{name}` {COLUMNS[name]}" for name in self.request.wanted.columns)

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
        return iter(()) if partition.value is None else self._read(Split(*partition.value))

    @in_task
    def _read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield from read_split(self._request.config.take(), split, self._request.wanted)


def _bound(request: Request) -> type[DataSource]:
    # A class that is made in a function is pickled with what it holds.
    bound: type[DataSource] = type("BoundKafkaDataSource", (KafkaDataSource,), {"request": request})
    bound.__module__ = "__main__"
    return bound
