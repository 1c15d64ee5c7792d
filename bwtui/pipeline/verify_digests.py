"""Both sides of the audit as digests in Parquet: what Spark does of it.

The same Spark hashes both sides, with its own xxhash64, so nothing but digests and places leaves the tasks.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

from bwtui.audit.partitioner import murmur2_of
from bwtui.pipeline.kafka_client import Config
from bwtui.pipeline.kafka_offsets import Pinned
from bwtui.pipeline.kafka_source import read_kafka

#: A position and a part in one number that sorts as they do.
PARTS = 4096

_KAFKA = ("kind", "topic", "partition", "offset", "offset_end", "timestamp", "key", "value")


def write_expected(spark: SparkSession, files: Sequence[Path], target: Path) -> None:
    """Write what was sent, as `bwtui.audit.core.INPUTS` wants it."""
    rows = spark.read.parquet(*map(str, files)).select(
        (F.col("position") * PARTS + F.col("part")).alias("id"),
        *("pass", "is_repeat", "lsn", "ordinal", "part", "op", "xid"),
        _micros("commit_time").alias("commit_us"),
        _micros("received").alias("received_us"),
        *("topic", "partition", "offset", "state", "without"),
        *("schema", "table", "session", "key_schema_id", "value_schema_id"),
        _digest("key").alias("kd"),
        _digest("value").alias("vd"),
        "key",
    )
    schema = rows.drop("key").schema.add("hash31", IntegerType())
    _write(rows.mapInArrow(_with_homes, schema), target)


def write_actual(spark: SparkSession, config: Config, pinned: Pinned, target: Path) -> None:
    """Write what Kafka has, records and holes."""
    rows = read_kafka(spark, config, pinned.offsets, columns=_KAFKA, isolation="read_committed", aborted=True)
    digests = rows.select(
        *("topic", "partition", "offset", "offset_end", "kind"),
        F.col("timestamp").alias("ts"),
        _digest("key").alias("kd"),
        _digest("value").alias("vd"),
    )
    _write(digests, target)


def _digest(name: str) -> Any:
    return F.when(F.col(name).isNotNull(), F.xxhash64(name))


def _micros(name: str) -> Any:
    return F.unix_micros(F.col(name).cast("timestamp"))


def _with_homes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys = batch.column("key").cast(pa.binary())
        yield batch.drop_columns(["key"]).append_column("hash31", murmur2_of(keys))


def _write(rows: DataFrame, target: Path) -> None:
    rows.write.option("compression", "lz4_raw").parquet(str(target))
