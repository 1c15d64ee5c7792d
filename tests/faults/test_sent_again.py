"""A retry brings dropped rows into their topic after all, in order, while the same rows are written."""

import random
import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from bwtui.demo.shop import DemoTable
from bwtui.encode.names import topic_name
from bwtui.model.status import Status
from bwtui.relay.dead_letters.retry import RetryPlan, plan, submit
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.sink.dead_letters import DeadLetterFile
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
    """A relay whose topic rejects large rows; the keys have quotes and backslashes."""
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


def planned(relay: Relay) -> RetryPlan:
    """Return what the screens request for all dead letters of a relay."""
    file = DeadLetterFile(state_folder(relay.name) / "dead-letters.jsonl", lambda table: ("id", "part"))
    file.read()
    return plan(file.letters)


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
    [one] = made.requests
    assert (len(one.keys), made.refused) == (11, {})
    limit_topic(services, topic_of(relay), 10_000_000)
    stop = threading.Event()
    writer = threading.Thread(target=_write, args=(database, stop))
    writer.start()
    try:
        task, is_running = submit(relay.name, one)
        assert is_running
        relay.wait("the retry", lambda status: _state(status, task.id) == "done")
    finally:
        stop.set()
        writer.join()
    relay.wait_caught_up()
    relay.stop()
    assert_equal(services, database, [ITEMS], relay.name)
    assert_keys_in_order(read_table(services, ITEMS, relay.name))


def _state(status: Status, task: str) -> str:
    return next((one.state for one in status.backfills if one.id == task), "")


def _write(database: str, stop: threading.Event) -> None:
    """Change the same rows meanwhile; they become small."""
    with closing(Session(database)) as session:
        number = 0
        while not stop.is_set() or number < 50:
            number += 1
            session.run("""update items set body = %s where id = %s""", f"newer {number}", number % 3)
