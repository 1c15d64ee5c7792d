"""Effects of a server's settings on its sessions and slots: docs/faults.md has the whole list."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.database import session
from tests.faults.backfills import ask, wait_done
from tests.faults.records import assert_equal
from tests.faults.relays import Relay, execute, new_name
from tests.faults.test_backfill import ITEMS, filled
from tests.second_postgres import SecondPostgres
from tests.waiting import eventually

pytestmark = pytest.mark.services
_ROWS = 30_000
#: Timeouts that end a statement, a transaction or a session.
_TIMEOUTS = (
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
)


def test_no_timeout_of_a_database_ends_a_session(
    new_relay: Callable[..., Relay], services: ServiceAddresses, database: str
) -> None:
    execute(database, *filled(_ROWS))
    relay = new_relay()
    # The session began before the timeouts were set.
    with session(database) as writer:
        known = {name for (name,) in writer.rows("select name from pg_settings")}
        (name,) = writer.rows("select current_database()")[0]
        for timeout in known.intersection(_TIMEOUTS):
            writer.run(f"alter database {name} set {timeout} = '1s'")
        writer.run("begin")
        writer.run("update items set v = nextval('s') where id = 1")
        relay.start()
        # The statement that creates the slot waits for this transaction.
        relay.wait("longer than a timeout", lambda now: "open for" in now.verdict.sentence, 40)
        since = time.monotonic()
        relay.wait("longer than a timeout", lambda _: time.monotonic() - since > 1.5)
        writer.run("commit")
        relay.wait_streaming()
        wait_done(relay, ask(relay, table="public.items"))
        since = time.monotonic()
        # No change arrives meanwhile, so every session of the relay is idle.
        relay.wait("all sessions idle", lambda _: time.monotonic() - since > 1.5)
        writer.run("update items set v = nextval('s') where id < 100")
        end = writer.wal_end()
        status = relay.wait("the update", lambda now: now.confirmed_lsn >= end)
        assert not status.errors, status.errors
        assert status.backfills[0].again == 0
        relay.stop()
        for timeout in known.intersection(_TIMEOUTS):
            writer.run(f"alter database {name} reset {timeout}")
    assert_equal(services, database, [ITEMS], relay.name)


@pytest.fixture
def server() -> Iterator[SecondPostgres]:
    """A server that invalidates slots after one second without a reader."""
    made = SecondPostgres(18)
    try:
        yield made
    finally:
        made.remove()


def test_a_slot_that_nobody_read_for_too_long(
    server: SecondPostgres, services: ServiceAddresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    server.start(wal_level="logical", idle_replication_slot_timeout="1s")
    execute(server.dsn, *filled(100))
    relay = Relay(services, server.dsn, tmp_path, new_name("idle"))
    try:
        relay.start()
        relay.wait_streaming()
        relay.stop()

        def is_given_up() -> bool:
            with closing(psycopg2.connect(server.dsn)) as connection, connection.cursor() as cursor:
                connection.autocommit = True
                cursor.execute("checkpoint")
                cursor.execute("select bool_and(wal_status = 'lost') from pg_replication_slots")
                return bool(cursor.fetchall()[0][0])

        eventually("the slot is given up", is_given_up, 60)
        relay.start()
        assert relay.wait_ended() == 5
        assert "idle_replication_slot_timeout" in relay.last_words(), relay.last_words()
    finally:
        relay.close()
