"""Hanging services: the relay still replies to PostgreSQL, and a stop is obeyed."""

import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from bwtui.blocking import StopRequested
from bwtui.demo.shop import DemoTable
from bwtui.encode.registry import RegisteredSchema
from bwtui.relay.snapshot.snapshot_copier import interruptible
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses, ServiceName
from bwtui.sink.destination import Limits
from bwtui.source.connection import connect
from bwtui.source.snapshot import copy_out
from tests.database import Session, session, with_options
from tests.faults.hanging import hanging
from tests.faults.records import read_table
from tests.faults.relays import Relay, execute, streaming
from tests.faults.writer import ACCOUNTS, create_tables
from tests.held_relay import HeldRelay, HoldingSink
from tests.waiting import eventually

#: The server's timeout, in seconds, for a reply of the relay; even a machine that stalls must meet it.
SENDER_TIMEOUT = 8
#: Far more than a stop may take, and far less than the client's timeout.
QUICK_SECONDS = 40.0
#: Built one after another, the routes of this many tables take about a minute; in parallel they still take
#: longer than the server waits.
TABLES, REGISTRY_SECONDS = 40, 1.0
LATE = DemoTable("public", "late", ("id",))

NewRelay = Callable[..., Relay]


def is_heard(source: Session, slot: str, since: object, seconds: float) -> bool:
    """Return whether the server heard from the relay ``seconds`` after a moment of its clock."""
    sql = """select reply_time > %s + %s * interval '1 second' from pg_stat_replication
               join pg_replication_slots on active_pid = pid where slot_name = %s"""
    return bool(source.value(sql, since, seconds, slot))


@pytest.mark.parametrize("service", ["registry", pytest.param("kafka", marks=pytest.mark.long)])
def test_a_service_hangs_while_a_route_is_built(
    sandbox: Sandbox, services: ServiceAddresses, database: str, new_relay: NewRelay, service: ServiceName
) -> None:
    relay = streaming(
        database, new_relay, "-d", with_options(database, wal_sender_timeout=f"{SENDER_TIMEOUT}s")
    )
    with session(database) as source:
        streamed_by = eventually("it has caught up", lambda: source.reader(relay.name))
        with hanging(sandbox, service):
            execute(
                database,
                "create table late (id int primary key)",
                "insert into late values (1)",
                "update accounts set note = 'after it'",
            )
            now = source.value("select clock_timestamp()")
            # Longer than the server's timeout.
            longer = SENDER_TIMEOUT * 1.5
            eventually("the server hears from it", lambda: is_heard(source, relay.name, now, longer))
            assert source.reader(relay.name) == streamed_by
            relay.signal(signal.SIGTERM)
            assert relay.join(QUICK_SECONDS) == 0, relay.last_words()
    relay.run()
    assert len(read_table(services, LATE, relay.name)) == 1
    assert len(read_table(services, ACCOUNTS, relay.name)) == 2


class SlowRegistry:
    """A registry that delays every schema."""

    def __init__(self) -> None:
        self.subjects: list[str] = []

    def register(self, subject: str, schema: str) -> RegisteredSchema:
        """Answer after a while."""
        time.sleep(REGISTRY_SECONDS)
        self.subjects.append(subject)
        return RegisteredSchema(subject, 1, 1, schema)


class CountingSink(HoldingSink):
    """Records the requests for topics."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[set[str]] = []

    def ensure_topics(self, wanted: Mapping[str, bool]) -> Limits:
        """Report every topic as existing."""
        self.requests.append(set(wanted))
        return super().ensure_topics(wanted)


def test_many_new_tables_at_once(database: str, tmp_path: Path) -> None:
    """Their routes are built in parallel, and the server hears from the relay meanwhile."""
    names = [f"t{number}" for number in range(TABLES)]
    with session(database) as source:
        source.run("create publication everything for all tables")
        source.run("select pg_create_logical_replication_slot('many', 'pgoutput')")
        create = [f"create table {name} (id int primary key)" for name in names]
        # Announced because of their root; a topic of their own would stay empty.
        create += ["create table root (id int primary key) partition by range (id)"]
        create += ["create table leaf partition of root for values from (0) to (9)"]
        source.run("alter publication everything set (publish_via_partition_root = true)")
        execute(database, *create, *[f"insert into {name} values (1)" for name in [*names, "root"]])
        sink, registry = CountingSink(), SlowRegistry()
        impatient = with_options(database, wal_sender_timeout=f"{SENDER_TIMEOUT}s")
        relay = HeldRelay(impatient, "many", tmp_path, sink=sink, registry=registry)
        end = source.wal_end()
        eventually("all is confirmed", lambda: source.confirmed("many") >= end)
        relay.stop()
        source.wait_released("many")
    assert sink.sent == dict.fromkeys([*names, "root"], 1)
    assert sorted(registry.subjects) == sorted(
        f"{topic}-{p}" for topic in sink.sent for p in ("key", "value")
    )
    assert len(sink.requests) <= len(names) // 2


def test_a_stop_ends_a_copy_that_brings_no_row(database: str) -> None:
    stop = threading.Event()
    sleeping = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'"
    with closing(connect(database)) as connection, session(database) as source:

        def ask_to_stop() -> None:
            eventually("the COPY waits", lambda: source.value(sleeping))
            stop.set()

        thread = threading.Thread(target=ask_to_stop)
        thread.start()
        with pytest.raises(StopRequested), interruptible(connection, stop.is_set):
            copy_out(connection, "select pg_sleep(600)", lambda row: None)
        thread.join()


def test_a_stop_is_obeyed_while_the_slot_waits_for_an_open_transaction(
    database: str, new_relay: NewRelay
) -> None:
    """PostgreSQL creates a slot only after all transactions that were open before have ended."""
    create_tables(database, 1)
    relay = new_relay()
    with session(database) as writer:
        writer.run("begin")
        writer.run("insert into accounts values (7, 7, 'open')")
        relay.start()
        relay.wait("the slot", lambda status: "temporary slot" in status.detail)
        relay.signal(signal.SIGTERM)
        assert relay.wait_ended(QUICK_SECONDS) == 0, relay.last_words()
    assert relay.run().tables["public.accounts"].snapshot_rows == 1


@pytest.mark.parametrize("publishes", [False, True])
def test_a_table_is_locked_while_a_relay_begins(database: str, new_relay: NewRelay, publishes: bool) -> None:
    create_tables(database, 1)
    relay = new_relay()
    with session(database) as source, session(database) as owner:
        if publishes:
            source.publish_all(relay.name)
        owner.run("begin")
        owner.run("lock table accounts in access exclusive mode")
        holder = f"held by pid {owner.value('select pg_backend_pid()')} with a lock on public.accounts"
        relay.start()
        status = relay.wait("the lock", lambda status: holder in status.verdict.sentence, QUICK_SECONDS)
        assert status.verdict.cause == "transactions" and "pg_terminate_backend(" in status.verdict.hint
        relay.signal(signal.SIGTERM)
        assert relay.wait_ended(QUICK_SECONDS) == 0, relay.last_words()
        assert source.slots() == []
        relay.start()
        relay.wait("the lock", lambda status: holder in status.verdict.sentence, QUICK_SECONDS)
        owner.run("rollback")
        relay.wait_streaming()
        relay.stop()
