"""The topics of one run: made alike for whoever writes them, and read to the last message behind the run."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bwtui.audit.canonical_values import Schemas
from bwtui.encode.registry import SchemaRegistry
from bwtui.errors import BwtuiError
from bwtui.kafka.client import WITHOUT_LEADER
from bwtui.sandbox.sandbox import ServiceAddresses

#: The broker says when a message came, by one clock for whoever sends.
_SETTINGS = {"retention.ms": "-1", "cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
_REQUEST_SECONDS = 30
#: The hint of whatever makes a run's figures worthless.
NO_FIGURES = "the figures would be wrong, so there are none"
#: Without a new message a run counts as stuck.
STUCK_SECONDS = 180.0
_LOOK_SECONDS = 0.05
#: Partitions whose offsets are asked for in one request.
_AT_ONCE = 300
#: What is said of partitions that have no leader yet, and of topics of which the broker knows nothing yet.
_TOO_YOUNG = WITHOUT_LEADER | {KafkaError._NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART}
#: Of so many messages the values are compared with the table.
_SAMPLED = 200
#: Of Confluent's wire format: a zero byte and the schema's id.
_HEAD = 5
#: One of a key's bytes that is followed by another, in Avro's form of numbers.
_MORE = 0x80


@dataclass(slots=True)
class Counted:
    """All that is in a run's topics."""

    messages: int = 0
    distinct: int = 0
    #: Of the keys, which are the numbers from 1 on.
    sum_of_keys: int = 0
    value_bytes: int = 0
    #: When the first and the last message were appended, in seconds since 1970.
    first: float = 0.0
    last: float = 0.0
    #: Some values as they are, by key.
    samples: dict[int, bytes] = field(default_factory=dict)


