"""Spark returns every offset of a topic once, as a record or in a hole with its reason."""

from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from pyspark.sql import SparkSession

from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError
from bwtui.kafka import client as kafka_client
from bwtui.kafka.scan import PinnedTopics, pin
from bwtui.spark.failure import plain_errors
from bwtui.spark.kafka_source import PLAIN_COLUMNS, read_kafka
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.messages import ODD, Transactions, produce
from tests.raw_topic import raw_messages
from tests.waiting import eventually

pytestmark = pytest.mark.services

Config = dict[str, str]
TINY = (7, 7)
#: The run's Kafka accepts no logins.
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "me",
    "sasl.password": "hunter2",
}


def accounts(
    spark: SparkSession, config: Config, pinned: PinnedTopics, **options: Any
) -> list[tuple[Any, ...]]:
    """Return (kind, offset, offset_end) of a topic with one partition, in order, consecutive kinds merged."""
    with plain_errors():
        rows = read_kafka(
            spark, config, pinned.offsets, columns=("kind", "offset", "offset_end"), **options
        ).collect()
    merged: list[tuple[Any, ...]] = []
    for row in sorted(rows, key=lambda row: row.offset):
        if merged and merged[-1][0] == row.kind and merged[-1][2] == row.offset:
            merged[-1] = (row.kind, merged[-1][1], row.offset_end)
        else:
            merged.append(tuple(row))
    ((low, high),) = pinned.offsets.values()
    assert sum(end - start for _, start, end in merged) == high - low, "the account does not balance"
    return merged


def test_every_message_comes_as_it_is(spark: SparkSession, config: Config, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3)
    produce(config, topic, ODD * 5, partition=0)
    produce(config, topic, ODD, partition=2, start=1000)
    pinned = pin(config, [topic])
    assert pinned.offsets == {(topic, 0): (0, 30), (topic, 1): (0, 0), (topic, 2): (0, 6)}
    assert pinned.messages == 36 and pinned.cluster_id
    rows = read_kafka(spark, config, pinned.offsets, split_sizes=TINY)
    assert rows.rdd.getNumPartitions() == 6
    found = sorted(rows.collect(), key=lambda row: (row.partition, row.offset))
    assert [row.offset for row in found] == [*range(30), *range(6)]
    for number, row in enumerate(found):
        key, value, headers = ODD[row.offset % 6]
        assert (row.kind, row.topic, row.offset_end) == ("record", topic, row.offset + 1)
        assert (row.key, row.value) == (key, value)
        assert [tuple(header) for header in row.headers] == (headers or [])
        assert row.timestamp == 1_790_000_000_000 + (number if number < 30 else 970 + number)
        assert row.timestamp_type == 1


def test_large_messages_come_in_small_batches(
    spark: SparkSession, config: Config, make_topic: MakeTopic
) -> None:
    topic = make_topic(max_message_bytes="10000000")
    settings = {**config, "message.max.bytes": "10000000"}
    produce(settings, topic, [(b"k%d" % n, bytes([n]) * 9_000_000, None) for n in range(5)])
    rows = read_kafka(spark, config, pin(config, [topic]).offsets, columns=("offset", "value"))
    summed = rows.selectExpr("offset", "length(value) size", "hex(substring(value, 9000000, 1)) last")
    assert sorted(map(tuple, summed.collect())) == [(n, 9_000_000, f"{n:02X}") for n in range(5)]


def test_an_empty_topic_has_no_rows(spark: SparkSession, config: Config, make_topic: MakeTopic) -> None:
    pinned = pin(config, [make_topic(partitions=2)])
    assert read_kafka(spark, config, pinned.offsets).count() == 0


