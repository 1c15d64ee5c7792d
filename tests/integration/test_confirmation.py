"""Invariant 1 on a real server: the confirmed LSN never passes an unacknowledged transaction.

Each scenario runs with two readers: psycopg2's replication cursor, which confirms transactions automatically,
and ours. The same steps must lose a transaction with psycopg2's, and none with ours
(docs/adr/0001-read-the-stream-through-libpq.md). In each scenario Z is an acknowledged transaction, and A one
that is read but never acknowledged; then the connection is cut.
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.database import Session, session, with_options
from tests.held_relay import HeldRelay
from tests.integration.confirmation_readers import (
    READERS,
    STREAMED,
    STREAMED_READERS,
    MakeBlockReader,
    MakeReader,
    Reader,
)
from tests.waiting import eventually

#: More than the socket buffers between server and reader hold, so that the server blocks in the middle.
BIG = "insert into b select i, repeat('x', 1900) from generate_series(1, 8000) i"
#: For the scenario that needs the server's own keepalive. The server sends one after half of this time, and
#: ends the session after the other half, which even a machine that stalls must meet.
SENDER_TIMEOUT = 15


@pytest.fixture
def source(database: str) -> Iterator[Session]:
    """A session on a database with the tables z, a, b, c and m, all published."""
    with closing(Session(database)) as opened:
        for table in "zabcm":
            opened.run(f"create table {table} (id int primary key, filler text)")
        opened.run("create publication everything for table z, a, b, c, m")
        opened.run("create schema other")
        opened.run("create table other.unpublished (filler text)")
        yield opened


@pytest.fixture
def slot(source: Session) -> str:
    """Return an unused slot name."""
    name = f"confirmation_{secrets.token_hex(4)}"
    source.run("select pg_create_logical_replication_slot(%s, 'pgoutput')", name)
    return name


def commit(source: Session, table: str) -> int:
    """Commit one row of ``table``, and return an LSN after its transaction."""
    source.run(f"insert into {table} select coalesce(max(id), 0) + 1, 'small' from {table}")
    return source.wal_end()


def note_position(other: Session) -> int:
    """Return an LSN that the server passes once it has read the open transaction except for its COMMIT."""
    lsn = other.wal_inserted()
    other.run("insert into other.unpublished values ('behind that position')")
    return lsn


def wait_blocked(source: Session, reader: Reader) -> None:
    """Wait until the server is blocked in sending, because the reader does not read."""
    sql = "select wait_event = 'WalSenderWriteData' from pg_stat_activity where pid = %s"
    eventually("the server waits for the reader", lambda: source.value(sql, reader.pid))


def check(source: Session, slot: str, reader: Reader, behind_a: int, middle: int) -> None:
    """Let the reader read a keepalive at ``middle``, cut the connection, and check that A is repeated."""
    now = source.value("select clock_timestamp()")
    reader.read_keepalive(middle)
    if reader.loses:
        eventually("psycopg2 has confirmed A", lambda: source.confirmed(slot) >= behind_a, 60)
    told = "select reply_time > %s from pg_stat_replication where pid = %s"
    eventually("the server has been told since", lambda: source.value(told, now, reader.pid))
    reader.cut()
    source.wait_released(slot)
    commit(source, "m")
    passed = source.confirmed(slot) >= behind_a
    came_again = "a" in reader.read_again(last="m")
    assert (passed, came_again) == ((True, False) if reader.loses else (False, True))


@pytest.mark.parametrize("make", READERS)
def test_interleaved(make: MakeReader, database: str, source: Session, slot: str, tmp_path: Path) -> None:
    """B began before Z and is read after A; the reader pauses, and the server requests a sign of life."""
    dsn = with_options(database, wal_sender_timeout=f"{SENDER_TIMEOUT}s")
    reader = make(dsn, slot, tmp_path)
    with session(database) as other:
        other.run("begin")
        other.run(BIG)
        commit(source, "z")
        reader.acknowledge("z")
        behind_a = commit(source, "a")
        reader.hold("a")
        middle = note_position(other)
        other.run("commit")
    reader.read_into("b")
    wait_blocked(source, reader)
    sql = (
        "select clock_timestamp() - reply_time > %s * interval '1 s' from pg_stat_replication where pid = %s"
    )
    half = SENDER_TIMEOUT / 2 + 0.2
    eventually("the server has asked", lambda: source.value(sql, half, reader.pid))
    check(source, slot, reader, behind_a, middle)


@pytest.mark.parametrize("make", READERS)
def test_reply(make: MakeReader, database: str, source: Session, slot: str, tmp_path: Path) -> None:
    """As `test_interleaved`, without any pause: the reader requests a keepalive in the middle of B."""
    reader = make(database, slot, tmp_path)
    with session(database) as other:
        other.run("begin")
        other.run(BIG)
        commit(source, "z")
        reader.acknowledge("z")
        behind_a = commit(source, "a")
        reader.hold("a")
        middle = note_position(other)
        other.run("commit")
    reader.read_into("b")
    wait_blocked(source, reader)
    reader.ask_for_keepalive()
    check(source, slot, reader, behind_a, middle)


@pytest.mark.parametrize("make", READERS)
def test_relation(make: MakeReader, database: str, source: Session, slot: str, tmp_path: Path) -> None:
    """Nothing is interleaved: a keepalive follows a RELATION, which carries the LSN 0/0.

    A TRUNCATE of wide tables sends one RELATION after another, more than the socket buffers hold.
    """
    columns = ", ".join(f"{'x' * 58}{i:04} int" for i in range(1_590))
    source.run(f"create table wide0 ({columns})")
    others = [f"wide{i}" for i in range(1, 50)]
    for other in others:
        source.run(f"create table {other} (like wide0)")
    source.run(f"alter publication everything add table wide0, {', '.join(others)}")
    reader = make(database, slot, tmp_path)
    commit(source, "z")
    reader.acknowledge("z")
    behind_a = commit(source, "a")
    reader.hold("a")
    source.run("begin")
    source.run(f"truncate wide0, {', '.join(others)}")
    middle = note_position(source)
    source.run("commit")
    wait_blocked(source, reader)
    reader.ask_for_keepalive()
    check(source, slot, reader, behind_a, middle)


@pytest.mark.parametrize("make", STREAMED_READERS)
def test_streaming(make: MakeBlockReader, database: str, source: Session, slot: str, tmp_path: Path) -> None:
    """B is sent while it is in progress; STREAM STOP carries the LSN of its last change, older than Z."""
    reader = make(with_options(database, logical_decoding_work_mem="64kB"), slot, tmp_path, STREAMED)
    with session(database) as b, session(database) as c:
        b.run("begin")
        b.run("insert into b select i, repeat(md5(i::text), 40) from generate_series(1, 30) i")
        commit(source, "z")
        reader.acknowledge("z")
        behind_a = commit(source, "a")
        reader.hold("a")
        # A second transaction fills the memory, and the server streams the largest one: B.
        c.run("begin")
        c.run("insert into c select i, repeat(md5(i::text), 40) from generate_series(1, 25) i")
        middle = note_position(c)
        source.run("insert into other.unpublished values ('a commit, so that the WAL is flushed')")
        reader.read_block()
        reader.ask_for_keepalive()
    check(source, slot, reader, behind_a, middle)


@pytest.fixture
def relay(database: str, source: Session, slot: str, tmp_path: Path) -> Iterator[HeldRelay]:
    """The relay's streaming phase; all messages are acknowledged except those of table a."""
    relay = HeldRelay(database, slot, tmp_path)
    relay.sink.held.add("a")
    yield relay
    relay.stop()


