"""Kafka as a Spark source that accounts for every offset.

::

    pinned = pin(config, topics)
    rows = read_kafka(spark, config, pinned.offsets, columns=("kind", "topic", "partition", "offset", "key"))

Every offset of the pinned ranges is in the DataFrame once. A row of kind ``record`` is a message; its
``offset_end`` is ``offset + 1``. A row of any other kind is a hole: the offsets ``[offset, offset_end)`` were
not delivered, for a reason from `bwtui.kafka.scan`; its other columns are null. So

    sum(offset_end - offset) = sum(high - low)

holds for each partition despite compaction, retention and transactions, and one pass yields both sides of
this equation.

With ``isolation="read_committed"`` the records of aborted transactions are within the holes. With
``aborted=True`` they are rows of kind ``aborted`` instead, with all columns; that takes a second read, only
of splits with holes.

Only the requested columns are created: headers cost more than all others together. Rows of a partition are in
order within a split, and splits are Spark's partitions.

The client's settings are never options of the source, which Spark shows in plans and logs: the tasks get them
from `bwtui.spark.task_secrets`, through the registered class.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bwtui.kafka.client import Config
from bwtui.kafka.columns import COLUMNS, SplitReadOptions, read_split
from bwtui.kafka.scan import LARGEST, SMALLEST, Isolation, Place, Range, Split, split
from bwtui.spark.failure import in_task
from bwtui.spark.task_secrets import TaskSecret, hand_over

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
    """Return the records and the holes in ``offsets``, as of the evaluation of the DataFrame.

    ``config`` has librdkafka's properties including bootstrap.servers. ``patience`` is the number of seconds
    to wait for an open transaction to end, or for a log that ends too early. ``split_sizes`` limits the
    number of offsets that one task reads. An evaluation raises ConnectionFailed, and RefusedError for a
    missing topic, through `bwtui.spark.failure.plain_errors`, which is active in the session.
    """
    assert columns, "at least one column is needed"
    splits = split(offsets, spark.sparkContext.defaultParallelism, *split_sizes)
    handed = hand_over(spark, dict(config), config)
    request = KafkaReadRequest(
        handed, tuple(splits), SplitReadOptions(tuple(columns), isolation, aborted, patience)
    )
    spark.dataSource.register(_bound(request))
    return spark.read.format(FORMAT).load()


@dataclass(frozen=True, slots=True)
class KafkaReadRequest:
    """The request of one DataFrame."""

    config: TaskSecret[dict[str, Any]]
    splits: tuple[Split, ...]
    options: SplitReadOptions


class KafkaDataSource(DataSource):
    """The source's class for Spark; `read_kafka` binds the request in a subclass."""

    request: ClassVar[KafkaReadRequest]

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ", ".join(f"`{name}` {COLUMNS[name]}" for name in self.request.options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return KafkaReader(self.request)


class SplitPartition(InputPartition):
    """A split as one of Spark's partitions."""

    def __init__(self, value: Split) -> None:
        super().__init__(tuple(value))


class KafkaReader(DataSourceReader):
    """Reads splits; Spark sends it to the tasks."""

    def __init__(self, request: KafkaReadRequest) -> None:
        self._request = request

    def partitions(self) -> Sequence[InputPartition]:
        return [SplitPartition(one) for one in self._request.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without splits, Spark invents a partition without a value.
        return iter(()) if partition.value is None else self._read(Split(*partition.value))

    @in_task
    def _read(self, split: Split) -> Iterator[pa.RecordBatch]:
        yield from read_split(self._request.config.take(), split, self._request.options)


def _bound(request: KafkaReadRequest) -> type[DataSource]:
    # A class with the module __main__ is pickled by value, with all its attributes.
    bound: type[DataSource] = type("BoundKafkaDataSource", (KafkaDataSource,), {"request": request})
    bound.__module__ = "__main__"
    return bound
