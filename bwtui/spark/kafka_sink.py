"""Kafka as a Spark sink: messages are durable, written once, and in order within a Spark partition.

::

    written = write_kafka(rows.select("topic", "partition", "timestamp", "key", "value", "headers"), config)

``topic`` and ``value`` are required; ``key``, ``headers``, ``timestamp`` (milliseconds; null means now) and
``partition`` (null means by key, as in the relay) are optional. The producer is idempotent and waits for all
in-sync replicas. A message that can't be delivered fails the job with one plain reason.

If Spark ran a task again, its messages would be written twice, so a repeated task fails: on a cluster the
session needs `bwtui.spark.session.WRITE_ONCE`. To resume after a failure, callers read what the topics have.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bwtui.errors import BwtuiError, RefusedError
from bwtui.kafka.client import Config, LastClientError, new_client, plain_kafka_error
from bwtui.spark.failure import TaskFailed, plain_errors
from bwtui.spark.scratch import scratch
from bwtui.spark.session import WRITE_ONCE
from bwtui.spark.task_secrets import TaskSecret, hand_over

FORMAT = "bwtui_kafka_sink"

_COLUMNS = ("topic", "value", "key", "partition", "timestamp", "headers")
_NEEDED = frozenset({"topic", "value"})
_POLL_EVERY = 2_000
_WAIT_SECONDS = 0.1
#: Defaults that the configuration may override.
_DEFAULTS = {
    "linger.ms": 5,
    "batch.num.messages": 10_000,
    "batch.size": 1_000_000,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",
    "message.max.bytes": 67_108_864,
    "message.timeout.ms": 60_000,
    "topic.metadata.propagation.max.ms": 10_000,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 65_536,
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 2_000,
}
_FIXED = {
    "enable.idempotence": True,
    "acks": "all",
    "allow.auto.create.topics": False,
    "delivery.report.only.error": False,
}


@dataclass(slots=True)
class PartitionWrites:
    """The messages written to one partition."""

    topic: str
    partition: int
    messages: int
    #: The lowest and the highest offset; other producers may have written in between.
    first: int
    last: int

    def add(self, other: "PartitionWrites") -> None:
        """Add the messages of a different task to the same partition."""
        self.messages += other.messages
        self.first = min(self.first, other.first)
        self.last = max(self.last, other.last)


def write_kafka(rows: DataFrame, config: Config) -> list[PartitionWrites]:
    """Write every row as one message, and return the messages written by partition.

    The topics must exist. Raises RefusedError for missing or unknown columns, and the reason of a message
    that was not delivered.
    """
    _check(rows)
    with scratch("bwtui-sink-") as folder:
        report = folder / "written.json"
        handed = hand_over(rows.sparkSession, dict(config), config)
        bound = type("BoundKafkaSink", (KafkaSinkDataSource,), {"config": handed, "report": str(report)})
        bound.__module__ = "__main__"
        with plain_errors():
            rows.sparkSession.dataSource.register(bound)
            rows.write.format(FORMAT).mode("append").save()
        return [PartitionWrites(**one) for one in json.loads(report.read_text())]


def started_again() -> BwtuiError:
    """Return the error of a task that Spark has started a second time."""
    return BwtuiError(
        "Spark restarted a task, which would write its messages twice",
        "its first executor was lost: check the executor's log, and run the command again",
    )


def _check(rows: DataFrame) -> None:
    missing = sorted(_NEEDED - set(rows.columns))
    unknown = sorted(set(rows.columns) - set(_COLUMNS))
    if missing or unknown:
        problem = (
            f"lacks columns: {', '.join(missing)}"
            if missing
            else (f"has unknown columns: {', '.join(unknown)}")
        )
        raise RefusedError(
            f"the DataFrame to write to Kafka {problem}",
            f"the allowed columns are {', '.join(sorted(_COLUMNS))}",
        )
    conf = rows.sparkSession.sparkContext.getConf()
    is_local = (conf.get("spark.master") or "").startswith("local")
    if not is_local and any(conf.get(name) != value for name, value in WRITE_ONCE.items()):
        raise RefusedError(
            "this Spark session retries failed tasks, which would write their messages twice",
            "open it with config=WRITE_ONCE",
        )


@dataclass(slots=True)
class TaskWrites(WriterCommitMessage):
    """The messages written by one task."""

    written: list[PartitionWrites] = field(default_factory=list)


class KafkaSinkDataSource(DataSource):
    """The sink's class for Spark; `write_kafka` binds the configuration in a subclass."""

    config: ClassVar[TaskSecret[dict[str, Any]]]
    report: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return KafkaWriter(self.config, self.report)


