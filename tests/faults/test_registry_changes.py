"""A schema registry that is slow, and one that reassigns the ids of a relay's schemas."""

import json
import shutil
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from bwtui.demo.shop import DemoTable
from bwtui.model.status import Status
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from bwtui.state_folder import ledger_path, state_folder
from tests.faults.records import read_table
from tests.faults.relays import Relay, execute, streaming, wait_for
from tests.proxy import Way, address_of, way_to

pytestmark = pytest.mark.services

LATE = DemoTable("public", "late", ("id",))
NewRelay = Callable[..., Relay]


def behind(door: Way, services: ServiceAddresses) -> tuple[str, str]:
    """Return the option that sends a relay's registry requests through the proxy."""
    return "-r", urlsplit(services.schema_registry)._replace(netloc=door.address).geturl()


@pytest.mark.long
def test_the_registry_is_slow(services: ServiceAddresses, database: str, new_relay: NewRelay) -> None:
    with way_to(address_of(services.schema_registry), "http") as door:
        relay = streaming(database, new_relay, *behind(door, services))
        # The delay applies to a request in both directions.
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
    services: ServiceAddresses, three_brokers: Sandbox, database: str, new_relay: NewRelay
) -> None:
    other = three_brokers.services().schema_registry
    with way_to(address_of(services.schema_registry), "http") as door:
        relay = streaming(database, new_relay, *behind(door, services))
        ids = [table.value_schema_id or 0 for table in relay.wait_caught_up().tables.values()]
        client = SchemaRegistryClient({"url": other})
        for number in range(max(ids)):
            schema = Schema(f'{{"type": "fixed", "name": "f{number}", "size": {number + 1}}}', "AVRO")
            client.register_schema(f"other-{number}", schema)
        door.lead_to(address_of(other))
        assert relay.join() == 4
        words = relay.last_words()
        assert "now identifies a different schema" in words and "start the relay again" in words
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


def test_a_registry_that_was_emptied_while_the_relay_was_stopped(
    interrupted: Sandbox, services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """Keys under new schema ids differ from those of earlier rows, and so do their tombstones."""
    relay = streaming(database, new_relay)
    ids = [table.value_schema_id or 0 for table in relay.wait_caught_up().tables.values()]
    ledger = ledger_path(state_folder(relay.name), relay.name)

    def are_read() -> bool:
        schemas = json.loads(ledger.read_text(encoding="utf-8"))["schemas"].values()
        return all(digest for digests in schemas for digest in digests.values())

    wait_for("the schemas are compared", are_read)
    relay.stop()
    interrupted.stop_service("registry")
    data = interrupted.folder / "data" / "registry"
    shutil.rmtree(data)
    data.mkdir()
    interrupted.start_service("registry")
    client = SchemaRegistryClient({"url": services.schema_registry})
    for number in range(max(ids)):
        schema = Schema(f'{{"type": "fixed", "name": "f{number}", "size": {number + 1}}}', "AVRO")
        client.register_schema(f"other-{number}", schema)
    client.close()
    relay.start()
    says = relay.wait("the table is not proven", lambda status: bool(status.not_proven)).not_proven
    assert {entry.table for entry in says} >= {"public.accounts"}
    assert "now identifies a different schema" in says[0].reason
    execute(database, "update accounts set note = 'after it'", "delete from accounts where id < 5")
    relay.wait_caught_up()
    relay.stop()
