"""What Spark writes into Kafka is there once, byte for byte, and in order."""

import pytest
from pyspark.sql import SparkSession

from bwtui.errors import RefusedError
from bwtui.kafka.offsets import pin
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.spark.kafka_sink import PartitionWrites, write_kafka
from bwtui.spark.kafka_source import ALL_COLUMNS, read_kafka
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.messages import ODD, produce
from tests.raw_topic import raw_messages

pytestmark = pytest.mark.services

Config = dict[str, str]


def test_a_copy_is_the_same_to_the_last_byte(
    spark: SparkSession, config: Config, make_topic: MakeTopic
) -> None:
    source, copy = make_topic(partitions=2), make_topic(partitions=2)
    produce(config, source, ODD * 4, partition=0)
    produce(config, source, ODD, partition=1, start=500)
    rows = read_kafka(spark, config, pin(config, [source]).offsets)
    chosen = ("partition", "timestamp", "key", "value", "headers")
    written = write_kafka(rows.selectExpr(f"'{copy}' topic", *chosen), config)
    assert written == [PartitionWrites(copy, 0, 24, 0, 23), PartitionWrites(copy, 1, 6, 0, 5)]
    columns = [name for name in ALL_COLUMNS if name != "topic"]
    copied = read_kafka(spark, config, pin(config, [copy]).offsets).select(columns).collect()
    assert sorted(copied, key=repr) == sorted(rows.select(columns).collect(), key=repr)


def test_order_is_kept(
    spark: SparkSession, config: Config, make_topic: MakeTopic, services: ServiceAddresses
) -> None:
    topic = make_topic()
    rows = spark.range(0, 30_000, 1, 1).selectExpr(f"'{topic}' topic", "cast(string(id) as binary) value")
    assert write_kafka(rows, config) == [PartitionWrites(topic, 0, 30_000, 0, 29_999)]
    assert [value for _, value in raw_messages(services, topic)] == [b"%d" % id for id in range(30_000)]


def test_null_means_now_and_by_key(
    spark: SparkSession, config: Config, make_topic: MakeTopic, services: ServiceAddresses
) -> None:
    topic = make_topic(partitions=8)
    keys = spark.range(200).selectExpr(
        f"'{topic}' topic",
        "cast('the same' as binary) key",
        "cast(null as binary) value",
        "cast(null as int) partition",
        "cast(null as bigint) timestamp",
    )
    (written,) = write_kafka(keys, config)
    assert written.messages == 200
    assert raw_messages(services, topic) == [(b"the same", None)] * 200
    now = spark.sql("select unix_millis(now()) now").first()
    stamps = read_kafka(spark, config, pin(config, [topic]).offsets, columns=("timestamp",)).collect()
    assert now is not None and all(now.now - 60_000 < row.timestamp < now.now + 60_000 for row in stamps)


def test_what_kafka_refuses_is_told(spark: SparkSession, config: Config, make_topic: MakeTopic) -> None:
    topic = make_topic(max_message_bytes="1000")
    large = spark.range(1).selectExpr(f"'{topic}' topic", "cast(repeat('secret', 5000) as binary) value")
    # What does not compress stays large.
    large = large.selectExpr("topic", "cast(concat_ws('', transform(sequence(1, 900), "
                             "i -> sha2(string(i), 256))) as binary) value")  # fmt: skip
    with pytest.raises(RefusedError, match=f"topic {topic} does not accept a message of 57600 bytes"):
        write_kafka(large, config)
    unknown = spark.range(1).selectExpr("'never-made' topic", "cast('v' as binary) value")
    with pytest.raises(RefusedError, match="topic never-made does not exist"):
        write_kafka(unknown, {**config, "topic.metadata.propagation.max.ms": "300"})
    odd = spark.range(1).selectExpr(f"'{topic}' topic", "cast('v' as binary) value", "9 partition")
    with pytest.raises(RefusedError, match=f"topic {topic} lacks a partition"):
        write_kafka(odd, {**config, "topic.metadata.propagation.max.ms": "300"})


def test_columns_are_checked(spark: SparkSession, config: Config) -> None:
    rows = spark.range(1)
    with pytest.raises(RefusedError, match="lacks columns: value"):
        write_kafka(rows.selectExpr("'t' topic"), config)
    with pytest.raises(RefusedError, match="has unknown columns: colour"):
        write_kafka(rows.selectExpr("'t' topic", "cast('v' as binary) value", "1 colour"), config)
