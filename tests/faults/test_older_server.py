"""A different server answers at the same address: an older copy of the primary, or a promoted standby."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bwtui.demo.shop import DemoTable
from bwtui.model.lsn import parse_lsn
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from tests.faults.hanging import hanging
from tests.faults.records import read_table
from tests.faults.relays import Relay, execute, new_name, wait_for
from tests.second_postgres import SecondPostgres

ORDERS = DemoTable("public", "orders", ("id",))
LOGICAL = {"wal_level": "logical"}


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[SecondPostgres]:
    """A server with 100 orders."""
    second = SecondPostgres()
    request.addfinalizer(second.remove)
    second.start(**LOGICAL)
    execute(second.dsn, "create table orders (id int primary key, origin text)")
    insert(second, 1, 99, "before")
    yield second


@pytest.fixture
def relay(
    server: SecondPostgres, services: ServiceAddresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Relay]:
    """A relay that streams from that server, which keeps a copy of that moment."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    made = Relay(services, server.dsn, tmp_path, new_name())
    made.start()
    made.wait_streaming()
    insert(server, 100, 100, "before")
    made.wait_caught_up()
    server.stop()
    server.keep_copy()
    server.start(**LOGICAL)
    made.wait_streaming()
    yield made
    made.close()


def insert(server: SecondPostgres, first: int, last: int, origin: str) -> int:
    """Insert orders, and return the end of the WAL."""
    sql = f"insert into orders select n, '{origin}' from generate_series({first}, {last}) n"
    return execute(server.dsn, sql)


def origins(services: ServiceAddresses, relay: Relay) -> dict[int, str]:
    """Return the latest origin of each order in the topic."""
    records = read_table(services, ORDERS, relay.name)
    return {record.key[0]: record.value["origin"] for record in records if record.value is not None}


def other_wal(server: SecondPostgres) -> int:
    """Write a MiB of WAL without changes for the relay, and return its end."""
    return execute(server.dsn, "select pg_logical_emit_message(true, 'other', repeat('x', 1 << 20))")


def replace_by_copy(server: SecondPostgres, relay: Relay, *, promoted: bool = False) -> None:
    """Replace the server by its older copy while the relay is suspended; the relay notices it later."""
    server.stop()
    relay.signal(signal.SIGSTOP)
    server.put_copy_back()
    (server.start_promoted if promoted else server.start)(**LOGICAL)


def test_an_older_copy_is_confirmed_by_what_was_read_from_it(
    sandbox: Sandbox, services: ServiceAddresses, server: SecondPostgres, relay: Relay
) -> None:
    """Its slot would advance to the position on the other server, past undelivered rows."""
    confirmed = other_wal(server)
    relay.wait_caught_up()
    replace_by_copy(server, relay)
    insert(server, 101, 105, "copy")
    assert other_wal(server) > confirmed
    with hanging(sandbox):
        relay.signal(signal.SIGCONT)
        relay.wait("Kafka's outage", lambda status: "waiting for Kafka" in status.detail)
        relay.wait_told()
        relay.kill()
    assert (relay.slot_lsn() or 0) < confirmed
    relay.run()
    assert {origins(services, relay).get(n) for n in range(101, 106)} == {"copy"}


def test_a_promotion_before_what_was_sent_is_refused(
    services: ServiceAddresses, server: SecondPostgres, relay: Relay
) -> None:
    """The range is named, and with --accept-divergence the relay continues from there."""
    insert(server, 101, 103, "lost")
    relay.wait_caught_up()
    replace_by_copy(server, relay, promoted=True)
    insert(server, 101, 102, "promoted")
    relay.signal(signal.SIGCONT)
    assert relay.join() == 5
    words = relay.last_words()
    named = re.search(
        r"history lacks changes from (\S+) to (\S+) that were sent to Kafka: "
        r"its timeline 2 forked from timeline 1 at (\S+)\n",
        words,
    )
    assert named is not None, words
    since, until, at = map(parse_lsn, named.groups())
    assert since == at < until
    assert "--accept-divergence" in words
    told = [error.message for error in relay.run("--accept-divergence").errors]
    assert "sent to Kafka" in " ".join(told)
    found = origins(services, relay)
    assert [found[n] for n in (100, 101, 102, 103)] == ["before", "promoted", "promoted", "lost"]
    # The divergence was accepted once; from here on this server is the recorded one. The run with enough time
    # names the keys.
    insert(server, 104, 104, "promoted")
    told += [error.message for error in relay.run().errors]
    assert len(told) == 2
    assert sum("this server's history lacks" in message for message in told) == 1
    assert sum("the new primary lacks" in message for message in told) == 1
    assert origins(services, relay)[104] == "promoted"


def test_a_promotion_after_what_was_sent_goes_on(
    services: ServiceAddresses, server: SecondPostgres, relay: Relay
) -> None:
    """The WAL confirmed past the fork held no changes for the relay."""
    confirmed = other_wal(server)
    relay.wait_caught_up()
    replace_by_copy(server, relay, promoted=True)
    insert(server, 101, 102, "promoted")
    relay.signal(signal.SIGCONT)
    relay.wait("the rows", lambda status: status.tables["public.orders"].inserts >= 3)
    relay.wait_caught_up()
    assert (relay.slot_lsn() or 0) < confirmed
    relay.stop()
    assert origins(services, relay)[102] == "promoted"


def test_an_older_copy_that_lacks_what_was_sent_is_refused(server: SecondPostgres, relay: Relay) -> None:
    """The check also happens when a relay starts, from its stored state."""
    insert(server, 101, 103, "lost")
    relay.wait_caught_up()
    relay.stop()
    server.stop()
    server.put_copy_back()
    server.start(**LOGICAL)
    relay.start()
    assert relay.join() == 5
    assert "its WAL ends at" in relay.last_words()


@pytest.mark.parametrize("is_running", [False, True])
def test_an_older_copy_that_has_grown_is_noticed(
    services: ServiceAddresses, server: SecondPostgres, relay: Relay, is_running: bool
) -> None:
    """Its WAL ends after the sent changes, so only the stream shows that it has different transactions."""
    insert(server, 101, 103, "lost")
    relay.wait_caught_up()
    if is_running:
        replace_by_copy(server, relay)
    else:
        relay.stop()
        server.stop()
        server.put_copy_back()
        server.start(**LOGICAL)
    for _ in range(3):
        other_wal(server)
    insert(server, 200, 203, "after")
    if is_running:
        relay.signal(signal.SIGCONT)
    else:
        relay.start()
    wait_for("it is reported", lambda: "the server lacks a sent transaction" in relay.log())
    relay.wait("it is closed", lambda status: not status.not_proven, every=0.2)
    relay.wait_caught_up()
    relay.stop()
    latest = {record.key[0]: record.value for record in read_table(services, ORDERS, relay.name)}
    assert {n for n, value in latest.items() if value is not None} == {*range(1, 101), *range(200, 204)}
    # The next run finds the transactions that this one sent.
    log = relay.log()
    server.stop(signal.SIGQUIT)
    server.start(**LOGICAL)
    relay.run()
    assert relay.log().count("lacks a sent transaction") == log.count("lacks a sent transaction")
