"""Plant faults in a topic, as incidents do, so that users can watch the audit find them.

The topic is recreated with its records and the faults, because Kafka's records can't be changed in place.
Every record without a fault keeps its partition, offset, time and headers.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bwtui.demo.logs import log_hint
from bwtui.demo.reset import create_topics
from bwtui.errors import BwtuiError, RefusedError
from bwtui.kafka.client import headers_of, log

_TIMEOUT = 30.0
_LOST, _CHANGED, _DOUBLED = 3, 2, 2
#: Findings that result from a planted fault: a lost record also tears its transaction, and if it was the
#: newest of its key, readers of the topic now see an older one.
CONSEQUENCES = ("regressed", "resurrected", "torn_transaction")


class TooFewRecords(RefusedError):
    """The topic has too few records for every fault."""


class PartitionRecord(NamedTuple):
    """A record of a partition; the timestamp is in Unix milliseconds."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes], ...] = ()


Partitions = dict[int, list[PartitionRecord]]


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """A planted fault: a class of docs/audit.md, and where the audit must find it."""

    name: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """The planted faults compared with the findings of an audit."""

    planted: Mapping[str, int]
    found: Mapping[str, int]
    #: Faults that the audit did not find at their place.
    overlooked: Sequence[PlantedFault]
    #: Classes with more findings than planted faults.
    invented: Sequence[str]

    @property
    def holds(self) -> bool:
        """Return whether the audit found all of them, and nothing else."""
        return not self.overlooked and not self.invented

    @property
    def sentence(self) -> str:
        """The judgement in one sentence."""
        number = sum(self.planted.values())
        if self.holds:
            return f"the audit found all {number} planted faults, and nothing else"
        places = [f"{one.name} at {one.topic} {one.partition}@{one.offset}" for one in self.overlooked]
        mistakes = [f"it did not find {', '.join(places)}"] if places else []
        mistakes += (
            [f"it reported {', '.join(self.invented)}, which was not planted"] if self.invented else []
        )
        return f"of {number} planted faults: {'; '.join(mistakes)}"

    def to_json(self) -> dict[str, Any]:
        """Return the judgement's part of the demo's JSON object."""
        return {"planted": dict(self.planted), "found": dict(self.found), "all_found": self.holds}


def sabotage(broker: str, topic: str, seed: int) -> list[PlantedFault]:
    """Plant faults in ``topic`` and return them. Raises RefusedError when it has too few records for that."""
    try:
        contents = _read(broker, topic)
        damaged, faults = plan(topic, contents, random.Random(seed))
        _write(broker, topic, damaged)
    except KafkaException as error:
        problem = f"faults could not be planted in topic {topic}: {error.args[0].str()}"
        raise BwtuiError(problem, log_hint("kafka")) from error
    return faults


def can_sabotage(broker: str, topic: str, seed: int) -> bool:
    """Return whether ``topic`` has enough records for every fault. Raises RefusedError."""
    try:
        plan(topic, _read(broker, topic), random.Random(seed))
    except TooFewRecords:
        return False
    return True


def judge(faults: Sequence[PlantedFault], report: Mapping[str, Any]) -> Judgement:
    """Compare the planted faults with the findings of ``bwtui verify --json``."""
    places = {
        (finding["class"], finding["topic"], finding["partition"], finding["offset"])
        for finding in report["findings"]
    }
    overlooked = [
        fault for fault in faults if (fault.name, fault.topic, fault.partition, fault.offset) not in places
    ]
    planted = Counter(fault.name for fault in faults)
    counts = {name: count for name, count in report["findings_total"].items() if count}
    invented = [name for name, count in counts.items() if name not in CONSEQUENCES and count > planted[name]]
    return Judgement(planted, counts, overlooked, invented)


# -- faults --------------------------------------------------------------------------------------------------


def plan(topic: str, contents: Partitions, draw: random.Random) -> tuple[Partitions, list[PlantedFault]]:
    """Return the new contents of the topic instead of ``contents``, and the faults in them.

    Raises RefusedError when there are not enough records to choose from.
    """
    if len(contents) < 3:
        raise RefusedError(
            f"topic {topic} has {len(contents)} partitions, but --sabotage needs three",
            "leave out --sabotage",
        )
    planted = {partition: list(records) for partition, records in contents.items()}
    faults: list[PlantedFault] = []
    # Records can be reordered in the partition where most keys have several versions.
    *remaining, third = sorted(contents, key=lambda partition: len(_by_key(contents[partition], least=3)))
    first, second = sorted(remaining)[:2]
    try:
        _lose(planted[first], topic, first, faults)
        strayed = _change(planted[second], topic, second, faults, draw)
        _swap(planted[third], topic, third, faults, draw)
        _append(planted[third], strayed, topic, third, faults, draw)
    except (IndexError, ValueError):
        raise TooFewRecords(
            f"topic {topic} has too few records for --sabotage", "run the demo for more --seconds"
        ) from None
    return planted, faults


def _lose(records: list[PartitionRecord], topic: str, partition: int, faults: list[PlantedFault]) -> None:
    """Remove the newest records, like a broker that returns with an older copy of its log."""
    for _ in range(_LOST):
        records.pop()
        faults.append(PlantedFault("lost_acked", topic, partition, len(records)))


