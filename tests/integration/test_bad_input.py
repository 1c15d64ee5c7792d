"""Bad input: one plain sentence with a hint, the documented exit code, and nothing left behind."""

import atexit
import secrets
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bwtui.errors import RefusedError
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.source.preflight import enough_wal
from bwtui.source.raw_session import connect_raw, execute_raw
from bwtui.source.raw_stream import ReplicationStream
from tests.attempts import Attempts, left
from tests.database import Session, session
from tests.raw_topic import raw_messages
from tests.second_postgres import SecondPostgres

PASSWORD = "topsecret-4711"


@pytest.fixture
def source(database: str) -> Iterator[Session]:
    """A session on a database with one table of three rows."""
    with closing(Session(database)) as opened:
        opened.run("create table orders (id int primary key, note text, secret text)")
        opened.run("insert into orders select i, 'note', 'secret' from generate_series(1, 3) i")
        yield opened


@pytest.fixture
def role(source: Session) -> Iterator[str]:
    """A role that may log in and replicate, and no more."""
    name = f"role_{secrets.token_hex(4)}"
    source.run(f"create role {name} login replication password '{PASSWORD}'")
    yield name
    source.run(f"drop owned by {name}")
    source.run(f"drop role {name}")


def as_role(dsn: str, role: str, password: str = PASSWORD) -> str:
    """Return the connection URI for a different role."""
    parts = urlsplit(dsn)
    return parts._replace(netloc=f"{role}:{password}@{parts.hostname}:{parts.port}").geturl()


def free_port() -> int:
    """Return a port without a listener.

    It stays bound: a server could take it, or an outgoing connection, which may even connect to itself.
    """
    _ours.append(socket.socket())
    _ours[-1].bind(("127.0.0.1", 0))
    return int(_ours[-1].getsockname()[1])


_ours: list[socket.socket] = []


@atexit.register
def _give_back() -> None:
    for one in _ours:
        one.close()


# -- connections ---------------------------------------------------------------------------------------------


def test_server_unreachable(attempts: Attempts) -> None:
    dsn = f"postgresql://me:{PASSWORD}@127.0.0.1:{free_port()}/shop"
    error, hint = attempts.fail(dsn, 4, server="")
    assert "can't connect to PostgreSQL" in error
    assert "-d/--postgres" in hint


def test_host_unknown(attempts: Attempts) -> None:
    error, _ = attempts.fail(f"postgresql://me:{PASSWORD}@no-such-host.invalid/shop", 4, server="")
    assert "no-such-host.invalid" in error


def test_wrong_password(attempts: Attempts, database: str, role: str) -> None:
    error, hint = attempts.fail(as_role(database, role, PASSWORD + "x"), 4, server=database)
    assert "password authentication failed" in error
    assert "PGPASSWORD" in hint


def test_database_that_does_not_exist(attempts: Attempts, database: str) -> None:
    dsn = urlsplit(database)._replace(path="/no_such_database").geturl()
    error, hint = attempts.fail(dsn, 4, server=database)
    assert "no_such_database" in error
    assert "database" in hint


def test_no_connection_left_for_the_role(
    attempts: Attempts, database: str, source: Session, role: str
) -> None:
    source.run(f"alter role {role} connection limit 0")
    error, hint = attempts.fail(as_role(database, role), 4, server=database)
    assert "too many connections" in error
    assert "raise the limit" in hint


