"""Incidents of a streaming relay: the cause in its verdict, and the delay. See docs/incidents.md."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest

from bwtui.model.status import Status
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from tests.database import session
from tests.faults.incidents import (
    SLACK_SECONDS,
    first_lines,
    frozen,
    healthy,
    never,
    stalled,
    suspended,
    trickle,
)
from tests.faults.relays import Relay, execute, new_name, wait_for
from tests.fix_sandbox import drop_database


@pytest.fixture(scope="module")
def database(services: ServiceAddresses) -> Iterator[str]:
    """One database for all incidents of this file."""
    name = "incidents"
    with closing(psycopg2.connect(services.postgres)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"create database {name}")
    yield urlsplit(services.postgres)._replace(path=f"/{name}").geturl()
    with closing(psycopg2.connect(services.postgres)) as connection:
        connection.autocommit = True
        drop_database(connection, name)


@pytest.fixture(scope="module")
def relay(
    services: ServiceAddresses, database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Relay]:
    """Return a relay that streams all current and future tables."""
    folder: Path = tmp_path_factory.mktemp("incidents")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BWTUI_STATE_HOME", str(folder / "state"))
        execute(database, "create table accounts (id serial primary key, owner int)")
        relay = Relay(services, database, folder, new_name("incidents"))
        with session(database) as source:
            source.publish_all(relay.name)
        relay.start()
        relay.wait_streaming()
        yield relay
        relay.close()


@pytest.fixture(autouse=True)
def well(relay: Relay) -> None:
    """Nothing is wrong when an incident begins."""
    healthy(relay, "a good beginning")


def new_table(database: str) -> None:
    """Create a table with one row: the relay must create its topic and schemas."""
    name = new_name("late")
    execute(database, f"create table {name} (id int primary key)", f"insert into {name} values (1)")


def blames(*causes: str) -> object:
    """Return a test of whether a status is stalled, or blames one of ``causes``."""
    return lambda status: status.verdict.cause in causes or status.verdict.condition == "stalled"


def from_to(status: Status, dependency: str) -> tuple[float, float]:
    """Return when the newest trouble with ``dependency`` began and ended."""
    entries = [entry for entry in status.errors if dependency in entry.dependency]
    assert entries, status.errors
    newest = max(entries, key=lambda entry: entry.time)
    assert newest.since is not None
    assert newest.until is not None, "it is told of as if it went on"
    return newest.since, newest.until


def test_kafka_hangs(sandbox: Sandbox, services: ServiceAddresses, database: str, relay: Relay) -> None:
    with trickle(database):
        # Before the table's first rows arrive, the relay may request its topic from Kafka.
        relay.wait("rows", lambda status: any(table.inserts > 5 for table in status.tables.values()))
        began = time.time()
        with frozen(sandbox, "kafka"):
            verdict = stalled(relay, "kafka", f"Kafka at {services.broker} has acknowledged nothing for")
            assert verdict.stage == "acknowledge"
            assert verdict.since == pytest.approx(began, abs=SLACK_SECONDS)
            assert verdict.oldest_in_flight_seconds == pytest.approx(verdict.seconds, abs=SLACK_SECONDS)
            assert "the oldest message in flight has waited for" in verdict.sentence
            assert "the slot is safe" in verdict.sentence
            first, second, third = first_lines(relay, "STALLED")
            assert "✗ STALLED" in first
            assert f"✗ Kafka at {services.broker} has acknowledged nothing for" in second
            assert third.startswith(" the oldest message in flight has waited for")
            later = relay.wait("a stall that is kept", lambda status: status.verdict.seconds > 6)
            assert later.verdict.cause == "kafka"
        since, until = from_to(healthy(relay), "Kafka")
    assert since == pytest.approx(began, abs=SLACK_SECONDS)
    assert until - since > 5


def test_the_registry_hangs_and_a_table_is_new(
    sandbox: Sandbox, services: ServiceAddresses, database: str, relay: Relay
) -> None:
    with frozen(sandbox, "registry"):
        new_table(database)
        verdict = stalled(relay, "registry", f"the schema registry at {services.schema_registry} has not")
        assert verdict.stage == "encode"
        assert "✗ the schema registry at" in first_lines(relay, "STALLED")[1]
        relay.wait("a stall that is kept", lambda status: status.verdict.seconds > 6)
    from_to(healthy(relay), "registry")


def test_the_registry_hangs_and_nobody_needs_it(sandbox: Sandbox, database: str, relay: Relay) -> None:
    with trickle(database), frozen(sandbox, "registry"):
        never(relay, blames("registry", "kafka", "postgresql"), 4)  # type: ignore[arg-type]


def test_kafka_hangs_and_a_table_is_new(sandbox: Sandbox, database: str, relay: Relay) -> None:
    with frozen(sandbox, "kafka"):
        new_table(database)
        assert stalled(relay, "kafka", "has not answered for").stage == "produce"
    healthy(relay)


def test_kafka_and_the_registry_hang(sandbox: Sandbox, database: str, relay: Relay) -> None:
    with frozen(sandbox, "registry"):
        with frozen(sandbox, "kafka"):
            new_table(database)
            # Separate threads query both services; the verdict names the one that was queried first.
            relay.wait("a stall", lambda status: status.verdict.condition == "stalled", 10)
            relay.wait("whose", lambda status: status.verdict.cause in ("kafka", "registry"), 1)
        stalled(relay, "registry")
    healthy(relay)


def test_kafka_and_postgresql_hang(sandbox: Sandbox, database: str, relay: Relay) -> None:
    with trickle(database), frozen(sandbox, "kafka"):
        stalled(relay, "kafka")
        with frozen(sandbox, "postgres"):
            both = relay.wait("both", lambda status: "; also PostgreSQL at" in status.verdict.sentence, 10)
            assert both.verdict.cause == "kafka"
    healthy(relay)


def test_postgresql_hangs(sandbox: Sandbox, database: str, relay: Relay) -> None:
    began = time.time()
    with frozen(sandbox, "postgres"):
        verdict = stalled(relay, "postgresql", "has not answered for", since=began)
        assert verdict.stage == "read"
        assert "✗ PostgreSQL at" in first_lines(relay, "STALLED")[1]
        assert urlsplit(database).path in verdict.dependency
        relay.wait("a stall that is kept", lambda status: status.verdict.seconds > 6)
    from_to(healthy(relay), "PostgreSQL")


def test_postgresql_is_stopped(sandbox: Sandbox, relay: Relay) -> None:
    sandbox.stop_service("postgres")
    try:
        stalled(relay, "postgresql", "has kept the relay waiting for")
        # PostgreSQL answers that it is shutting down until it has ended.
        relay.wait("the reason", lambda status: "refused" in status.verdict.sentence)
    finally:
        sandbox.start_service("postgres")
    from_to(healthy(relay), "PostgreSQL")


def test_kafka_is_stopped(sandbox: Sandbox, database: str, relay: Relay) -> None:
    with trickle(database):
        relay.wait("rows", lambda status: status.stages["acknowledge"].per_second > 0)
        sandbox.stop_service("kafka")
        try:
            stalled(relay, "kafka")
            relay.wait("the reason", lambda status: "can't be reached" in status.verdict.sentence)
        finally:
            sandbox.start_service("kafka")
        from_to(healthy(relay), "Kafka")


def sender(database: str, relay: Relay) -> int:
    """Return the walsender."""
    with session(database) as source:
        return wait_for("a sender", lambda: source.reader(relay.name))


def test_the_sender_hangs(database: str, relay: Relay) -> None:
    """The server answers every query, and the sockets stay open."""
    with suspended(sender(database, relay)):
        began = time.time()
        execute(database, "insert into accounts (owner) values (1)")
        verdict = stalled(relay, "postgresql", "has not answered on the stream for", since=began)
        assert verdict.stage == "read"
        assert "✗ PostgreSQL at" in first_lines(relay, "STALLED")[1]
        relay.wait("a stall that is kept", lambda status: status.verdict.seconds > 6)
    from_to(healthy(relay), "PostgreSQL")


def test_the_sender_is_ended(database: str, relay: Relay) -> None:
    before = sender(database, relay)
    with trickle(database):
        execute(database, f"select pg_terminate_backend({before})")
        wait_for("another sender", lambda: sender(database, relay) != before)
        status = healthy(relay)
    from_to(status, "PostgreSQL")
    assert any(
        "terminating connection due to administrator command" in entry.message for entry in status.errors
    )


@pytest.mark.long
def test_the_registry_is_stopped_and_a_table_is_new(sandbox: Sandbox, database: str, relay: Relay) -> None:
    sandbox.stop_service("registry")
    try:
        new_table(database)
        stalled(relay, "registry")
        relay.wait("the reason", lambda status: "refused" in status.verdict.sentence)
    finally:
        sandbox.start_service("registry")
    from_to(healthy(relay), "registry")


def test_a_transaction_stays_open(database: str, relay: Relay) -> None:
    """Its changes can't be sent yet; changes that others write after them are sent."""
    with session(database) as writer, trickle(database):
        writer.run("begin")
        writer.run("insert into accounts (owner) select n from generate_series(1, 5000) n")
        # The verdict is "behind" until PostgreSQL has read what the transaction wrote and the relay has read
        # the changes after it; a busy machine makes that visible.
        relay.wait_caught_up()
        never(relay, blames("kafka", "registry", "postgresql", "relay"), 5)  # type: ignore[arg-type]
        writer.run("commit")


