"""Slots on a real server: the temporary one, its permanent copy, and interference by others."""

import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

import pytest

from bwtui.errors import ConnectionFailed, RefusedError, SlotLost
from bwtui.source import slot
from bwtui.source.connection import Connection, connect
from bwtui.source.raw_session import connect_raw
from bwtui.source.raw_stream import ReplicationStream, parse_keepalive
from bwtui.source.snapshot import import_snapshot
from tests.attempts import Attempts
from tests.database import Session, session
from tests.waiting import eventually


@pytest.fixture
def source(database: str) -> Iterator[Session]:
    """A session on a database with one published table of one row."""
    with closing(Session(database)) as opened:
        opened.run("create table t (id int primary key)")
        opened.run("insert into t values (1)")
        opened.run("create publication everything for all tables")
        yield opened


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with closing(connect(database)) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    """A name that no other slot has."""
    return f"slot_{secrets.token_hex(5)}"


WHOLE_PAGES = """select pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()
                    and mod(pg_current_wal_flush_lsn() - '0/0', 8192) = 0"""
ALL_OF_IT = "select pg_current_wal_flush_lsn() = pg_current_wal_insert_lsn()"
#: PostgreSQL writes a standby snapshot, and all WAL before it, at most this often (bgwriter.c).
SNAPSHOT_SECONDS = 15.0


def test_all_that_is_committed_is_reached_beside_an_open_transaction(
    database: str, source: Session, connection: Connection, name: str
) -> None:
    """WAL is then written up to the middle of a record, which no stream passes for a while."""
    source.run("create table other (filler text)")
    source.run("select pg_create_logical_replication_slot(%s, 'pgoutput')", name)
    stream = ReplicationStream(connect_raw(database), name, ["everything"])

    def has_passed(lsn: int) -> bool:
        for frame in stream.frames():
            if frame[:1] == b"k" and parse_keepalive(frame)[0] >= lsn:
                return True
        stream.wait(0.1)
        return False

    with session(database) as writer:
        writer.run("begin")
        # The next standby snapshot takes some time after the first.
        for written in (ALL_OF_IT, WHOLE_PAGES):
            writer.run("insert into other select repeat('x', 1000) from generate_series(1, 1000)")
            eventually("it is written so far", partial(source.value, written))
        target = slot.committed_lsn(connection)
        eventually("the server has read that far", lambda: has_passed(target), SNAPSHOT_SECONDS * 0.8)
    stream.finish()


def test_the_permanent_slot_stands_where_the_temporary_one_did(
    database: str, source: Session, connection: Connection, name: str
) -> None:
    """Rows committed meanwhile are not in the snapshot, and the permanent slot sends them."""
    temporary = slot.create_temporary(connect_raw(database))
    importer = import_snapshot(connect(database), temporary.snapshot)
    source.run("insert into t values (2)")
    with importer.cursor() as cursor:
        cursor.execute("select count(*) from public.t")
        assert cursor.fetchone() == (1,)
    importer.close()
    before = slot.slot_state(connection, temporary.name)
    slot.make_permanent(connection, temporary.name, name)
    after = slot.slot_state(connection, name)
    assert before is not None
    assert after is not None
    assert before.temporary
    assert not after.temporary
    assert after.confirmed_lsn == temporary.consistent_point == before.confirmed_lsn
    assert after.restart_lsn == before.restart_lsn
    temporary.close()
    eventually("the temporary slot is gone", lambda: source.slots() == [name])


def test_the_temporary_slot_dies_with_its_session(database: str, source: Session) -> None:
    temporary = slot.create_temporary(connect_raw(database))
    assert source.slots() == [temporary.name]
    source.run("select pg_terminate_backend(%s)", temporary.connection.backend_pid)
    eventually("it is gone", lambda: not source.slots())
    temporary.close()


def test_a_name_that_is_taken_is_refused(source: Session, connection: Connection, name: str) -> None:
    slot.create_permanent(connection, name)
    with pytest.raises(RefusedError, match="already exists"):
        slot.create_permanent(connection, name)


def test_a_slot_that_is_not_there(database: str, source: Session, name: str) -> None:
    raw = connect_raw(database)
    with pytest.raises(SlotLost, match="does not exist"):
        ReplicationStream(raw, name, ["everything"])
    raw.finish()


