"""Read the records since a commit from a real Kafka, by the headers of the records."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bwtui.kafka.key_reader import RecentRecordReader
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.fresh_topic import create_topic

#: The time of the commit with LSN 0, in Unix milliseconds; each LSN is a second later.
_BEGUN = 1_700_000_000_000
_FORK = 5_000


@pytest.fixture
def reader(services: ServiceAddresses) -> Iterator[RecentRecordReader]:
    """Return a reader of recent records."""
    with closing(RecentRecordReader({"bootstrap.servers": services.broker})) as made:
        yield made


def topic_with(
    services: ServiceAddresses, *records: tuple[int, bytes | None], config: dict[str, str] | None = None
) -> str:
    """Return a topic of one partition with records of these LSNs and keys; -1 has no headers."""
    name = f"tails-{time.monotonic_ns():x}"
    # Otherwise Kafka deletes records of commits that old at its next retention check.
    made = NewTopic(name, 1, 1, config={"retention.ms": "-1", **(config or {})})
    create_topic(AdminClient({"bootstrap.servers": services.broker}), made)
    producer = Producer({"bootstrap.servers": services.broker})
    for lsn, key in records:
        headers: dict[str, str | bytes | None] = (
            {} if lsn < 0 else {"bwtui.lsn": lsn.to_bytes(8, "big"), "bwtui.op": b"insert"}
        )
        stamp = _BEGUN + 1_000 * abs(lsn)
        producer.produce(name, b"row", key, partition=0, timestamp=stamp, headers=headers)
    producer.flush(30)
    return name


def test_what_is_behind_the_fork_is_found_and_nothing_else(
    services: ServiceAddresses, reader: RecentRecordReader
) -> None:
    older = [(lsn, b"old") for lsn in range(2_000, _FORK)]
    sent = [(_FORK, b"a"), (_FORK + 1, b"b"), (_FORK + 2, b"a")]
    topic = topic_with(services, *older, *sent, (_FORK + 9, b"of the new primary"))
    tail = reader.sent_since(topic, {0: len(older) + len(sent)}, _FORK)
    assert {key: one.lsn for key, one in tail.sent.items()} == {b"a": _FORK + 2, b"b": _FORK + 1}
    assert (tail.unknown, tail.keyless) == (0, 0)


@pytest.mark.parametrize("stamps", ["CreateTime", "LogAppendTime"])
def test_what_was_read_again_since_hides_nothing(
    services: ServiceAddresses, reader: RecentRecordReader, stamps: str
) -> None:
    """The relay had read again from before the fork, and had only just reached it when the primary failed."""
    sent = [(_FORK + n, b"sent %d" % n) for n in range(3)]
    again = [(_FORK - 1_200 + n, b"again") for n in range(1_150)]
    records = [(_FORK - 1_200, b"old"), *sent, *again]
    topic = topic_with(services, *records, config={"message.timestamp.type": stamps})
    tail = reader.sent_since(topic, {0: len(records)}, _FORK)
    assert tail.sent.keys() == {b"sent 0", b"sent 1", b"sent 2"}


def test_a_topic_that_has_nothing_older_is_read_whole(
    services: ServiceAddresses, reader: RecentRecordReader
) -> None:
    topic = topic_with(services, *[(_FORK + n, b"%d" % n) for n in range(2_500)], (_FORK, None))
    tail = reader.sent_since(topic, {0: 2_501}, _FORK)
    assert (len(tail.sent), tail.keyless) == (2_500, 1)
    assert reader.sent_since(topic, {0: 0}, _FORK).sent == {}


def test_records_without_headers_are_not_known(
    services: ServiceAddresses, reader: RecentRecordReader
) -> None:
    topic = topic_with(services, *[(-n, b"old") for n in range(1, 4_000)], (_FORK, b"new"))
    tail = reader.sent_since(topic, {0: 4_000}, _FORK)
    assert tail.sent.keys() == {b"new"}
    assert tail.unknown