def test_who_may_yet_answer_is_waited_for(
    services: ServiceAddresses, database: str, source: Session, tmp_path: Path
) -> None:
    """Unavailable or wrong servers, and a slot in use, all at the same time because each takes seconds."""
    postgres, broker = urlsplit(services.postgres).port, services.broker.rpartition(":")[2]
    folders = [tmp_path / name for name in ("away", "other", "stranger", "active")]
    for folder in folders:
        folder.mkdir()
    away, other, stranger, active = (Attempts(services, folder) for folder in folders)
    no_postgres = f"postgresql://me:{PASSWORD}@127.0.0.1:{broker}/shop"
    source.run(f"create publication bwtui_{active.name} for all tables")
    source.run("select pg_create_logical_replication_slot(%s, 'pgoutput')", active.name)
    connection = connect_raw(database)
    pid = connection.backend_pid
    before = left(database)
    runs = (
        lambda: away.run(database, "-b", f"127.0.0.1:{free_port()}"),
        lambda: other.run(database, "-b", f"127.0.0.1:{postgres}"),
        lambda: stranger.run(no_postgres),
        lambda: active.run(database),
    )
    stream = ReplicationStream(connection, active.name, [f"bwtui_{active.name}"])
    try:
        with ThreadPoolExecutor(len(runs)) as pool:
            is_away, is_other, is_stranger, is_active = pool.map(lambda run: run(), runs)
    finally:
        stream.finish()
    assert left(database) == before

    error, hint = away.refused(is_away, 4, database)
    assert "can't reach Kafka at 127.0.0.1:" in error
    assert "-b/--broker" in hint
    error, _ = other.refused(is_other, 4, database)
    assert "can't reach Kafka" in error
    stranger.refused(is_stranger, 4, no_postgres)
    error, hint = active.refused(is_active, 2, database)
    assert f"slot {active.name} is in use by server process" in error
    assert str(pid) in error
    assert "-s/--slot" in hint


def test_registry_unreachable(attempts: Attempts, database: str, source: Session) -> None:
    error, hint = attempts.fail(database, 4, "-r", f"http://me:{PASSWORD}@127.0.0.1:{free_port()}")
    assert "can't reach the schema registry at http://127.0.0.1:" in error
    assert "-r/--schema-registry" in hint
    assert PASSWORD not in error


def test_json_needs_no_registry(attempts: Attempts, database: str, source: Session) -> None:
    source.run("create table items (id int primary key); insert into items values (1)")
    attempts.succeed(database, "-f", "json", "-r", f"http://127.0.0.1:{free_port()}")
    assert raw_messages(attempts.services, f"{attempts.name}.items") == [(b'{"id": 1}', b'{"id": 1}')]


def test_registry_at_another_path(
    attempts: Attempts, database: str, source: Session, services: ServiceAddresses
) -> None:
    error, hint = attempts.fail(database, 4, "-r", services.schema_registry + "/nothing/here")
    assert "schema registry" in error
    assert "-r/--schema-registry" in hint


# -- permissions of the role ---------------------------------------------------------------------------------


def test_role_without_replication(attempts: Attempts, database: str, source: Session, role: str) -> None:
    source.run(f"alter role {role} noreplication")
    error, hint = attempts.fail(as_role(database, role), 2, server=database)
    assert f"role {role} lacks the REPLICATION privilege" in error
    assert f'ALTER ROLE "{role}" REPLICATION;' in hint


def test_role_that_may_not_read(attempts: Attempts, database: str, source: Session, role: str) -> None:
    source.run(f"create publication bwtui_{attempts.name} for all tables")
    error, hint = attempts.fail(as_role(database, role), 2, server=database)
    assert f"role {role} can't read public.orders" in error
    assert f'GRANT SELECT ON "public"."orders" TO "{role}";' in hint


def test_role_that_may_not_publish(attempts: Attempts, database: str, source: Session, role: str) -> None:
    source.run(f"grant select on orders to {role}")
    error, hint = attempts.fail(as_role(database, role), 2, server=database)
    assert f"role {role} can't create publication bwtui_{attempts.name}" in error
    assert f'create publication "bwtui_{attempts.name}" for table only "public"."orders"' in hint


def test_columns_that_may_not_be_read(attempts: Attempts, database: str, source: Session, role: str) -> None:
    source.run(f"create publication bwtui_{attempts.name} for all tables")
    source.run(f"grant select (id, note) on orders to {role}")
    error, hint = attempts.fail(as_role(database, role), 2, server=database)
    assert "public.orders" in error
    assert f'GRANT SELECT ON "public"."orders" TO "{role}";' in hint


