"""The benchmark against Debezium runs at a tiny size, which does not test its figures, and leaves nothing."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from benchmarks.debezium import page
from benchmarks.debezium.source import DATABASE
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from tests.database import Session
from tests.waiting import eventually

pytestmark = pytest.mark.services

_ROOT = Path(__file__).parents[2]
_SMALL = ("--rows", "3000", "--warm-up", "1000", "--pairs", "1", "--seconds", "2")


def start(folder: Path, *given: str, **environment: str) -> "subprocess.Popen[str]":
    """Start the benchmark with its own files in ``folder``."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.debezium", *given],
        cwd=_ROOT,
        env={**os.environ, "TMPDIR": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_of(folder: Path) -> list[str]:
    """Return the command lines that contain a folder's name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line[:200])
    return found


@pytest.fixture
def nothing_left(services: ServiceAddresses, tmp_path: Path) -> Iterator[Path]:
    """A folder for a run's files; after the test no process, topic, slot or database is left."""
    place = tmp_path / "of_the_run"
    place.mkdir()
    yield place
    assert processes_of(place) == []
    assert list(place.iterdir()) == []
    with closing(Session(services.postgres)) as session:
        assert session.rows("select slot_name from pg_replication_slots where database = %s", DATABASE) == []
        assert session.rows("select datname from pg_database where datname = %s", DATABASE) == []
    topics = AdminClient({"bootstrap.servers": services.broker}).list_topics(timeout=30).topics
    assert [topic for topic in topics if re.match(r"b\d+_", topic)] == []


def test_without_a_package_registry_it_is_said(tmp_path: Path) -> None:
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="mirror"/><resolvers><ibiblio name="mirror" '
        'm2compatible="true" usepoms="false" root="http://127.0.0.1:9/"/></resolvers></ivysettings>'
    )
    cache = str(tmp_path / "cache")
    process = start(tmp_path, *_SMALL, BWTUI_CACHE_HOME=cache, BWTUI_IVY_SETTINGS=str(settings))
    told, errors = process.communicate(timeout=120)
    assert process.returncode == 4 and told == ""
    lines = errors.splitlines()
    assert lines[0].startswith("bwtui: error: no package registry can be reached (Connection refused")
    assert len(lines) == 2 and lines[1].startswith("hint: ")


@pytest.mark.long
@pytest.mark.parametrize("workload", ["stream", "snapshot", "tables", "latency"])
def test_both_relay_every_row(nothing_left: Path, sandbox: Sandbox, tmp_path: Path, workload: str) -> None:
    kept = tmp_path / "results"
    given = ["--sandbox", str(sandbox.folder), "--workloads", workload, "--write", str(kept)]
    process = start(nothing_left, *given, *_SMALL, "--ways", "bwtui,debezium")
    told, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors
    runs: list[dict[str, Any]] = [json.loads(line) for line in told.splitlines()]
    assert [run["way"] for run in runs] == ["bwtui", "debezium"]
    assert all(run["cpu_seconds"] > 0 and run["resident_mb"] > 30 for run in runs)
    (found,) = page.everything(kept)
    assert len(found["runs"]) == 2 and str(tmp_path) not in json.dumps(found)
    assert len(page.table(found).splitlines()) == 4


@pytest.mark.long
def test_ctrl_c_leaves_nothing(nothing_left: Path, sandbox: Sandbox) -> None:
    process = start(
        nothing_left, "--sandbox", str(sandbox.folder), "--workloads", "stream", "--ways", "debezium", *_SMALL
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "pair 1: debezium" in line:
            break
    eventually(
        "Connect runs", lambda: any("-XX:+UseParallelGC" in line for line in processes_of(nothing_left)), 120
    )
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
