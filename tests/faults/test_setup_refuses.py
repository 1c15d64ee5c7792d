"""If a topic's setting rejects every row, no single row is at fault: the relay ends and drops nothing."""

import pytest

from bwtui.demo.shop import DemoTable
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.administration import configure_topic, make_topic
from tests.faults.records import assert_equal, read_table
from tests.faults.relays import execute
from tests.faults.test_on_error import NewRelay, good

ITEMS = DemoTable("public", "items", ("id",))
OLDEST = "message.timestamp.before.max.ms"


@pytest.mark.parametrize("phase", ["snapshot", "stream"])
def test_a_topic_that_takes_no_record_of_this_time(
    services: ServiceAddresses, database: str, new_relay: NewRelay, phase: str
) -> None:
    execute(database, "create table items (id bigint primary key, body text)")
    relay = new_relay("-e", "log")
    topic = f"{relay.name}.items"
    make_topic(services, topic, 1_000_000, **{OLDEST: "0"})
    if phase == "snapshot":
        # Rows that are read, sent and appended within one millisecond are not too old for the broker.
        execute(database, "insert into items select n, repeat('x', 900000) from generate_series(1, 3) n")
        before = None
    else:
        before = relay.run().confirmed_lsn
        execute(database, good(1), good(2), good(3))
    relay.start("--until-caught-up")
    code = relay.join()
    # If the relay ends without an error, this shows which rows Kafka accepted and which were lost.
    assert code == 4, (relay.last_status(), relay.letters(), read_table(services, ITEMS, relay.name))
    words = relay.last_words()
    assert f"Kafka rejects every message for topic {topic}: " in words
    assert OLDEST in words
    assert relay.letters() == []
    assert relay.slot_lsn() == before
    configure_topic(services, topic, OLDEST, str(10**12))
    relay.run()
    assert relay.letters() == []
    assert_equal(services, database, [ITEMS], relay.name)
