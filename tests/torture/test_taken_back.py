"""The position of a slot after a restart of PostgreSQL, which the judge of the random faults excuses."""

import signal
from contextlib import closing
from typing import Any

import psycopg2
import pytest
from psycopg2.extras import LogicalReplicationConnection

from bwtui.model.lsn import parse_lsn
from tests.database import Session, session
from tests.fix_sandbox import MAJOR
from tests.second_postgres import SecondPostgres
from tests.slot_file import ended_in_order, saved_lsn, writes_slots_when_stopped
from tests.waiting import eventually

_OTHERS = [pytest.param(major, marks=pytest.mark.long) for major in (14, 16, 18) if major != MAJOR]


@pytest.mark.parametrize("major", [MAJOR, *_OTHERS])
def test_a_slot_is_taken_back_to_what_is_on_disk(major: int, request: pytest.FixtureRequest) -> None:
    """A crash resets the slot; before PostgreSQL 17 a clean stop does too. A checkpoint does not help."""
    server = SecondPostgres(major)
    request.addfinalizer(server.remove)
    server.start(wal_level="logical")
    with session(server.dsn) as made:
        version = made.connection.server_version
        made.run("create table kept (id int)")
        made.run("create publication everything for all tables")
        made.run("select pg_create_logical_replication_slot('kept', 'pgoutput')")
    for number in (signal.SIGINT, signal.SIGQUIT):
        confirmed, saved = confirm_more(server)
        server.stop(number)
        keeps = number is signal.SIGINT and writes_slots_when_stopped(version)
        stands = confirmed if keeps else saved
        assert saved_lsn(server.data, "kept") == stands
        assert ended_in_order(server.data) == (number is signal.SIGINT)
        server.start(wal_level="logical")
        with session(server.dsn) as again:
            assert stands_at(again) == stands, f"PostgreSQL {version}, {number.name}"


def confirm_more(server: SecondPostgres) -> tuple[int, int]:
    """Confirm a position that is not saved to disk; return the confirmed position and the saved one."""
    with closing(psycopg2.connect(server.dsn, connection_factory=LogicalReplicationConnection)) as connection:
        stream: Any = connection.cursor()
        stream.start_replication("kept", options={"proto_version": "1", "publication_names": "everything"})
        with session(server.dsn) as writer:
            eventually("more is confirmed than is on disk", lambda: _is_ahead(server, writer, stream))
    with session(server.dsn) as after:
        eventually("nobody reads", lambda: not after.value("select active from pg_replication_slots"))
        after.run("checkpoint")
        return stands_at(after), saved_lsn(server.data, "kept")


def _is_ahead(server: SecondPostgres, writer: Session, stream: Any) -> bool:
    # A confirmation that arrives together with a newer restart_lsn is saved to disk at once, so confirm once
    # more.
    writer.run("insert into kept values (1)")
    end = writer.wal_end()
    stream.send_feedback(flush_lsn=end, force=True)
    eventually("it is confirmed", lambda: stands_at(writer) >= end)
    return stands_at(writer) > saved_lsn(server.data, "kept")


def stands_at(opened: Session) -> int:
    """Return the slot's confirmed LSN."""
    return parse_lsn(opened.value("select confirmed_flush_lsn::text from pg_replication_slots"))
