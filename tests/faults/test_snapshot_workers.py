"""A first snapshot by several processes: each row is read, whatever happens to the workers."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest

from bwtui.demo.shop import DemoTable
from bwtui.model.status import Status
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from tests.attempts import password
from tests.database import session
from tests.faults.hanging import hanging
from tests.faults.recordings import assert_tables_follow, assert_topics_agree, opened, recover_and_check
from tests.faults.records import assert_equal, read_table
from tests.faults.relays import RecordingOnly, Relay, execute, new_name, wait_for
from tests.fix_sandbox import drop_database

NewRelay = Callable[..., Relay]
TABLES = [DemoTable("public", name, ("id",)) for name in ("wide", "parted", "odd", "nothing")]
WIDE, PARTED, *_ = TABLES
#: 24 MB in ranges of 8 MiB, four rows a page.
ROWS = 12_000
MADE = (
    "create table wide (id int primary key, note text)",
    f"insert into wide select i, repeat('x', 1900) from generate_series(1, {ROWS}) i",
    "create table parted (id int primary key) partition by range (id)",
    "create table parted_low partition of parted for values from (0) to (100)",
    "create table parted_high partition of parted for values from (100) to (1000)",
    "insert into parted select generate_series(1, 999)",
    "create table odd (id int primary key, note text)",
    """insert into odd values (1, E'tab\\t \\\\N \\\\. \\x01'), (2, ''), (3, 'null')""",
    "create table nothing (id int primary key)",
    "analyze",
)
TWO = ("--snapshot-workers", "2", "-u")


@pytest.fixture
def relay(database: str, new_relay: NewRelay) -> Relay:
    """Return a relay that will take its snapshot with two workers."""
    execute(database, *MADE)
    return new_relay(*TWO)


@contextmanager
def reading(relay: Relay, sandbox: Sandbox, *args: str) -> Iterator[Status]:
    """Start the relay; during the block each of its workers has read rows that Kafka does not acknowledge."""
    relay.start(*args)
    relay.wait("its workers", lambda status: status.snapshot_workers)
    with hanging(sandbox):
        yield relay.wait("rows", lambda status: _rows(status) >= 2)


def _rows(status: Status) -> int:
    return sum(worker.rows > 0 for worker in status.snapshot_workers)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


def are_gone(status: Status) -> bool:
    """Return whether all workers have ended; a zombie that was not waited for counts as ended."""
    for worker in status.snapshot_workers:
        path = Path(f"/proc/{worker.pid}/stat")
        if path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z":
            return False
    return True


def told(status: Status) -> list[str]:
    """Return the messages about workers."""
    return [entry.message for entry in status.errors if entry.kind in ("worker", "notice")]


def caught_up(relay: Relay) -> Status:
    """Wait for the end of a relay that ends when it has caught up."""
    code = relay.join()
    assert code == 0, relay.last_words()
    return relay.last_status()


def test_every_row_is_taken_once_while_others_write(
    relay: Relay, sandbox: Sandbox, services: ServiceAddresses, database: str
) -> None:
    stop = threading.Event()

    def write() -> None:
        with session(database) as writer:
            while not stop.wait(0.02):
                writer.run("update wide set note = note || 'y' where id % 1000 = 0")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        # One worker alone might finish before the other has begun.
        with reading(relay, sandbox, "--until-caught-up"):
            pass
        status = caught_up(relay)
    finally:
        stop.set()
        thread.join()
    assert not told(status)
    tables = status.tables
    assert {name: (t.snapshot_state, t.snapshot_rows) for name, t in tables.items()} == {
        "public.wide": ("done", ROWS),
        "public.parted": ("done", 999),
        "public.odd": ("done", 3),
        "public.nothing": ("done", 0),
    }
    assert all(t.snapshot_seconds_left is None for t in tables.values())
    relay.run()
    assert_equal(services, database, TABLES, relay.name)
    of_snapshot = [one for one in read_table(services, WIDE, relay.name) if one.operation == "snapshot"]
    assert sorted(one.key for one in of_snapshot) == [(n,) for n in range(1, ROWS + 1)]
    numbers = {one.ordinal for one in of_snapshot}
    assert len(numbers) == ROWS
    assert max(numbers) > 100_000, "two had numbers for its rows"
    assert_stream_behind_snapshot(services, relay)


def assert_stream_behind_snapshot(services: ServiceAddresses, relay: Relay) -> None:
    """Check that no partition has a row of the snapshot after a row of the stream."""
    streamed = set()
    for one in read_table(services, WIDE, relay.name):
        if one.operation == "snapshot":
            assert one.partition not in streamed
        else:
            streamed.add(one.partition)


def test_the_rows_of_one_that_is_killed_are_read_again(
    relay: Relay, sandbox: Sandbox, services: ServiceAddresses, database: str, tmp_path: Path
) -> None:
    """The recording also holds all rows, including those that were sent and never acknowledged."""
    folder = tmp_path / "recording"
    execute(database, "create table unkeyed (line text)", "insert into unkeyed values ('one'), ('two')")
    with reading(relay, sandbox, "--until-caught-up", "--record", str(folder)) as status:
        first = status.snapshot_workers[0]
        arguments = Path(f"/proc/{first.pid}/cmdline").read_text()
        assert password(database) not in arguments
        assert services.broker not in arguments
        execute(database, "update wide set note = 'newer' where id % 10 = 0")
        kill(first.pid)
        again = relay.wait("another one", lambda now: first.pid not in {w.pid for w in now.snapshot_workers})
        assert again.resident_bytes > sum(worker.resident_bytes for worker in again.snapshot_workers)
    status = caught_up(relay)
    assert [
        f"a snapshot worker (process {first.pid}) was killed by signal 9 while it was reading "
        f"{', '.join(first.tables)}: those rows will be read again"
    ] == told(status)
    assert status.tables["public.wide"].snapshot_rows == ROWS
    assert password(database) not in relay.log()
    # The first run may include the updates while it waits for its last poll of tables and topics.
    updates = status.tables["public.wide"].updates
    assert updates + relay.run("--record", str(folder)).tables["public.wide"].updates == ROWS // 10
    assert_stream_behind_snapshot(services, relay)
    recover_and_check(folder)
    tables = [*TABLES, DemoTable("public", "unkeyed", ("line",))]
    with opened(folder) as recording:
        assert_tables_follow(recording, database, tables)
        assert_topics_agree(services, recording, [table.topic(relay.name) for table in tables])


def test_rows_without_a_key_that_a_lost_worker_had_sent_are_told(
    new_relay: NewRelay, sandbox: Sandbox, database: str
) -> None:
    made = f"insert into heap select repeat('x', 1900) from generate_series(1, {ROWS})"
    execute(database, "create table heap (note text)", made, "analyze")
    relay = new_relay(*TWO)
    with reading(relay, sandbox, "--until-caught-up") as status:
        kill(status.snapshot_workers[0].pid)
    status = caught_up(relay)
    (hint,) = [entry.hint for entry in status.errors if entry.kind == "worker"]
    assert "rows that it had sent of tables without a key are in their topics twice (public.heap)" in (
        hint or ""
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_none_outlives_its_relay(
    number: signal.Signals, relay: Relay, sandbox: Sandbox, services: ServiceAddresses, database: str
) -> None:
    with reading(relay, sandbox) as status:
        # A stopped worker does not notice anything on its own.
        kill(status.snapshot_workers[0].pid, signal.SIGSTOP)
        relay.signal(number)
        assert relay.wait_ended() == (130 if number == signal.SIGINT else -9)
        wait_for("its workers' ends", lambda: are_gone(status))
    execute(database, "delete from wide where id % 2 = 0")
    relay.run()
    assert_equal(services, database, TABLES, relay.name)


def test_what_others_wait_to_lock_the_relay_reads_itself(
    relay: Relay, services: ServiceAddresses, database: str
) -> None:
    """Such statements wait for the relay, and its workers would queue after them for ever."""
    relay.start("--until-caught-up")
    is_locked = """select count(*) from pg_locks where relation = 'wide'::regclass and granted
                      and mode = 'AccessShareLock' and pid <> pg_backend_pid()"""
    with session(database) as looker:
        wait_for("the relay's lock", lambda: looker.value(is_locked))

    def alter() -> None:
        with session(database) as other:
            other.run("alter table wide add column more int")

    thread = threading.Thread(target=alter)
    thread.start()
    status = caught_up(relay)
    thread.join()
    assert any("another session waits to lock public.wide" in sentence for sentence in told(status))
    assert status.tables["public.wide"].snapshot_rows == ROWS
    relay.run()
    records = read_table(services, WIDE, relay.name)
    assert len({one.ordinal for one in records}) == len(records) == ROWS
    with session(database) as source:
        source.run("update wide set note = 'last'")
    relay.run()
    assert_equal(services, database, TABLES, relay.name)


def test_what_others_have_locked_beside_a_table_is_waited_for(
    relay: Relay, sandbox: Sandbox, services: ServiceAddresses, database: str
) -> None:
    """For example the index of a TOAST table: the session that holds its lock waits for no worker."""
    # In the last range.
    large = f"update wide set note = repeat('x', 9000) where id = {ROWS - 10}"
    execute(database, "alter table wide alter note set storage external", large)
    toasted = "select reltoastrelid::regclass::text from pg_class where oid = 'wide'::regclass"
    waiting = """select clock_timestamp() - query_start > interval '2 s' from pg_stat_activity
                  where wait_event_type = 'Lock' and datname = current_database() and query like 'copy%'"""
    with session(database) as other, session(database) as looker:
        with reading(relay, sandbox, "--until-caught-up"):
            other.run("begin")
            other.run(f"reindex index {other.value(toasted)}_index")
        wait_for("a worker that waits for longer than for a table", lambda: looker.value(waiting))
        other.run("commit")
    status = caught_up(relay)
    assert told(status) == []
    assert_equal(services, database, TABLES, relay.name)


@pytest.mark.long
def test_one_that_stands_still_is_replaced(
    relay: Relay, sandbox: Sandbox, services: ServiceAddresses, database: str
) -> None:
    with reading(relay, sandbox, "--until-caught-up") as status:
        still = status.snapshot_workers[0].pid
        kill(still, signal.SIGSTOP)
    status = caught_up(relay)
    (sentence,) = told(status)
    assert (
        f"(process {still}) sent nothing for 10 s while it was reading public.wide: those rows will be read"
        in sentence
    )
    assert_equal(services, database, TABLES, relay.name)


@pytest.mark.long
def test_one_whose_session_ends_is_replaced(
    relay: Relay, sandbox: Sandbox, services: ServiceAddresses, database: str
) -> None:
    with reading(relay, sandbox, "--until-caught-up"), session(database) as source:
        copies = "query like 'copy%' and datname = current_database()"
        ends = f"select count(pg_terminate_backend(pid)) from pg_stat_activity where {copies}"
        # The workers send the rows that they have read; sooner or later one requests more.
        assert source.value(ends) == 2
    sentences = told(caught_up(relay))
    assert sentences
    assert all("lost its session with PostgreSQL while it was reading" in sentence for sentence in sentences)
    assert_equal(services, database, TABLES, relay.name)


def test_without_the_session_that_holds_all_locks_nothing_is_called_whole(
    relay: Relay, sandbox: Sandbox, services: ServiceAddresses, database: str
) -> None:
    """A table that is rewritten then looks empty to the workers' snapshot."""
    holds = """select pid from pg_locks where relation = 'odd'::regclass and granted
                  and mode = 'AccessShareLock' and pid <> pg_backend_pid()"""
    with reading(relay, sandbox, "--until-caught-up"), session(database) as other:
        other.run(f"select pg_terminate_backend(pid) from ({holds}) as holder")
        other.run("alter table odd alter id type bigint")
    assert relay.join() == 4
    assert "the session that locks the tables ended" in relay.last_words()
    relay.run()
    assert_equal(services, database, TABLES, relay.name)


