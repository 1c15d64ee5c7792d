"""An independent oracle: what a consumer finds in topics, compared with their tables.

It reads with Confluent's own consumer and Avro deserializer, and uses nothing of bwtui's encoder, decoder or
audit, because a reader that shares their faults can't detect them. The offsets of every partition are pinned
before the first record is read, and each is accounted for: a client skips holes in a log silently.

The latest value of every key must equal the row exactly. A table without a key is compared as a multiset: the
topic must have every row as often as the table, and no others. Both sides are converted to the same form, by
the declared type of each column; floats are compared bit by bit. A value that a record has as text in
``__escaped`` never equals a value of the shop, which has no values that Avro types can't hold.
"""

import datetime
import struct
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
from psycopg2 import sql
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from bwtui.demo.rows import Row
from bwtui.demo.shop import DemoTable
from bwtui.errors import Indeterminate
from bwtui.kafka.client import WITHOUT_LEADER, log

_TIMEOUT = 10.0
_LEADER_SECONDS = 10.0
#: Maximum wait for a record while some are outstanding; then the comparison is indeterminate.
_PATIENCE = 30.0
_BATCH = 2_000
_HINT = "look at the logs of the test run's services"

#: Exceptions of a deserializer for bytes that do not match their schema.
_UNREADABLE = (
    SerializationError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    struct.error,
)

Place = tuple[str, int]
T = TypeVar("T")


@dataclass(slots=True)
class TopicContents:
    """The contents of a topic, folded to the latest value of each key if its table has one."""

    topic: str
    #: Key columns of the table; empty if the records have no key.
    key: tuple[str, ...]
    messages: int = 0
    #: Number of offsets in [low, high) without a record.
    holes: int = 0
    #: Number of records that can't be decoded, or that have a key, or none, contrary to the table.
    unreadable: int = 0
    latest: dict[tuple[Any, ...], Mapping[str, Any]] = field(default_factory=dict)
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    _homes: dict[tuple[Any, ...], tuple[int | None, bytes | None]] = field(default_factory=dict)
    _split: set[tuple[Any, ...]] = field(default_factory=set)

    @property
    def split_keys(self) -> int:
        """Number of keys in two partitions, or with two byte strings: a compaction keeps both."""
        return len(self._split)

    def add(self, key: Any, value: Any, partition: int | None, key_bytes: bytes | None) -> None:
        """Add a decoded record; records of a partition must arrive in the order of their offsets."""
        if not self.key:
            if key is not None or value is None:
                self.unreadable += 1
            else:
                self.rows.append(value)
            return
        if not isinstance(key, dict) or set(key) != set(self.key):
            self.unreadable += 1
            return
        identity = tuple(key[name] for name in self.key)
        if self._homes.setdefault(identity, (partition, key_bytes)) != (partition, key_bytes):
            self._split.add(identity)
        if value is None:
            self.latest.pop(identity, None)
        else:
            self.latest[identity] = value