def test_nothing_happens(relay: Relay) -> None:
    statuses = never(relay, blames("kafka", "registry", "postgresql", "disk", "relay"), 4)  # type: ignore[arg-type]
    assert {status.verdict.condition for status in statuses} == {"healthy"}
    assert "confirmed" in statuses[-1].verdict.sentence


def test_the_relay_itself_is_suspended(database: str, relay: Relay) -> None:
    with trickle(database):
        relay.wait("rows", lambda status: status.stages["acknowledge"].per_second > 0)
        with suspended(relay.pid):
            time.sleep(5)
        relay.wait("its word", lambda status: "the relay itself did not run for" in status.verdict.sentence)
        never(relay, blames("kafka", "registry", "postgresql"), 3)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_huge_transaction_is_read(database: str, relay: Relay) -> None:
    healthy(relay)
    execute(database, "insert into accounts (owner) select n from generate_series(1, 1000000) n")
    seen = never(relay, lambda status: status.verdict.condition == "stalled", 1)
    # Count rows, not transactions: transactions of other sessions may be counted meanwhile.
    while seen[-1].tables["public.accounts"].inserts < 1_000_000:
        seen += never(relay, lambda status: status.verdict.condition == "stalled", 1)
    assert any("in one transaction of" in status.verdict.sentence for status in seen)