@pytest.mark.long
def test_where_no_worker_can_begin_the_relay_reads_all(
    relay: Relay, services: ServiceAddresses, database: str
) -> None:
    relay.start("--until-caught-up")
    name = urlsplit(database).path[1:]
    with session(services.postgres) as elsewhere:
        relay.wait("its workers", lambda status: status.snapshot_workers)
        elsewhere.run(f"alter database {name} with allow_connections false")
        try:
            relay.wait("that they are told of", lambda status: len(told(status)) == 2)
        finally:
            elsewhere.run(f"alter database {name} with allow_connections true")
    status = caught_up(relay)
    one, other = sorted(told(status))
    assert "a snapshot worker could not start; the other worker will read instead: " in one
    assert "a snapshot worker could not start; the relay will read instead: " in other
    assert status.tables["public.wide"].snapshot_rows == ROWS
    assert_equal(services, database, TABLES, relay.name)


@pytest.mark.long
def test_rows_that_are_dropped_are_kept_once_and_texts_that_are_none_make_room(
    new_relay: NewRelay, sandbox: Sandbox, services: ServiceAddresses, database: str, tmp_path: Path
) -> None:
    """Also for ranges that are read again, and in a database whose encoding is SQL_ASCII."""
    name = f"{urlsplit(database).path[1:]}_ascii"[-60:]
    with session(services.postgres) as elsewhere:
        elsewhere.run(f"create database {name} template template0 encoding sql_ascii locale 'C'")
    ascii_only = urlsplit(database)._replace(path=f"/{name}").geturl()
    relay = Relay(services, ascii_only, tmp_path, new_name(), *TWO)
    try:
        execute(
            ascii_only,
            *MADE[:2],
            r"update wide set note = E'\xff' where id % 100 = 0",
            "update wide set note = repeat(md5(id::text), 200) where id % 2000 = 0",
        )
        options = ("--until-caught-up", "--on-error", "log", "-C", "message.max.bytes=4000")
        with reading(relay, sandbox, *options, "--record", str(tmp_path / "recording")) as status:
            kill(status.snapshot_workers[0].pid)
        status = caught_up(relay)
        assert any("rows will be read again" in sentence for sentence in told(status))
        letters = sorted(int(letter["after"]["id"]) for letter in relay.letters())
        assert letters == list(range(2000, ROWS + 1, 2000))
        table = status.tables["public.wide"]
        assert (table.errors, table.dead_letters, table.snapshot_rows) == (6, 6, ROWS)
        records = read_table(services, WIDE, relay.name)
        keys = {one.key for one in records}
        assert keys == {(n,) for n in range(1, ROWS + 1) if n % 2000}
        # Every hundredth row, and some of those that were sent twice.
        assert {
            one.key[0] % 100 for one in records if one.value and not isinstance(one.value["note"], str)
        } == {0}
        recover_and_check(tmp_path / "recording")
        with opened(tmp_path / "recording") as recording:
            assert_topics_agree(services, recording, [WIDE.topic(relay.name)])
    finally:
        relay.close()
        with closing(psycopg2.connect(services.postgres)) as connection:
            connection.autocommit = True
            drop_database(connection, name)