class IndependentReader:
    """Reads whole topics once, from the first offset to the last one at the start of the read."""

    def __init__(self, broker: str, registry: str, timeout: float = _TIMEOUT) -> None:
        self._timeout = timeout
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker,
                "group.id": f"bwtui-oracle-{uuid.uuid4()}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "check.crcs": True,
            },
            logger=log,
        )
        self._registry = SchemaRegistryClient({"url": registry})
        # The default strategy may request associations, which not every registry has.
        conf = {"subject.name.strategy.type": "TOPIC"}
        self._deserialize = AvroDeserializer(self._registry, conf=conf)

    def close(self) -> None:
        """Disconnect from the broker and the registry."""
        self._consumer.close()
        self._registry.close()

    def topics(self, prefix: str) -> set[str]:
        """Return the names of all topics that start with ``prefix`` and a dot."""
        cluster = _decided(lambda: self._consumer.list_topics(timeout=self._timeout), "list the topics")
        return {name for name in cluster.topics if name.startswith(f"{prefix}.")}

    def read(self, contents: Iterable[TopicContents], progress: Callable[[int, int], None]) -> None:
        """Fill ``contents``; ``progress`` is called regularly with the offsets read, and all offsets."""
        by_topic = {content.topic: content for content in contents}
        pinned = self._pin(by_topic)
        total = sum(high - low for low, high in pinned.values())
        at = {place: low for place, (low, high) in pinned.items() if high > low}
        self._consumer.assign([TopicPartition(*place, offset) for place, offset in at.items()])
        received_at = time.monotonic()
        done = 0
        while at:
            batch = _decided(lambda: self._consumer.consume(_BATCH, 1.0), "read the topics")
            for message in batch:
                self._take(message, by_topic, pinned, at)
                done += 1
            progress(min(done, total), total)
            if batch:
                received_at = time.monotonic()
            elif time.monotonic() - received_at > _PATIENCE:
                raise Indeterminate(
                    f"the broker sent no record for {_PATIENCE:.0f} s before the end of the topics", _HINT
                )
        self._consumer.unassign()

    def _pin(self, by_topic: dict[str, TopicContents]) -> dict[Place, tuple[int, int]]:
        def look() -> dict[Place, tuple[int, int]]:
            pinned = {}
            for topic in by_topic:
                for partition in self._consumer.list_topics(topic, self._timeout).topics[topic].partitions:
                    place = TopicPartition(topic, partition)
                    pinned[topic, partition] = self._consumer.get_watermark_offsets(place, self._timeout)
            return pinned

        return _decided(look, "pin the offsets")

    def _take(
        self,
        message: Message,
        by_topic: dict[str, TopicContents],
        pinned: dict[Place, tuple[int, int]],
        at: dict[Place, int],
    ) -> None:
        """Account for one record, or for the end of a partition."""
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            problem = f"the topics can't be read to their end: {error.str()}"
            raise Indeterminate(problem, _HINT)
        topic, offset = message.topic() or "", message.offset() or 0
        place = (topic, message.partition() or 0)
        if place not in at:
            return
        high, content = pinned[place][1], by_topic[topic]
        content.holes += max(0, min(offset, high) - at[place])
        at[place] = max(at[place], offset if error is not None else offset + 1)
        if error is None and offset < high:
            content.messages += 1
            self._decode(message, content)
        if at[place] >= high:
            del at[place]

    def _decode(self, message: Message, content: TopicContents) -> None:
        topic, key, value = content.topic, message.key(), message.value()
        try:
            decoded_key = self._deserialize(key, SerializationContext(topic, MessageField.KEY))
            decoded = self._deserialize(value, SerializationContext(topic, MessageField.VALUE))
        except SchemaRegistryError as error:
            if error.http_status_code != 404:
                raise Indeterminate(
                    f"the schema registry did not answer for topic {topic}: {error.error_message}", _HINT
                ) from error
            content.unreadable += 1
        except _UNREADABLE:
            content.unreadable += 1
        except Exception as error:
            # The remaining errors are about the connection to the registry, from a library that may change.
            raise Indeterminate(
                f"the schema registry can't be reached ({type(error).__name__})", _HINT
            ) from error
        else:
            content.add(decoded_key, decoded, message.partition(), key)


def _decided(call: Callable[[], T], action: str) -> T:
    until = time.monotonic() + _LEADER_SECONDS
    while True:
        try:
            return call()
        except KafkaException as error:
            if error.args[0].code() in WITHOUT_LEADER and time.monotonic() < until:
                time.sleep(0.1)
                continue
            raise Indeterminate(f"the comparison could not {action}: {error.args[0].str()}", _HINT) from error


