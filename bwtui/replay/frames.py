"""Messages collected by Spark for ``--only-missing``: few, from several sources."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from bwtui.recording.sealed import SealedRecording
from bwtui.recording.selection import ChangeSelection
from bwtui.replay.message_counts import NOT_REFUSED, conditions, files_of
from bwtui.replay.placement import HEADER_COLUMNS, PartitionSurvey, RowPlacement, lane_counts, surveys
from bwtui.replay.rows import ReplayRoute
from bwtui.spark.failure import in_task

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