def write_unpublished(source: Session) -> int:
    """Write WAL that produces no message, and return its end."""
    source.run("insert into other.unpublished select md5(i::text) from generate_series(1, 5000) i")
    return source.wal_end()


def wait_for_keepalive(relay: HeldRelay, lsn: int) -> None:
    """Wait until a keepalive at ``lsn`` or later has arrived."""
    eventually("the keepalive has come", lambda: relay.report.server_lsn >= lsn)


def test_an_idle_slot_advances(
    relay: HeldRelay, source: Session, slot: str, services: ServiceAddresses
) -> None:
    """WAL of other databases and of unpublished tables grows, and the slot follows within a second.

    Not each time, because the machine may stall. A relay that confirmed only every five seconds, or on
    request, would be late each time but the first, because each time begins right after a confirmation.
    """
    commit(source, "z")
    relay.wait_sent("z")
    with session(services.postgres) as elsewhere:
        elsewhere.run("create table elsewhere as select i from generate_series(1, 5000) i")
        elsewhere.run("drop table elsewhere")
    eventually(
        "the slot follows soon", lambda: seconds_until_confirmed(source, slot, write_unpublished(source)) < 1
    )


def seconds_until_confirmed(source: Session, slot: str, end: int) -> float:
    """Return how long the slot takes to reach ``end``."""
    begun = time.monotonic()
    eventually("the slot is at the end of the WAL", lambda: source.confirmed(slot) >= end)
    return time.monotonic() - begun


def test_a_slot_waits_for_an_unacknowledged_transaction(
    relay: HeldRelay, source: Session, slot: str, database: str
) -> None:
    """However much WAL follows, the slot stays before the transaction; after its end it advances at once."""
    eventually(
        "the slot goes on soon",
        lambda: seconds_of_release(relay, source, slot) < 1.5,
    )


def seconds_of_release(relay: HeldRelay, source: Session, slot: str) -> float:
    """Run the scenario once; return the slot's delay at the end, which is longer if the machine stalls."""
    relay.sink.held.add("a")
    relay.sink.sent.clear()
    before = source.wal_end()
    behind_a = commit(source, "a")
    relay.wait_sent("a")
    for _ in range(3):
        end = write_unpublished(source)
        wait_for_keepalive(relay, end)
        commit(source, "z")
        assert source.confirmed(slot) < behind_a
    sql = "select clock_timestamp() - reply_time < interval '1 s' from pg_stat_replication where pid = %s"
    eventually("a status update has been sent since", lambda: source.value(sql, relay.pid))
    assert source.confirmed(slot) < behind_a
    relay.sink.held.clear()
    end = source.wal_end()
    seconds = seconds_until_confirmed(source, slot, end)
    assert before < behind_a < end
    return seconds


def test_write_flush_and_apply_are_the_same(relay: HeldRelay, source: Session) -> None:
    """The durable position is reported as all three.

    The server's prompt keepalive when idle depends on it.
    """
    end = commit(source, "z")
    relay.wait_sent("z")
    sql = """select write_lsn, flush_lsn, replay_lsn from pg_stat_replication
              where pid = %s and flush_lsn >= ('0/0'::pg_lsn + %s) """
    rows = eventually("the transaction is confirmed", lambda: source.rows(sql, relay.pid, end))
    assert len(set(rows[0])) == 1