def test_a_slot_that_is_read_by_somebody_else(
    database: str, source: Session, connection: Connection, name: str
) -> None:
    slot.create_permanent(connection, name)
    first = ReplicationStream(connect_raw(database), name, ["everything"])
    raw = connect_raw(database)
    with pytest.raises(RefusedError, match="is in use"):
        ReplicationStream(raw, name, ["everything"])
    raw.finish()
    first.end()


def test_a_session_that_is_ended_by_the_server(
    database: str, source: Session, connection: Connection, name: str
) -> None:
    slot.create_permanent(connection, name)
    stream = ReplicationStream(connect_raw(database), name, ["everything"])
    source.run("select pg_terminate_backend(%s)", stream.connection.backend_pid)

    def read_on() -> bool:
        stream.wait(0.1)
        next(stream.frames(), None)
        return False

    with pytest.raises(ConnectionFailed, match="the replication connection broke"):
        eventually("the end", read_on)
    stream.finish()


def test_a_connection_that_was_cut_is_made_again(attempts: Attempts, database: str, source: Session) -> None:
    """The running relay reconnects; nothing is lost, and no second snapshot is taken."""
    with attempts.start(database) as relay:
        first = eventually("it streams", lambda: source.reader(attempts.name))
        source.run("select pg_terminate_backend(%s)", first)
        source.run("insert into t values (2)")
        end = source.wal_end()
        eventually("it goes on", lambda: source.confirmed(attempts.name) >= end)
        relay.terminate()
        out, err = relay.communicate(timeout=60)
    assert (relay.returncode, err) == (0, "")
    assert '"inserts": 1' in out.splitlines()[-1]


@contextmanager
def cut_off(relay: "subprocess.Popen[str]", slot: str, source: Session) -> Iterator[None]:
    """End the session of a relay that streams; it can't reconnect before the block is over."""
    reader = eventually("it streams", lambda: source.reader(slot))
    relay.send_signal(signal.SIGSTOP)
    try:
        source.run("select pg_terminate_backend(%s)", reader)
        source.wait_released(slot)
        yield
    finally:
        relay.send_signal(signal.SIGCONT)


def test_a_slot_that_is_moved_while_the_connection_is_cut_is_refused(
    attempts: Attempts, database: str, source: Session
) -> None:
    """The relay checks again whenever it reconnects, not only at its start."""
    with attempts.start(database) as relay:
        with cut_off(relay, attempts.name, source):
            source.run("insert into t values (2)")
            source.run("select pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", attempts.name)
        _, err = relay.communicate(timeout=60)
    assert relay.returncode == 5, err
    assert f"another consumer moved slot {attempts.name} to" in err


def test_a_slot_that_is_dropped_while_the_connection_is_cut_is_lost(
    attempts: Attempts, database: str, source: Session
) -> None:
    with attempts.start(database) as relay:
        with cut_off(relay, attempts.name, source):
            source.run("select pg_drop_replication_slot(%s)", attempts.name)
        _, err = relay.communicate(timeout=60)
    assert relay.returncode == 5, err
    assert f"slot {attempts.name} is missing" in err


def test_a_slot_that_is_taken_by_another_consumer_is_waited_for(
    attempts: Attempts, database: str, source: Session
) -> None:
    """Or held by our own old session, which the server does not know to be dead."""
    with attempts.start(database, "--publication", "everything") as relay:
        with cut_off(relay, attempts.name, source):
            taker = ReplicationStream(connect_raw(database), attempts.name, ["everything"])
        # A start gives up after ten seconds.
        told = eventually("it tells of it", lambda: _told(attempts, "is in use"))
        assert "waiting" in told
        taker.finish()
        end = source.wal_end()
        eventually("it goes on", lambda: source.confirmed(attempts.name) >= end)
        relay.terminate()
        _, err = relay.communicate(timeout=60)
    assert (relay.returncode, err) == (0, "")


def _told(attempts: Attempts, words: str) -> str | None:
    detail = attempts.command("status", attempts.name, "--json").stdout
    return detail if words in detail else None
