"""Read the records of one key from a real Kafka: with bounds, and with a timeout."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError
from bwtui.kafka import key_reader as module
from bwtui.kafka.key_reader import KeyReader
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.fresh_topic import create_topic


@pytest.fixture
def topic(services: ServiceAddresses) -> str:
    """A topic of three partitions."""
    name = f"keys-{time.monotonic_ns():x}"
    create_topic(AdminClient({"bootstrap.servers": services.broker}), NewTopic(name, 3, 1))
    return name


@pytest.fixture
def reader(services: ServiceAddresses) -> Iterator[KeyReader]:
    """Return a reader of keys."""
    with closing(KeyReader({"bootstrap.servers": services.broker})) as made:
        yield made


def produce(services: ServiceAddresses, topic: str, *records: tuple[int, bytes | None, bytes | None]) -> None:
    """Send keys and values into partitions, a second apart."""
    producer = Producer({"bootstrap.servers": services.broker})
    headers: dict[str, str | bytes | None] = {"bwtui.lsn": b"\0" * 8}
    for number, (partition, key, value) in enumerate(records):
        stamp = 1_700_000_000_000 + 1_000 * number
        producer.produce(topic, value, key, partition=partition, timestamp=stamp, headers=headers)
    producer.flush(30)


def test_of_a_busy_key_the_newest_records_are_kept(
    services: ServiceAddresses, topic: str, reader: KeyReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records dropped because of their number leave room for the bytes of later ones."""
    monkeypatch.setattr(module, "_KEPT_BYTES", 300_000)
    values = [200] * module.KEPT + [10] * (2 * module.KEPT) + [20_000] * 12
    produce(services, topic, *((0, b"key", b"v" * size) for size in values))
    found = reader.of_key(topic, b"key".__eq__)
    kept = [len(record.value or b"") for record in found.records]
    assert (found.count, kept[-12:], len(kept)) == (len(values), [20_000] * 12, module.KEPT)


def test_the_records_of_a_key_are_found_in_every_partition(
    services: ServiceAddresses, topic: str, reader: KeyReader
) -> None:
    records = [(n % 3, b"key %d" % (n % 10), b"value %d" % n) for n in range(300)]
    produce(services, topic, *records, (1, b"key 4", None), (2, None, b"keyless"))
    found = reader.of_key(topic, b"key 4".__eq__)
    assert (found.count, len(found.records), found.scanned, found.is_cut) == (31, 31, 302, False)
    assert found.newest is not None
    assert (found.newest.partition, found.newest.value) == (1, None)
    assert found.newest.timestamp == 1_700_000_300_000
    assert found.newest.headers == (("bwtui.lsn", b"\0" * 8),)
    one = found.at(1, 1)
    assert one is not None
    assert one.value == b"value 4"
    alone = reader.of_key(topic, b"key 4".__eq__, 1)
    assert {record.partition for record in alone.records} == {1}
    assert reader.of_key(topic, b"nobody".__eq__).newest is None
    # A broker that has answered before and now closes connections does not need another protocol.
    assert reader._heard.has_answered


def test_a_search_reads_the_newest_offsets_only_and_says_so(
    services: ServiceAddresses, topic: str, reader: KeyReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(services, topic, *[(0, b"a", b"%d" % n) for n in range(100)])
    monkeypatch.setattr(module, "MOST_OFFSETS", 30)
    found = reader.of_key(topic, b"a".__eq__, 0)
    assert (found.count, found.scanned, found.is_cut) == (30, 30, True)
    assert found.records[0].value == b"70"
    whole = reader.of_key(topic, b"a".__eq__)
    assert (whole.scanned, whole.is_cut) == (10, True)


def test_a_record_by_its_place_or_what_is_there_instead(
    services: ServiceAddresses, topic: str, reader: KeyReader
) -> None:
    produce(services, topic, (0, b"a", b"1"), (0, b"a", b"2"))
    found = reader.record(topic, 0, 1)
    assert not isinstance(found, str)
    assert (found.key, found.value) == (b"a", b"2")
    assert reader.record(topic, 0, 7) == "truncated"
    admin = AdminClient({"bootstrap.servers": services.broker})
    for future in admin.delete_records([TopicPartition(topic, 0, 1)]).values():
        future.result()
    assert reader.record(topic, 0, 0) == "expired"


def test_what_is_not_there_is_told(services: ServiceAddresses, reader: KeyReader) -> None:
    with pytest.raises(RefusedError, match="topic nowhere-at-all does not exist"):
        reader.of_key("nowhere-at-all", b"a".__eq__)
    with closing(KeyReader({"bootstrap.servers": "127.0.0.1:1"})) as lost:
        begun = time.monotonic()
        with pytest.raises(ConnectionFailed, match=r"reach Kafka at 127\.0\.0\.1:1"):
            lost.of_key("any", b"a".__eq__)
        assert time.monotonic() - begun < 8


def test_who_left_is_not_answered(services: ServiceAddresses, topic: str) -> None:
    produce(services, topic, (0, b"a", b"1"))
    left = threading.Event()
    with closing(KeyReader({"bootstrap.servers": services.broker}, left.is_set)) as reader:
        assert reader.of_key(topic, b"a".__eq__).count == 1
        left.set()
        with pytest.raises(BwtuiError, match="the read was cancelled"):
            reader.of_key(topic, b"a".__eq__)
