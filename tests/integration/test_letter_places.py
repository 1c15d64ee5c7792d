"""The places of dead letters in their topic, among records of other producers."""

import json
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bwtui.kafka import dead_letter_topic
from bwtui.kafka.dead_letter_topic import DeadLetterTopicReader, identity
from bwtui.model.service_views import DeadLetterTopic
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.fresh_topic import create_topic
from tests.waiting import eventually


@pytest.fixture
def topic(services: ServiceAddresses) -> str:
    """A topic of two partitions."""
    name = f"letters-{time.monotonic_ns():x}"
    create_topic(AdminClient({"bootstrap.servers": services.broker}), NewTopic(name, 2, 1))
    return name


@pytest.fixture
def reader(services: ServiceAddresses, topic: str) -> Iterator[DeadLetterTopicReader]:
    opened = DeadLetterTopicReader({"bootstrap.servers": services.broker}, topic)
    yield opened
    opened.close()


def letter(number: int) -> bytes:
    found = {
        "table": "public.t",
        "operation": "insert",
        "commit_lsn": f"0/{number}",
        "ordinal": 1,
        "time": "…",
    }
    return json.dumps(found).encode()


def produce(services: ServiceAddresses, topic: str, *values: bytes | None, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": services.broker})
    for value in values:
        producer.produce(topic, value, partition=partition)
    producer.flush(30)


def which(number: int) -> str:
    return identity("public.t", "insert", f"0/{number}", 1)


def places(reader: DeadLetterTopicReader, number: int) -> list[tuple[int, int]]:
    return [(one.partition, one.offset) for one in reader.places([which(number)])]


def read(reader: DeadLetterTopicReader, records: int) -> DeadLetterTopic:
    def look() -> DeadLetterTopic | None:
        found = reader.poll()
        assert found.failure == ""
        return found if found.records >= records else None

    return eventually("all is read", look)


def test_letters_are_found_among_what_others_wrote(
    services: ServiceAddresses, topic: str, reader: DeadLetterTopicReader
) -> None:
    assert read(reader, 0).records == 0
    # A broker that has answered before and now closes connections does not need another protocol.
    assert reader._heard.has_answered
    hostile = (b"", b"{", b"\xff", b"[]", b'{"table": {}}', None, b'{"table": [], "operation": 1}')
    produce(services, topic, *hostile, letter(1))
    produce(services, topic, letter(2), letter(1), partition=1)
    found = read(reader, 10)
    assert (found.records, found.foreign, found.left_out, found.topic) == (10, 7, 0, topic)
    # A row that was read again has two dead letters.
    assert sorted(places(reader, 1)) == [(0, 7), (1, 1)]
    assert places(reader, 2) == [(1, 0)]
    assert places(reader, 3) == []
    # Reading continues with the new records.
    produce(services, topic, letter(3))
    assert read(reader, 11).records == 11
    assert places(reader, 3) == [(0, 8)]


def test_marks_of_transactions_are_nothing_to_wait_for(
    services: ServiceAddresses, topic: str, reader: DeadLetterTopicReader
) -> None:
    producer = Producer({"bootstrap.servers": services.broker, "transactional.id": topic})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, letter(1), partition=0)
        end(30)
    begun = time.monotonic()
    read(reader, 1)
    reader.poll()
    assert reader.poll().records == 1
    assert time.monotonic() - begun < 30


def test_of_a_long_topic_the_end_is_read(
    services: ServiceAddresses, topic: str, reader: DeadLetterTopicReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(services, topic, *map(letter, range(10_000)))
    found = read(reader, 10_000)
    assert (found.records, found.left_out) == (10_000, 0)
    assert places(reader, 9_999) == [(0, 9_999)]
    monkeypatch.setattr(dead_letter_topic, "_RECORDS", 100)
    later = DeadLetterTopicReader({"bootstrap.servers": services.broker}, topic)
    found = read(later, 100)
    later.close()
    assert (found.records, found.left_out) == (100, 9_900)


def test_a_look_reads_no_more_than_its_bytes_and_the_next_one_goes_on(
    services: ServiceAddresses, topic: str, reader: DeadLetterTopicReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(services, topic, *map(letter, range(200)))
    monkeypatch.setattr(dead_letter_topic, "_AT_ONCE", 10)
    monkeypatch.setattr(dead_letter_topic, "_LOOK_BYTES", 15 * len(letter(0)))
    before = looks = 0
    while before < 200:
        found = reader.poll()
        assert found.failure == ""
        assert found.records - before <= 20
        before, looks = found.records, looks + 1
    assert looks >= 10
    assert places(reader, 199) == [(0, 199)]


def test_of_one_change_the_newest_letters_are_remembered(
    services: ServiceAddresses, topic: str, reader: DeadLetterTopicReader
) -> None:
    produce(services, topic, *[letter(1)] * 9)
    read(reader, 9)
    assert places(reader, 1) == [(0, offset) for offset in range(4, 9)]
    assert [place.before for place in reader.places([which(1)])] == [4, 5, 6, 7, 8]


def test_what_was_read_is_forgotten_some_time_after_the_last_look(
    services: ServiceAddresses, topic: str, reader: DeadLetterTopicReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(services, topic, letter(1))
    read(reader, 1)
    reader.close()
    assert read(reader, 1).records == 1
    assert reader._forgetting is None, "somebody looks"
    monkeypatch.setattr(dead_letter_topic, "_KEPT_SECONDS", 0.05)
    reader.close()
    eventually("all is forgotten", lambda: not reader.has_read)
    assert places(reader, 1) == []
    assert read(reader, 1).records == 1
    assert places(reader, 1) == [(0, 0)]


def test_kafka_that_is_away_and_a_topic_that_is_not_there_are_one_sentence(
    services: ServiceAddresses,
) -> None:
    away = DeadLetterTopicReader({"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 1000}, "t")
    assert away.poll().failure.startswith("can't reach Kafka at 127.0.0.1:1")
    away.close()
    missing = DeadLetterTopicReader({"bootstrap.servers": services.broker}, "no-such-topic")
    assert "no-such-topic" in missing.poll().failure
    missing.close()
    none = DeadLetterTopicReader({"bootstrap.servers": services.broker}, "")
    assert (none.poll().failure, none.poll().topic) == ("", "")
    none.close()
