"""Fixtures: one Spark session for all tests that request it, since its start takes seconds.

With ``spark_classes`` every later Java process of Spark, including those of commands, takes half as much CPU.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    # Every process of a run imports this file, and few of them need Spark.
    from pyspark.sql import SparkSession

#: A short session that loads the most common classes. It writes the archive as it ends, if there is none.
_MAKE = """
import sys
from bwtui.spark.session import spark_session
with spark_session("local[1]", "bwtui-classes") as spark:
    spark.range(9).mapInArrow(lambda batches: batches, "id long").write.parquet(sys.argv[1])
    rows = spark.read.parquet(sys.argv[1])
    rows.join(rows.groupBy("id").count(), "id").orderBy("id").toArrow()
"""
_LOG_LINES = 30
#: A few hundred rows do not justify the code that Spark generates and compiles for each stage of each plan.
#: The commands' own sessions do that, in the tests that start them.
_FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "4",
}


@dataclass
class _Java:
    """The shared session's Java process, to report how it ended."""

    pid: int
    log: Path

    def obituary(self) -> str | None:
        """Return how it ended and its last output, or None while it runs."""
        try:
            # It is our child, and a zombie until the session is closed.
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
    """Create the archive of Spark's classes, unless the environment turns it off."""
    if os.environ.get("BWTUI_CLASS_ARCHIVE") == "off":
        return
    from bwtui.spark.session import class_archive, spark_java

    # All worker processes of one run have this folder; the first makes the archive, the others wait for it.
    folder = tmp_path_factory.getbasetemp().parent
    with (folder / "spark-classes.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not class_archive(spark_java()).exists:
            place = tmp_path_factory.mktemp("spark-classes") / "rows"
            subprocess.run([sys.executable, "-c", _MAKE, str(place)], check=True, timeout=240)


@pytest.fixture(scope="session")
def spark(spark_classes: None) -> "Iterator[SparkSession]":
    """A local Spark session on two cores."""
    from bwtui.spark.session import spark_session

    global _java
    with spark_session("local[2]", "bwtui-tests", config=_FEW_ROWS) as session:
        pid = session._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
        folder = session.sparkContext.getConf().get("spark.local.dir", "")
        _java = _Java(pid, Path(folder or "") / "spark.log")
        yield session
    _java = None


@pytest.fixture
def shared_spark(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> "SparkSession":
    """Let Spark's commands in this process use the run's session: starting Java for each takes seconds.

    Everything else is the command's own: its arguments, its output, and its exit code.
    """
    from bwtui.spark.failure import plain_errors

    @contextmanager
    def shared(*_: Any, **__: Any) -> "Iterator[SparkSession]":
        with plain_errors():
            yield spark

    monkeypatch.setattr("bwtui.spark.session.spark_session", shared)
    return spark


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Report with a failure that the shared session's Java has ended, since this may be the cause."""
    report = yield
    if report.failed and _java is not None and (told := _java.obituary()) is not None:
        report.sections.append(("Spark's Java", told))
    return report
