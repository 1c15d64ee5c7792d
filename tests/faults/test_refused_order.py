"""Kafka rejects a row with its whole request: no later row of the keys in it may be written first."""

import os
import signal
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bwtui.demo.shop import DemoTable
from bwtui.model.delivery import DeliverySpan
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.settings import RelaySettings
from bwtui.sink.destination import DeliveryFailure
from bwtui.sink.kafka import KafkaService, KafkaSink
from tests.faults.administration import limit_topic, make_topic
from tests.faults.records import assert_equal, assert_keys_in_order, read_table
from tests.faults.relays import execute, new_name
from tests.faults.test_on_error import LIMIT, NewRelay, bad, good, table
from tests.fresh_topic import create_topic

ITEMS = DemoTable("public", "items", ("id",))
ROUNDS = 5

__all__ = ["table"]


@pytest.mark.parametrize(
    ("policy", "known"),
    [
        pytest.param("log", True, id="log-a known producer"),
        pytest.param("exit", False, id="exit-a new producer"),
        pytest.param("log", False, id="log-a new producer", marks=pytest.mark.long),
        pytest.param("exit", True, id="exit-a known producer", marks=pytest.mark.long),
    ],
)
def test_what_was_refused_comes_first(
    services: ServiceAddresses, database: str, new_relay: NewRelay, table: None, policy: str, known: bool
) -> None:
    """Small requests keep many in flight; from a new producer, Kafka accepts the second one first."""
    relay = new_relay("-e", policy, "-C", "batch.num.messages=3")
    make_topic(services, f"{relay.name}.items", LIMIT)
    relay.run()
    relay.start()
    relay.wait_streaming()
    if known:
        execute(database, good(1))
        relay.wait_caught_up()
    relay.signal(signal.SIGSTOP)
    execute(database, good(2), bad(3), good(4), good(5, 6, 7))
    execute(database, *(f"update items set body = 'round {n} ' || id where id <> 3" for n in range(ROUNDS)))
    relay.signal(signal.SIGCONT)
    if policy == "exit":
        assert relay.join() == 2
        assert_keys_in_order(read_table(services, ITEMS, relay.name))
        limit_topic(services, f"{relay.name}.items", 10_000_000)
        relay.run()
        assert_equal(services, database, [ITEMS], relay.name)
    else:
        relay.wait_caught_up()
        relay.stop()
    assert_keys_in_order(read_table(services, ITEMS, relay.name))


@pytest.mark.parametrize("busy", [False, True], ids=["polled at once", "polled late"])
def test_everything_behind_a_refusal_is_reported(services: ServiceAddresses, busy: bool) -> None:
    """librdkafka purges the messages in flight after the refusal, and never reports that on its own."""
    name = new_name()
    admin = AdminClient({"bootstrap.servers": services.broker})
    create_topic(admin, NewTopic(name, 1, 1, config={"max.message.bytes": str(LIMIT)}))
    small = (("batch.num.messages", "3"),)
    settings = RelaySettings(broker=services.broker, slot=name, kafka_config=small)
    sink = KafkaSink(settings)
    service = KafkaService(settings, sink)
    service.take_limits(service.ensure_topics({name: True}))
    span = DeliverySpan()
    sink.send(name, [(b"k", b"v", 1, None)], span)
    while span.pending:
        sink.poll(0.1)
    sizes = [3 * LIMIT if number == 30 else 1 for number in range(3000)]
    sink.send(name, [(b"k", os.urandom(size), 1, None) for size in sizes], span)
    if busy:
        # A second passes before the next message is handed over; the producer has ended before that.
        time.sleep(1.0)
        sink.send(name, [(b"k", b"later", 1, None)], span)
    until = time.monotonic() + 60
    failures: list[DeliveryFailure] = []
    while not failures or not sink.flush(0.2):
        assert time.monotonic() < until
        sink.poll(0)
        failures += sink.take_failures()
    failures += sink.take_failures()
    assert span.pending == span.failed == len(failures)
    first = min(failures, key=lambda one: one.is_outage)
    assert not first.is_outage and "too large" in first.reason
    sink.close()
