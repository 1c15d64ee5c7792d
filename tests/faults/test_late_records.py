"""Late requests: records of a killed relay or worker are written after newer rows of its successor.

A broker that was frozen writes them as soon as it reads the socket of the dead process. The test itself
writes the same bytes at that moment, because it can't control the order in which a broker reads its sockets.
"""

import signal
from collections.abc import Callable

import pytest
from confluent_kafka import Message, Producer

from bwtui.demo.shop import DemoTable
from bwtui.model.status import Status
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.records import assert_equal
from tests.faults.relays import Relay, execute, wait_for
from tests.raw_topic import raw_records

HOT = DemoTable("public", "hot", ("id",))
MADE = "create table hot (id int primary key, n int)"

NewRelay = Callable[..., Relay]


def written(services: ServiceAddresses, relay: Relay) -> list[Message]:
    topic = HOT.topic(relay.name)
    return [one for records in raw_records(services, [topic]).values() for one in records]


def write_late(services: ServiceAddresses, records: list[Message]) -> None:
    """Write the same bytes again, as a broker that had not read them before."""
    producer = Producer({"bootstrap.servers": services.broker})
    for one in records:
        topic, (_, time_ms) = str(one.topic()), one.timestamp()
        number = one.partition() or 0
        producer.produce(topic, one.value(), one.key(), number, None, None, time_ms, one.headers())
    assert producer.flush(30) == 0


def is_told(status: Status) -> bool:
    return any("this run did not send" in entry.message for entry in status.errors)


def test_a_late_request_of_a_killed_relay_is_made_good(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    execute(database, MADE, "insert into hot select i, 0 from generate_series(1, 50) i")
    relay = new_relay()
    relay.run()
    relay.start()
    relay.wait_streaming()
    execute(database, "update hot set n = 1")
    relay.wait_caught_up()
    late = written(services, relay)[50:]
    relay.kill()
    execute(database, "update hot set n = 2 where id < 40", "delete from hot where id < 10")
    relay.start()
    relay.wait_caught_up()
    write_late(services, late)
    # All messages of the killed run had arrived, so these copies count as another producer's.
    relay.wait("it notices", lambda status: bool(status.not_proven) or is_told(status))
    wait_for("the rows as they are", lambda: agree(services, database, relay))
    relay.stop()


def agree(services: ServiceAddresses, database: str, relay: Relay) -> bool:
    try:
        assert_equal(services, database, [HOT], relay.name)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("at", ["before-copy:1:stop", "before-slot:1:stop"])
def test_a_late_request_of_a_snapshot_that_was_cut_off_is_not_the_next_ones(
    services: ServiceAddresses, database: str, new_relay: NewRelay, at: str
) -> None:
    """The late record is written during the next snapshot, or after the leftover rows have been removed."""
    execute(database, MADE, "insert into hot select i, 0 from generate_series(1, 50) i")
    relay = new_relay()
    relay.start(failpoint="before-slot:1:kill")
    relay.wait_ended()
    late = written(services, relay)
    assert len(late) == 50
    execute(database, "delete from hot where id < 10")
    relay.start(failpoint=at)
    relay.wait_frozen()
    write_late(services, late)
    relay.signal(signal.SIGCONT)
    relay.wait_streaming()
    wait_for("the rows as they are", lambda: agree(services, database, relay))
    relay.stop()