class Topics:
    """One run's topics, by table."""

    def __init__(self, services: ServiceAddresses, names: Mapping[str, str], partitions: int) -> None:
        """``names`` are the topics' of each table."""
        self._services = services
        self._tables = {topic: table for table, topic in names.items()}
        self._places = [TopicPartition(topic, one) for topic in names.values() for one in range(partitions)]
        self._partitions = partitions
        self._admin = AdminClient({"bootstrap.servers": services.broker})

    @contextlib.contextmanager
    def made(self) -> Iterator["Topics"]:
        """Make the topics; they are gone behind the block."""
        wanted = [NewTopic(topic, self._partitions, 1, config=_SETTINGS) for topic in self._tables]
        for made in self._admin.create_topics(wanted, request_timeout=_REQUEST_SECONDS).values():
            made.result()
        try:
            # Of many topics the last have no leader yet.
            self.wait_for(0, lambda: None)
            yield self
        finally:
            gone = self._admin.delete_topics(list(self._tables), request_timeout=_REQUEST_SECONDS)
            for one in gone.values():
                one.result()

    def wait_for(self, messages: int, check: Callable[[], object]) -> None:
        """Wait until so many messages are there; ``check`` raises once whoever sends them is lost.

        Raises BwtuiError when none comes for a long time.
        """
        seen, since = -1, time.monotonic()
        # To ask for many topics is work, which the broker and whoever sends would lack.
        pause = _LOOK_SECONDS * (1 + len(self._places) / 50)
        while seen < messages:
            time.sleep(pause)
            check()
            there = self._there()
            if there is not None and there != seen:
                seen, since = there, time.monotonic()
            elif time.monotonic() - since > STUCK_SECONDS:
                raise BwtuiError(
                    f"only {max(seen, 0):,} of {messages:,} messages came, none for {STUCK_SECONDS:.0f} s",
                    NO_FIGURES,
                )

    def read(self) -> Counted:
        """Read everything."""
        counted, keys, times = Counted(), set(), set()  # type: Counted, set[tuple[str, int]], set[int]
        expected = self._there() or 0
        every = max(expected // _SAMPLED, 1)
        for message in self._messages():
            topic, value = message.topic(), message.value()
            key = number_of(message.key())
            keys.add((topic, key))
            counted.sum_of_keys += key
            counted.value_bytes += len(value or b"")
            times.add(message.timestamp()[1])
            if counted.messages % every == 0 and value is not None:
                counted.samples[key] = value
            counted.messages += 1
        counted.distinct = len(keys)
        if times:
            counted.first, counted.last = min(times) / 1e3, max(times) / 1e3
        return counted

    def _there(self) -> int | None:
        """Return how many messages there are; None while a partition has no leader."""
        found = 0
        # Not all at once: confluent-kafka 2.16 damages its memory where a call with many is slow.
        for begin in range(0, len(self._places), _AT_ONCE):
            wanted = dict.fromkeys(self._places[begin : begin + _AT_ONCE], OffsetSpec.latest())
            asked = self._admin.list_offsets(wanted, request_timeout=_REQUEST_SECONDS)
            try:
                found += sum(one.result().offset for one in asked.values())
            except KafkaException as error:
                if error.args[0].code() not in _TOO_YOUNG:
                    raise
                return None
        return found

    def _messages(self) -> Iterator[Any]:
        settings = {
            "bootstrap.servers": self._services.broker,
            "group.id": "bench",
            "enable.auto.commit": False,
            # Offsets don't say how many messages there are: the end of a transaction has one too.
            "enable.partition.eof": True,
        }
        with contextlib.closing(Consumer(settings)) as consumer:
            consumer.assign([TopicPartition(place.topic, place.partition, 0) for place in self._places])
            ended, since = 0, time.monotonic()
            while ended < len(self._places):
                batch = consumer.consume(10_000, 1)
                for message in batch:
                    error = message.error()
                    if error is None:
                        yield message
                    elif error.code() == KafkaError._PARTITION_EOF:
                        ended += 1
                    else:
                        raise BwtuiError(f"a topic can't be read: {error}", "run it again")
                if batch:
                    since = time.monotonic()
                elif time.monotonic() - since > STUCK_SECONDS:
                    raise BwtuiError("a topic can't be read to its end", "the broker's log may say why")


def check(counted: Counted, rows: int) -> None:
    """Raise BwtuiError unless each row from 1 to ``rows`` came, and once."""
    found = (counted.messages, counted.distinct, counted.sum_of_keys)
    if found != (rows, rows, rows * (rows + 1) // 2):
        raise BwtuiError(
            f"the topics have {counted.messages:,} messages of {counted.distinct:,} keys for {rows:,} rows,"
            f" and their keys add up to {counted.sum_of_keys:,}",
            NO_FIGURES,
        )


def decoded(services: ServiceAddresses, samples: Mapping[int, bytes]) -> dict[int, dict[str, Any]]:
    """Return values by key, decoded by fastavro under the schemas that the registry has."""
    with contextlib.closing(SchemaRegistry(services.schema_registry)) as registry:
        schemas = Schemas({}, registry.schema_text)
        return {key: schemas.decode(value)[1] for key, value in samples.items()}


def check_values(
    rows: Sequence[tuple[Any, ...]], names: Sequence[str], values: Mapping[int, dict[str, Any]]
) -> None:
    """Raise BwtuiError unless the values are those of the rows, but for the forms of a timestamp.

    The id is the first of ``names``.
    """
    if {row[0] for row in rows} != set(values):
        raise BwtuiError("rows were sent that the table has not", NO_FIGURES)
    for row in rows:
        sent = values[row[0]]
        for name, value in zip(names, row, strict=True):
            if _plain(sent[name]) != _plain(value):
                raise BwtuiError(
                    f"column {name} of the row {row[0]} was sent with another value than the table has",
                    NO_FIGURES,
                )


def _plain(value: Any) -> Any:
    if isinstance(value, str) and value[4:5] == "-" and value.endswith("Z"):
        # Debezium's form of a timestamptz.
        return datetime.fromisoformat(value)
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def number_of(key: bytes) -> int:
    """Return the number that a key is: the last one in it, of Avro's, behind the schema's id.

    bwtui's has a number before it, which says that the key's column is not null.
    """
    shift = number = 0
    for byte in key[_HEAD:]:
        number |= (byte & ~_MORE) << shift
        shift += 7
        if not byte & _MORE:
            last, shift, number = number, 0, 0
    return (last >> 1) ^ -(last & 1)
