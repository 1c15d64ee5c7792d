"""Incidents at starts and ends, and slow services: the live verdict equals the one reported afterwards."""

import json
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest
from click.testing import CliRunner

from bwtui.cli.main import cli
from bwtui.model.status import Status
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from tests.database import session, with_options
from tests.faults.administration import make_topic, occupy_subject
from tests.faults.incidents import frozen, healthy, never, stalled, suspended, trickle
from tests.faults.relays import Relay, execute, new_name, streaming, wait_for
from tests.faults.test_headless_words import Headless
from tests.faults.test_recording_disk import fill_disk, write_much
from tests.faults.writer import create_tables

NewRelay = Callable[..., Relay]
ROWS = 60_000


def told(relay: Relay) -> Status:
    """Return the output of ``bwtui status NAME --json``, whether the relay runs or not."""
    ended = CliRunner().invoke(cli, ["status", relay.name, "--json"])
    return Status.from_json(json.loads(ended.stdout.splitlines()[0]))


# -- beginnings ----------------------------------------------------------------------------------------------


def test_kafka_hangs_when_a_relay_begins(sandbox: Sandbox, database: str, new_relay: NewRelay) -> None:
    create_tables(database, 1)
    relay = new_relay()
    with frozen(sandbox, "kafka"):
        relay.start()
        assert stalled_at_last(relay, "kafka").state == "starting"
    relay.wait_streaming()


def test_a_snapshot_waits_for_an_open_transaction(database: str, new_relay: NewRelay) -> None:
    create_tables(database, 1)
    relay = new_relay()
    with session(database) as writer:
        writer.run("begin")
        writer.run("insert into accounts values (7, 7, 'open')")
        relay.start()
        stalled_at_last(relay, "transactions")
        pid = writer.connection.info.backend_pid
        whose = f"pid {pid}, with a transaction open for"
        relay.wait("whose it is", lambda status: whose in status.verdict.sentence)
        writer.run("commit")
    relay.wait_streaming()


def stalled_at_last(relay: Relay, cause: str) -> Status:
    """Wait for the stall of a starting relay, which takes a while to be reported."""
    stalled_by = lambda status: status.verdict.condition == "stalled" and status.verdict.cause == cause  # noqa: E731
    return relay.wait(f"the stall by {cause}", stalled_by, 40)


# -- what is slow --------------------------------------------------------------------------------------------


def fill(database: str) -> None:
    """Commit a backlog in many transactions."""
    with closing(psycopg2.connect(with_options(database, synchronous_commit="off"))) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(
                "do $$ begin for i in 1..300 loop insert into accounts"
                " select i * 1000 + n, n, repeat('x', 200) from generate_series(1, 1000) n;"
                " commit; end loop; end $$"
            )


def test_a_relay_catches_up_at_its_full_rate(database: str, new_relay: NewRelay) -> None:
    relay = streaming(database, new_relay)
    relay.stop()
    fill(database)
    time.sleep(4)
    relay.start()
    seen: list[Status] = []
    while not seen or seen[-1].verdict.condition != "healthy" or not seen[-1].transactions:
        status = relay.status()
        if status is not None and status.state != "starting":
            seen.append(status)
            assert status.verdict.condition != "stalled", status.verdict
        time.sleep(0.1)
    behind = [status for status in seen if status.verdict.condition == "behind"]
    assert behind, [status.verdict for status in seen]
    # A broker that has just started may take a second; the verdict then says so, and it is true.
    blamed = [status for status in behind if status.verdict.stage == "acknowledge"]
    assert all((status.verdict.oldest_in_flight_seconds or 0) >= 1 for status in blamed)
    assert len(blamed) < len(behind) / 2
    assert any("catching up at" in status.verdict.sentence for status in behind)
    assert any(status.verdict.stage and status.stages[status.verdict.stage].busy > 0.2 for status in behind)


