"""Send a replay on Spark: on this machine's cores, or on a cluster's."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from bwtui.errors import BwtuiError
from bwtui.recording.query_language import ChangeSelection
from bwtui.recording.sealed import SealedRecording
from bwtui.replay.rows import (
    HEADER_COLUMNS,
    NOT_REFUSED,
    FileRows,
    FileSelection,
    PartitionSurvey,
    ReplayRoute,
    RowPlacement,
    conditions,
    files_of,
    lane_counts,
    surveys,
)
from bwtui.replay.send import LaneResult, TaskSettings, send
from bwtui.spark.failure import in_task, plain_errors
from bwtui.spark.task_secrets import TaskSecret, hand_over

# Messages collected by Spark for ``--only-missing``: few, from several sources.

#: The columns of a message, in addition to those for the headers.
_COLUMNS = (
    "position",
    "part",
    "topic",
    "key",
    "value",
    "key_schema_id",
    "value_schema_id",
    "unix_millis(cast(commit_time as timestamp)) as stamp",
    "unix_micros(cast(received as timestamp)) as received",
    "if(state = 'acknowledged', partition, null) as recorded",
)


def messages(spark: SparkSession, sealed: SealedRecording) -> DataFrame:
    """Return all messages of a recording with all columns, including repeats, except rejected ones."""
    files = [str((sealed.root / file.path).resolve()) for file in files_of(sealed, ChangeSelection())]
    # Folder names are not partition columns here, and a recording's name may look like a glob pattern.
    reader = spark.read.option("recursiveFileLookup", True).option("__globPaths__", False)
    return reader.parquet(*files).where(f"{conditions(ChangeSelection())} and {NOT_REFUSED}")


def columns(rows: DataFrame) -> DataFrame:
    """Select the columns that a replay needs."""
    return rows.selectExpr(*_COLUMNS, *HEADER_COLUMNS)


class FrameRows:
    """Rows of a data frame."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows

    def of_topics(self, topics: Sequence[str]) -> "FrameRows":
        """Return the rows of some topics."""
        return FrameRows(self._rows.where(self._rows["topic"].isin(list(topics))))

    def received_at(self, position: int) -> int | None:
        """Return when a message at a position was received, in Unix microseconds."""
        row = self._rows.where(f"position = {position}").select("received").first()
        return None if row is None else int(row.received)

    def survey(
        self, routes: Sequence[ReplayRoute], on_rows: Callable[[int, int], None]
    ) -> list[PartitionSurvey]:
        """Return the distribution of each route's messages; they are few, so ``on_rows`` is not called."""
        keys = self._rows.select("position", "topic", "key", "key_schema_id", "recorded")
        return surveys(lane_counts(keys.toArrow().to_batches(), routes), routes)

    def placed(self, placing: RowPlacement) -> DataFrame:
        """Return the rows ready to send: one Spark partition per task, in order."""
        placed = self._rows.mapInArrow(_PlacementTask(placing), from_arrow_schema(placing.schema))
        tasks = placed.repartitionById(max(placing.tasks) + 1, "task")
        return tasks.sortWithinPartitions("position", "part")


@dataclass(frozen=True, slots=True)
class _PlacementTask:
    placing: RowPlacement

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return in_task(self.placing.placed)(batches)


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
        raise BwtuiError(
            "Spark restarted a task, which would write its messages twice",
            "its first executor was lost: check the executor's log, and run the command again",
        )
    yield from send(batches, work.take())
