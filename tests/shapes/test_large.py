"""Shapes of rows and schemas: rows of 100 MB, 1,600 columns, 1,000 tables.

``BWTUI_SHAPES_TABLES=1000`` is the long run (``make shapes``).
"""

import hashlib
import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from bwtui.kafka.client import headers_of
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.database import Session, session
from tests.decoded_topic import decoded_avro, decoded_topics, latest
from tests.faults.administration import make_topic
from tests.faults.relays import PATIENCE, Relay, execute
from tests.raw_topic import raw_records, raw_topics

pytestmark = pytest.mark.services

TABLES = int(os.environ.get("BWTUI_SHAPES_TABLES", "25"))
#: Additional memory of a relay for each table, in bytes.
TABLE_BYTES = 200 << 10
MEMORY_BYTES = 200 << 20
#: Memory that a large row takes at most, as a multiple of its size.
COPIES = 8

NewRelay = Callable[..., Relay]


@pytest.fixture
def source(database: str) -> Iterator[Session]:
    """A session that writes."""
    with session(database) as opened:
        yield opened


@pytest.fixture
def cleaned(services: ServiceAddresses) -> Iterator[None]:
    """Delete the topics of a test, of which there are many."""
    admin = AdminClient({"bootstrap.servers": services.broker})
    before = set(admin.list_topics(timeout=30).topics)
    yield
    made = [topic for topic in admin.list_topics(timeout=30).topics if topic not in before]
    for deleted in admin.delete_topics(made, operation_timeout=60).values() if made else ():
        deleted.result(120)


