"""Kafka records: reads single ones and those of a key in threads that nothing waits for, and decodes them."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from bwtui.errors import BwtuiError
from bwtui.recording.as_of import body_of
from bwtui.recording.explain import RowKey
from bwtui.tui.base import figures
from bwtui.tui.base.plain import with_hint

if TYPE_CHECKING:
    from bwtui.kafka.key_reader import KeyReader, KeyRecords, StoredRecord
    from bwtui.model.service_views import Consumers

Ask = Callable[[int], str | None]
#: Seconds to wait for an offset beyond the end of the log.
_PATIENCE = 1.0
HOLES = {
    "gap": "no record: it was compacted away, or the offset is a transaction marker",
    "expired": "the log begins after this offset: the record was deleted",
    "truncated": "the log ends before this offset: the broker lost its end, or the topic was recreated",
    "damaged": "the record at this offset does not match its checksum",
}


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record in a partition."""

    key: bytes | None
    value: bytes | None
    #: Unix milliseconds.
    timestamp: int
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class DecodedPart:
    """A decoded key or value: its fields as text, or why it can't be read; a tombstone has neither."""

    state: Literal["row", "null", "unreadable"]
    fields: Mapping[str, str | None]
    schema_id: int | None = None
    problem: str = ""


class SingleRecordReader:
    """Reads single records. Safe to call from any thread."""

    def __init__(self, config: Mapping[str, Any], ask: Ask) -> None:
        self._config = dict(config)
        self.ask = ask

    def reader(self, stopped: Callable[[], bool]) -> "KeyReader":
        """Return a reader of records and keys for one thread; it ends once ``stopped`` returns True."""
        from bwtui.kafka.key_reader import KeyReader

        return KeyReader(self._config, stopped)

    def groups(self, topic: str) -> "Consumers":
        """Return the consumer groups of a topic by their last commits; blocks until Kafka answers."""
        from bwtui.kafka.groups import GroupReader

        reader = GroupReader(self._config)
        try:
            return reader.poll([topic])
        finally:
            reader.close()

    @property
    def broker(self) -> str:
        """The addresses of the brokers."""
        return str(self._config.get("bootstrap.servers", ""))

    def fetch(self, topic: str, partition: int, offset: int) -> TopicRecord | str:
        """Return the record, or the kind of hole (see `HOLES`) in its place. Raises BwtuiError."""
        from bwtui.kafka.client import headers_of
        from bwtui.kafka.scan import Split, SplitScan

        hole = "gap"
        split = Split(topic, partition, offset, offset + 1)
        for part in SplitScan(self._config, split, "read_uncommitted", _PATIENCE):
            for message in part.messages:
                headers = tuple((name, value or b"") for name, value in headers_of(message))
                return TopicRecord(message.key(), message.value(), message.timestamp()[1], headers)
            hole = part.holes[-1].kind if part.holes else hole
        return hole


class RecordDecoder:
    """Decodes keys and values independently of the relay, as the audit does."""

    def __init__(self, output_format: str, texts: Mapping[int, str], ask: Ask) -> None:
        from bwtui.audit.canonical_values import Schemas

        self._is_json = output_format == "json"
        self._schemas = Schemas(texts, ask)

    def read(self, data: bytes | None) -> DecodedPart:
        """Decode a key or a value."""
        from bwtui.audit.canonical_values import UndecodableMessage, schema_id

        if data is None:
            return DecodedPart("null", {})
        # Confluent's wire format never begins with "{", and the report of a database audit does not name the
        # output format.
        is_json = self._is_json or data[:1] == b"{"
        number = None if is_json else schema_id(data)
        try:
            row = json.loads(data) if is_json else self._schemas.decode(data)[1]
        except (UndecodableMessage, ValueError) as error:
            return DecodedPart(
                "unreadable", {}, number, f"{len(data):,} bytes that can't be decoded: {error}"
            )
        except BwtuiError as error:
            return DecodedPart("unreadable", {}, number, error.message)
        if not isinstance(row, dict):
            return DecodedPart("unreadable", {}, number, f"{len(data):,} bytes of JSON that are not a row")
        return DecodedPart("row", _texts(row), number)

    def row(self, data: bytes | None) -> DecodedPart:
        """Decode a key or a value; its fields are named after the table's columns."""
        decoded = self.read(data)
        if decoded.state != "row" or decoded.schema_id is None:
            return decoded
        columns = self._schemas.get(decoded.schema_id).columns
        fields = {
            columns[name][0] if name in columns else name: text for name, text in decoded.fields.items()
        }
        return replace(decoded, fields=fields)

    def miscoded(self, data: bytes | None, texts: Mapping[str, str | None]) -> frozenset[str]:
        """Return the columns in which a value differs from PostgreSQL's texts."""
        from bwtui.audit.canonical_values import UndecodableMessage, differing

        if data is None or self._is_json:
            return frozenset()
        try:
            schema, row = self._schemas.decode(data)
        except (UndecodableMessage, BwtuiError):
            return frozenset()
        unsent = [column for column, _ in schema.columns.values() if column not in texts]
        return frozenset(differing(schema, row, texts, unsent)) & set(texts)


