"""Dropped rows get into their topic after all, in their place, by the statements that the screens show."""

import random
import threading
from collections.abc import Callable
from contextlib import closing

import psycopg2
import pytest

from bwtui.demo.shop import DemoTable
from bwtui.encode.names import topic_name
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.sink.dead_letter_file import DeadLetter, DeadLetterFile, DeadLetterRows
from bwtui.sink.requeue_sql import RequeuePlan, requeue_plan
from bwtui.state_folder import state_folder
from tests.database import Session
from tests.faults.administration import limit_topic, make_topic
from tests.faults.records import assert_equal, assert_keys_in_order, read_table
from tests.faults.relays import Relay, execute

ITEMS = DemoTable("public", "items", ("id", "part"))
LIMIT = 20_000
NewRelay = Callable[..., Relay]


@pytest.fixture
def relay(services: ServiceAddresses, database: str, new_relay: NewRelay) -> Relay:
    """A relay whose topic takes no large row; keys have quotes and backslashes."""
    execute(
        database,
        """create table items (
             number bigint generated always as identity, id bigint, part text, body text,
             primary key (id, part))""",
        """alter table items alter column body set storage external""",
    )
    relay = new_relay("-e", "log")
    make_topic(services, topic_name(relay.name, "public", "items"), LIMIT)
    relay.run()
    return relay


def large() -> str:
    return f"'{random.randbytes(2 * LIMIT).hex()}'"


def planned(relay: Relay) -> RequeuePlan:
    """What the screens would show for all letters of a relay."""
    file = DeadLetterFile(state_folder(relay.name) / "dead-letters.jsonl", lambda table: ("id", "part"))
    file.read()
    return requeue_plan((letter, file.rows(letter)) for letter in file.letters)


def topic_of(relay: Relay) -> str:
    known = relay.wait("the table", lambda status: "public.items" in status.tables)
    return known.tables["public.items"].topic


def test_rows_are_sent_as_they_are_by_then_and_in_their_place(
    services: ServiceAddresses, database: str, relay: Relay
) -> None:
    relay.start()
    relay.wait_streaming()
    execute(
        database, *(f"""insert into items (id, part, body) values ({n}, 'a''\\b', 'x')""" for n in range(20))
    )
    execute(database, *(f"""update items set body = {large()} where id = {n}""" for n in range(10)))
    execute(
        database,
        """delete from items where id = 9""",
        f"""insert into items (id, part, body) values (30, 'c', {large()})""",
    )
    relay.wait_caught_up()
    made = planned(relay)
    assert (made.rows, made.refused) == (11, {})
    assert len(made.statements) == 1
    limit_topic(services, topic_of(relay), 10_000_000)
    stop = threading.Event()
    writer = threading.Thread(target=_write, args=(database, stop))
    writer.start()
    try:
        with closing(Session(database)) as session:
            session.run(made.statements[0])
    finally:
        stop.set()
        writer.join()
    relay.wait_caught_up()
    relay.stop()
    assert_equal(services, database, [ITEMS], relay.name)
    assert_keys_in_order(read_table(services, ITEMS, relay.name))


def _write(database: str, stop: threading.Event) -> None:
    """Change the same rows meanwhile, small."""
    with closing(Session(database)) as session:
        number = 0
        while not stop.is_set() or number < 50:
            number += 1
            session.run("""update items set body = %s where id = %s""", f"newer {number}", number % 3)


def statement_for(table: str) -> str:
    letter = DeadLetter(0, 0, 0.0, f"public.{table}", table, "insert", "0/1", 1, 1, "", "", (("id", "1"),))
    [statement] = requeue_plan([(letter, DeadLetterRows(None, {"id": "1"}))]).statements
    return statement


def test_a_generated_column_is_not_set(database: str) -> None:
    execute(
        database,
        """create table made (g int generated always as (1) stored, n int generated always as identity,
             id bigint primary key, v text)""",
        """insert into made (id, v) values (1, 'one'), (2, 'two')""",
    )
    written = """select array_agg(id order by id) from made where xmin = pg_current_xact_id()::xid"""
    with closing(Session(database)) as session:
        session.run("""begin""")
        session.run(statement_for("made"))
        assert session.value(written) == [1]


def test_the_children_of_a_table_are_left_alone_and_partitions_are_not(database: str) -> None:
    execute(
        database,
        """create table parent (id bigint primary key, v text)""",
        """create table child () inherits (parent)""",
        """insert into parent values (1, 'one')""",
        """insert into child values (1, 'another table')""",
        """create table root (id bigint primary key, v text) partition by range (id)""",
        """create table leaf partition of root for values from (0) to (9)""",
        """insert into root values (1, 'one')""",
    )
    written = """select array_agg(tableoid::regclass::text) from {} where xmin = pg_current_xact_id()::xid"""
    with closing(Session(database)) as session:
        session.run("""begin""")
        session.run(statement_for("parent"))
        session.run(statement_for("root"))
        assert session.value(written.format("parent")) == ["parent"]
        assert session.value(written.format("root")) == ["leaf"]


def test_a_table_without_a_column_to_set(database: str) -> None:
    execute(database, """create table numbers (id bigint generated always as identity primary key)""")
    with (
        closing(Session(database)) as session,
        pytest.raises(psycopg2.Error, match=r"UPDATE may set\nHINT:  .*dead-letters retry"),
    ):
        session.run(statement_for("numbers"))
