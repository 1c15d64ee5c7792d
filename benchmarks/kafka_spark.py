"""Messages a second of Kafka as a Spark source, beside readers without Spark.

Run ``make bench-pipeline``, or ``python benchmarks/kafka_spark.py`` in the checkout. It starts a sandbox of
its own and measures, each ``--runs`` times after one run that warms up:

* the source: counting offsets, all plain columns, xxhash64 over key and value, and headers;
* the source on one partition, which is split;
* a loop over confluent-kafka's consumer that counts, and does nothing else;
* ``kcat -C``, where it is installed; else that is said.

All read the very same messages. The reader and Kafka share the machine. The time that Spark's session takes
to start is told by itself.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench_table import add_sandbox_option, services_in
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from topic_readers import seconds as measured
from topic_readers import without_spark

from bwtui.errors import BwtuiError
from bwtui.kafka.scan import pin
from bwtui.spark.kafka_source import ALL_COLUMNS, PLAIN_COLUMNS, read_kafka
from bwtui.spark.session import spark_session
from tests.waiting import eventually

Config = dict[str, str]
_HEADERS = [("bwtui.lsn", b"12345678"), ("bwtui.ordinal", b"1234")]
_HASH = ("bit_xor(xxhash64(topic, partition, offset, key, value)) digest", "sum(offset_end - offset) offsets")


def main() -> int:
    """Measure, and print a line for each figure and one of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="messages a topic (default 1,000,000)"
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of each part; the best counts (default 3)")
    parser.add_argument("--spark-master", default="local[*]")
    add_sandbox_option(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bwtui-bench-") as folder:
        try:
            with services_in(Path(folder) / "sandbox", arguments.sandbox) as services:
                found = _measure(services.broker, arguments.messages, arguments.runs, arguments.spark_master)
                figures = dict(found)
        except BwtuiError as error:
            print(f"bwtui: error: {error.message}\nhint: {error.hint}", file=sys.stderr)
            return error.exit_code
    print(json.dumps({"messages": arguments.messages, "cores": os.cpu_count(), "figures": figures}))
    return 0


def _measure(broker: str, count: int, runs: int, master: str) -> Iterator[tuple[str, float]]:
    config = {"bootstrap.servers": broker}
    begin = time.monotonic()
    with spark_session(master, "bench") as spark:
        yield _told("session start, seconds", time.monotonic() - begin, 1)
        parts = _parts(spark, config, count)
        for name, part in parts:
            seconds = [measured(part, count) for _ in range(runs + 1)]
            yield _told(f"{name}, first", count / seconds[0])
            yield _told(name, count / min(seconds[1:]))
    for name, part in without_spark(broker, "four", count):
        yield _told(name, count / min(measured(part, count) for _ in range(runs)))


def _parts(spark: SparkSession, config: Config, count: int) -> Iterator[tuple[str, Callable[[], int]]]:
    for topic, partitions, headers in (("four", 4, None), ("one", 1, None), ("headers", 4, _HEADERS)):
        _make(config, topic, partitions)
        _fill(config, topic, partitions, count, headers)
    for topic in ("four", "one"):
        offsets = {at: (low, low + count // (4 if topic == "four" else 1))
                   for at, (low, _) in pin(config, [topic]).offsets.items()}  # fmt: skip

        def read(*columns: str, offsets: dict[tuple[str, int], tuple[int, int]] = offsets) -> DataFrame:
            return read_kafka(spark, config, offsets, columns=columns)

        yield f"source, {topic}: offsets", lambda read=read: read("offset").count()
        yield f"source, {topic}: all but headers", lambda read=read: read(*PLAIN_COLUMNS).count()
        yield f"source, {topic}: xxhash64", lambda read=read: _sum(read(*PLAIN_COLUMNS))
    offsets = {at: (low, low + count // 4) for at, (low, _) in pin(config, ["headers"]).offsets.items()}
    yield "source, two headers", lambda: read_kafka(spark, config, offsets, columns=ALL_COLUMNS).count()


def _make(config: Config, topic: str, partitions: int) -> None:
    admin = AdminClient({**config})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
    eventually(f"topic {topic} is there", lambda: topic in admin.list_topics(timeout=10).topics)


def _fill(
    config: Config, topic: str, partitions: int, count: int, headers: list[tuple[str, bytes]] | None
) -> None:
    """Write messages of about 100 bytes."""
    producer = Producer({**config, "linger.ms": 5, "compression.type": "lz4"})
    for number in range(count):
        key, value = b"k%d" % number, b"value %d " % number * 7
        while True:
            try:
                producer.produce(topic, value, key, number % partitions, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def _sum(rows: DataFrame) -> int:
    return int(rows.selectExpr(*_HASH).collect()[0]["offsets"])


def _told(name: str, value: float, digits: int = 0) -> tuple[str, float]:
    print(f"{name:<38} {value:>12,.{digits}f}", flush=True)
    return name, round(value, digits)


if __name__ == "__main__":
    sys.exit(main())
