"""A backfill into a topic that rejects every message ends the request, and not the relay."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bwtui.demo.shop import DemoTable
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.backfills import ask, state_of, wait_done
from tests.faults.records import assert_equal, read_table
from tests.faults.relays import Relay, execute, wait_for
from tests.shut_topic import shut

NewRelay = Callable[..., Relay]
_SHUT, _OPEN = DemoTable("public", "shut", ("id",)), DemoTable("public", "open", ("id",))


@pytest.mark.parametrize(
    "args",
    [
        pytest.param((), id="plain"),
        pytest.param(("--record", "recording"), id="recorded", marks=pytest.mark.long),
    ],
)
def test_the_request_fails_and_the_stream_goes_on(
    args: tuple[str, ...], new_relay: NewRelay, services: ServiceAddresses, database: str, tmp_path: Path
) -> None:
    execute(
        database,
        "create table shut (id int primary key); insert into shut select generate_series(1, 5000)",
        "create table open (id int primary key)",
    )
    relay = new_relay(*(str(tmp_path / arg) if arg == "recording" else arg for arg in args))
    relay.start()
    relay.wait_streaming()
    with shut(services.broker, f"{relay.name}.shut"):
        id = ask(relay, table="public.shut")
        execute(database, "insert into open select generate_series(1, 500)")
        wait_for("its end", lambda: state_of(relay, id).is_over)
        status = state_of(relay, id)
        assert status.state == "failed"
        assert f"Kafka rejects every message for topic {relay.name}.shut" in status.error
        assert status.hint
        relay.wait("what came with it", lambda now: now.tables["public.open"].inserts >= 500)
        execute(database, "insert into open values (501)")
        relay.wait_caught_up()
        relay.stop()
        relay.start()
        relay.wait_caught_up()
        assert state_of(relay, id) == status
    assert wait_done(relay, ask(relay, table="public.shut")).rows == 5000
    relay.stop()
    assert len({record.key for record in read_table(services, _OPEN, relay.name)}) == 501
    assert_equal(services, database, [_SHUT, _OPEN], relay.name)


@pytest.mark.long
def test_rows_of_the_stream_that_are_let_in_nowhere_end_the_relay(
    new_relay: NewRelay, services: ServiceAddresses, database: str
) -> None:
    """The request resumes once the topic accepts messages again."""
    execute(
        database,
        "create table shut (id int primary key); insert into shut select generate_series(1, 500)",
        "create table asked (id int primary key); insert into asked select generate_series(1, 50000)",
    )
    relay = new_relay()
    relay.start()
    relay.wait_streaming()
    with shut(services.broker, f"{relay.name}.shut"):
        id = ask(relay, table="public.asked")
        execute(database, "update shut set id = -id")
        assert relay.join() == 4
        assert f"Kafka rejects every message for topic {relay.name}.shut" in relay.last_words()
        assert state_of(relay, id).state != "failed"
    relay.start()
    wait_done(relay, id)
    relay.wait_caught_up()
    relay.stop()
    assert_equal(services, database, [_SHUT, DemoTable("public", "asked", ("id",))], relay.name)
