"""A first snapshot by executors of a Spark cluster: each row is read, and no secret is left behind."""

import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bwtui.model.status import Status
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from tests.attempts import password
from tests.database import session
from tests.faults.hanging import hanging
from tests.faults.recordings import assert_tables_follow, assert_topics_agree, opened, recover_and_check
from tests.faults.records import assert_equal
from tests.faults.relays import Relay, execute, wait_for
from tests.faults.test_snapshot_workers import (
    MADE,
    ROWS,
    TABLES,
    NewRelay,
    assert_stream_behind_snapshot,
    kill,
    told,
)
from tests.pipeline.cluster import spark_cluster

pytestmark = pytest.mark.timeout(900)

#: The user does not exist; librdkafka ignores it where it does not log in.
SECRET = "s3cret-of-the-cluster"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the cluster's files."""
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(spark_classes: None, folder: Path) -> Iterator[str]:
    """Return the master of a cluster with two workers."""
    with spark_cluster(folder) as master:
        yield master


@pytest.fixture
def relay(database: str, new_relay: NewRelay, cluster: str) -> Relay:
    """Return a relay that will take its snapshot on the cluster."""
    execute(database, *MADE)
    options = ("--snapshot-workers", "2", "-u", "-C", f"sasl.password={SECRET}")
    return new_relay("--spark-master", cluster, *options)


@contextmanager
def reading(relay: Relay, sandbox: Sandbox, *args: str) -> Iterator[Status]:
    """Start the relay; during the block each executor has read rows that Kafka does not acknowledge."""
    relay.start(*args)
    relay.wait("its workers", lambda status: len(status.snapshot_workers) == 2, 120, every=0.02)
    with hanging(sandbox):
        yield relay.wait(
            "rows",
            lambda status: sum(worker.rows > 0 for worker in status.snapshot_workers) == 2,
            120,
            every=0.02,
        )


def caught_up(relay: Relay) -> Status:
    """Wait for the end of a relay that ends when it has caught up; Spark's own shutdown is slow."""
    assert relay.join(200) == 0, relay.last_words()
    return relay.last_status()


def parents(pid: int) -> list[int]:
    """Return a worker's ancestors up to Spark's Java: guard, daemon, executor."""
    found = []
    for _ in range(3):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{found[-1]}/cmdline").read_bytes()
    return found


def command_lines() -> dict[int, bytes]:
    """Return the visible details of all processes."""
    found = {}
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found[int(place.parent.name)] = place.read_bytes()
        except OSError:
            continue
    return found


def assert_secret(folder: Path, secrets: list[str], *, but: tuple[Path, ...] = ()) -> None:
    """Check that no file below ``folder`` and no page of the cluster contains one of ``secrets``."""
    looked = 0
    for place in folder.rglob("*"):
        if place.is_file() and place not in but:
            data = place.read_bytes()
            assert not [one for one in secrets if one.encode() in data], place
            looked += 1
    assert looked > 10
    pages = [
        line.split()[-1].rstrip("./")
        for log in folder.glob("*.log")
        for line in log.read_text().splitlines()
        if "WebUI" in line and "http://" in line
    ]
    assert len(pages) == 3
    for page in pages:
        with urllib.request.urlopen(f"{page}/json/", timeout=30) as answer:
            data = answer.read()
        assert not [one for one in secrets if one.encode() in data], page


def test_an_executor_that_is_killed_is_replaced_and_no_secret_is_told(
    relay: Relay, sandbox: Sandbox, services: ServiceAddresses, database: str, tmp_path: Path, folder: Path
) -> None:
    recording = tmp_path / "recording"
    secrets = [password(database), SECRET]
    # One more than the cluster has cores.
    options = ("--until-caught-up", "--record", str(recording), "--snapshot-workers", "3")
    with reading(relay, sandbox, *options) as status:
        assert (status.detail or "").endswith(" by 2 of 3 workers so far"), status.detail
        first = status.snapshot_workers[0]
        assert first.host == os.uname().nodename
        seen = {pid: line for pid, line in command_lines().items() if pid != relay.pid}
        assert any(b"snapshot.spark_driver" in line for line in seen.values())
        assert not [line for line in seen.values() if any(one.encode() in line for one in secrets)]
        execute(database, "update wide set note = 'newer' where id % 10 = 0")
        kill(parents(first.pid)[-1])
        relay.wait("another one", lambda now: first.pid not in {w.pid for w in now.snapshot_workers})
    status = caught_up(relay)
    (sentence,) = told(status)
    assert sentence.startswith(f"a snapshot worker (process {first.pid} on {first.host}) ")
    assert f"while it was reading {', '.join(first.tables)}: those rows will be read again" in sentence
    assert status.tables["public.wide"].snapshot_rows == ROWS
    assert not any(b"snapshot.spark_driver" in line for line in command_lines().values())
    relay.run("--record", str(recording))
    assert_stream_behind_snapshot(services, relay)
    recover_and_check(recording)
    with opened(recording) as read:
        assert_tables_follow(read, database, TABLES)
        assert_topics_agree(services, read, [table.topic(relay.name) for table in TABLES])
    assert_secret(folder, secrets)
    assert not [one for one in secrets if one in relay.log()]


