"""Rows of a key in the wrong partitions: the audit finds them, and repair deletes them there."""

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bwtui.repair.strays import KeyPartitioner
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.settings import RelaySettings
from tests.attempts import Attempts
from tests.database import Session
from tests.fresh_topic import create_topic
from tests.integration.test_repair import repaired
from tests.integration.test_repair_alone import Elsewhere
from tests.integration.test_verify_database import relaying
from tests.raw_topic import raw_records

pytestmark = pytest.mark.services

_HOUR_MS = 3_600_000
Place = tuple[int, bytes]


def newest(attempts: Attempts, topic: str) -> dict[Place, bytes | None]:
    """Return the latest value of each key in each partition."""
    found: dict[Place, bytes | None] = {}
    for (_, partition), records in raw_records(attempts.services, [topic]).items():
        for record in records:
            key = record.key()
            assert key is not None
            found[partition, key] = record.value()
    return found


def stray(attempts: Attempts, topic: str) -> list[Place]:
    """Write rows of three keys into wrong partitions: an older, a newer, and one of a deleted key.

    Return their places.
    """
    now = time.time_ns() // 1_000_000
    rows = sorted(newest(attempts, topic).items())[:3]
    assert len({partition for (partition, _), _ in sorted(newest(attempts, topic).items())}) > 1
    planted = []
    with closing(Producer({"bootstrap.servers": attempts.services.broker})) as producer:
        for number, ((home, key), value) in enumerate(rows):
            other = (home + 1) % 3
            when = now + _HOUR_MS if number == 1 else now - _HOUR_MS
            producer.produce(topic, value, key, other, timestamp=when)
            planted.append((other, key))
            if number == 2:
                producer.produce(topic, None, key, home)
        assert producer.flush(30) == 0
    return planted


def verified(attempts: Attempts) -> tuple[int, dict[str, Any]]:
    """Compare the relay's tables with their topics."""
    ended = attempts.command("verify", "--database", "--relay", attempts.name, "--json")
    return ended.code, json.loads(ended.stdout)


def test_rows_in_other_partitions_are_found_and_deleted(
    attempts: Attempts, source: Session, database: str
) -> None:
    topic = f"{attempts.name}.a"
    source.run(
        "create table a (id int primary key, v text); insert into a select g, g from generate_series(1, 30) g"
    )
    with relaying(attempts, database, source):
        planted = stray(attempts, topic)
        code, report = verified(attempts)
        # The third key's row is there, and its newest record is a tombstone.
        assert (code, report["classes"]["stray_row"], report["classes"]["missing_key"]) == (1, 3, 1)
        found = [one for one in report["findings"] if one["class"] == "stray_row"]
        assert all("its newest record is in partition" in one["note"] for one in found)
        planned = repaired(attempts, 1, "--dry-run")
        assert (planned["rows"], planned["stray_tombstones"], planned["messages"]) == (3, 3, 6)
        done = repaired(attempts, 0, "--yes")
        assert (done["verdict"], done["state"], done["untrusted"]) == ("clean", "done", [])
        after = newest(attempts, topic)
        assert [after[place] for place in planted] == [None] * 3
        # Each key has one row, in its own partition.
        assert len([value for value in after.values() if value is not None]) == 30
        assert verified(attempts)[0] == 0


def test_a_row_that_is_nowhere_else_is_deleted_where_it_is(
    attempts: Attempts, source: Session, database: str
) -> None:
    """The table has no row of the key, and the topic has some in wrong partitions."""
    topic = f"{attempts.name}.a"
    source.run(
        "create table a (id int primary key, v text); insert into a select g, g from generate_series(1, 9) g"
    )
    with relaying(attempts, database, source):
        before = newest(attempts, topic)
        (_, key), value = sorted(before.items())[0]
        assert value is not None and key[-1] < 0x40
        # An id of no row, in a partition that is not its own; and bytes without a schema.
        strangers = [(other, key[:-1] + b"\x7e") for other in range(3)] + [(n, b"none") for n in range(3)]
        with closing(Producer({"bootstrap.servers": attempts.services.broker})) as producer:
            for other, name in strangers:
                producer.produce(topic, value, name, other)
            assert producer.flush(30) == 0
        classes = verified(attempts)[1]["classes"]
        assert (classes["extra_key"], classes["stray_row"]) == (2, 0)
        done = repaired(attempts, 0, "--yes")
        assert done["stray_tombstones"] == 4
        after = newest(attempts, topic)
        assert [after[place] for place in strangers] == [None] * 6
        assert after == before | dict.fromkeys(strangers)


def test_a_stray_row_whose_key_cant_be_decoded(attempts: Attempts, source: Session, database: str) -> None:
    """Its newest record is a tombstone in a different partition, and the row is in the key's own."""
    topic = f"{attempts.name}.a"
    source.run("create table a (id int primary key, v text); insert into a values (1, 'one')")
    with relaying(attempts, database, source):
        [value] = newest(attempts, topic).values()
        [home] = KeyPartitioner(RelaySettings(broker=attempts.services.broker)).of(topic, [b"none"])
        other = (home + 1) % 3
        with closing(Producer({"bootstrap.servers": attempts.services.broker})) as producer:
            producer.produce(topic, value, b"none", home)
            producer.produce(topic, None, b"none", other, timestamp=time.time_ns() // 1_000_000 + _HOUR_MS)
            assert producer.flush(30) == 0
        code, report = verified(attempts)
        [found] = report["findings"]
        assert (code, found["class"], found["partition"]) == (1, "stray_row", home)
        assert found["note"] == f"its key can't be decoded; its newest record is in partition {other}"
        done = repaired(attempts, 0, "--yes")
        assert (done["verdict"], done["messages"]) == ("clean", 1)
        assert newest(attempts, topic)[home, b"none"] is None
        assert verified(attempts)[0] == 0


@pytest.mark.parametrize("partitioner", ["murmur2_random", "consistent", "fnv1a_random"])
def test_a_keys_own_partition_is_the_producers(services: ServiceAddresses, partitioner: str) -> None:
    topic = f"homes-{partitioner}-{time.monotonic_ns()}"
    broker = services.broker
    create_topic(AdminClient({"bootstrap.servers": broker}), NewTopic(topic, 7))
    with closing(Producer({"bootstrap.servers": broker, "partitioner": partitioner})) as producer:
        for number in range(200):
            producer.produce(topic, b"", b"%d" % number**3)
        assert producer.flush(30) == 0
    records = raw_records(services, [topic])
    found = {record.key(): place for (_, place), every in records.items() for record in every}
    homes = KeyPartitioner(RelaySettings(broker=broker, kafka_config=(("partitioner", partitioner),)))
    keys = [key for key in found if key is not None]
    assert len(keys) == 200
    assert homes.of(topic, keys) == [found[key] for key in keys]


def test_beside_another_relay(attempts: Attempts, source: Session, database: str, tmp_path: Path) -> None:
    topic = f"{attempts.name}.a"
    source.run(
        "create table a (id int primary key, v text); insert into a select g, g from generate_series(1, 30) g"
    )
    with relaying(attempts, database, source):
        planted = stray(attempts, topic)
        done = Elsewhere(attempts, database, tmp_path / "elsewhere").repaired(0, "--yes")
        assert (done["verdict"], done["stray_tombstones"]) == ("clean", 3)
        # None of its keys was mistaken for one that the other relay has sent meanwhile.
        assert sum(one["left_out"] for one in done["sent"]) == 0
        after = newest(attempts, topic)
        assert [after[place] for place in planted] == [None] * 3