@dataclass(frozen=True, slots=True)
class OracleTable:
    """One table compared with its topic."""

    table: str
    topic: str
    rows: int
    #: Number of keys whose latest value is not a tombstone; None without a key.
    keys: int | None
    messages: int
    #: Number of rows that the topic lacks, of rows only in the topic, and of rows with a different column.
    missing: int
    extra: int
    different: int
    unreadable: int = 0
    split_keys: int = 0
    holes: int = 0
    #: Number of differing rows by column.
    columns: dict[str, int] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Return whether the topic, folded by key, equals the table."""
        return not (self.missing or self.extra or self.different or self.unreadable or self.split_keys)


@dataclass(frozen=True, slots=True)
class OracleComparison:
    """All tables compared with their topics."""

    tables: tuple[OracleTable, ...]
    #: Topics with the prefix that belong to no table.
    foreign_topics: tuple[str, ...] = ()

    @property
    def outcome(self) -> Literal["equal", "different", "indeterminate"]:
        """The verdict; a log with holes can prove a difference, but never equality."""
        if self.foreign_topics or not all(table.equal for table in self.tables):
            return "different"
        return "indeterminate" if any(table.holes for table in self.tables) else "equal"

    @property
    def sentence(self) -> str:
        """The verdict, with every table that differs."""
        unequal = [table for table in self.tables if not table.equal or table.holes]
        return f"{self.outcome}: {unequal}; topics without a table: {self.foreign_topics}"


ESCAPED = "__escaped"
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class ShopColumn:
    """A column as declared in the table: ``type`` is PostgreSQL's name without a modifier."""

    name: str
    type: str