def test_transactions(spark: SparkSession, config: Config, make_topic: MakeTopic) -> None:
    topic = make_topic()
    transactions = Transactions(config, topic)
    transactions.commit("a", "b")
    transactions.abort("c", "d", "e")
    transactions.commit("f")
    transactions.abort("g")
    pinned = pin(config, [topic])
    # Each transaction ends with a marker, so the last offset is one too.
    assert pinned.offsets == {(topic, 0): (0, 11)}
    markers = [(2, 3), (6, 7), (8, 9), (10, 11)]
    everything = accounts(spark, config, pinned)
    assert [(low, high) for kind, low, high in everything if kind == "gap"] == markers
    committed = accounts(spark, config, pinned, isolation="read_committed")
    assert committed == [("record", 0, 2), ("gap", 2, 7), ("record", 7, 8), ("gap", 8, 11)]
    told = accounts(spark, config, pinned, isolation="read_committed", aborted=True)
    assert [one for one in told if one[0] == "aborted"] == [("aborted", 3, 6), ("aborted", 9, 10)]
    assert [(low, high) for kind, low, high in told if kind == "gap"] == markers
    rows = read_kafka(spark, config, pinned.offsets, isolation="read_committed", aborted=True)
    assert sorted(row.value for row in rows.where("kind = 'aborted'").collect()) == [b"c", b"d", b"e", b"g"]
    split = accounts(spark, config, pinned, isolation="read_committed", aborted=True, split_sizes=(1, 1))
    assert split == told