def peak_bytes(relay: Relay) -> int:
    """Return the peak memory of the relay's process."""
    lines = Path(f"/proc/{relay.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


# -- rows ----------------------------------------------------------------------------------------------------


def incompressible(size: int) -> str:
    """Return a text that neither PostgreSQL nor Kafka can compress."""
    return random.randbytes(size // 2).hex()


def digests(services: ServiceAddresses, relay: Relay, size: int) -> list[str]:
    """Return the hashes of the bodies in the topic: of the longest hexadecimal text in each value."""
    largest = str(2 * size + (100 << 20))
    found = raw_topics(services, [f"{relay.name}.large"], receive_message_max_bytes=largest)
    values = [value for _, value in found[f"{relay.name}.large"] if value is not None]
    # Body is the last column, and Avro writes a text as its bytes.
    return sorted(hashlib.md5(value[-size:]).hexdigest() for value in values)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_message_above_a_brokers_limit_of_requests_is_waited_for_by_name(
    services: ServiceAddresses, database: str, source: Session, new_relay: NewRelay
) -> None:
    """The broker closes the connection, and gives the reason only in its own log."""
    size = 110_000_000
    execute(database, "create table large (id int primary key, number int, body text)")
    relay = new_relay("-C", "compression.type=none", "-C", f"message.max.bytes={size + (1 << 20)}")
    make_topic(services, f"{relay.name}.large", size + (1 << 20))
    relay.start()
    relay.wait_streaming()
    source.run("insert into large values (1, 0, %s)", incompressible(size))
    words = "brokers close the connection on a message above their socket.request.max.bytes"
    relay.wait("the stall", lambda now: now.verdict.condition == "stalled" and words in now.verdict.sentence)
    assert peak_bytes(relay) < MEMORY_BYTES + COPIES * size


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [10_000_000, pytest.param(100_000_000, marks=pytest.mark.long)])
def test_rows_are_refused_by_name_or_pass_whole(
    services: ServiceAddresses, database: str, source: Session, new_relay: NewRelay, size: int
) -> None:
    execute(
        database,
        "create table large (id int primary key, number int, body text)",
        "alter table large alter body set storage external",
    )
    relay = new_relay("-e", "exit")
    make_topic(services, f"{relay.name}.large", size + (1 << 20))
    relay.start("-C", f"message.max.bytes={size // 2}")
    relay.wait_streaming()
    bodies = [incompressible(size) for _ in range(4)]
    for number, body in enumerate(bodies):
        source.run("insert into large values (%s, 0, %s)", number, body)
    assert relay.join() == 2
    told = relay.last_words()
    assert "insert on public.large at" in told
    assert f"message.max.bytes allows {size // 2}" in told
    assert "raise -C message.max.bytes=" in told
    assert bodies[0][:20] not in told
    relay.start("-C", f"message.max.bytes={size + (1 << 20)}")
    source.run("update large set number = 1")
    status = relay.wait_caught_up(300)
    peak = peak_bytes(relay)
    print(f"rows of {size:,} bytes: at most {peak / 1e6:.0f} MB, then {status.resident_bytes / 1e6:.0f} MB")
    assert peak < MEMORY_BYTES + COPIES * size
    relay.stop()
    stored = source.rows("select md5(body) from large")
    assert digests(services, relay, size) == sorted(2 * [row[0] for row in stored])


@pytest.mark.long
def test_1600_columns(
    services: ServiceAddresses, database: str, source: Session, new_relay: NewRelay
) -> None:
    kinds = ("smallint", "boolean", "text", "int")
    columns = [f"c{n} {kinds[n % 4]}" for n in range(1, 1600)]
    source.run(f"create table wide (id int primary key, {', '.join(columns)})")
    relay = new_relay()
    source.run(f"insert into wide {wide_row(1)}")
    relay.start()
    relay.wait_streaming()
    for number in range(2, 30):
        source.run(f"insert into wide {wide_row(number)}")
    source.run("update wide set c1599 = 7, c1 = null where id % 2 = 0")
    source.run("delete from wide where id % 3 = 0")
    status = relay.wait_caught_up()
    assert status.resident_bytes < MEMORY_BYTES
    relay.stop()
    expected = {(id,): json.loads(row) for id, row in source.rows("select id, to_jsonb(w)::text from wide w")}
    found = latest(decoded_avro(services, f"{relay.name}.wide"))
    assert {key: {n: v for n, v in row.items() if n != "__escaped"} for key, row in found.items()} == expected


def wide_row(number: int) -> str:
    """Return a row with a value in each column, and some NULLs."""
    drawn = (f"{number}::smallint", f"{number % 2 == 0}", f"'t{number}'", str(number * 100_000))
    values = ["null" if (n * number) % 7 == 0 else drawn[n % 4] for n in range(1, 1600)]
    return f"values ({number}, {', '.join(values)})"


# -- tables --------------------------------------------------------------------------------------------------


def make_tables(source: Session, kind: str, *, rows: bool) -> None:
    """Create tables with one row each, in one transaction; their columns differ, and so do their schemas."""
    source.run("begin")
    for number in range(TABLES):
        source.run(f"create table {kind}{number} (id int primary key, number int, of_{number} text)")
        if rows:
            source.run(f"insert into {kind}{number} values (1, {number}, 'first')")
    source.run("commit")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("cleaned")
def test_many_tables(services: ServiceAddresses, database: str, source: Session, new_relay: NewRelay) -> None:
    """Relay all tables: their snapshot, one transaction over all, and one that creates as many more."""
    make_tables(source, "t", rows=True)
    relay = new_relay()
    source.publish_all(relay.name)
    begun = time.monotonic()
    relay.start()
    relay.wait("the snapshot", lambda status: status.state == "streaming", PATIENCE + TABLES)
    print(f"{TABLES} tables: snapshot and start {time.monotonic() - begun:.1f} s")
    source.run("begin")
    for number in reversed(range(TABLES)):
        source.run(f"update t{number} set number = -1")
    source.run("commit")
    told(relay, "a transaction with a row of each", TABLES)
    make_tables(source, "u", rows=True)
    told(relay, "a transaction that makes as many again, with a row in each", 2 * TABLES)
    status = relay.wait_caught_up(PATIENCE + TABLES)
    peak = peak_bytes(relay)
    print(f"at most {peak / 1e6:.0f} MB, then {status.resident_bytes / 1e6:.0f} MB")
    assert peak < MEMORY_BYTES + 2 * TABLES * TABLE_BYTES
    relay.stop()
    assert_each_table(services, source, relay)


def told(relay: Relay, what: str, changes: int) -> None:
    """Report the time until the first message from here on, and until the last one."""
    begun, first = time.monotonic(), 0.0
    before = changes - TABLES
    while True:
        status = relay.status()
        tables = status.tables.values() if status is not None else ()
        sent = sum(table.inserts + table.updates for table in tables) - before
        first = first or (time.monotonic() - begun if sent > 0 else 0.0)
        if sent >= TABLES:
            break
        assert time.monotonic() - begun < PATIENCE + TABLES, f"{what}: {sent} of {TABLES}"
        time.sleep(0.02)
    print(f"{what}: the first after {first:.2f} s, all after {time.monotonic() - begun:.2f} s")


def assert_each_table(services: ServiceAddresses, source: Session, relay: Relay) -> None:
    """Check that each topic equals its table, and that the rows of each transaction are in commit order."""
    names = [f"{kind}{number}" for kind in "tu" for number in range(TABLES)]
    topics = [f"{relay.name}.{name}" for name in names]
    found = decoded_topics(services, topics)
    for name, topic in zip(names, topics, strict=True):
        table = [json.loads(row) for (row,) in source.rows(f"select to_jsonb(t)::text from {name} t")]
        rows = latest(found[topic]).values()
        assert [{n: v for n, v in row.items() if n != "__escaped"} for row in rows] == table, name
    order: dict[bytes, dict[int, str]] = defaultdict(dict)
    for (topic, _), messages in raw_records(services, topics).items():
        for message in messages:
            headers = dict(headers_of(message))
            if headers["bwtui.op"] != b"snapshot":
                ordinal = int.from_bytes(headers["bwtui.ordinal"] or b"")
                order[headers["bwtui.lsn"] or b""][ordinal] = topic.partition(".")[2]
    first, second = (order[lsn] for lsn in sorted(order))
    assert [first[at] for at in sorted(first)] == names[:TABLES][::-1]
    assert [second[at] for at in sorted(second)] == names[TABLES:]
