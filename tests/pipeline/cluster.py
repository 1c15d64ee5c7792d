"""A standalone Spark cluster on loopback: one master and several workers, from pyspark's own jars.

It accepts only clients that know its secret, as every cluster should that receives Kafka's password.
"""

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from bwtui.spark.session import environment, spark_java
from tests.waiting import eventually

_PACKAGE = "org.apache.spark.deploy"
_STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Registering worker"
_DEFAULTS = "spark.authenticate true\nspark.authenticate.secret {secret}\n"


@contextmanager
def spark_cluster(folder: Path, workers: int = 2, memory: str = "512m") -> Iterator[str]:
    """Start a cluster with its files in ``folder``, and yield the master's URL; stop it after the block.

    During the block SPARK_CONF_DIR names a folder with the cluster's secret in it.
    """
    (folder / "spark-defaults.conf").write_text(_DEFAULTS.format(secret=secrets.token_hex()))
    with environment(SPARK_CONF_DIR=str(folder)):
        yield from _cluster(folder, workers, memory)


def _cluster(folder: Path, workers: int, memory: str) -> Iterator[str]:
    started: list[subprocess.Popen[bytes]] = []
    log = folder / "master.log"
    try:
        started.append(_start(folder, log, "master.Master", "--port", "0", "--webui-port", "0"))
        found = eventually("the master is there", lambda: _STARTED.search(log.read_text()), 120)
        master = found[1]
        for number in range(workers):
            place = folder / f"worker{number}"
            place.mkdir()
            options = ("--webui-port", "0", "--cores", "1", "--memory", memory, "--work-dir", str(place))
            started.append(_start(folder, folder / f"{place.name}.log", "worker.Worker", *options, master))
        eventually("the workers are there", lambda: log.read_text().count(_REGISTERED) == workers, 120)
        yield master
    finally:
        # By process id, and only processes that were started here.
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            process.wait(30)


def _start(folder: Path, log: Path, role: str, *arguments: str) -> "subprocess.Popen[bytes]":
    settings = folder / "log4j2.properties"
    settings.write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.c.ref = c\nappender.c.type = Console\n"
        "appender.c.name = c\nappender.c.layout.type = PatternLayout\nappender.c.layout.pattern = %m%n\n"
    )
    home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(spark_java().resolve().parent.parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile={settings.as_uri()}",
        # For the executors too: a quick compiler suits short lives.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
        "PYSPARK_PYTHON": sys.executable,
    }
    # The script replaces itself by Java with exec, so the process is Java's in the end.
    command = [str(home / "bin" / "spark-class"), f"{_PACKAGE}.{role}", "--host", "127.0.0.1", *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
