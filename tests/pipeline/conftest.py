"""Fixtures: topics with their own settings."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.fresh_topic import create_topic
from tests.pipeline.replayed import Replays
from tests.waiting import eventually

MakeTopic = Callable[..., str]


@pytest.fixture
def config(services: ServiceAddresses) -> dict[str, str]:
    """The configuration of the run's Kafka."""
    return {"bootstrap.servers": services.broker}


@pytest.fixture
def admin(config: dict[str, str]) -> AdminClient:
    """A client without restrictions."""
    return AdminClient({**config})


@pytest.fixture(params=["in this process", pytest.param("on Spark", marks=pytest.mark.long)])
def replays(
    request: pytest.FixtureRequest, spark: SparkSession, services: ServiceAddresses, tmp_path: Path
) -> Replays:
    """Runs replays into the run's Kafka, both with and without Spark.

    Both share all but the tasks: `test_cluster` and `test_replay_missing` always run on Spark.
    """
    return Replays(spark, services, tmp_path / "state", on_spark=request.param == "on Spark")


@pytest.fixture
def make_topic(admin: AdminClient) -> MakeTopic:
    """Return a function that creates a topic with given settings, and returns its name."""

    def make(partitions: int = 1, name: str = "", **settings: str) -> str:
        name = name or f"pipeline-{time.monotonic_ns():x}"
        # The tests' messages are older than Kafka's default retention.
        dotted = {key.replace("_", "."): value for key, value in {"retention_ms": "-1", **settings}.items()}
        create_topic(admin, NewTopic(name, partitions, 1, config=dotted))

        def is_known() -> bool:
            topics = admin.list_topics(timeout=10).topics
            return name in topics and len(topics[name].partitions) == partitions

        eventually(f"topic {name} is there", is_known)
        return name

    return make