@pytest.mark.long
def test_the_stream_waits_for_an_executor_that_stands_still(
    relay: Relay, sandbox: Sandbox, services: ServiceAddresses, database: str
) -> None:
    """It may send its rows after it resumes, and only its own machine can end it."""
    still: list[int] = []
    try:
        with reading(relay, sandbox, "--until-caught-up") as status:
            worker = status.snapshot_workers[0]
            still = [worker.pid, *parents(worker.pid)]
            for pid in reversed(still):
                kill(pid, signal.SIGSTOP)
            execute(database, "update wide set note = 'newer' where id % 10 = 0")
        name = f"process {worker.pid} on {worker.host}"
        now = relay.wait(
            "that it waits for it",
            lambda now: name in (now.detail or "") and len(told(now)) == 2,
            120,
            every=0.1,
        )
        assert now.state in ("snapshot", "stalled") and name in now.detail
        with session(database) as source:
            slots = "select count(*) from pg_replication_slots where slot_name = %s"
            assert source.value(slots, relay.name) == 0
        silent, waits = told(now)
        assert f"({name}) sent nothing for 10 s while it was reading" in silent
        assert f"{name} may still send rows of the snapshot, so the stream can't start yet" in waits
    finally:
        for pid in still:
            kill(pid, signal.SIGCONT)
    status = caught_up(relay)
    assert status.tables["public.wide"].snapshot_rows == ROWS
    # The first run does not wait for changes committed after its start.
    assert status.tables["public.wide"].updates + relay.run().tables["public.wide"].updates == ROWS // 10
    assert_stream_behind_snapshot(services, relay)
    assert_equal(services, database, TABLES, relay.name)


@pytest.mark.long
def test_one_whose_machine_ends_it_is_waited_for_no_longer(
    relay: Relay, sandbox: Sandbox, services: ServiceAddresses, database: str
) -> None:
    with reading(relay, sandbox, "--until-caught-up") as status:
        worker = status.snapshot_workers[0]
        still = [worker.pid, *parents(worker.pid)]
        for pid in reversed(still):
            kill(pid, signal.SIGSTOP)
    name = f"process {worker.pid} on {worker.host}"
    relay.wait("that it waits for it", lambda now: name in (now.detail or ""), 120, every=0.1)
    for pid in still:
        kill(pid)
    caught_up(relay)
    assert_equal(services, database, TABLES, relay.name)


@pytest.mark.long
def test_a_worker_alone_that_stands_still_is_ended_by_its_guard(
    relay: Relay, sandbox: Sandbox, services: ServiceAddresses, database: str
) -> None:
    with reading(relay, sandbox, "--until-caught-up") as status:
        worker = status.snapshot_workers[0]
        kill(worker.pid, signal.SIGSTOP)
    (sentence,) = told(caught_up(relay))
    assert f"(process {worker.pid} on {worker.host}) sent nothing for 10 s" in sentence
    assert not Path(f"/proc/{worker.pid}").exists()
    assert_equal(services, database, TABLES, relay.name)


@pytest.mark.long
def test_none_outlives_a_relay_that_is_killed(
    relay: Relay, sandbox: Sandbox, services: ServiceAddresses, database: str
) -> None:
    with reading(relay, sandbox) as status:
        relay.signal(signal.SIGKILL)
        assert relay.wait_ended() == -9
        places = [Path(f"/proc/{worker.pid}") for worker in status.snapshot_workers]
        wait_for("its workers' ends", lambda: not any(place.exists() for place in places))
    execute(database, "delete from wide where id % 2 = 0")
    relay.start("--until-caught-up")
    caught_up(relay)
    assert_equal(services, database, TABLES, relay.name)


@pytest.mark.long
def test_where_there_is_no_cluster_the_relay_reads_all(
    database: str, new_relay: NewRelay, services: ServiceAddresses
) -> None:
    execute(database, *MADE)
    relay = new_relay("--spark-master", "spark://127.0.0.1:1", "--snapshot-workers", "1", "-u")
    relay.start("--until-caught-up")
    status = caught_up(relay)
    assert [error.message for error in status.errors] == [
        "the Spark cluster can't take the snapshot, so the relay takes it itself: no Spark master answers at "
        "spark://127.0.0.1:1"
    ]
    assert_equal(services, database, TABLES, relay.name)
