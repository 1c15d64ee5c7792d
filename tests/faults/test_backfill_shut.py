"""Rows are put into a topic that lets nothing in: that ends the request, and not the relay."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bwtui.demo.shop import DemoTable
from bwtui.errors import ServiceRefused
from bwtui.model.delivery import DeliverySpan
from bwtui.relay.backfill.row_policy import BackfillRowPolicy
from bwtui.relay.batch_bisector import RestartFromConfirmed
from bwtui.relay.policy import RowPolicy
from bwtui.relay.run_state import RunState
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.settings import RelaySettings
from bwtui.sink.base import DeliveryFailure
from bwtui.sink.dead_letter_writer import DeadLetterWriter
from tests.faults.backfills import ask, state_of, wait_done
from tests.faults.doubles import MemorySink
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
    """And what was asked for goes on when they are let in."""
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


def test_whose_the_refusal_is(tmp_path: Path) -> None:
    settings, report, sink = RelaySettings(dead_letter_topic="letters"), RunState(), MemorySink()
    policy = RowPolicy(settings, report, DeadLetterWriter(tmp_path), sink)
    refusals, ours = BackfillRowPolicy(policy, "exit", "shut"), DeliverySpan()
    of_stream = DeliveryFailure("shut", "no", is_outage=False, is_setup=True, span=DeliverySpan())
    letter = DeliveryFailure("letters", "no", is_outage=False, is_setup=True, span=ours)
    assert refusals.claim_failures([of_stream, letter], [ours]) == [of_stream, letter]
    assert refusals.shut is None
    # While each message is waited for, all that fail are ours; to try them one by one would be in vain.
    alone = DeliveryFailure("shut", "no", is_outage=False, is_setup=True, hint="grant", span=DeliverySpan())
    with pytest.raises(RestartFromConfirmed) as redrive:
        refusals.undelivered([alone])
    assert redrive.value.failure.is_outage
    assert (str(refusals.shut), refusals.shut and refusals.shut.hint) == ("no", "grant")
    # What is heard of the stream is heard again, whoever was told first.
    for failures in ([of_stream], []):
        with pytest.raises(ServiceRefused):
            policy.undelivered(failures)
