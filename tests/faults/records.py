"""Topics as an independent consumer reads them, record by record, with the headers of --headers."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any

import psycopg2
from confluent_kafka import Message

from bwtui.demo.shop import DemoTable
from bwtui.kafka.client import headers_of
from bwtui.model.headers import PART, SESSION
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.oracle import IndependentReader, OracleComparison, Place, TopicContents, compare
from tests.raw_topic import place_of

_HEADERS = {"bwtui.lsn", "bwtui.ordinal", "bwtui.op", "bwtui.xid", "bwtui.session"}
#: Operations of a snapshot, which have no position in the commit order.
OUTSIDE = ("snapshot", "leftover")


@dataclass(frozen=True, slots=True)
class Record:
    """One message: its place in the topic, its content, and the identity of its change."""

    topic: str
    partition: int
    offset: int
    key: tuple[Any, ...]
    value: dict[str, Any] | None
    lsn: int
    ordinal: int
    operation: str
    session: bytes
    part: int = 0

    @property
    def identity(self) -> tuple[str, int, int, str]:
        """Return the identity of the change, which is the same each time it is sent."""
        return self.topic, self.lsn, self.ordinal, self.operation


@dataclass(slots=True)
class RecordedTopic(TopicContents):
    """A topic, record by record; the records of a partition are in the order of their offsets."""

    records: list[Record] = field(default_factory=list)
    message: Message | None = None

    def add(self, key: Any, value: Any, partition: int | None, key_bytes: bytes | None) -> None:
        """Add one decoded record."""
        TopicContents.add(self, key, value, partition, key_bytes)
        message = self.message
        assert message is not None
        headers = {name: content for name, content in headers_of(message) if content is not None}
        topic, number, offset = place_of(message)
        # A tombstone for a row of a killed snapshot, or in a partition other than its key's, belongs to no
        # change.
        assert set(headers) - {PART} == _HEADERS or (set(headers) <= {SESSION} and value is None)
        self.records.append(
            Record(
                topic,
                number,
                offset,
                tuple(key[name] for name in self.key),
                value,
                int.from_bytes(headers.get("bwtui.lsn", b"")),
                int.from_bytes(headers.get("bwtui.ordinal", b"")),
                headers.get("bwtui.op", b"leftover").decode(),
                headers.get("bwtui.session", b""),
                int.from_bytes(headers.get(PART, b"")),
            )
        )


class RecordReader(IndependentReader):
    """The independent reader, which keeps the headers as well."""

    def _decode(self, message: Message, content: TopicContents) -> None:
        assert isinstance(content, RecordedTopic)
        content.message = message
        super()._decode(message, content)


class RecordFollower(RecordReader):
    """Starts each read where the last one ended, so that many reads cost as much as one.

    It keeps the earlier records, so that a comparison can use it as its reader.
    """

    def __init__(self, services: ServiceAddresses, tables: Sequence[DemoTable], prefix: str) -> None:
        super().__init__(services.broker, services.schema_registry)
        self._tables = list(tables)
        self._prefix = prefix
        self._contents = {
            topic: RecordedTopic(topic, table.key) for table in tables for topic in [table.topic(prefix)]
        }
        self._read_to: dict[Place, int] = {}

    def records(self) -> list[Record]:
        """Return every record since the last call."""
        counts = {topic: len(content.records) for topic, content in self._contents.items()}
        self._follow()
        assert not any(one.holes or one.unreadable for one in self._contents.values())
        return [one for topic, content in self._contents.items() for one in content.records[counts[topic] :]]

    def everything(self) -> list[Record]:
        """Return every record read so far."""
        return [record for content in self._contents.values() for record in content.records]

    def difference(self, database: str) -> OracleComparison:
        """Compare the topics' latest values with the tables, as `difference` does."""
        with closing(psycopg2.connect(database)) as connection:
            return compare(connection, self, self._tables, self._prefix)

    def read(self, contents: Iterable[TopicContents], progress: Callable[[int, int], None]) -> None:
        """Fill ``contents`` with all records read so far."""
        self._follow()
        for given in contents:
            for name in (one.name for one in fields(TopicContents)):
                setattr(given, name, copy(getattr(self._contents[given.topic], name)))

    def _follow(self) -> None:
        super().read(self._contents.values(), _quiet)

    def _pin(self, by_topic: dict[str, TopicContents]) -> dict[Place, tuple[int, int]]:
        pinned = super()._pin(by_topic)
        new = {place: (self._read_to.get(place, low), high) for place, (low, high) in pinned.items()}
        self._read_to = {place: high for place, (_, high) in pinned.items()}
        return new


@contextmanager
def _reading(services: ServiceAddresses, kind: type[IndependentReader]) -> Iterator[IndependentReader]:
    with closing(kind(services.broker, services.schema_registry)) as reader:
        yield reader


def read_table(
    services: ServiceAddresses, table: DemoTable, prefix: str, *, holes: bool = False
) -> list[Record]:
    """Return every committed record of the table's topic.

    With ``holes``, transaction markers lie between them.
    """
    content = RecordedTopic(table.topic(prefix), table.key)
    with _reading(services, RecordReader) as reader:
        reader.read([content], _quiet)
    assert holes or not content.holes
    assert not content.unreadable
    return content.records


def ends(services: ServiceAddresses, table: DemoTable, prefix: str) -> dict[int, int]:
    """Return the end of each partition of the table's topic; empty if the topic does not exist yet."""
    topic = table.topic(prefix)
    with _reading(services, IndependentReader) as reader:
        if topic not in reader.topics(prefix):
            return {}
        places = reader._pin({topic: TopicContents(topic, table.key)})
    return {partition: high for (_, partition), (_, high) in places.items()}


def difference(
    services: ServiceAddresses, database: str, tables: Sequence[DemoTable], prefix: str
) -> OracleComparison:
    """Compare the topics' latest values with the tables."""
    with _reading(services, IndependentReader) as reader, closing(psycopg2.connect(database)) as connection:
        return compare(connection, reader, tables, prefix)


def assert_equal(services: ServiceAddresses, database: str, tables: Sequence[DemoTable], prefix: str) -> None:
    """Check that the latest values of every topic equal its table."""
    found = difference(services, database, tables, prefix)
    assert found.outcome == "equal", found.sentence


def assert_keys_in_order(records: list[Record]) -> None:
    """Check that the first records of each key's changes are in commit order, in one partition."""
    last: dict[tuple[Any, ...], tuple[int, int]] = {}
    homes: dict[tuple[Any, ...], int] = {}
    seen = set()
    for record in records:
        key = (record.topic, *record.key)
        assert homes.setdefault(key, record.partition) == record.partition
        if record.identity in seen:
            continue
        seen.add(record.identity)
        place = (record.lsn, record.ordinal)
        assert place >= last.get(key, (0, 0)), f"{key} went back to {place}"
        last[key] = place


def repeated(records: list[Record]) -> dict[tuple[str, int, int, str], list[Record]]:
    """Return the changes that were sent more than once."""
    found = defaultdict(list)
    for record in records:
        found[record.identity].append(record)
    return {identity: same for identity, same in found.items() if len(same) > 1}


def _quiet(done: int, total: int) -> None:
    """Discard the progress."""


Progress = Callable[[int, int], None]
