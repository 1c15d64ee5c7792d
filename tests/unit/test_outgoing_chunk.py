"""Rows of a chunk: whose a refusal is; compared keys are sent as they were compared, or not at all."""

from pathlib import Path

import pytest

from bwtui.errors import RefusedError, ServiceRefused
from bwtui.model.delivery import DeliverySpan
from bwtui.pgoutput.messages import Column, Relation
from bwtui.relay.backfill.outgoing_chunk import BackfillRowPolicy, refuse_unlike, spelling_of
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows.batch_bisector import RestartFromConfirmed
from bwtui.relay.rows.policy import RowPolicy
from bwtui.relay.state.run_state import RunState, TableCounters
from bwtui.settings import RelaySettings
from bwtui.sink.dead_letters import DeadLetterWriter
from bwtui.sink.destination import DeliveryFailure
from tests.faults.doubles import MemorySink


def route(key_schema_id: int | None) -> TableRoute:
    relation = Relation(1, "public", "orders", "d", (Column("id", 23, -1, True),))
    counters = TableCounters(topic="shop.orders", key_schema_id=key_schema_id)
    return TableRoute(relation, "shop.orders", ("id",), counters, None, None)


def test_as_they_were_compared_they_are_sent() -> None:
    for number, spelling in ((None, "json"), (7, "7")):
        assert spelling_of(route(number)) == spelling
        for topic in ("", "shop.orders"):
            refuse_unlike(route(number), topic, spelling)
            refuse_unlike(route(number), topic, "")


@pytest.mark.parametrize(
    ("number", "topic", "spelling", "says"),
    [
        (
            7,
            "shop.orders",
            "6",
            "as Avro with schema id 6, but the relay now sends them as Avro with schema id 7",
        ),
        (7, "shop.orders", "json", "as JSON, but the relay now sends them as Avro with schema id 7"),
        (None, "shop.orders", "7", "as Avro with schema id 7, but the relay now sends them as JSON"),
        (None, "shop.orders", "odd", "as an encoding that no relay writes"),
        (
            None,
            "orders",
            "json",
            "topic orders, but the relay now sends to topic shop.orders",
        ),
    ],
)
def test_otherwise_they_are_not(number: int | None, topic: str, spelling: str, says: str) -> None:
    with pytest.raises(RefusedError, match=says) as refused:
        refuse_unlike(route(number), topic, spelling)
    assert "repair" in (refused.value.hint or "")


def test_whose_the_refusal_is(tmp_path: Path) -> None:
    settings, report, sink = RelaySettings(dead_letter_topic="letters"), RunState(), MemorySink()
    policy = RowPolicy(settings, report, DeadLetterWriter(tmp_path), sink)
    refusals, ours = BackfillRowPolicy(policy, "exit", "shut"), DeliverySpan()
    of_stream = DeliveryFailure("shut", "no", is_outage=False, is_setup=True, span=DeliverySpan())
    letter = DeliveryFailure("letters", "no", is_outage=False, is_setup=True, span=ours)
    assert refusals.claim_failures([of_stream, letter], [ours]) == [of_stream, letter]
    assert refusals.shut is None
    # While the relay waits for each message, all failures are its own; sending the rows one by one would not
    # help.
    alone = DeliveryFailure("shut", "no", is_outage=False, is_setup=True, hint="grant", span=DeliverySpan())
    with pytest.raises(RestartFromConfirmed) as redrive:
        refusals.undelivered([alone])
    assert redrive.value.failure.is_outage
    assert (str(refusals.shut), refusals.shut and refusals.shut.hint) == ("no", "grant")
    # A failure of the stream's own rows is raised again, even if the backfill received it first.
    for failures in ([of_stream], []):
        with pytest.raises(ServiceRefused):
            policy.undelivered(failures)
