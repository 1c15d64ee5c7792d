"""On a standalone cluster source, ``verify`` and ``replay`` do the same as on one machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bwtui.kafka.scan import pin
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.spark.kafka_source import read_kafka
from tests.attempts import Attempts, Ended
from tests.database import session
from tests.pipeline.cluster import spark_cluster
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.messages import Transactions, produce
from tests.pipeline.replayed import (
    Replays,
    all_of,
    by_key,
    expected,
    fresh,
    recorded,
    registered,
    topic_content,
)

pytestmark = pytest.mark.services

DIGEST = "bit_xor(xxhash64(kind, topic, partition, offset, offset_end, key, value, headers)) digest"
#: A process has at most one session, so the cluster's session is in a separate process. It reads in several
#: tasks on two executors.
DRIVER = """
import json, sys
from bwtui.kafka.scan import pin
from bwtui.spark.kafka_source import read_kafka
from bwtui.spark.session import spark_session
master, broker, source, digest = sys.argv[1:]
config = {"bootstrap.servers": broker, "sasl.password": "hunter2"}

def places(batches):
    import pyarrow, bwtui.kafka.scan as module
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"place": [module.__file__]})

with spark_session(master, "cluster", memory="512m") as spark:
    rows = read_kafka(spark, config, pin(config, [source]).offsets, split_sizes=(100, 100))
    found = rows.selectExpr("count(*) rows", digest).first().asDict()
    found["module"] = spark.range(1).mapInArrow(places, "place string").first().place
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The master of a cluster with two workers."""
    with spark_cluster(tmp_path_factory.mktemp("cluster"), memory="1g") as master:
        yield master


def told(*arguments: str, **environment: str) -> dict[str, Any]:
    """Run Python with ``arguments``; return what it printed as JSON."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.long
def test_a_cluster_reads_the_same(
    spark: SparkSession, cluster: str, make_topic: MakeTopic, config: dict[str, str]
) -> None:
    source = make_topic(partitions=2)
    rows = [(b"%d" % number, b"v" * number, [("h", b"%d" % number)]) for number in range(400)]
    produce(config, source, rows, partition=0)
    produce(config, source, rows, partition=1)
    Transactions(config, source).commit("a", "b")
    here = (
        read_kafka(spark, config, pin(config, [source]).offsets).selectExpr("count(*) rows", DIGEST).first()
    )
    assert here is not None and here.rows == 803
    there = told("-c", DRIVER, cluster, config["bootstrap.servers"], source, DIGEST)
    assert (there["rows"], there["digest"]) == (here.rows, here.digest)
    # The executors used the package that was sent, not one that happened to be installed.
    assert "bwtui.zip" in there["module"]


def verify(attempts: Attempts, recording: Path, *args: str) -> tuple[Ended, dict[str, Any]]:
    """Run ``bwtui verify``; return its exit and its report, if there is one."""
    ends = ["-b", attempts.services.broker, "-r", attempts.services.schema_registry, "--json"]
    ended = attempts.command("verify", str(recording), *ends, *args)
    return ended, json.loads(ended.stdout) if ended.stdout else {}


def test_a_cluster_finds_the_same(
    spark_classes: None, cluster: str, services: ServiceAddresses, database: str, tmp_path: Path
) -> None:
    attempts, recording, work = Attempts(services, tmp_path), tmp_path / "recording", tmp_path / "work"
    with session(database) as opened:
        opened.run("create table t (id int primary key, v text)")
        opened.run("insert into t select i, 'v' || i from generate_series(1, 500) i")
        attempts.succeed(database, "--record", str(recording))
        opened.run("update t set v = 'w' where id <= 100; delete from t where id > 450")
        attempts.succeed(database, "--record", str(recording))
    ended, _ = verify(attempts, recording, "--spark-master", cluster)
    assert ended.code == 2 and "--work-folder" in ended.stderr
    work.mkdir()
    on = ("--spark-master", cluster, "--work-folder", str(work))
    ended, there = verify(attempts, recording, *on, "--deep")
    assert (ended.code, there["verdict"]) == (0, "clean"), ended.stderr
    assert there["compared_with_postgresql"] == 650
    # If no worker could write, the error is one sentence.
    ended, _ = verify(attempts, recording, "--spark-master", cluster, "--work-folder", str(tmp_path / "no"))
    assert ended.code == 2 and str(tmp_path / "no") in ended.stderr and "unexpected" not in ended.stderr
    assert list(work.iterdir()) == []
    ended, here = verify(attempts, recording)
    assert (here["balance"], here["classes"]) == (there["balance"], there["classes"])
    assert not (tmp_path / ".tmp").exists()


@pytest.mark.long
@pytest.mark.parametrize("replays", ["on Spark"], indirect=True)
def test_a_cluster_replays_the_same(
    replays: Replays, cluster: str, services: ServiceAddresses, tmp_path: Path
) -> None:
    topic = fresh("cluster")
    folder = recorded(tmp_path / "r", topic, 2_000, registered(services, topic))
    replays.sealed(folder)
    ends = {"BWTUI_BROKER": services.broker, "BWTUI_SCHEMA_REGISTRY": services.schema_registry}
    command = ("-m", "bwtui", "replay", str(folder), "--spark-master", cluster, "--json")
    outcome = told(*command, BWTUI_STATE_HOME=str(tmp_path / "home"), **ends)
    sent = expected(folder)[topic]
    assert outcome["sent"] == outcome["messages"] == len(sent)
    content = topic_content(services, topic)
    assert by_key(all_of(content)) == by_key(sent) and sum(map(bool, content.values())) > 1
