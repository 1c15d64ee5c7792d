"""Reads single Kafka records and decodes keys and values; imports its dependencies only when needed."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from bwtui.errors import BwtuiError

if TYPE_CHECKING:
    from bwtui.kafka.key_reader import KeyReader
    from bwtui.model.service_views import Consumers

Ask = Callable[[int], str | None]
#: Seconds to wait for an offset beyond the end of the log.
_PATIENCE = 1.0
HOLES = {
    "gap": "no record stands there: it was compacted away, or is no record but a marker of a transaction",
    "expired": "the log begins behind it now: the record was deleted",
    "truncated": "the log ends before it: the broker lost its end, or the topic was made anew",
    "damaged": "what stands there does not match its checksum",
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
            return reader.look([topic])
        finally:
            reader.close()

    @property
    def broker(self) -> str:
        """The addresses of the brokers."""
        return str(self._config.get("bootstrap.servers", ""))

    def look(self, topic: str, partition: int, offset: int) -> TopicRecord | str:
        """Return the record, or the kind of hole (see `HOLES`) in its place. Raises BwtuiError."""
        from bwtui.kafka.client import headers_of
        from bwtui.kafka.scan import SplitScan
        from bwtui.kafka.splits import Split

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
        from bwtui.audit.decoding import Schemas

        self._is_json = output_format == "json"
        self._schemas = Schemas(texts, ask)

    def read(self, data: bytes | None) -> DecodedPart:
        """Decode a key or a value."""
        from bwtui.audit.decoding import UndecodableMessage, schema_id

        if data is None:
            return DecodedPart("null", {})
        # Confluent's wire format never begins with "{", and the report of a database audit does not name the
        # output format.
        is_json = self._is_json or data[:1] == b"{"
        number = None if is_json else schema_id(data)
        try:
            row = json.loads(data) if is_json else self._schemas.decode(data)[1]
        except (UndecodableMessage, ValueError) as error:
            return DecodedPart("unreadable", {}, number, f"{len(data):,} bytes that can't be read: {error}")
        except BwtuiError as error:
            return DecodedPart("unreadable", {}, number, error.message)
        if not isinstance(row, dict):
            return DecodedPart("unreadable", {}, number, f"{len(data):,} bytes of JSON that are no row")
        return DecodedPart("row", _texts(row), number)

    def row(self, data: bytes | None) -> DecodedPart:
        """Decode a key or a value; its fields are named after the table's columns."""
        decoded = self.read(data)
        if decoded.state != "row" or decoded.schema_id is None:
            return decoded
        columns = self._schemas.get(decoded.schema_id).columns
        named = {columns[name][0] if name in columns else name: text for name, text in decoded.fields.items()}
        return replace(decoded, fields=named)

    def miscoded(self, data: bytes | None, texts: Mapping[str, str | None]) -> frozenset[str]:
        """Return the columns in which a value differs from PostgreSQL's texts."""
        from bwtui.audit.decoding import UndecodableMessage
        from bwtui.audit.postgresql_text import differing

        if data is None or self._is_json:
            return frozenset()
        try:
            schema, row = self._schemas.decode(data)
        except (UndecodableMessage, BwtuiError):
            return frozenset()
        unsent = [column for column, _ in schema.columns.values() if column not in texts]
        return frozenset(differing(schema, row, texts, unsent)) & set(texts)


def _texts(row: Mapping[str, Any]) -> dict[str, str | None]:
    from bwtui.audit.postgresql_text import ESCAPED, written

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
