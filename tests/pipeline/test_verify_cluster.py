"""``bwtui verify`` on a standalone cluster says what it says on one machine, and leaves nothing behind."""

import json
from pathlib import Path
from typing import Any

import pytest

from bwtui.sandbox.supervisor import Services
from tests.attempts import Attempts, Ended
from tests.database import session
from tests.pipeline.cluster import spark_cluster

pytestmark = pytest.mark.services


def verify(attempts: Attempts, recording: Path, *args: str) -> tuple[Ended, dict[str, Any]]:
    """Run ``bwtui verify``; return how it ended and its report, if there is one."""
    ends = ["-b", attempts.services.broker, "-r", attempts.services.schema_registry, "--json"]
    ended = attempts.command("verify", str(recording), *ends, *args)
    return ended, json.loads(ended.stdout) if ended.stdout else {}


def test_a_cluster_finds_the_same(services: Services, database: str, tmp_path: Path) -> None:
    attempts, recording, work = Attempts(services, tmp_path), tmp_path / "recording", tmp_path / "work"
    with session(database) as opened:
        opened.run("create table t (id int primary key, v text)")
        opened.run("insert into t select i, 'v' || i from generate_series(1, 500) i")
        attempts.succeed(database, "--record", str(recording))
        opened.run("update t set v = 'w' where id <= 100; delete from t where id > 450")
        attempts.succeed(database, "--record", str(recording))
    with spark_cluster(tmp_path, memory="1g") as master:
        ended, _ = verify(attempts, recording, "--spark-master", master)
        assert ended.code == 2 and "--work-folder" in ended.stderr
        work.mkdir()
        on = ("--spark-master", master, "--work-folder", str(work))
        ended, there = verify(attempts, recording, *on, "--deep")
        assert (ended.code, there["verdict"]) == (0, "clean"), ended.stderr
        assert there["compared_with_postgresql"] == 650
        # Where no worker could write, it says so in one sentence.
        ended, _ = verify(
            attempts, recording, "--spark-master", master, "--work-folder", str(tmp_path / "no")
        )
        assert ended.code == 2 and str(tmp_path / "no") in ended.stderr and "unexpected" not in ended.stderr
    assert list(work.iterdir()) == []
    ended, here = verify(attempts, recording)
    assert (here["balance"], here["classes"]) == (there["balance"], there["classes"])
    assert not (tmp_path / ".tmp").exists()
