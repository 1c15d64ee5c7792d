"""Readers of a topic that do nothing with it: what a program that does more is measured by."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from bwtui.kafka.scan import pin
from bwtui.spark.kafka_source import PLAIN_COLUMNS, read_kafka

Read = Callable[[], int]
Reader = tuple[str, Read]


def without_spark(broker: str, topic: str, count: int) -> Iterator[Reader]:
    """Yield a loop over confluent-kafka's consumer, and kcat where it is installed; else that is said."""
    yield "confluent-kafka's consumer, counts", lambda: _consume(broker, topic, count)
    program = shutil.which("kcat") or shutil.which("kafkacat")
    if program is None:
        print("kcat is not installed", flush=True)
        return
    command = [program, "-b", broker, "-C", "-t", topic, "-o", "beginning", "-q", "-c", str(count)]

    def read() -> int:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            # Values may have line ends in them, so its lines say nothing: -c ends it behind so many messages.
            while process.stdout.read(1 << 20):
                pass
        assert process.returncode == 0
        return count

    yield "kcat -C", read


def by_spark(spark: SparkSession, broker: str, topic: str) -> Reader:
    """Return the counting of a topic's messages by Spark, of all that is in them but headers."""
    config = {"bootstrap.servers": broker}
    offsets = pin(config, [topic]).offsets
    return "Spark, counts", lambda: read_kafka(spark, config, offsets, columns=PLAIN_COLUMNS).count()


def seconds(read: Read, count: int) -> float:
    """Return how long ``read`` takes, which must find ``count`` messages."""
    begin = time.monotonic()
    done = read()
    assert done == count, f"{done} of {count} messages"
    return time.monotonic() - begin


def _consume(broker: str, topic: str, count: int) -> int:
    settings = {"bootstrap.servers": broker, "group.id": "bench", "enable.auto.commit": False}
    with contextlib.closing(Consumer(settings)) as consumer:
        partitions = consumer.list_topics(topic, 10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found = 0
        while found < count:
            found += len(consumer.consume(min(10_000, count - found), 1))
        return found