def test_an_open_transaction_is_not_waited_for(
    spark: SparkSession, config: Config, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    produce(config, topic, [(b"k", b"v", None)] * 3)
    transactions = Transactions(config, topic)
    transactions.write("a", "b")
    pinned = pin(config, [topic])
    assert pinned.offsets == {(topic, 0): (0, 5)}
    found = accounts(spark, config, pinned, isolation="read_committed", patience=0.3)
    assert found == [("record", 0, 3), ("open", 3, 5)]
    assert accounts(spark, config, pinned) == [("record", 0, 5)]
    transactions.producer.abort_transaction(30)


def test_what_retention_took_is_told(
    spark: SparkSession, config: Config, make_topic: MakeTopic, admin: AdminClient
) -> None:
    topic = make_topic()
    produce(config, topic, [(b"k", b"v", None)] * 20)
    pinned = pin(config, [topic])
    for answer in admin.delete_records([TopicPartition(topic, 0, 12)]).values():
        answer.result()
    found = accounts(spark, config, pinned, split_sizes=TINY)
    assert found == [("expired", 0, 12), ("record", 12, 20)]
    assert pin(config, [topic]).offsets == {(topic, 0): (12, 20)}


def test_what_was_compacted_is_a_gap(
    spark: SparkSession, config: Config, make_topic: MakeTopic, admin: AdminClient
) -> None:
    cleaner = ConfigResource(ResourceType.BROKER, str(next(iter(admin.list_topics(timeout=10).brokers))))
    _set(admin, cleaner, AlterConfigOpType.SET)
    topic = make_topic(cleanup_policy="compact", min_cleanable_dirty_ratio="0.001", segment_bytes="1048576")
    rows = [(b"k%d" % (number % 3), b"%d" % number, None) for number in range(30)]
    produce(config, topic, rows)
    # The active segment is never compacted; a new one begins when this one is full.
    produce(config, topic, [(b"filler%d" % number, bytes(200_000), None) for number in range(6)])
    pinned = pin(config, [topic])
    assert pinned.topics[topic].compacts and not pinned.topics[topic].deletes

    def compacted() -> bool:
        return ("gap", 0, 27) in accounts(spark, config, pinned)

    try:
        eventually("the topic is compacted", compacted)
    finally:
        # Compacting ten times a second applies to this test's topic only.
        _set(admin, cleaner, AlterConfigOpType.DELETE)
    assert accounts(spark, config, pinned) == [("gap", 0, 27), ("record", 27, 36)]
    assert accounts(spark, config, pinned, split_sizes=TINY) == [("gap", 0, 27), ("record", 27, 36)]


def test_a_log_that_lost_its_end_is_told(
    spark: SparkSession, config: Config, make_topic: MakeTopic, admin: AdminClient
) -> None:
    topic = make_topic()
    produce(config, topic, [(b"k", b"v", None)] * 10)
    pinned = pin(config, [topic])
    _delete(admin, topic)
    make_topic(name=topic)
    produce(config, topic, [(b"k", b"v", None)] * 4)
    assert accounts(spark, config, pinned, patience=0.3) == [("record", 0, 4), ("truncated", 4, 10)]
    assert accounts(spark, config, pinned, patience=0.3, split_sizes=TINY) == [
        ("record", 0, 4),
        ("truncated", 4, 10),
    ]


def test_topics_that_were_made_this_moment(config: Config, make_topic: MakeTopic, admin: AdminClient) -> None:
    """The brokers do not yet know the leaders of some partitions."""
    names = []
    for _ in range(10):
        names.append(name := make_topic(20))
        assert set(pin(config, [name]).offsets.values()) == {(0, 0)}
    for answer in admin.delete_topics(names).values():
        answer.result()


def test_a_topic_that_is_gone(
    spark: SparkSession, config: Config, make_topic: MakeTopic, admin: AdminClient
) -> None:
    with pytest.raises(RefusedError, match="topic never-made does not exist"):
        pin(config, ["never-made"])
    topic = make_topic()
    produce(config, topic, [(b"k", b"v", None)])
    pinned = pin(config, [topic])
    _delete(admin, topic)
    with pytest.raises(RefusedError, match=f"topic {topic} does not exist"):
        accounts(spark, config, pinned)


def test_a_broker_that_does_not_let_us_in(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        monkeypatch.context() as patch,
        pytest.raises(ConnectionFailed, match=r"can't reach Kafka at 127.0.0.1:9"),
    ):
        # Only for an unreachable broker: a reachable one may take its time to refuse.
        patch.setattr(kafka_client, "REQUEST_SECONDS", 0.1)
        pin({"bootstrap.servers": "127.0.0.1:9"}, ["some"])
    with pytest.raises(ConnectionFailed, match=r"rejects the client: .*SASL"):
        pin({**config, **LOGIN}, ["some"])
    with pytest.raises(BwtuiError, match="librdkafka rejects a setting"):
        pin({**config, "no.such": "setting"}, ["some"])


def test_a_broker_that_lets_nobody_in_any_more(
    spark: SparkSession, config: Config, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    produce(config, topic, [(b"k", b"v", None)])
    with pytest.raises(ConnectionFailed, match=r"rejects the client: .*SASL"):
        accounts(spark, {**config, **LOGIN}, pin(config, [topic]))


def test_no_plan_shows_a_secret(
    spark: SparkSession, config: Config, make_topic: MakeTopic, capfd: pytest.CaptureFixture[str]
) -> None:
    pinned = pin(config, [make_topic()])
    rows = read_kafka(spark, config | LOGIN, pinned.offsets, columns=PLAIN_COLUMNS)
    rows.explain(extended=True)
    shown = capfd.readouterr().out + str(rows._jdf.queryExecution())
    assert "bwtui_kafka" in shown and "hunter2" not in shown


def test_raw_reader_agrees(spark: SparkSession, config: Config, make_topic: MakeTopic, services: Any) -> None:
    topic = make_topic()
    produce(config, topic, [(b"%d" % number, b"x" * number, None) for number in range(2_000)])
    rows = read_kafka(spark, config, pin(config, [topic]).offsets, split_sizes=(300, 300)).collect()
    assert [(row.key, row.value) for row in rows] == raw_messages(services, topic)


def _set(admin: AdminClient, cleaner: ConfigResource, operation: AlterConfigOpType) -> None:
    cleaner.incremental_configs = [
        ConfigEntry("log.cleaner.backoff.ms", "100", incremental_operation=operation)
    ]
    for answer in admin.incremental_alter_configs([cleaner]).values():
        answer.result()


def _delete(admin: AdminClient, topic: str) -> None:
    admin.delete_topics([topic])[topic].result()
    eventually(f"{topic} is gone", lambda: topic not in admin.list_topics(timeout=10).topics)