def test_schema_that_may_not_be_used(attempts: Attempts, database: str, source: Session, role: str) -> None:
    source.run("create schema hidden; create table hidden.t (id int primary key)")
    source.run(f"create publication bwtui_{attempts.name} for table hidden.t")
    source.run(f"grant select on hidden.t to {role}")
    error, hint = attempts.fail(as_role(database, role), 2, server=database)
    assert f"role {role} can't read schema hidden" in error
    assert f'GRANT USAGE ON SCHEMA "hidden" TO "{role}";' in hint


def test_row_security_hides_nothing(attempts: Attempts, database: str, source: Session, role: str) -> None:
    source.run("alter table orders enable row level security")
    source.run("create policy only_some on orders using (id < 3)")
    source.run(f"create publication bwtui_{attempts.name} for all tables")
    source.run(f"grant select on orders to {role}")
    error, hint = attempts.fail(as_role(database, role), 2, server=database)
    assert "public.orders" in error
    assert f'ALTER ROLE "{role}" BYPASSRLS;' in hint
    source.run(f"alter role {role} bypassrls")
    assert attempts.succeed(as_role(database, role)).status["tables"]["public.orders"]["snapshot_rows"] == 3


# -- tables and settings -------------------------------------------------------------------------------------


def test_unkeyed_table(attempts: Attempts, database: str, source: Session) -> None:
    source.run("create table unkeyed (i int)")
    error, hint = attempts.fail(database, 2)
    assert "public.unkeyed" in error
    assert "allow with -u" in hint
    attempts.succeed(database, "-u")


