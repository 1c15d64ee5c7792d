"""Shapes of transactions: trees of savepoints, two-phase commit, many at once, and messages between rows.

The topic has one record for every committed change, none for rolled-back ones, and all of them in commit
order. ``BWTUI_SHAPES_TREES=10000 BWTUI_SHAPES_OPEN=1000`` is the long run (``make shapes``);
``BWTUI_SHAPES_SEED`` repeats one.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import psycopg2
import pytest

from bwtui.demo.shop import DemoTable
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.database import Session, session, with_options
from tests.faults.records import assert_equal, read_table
from tests.faults.relays import Relay, wait_for
from tests.fix_sandbox import MAJOR, drop_database
from tests.second_postgres import SecondPostgres
from tests.shapes.committed import assert_as_committed
from tests.shapes.conftest import SPILLS_AT_ONCE
from tests.shapes.trees import TABLE, Change, Forest

pytestmark = pytest.mark.services

TREES = int(os.environ.get("BWTUI_SHAPES_TREES", "400"))
OPEN = int(os.environ.get("BWTUI_SHAPES_OPEN", "60"))
PLACE = DemoTable("public", "trees", ("id",))
#: Maximum memory of the relay, whatever it reads.
MEMORY_BYTES = 200 << 20
PATIENCE = 600.0

NewRelay = Callable[..., Relay]


@pytest.fixture
def seed() -> int:
    """Return the seed of all random choices; it is printed, so that a run can be repeated."""
    found = int(os.environ.get("BWTUI_SHAPES_SEED") or random.getrandbits(32))
    print(f"BWTUI_SHAPES_SEED={found}")
    return found


@pytest.fixture
def database(roomy: SecondPostgres) -> Iterator[str]:
    """A fresh database of the server with many connections, with the table."""
    with session(roomy.dsn) as opened:
        opened.run("create database shapes")
    dsn = with_options(roomy.dsn.rsplit("/", 1)[0] + "/shapes", synchronous_commit="off")
    with session(dsn) as opened:
        opened.run(TABLE)
    yield dsn
    with closing(psycopg2.connect(roomy.dsn)) as connection:
        connection.autocommit = True
        drop_database(connection, "shapes")


@pytest.fixture
def relay(database: str, new_relay: NewRelay) -> Relay:
    """A streaming relay, before any write."""
    made = new_relay()
    made.start()
    made.wait_streaming()
    return made


@pytest.fixture
def writer(database: str) -> Iterator[Session]:
    """A session that writes."""
    with session(database) as opened:
        yield opened


def assert_topic(
    services: ServiceAddresses, database: str, relay: Relay, committed: list[list[Change]]
) -> None:
    """Let the relay catch up and stop, and compare its topic with the commits and with the table."""
    status = relay.wait_caught_up(PATIENCE)
    assert status.resident_bytes < MEMORY_BYTES
    relay.stop()
    assert_as_committed(read_table(services, PLACE, relay.name), committed)
    assert_equal(services, database, [PLACE], relay.name)


@pytest.mark.timeout(1800)
def test_savepoints_and_prepared_transactions(
    services: ServiceAddresses, database: str, relay: Relay, writer: Session, seed: int
) -> None:
    forest = Forest(seed)
    for script in forest.statements(TREES):
        writer.run(script)
    assert_topic(services, database, relay, forest.committed)
    print(
        f"{TREES} transactions, {len(forest.committed)} committed with"
        f" {sum(map(len, forest.committed))} changes; {forest.savepoints} savepoints, {forest.blocks}"
        f" exception blocks, {forest.taken_back} changes taken back"
    )
    assert forest.taken_back > TREES
    # All changes went through the server's disk, including those rolled back.
    assert relay.last_status().spill_bytes or MAJOR < SPILLS_AT_ONCE


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_transactions_that_are_open_at_once(
    services: ServiceAddresses, database: str, relay: Relay, seed: int
) -> None:
    rng = random.Random(seed)
    committed: list[list[Change]] = []
    with ExitStack() as stack:
        sessions = [stack.enter_context(session(database)) for _ in range(OPEN)]
        work: list[list[Change]] = [[] for _ in sessions]
        for opened in sessions:
            opened.run("begin")
        left = list(range(OPEN))
        number = 0
        while left:
            # Now and then one of them commits while all others continue.
            at = rng.choice(left)
            if len(work[at]) >= 4 and rng.random() < 0.3:
                left.remove(at)
                is_kept = rng.random() < 0.8
                sessions[at].run("commit" if is_kept else "rollback")
                committed += [work[at]] if is_kept else []
                continue
            number += 1
            step = len(work[at])
            id = at * 1000 + step // 2
            if step % 2:
                sessions[at].run("update trees set number = %s where id = %s", number, id)
            else:
                sessions[at].run("insert into trees values (%s, %s, repeat('x', 200))", id, number)
            work[at].append(Change(id, number))
    assert_topic(services, database, relay, committed)


def test_messages_between_rows(
    services: ServiceAddresses, database: str, relay: Relay, writer: Session
) -> None:
    """``pg_logical_emit_message`` writes WAL of any size; none of it is in a relay's stream."""
    committed: list[list[Change]] = []
    emit = "select pg_logical_emit_message(%s, 'prefix', repeat('m', %s))"
    for number in range(1, 16):
        size = (0, 100, 4 << 20)[number % 3]
        writer.run("begin")
        writer.run("insert into trees values (%s, %s, '')", number, number)
        writer.run(emit, True, size)
        writer.run("savepoint s")
        writer.run(emit, False, size)
        writer.run("update trees set number = -1 where id = %s", number)
        writer.run("rollback to s")
        writer.run("update trees set number = %s where id = %s", number + 1000, number)
        is_kept = number % 5 != 0
        writer.run("commit" if is_kept else "rollback")
        committed += [[Change(number, number), Change(number, number + 1000)]] if is_kept else []
    # With nothing but messages the slot advances all the same, so that their WAL can be removed.
    before = relay.wait_caught_up().confirmed_lsn
    writer.run(emit, True, 16 << 20)
    wait_for("the slot passes the message", lambda: (relay.slot_lsn() or 0) >= before + (16 << 20))
    assert_topic(services, database, relay, committed)
