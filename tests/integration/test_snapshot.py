"""Invariant 2: the permanent slot exists if and only if the snapshot finished, with no gap between them."""

import signal
import threading
from contextlib import closing
from typing import Any

import psycopg2
import pytest

from bwtui.demo.shop import DemoTable
from tests.attempts import Attempts
from tests.database import Session, session
from tests.decoded_topic import decoded_avro, latest
from tests.oracle import IndependentReader, compare
from tests.raw_topic import raw_messages
from tests.waiting import eventually

LARGE = 300_000


def assert_equal(attempts: Attempts, database: str, *tables: DemoTable) -> None:
    """Check that an independent consumer finds the tables in their topics."""
    services = attempts.services
    with (
        closing(IndependentReader(services.broker, services.schema_registry)) as reader,
        closing(psycopg2.connect(database)) as connection,
    ):
        found = compare(connection, reader, tables, attempts.name)
    assert found.outcome == "equal", found.sentence


def table_status(status: dict[str, Any], table: str) -> tuple[int, int]:
    """Return how many rows of ``table`` a run took from the snapshot, and how many from the stream."""
    found = status["tables"][table]
    return found["snapshot_rows"], found["inserts"]


# -- cut off -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [
        *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGTERM, signal.SIGINT)),
        signal.SIGKILL,
    ],
)
def test_cut_off(number: signal.Signals, attempts: Attempts, database: str, source: Session) -> None:
    """No slot is left, and the next run takes a whole snapshot."""
    source.run("create table large (id int primary key, note text)")
    source.run("insert into large select i, 'note ' || i from generate_series(1, %s) i", LARGE)
    with attempts.start(database) as process:
        rows = """select sum(tuples_processed) > 5000 from pg_stat_progress_copy
                   where datname = current_database()"""
        eventually("the snapshot is under way", lambda: source.value(rows))
        assert len(source.slots()) == 1, "only the temporary slot"
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == {signal.SIGTERM: 0, signal.SIGINT: 130, signal.SIGKILL: -9}[number]
    eventually("no slot is left", lambda: not source.slots())
    if number != signal.SIGKILL:
        assert not source.publications()
    source.run("delete from large where id > 1000")
    assert table_status(attempts.succeed(database).status, "public.large") == (1000, 0)
    assert_equal(attempts, database, DemoTable("public", "large", ("id",)))


def test_no_slot_after_a_snapshot_that_could_not_end(
    attempts: Attempts, database: str, source: Session
) -> None:
    """A row that can't be relayed ends the snapshot; the next run reports no missing slot."""
    source.run("create table rows (id int primary key, note text)")
    source.run("insert into rows select i, repeat('x', i * 500) from generate_series(1, 5) i")
    for _ in range(2):
        error, _ = attempts.fail(database, 2, "-C", "message.max.bytes=2000")
        assert "public.rows" in error
        assert "xxx" not in error
    # The topic keeps its limit, so the test uses a new one.
    last = attempts.succeed(database, "-p", f"{attempts.name}_2").status
    assert table_status(last, "public.rows") == (5, 0)


# -- whole ---------------------------------------------------------------------------------------------------


def test_nothing_between_snapshot_and_stream(attempts: Attempts, database: str, source: Session) -> None:
    """A writer runs all the time; every row is there, and none that is written once is there twice."""
    source.run("create table balance (id int primary key, n bigint)")
    source.run("create table log (id bigserial primary key, n bigint)")
    source.run("insert into balance select i, 0 from generate_series(1, 100) i")
    source.run("insert into log (n) select i from generate_series(1, 20000) i")
    stop = threading.Event()

    def write() -> None:
        with session(database) as writer:
            while not stop.is_set():
                writer.run("with u as (update balance set n = n + 1 where id % 7 = 0 returning n)"
                           " insert into log (n) select max(n) from u")  # fmt: skip

    thread = threading.Thread(target=write)
    thread.start()
    try:
        first = attempts.succeed(database).status
    finally:
        stop.set()
        thread.join()
    attempts.succeed(database)
    log, balance = DemoTable("public", "log", ("id",)), DemoTable("public", "balance", ("id",))
    assert_equal(attempts, database, log, balance)
    snapshot, inserts = table_status(first, "public.log")
    assert snapshot >= 20000
    keys = [key for key, _ in raw_messages(attempts.services, log.topic(attempts.name))]
    assert len(keys) == len(set(keys)) == source.value("select count(*) from log")
    assert inserts <= len(keys) - snapshot


