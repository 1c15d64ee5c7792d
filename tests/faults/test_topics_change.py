"""Topics that others delete, recreate, extend and empty under a relay: it reports it and names the fix."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from bwtui.model.status import Status
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.state_folder import state_folder
from tests.faults.records import assert_equal, assert_keys_in_order, read_table
from tests.faults.relays import Relay, execute, streaming, wait_for
from tests.faults.writer import ACCOUNTS, TABLES

pytestmark = pytest.mark.services

NewRelay = Callable[..., Relay]
ROWS = 50


@pytest.fixture
def relay(database: str, new_relay: NewRelay) -> Relay:
    """Return a relay that streams two tables of some rows."""
    made = streaming(database, new_relay, rows=ROWS)
    # It stores the identity of the topics when it first polls them.
    kept = state_folder(made.name) / "topics.json"
    wait_for("it knows its topics", lambda: kept.exists() and '"partitions"' in kept.read_text())
    return made


def told(words: str) -> Callable[[Status], bool]:
    """Return the condition that an error or a note of the relay contains the text."""
    return lambda status: any(words in entry.message for entry in status.errors)


def done(asked: dict[Any, Future[Any]]) -> None:
    """Wait for the result of a request to Kafka."""
    for future in asked.values():
        future.result(30)


def delete(admin: AdminClient, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    done(admin.delete_topics([topic]))
    wait_for("the topic is gone", lambda: topic not in admin.list_topics(timeout=10).topics)


def make(admin: AdminClient, topic: str, partitions: int) -> None:
    """Create a topic as a broker does on a client's first request; the relay may be faster."""
    try:
        done(admin.create_topics([NewTopic(topic, partitions, 1)]))
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(True, id="while it streams"),
        pytest.param(False, id="while it is stopped", marks=pytest.mark.long),
    ],
)
def test_a_topic_is_deleted_and_made_again(
    services: ServiceAddresses, database: str, relay: Relay, runs: bool
) -> None:
    topic = f"{relay.name}.accounts"
    admin = AdminClient({"bootstrap.servers": services.broker})
    if not runs:
        relay.stop()
    delete(admin, topic)
    make(admin, topic, 5)
    if not runs:
        relay.start()
        relay.wait_streaming()
    execute(database, "update accounts set note = 'after it' where id <= 5")
    status = relay.wait(
        "it is told", told("deleted and created again, and lacks the records that were in it")
    )
    (entry,) = [one for one in status.errors if "deleted and created again" in one.message]
    assert (entry.kind, entry.table) == ("topic", "public.accounts")
    assert "the relay compares the table" in (entry.hint or "")
    # A starting relay sends by one number of partitions only.
    if runs:
        relay.wait("the partitions", told("has 5 partitions, previously 3"))
    relay.wait("it is filled again", lambda status: not status.not_proven, every=0.2)
    relay.stop()
    assert_equal(services, database, TABLES, relay.name)


@pytest.mark.long
def test_a_topic_is_deleted_and_nobody_makes_it(
    services: ServiceAddresses, database: str, relay: Relay
) -> None:
    topic = f"{relay.name}.accounts"
    delete(AdminClient({"bootstrap.servers": services.broker}), topic)
    relay.wait("it is told", told(f"topic {topic} was deleted with all its records"))
    execute(database, "update accounts set note = 'after it' where id <= 5")
    relay.wait("it is filled again", lambda status: not status.not_proven, every=0.2)
    relay.stop()
    assert_equal(services, database, TABLES, relay.name)


@pytest.mark.long
def test_partitions_are_added(services: ServiceAddresses, database: str, relay: Relay) -> None:
    topic = f"{relay.name}.accounts"
    admin = AdminClient({"bootstrap.servers": services.broker})
    done(admin.create_partitions([NewPartitions(topic, 7)]))
    status = relay.wait("it is told", told(f"topic {topic} has 7 partitions, previously 3"))
    (entry,) = [one for one in status.errors if "7 partitions" in one.message]
    assert "the relay compares the table" in (entry.hint or "")
    # A starting producer sees all partitions at once.
    relay.stop()
    execute(database, "update accounts set note = 'after it'")
    relay.run()
    records = read_table(services, ACCOUNTS, relay.name)
    after = [record for record in records if record.value and record.value["note"] == "after it"]
    assert {record.key[0] for record in after} == set(range(1, ROWS + 1)), "nothing is lost"
    assert_keys_in_order(after)
    assert max(record.partition for record in after) > 2