def test_unkeyed_table_of_a_publication_without_its_key(
    attempts: Attempts, database: str, source: Session
) -> None:
    source.run("alter table orders replica identity nothing")
    error, _ = attempts.fail(database, 2)
    assert "public.orders" in error


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--table", "nothing"], "no table matches"),
        (["--table", "(unclosed"], "--table"),
        (["--exclude-table", "*"], "--exclude-table"),
        (["--endpos", "yesterday"], "--endpos"),
        (["-s", "Not-A-Slot"], "slot"),
        (["-C", "enable.idempotence=false"], "enable.idempotence=false is not allowed"),
        (["-C", "acks=1"], "acks=1 is not allowed"),
        (["-C", "no.such.property=1"], "no.such.property"),
        (["-C", "linger.ms=soon"], 'property "linger.ms"'),
        (["-C", "without-a-value"], "KEY=VALUE"),
        (["-T", "no.such.property=1"], "no.such.property"),
        (["-e", "ignore"], "ignore"),
        (["-f", "xml"], "xml"),
        (["-r", "ftp://registry"], "ftp"),
        (["-d", "host=127.0.0.1 port"], "connection string"),
        (["-d", "host=127.0.0.1 no_such_keyword=1"], "connection string"),
        (["-d", f"postgresql://me:{PASSWORD}@[half/shop"], "connection string"),
        (["-d", f"host=127.0.0.1 password={PASSWORD} port"], "connection string"),
        (["-d", "host=127.0.0.1 port=many"], "port"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
@pytest.mark.variants(6)
def test_settings(args: list[str], said: str, attempts: Attempts, database: str, source: Session) -> None:
    error, hint = attempts.fail(database, 2, *args)
    assert said in error
    assert hint
    assert PASSWORD not in error + hint


@pytest.mark.parametrize("option", ["--dead-letter-topic", "--truncate-topic"])
def test_a_topic_of_a_table(option: str, attempts: Attempts, database: str, source: Session) -> None:
    topic = f"{attempts.name}.orders"
    error, hint = attempts.fail(database, 2, option, topic)
    assert error == f"{option} {topic} is the topic of table public.orders"
    assert hint == "choose a topic that no table uses"


# -- slots ---------------------------------------------------------------------------------------------------


def test_slot_of_another_plugin(attempts: Attempts, database: str, source: Session) -> None:
    source.run("select pg_create_logical_replication_slot(%s, 'test_decoding')", attempts.name)
    error, hint = attempts.fail(database, 2)
    assert f"slot {attempts.name} uses plugin test_decoding" in error
    assert "-s/--slot" in hint


def test_physical_slot(attempts: Attempts, database: str, source: Session) -> None:
    source.run("select pg_create_physical_replication_slot(%s)", attempts.name)
    try:
        error, _ = attempts.fail(database, 2)
        assert "physical replication" in error
    finally:
        source.run("select pg_drop_replication_slot(%s)", attempts.name)


def test_slot_of_another_database(
    attempts: Attempts, database: str, source: Session, services: ServiceAddresses
) -> None:
    with session(services.postgres) as elsewhere:
        elsewhere.run("select pg_create_logical_replication_slot(%s, 'pgoutput')", attempts.name)
        try:
            error, _ = attempts.fail(database, 2)
        finally:
            elsewhere.run("select pg_drop_replication_slot(%s)", attempts.name)
    assert f"slot {attempts.name} belongs to database postgres" in error


def test_slot_without_its_publication(attempts: Attempts, database: str, source: Session) -> None:
    source.run("select pg_create_logical_replication_slot(%s, 'pgoutput')", attempts.name)
    error, hint = attempts.fail(database, 2)
    assert f"publication bwtui_{attempts.name} does not" in error
    assert "--heal" in hint
    assert f"bwtui slots drop {attempts.name}" in hint


def test_slot_moved_by_someone_else(attempts: Attempts, database: str, source: Session) -> None:
    """A gap is refused permanently, not hidden."""
    attempts.succeed(database)
    source.run("insert into orders values (4, 'in the gap')")
    source.run("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", attempts.name)
    for _ in range(2):
        error, hint = attempts.fail(database, 5)
        assert f"another consumer moved slot {attempts.name} to" in error
        assert f"bwtui slots drop {attempts.name}" in hint


def test_slot_dropped_by_someone_else(attempts: Attempts, database: str, source: Session) -> None:
    attempts.succeed(database)
    source.run("select pg_drop_replication_slot(%s)", attempts.name)
    error, hint = attempts.fail(database, 5)
    assert f"slot {attempts.name} is missing" in error
    assert f"bwtui slots drop {attempts.name}" in hint


def test_slot_dropped_and_made_again(attempts: Attempts, database: str, source: Session) -> None:
    """Debezium lost rows here silently (DBZ-5739)."""
    attempts.succeed(database)
    source.run("select pg_drop_replication_slot(%s)", attempts.name)
    source.run("insert into orders values (4, 'in the gap')")
    source.run("select pg_create_logical_replication_slot(%s, 'pgoutput')", attempts.name)
    error, _ = attempts.fail(database, 5)
    assert f"another consumer moved slot {attempts.name} to" in error


def test_the_way_out_of_a_gap_is_the_one_in_the_hint(
    attempts: Attempts, database: str, source: Session
) -> None:
    attempts.succeed(database)
    source.run("insert into orders values (4, 'in the gap')")
    source.run("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", attempts.name)
    attempts.fail(database, 5)
    dropped = attempts.command("slots", "drop", attempts.name, "-d", database, "--yes")
    assert dropped.code == 0, dropped.stderr
    status = attempts.succeed(database).status
    assert status["tables"]["public.orders"]["snapshot_rows"] == 4


# -- a server with other settings ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def second() -> Iterator[SecondPostgres]:
    """A second PostgreSQL, stopped; the test starts it with the settings that it needs."""
    server = SecondPostgres()
    yield server
    server.remove()


@pytest.fixture
def other_settings(second: SecondPostgres) -> Iterator[SecondPostgres]:
    """The second PostgreSQL, stopped again after the test."""
    yield second
    second.stop()


def test_wal_level(attempts: Attempts, other_settings: SecondPostgres) -> None:
    other_settings.start(wal_level="replica")
    error, hint = attempts.fail(other_settings.dsn, 2)
    assert "wal_level is replica, not logical" in error
    assert "ALTER SYSTEM SET wal_level = logical" in hint


def test_too_few_slots(attempts: Attempts, other_settings: SecondPostgres) -> None:
    """The snapshot needs a separate slot in addition to the permanent one; -x does not."""
    other_settings.start(wal_level="logical", max_replication_slots="1")
    error, hint = attempts.fail(other_settings.dsn, 2)
    assert "0 of 1 replication slots are in use, and the relay needs 2" in error
    assert "max_replication_slots" in hint
    attempts.succeed(other_settings.dsn, "-x")
    with session(other_settings.dsn) as opened:
        opened.run("select pg_drop_replication_slot(%s)", attempts.name)


def test_no_wal_sender_left(attempts: Attempts, other_settings: SecondPostgres) -> None:
    other_settings.start(wal_level="logical", max_wal_senders="0")
    error, hint = attempts.fail(other_settings.dsn, 2)
    assert "max_wal_senders" in error + hint


def test_slot_lost(attempts: Attempts, other_settings: SecondPostgres) -> None:
    limits = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    other_settings.start(wal_level="logical", **limits)
    with session(other_settings.dsn) as opened:
        opened.run("create table lost (id int primary key, filler text)")
        attempts.succeed(other_settings.dsn)
        sql = "select wal_status from pg_replication_slots where slot_name = %s"
        while opened.value(sql, attempts.name) != "lost":
            opened.run("insert into lost select coalesce(max(id), 0) + 1 from lost")
            opened.run("select pg_switch_wal()")
            opened.run("checkpoint")
        error, hint = attempts.fail(other_settings.dsn, 5)
        opened.run("select pg_drop_replication_slot(%s)", attempts.name)
        opened.run("drop table lost")
    assert f"slot {attempts.name} lost the WAL that it needs" in error
    assert f"bwtui slots drop {attempts.name}" in hint


def test_a_slot_with_two_phase(attempts: Attempts, other_settings: SecondPostgres) -> None:
    """The slot sends PREPARE, which the relay can't read.

    Once altered, it also sends what was prepared before.
    """
    other_settings.start(wal_level="logical", max_prepared_transactions="2")
    dsn = other_settings.dsn
    with session(dsn) as opened:
        opened.run("create table two (id int primary key)")
        attempts.succeed(dsn)
        opened.run("select pg_drop_replication_slot(%s)", attempts.name)
        opened.run("select pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", attempts.name)
        shutil.rmtree(attempts.state)
        for statement in ("begin", "insert into two values (1)", "prepare transaction 'both'"):
            opened.run(statement)
        ends = ["-b", attempts.services.broker, "-r", attempts.services.schema_registry]
        for ended in (
            attempts.run(dsn),
            attempts.command("doctor", "-d", dsn, "-s", attempts.name, *ends),
        ):
            assert ended.code == 2, ended.stderr
            assert "has two_phase enabled" in ended.stdout + ended.stderr
        if opened.connection.server_version >= 180_000:
            raw = connect_raw(dsn)
            execute_raw(raw, f"ALTER_REPLICATION_SLOT {attempts.name} (TWO_PHASE false)")
            raw.finish()
            opened.run("commit prepared 'both'")
            assert attempts.run(dsn).status["tables"]["public.two"]["inserts"] == 1
        else:
            opened.run("rollback prepared 'both'")
        opened.run("select pg_drop_replication_slot(%s)", attempts.name)
        opened.run("drop table two")


@pytest.mark.parametrize(
    ("level", "effective", "told"),
    [
        ("logical", None, "logical"),
        ("logical", "logical", "logical"),
        ("replica", "logical", "logical, although wal_level is replica"),
        ("replica", "replica", "replica, and logical once the slot exists"),
    ],
)
def test_the_level_that_is_effective_is_enough(level: str, effective: str | None, told: str) -> None:
    """PostgreSQL 19 has effective_wal_level; for earlier servers it is None."""
    assert enough_wal(level, effective, in_recovery=False) == told


@pytest.mark.parametrize(
    ("level", "effective", "in_recovery", "told"),
    [
        ("replica", None, False, "wal_level is replica, not logical"),
        ("minimal", "minimal", False, "wal_level is minimal, not logical"),
        ("replica", "replica", True, "the primary does not write WAL for logical decoding"),
    ],
)
def test_a_level_that_is_too_low(level: str, effective: str | None, in_recovery: bool, told: str) -> None:
    with pytest.raises(RefusedError, match=told) as raised:
        enough_wal(level, effective, in_recovery=in_recovery)
    assert "ALTER SYSTEM SET wal_level = logical" in str(raised.value.hint)
