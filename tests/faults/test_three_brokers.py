"""Brokers of a cluster go down and come back: no row is lost, duplicated or out of order."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from bwtui.errors import BwtuiError
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses, ServiceName
from tests.faults.incidents import healthy, stalled
from tests.faults.records import read_table, repeated
from tests.faults.relays import Relay, streaming, wait_for
from tests.faults.test_outages import assert_nothing_lost, more_than
from tests.faults.writer import TABLES, Writer

pytestmark = [pytest.mark.services, pytest.mark.long]

NewRelay = Callable[..., Relay]
ROWS = 200
BROKERS: tuple[ServiceName, ...] = ("kafka-1", "kafka-2", "kafka-3")


@pytest.fixture(scope="module")
def services(three_brokers: Sandbox) -> ServiceAddresses:
    """The services of the sandbox that has three brokers."""
    return three_brokers.services()


@pytest.fixture
def brokers(three_brokers: Sandbox) -> Iterator[Sandbox]:
    """The sandbox, whose brokers all run again after the test."""
    yield three_brokers
    three_brokers.up()


@pytest.fixture
def relay(database: str, new_relay: NewRelay) -> Relay:
    """Return a relay that streams two tables."""
    return streaming(database, new_relay, rows=ROWS)


def leaders(admin: AdminClient, relay: Relay) -> set[int]:
    """Return the brokers that lead partitions of the relay's topics."""
    topics = admin.list_topics(timeout=10).topics
    return {
        one.leader for table in TABLES for one in topics[f"{relay.name}.{table.name}"].partitions.values()
    }


def lead_as_preferred(admin: AdminClient, relay: Relay) -> None:
    """Elect the preferred leaders again, as far as they are in sync."""
    from confluent_kafka import ElectionType

    places = [TopicPartition(f"{relay.name}.{table.name}", number) for table in TABLES for number in range(3)]

    def is_elected() -> bool:
        try:
            admin.elect_leaders(ElectionType.PREFERRED, places).result(30)
        except Exception as error:
            raise BwtuiError(f"no election: {error}", "") from error
        return leaders(admin, relay) == {1, 2, 3}

    wait_for("all three lead", is_elected)


def test_leaders_move_among_brokers(
    brokers: Sandbox, services: ServiceAddresses, database: str, relay: Relay
) -> None:
    admin = AdminClient({"bootstrap.servers": services.broker})
    lead_as_preferred(admin, relay)
    with Writer(database, ROWS).going_on():
        for name in BROKERS:
            count = relay.wait("rows", more_than(20)).transactions
            brokers.stop_service(name)
            relay.wait("rows while one is away", more_than(count + 50))
            brokers.start_service(name)
            lead_as_preferred(admin, relay)
    assert_nothing_lost(services, database, [relay])
    for table in TABLES:
        assert not repeated(read_table(services, table, relay.name))


def test_one_broker_of_three_is_lost(
    brokers: Sandbox, services: ServiceAddresses, database: str, relay: Relay
) -> None:
    with Writer(database, ROWS).going_on():
        for name in BROKERS:
            count = relay.wait("rows", more_than(20)).transactions
            brokers.kill_service(name)
            relay.wait("rows without it", more_than(count + 100))
            healthy(relay)
            brokers.start_service(name)
    assert_nothing_lost(services, database, [relay])
    for table in TABLES:
        assert not repeated(read_table(services, table, relay.name))


def test_two_brokers_of_three_are_lost(
    brokers: Sandbox, services: ServiceAddresses, database: str, relay: Relay
) -> None:
    """A message on only one replica is not acknowledged."""
    with Writer(database, ROWS).going_on():
        relay.wait("rows", more_than(20))
        for name in BROKERS[1:]:
            brokers.kill_service(name)
        stalled(relay, "kafka")
        brokers.up()
        healthy(relay)
    assert_nothing_lost(services, database, [relay])