def compare(
    connection: Connection,
    reader: IndependentReader,
    tables: Sequence[DemoTable],
    prefix: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> OracleComparison:
    """Read the topics of ``tables``, then the tables in one snapshot, and return the differences.

    Nothing may be written meanwhile. Raises Indeterminate when one side can't be read completely.
    """
    topics = reader.topics(prefix)
    contents = {table: TopicContents(table.topic(prefix), table.key) for table in tables}
    reader.read([content for content in contents.values() if content.topic in topics], progress)
    connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
    with connection, connection.cursor() as cursor:
        verdicts = tuple(_compare_table(cursor, table, content) for table, content in contents.items())
    foreign = sorted(topics - {content.topic for content in contents.values()})
    return OracleComparison(verdicts, tuple(foreign))


def _compare_table(cursor: Cursor, table: DemoTable, content: TopicContents) -> OracleTable:
    columns = _columns(cursor, table)
    rows = _rows(cursor, table, columns)
    if table.key:
        return _compare_latest(table, columns, rows, content)
    return _compare_multisets(table, columns, rows, content)


def _compare_latest(
    table: DemoTable, columns: Sequence[ShopColumn], rows: Iterator[Row], content: TopicContents
) -> OracleTable:
    at = [[column.name for column in columns].index(name) for name in table.key]
    keys = [columns[index] for index in at]
    latest = {
        tuple(canonical(column.type, part) for column, part in zip(keys, key, strict=True)): value
        for key, value in content.latest.items()
    }
    count = missing = different = 0
    differing: Counter[str] = Counter()
    for row in rows:
        count += 1
        value = latest.pop(tuple(row[index] for index in at), None)
        if value is None:
            missing += 1
            continue
        names = _differences(columns, row, value)
        different += bool(names)
        differing.update(names)
    return OracleTable(
        **_of_topic(table, content),
        rows=count,
        keys=len(content.latest),
        missing=missing,
        extra=len(latest),
        different=different,
        columns=dict(differing),
    )


def _compare_multisets(
    table: DemoTable, columns: Sequence[ShopColumn], rows: Iterator[Row], content: TopicContents
) -> OracleTable:
    expected = Counter(rows)
    actual = Counter(_record(columns, value) for value in content.rows)
    missing, extra = (expected - actual).total(), (actual - expected).total()
    common = _of_topic(table, content)
    return OracleTable(**common, rows=expected.total(), keys=None, missing=missing, extra=extra, different=0)


def _of_topic(table: DemoTable, content: TopicContents) -> dict[str, Any]:
    counts = {name: getattr(content, name) for name in ("messages", "unreadable", "split_keys", "holes")}
    return {"table": table.full_name, "topic": content.topic, **counts}


def _differences(columns: Sequence[ShopColumn], row: Row, value: Mapping[str, Any]) -> list[str]:
    record = _record(columns, value)
    names = [
        column.name
        for column, expected, actual in zip(columns, row, record, strict=False)
        if expected != actual
    ]
    return names + (["(unknown fields)"] if len(record) > len(row) else [])


def _record(columns: Sequence[ShopColumn], value: Mapping[str, Any]) -> Row:
    """Return a record in the form of a row; unknown fields are appended, so that it differs."""
    escaped = value.get(ESCAPED) or {}
    row = tuple(
        ("escaped",) if column.name in escaped else canonical(column.type, value.get(column.name, _ABSENT))
        for column in columns
    )
    unknown = set(value) - {column.name for column in columns} - {ESCAPED}
    return (*row, *sorted(unknown))


def _columns(cursor: Cursor, table: DemoTable) -> list[ShopColumn]:
    cursor.execute(
        "select attname, format_type(atttypid, null) from pg_attribute"
        " where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum",
        [table.full_name],
    )
    return [ShopColumn(*row) for row in cursor.fetchall()]


def _rows(cursor: Cursor, table: DemoTable, columns: Sequence[ShopColumn]) -> Iterator[Row]:
    """Yield every row in canonical form, in batches, so that a large table is not in memory twice."""
    expressions = [
        sql.SQL(_EXPRESSIONS.get(column.type, "{}")).format(sql.Identifier(column.name)) for column in columns
    ]
    with cursor.connection.cursor("comparison") as rows:
        rows.itersize = 5_000
        rows.execute(
            sql.SQL("select {} from {}").format(
                sql.SQL(", ").join(expressions), sql.Identifier(table.schema, table.name)
            )
        )
        for row in rows:
            yield tuple(canonical(column.type, value) for column, value in zip(columns, row, strict=True))


#: Expressions to read columns whose values psycopg2 would change: a real's text is not its value in double
#: precision, and parsed JSON is not PostgreSQL's text of it.
_EXPRESSIONS = {"real": "{}::double precision", "jsonb": "{}::text", "json": "{}::text", "uuid": "{}::text"}


def canonical(type_name: str, value: Any) -> Any:
    """Return the value in the canonical form in which both sides are compared.

    A value of a class that the column's type can't have is returned with the name of its class, which equals
    nothing on the other side.
    """
    if value is None:
        return None
    classes, form = _FORMS.get(type_name, _TEXT)
    # In Python a bool is also an int, and a datetime a date, but not for a reader of the topic.
    return form(value) if type(value) in classes else ("unexpected", type(value).__name__)


def _utc(value: datetime.datetime) -> Any:
    if value.tzinfo is None:
        return ("unexpected", "timestamp without time zone")
    return value.astimezone(datetime.UTC).isoformat()


def _local(value: datetime.datetime) -> Any:
    return ("unexpected", "timestamp with time zone") if value.tzinfo else value.isoformat()


def _decimal(value: Decimal) -> str:
    return format(value, "f")


_Form = tuple[tuple[type, ...], Callable[[Any], Any]]
_TEXT: _Form = ((str,), str)
_INTEGER: _Form = ((int,), int)
_FORMS: dict[str, _Form] = {
    "smallint": _INTEGER,
    "integer": _INTEGER,
    "bigint": _INTEGER,
    "boolean": ((bool,), bool),
    "real": ((float,), struct.Struct(">f").pack),
    "double precision": ((float,), struct.Struct(">d").pack),
    "numeric": ((Decimal,), _decimal),
    "date": ((datetime.date,), datetime.date.isoformat),
    "timestamp without time zone": ((datetime.datetime,), _local),
    "timestamp with time zone": ((datetime.datetime,), _utc),
    "bytea": ((bytes, memoryview), bytes),
    "uuid": ((str, uuid.UUID), str),
}
