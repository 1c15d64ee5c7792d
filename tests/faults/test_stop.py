"""A clean stop leaves nothing to repeat, and a failure at the last step leaves nothing behind."""

import signal
from collections.abc import Callable
from contextlib import closing

import psycopg2
import pytest

from bwtui.relay.process.control import request
from bwtui.relay.rows.batch import IN_FLIGHT_BYTES
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from tests.faults.hanging import hanging
from tests.faults.records import assert_equal, read_table, repeated
from tests.faults.relays import Relay, execute, wait_for
from tests.faults.writer import ACCOUNTS, TABLES, create_tables

#: One transaction that exceeds the relay's memory limit.
ROW_BYTES = 8_000
LARGE = 4 * IN_FLIGHT_BYTES // 3 // ROW_BYTES
FULL = 9 * IN_FLIGHT_BYTES // 10 // ROW_BYTES

NewRelay = Callable[..., Relay]


@pytest.mark.parametrize("way", ["SIGTERM", pytest.param("bwtui stop", marks=pytest.mark.long)])
def test_a_stop_in_a_large_transaction_repeats_nothing(
    sandbox: Sandbox, services: ServiceAddresses, database: str, new_relay: NewRelay, way: str
) -> None:
    create_tables(database, 10)
    execute(database, "alter table accounts alter column note set storage external")
    relay = new_relay()
    relay.run()
    relay.start()
    relay.wait_streaming()
    # The relay has recorded the table already, so it requests nothing from Kafka when the transaction
    # arrives.
    execute(database, "update accounts set number = 1")
    relay.wait_caught_up()
    with hanging(sandbox):
        # Kafka hangs, so the relay waits in the middle of the transaction with its memory full.
        execute(
            database,
            f"insert into accounts select n, n, repeat('x', {ROW_BYTES}) from generate_series(11, {LARGE}) n",
        )
        relay.wait(
            "a full queue",
            lambda status: status.stages["produce"].queue > FULL,
        )
        if way == "SIGTERM":
            relay.signal(signal.SIGTERM)
        else:
            request(relay.name, {"request": "stop"})
    assert relay.join() == 0, relay.last_words()
    relay.run()
    assert_equal(services, database, TABLES, relay.name)
    records = read_table(services, ACCOUNTS, relay.name)
    assert not repeated(records)
    assert len({record.session for record in records if record.operation == "insert"}) == 1


@pytest.mark.long
def test_a_slot_of_that_name_made_during_the_snapshot(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """The last step fails; once the cause is fixed, the relay starts as if nothing had happened."""
    create_tables(database, 20_000)
    relay = new_relay()
    # The snapshot's last requests wait for five seconds, so it can't end before the slot is created.
    relay.start("-C", "linger.ms=5000")
    relay.wait("the snapshot", lambda status: status.is_copying and status.tables)
    relay.signal(signal.SIGSTOP)
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute("select pg_create_physical_replication_slot(%s)", [relay.name])
    relay.signal(signal.SIGCONT)
    assert relay.join() == 2
    assert relay.name in relay.last_words()
    execute(database, f"select pg_drop_replication_slot('{relay.name}')")
    relay.run()
    assert_equal(services, database, TABLES, relay.name)


def test_a_kill_between_slot_and_stream_keeps_the_snapshot(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    create_tables(database, 2_000)
    relay = new_relay()
    relay.start()
    wait_for("the slot", lambda: relay.slot_lsn() is not None)
    relay.kill()
    relay.run()
    records = [record for table in TABLES for record in read_table(services, table, relay.name)]
    assert len(records) == 4_000
    assert_equal(services, database, TABLES, relay.name)