def test_kafka_is_slow(sandbox: Sandbox, database: str, new_relay: NewRelay) -> None:
    relay = streaming(database, new_relay)
    over = threading.Event()

    def slow_down() -> None:
        while not over.is_set():
            with frozen(sandbox, "kafka"):
                over.wait(0.8)
            over.wait(0.04)

    thread = threading.Thread(target=slow_down)
    thread.start()
    try:
        fill(database)
        status = relay.wait(
            "that Kafka is blamed",
            lambda status: status.verdict.condition == "behind" and status.verdict.cause == "kafka",
        )
        assert status.verdict.stage == "acknowledge"
        assert "the bottleneck is Kafka at" in status.verdict.sentence
    finally:
        over.set()
        thread.join()
    relay.wait_caught_up()


# -- ends ----------------------------------------------------------------------------------------------------


def test_the_registry_refuses_a_schema(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    relay = streaming(database, new_relay)
    occupy_subject(services, f"{relay.name}.others-value", "FULL")
    execute(database, "create table others (id int primary key)", "insert into others values (1)")
    assert relay.join() == 2
    status = told(relay)
    assert (status.state, status.verdict.condition, status.exit_code) == ("failed", "failed", 2)
    assert f"{relay.name}.others-value" in status.verdict.sentence
    assert status.verdict.hint
    fatal = [entry for entry in status.errors if entry.kind == "fatal"]
    assert [(entry.message, entry.hint) for entry in fatal] == [
        (status.verdict.sentence, status.verdict.hint)
    ]
    assert status.verdict == relay.last_status().verdict


def test_the_slot_is_dropped(database: str, new_relay: NewRelay) -> None:
    relay = streaming(database, new_relay)
    drop = (
        "select pg_terminate_backend(active_pid), pg_drop_replication_slot(slot_name)"
        " from pg_replication_slots where slot_name = %s"
    )
    with session(database) as source:

        def is_dropped() -> bool:
            with suppress(psycopg2.errors.ObjectInUse):
                source.run(drop, relay.name)
            return not source.value(
                "select count(*) from pg_replication_slots where slot_name = %s", relay.name
            )

        # Suspend the relay, or it would open its next session in between and find the slot in use.
        with suspended(relay.pid):
            wait_for("the slot to be dropped", is_dropped)
    assert relay.join() == 5
    status = told(relay)
    assert (status.verdict.condition, status.exit_code) == ("failed", 5)
    assert f"slot {relay.name} " in status.verdict.sentence
    assert status.verdict.hint
    said = CliRunner().invoke(cli, ["status", relay.name]).stderr
    assert f" with exit code 5: {status.verdict.sentence} ({status.verdict.hint})" in said


def test_the_publication_is_dropped(database: str, new_relay: NewRelay) -> None:
    relay = streaming(database, new_relay)
    execute(
        database, f"drop publication bwtui_{relay.name}", "insert into accounts values (9, 9, 'left out')"
    )
    assert relay.join() in (2, 5)
    status = told(relay)
    assert status.verdict.condition == "failed"
    assert "publication" in status.verdict.sentence
    assert status.verdict.hint
    relay.start()
    assert relay.join() == 2
    assert (
        "connect --heal" in relay.last_words() and f"'bwtui slots drop {relay.name} -d " in relay.last_words()
    )


def test_kafka_refuses_a_row(services: ServiceAddresses, database: str, new_relay: NewRelay) -> None:
    create_tables(database, 1)
    relay = new_relay()
    make_topic(services, f"{relay.name}.others", 10_000)
    execute(database, "create table others (id int primary key, filler text)")
    relay.start()
    relay.wait_streaming()
    # The value must not compress, or it would fit.
    incompressible = "select string_agg(md5(n::text), '') from generate_series(1, 2000) n"
    execute(database, f"insert into others values (7, ({incompressible}))")
    assert relay.join() == 2
    status = told(relay)
    assert status.verdict.condition == "failed"
    assert re.search(r"public\.others at [0-9A-F]+/[0-9A-F]+", status.verdict.sentence), status.verdict
    assert status.verdict.hint


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_role_may_no_longer_log_in(
    database: str, new_relay: NewRelay, tmp_path: Path, is_recorded: bool
) -> None:
    role = new_name("role")
    execute(database, f"create role {role} superuser login replication password 'right'")
    relay = streaming(database, new_relay, *(["--record", str(tmp_path / "recording")] * is_recorded))
    relay.stop()
    here = urlsplit(database)
    relay.database = here._replace(netloc=f"{role}:right@{here.hostname}:{here.port}").geturl()
    relay.start()
    relay.wait_streaming()
    # Commit before any session ends, or a new session would start in between.
    execute(database, f"alter role {role} nologin")
    execute(database, f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{role}'")
    stalled(relay, "postgresql")
    relay.wait("the reason", lambda status: "is not permitted to log in" in status.verdict.sentence)
    # No other dependency is blamed, however long it lasts.
    never(relay, lambda status: "has written nothing to its disk" in status.verdict.sentence, 3)
    assert (now := relay.status()) is not None and now.verdict.cause == "postgresql"
    execute(database, f"alter role {role} login")
    healthy(relay)
    relay.stop()
    execute(database, f"drop owned by {role}", f"drop role {role}")


def test_the_disk_of_a_recording_is_full(database: str, new_relay: NewRelay, tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    relay = streaming(database, new_relay, "--record", str(folder))
    fill_disk(relay, folder)
    write_much(database, 1_000)
    assert relay.join() == 2
    status = told(relay)
    assert status.verdict.condition == "failed"
    assert f"the recording in {folder} can't be written" in status.verdict.sentence
    assert "free disk space" in status.verdict.hint


def test_a_relay_is_killed(database: str, new_relay: NewRelay) -> None:
    relay = streaming(database, new_relay)
    wait_for("a status on the disk", lambda: told_of(relay))
    relay.kill()
    status = told(relay)
    assert (status.state, status.verdict.condition) == ("failed", "killed")
    assert "killed" in status.verdict.sentence
    assert "start it again" in status.verdict.hint


def told_of(relay: Relay) -> bool:
    """Return whether the last status on the disk is that of a streaming relay."""
    from bwtui.relay.process import last_status

    status = last_status.read(relay.name)
    return status is not None and status.phase == "streaming"


def test_a_relay_is_stopped(database: str, new_relay: NewRelay) -> None:
    relay = streaming(database, new_relay)
    relay.stop()
    status = told(relay)
    assert (status.state, status.verdict.condition) == ("stopped", "stopped")
    assert status.verdict.sentence.startswith("stopped cleanly; everything up to ")


def test_a_relay_is_suspended(database: str, new_relay: NewRelay) -> None:
    relay = streaming(database, new_relay)
    wait_for("a status on the disk", lambda: told_of(relay))
    with suspended(relay.pid):
        ended = CliRunner().invoke(cli, ["status", relay.name])
        assert ended.exit_code == 4
        said = f"relay {relay.name} is running but does not respond: its process {relay.pid} is suspended"
        assert said in ended.stderr
        assert f"hint: resume it with 'kill -CONT {relay.pid}'" in ended.stderr


def test_headless_lines_tell_of_a_stall_and_its_end(
    sandbox: Sandbox, database: str, new_relay: NewRelay
) -> None:
    relay = streaming(database, new_relay, kind=Headless)
    with trickle(database, "insert into accounts select coalesce(max(id), 0) + 1, 1 from accounts"):
        with frozen(sandbox, "kafka"):
            stalled(relay, "kafka")
            wait_for("the line", lambda: ": stalled (Kafka at " in relay.last_words())
        wait_for("its end", lambda: ": streaming again after " in relay.last_words())
    relay.signal(signal.SIGTERM)
    assert relay.join() == 0
    assert ": stopped cleanly; everything up to " in relay.last_words()
