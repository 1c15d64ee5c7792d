"""Kafka's data is replaced by an older copy: the relay notices it, and re-sends what the topics lack."""

import json
import shutil
from collections.abc import Callable

import pytest

from bwtui.model.status import Status
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from bwtui.state_folder import state_folder
from tests.faults.records import assert_equal
from tests.faults.relays import Relay, execute, wait_for
from tests.faults.writer import TABLES, create_tables
from tests.raw_topic import raw_records

pytestmark = pytest.mark.services

NewRelay = Callable[..., Relay]


def is_proven(status: Status) -> bool:
    """Return whether every table is proven."""
    return not status.not_proven


def keep_copy(sandbox: Sandbox) -> None:
    """Copy Kafka's data."""
    data = sandbox.folder / "data" / "kafka"
    sandbox.stop_service("kafka")
    shutil.rmtree(data.with_name("kafka-copy"), ignore_errors=True)
    shutil.copytree(data, data.with_name("kafka-copy"))
    sandbox.start_service("kafka")


def put_copy_back(sandbox: Sandbox) -> None:
    """Replace Kafka's data by the copy."""
    data = sandbox.folder / "data" / "kafka"
    sandbox.stop_service("kafka")
    shutil.rmtree(data)
    data.with_name("kafka-copy").rename(data)
    sandbox.start_service("kafka")


def wait_for_stored_end(services: ServiceAddresses, relay: Relay) -> None:
    """Wait until the relay has stored the end of the topic."""
    topic = f"{relay.name}.accounts"
    written = sum(map(len, raw_records(services, [topic]).values()))
    (path,) = state_folder(relay.name).glob("ends-*.json")

    def stored() -> int:
        _, ends = json.loads(path.read_text())["topics"][topic]
        return sum(ends.values())

    wait_for("its end is stored", lambda: stored() == written)


def test_kafka_is_restored_from_a_copy(
    interrupted: Sandbox, services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    """One relay was stopped before that, one was killed, and one runs all the time."""
    create_tables(database, 200)
    relays = stopped, killed, running = new_relay(), new_relay(), new_relay()
    for relay in relays:
        relay.start()
        relay.wait_streaming()
    execute(database, "update accounts set number = 1 where id = 1")
    for relay in relays:
        relay.wait_caught_up()
        relay.stop()
    keep_copy(interrupted)
    for relay in relays:
        relay.start()
        relay.wait_streaming()
    execute(
        database,
        "update accounts set number = 777 where id between 1 and 50",
        "delete from accounts where id between 60 and 70",
    )
    for relay in relays:
        relay.wait_caught_up()
    stopped.stop()
    for relay in (killed, running):
        wait_for_stored_end(services, relay)
    killed.kill()
    put_copy_back(interrupted)
    stopped.start()
    killed.start()
    for relay in relays:
        wait_for("it is reported", lambda relay=relay: "61 records of topic" in relay.log())  # type: ignore[misc]
        relay.wait_streaming()
        relay.wait("it is closed", is_proven, every=0.2)
        relay.wait_caught_up()
        relay.stop()
        assert_equal(services, database, TABLES, relay.name)
        log = relay.log().splitlines()
        assert not [line for line in log if "public.visits" in line and "lost" in line]
