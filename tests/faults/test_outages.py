"""Outages of whole services: the relay waits, drops nothing, and resumes automatically."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from bwtui.demo.shop import DemoTable
from bwtui.model.status import Status
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses, ServiceName
from tests.database import session
from tests.faults.records import OUTSIDE, assert_equal, assert_keys_in_order, read_table, repeated
from tests.faults.relays import Relay, execute
from tests.faults.writer import TABLES, Writer, create_tables

LATE = DemoTable("public", "late", ("id",))
ROWS = 200
MEMORY_BYTES = 400 << 20
#: More than the relay keeps in memory during an outage of Kafka (IN_FLIGHT_BYTES).
BACKLOG_ROWS, BACKLOG_ROW_BYTES = 9_000, 10_000

FULL = (50 << 20) // BACKLOG_ROW_BYTES

NewRelay = Callable[..., Relay]


@contextmanager
def without(sandbox: Sandbox, service: ServiceName, *, killed: bool = False) -> Iterator[None]:
    """Stop a service during the block."""
    (sandbox.kill_service if killed else sandbox.stop_service)(service)
    try:
        yield
    finally:
        sandbox.start_service(service)


@pytest.fixture
def relays(database: str, new_relay: NewRelay) -> list[Relay]:
    """Two relays that stream both tables: one would exit on a row's error, the other would drop the row."""
    create_tables(database, ROWS)
    made = [new_relay("-e", "exit"), new_relay("-e", "log")]
    for relay in made:
        with session(database) as source:
            source.publish_all(relay.name)
        relay.start()
    for relay in made:
        relay.wait_streaming()
    return made


def errors(status: Status) -> str:
    """Return the outages on the errors screen."""
    return " ".join(entry.message for entry in status.errors if entry.kind in ("outage", "delivery"))


def assert_nothing_lost(
    services: ServiceAddresses, database: str, relays: list[Relay], tables: Sequence[DemoTable] = TABLES
) -> None:
    """Let the relays catch up and stop; no row may be missing, dropped or out of order."""
    for relay in relays:
        relay.wait_caught_up()
        relay.stop()
        assert relay.letters() == []
        assert not any(table.dead_letters for table in relay.last_status().tables.values())
        assert_equal(services, database, tables, relay.name)
        records = [record for table in tables for record in read_table(services, table, relay.name)]
        assert_keys_in_order([record for record in records if record.operation not in OUTSIDE])


def test_kafka_goes_away(
    interrupted: Sandbox, services: ServiceAddresses, database: str, relays: list[Relay]
) -> None:
    writer = Writer(database, ROWS)
    with writer.going_on():
        for relay in relays:
            relay.wait("some transactions", lambda status: status.transactions > 20)
        with without(interrupted, "kafka"):
            for relay in relays:
                status = relay.wait("the outage", lambda status: "Kafka" in status.detail)
                assert status.phase == "streaming"
            behind = execute(
                database,
                "alter table accounts alter column note set storage external",
                f"insert into accounts select -n, n, repeat('x', {BACKLOG_ROW_BYTES})"
                f" from generate_series(1, {BACKLOG_ROWS}) n",
            )
            for relay in relays:
                # The relay may withdraw the report for a moment, until librdkafka reports the outage again.
                status = relay.wait(
                    "a full queue in the outage",
                    lambda status: (
                        status.stages["produce"].queue * BACKLOG_ROW_BYTES > 50 << 20
                        and "Kafka" in status.detail
                    ),
                )
                assert status.resident_bytes < MEMORY_BYTES
                assert "Kafka" in errors(status)
                assert (relay.slot_lsn() or 0) < behind
        for relay in relays:
            relay.wait("the end of the outage", lambda status: not status.detail)
    assert_nothing_lost(services, database, relays)


def more_than(count: int) -> Callable[[Status], bool]:
    """Return the condition that more than ``count`` transactions were read."""
    return lambda status: status.transactions > count


@pytest.mark.parametrize(
    "killed", [pytest.param(False, marks=pytest.mark.long), True], ids=["fast", "kill -9"]
)
def test_postgresql_goes_away(
    interrupted: Sandbox, services: ServiceAddresses, database: str, relays: list[Relay], killed: bool
) -> None:
    writer = Writer(database, ROWS)
    with writer.going_on():
        for relay in relays:
            relay.wait("some transactions", lambda status: status.transactions > 20)
        with without(interrupted, "postgres", killed=killed):
            for relay in relays:
                relay.wait(
                    "the outage",
                    lambda status: "PostgreSQL" in status.detail and "connection" in errors(status),
                )
        before = [relay.wait_streaming().transactions for relay in relays]
        for relay, count in zip(relays, before, strict=True):
            relay.wait("more transactions", more_than(count + 20))
    assert_nothing_lost(services, database, relays)


def test_the_registry_is_away_when_a_table_comes(
    interrupted: Sandbox, services: ServiceAddresses, database: str, relays: list[Relay]
) -> None:
    with without(interrupted, "registry"):
        execute(database, "create table late (id int primary key)", "insert into late values (1)")
        execute(database, "update accounts set note = 'behind it'")
        for relay in relays:
            relay.wait(
                "the outage", lambda status: "registry" in status.detail and "registry" in errors(status)
            )
    assert_nothing_lost(services, database, relays, [*TABLES, LATE])
    for relay in relays:
        assert relay.last_status().tables["public.late"].messages == 1
        assert not repeated(
            [record for table in TABLES for record in read_table(services, table, relay.name)]
        )
