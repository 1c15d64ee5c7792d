"""Fixtures: one Spark session for all tests that ask for it; it costs seconds to start.

With ``spark_classes`` every Java process of Spark that starts later costs half as much, the commands' too.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bwtui.spark.failure import plain_errors
from bwtui.spark.java import class_archive, spark_java
from bwtui.spark.session import spark_session

#: A short session that loads what most others do. It leaves the archive as it ends, if there is none.
_MAKE = """
import sys
from bwtui.spark.session import spark_session
with spark_session("local[1]", "bwtui-classes") as spark:
    spark.range(9).mapInArrow(lambda batches: batches, "id long").write.parquet(sys.argv[1])
    rows = spark.read.parquet(sys.argv[1])
    rows.join(rows.groupBy("id").count(), "id").orderBy("id").toArrow()
"""
_LOG_LINES = 30
#: Some hundred rows do not pay for code that Spark makes and compiles for each stage of each plan. The
#: commands' own sessions do that, in the tests that start them.
_FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "4",
}


@dataclass
class _Java:
    """The shared session's Java process: to say how it ended, if it did."""

    pid: int
    log: Path

    def obituary(self) -> str | None:
        """Say how it ended and what it wrote last; None while it runs."""
        try:
            # It is our child, and stays a zombie until the session is closed.
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return f"process {self.pid} is gone"
        if fields[0] != "Z":
            return None
        code = os.waitstatus_to_exitcode(int(fields[-1]))
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        said = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"process {self.pid} has ended {how}; its last words:", *said[-_LOG_LINES:]])


_java: _Java | None = None


@pytest.fixture(scope="session")
def spark_classes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """See that there is the archive of Spark's classes, unless the environment says off."""
    if os.environ.get("BWTUI_CLASS_ARCHIVE") == "off":
        return
    # All worker processes of one run have this folder; the first makes the archive, the others wait for it.
    folder = tmp_path_factory.getbasetemp().parent
    with (folder / "spark-classes.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not class_archive(spark_java()).exists:
            place = tmp_path_factory.mktemp("spark-classes") / "rows"
            subprocess.run([sys.executable, "-c", _MAKE, str(place)], check=True, timeout=240)


@pytest.fixture(scope="session")
def spark(spark_classes: None) -> Iterator[SparkSession]:
    """A local Spark session on two cores."""
    global _java
    with spark_session("local[2]", "bwtui-tests", config=_FEW_ROWS) as session:
        pid = session._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
        folder = session.sparkContext.getConf().get("spark.local.dir", "")
        _java = _Java(pid, Path(folder or "") / "spark.log")
        yield session
    _java = None


@pytest.fixture
def shared_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Have Spark's commands in this process take the run's session: a Java for each costs seconds.

    All else is the command's own: its arguments, what it prints, and its exit code.
    """

    @contextmanager
    def shared(*_: Any, **__: Any) -> Iterator[SparkSession]:
        with plain_errors():
            yield spark

    monkeypatch.setattr("bwtui.spark.session.spark_session", shared)
    return spark


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Tell with a failure that the shared session's Java has ended: the failure itself does not say why."""
    report = yield
    if report.failed and _java is not None and (told := _java.obituary()) is not None:
        report.sections.append(("Spark's Java", told))
    return report
