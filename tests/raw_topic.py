"""Read the raw bytes of a topic."""

import time
import uuid
from contextlib import closing

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from bwtui.kafka.client import WITHOUT_LEADER
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.waiting import eventually

RawMessage = tuple[bytes | None, bytes | None]

_SILENCE_SECONDS = 15.0


def raw_messages(services: ServiceAddresses, topic: str) -> list[RawMessage]:
    """Return key and value of every message of ``topic``, partition by partition; none if it is missing."""
    return raw_topics(services, [topic])[topic]


def raw_topics(services: ServiceAddresses, topics: list[str], **settings: str) -> dict[str, list[RawMessage]]:
    """Return the result of `raw_messages` for several topics, which are read at once.

    ``settings`` are additional consumer settings, with an underscore for each dot.
    """
    found = {
        place: [(message.key(), message.value()) for message in messages]
        for place, messages in raw_records(services, topics, **settings).items()
    }
    return {
        topic: [one for place in sorted(found) if place[0] == topic for one in found[place]]
        for topic in topics
    }


def raw_records(
    services: ServiceAddresses, topics: list[str], **settings: str
) -> dict[tuple[str, int], list[Message]]:
    """Return every record of several topics, by topic and partition.

    Replaces a consumer that receives nothing with a new one: a consumer that begins while a leader changes (a
    broker without CPU time for three seconds is fenced) may wait forever.
    """
    for _ in range(4):
        found = _read(services, topics, settings)
        if found is not None:
            return found
    raise AssertionError(f"nobody could read all of {', '.join(topics)}")


def committed_records(services: ServiceAddresses, topics: list[str]) -> list[Message]:
    """Return every committed record of several topics, in the order of each partition."""
    settings = {
        "bootstrap.servers": services.broker,
        "group.id": uuid.uuid4().hex,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    found: list[Message] = []
    with closing(Consumer(settings)) as consumer:
        known = consumer.list_topics(timeout=30).topics
        places = {(t, p) for t in topics if t in known for p in known[t].partitions}
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
        until = time.monotonic() + 60
        while places:
            assert time.monotonic() < until, f"nobody could read all of {places}"
            for message in consumer.consume(5_000, 0.1):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    # This also arrives if an open transaction follows.
                    places.discard((message.topic(), message.partition()))
                else:
                    assert error.code() in WITHOUT_LEADER, error
    return found


def place_of(message: Message) -> tuple[str, int, int]:
    """Return topic, partition and offset of a message."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None and partition is not None and offset is not None
    return topic, partition, offset


def _read(
    services: ServiceAddresses, topics: list[str], settings: dict[str, str]
) -> dict[tuple[str, int], list[Message]] | None:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    ours = {"bootstrap.servers": services.broker, "group.id": uuid.uuid4().hex}
    with closing(Consumer(given | ours | {"enable.auto.commit": False})) as consumer:
        known = consumer.list_topics(timeout=30).topics
        places = [TopicPartition(t, p) for t in topics if t in known for p in known[t].partitions]
        ends = eventually("every partition has a leader", lambda: _ends(consumer, places)) if places else []
        consumer.assign(
            [TopicPartition(at.topic, at.partition, low) for at, (low, _) in zip(places, ends, strict=True)]
        )
        found: dict[tuple[str, int], list[Message]] = {(at.topic, at.partition): [] for at in places}
        highs = {(at.topic, at.partition): high for at, (_, high) in zip(places, ends, strict=True)}
        missing = sum(high - low for low, high in ends)
        heard = time.monotonic()
        while missing:
            batch = consumer.consume(5_000, 0.1)
            errors = [message.error() for message in batch if message.error() is not None]
            assert not errors, errors
            # Ignore records newer than the end offsets: counting them would hide missing ones.
            due = [(place, one) for one in batch if (place := place_of(one))[2] < highs[place[:2]]]
            for (topic, partition, _), message in due:
                found[topic, partition].append(message)
            missing -= len(due)
            if due:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_SECONDS:
                return None
    return found


def _ends(consumer: Consumer, places: list[TopicPartition]) -> list[tuple[int, int]] | None:
    """Return the first and next offsets, or None as long as a new topic has no leaders."""
    try:
        return [consumer.get_watermark_offsets(place, 30) for place in places]
    except KafkaException as error:
        if error.args[0].code() in WITHOUT_LEADER:
            return None
        raise