def _change(
    records: list[PartitionRecord],
    topic: str,
    partition: int,
    faults: list[PlantedFault],
    draw: random.Random,
) -> PartitionRecord:
    """Change a byte of some values; remove the newest record, and return it."""
    strayed = records.pop()
    keys = draw.sample([key for key in _by_key(records, least=2) if key != strayed.key], _CHANGED)
    for key in keys:
        # Not the newest of its key, because that would be an additional fault.
        at = _by_key(records, least=2)[key][0]
        value = records[at].value or b""
        records[at] = records[at]._replace(value=value[:-1] + bytes([value[-1] ^ 0x01]))
        faults.append(PlantedFault("corrupted", topic, partition, at))
    return strayed


def _swap(
    records: list[PartitionRecord],
    topic: str,
    partition: int,
    faults: list[PlantedFault],
    draw: random.Random,
) -> None:
    """Exchange two records of a key, neither its newest, so that one of them is late."""
    key = draw.choice(list(_by_key(records, least=3)))
    first, second = _by_key(records, least=3)[key][:2]
    records[first], records[second] = records[second], records[first]
    faults.append(PlantedFault("reordered", topic, partition, second))


def _append(
    records: list[PartitionRecord],
    strayed: PartitionRecord,
    topic: str,
    partition: int,
    faults: list[PlantedFault],
    draw: random.Random,
) -> None:
    """Append copies, a record of a different partition, a row that never existed, and a foreign record."""
    newest = {record.key: record for record in records}
    living = [record for record in newest.values() if record.value is not None]
    for copy in draw.sample(living, _DOUBLED):
        faults.append(PlantedFault("duplicated", topic, partition, len(records)))
        records.append(copy)
    now = records[-1].timestamp
    faults.append(PlantedFault("misrouted", topic, partition, len(records)))
    records.append(strayed)
    model = draw.choice(living)
    key = model.key or b""
    faults.append(PlantedFault("phantom", topic, partition, len(records)))
    # A key that no row ever had: five bytes of Confluent's header, the branch that is not null, and a varint
    # of Avro. Without headers, like the stream's. Older than the recording's end, after which the relay may
    # have continued for all that the audit knows.
    records.append(PartitionRecord(key[:6] + b"\xfe\xff\xff\xff\x7f", model.value, now - 1_000))
    faults.append(PlantedFault("foreign", topic, partition, len(records)))
    records.append(PartitionRecord(b"not ours", b"hello", now))


def _by_key(records: Sequence[PartitionRecord], least: int) -> dict[bytes, list[int]]:
    """Return the positions of each key's records, for keys with ``least`` distinct values, no tombstone."""
    places: dict[bytes, list[int]] = {}
    for at, record in enumerate(records):
        places.setdefault(record.key or b"", []).append(at)
    return {
        key: versions
        for key, versions in places.items()
        if all(records[at].value for at in versions) and len({records[at].value for at in versions}) >= least
    }


# -- the topic -----------------------------------------------------------------------------------------------


def _read(broker: str, topic: str) -> Partitions:
    """Return all records by partition. Raises RefusedError when offsets have holes."""
    consumer = Consumer(
        {"bootstrap.servers": broker, "group.id": "bwtui-sabotage", "enable.auto.commit": False}, logger=log
    )
    try:
        records: Partitions = {}
        places = []
        ends = 0
        for partition in consumer.list_topics(topic, _TIMEOUT).topics[topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), _TIMEOUT)
            if low:
                raise RefusedError(
                    f"Kafka has already removed the first records of topic {topic}",
                    "run the demo for fewer --seconds, so that the topic keeps all records",
                )
            records[partition] = []
            ends += high
            places.append(TopicPartition(topic, partition, 0))
        consumer.assign(places)
        while sum(map(len, records.values())) < ends:
            batch = consumer.consume(10_000, _TIMEOUT)
            if not batch:
                raise RefusedError(f"topic {topic} can't be read to its end", log_hint("kafka"))
            for message in batch:
                if message.error() is not None:
                    raise KafkaException(message.error())
                _, timestamp = message.timestamp()
                headers = tuple(headers_of(message))
                record = PartitionRecord(message.key(), message.value(), timestamp, headers)  # type: ignore[arg-type]
                records[message.partition() or 0].append(record)
        return records
    finally:
        consumer.close()


def _write(broker: str, topic: str, planted: Partitions) -> None:
    """Recreate ``topic`` with these records."""
    admin = AdminClient({"bootstrap.servers": broker}, logger=log)
    for future in admin.delete_topics([topic], operation_timeout=_TIMEOUT).values():
        future.result()
    create_topics(admin, [topic])
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True, "linger.ms": 5}, logger=log)
    refused: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            refused.append(error)

    for partition, records in planted.items():
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition,
                delivered,
                timestamp=record.timestamp,
                headers=list(record.headers),
            )
            producer.poll(0)
    if producer.flush(_TIMEOUT) or refused:
        raise BwtuiError(
            f"topic {topic} could not be rewritten: {refused[:1] or 'no answer'}",
            log_hint("kafka"),
        )
