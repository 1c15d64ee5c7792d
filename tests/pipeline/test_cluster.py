"""The source and the sink on a standalone cluster do what they do on one machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bwtui.pipeline.kafka_offsets import pin
from bwtui.pipeline.kafka_source import read_kafka
from tests.fix_spark import QUICK
from tests.pipeline.cluster import spark_cluster
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.messages import Transactions, produce

pytestmark = pytest.mark.services

DIGEST = "bit_xor(xxhash64(kind, topic, partition, offset, offset_end, key, value, headers)) digest"
#: A process has one session at most, so the cluster's is in one of its own. It reads in several tasks on two
#: executors, is refused a sink that could write twice, and then writes.
DRIVER = """
import json, sys
from bwtui.errors import RefusedError
from bwtui.pipeline.kafka_offsets import pin
from bwtui.pipeline.kafka_sink import write_kafka
from bwtui.pipeline.kafka_source import read_kafka
from bwtui.pipeline.session import WRITE_ONCE, spark_session
master, broker, source, copy, digest = sys.argv[1:]
config = {"bootstrap.servers": broker}
settings = {**WRITE_ONCE, "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1"}

def places(batches):
    import pyarrow, bwtui.pipeline.kafka_scan as module
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"place": [module.__file__]})

with spark_session(master, "cluster", memory="512m", config=settings) as spark:
    rows = read_kafka(spark, config, pin(config, [source]).offsets, split_sizes=(100, 100))
    found = rows.selectExpr("count(*) rows", digest).first().asDict()
    found["module"] = spark.range(1).mapInArrow(places, "place string").first().place
    chosen = rows.where("kind = 'record'").selectExpr(f"'{copy}' topic", "key", "value", "headers")
    found["written"] = sum(one.messages for one in write_kafka(chosen, config))
    spark.sparkContext._conf.set("spark.task.maxFailures", "4")
    try:
        write_kafka(chosen, config)
    except RefusedError as error:
        found["refused"] = error.message
    print(json.dumps(found))
"""


def test_a_cluster_reads_and_writes_the_same(
    spark: SparkSession, make_topic: MakeTopic, config: dict[str, str], tmp_path: Path
) -> None:
    source, copy = make_topic(partitions=2), make_topic()
    rows = [(b"%d" % number, b"v" * number, [("h", b"%d" % number)]) for number in range(400)]
    produce(config, source, rows, partition=0)
    produce(config, source, rows, partition=1)
    Transactions(config, source).commit("a", "b")
    here = (
        read_kafka(spark, config, pin(config, [source]).offsets).selectExpr("count(*) rows", DIGEST).first()
    )
    assert here is not None and here.rows == 803
    with spark_cluster(tmp_path) as master:
        ended = subprocess.run(
            [sys.executable, "-c", DRIVER, master, config["bootstrap.servers"], source, copy, DIGEST],
            env=os.environ | QUICK,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (0, "")
    there = json.loads(ended.stdout)
    assert (there["rows"], there["digest"]) == (here.rows, here.digest)
    # The executors used the package that was sent, not one that happened to be installed.
    assert "bwtui.zip" in there["module"]
    assert there["written"] == 802
    assert pin(config, [copy]).messages == 802
    assert "write its messages twice" in there["refused"]
