"""Kafka refuses a row, and its request with it: no later row of the keys in it may come first."""

import signal

import pytest

from bwtui.demo.shop import Table
from bwtui.sandbox.supervisor import Services
from tests.faults.administration import limit_topic
from tests.faults.records import assert_equal, assert_keys_in_order, read_table
from tests.faults.relays import execute
from tests.faults.test_on_error import LIMIT, NewRelay, bad, good, table

ITEMS = Table("public", "items", ("id",))
ROUNDS = 5

__all__ = ["table"]


@pytest.mark.parametrize("known", [True, False], ids=["a known producer", "a new producer"])
@pytest.mark.parametrize("policy", ["log", "exit"])
def test_what_was_refused_comes_first(
    services: Services, database: str, new_relay: NewRelay, table: None, policy: str, known: bool
) -> None:
    """Small requests, so that many are under way; of a new producer, Kafka takes the second one first."""
    relay = new_relay("-e", policy, "-C", "batch.num.messages=3")
    relay.run()
    relay.start()
    relay.wait_streaming()
    if known:
        execute(database, good(1))
        relay.wait_caught_up()
    limit_topic(services, f"{relay.name}.items", LIMIT)
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
