"""Random schema changes among random row changes, with kill -9 and restarts of the relay in between.

``BWTUI_STORM_CHANGES=200 BWTUI_STORM_ROWS=20000 BWTUI_STORM_KILLS=10`` is the long run; ``BWTUI_STORM_SEED``
repeats one. A topic must hold each row as its last change under that table's name left it. At the end, after
every row was updated once more, the topic must equal the table, column by column. Three parts of the storm
are not compared, by design:

- A key that gets different columns: its old keys stay in the topic (ADR 6). Table ``rekeyed`` is not
  compared.
- Topics of tables that were dropped or renamed: a deleted row can't be fetched, so the relay skips that
  version
of it, and its tombstone, if any, goes to the new topic. These topics must be readable.
- An unchanged large value of a column that was dropped or renamed since: the topic has a placeholder until
  the
row is updated again (docs/row-images.md).
"""

import json
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import SchemaRegistryClient

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.database import Session, session
from tests.decoded_topic import Decoded, decoded_topics, latest
from tests.faults.ddl_storm import Storm
from tests.faults.relays import Relay

CHANGES = int(os.environ.get("BWTUI_STORM_CHANGES", "20"))
ROWS = int(os.environ.get("BWTUI_STORM_ROWS", "1000"))
KILLS = int(os.environ.get("BWTUI_STORM_KILLS", "2"))
#: Seeds that failed once stay here.
SEEDS = [24195711, int(os.environ.get("BWTUI_STORM_SEED") or random.getrandbits(32))]

Rows = dict[int, dict[str, Any]]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", SEEDS)
def test_storm(services: ServiceAddresses, database: str, new_relay: Callable[..., Relay], seed: int) -> None:
    print(f"BWTUI_STORM_SEED={seed}")
    # A comparison would send the current rows, not the rows as their last change left them.
    relay = new_relay("--on-gap", "report")
    with session(database) as source, backward(services):
        storm = Storm(source, seed)
        source.publish_all(relay.name)
        rage(storm, relay)
        relay.wait_caught_up()
        marked = assert_images(services, source, storm, relay, f"seed {seed}: the last change of each row")
        storm.touch()
        relay.wait_caught_up()
        assert not assert_tables(services, source, storm, relay, f"seed {seed}: the tables")
        relay.stop()
        fetched = sum(table.toast_fetched for table in relay.last_status().tables.values())
    told = f"{storm.rows} rows, {storm.changes} schema changes {storm.done}"
    print(f"{told}, {KILLS} kills, {marked} placeholders, {fetched} fetched at the end")


@contextmanager
def backward(services: ServiceAddresses) -> Iterator[None]:
    """Hold every subject to BACKWARD for a while."""
    with closing(SchemaRegistryClient({"url": services.schema_registry})) as registry:
        before = registry.get_compatibility()
        registry.set_compatibility(None, "BACKWARD")
        try:
            yield
        finally:
            registry.set_compatibility(None, before)


def rage(storm: Storm, relay: Relay) -> None:
    """Make all changes; the relay is killed now and then, and stays away for a while."""
    steps = max(20, ROWS // 25)
    rng = storm.rng
    altered = [rng.randrange(steps) for _ in range(CHANGES)]
    deaths = dict.fromkeys(rng.sample(range(2, steps - 2), KILLS), 0)
    absent = 0
    relay.start()
    relay.wait_streaming()
    for number in range(steps):
        if number in deaths and absent <= 0:
            relay.kill()
            absent = rng.randrange(1, max(2, steps // (2 * KILLS)))
        storm.step(ROWS // steps, altered.count(number))
        absent -= 1
        if absent == 0:
            relay.start()
            if rng.random() < 0.5:
                relay.wait_streaming()
    if absent > 0:
        relay.start()


def assert_images(services: ServiceAddresses, source: Session, storm: Storm, relay: Relay, what: str) -> int:
    """Compare topics with the rows as their last change left them; return the number of placeholders."""
    expected: dict[str, Rows] = {table: {} for table in storm.tables}
    for name, number, image in source.rows("select name, id, image from told.rows"):
        schema, _, table = name.partition(".")
        expected.get(f'{schema}."{table}"', {})[number] = image
    # Messages in flight at a kill are sent again, with the current rows of their keys.
    return compare(services, expected, relay, what, rows_now(source, storm))


def assert_tables(services: ServiceAddresses, source: Session, storm: Storm, relay: Relay, what: str) -> int:
    """Compare topics with the tables; return the number of placeholders."""
    return compare(services, rows_now(source, storm), relay, what)


def rows_now(source: Session, storm: Storm) -> dict[str, Rows]:
    sql = "select id, told.image(to_jsonb(t)) from {} t"
    return {table: dict(source.rows(sql.format(table))) for table in storm.tables}


def compare(
    services: ServiceAddresses,
    expected: dict[str, Rows],
    relay: Relay,
    what: str,
    allowed: Mapping[str, Rows] = MappingProxyType({}),
) -> int:
    """Compare; all other topics of the relay must be readable. A row may also equal one of ``allowed``."""
    admin = AdminClient({"bootstrap.servers": services.broker})
    names = [name for name in admin.list_topics(timeout=30).topics if name.startswith(f"{relay.name}.")]
    found = decoded_topics(services, names)
    marked = 0
    for table, rows in expected.items():
        topic = f"{relay.name}.{table.partition('.')[2].strip(chr(34)).replace(' ', '_x20_')}"
        messages: list[Decoded] = found.get(topic, [])
        actual = {key[0]: row for key, row in latest(messages).items()}
        assert actual.keys() == rows.keys(), f"{what}: keys of {table}"
        for number, row in rows.items():
            unknown, fields = plain(actual[number])
            marked += len(unknown)
            images = (row, allowed.get(table, {}).get(number, row))
            different = min((differing(fields, image) for image in images), key=len)
            assert different <= unknown, f"{what}: row {number} of {table} in {different}"
    return marked


def differing(fields: dict[str, str | None], row: dict[str, Any]) -> set[str]:
    """Return the columns in which a message differs from the row."""
    wanted = {name.replace(" ", "_x20_"): value for name, value in row.items()}
    return {name for name in fields.keys() | wanted.keys() if fields.get(name, ...) != wanted.get(name, ...)}


def plain(row: dict[str, Any]) -> tuple[set[str], dict[str, str | None]]:
    """Return the columns with placeholders, and the texts of the others."""
    escaped = row.pop("__escaped", None) or {}
    unknown = set(escaped.pop("unchanged TOAST", "").split())
    return unknown, {name: text(value) for name, value in row.items()} | escaped


def text(value: Any) -> str | None:
    """Return the value as to_jsonb writes it."""
    if value is None:
        return None
    if isinstance(value, bool | list):
        return json.dumps(value)
    return str(value)