def _texts(row: Mapping[str, Any]) -> dict[str, str | None]:
    from bwtui.audit.canonical_values import ESCAPED, written

    return {
        name: None if value is None else _text(written(value), value)
        for name, value in row.items()
        if name != ESCAPED or value
    }


def _text(text: str | None, value: Any) -> str:
    if text is not None:
        return text
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


T = TypeVar("T")
_Task = tuple["Future[Any]", Callable[[], Any]]


class CallThread:
    """Runs blocking calls in its own daemon thread, from the first call until `close`.

    Python waits for asyncio's own threads at exit: if a service hangs, the program would stay for many
    seconds after the user has left.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    async def make(self, call: Callable[[], T]) -> T:
        """Run a call after the earlier ones, and return its result, or raise its error.

        After `close`, raise CancelledError.
        """
        future: Future[T] = Future()
        if self._is_closed:
            future.cancel()
        self._tasks.put((future, call))
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        return await asyncio.wrap_future(future)

    def close(self, last: Callable[[], object] = lambda: None) -> None:
        """End the thread after its pending calls; it calls ``last`` before it ends."""
        self._is_closed = True
        if self._thread is not None:
            self._tasks.put((Future(), last))
            self._tasks.put(None)
            self._thread = None

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, call = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)


#: Maximum number of cached results.
_REMEMBERED = 100_000


def same_bytes(key_bytes: bytes) -> Callable[[bytes], bool]:
    """Return a function that recognises the key by its bytes, ignoring the schema id in front of them."""
    body = body_of(key_bytes)
    return lambda key: key[:1] == key_bytes[:1] and body_of(key) == body


def same_text(key: RowKey, reader: RecordDecoder) -> Callable[[bytes], bool]:
    """Return a function that decodes each new key and compares it with ``key`` field by field."""
    texts = {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else None
        for name, value in zip(key.columns, key.values, strict=True)
    }
    answers: dict[bytes, bool] = {}

    def is_key(data: bytes) -> bool:
        answer = answers.get(data)
        if answer is None:
            answer = dict(reader.row(data).fields) == texts
            if len(answers) < _REMEMBERED:
                answers[data] = answer
        return answer

    return is_key


#: Topic, partition and offset.
Place = tuple[str, int, int]
#: Returns whether a record's key bytes are those of the key.
IsKey = Callable[[bytes], bool]
_UNKNOWN = "the Kafka brokers are unknown; give -b to 'bwtui open'"
_KEY, _RECORD, _GROUPS = "the key's records", "the record", "the consumer groups of the topic"


@dataclass(frozen=True, slots=True)
class FetchedRecord:
    """The record at a place, or the kind of hole there, and the Unix time of the query."""

    content: "StoredRecord | str"
    time: float


class KafkaLookups:
    """The records of a key, single records, and the consumer groups of their topic."""

    def __init__(
        self,
        connect: Callable[[], SingleRecordReader | None],
        make_reader: Callable[[Ask], RecordDecoder],
        clock: Callable[[], float],
    ) -> None:
        """``connect`` opens the connection to Kafka; it may take a while, and raise BwtuiError.

        ``clock`` returns Unix seconds.
        """
        self._connect = connect
        self._clock = clock
        self._make_reader = make_reader
        self._side: SingleRecordReader | None = None
        self._keys: KeyReader | None = None
        self._records = CallThread("journey records")
        self._groups = CallThread("journey groups")
        self._stopped = threading.Event()
        #: Start of each pending query, by the monotonic clock.
        self._since: dict[str, float] = {}
        #: Increases with every change of the results.
        self.version = 0
        self.failure = ""
        #: Decodes the records found. It has cached their schemas, so that it need not query the registry
        #: again.
        self.reader: RecordDecoder | None = None
        self.key_records: KeyRecords | None = None
        self.groups: Consumers | None = None
        self.groups_failure = ""
        #: Unix times of these queries; later records and commits are not in the results.
        self.key_records_time = self.groups_time = 0.0
        self._places: dict[Place, FetchedRecord] = {}

    async def search(
        self, topic: str, knows: Callable[[RecordDecoder], IsKey], partition: int | None = None
    ) -> None:
        """Search for the key's records; ``knows`` creates the function that recognises them."""

        def query() -> "KeyRecords | None":
            keys = self._opened()
            if keys is None or self.reader is None:
                return None
            records = keys.of_key(topic, knows(self.reader), partition)
            # Confluent's wire format begins with a zero byte and the 4-byte schema id: decode one value of
            # each schema.
            heads = {(one.value or b"")[:5]: one.value for one in records.records}
            for value in heads.values():
                self.reader.read(value)
            return records

        try:
            self.key_records, self.key_records_time = await self._timed(_KEY, query, self._records)
            self.failure = "" if self.key_records is not None else _UNKNOWN
        except BwtuiError as error:
            self.failure = with_hint(error)
        self.version += 1

    async def fetch_record(self, place: Place) -> None:
        """Read the record at a place, unless it is cached or an earlier query failed."""
        if place in self._places or self.failure:
            return

        def query() -> "StoredRecord | str | None":
            keys = self._opened()
            records = None if keys is None else keys.record(*place)
            if self.reader is not None and records is not None and not isinstance(records, str):
                self.reader.read(records.value)
            return records

        try:
            records, queried_at = await self._timed(_RECORD, query, self._records)
            if records is None:
                self.failure = _UNKNOWN
            else:
                self._places[place] = FetchedRecord(records, queried_at)
        except BwtuiError as error:
            self.failure = with_hint(error)
        self.version += 1

    async def fetch_groups(self, topic: str) -> None:
        """Query the consumer groups of a topic."""
        try:
            side, _ = await self._timed(_GROUPS, self._connected, self._groups)
            if side is not None:
                ask = partial(side.groups, topic)
                groups, self.groups_time = await self._timed(_GROUPS, ask, self._groups)
                self.groups, self.groups_failure = groups, groups.failure
        except BwtuiError as error:
            self.groups_failure = with_hint(error)
        self.version += 1

    def cached_record(self, place: Place) -> FetchedRecord | None:
        """Return the cached record or hole at a place."""
        if (cached := self._places.get(place)) is not None:
            return cached
        record = None if self.key_records is None else self.key_records.at(*place[1:])
        return None if record is None else FetchedRecord(record, self.key_records_time)

    def forget(self) -> None:
        """Discard the results, so that they are queried again."""
        self.failure = self.groups_failure = ""
        self.key_records = self.groups = None
        self._places.clear()
        self.version += 1

    def waits_for_records(self) -> str:
        """Return that records are being queried, and for how long, or an empty string."""
        return self._waits(_RECORD) or self._waits(_KEY)

    def waits_for_groups(self) -> str:
        """Return the same for the consumer groups."""
        return self._waits(_GROUPS)

    @property
    def seconds_waited(self) -> int:
        """Whole seconds since the start of the oldest pending query; the shown text changes with them."""
        return int(time.monotonic() - min(self._since.values(), default=time.monotonic()))

    def close(self) -> None:
        """Start no more queries; pending ones end on their own."""
        self._stopped.set()
        self._groups.close()
        self._records.close(lambda: self._keys.close() if self._keys is not None else None)

    async def _timed(self, subject: str, call: Callable[[], T], asking: CallThread) -> tuple[T, float]:
        """Return the result of a query, and the time when it began."""

        def dated() -> tuple[T, float]:
            begun = self._clock()
            return call(), begun

        self._since.setdefault(subject, time.monotonic())
        self.version += 1
        try:
            return await asking.make(dated)
        finally:
            self._since.pop(subject, None)

    def _waits(self, subject: str) -> str:
        if subject not in self._since:
            return ""
        broker = f" at {self._side.broker}" if self._side is not None and self._side.broker else ""
        waited = time.monotonic() - self._since[subject]
        return f"querying Kafka{broker}…" + (f" for {figures.duration(int(waited))}" if waited >= 1 else "")

    # The rest runs in the threads.

    def _connected(self) -> SingleRecordReader | None:
        if self._side is None:
            self._side = self._connect()
        return self._side

    def _opened(self) -> "KeyReader | None":
        side = self._connected()
        if self._keys is None and side is not None:
            self.reader = self._make_reader(side.ask)
            self._keys = side.reader(self._stopped.is_set)
        return self._keys