@pytest.mark.long
def test_a_recording_alone_has_every_row(database: str, new_relay: NewRelay, tmp_path: Path) -> None:
    execute(database, *MADE)
    relay = new_relay(*TWO, kind=RecordingOnly)
    folder = tmp_path / "recording"
    relay.run("-o", str(folder))
    recover_and_check(folder)
    with opened(folder) as recording:
        assert_tables_follow(recording, database, TABLES)
        assert sum(change.operation == "snapshot" for change in recording.changes()) == ROWS + 999 + 3


def test_the_places_of_all_messages_are_recorded(
    database: str, new_relay: NewRelay, sandbox: Sandbox, tmp_path: Path
) -> None:
    """Readers check only the first record of a later batch."""
    execute(database, *MADE)
    relay = new_relay(*TWO)
    folder = tmp_path / "recording"
    with reading(relay, sandbox, "--record", str(folder), "--until-caught-up"):
        pass
    caught_up(relay)
    recover_and_check(folder)
    with opened(folder) as recording:
        states = Counter(sent.state for change in recording.changes() for sent in change.messages)
    assert states == {"acknowledged": ROWS + 999 + 3}


@pytest.mark.long
def test_a_range_that_ends_each_worker_ends_the_snapshot(
    relay: Relay, sandbox: Sandbox, database: str
) -> None:
    with reading(relay, sandbox) as status:
        known = {worker.pid for worker in status.snapshot_workers}
        kill(status.snapshot_workers[0].pid)
        for _ in range(2):
            # It takes over the place, and the range, of the one before.
            now = relay.wait(
                "the next", lambda now: any(w.rows for w in now.snapshot_workers if w.pid not in known)
            )
            (pid,) = {worker.pid for worker in now.snapshot_workers} - known
            known.add(pid)
            kill(pid)
        assert relay.wait_ended() == 4
    assert "like 2 workers before it" in relay.last_words()
