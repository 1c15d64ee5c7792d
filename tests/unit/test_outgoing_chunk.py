"""Keys that were compared are sent where they were compared, and in the same bytes, or not at all."""

import pytest

from bwtui.errors import RefusedError
from bwtui.pgoutput.messages import Column, Relation
from bwtui.relay.backfill.outgoing_chunk import refuse_unlike, spelling_of
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.run_state import TableCounters


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
