"""--transaction-topic: each transaction that has messages is reported, with its counts."""

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pytest

from bwtui.encode.transaction_metadata import VALUE_SCHEMA
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.faults.relays import Relay, execute, wait_for
from tests.faults.writer import ACCOUNTS, create_tables
from tests.raw_topic import committed_records

NewRelay = Callable[..., Relay]
SCHEMA = fastavro.parse_schema(json.loads(VALUE_SCHEMA))


def told(services: ServiceAddresses, topic: str) -> list[dict[str, Any]]:
    """Return the topic's messages as an Avro reader decodes them."""
    records = committed_records(services, [topic])
    values = [
        fastavro.schemaless_reader(io.BytesIO((one.value() or b"")[5:]), SCHEMA, None) for one in records
    ]
    return [value for value in values if isinstance(value, dict)]


def counts(end: dict[str, Any]) -> dict[str, int]:
    """Return the messages of a transaction by table."""
    found = {one["data_collection"]: one["event_count"] for one in end["data_collections"]}
    assert sum(found.values()) == end["event_count"]
    return found


@pytest.mark.parametrize(
    "args",
    [
        pytest.param((), id="plain"),
        pytest.param(("--exactly-once",), id="exactly once", marks=pytest.mark.long),
    ],
)
def test_transactions_are_told_of(
    services: ServiceAddresses, database: str, new_relay: NewRelay, args: tuple[str, ...]
) -> None:
    create_tables(database, 10)
    relay = new_relay(*args)
    topic = f"{relay.name}.boundaries"
    relay.run("--transaction-topic", topic)
    execute(
        database,
        "insert into accounts values (11, 1, 'new'), (12, 1, 'new')",
        "update visits set id = 100 where id = 1",
        "delete from visits where id = 2",
    )
    execute(database, "truncate visits")
    execute(database, "update accounts set number = 2 where id = 11")
    relay.run("--transaction-topic", topic)
    found = told(services, topic)
    assert [one["status"] for one in found] == ["BEGIN", "END"] * 2
    # A changed key has two messages, and a TRUNCATE has none.
    assert counts(found[1]) == {"public.accounts": 2, "public.visits": 3}
    assert counts(found[3]) == {"public.accounts": 1}
    assert found[0]["event_count"] is None and found[0]["data_collections"] is None
    ids = [one["id"].split(":") for one in found]
    assert ids[0][0] == ids[1][0] != ids[2][0] == ids[3][0]
    places = [int(lsn) for _, lsn in ids]
    assert places == sorted(places)
    assert found[0]["ts_ms"] == found[1]["ts_ms"]


@pytest.mark.long
def test_a_split_transaction_is_told_of_once_though_the_relay_was_killed(
    services: ServiceAddresses, database: str, new_relay: NewRelay
) -> None:
    create_tables(database, 10)
    relay = new_relay("--exactly-once")
    topic = f"{relay.name}.boundaries"
    relay.run("--transaction-topic", topic)
    # The position of the run is one commit, and four parts follow.
    relay.start("--transaction-topic", topic, failpoint="after-commit:3:kill")
    relay.wait_streaming()
    execute(database, "insert into accounts select n, 1, repeat('x', 20000) from generate_series(11, 6000) n")
    wait_for("its end", lambda: relay.has_ended)
    assert len(committed_records(services, [ACCOUNTS.topic(relay.name)])) > 10
    assert [one["status"] for one in told(services, topic)] == ["BEGIN"]
    relay.run("--transaction-topic", topic)
    found = told(services, topic)
    assert [one["status"] for one in found] == ["BEGIN", "END"]
    assert counts(found[1]) == {"public.accounts": 5_990}
