"""Send a replay on Spark: on this machine's cores, or on a cluster's."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from bwtui.replay.files import FileRows, FileSelection
from bwtui.replay.frames import FrameRows
from bwtui.replay.lane import LaneResult
from bwtui.replay.placement import RowPlacement
from bwtui.replay.send import TaskSettings, send
from bwtui.spark.failure import in_task, plain_errors
from bwtui.spark.kafka_sink import started_again
from bwtui.spark.task_secrets import TaskSecret, hand_over

_RESULT = pa.schema(
    [(name, pa.int32() if name in ("lane", "part") else pa.int64()) for name in LaneResult._fields]
)


class SparkReplayEngine:
    """Sends rows in a Spark session with the configuration `bwtui.spark.session.WRITE_ONCE`."""

    def __init__(self, spark: SparkSession, rows: FileRows | FrameRows) -> None:
        self._spark = spark
        self._rows = rows
        #: Address of the coordinator.
        self.host = spark.sparkContext.getConf().get("spark.driver.host") or "127.0.0.1"
        #: Maximum number of tasks that the lanes are divided into.
        self.tasks = spark.sparkContext.defaultParallelism

    def send(self, placing: RowPlacement, work: TaskSettings) -> list[LaneResult]:
        """Send the messages in the tasks of ``placing``. Raises what tasks raise, and RefusedError."""
        handed = hand_over(self._spark, work, work.producer, work.client)
        with plain_errors():
            if isinstance(self._rows, FrameRows):
                results = self._rows.placed(placing).mapInArrow(
                    _FrameTask(handed), from_arrow_schema(_RESULT)
                )
                return [LaneResult(*row) for row in results.collect()]
            tasks = max(placing.tasks) + 1
            # An RDD rather than a data frame: Spark would plan and compile the latter for nothing.
            numbers = self._spark.sparkContext.parallelize(range(tasks), tasks)
            return numbers.mapPartitions(_FileTask(self._rows.files, placing, handed)).collect()

    def cancel(self) -> None:
        """Stop all tasks at once."""
        self._spark.sparkContext.cancelAllJobs()

    def abandon(self, _: threading.Event) -> None:
        """Raise KeyboardInterrupt, which ends the session and with it the tasks at once."""
        raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class _FileTask:
    """The function of tasks that read files."""

    files: FileSelection
    placing: RowPlacement
    work: TaskSecret[TaskSettings]

    def __call__(self, tasks: Iterable[int]) -> Iterator[LaneResult]:
        for task in tasks:
            yield from _send(self.placing.placed(self.files.to_send(self.placing), task), self.work)


@dataclass(frozen=True, slots=True)
class _FrameTask:
    """The function of tasks that get their rows from Spark."""

    work: TaskSecret[TaskSettings]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for lane in _send(batches, self.work):
            yield pa.RecordBatch.from_pylist([lane._asdict()], schema=_RESULT)


@in_task
def _send(batches: Iterator[pa.RecordBatch], work: TaskSecret[TaskSettings]) -> Iterator[LaneResult]:
    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise started_again()
    yield from send(batches, work.take())
