"""A schema registry that is slow, and one that gives the ids of a relay's schemas to others."""

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from bwtui.demo.shop import Table
from bwtui.model.status import Status
from bwtui.sandbox.supervisor import Sandbox, Services
from tests.database import session
from tests.faults.records import read_table
from tests.faults.relays import Relay, execute
from tests.faults.writer import create_tables
from tests.forwarder import Forwarder, forwarded

pytestmark = pytest.mark.services

LATE = Table("public", "late", ("id",))
NewRelay = Callable[..., Relay]


def at(url: str, port: int) -> str:
    """Return the URL of a registry behind another port."""
    return urlsplit(url)._replace(netloc=f"127.0.0.1:{port}").geturl()


def port_of(url: str) -> int:
    """Return a registry's port."""
    return urlsplit(url).port or 0


def streaming(database: str, new_relay: NewRelay, services: Services, door: Forwarder) -> Relay:
    """Return a relay that streams two tables and all that come, and asks the registry behind the door."""
    create_tables(database, 1)
    relay = new_relay("-r", at(services.schema_registry, door.port))
    with session(database) as source:
        source.publish_all(relay.name)
    relay.start()
    relay.wait_streaming()
    return relay


@pytest.mark.long
def test_the_registry_is_slow(services: Services, database: str, new_relay: NewRelay) -> None:
    with forwarded(port_of(services.schema_registry)) as door:
        relay = streaming(database, new_relay, services, door)
        # Of a request both ways.
        door.delay = 0.7
        execute(database, "create table late (id int primary key)", "insert into late values (1)")
        status = relay.wait("who is waited for", lambda status: status.verdict.cause == "registry")
        assert "has not answered for" in status.verdict.sentence
        relay.wait_caught_up()
        relay.stop()
        errors = relay.last_status().errors
        assert [one.message for one in errors if one.dependency == "the schema registry"] == []
    assert len(read_table(services, LATE, relay.name)) == 1


@pytest.mark.long
def test_an_id_stands_for_another_schema(
    services: Services, three_brokers: Sandbox, database: str, new_relay: NewRelay
) -> None:
    other = three_brokers.services().schema_registry
    with forwarded(port_of(services.schema_registry)) as door:
        relay = streaming(database, new_relay, services, door)
        ids = [table.value_schema_id or 0 for table in relay.wait_caught_up().tables.values()]
        client = SchemaRegistryClient({"url": other})
        for number in range(max(ids)):
            schema = Schema(f'{{"type": "fixed", "name": "f{number}", "size": {number + 1}}}', "AVRO")
            client.register_schema(f"other-{number}", schema)
        door.lead_to(port_of(other))
        assert relay.join() == 4
        words = relay.last_words()
        assert "stands for another schema by now" in words and "start the relay again" in words
        execute(database, "update accounts set note = 'after it'")

        def is_registered_anew(status: Status) -> bool:
            return bool((table := status.tables.get("public.accounts")) and table.updates)

        relay.start()
        relay.wait("rows", is_registered_anew)
        relay.wait_caught_up()
        relay.stop()
        for part in ("key", "value"):
            assert client.get_latest_version(f"{relay.name}.accounts-{part}")
        client.close()
