"""A relay that is suspended, as by a paused container, and wakes alongside the one that replaced it."""

import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from bwtui.demo.shop import DemoTable
from bwtui.relay.stream.suspension import GAP_SECONDS
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from bwtui.sink.delivery import HANDOVERS
from bwtui.source.connection import connect, query
from bwtui.source.slot import reserve
from tests.database import session
from tests.faults.hanging import hanging
from tests.faults.records import read_table
from tests.faults.relays import Relay, execute, wait_for
from tests.waiting import eventually

HOT = DemoTable("public", "hot", ("id",))
UPDATES = 2_000


def updates(database: str, first: int, last: int) -> None:
    """Update the one row, each time in a separate transaction."""
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(
            "do $$ begin for i in %s..%s loop update hot set n = i; commit; end loop; end $$", [first, last]
        )


def latest(services: ServiceAddresses, relay: Relay) -> list[int]:
    """Return the row's values in the order of the topic."""
    return [record.value["n"] for record in read_table(services, HOT, relay.name) if record.value]


def test_what_waits_in_it_does_not_come_after_what_is_newer(
    sandbox: Sandbox,
    services: ServiceAddresses,
    database: str,
    new_relay: Callable[..., Relay],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    execute(database, "create table hot (id int primary key, n int)", "insert into hot values (1, 0)")
    relay = new_relay()
    relay.start()
    relay.wait_streaming()
    updates(database, 1, 10)
    relay.wait_caught_up()
    with hanging(sandbox):
        # The first handovers are one request each: librdkafka keeps what it splits off a larger one.
        for update in range(11, 11 + 2 * HANDOVERS):
            updates(database, update, update)
            relay.wait("one more", lambda status: status.stages["produce"].queue > update - 11)  # noqa: B023
        updates(database, 11 + 2 * HANDOVERS, UPDATES)
        relay.wait("a queue", lambda status: status.stages["produce"].queue >= UPDATES - 10)
        relay.signal(signal.SIGSTOP)
        since = time.monotonic()
    end_session(database, relay)
    updates(database, UPDATES + 1, UPDATES + 50)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("BWTUI_STATE_HOME", str(tmp_path / "elsewhere"))
        # The rows of a comparison must not appear among those of the two relays.
        other = Relay(services, database, tmp_path, relay.name + "_other", "--on-gap", "report")
        other.name = relay.name
        other.run()
    before = latest(services, relay)
    assert before[-1] == UPDATES + 50
    eventually("the gap is long enough", lambda: time.monotonic() - since > GAP_SECONDS + 1)
    relay.signal(signal.SIGCONT)
    # The relay checks the slot before it continues, and finds that another relay has moved it.
    code = relay.join()
    after = latest(services, relay)
    assert "was suspended" in relay.log()
    assert (code, after[len(before) :]) == (5, [])


def test_two_relays_that_begin_take_one_snapshot(
    services: ServiceAddresses,
    database: str,
    new_relay: Callable[..., Relay],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that a suspended relay queued in its snapshot would follow the other relay's newer rows."""
    execute(database, "create table hot (id int primary key, n int)", "insert into hot values (1, 0)")
    relay = new_relay()
    with session(database) as opened:
        # A slot is created once every open transaction has ended.
        opened.run("begin; insert into hot values (2, 0)")
        relay.start()
        relay.wait("its snapshot", lambda status: status.is_copying)
        wait_for("its lock", lambda: process_that_makes(database, relay))
        # A relay that is stopped earlier would create it when it wakes, and wait for the transaction.
        wait_for("its temporary slot", lambda: temporary_slots(database))
        relay.signal(signal.SIGSTOP)
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("BWTUI_STATE_HOME", str(tmp_path / "elsewhere"))
            other = Relay(services, database, tmp_path, relay.name + "_other")
            other.name = relay.name
            other.start("--until-caught-up")
            assert other.wait_ended() == 2
        process = process_that_makes(database, relay)
        assert (
            f"another relay is creating slot {relay.name}, in the server's process {process}"
            in other.last_words()
        )
        assert f"SELECT pg_terminate_backend({process});" in other.last_words()
        for session_of_it in (process, *temporary_slots(database)):
            execute(database, f"select pg_terminate_backend({session_of_it})")
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("BWTUI_STATE_HOME", str(tmp_path / "elsewhere"))
            other.start("--until-caught-up")
        wait_for("the other's lock", lambda: process_that_makes(database, relay) not in (None, process))
        relay.signal(signal.SIGCONT)
        assert relay.wait_ended() == 4
        # The other relay already uses the publications that this one has created.
        assert publications(database)
        opened.run("rollback")
    assert other.join() == 0, other.last_words()
    assert latest(services, relay) == [0]


def test_publications_that_went_while_another_relay_was_waited_for(
    database: str, new_relay: Callable[..., Relay]
) -> None:
    """A snapshot of deleted publications has no tables."""
    execute(database, "create table hot (id int primary key, n int)", "insert into hot values (1, 0)")
    execute(database, "create publication hot for table hot")
    relay = new_relay("--publication", "hot")
    with closing(connect(database)) as connection:
        assert reserve(connection, relay.name) is None
        relay.start()
        waits = f"waiting for another relay that is creating slot {relay.name}"
        relay.wait("the other relay", lambda status: status.detail == waits)
        execute(database, "drop publication hot")
    assert relay.join() == 2
    assert "were created or dropped while it was starting" in relay.last_words()
    assert relay.slot_lsn() is None


def publications(database: str) -> list[tuple[str]]:
    """Return the names of the existing publications."""
    with closing(connect(database)) as connection:
        return query(connection, "select pubname from pg_publication")


def process_that_makes(database: str, relay: Relay) -> int | None:
    """Return the server's process that creates the slot for the relay."""
    with closing(connect(database)) as connection:
        return reserve(connection, relay.name)


def temporary_slots(database: str) -> list[int]:
    """Return the server's processes that have created temporary slots in the database, or are about to."""
    sql = """select active_pid from pg_replication_slots
              where temporary and active and database = current_database()"""
    with closing(connect(database)) as connection:
        return [pid for (pid,) in query(connection, sql)]


def end_session(database: str, relay: Relay) -> None:
    """End the relay's replication session on the server, as happens to a session that is found dead."""
    sql = "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s"
    with session(database) as opened:
        opened.run(sql, relay.name)
        opened.wait_released(relay.name)
