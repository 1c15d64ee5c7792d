"""While an audit or a replay runs, no other user of the machine can get Kafka's password."""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from bwtui.errors import RefusedError
from bwtui.kafka.scan import pin
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.spark.kafka_source import read_kafka
from bwtui.spark.task_secrets import hand_over
from tests.attempts import Attempts
from tests.database import session
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.messages import produce
from tests.pipeline.stranger import Loot, Stranger, family

pytestmark = pytest.mark.services

Config = dict[str, str]
#: A session with open ports, which waits for the end of its input.
OPEN = """
import json, sys
from bwtui.spark.task_secrets import hand_over
from bwtui.kafka.scan import pin
from bwtui.spark.kafka_source import read_kafka
from bwtui.spark.session import spark_session
given = json.loads(sys.stdin.readline())
with spark_session("local[1]", memory="512m", config={"spark.authenticate": "false"}) as spark:
    offsets = pin(given["config"], [given["topic"]]).offsets
    handed = hand_over(spark, given["config"], given["config"])
    assert spark.sparkContext.parallelize([1]).map(lambda _: handed.take()).first() == given["config"]
    print(read_kafka(spark, given["config"], offsets).count(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def word() -> str:
    """A password without repetitions, so that Spark's compressed data contains it unchanged."""
    return "".join(random.SystemRandom().sample("~^|#%&!{}()*+;<>?@QXZJKVW", 24))


@pytest.fixture
def stranger(word: str) -> Iterator[Stranger]:
    """Another user, who would recognize the password."""
    with Stranger(word) as stranger:
        yield stranger


def folders() -> list[Path]:
    """Return the entries with our name in places that all users share."""
    shared = {Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm")}
    return [one for place in shared for one in place.glob("*bwtui*")]


def test_a_session_tells_a_stranger_nothing(
    spark: SparkSession, make_topic: MakeTopic, config: Config, word: str, stranger: Stranger
) -> None:
    topic = make_topic()
    produce(config, topic, [(b"k", b"v", [])])
    assert read_kafka(spark, {**config, "sasl.password": word}, pin(config, [topic]).offsets).count() == 1
    java = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    loot = stranger.attack([os.getpid(), *family(java)], folders())
    # Spark's two ports, and its gateway.
    assert loot.ports >= 3 and loot.files
    assert (loot.blocks, loot.answered, loot.found) == (0, 0, [])


def test_what_spark_sends_its_tasks_has_no_password(
    spark_classes: None, make_topic: MakeTopic, config: Config, word: str, stranger: Stranger
) -> None:
    topic = make_topic()
    produce(config, topic, [(b"k", b"v", [])])
    process = subprocess.Popen(
        [sys.executable, "-c", OPEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        given = {"config": {**config, "sasl.password": word}, "topic": topic}
        process.stdin.write(json.dumps(given) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "1\n"
        # A busy machine may be slow to answer.
        found = iter(lambda: stranger.attack(family(process.pid), folders()), None)
        loot = next(one for one in found if one.blocks)
        process.stdin.close()
    assert process.returncode == 0
    # Without authentication the attack works; there is just no password to find.
    assert loot.answered > 0
    assert loot.found == []


def test_verify_and_replay_tell_a_stranger_nothing(
    spark_classes: None,
    services: ServiceAddresses,
    database: str,
    tmp_path: Path,
    word: str,
    stranger: Stranger,
) -> None:
    attempts, recording = Attempts(services, tmp_path), tmp_path / "recording"
    with session(database) as opened:
        opened.run("create table t (id int primary key, v text)")
        opened.run("insert into t select i, 'v' || i from generate_series(1, 500) i")
        attempts.succeed(database, "--record", str(recording))
    (tmp_path / "bwtui.toml").write_text(f'[kafka]\n"sasl.password" = "{word}"\n')
    ends = ("-b", services.broker, "-r", services.schema_registry, "--json")
    # Slowly, so that there is time to attack.
    replay = ("replay", "--yes", "--rate", "250", "--topic-prefix")
    # A small audit needs no Spark, and opens no port; a small replay has its coordinator's port. With
    # --spark-master both have Spark's.
    spark = ("--spark-master", "local[2]")
    for command, ports in (
        (("verify",), 0),
        (("verify", *spark), 3),
        ((*replay, "again"), 1),
        ((*replay, "spark", *spark), 3),
    ):
        loot = Loot()
        with attempts.begin(command[0], str(recording), *command[1:], *ends) as process:
            while process.poll() is None:
                loot.add(stranger.attack(family(process.pid), folders()))
        assert process.returncode == 0
        assert loot.ports >= ports and loot.files
        assert (loot.blocks, loot.answered, loot.found) == (0, 0, [])


def test_a_cluster_that_asks_nobody_gets_no_password() -> None:
    def cluster(**settings: str) -> SparkSession:
        conf = {"spark.master": "spark://far:7077"} | {f"spark.{key}": one for key, one in settings.items()}
        return cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf)))

    config = {"bootstrap.servers": "b:9092"}
    assert hand_over(cluster(), config, config).take() == config
    config["sasl.password"] = "hunter2"
    assert hand_over(cluster(authenticate="true"), config, config).take() == config
    with pytest.raises(RefusedError, match=r"has no spark\.authenticate") as refused:
        hand_over(cluster(authenticate="false"), config, config)
    assert "SPARK_CONF_DIR" in str(refused.value.hint)