class KafkaWriter(DataSourceArrowWriter):
    """Writes the rows of a task; in the driver, adds up what all tasks wrote."""

    def __init__(self, config: TaskSecret[dict[str, Any]], report: str) -> None:
        self._config = config
        self._report = report

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        try:
            context = TaskContext.get()
            if context is not None and context.attemptNumber() > 0:
                raise started_again()
            sender = _IdempotentProducer(self._config.take())
            for batch in iterator:
                sender.send(batch)
            return TaskWrites(sender.finish())
        except BwtuiError as error:
            raise TaskFailed(error) from None

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Report the written messages to `write_kafka` in a file."""
        total: dict[tuple[str, int], PartitionWrites] = {}
        for message in messages:
            for one in message.written if isinstance(message, TaskWrites) else ():
                written = total.setdefault((one.topic, one.partition), one)
                if written is not one:
                    written.add(one)
        Path(self._report).write_text(json.dumps([asdict(total[place]) for place in sorted(total)]))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: messages in Kafka can't be withdrawn."""


class _IdempotentProducer:
    """An idempotent producer, and the delivery reports of its messages."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._written: dict[tuple[str | None, int | None], list[int]] = {}
        self._failed: BwtuiError | None = None
        self._heard = LastClientError()
        settings = {**_DEFAULTS, **config, **_FIXED, "error_cb": self._heard}
        self._producer = new_client(Producer, settings)

    def send(self, batch: pa.RecordBatch) -> None:
        """Send the rows of ``batch`` in order; wait while too many messages are in flight."""
        produce, report = self._producer.produce, self._report
        rows = list(_rows(batch))
        for start in range(0, len(rows), _POLL_EVERY):
            for topic, value, key, partition, timestamp, headers in rows[start : start + _POLL_EVERY]:
                try:
                    # Positional arguments cost half of keyword arguments.
                    produce(topic, value, key, partition, report, None, timestamp, headers)
                except BufferError:
                    self._insist(topic, value, key, partition, report, None, timestamp, headers)
                except KafkaException as error:
                    raise self._refusal(error.args[0], topic, value) from error
            self._poll(0)

    def finish(self) -> list[PartitionWrites]:
        """Wait until everything is durable, and return the messages written."""
        while len(self._producer):
            self._poll(_WAIT_SECONDS)
        self._poll(0)
        return [
            PartitionWrites(str(topic), int(partition or 0), *figures)
            for (topic, partition), figures in self._written.items()
        ]

    def _insist(self, *message: Any) -> None:
        # Retry the same message, not the next one: this keeps the order.
        while True:
            self._poll(_WAIT_SECONDS)
            with contextlib.suppress(BufferError):
                self._producer.produce(*message)
                return

    def _poll(self, seconds: float) -> None:
        self._producer.poll(seconds)
        if self._heard.error is not None and self._heard.is_refusal:
            self._failed = plain_kafka_error(self._heard.error, self._config)
        if self._failed is not None:
            self._producer.purge()
            raise self._failed

    def _report(self, error: KafkaError | None, message: Message) -> None:
        topic, offset = message.topic(), message.offset()
        if error is None and offset is not None:
            figures = self._written.get((topic, message.partition()))
            if figures is None:
                self._heard.has_answered = True
                self._written[topic, message.partition()] = [1, offset, offset]
            else:
                # The offsets of one producer are ascending within a partition.
                figures[0] += 1
                figures[2] = offset
        elif error is not None and self._failed is None:
            self._failed = self._refusal(error, topic or "", message.value())

    def _refusal(self, error: KafkaError, topic: str, value: bytes | None) -> BwtuiError:
        if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
            return RefusedError(
                f"topic {topic} does not accept a message of {len(value or b'')} bytes",
                f"raise max.message.bytes of topic {topic}",
            )
        timed_out = error.code() in (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT)
        return plain_kafka_error(
            self._heard.error if timed_out and self._heard.error else error, self._config, topic
        )


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of `Producer.produce` for each row."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    nothing: Sequence[Any] = [None] * batch.num_rows
    by_key, now = [-1] * batch.num_rows, [0] * batch.num_rows
    partitions, timestamps = columns.get("partition", by_key), columns.get("timestamp", now)
    if "partition" in columns and batch.column("partition").null_count:
        partitions = [-1 if one is None else one for one in partitions]
    if "timestamp" in columns and batch.column("timestamp").null_count:
        timestamps = [one or 0 for one in timestamps]
    headers = columns.get("headers", nothing)
    if "headers" in columns:
        headers = [one and [(pair["key"], pair["value"]) for pair in one] for one in headers]
    return zip(
        columns["topic"],
        columns["value"],
        columns.get("key", nothing),
        partitions,
        timestamps,
        headers,
        strict=True,
    )