def test_a_resume_takes_no_snapshot(attempts: Attempts, database: str, source: Session) -> None:
    source.run("create table t (id int primary key)")
    source.run("insert into t values (1), (2)")
    assert table_status(attempts.succeed(database).status, "public.t") == (2, 0)
    source.run("insert into t values (3)")
    assert table_status(attempts.succeed(database).status, "public.t") == (0, 1)
    assert len(raw_messages(attempts.services, f"{attempts.name}.t")) == 3


def test_skip_snapshot(attempts: Attempts, database: str, source: Session) -> None:
    source.run("create table t (id int primary key)")
    source.run("insert into t values (1), (2)")
    attempts.succeed(database, "-x")
    assert source.slots() == [attempts.name]
    source.run("insert into t values (3)")
    attempts.succeed(database)
    assert len(raw_messages(attempts.services, f"{attempts.name}.t")) == 1


# -- what is published ---------------------------------------------------------------------------------------


def test_a_partitioned_table_comes_through_its_root(
    attempts: Attempts, database: str, source: Session
) -> None:
    source.run("create table t (id int primary key, note text) partition by range (id)")
    source.run("create table t_low partition of t for values from (0) to (10)")
    source.run("create table t_high partition of t for values from (10) to (100) partition by range (id)")
    source.run("create table t_top partition of t_high for values from (10) to (100)")
    source.run("insert into t values (1, 'low'), (20, 'high')")
    attempts.succeed(database)
    source.run("insert into t values (2, 'low'), (30, 'high')")
    source.run("update t set id = 50 where id = 1")
    status = attempts.succeed(database).status
    assert list(status["tables"]) == ["public.t"]
    assert_equal(attempts, database, DemoTable("public", "t", ("id",)))


def test_a_publication_of_partitions_comes_partition_by_partition(
    attempts: Attempts, database: str, source: Session
) -> None:
    """A publication created by hand may lack publish_via_partition_root; then rows belong to the leaves."""
    source.run("create table t (id int primary key, note text) partition by range (id)")
    source.run("create table t_low partition of t for values from (0) to (10)")
    source.run("create table t_high partition of t for values from (10) to (100)")
    source.run("insert into t values (1, 'low'), (20, 'high')")
    source.run(f"create publication bwtui_{attempts.name} for table t")
    attempts.succeed(database)
    source.run("insert into t values (2, 'low'), (30, 'high')")
    attempts.succeed(database)
    assert_equal(
        attempts, database, DemoTable("public", "t_low", ("id",)), DemoTable("public", "t_high", ("id",))
    )


@pytest.mark.since(15, "publications have column lists and row filters")
def test_column_list_and_row_filter(attempts: Attempts, database: str, source: Session) -> None:
    """They apply to the snapshot as to the stream: the same columns, the same rows."""
    source.run('create table t (id int primary key, shown text, hidden text, "Ödd ""name""" text)')
    row = "insert into t values (%s, 'shown', 'hidden', 'odd')"
    for number in (1, 11):
        source.run(row, number)
    source.run(
        f'create publication bwtui_{attempts.name} for table t (id, shown, "Ödd ""name""") where (id > 10)'
    )
    first = attempts.succeed(database).status
    for number in (2, 12):
        source.run(row, number)
    second = attempts.succeed(database).status
    assert table_status(first, "public.t") == (1, 0)
    assert table_status(second, "public.t") == (0, 1)
    messages = raw_messages(attempts.services, f"{attempts.name}.t")
    assert len(messages) == 2
    assert len({value[:5] for _, value in messages if value}) == 1, "one schema"
    assert not any(b"hidden" in (value or b"") for _, value in messages)