def test_a_table_is_locked_while_a_relay_streams(database: str, relay: Relay) -> None:
    """Queries of publications wait for the lock; the figures of the slot stay fresh."""
    execute(database, "create table locked (id int primary key)")
    with session(database) as blocker, trickle(database):
        blocker.run("set application_name = 'migration'")
        blocker.run("begin")
        blocker.run("alter table locked add column v int")
        pid = blocker.connection.info.backend_pid
        status = relay.wait("who holds it", lambda now: any(entry.kind == "lock" for entry in now.errors))
        [entry] = [entry for entry in status.errors if entry.kind == "lock"]
        assert f"locked by pid {pid} with a lock on public.locked, application migration" in entry.message
        # Two sessions of the relay wait for it.
        assert entry.message.count(f"pid {pid}") == 1
        assert (entry.hint or "").count(f"SELECT pg_terminate_backend({pid})") == 1
        # Longer than the maximum age of the figures.
        seen = never(relay, lambda now: now.verdict.condition == "stalled" or now.aside, 12)
        assert seen[-1].server_lsn > seen[0].server_lsn
        assert not any("has not reported on the slot" in now.verdict.sentence for now in seen)
        blocker.run("rollback")
    relay.wait("its end", lambda now: all(one.is_over for one in now.errors if one.kind == "lock"))
    execute(database, "drop table locked")