@pytest.mark.since(15, "publications have column lists and row filters")
@pytest.mark.parametrize(
    ("second", "expected"), [("where (id > 90)", {1, 2, 91, 92}), ("", {1, 2, 50, 51, 91, 92})]
)
def test_the_row_filters_of_two_publications(
    attempts: Attempts, database: str, source: Session, second: str, expected: set[int]
) -> None:
    """A row is published if any of them publishes it, in the snapshot as in the stream."""
    source.run("create table t (id int primary key)")
    source.run(f"create publication bwtui_{attempts.name} for table t where (id < 10)")
    source.run(f"create publication bwtui_{attempts.name}_unkeyed for table t {second}")
    source.run("insert into t values (1), (50), (91)")
    attempts.succeed(database)
    source.run("insert into t values (2), (51), (92)")
    attempts.succeed(database)
    found = latest(decoded_avro(attempts.services, f"{attempts.name}.t"))
    assert {key for (key,) in found} == expected


def test_generated_columns_are_left_out_of_both(attempts: Attempts, database: str, source: Session) -> None:
    source.run("create table t (id int primary key, double int generated always as (id * 2) stored)")
    source.run("insert into t values (1)")
    attempts.succeed(database)
    source.run("insert into t values (2)")
    attempts.succeed(database)
    messages = raw_messages(attempts.services, f"{attempts.name}.t")
    assert len({value[:5] for _, value in messages if value}) == 1, "one schema"


def test_inherited_rows_come_once(attempts: Attempts, database: str, source: Session) -> None:
    source.run("create table parent (id int primary key)")
    source.run("create table child (primary key (id)) inherits (parent)")
    source.run("insert into parent values (1)")
    source.run("insert into child values (2)")
    status = attempts.succeed(database).status
    assert table_status(status, "public.parent") == (1, 0)
    assert table_status(status, "public.child") == (1, 0)


VALUES = (
    "'-Infinity'::float8",
    "0.1::float4",
    "'NaN'::numeric",
    "123456789.000100::numeric(20,6)",
    "null::text",
    "E'tab\\t new\\n line \\\\N \\\\ back'",
    "''",
    "'äöü€'",
    "'\\x00ff5c'::bytea",
    "'infinity'::timestamptz",
    "'2026-11-21 08:00:00.123456+02'::timestamptz",
    "'0044-03-15 BC'::date",
    "'24:00'::time",
    "'1 year 2 mons -3 days 04:05:06.7'::interval",
    '\'{"b": 1, "a": [null]}\'::json',
    "'{\"b\": 1}'::jsonb",
    "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid",
    "true",
    "array['x,y', null, '{\"']::text[]",
    "'12.34'::money",
    "int4range(1, 5)",
    "'10.0.0.1'::inet",
    "B'101'::bit(3)",
    "row(1, 'x')::pair",
)


def test_a_row_has_the_same_bytes_in_snapshot_and_stream(
    attempts: Attempts, database: str, source: Session
) -> None:
    """Also under settings of the database that change the text form of values."""
    for setting in ("datestyle to 'SQL, DMY'", "timezone to 'Asia/Tokyo'", "bytea_output to 'escape'",
                    "intervalstyle to 'sql_standard'", "extra_float_digits to 0"):  # fmt: skip
        source.run(f"alter role current_user in database {database.rpartition('/')[2]} set {setting}")
    source.run("create type pair as (a int, b text)")
    values = ", ".join(f"{value} as c{number}" for number, value in enumerate(VALUES))
    source.run(f"create table t as select 1 as id, {values}")
    source.run("alter table t add primary key (id)")
    source.run("truncate t")
    attempts.succeed(database, "-x")
    source.run(f"insert into t select 1 as id, {values}")
    attempts.succeed(database)
    attempts.succeed(database, "-s", f"{attempts.name}_2")
    messages = raw_messages(attempts.services, f"{attempts.name}.t")
    assert len(messages) == 2
    assert messages[0] == messages[1]
