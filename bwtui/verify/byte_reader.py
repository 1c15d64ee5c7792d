"""Read the bytes of differing items again: messages from the recording, and records from Kafka."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from bwtui.audit.core import PARTS, DifferingPair, Inspection, RecordPlace
from bwtui.audit.decoding import Schemas, UndecodableMessage, schema_id
from bwtui.kafka.client import Config, headers_of
from bwtui.kafka.scan import SplitScan
from bwtui.kafka.splits import Split
from bwtui.model.headers import LSN, ORDINAL, SESSION
from bwtui.model.sql import exact
from bwtui.signals.duckdb_session import session

#: Maximum distance of offsets that are read in one go.
_NEAR = 2_000
_HEADERS = "bwtui."
#: How long to wait for a log that ends too early.
_PATIENCE_SECONDS = 5.0


class KafkaRecord(NamedTuple):
    """A record's bytes in Kafka, and its headers written by the relay."""

    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]


class RowReader:
    """Decodes keys and values in either format."""

    def __init__(self, output_format: str, schemas: Schemas) -> None:
        self._is_json = output_format == "json"
        self.schemas = schemas

    def row(self, data: bytes | None) -> Mapping[str, Any] | None:
        """Return the row, or None for null. Raises Undecodable."""
        if data is None:
            return None
        if not self._is_json:
            return self.schemas.decode(data)[1]
        try:
            decoded = json.loads(data)
        except ValueError as error:
            raise UndecodableMessage("it is not valid JSON") from error
        if not isinstance(decoded, dict):
            raise UndecodableMessage("it is not a JSON object")
        return decoded


class KafkaByteReader:
    """Reads differing messages from the recording, and records from Kafka.

    It is the `bwtui.audit.core.ByteReader` of an audit. Raises ConnectionFailed if Kafka can't be read.
    """

    def __init__(
        self,
        config: Config,
        topics: Sequence[str],
        files: Sequence[Path],
        rows: RowReader,
        sent_ids: Mapping[str, frozenset[int]],
        sessions: Iterable[str],
        miscoded: Sequence[int] = (),
    ) -> None:
        """Take ``topics`` in the audit's order, and ``sent_ids``, the schema IDs that were sent to each."""
        self._config = config
        self._topics = topics
        self._files = exact(files)
        self._rows = rows
        self._sent_ids = sent_ids
        self._sessions = {bytes.fromhex(one) for one in sessions if one}
        self._miscoded = miscoded

    def miscoded(self) -> Iterable[int]:
        """Return the IDs that `bwtui.verify.decode_check` found in the tasks."""
        return self._miscoded

    def equal_rows(self, pairs: Sequence[DifferingPair]) -> Iterator[int]:
        """Yield the IDs of messages that decode to the same row as the records at their offsets."""
        messages = self.messages([pair.id for pair in pairs])
        records = self.records([pair.place for pair in pairs])
        for pair in pairs:
            record, message = records.get(pair.place), messages.get(pair.id)
            if record is None or message is None:
                continue
            try:
                same = all(
                    _plain(self._rows.row(left)) == _plain(self._rows.row(right))
                    for left, right in ((record.key, message[0]), (record.value, message[1]))
                )
            except UndecodableMessage:
                continue
            if same:
                yield pair.id

    def inspect(self, places: Sequence[RecordPlace]) -> Iterator[Inspection]:
        """Yield which records the relay wrote, and which change their headers name."""
        for place, record in self.records(places).items():
            session = record.headers.get(SESSION)
            made_by_relay = session in self._sessions or self._looks_like_ours(
                self._topics[place.topic_id], record
            )
            named = record.headers if made_by_relay else {}
            yield Inspection(
                *place,
                made_by_relay,
                _number(named.get(LSN)),
                _number(named.get(ORDINAL)),
                session is not None and session not in self._sessions,
            )

    def _looks_like_ours(self, topic: str, record: KafkaRecord) -> bool:
        if record.key is None and record.value is None:
            return False
        try:
            for data in (record.key, record.value):
                if self._rows.row(data) is not None and not self._was_sent(topic, schema_id(data)):
                    return False
        except UndecodableMessage:
            return False
        return True

    def _was_sent(self, topic: str, number: int | None) -> bool:
        """Return whether the schema was sent to the topic, or has the name of one that was.

        The latter happens if the table was altered since.
        """
        sent = self._sent_ids.get(topic, frozenset())
        if number is None or number in sent:
            return True
        return _name_of(self._rows.schemas, number) in {
            _name_of(self._rows.schemas, sent_id) for sent_id in sent
        }

    def messages(self, ids: Sequence[int]) -> dict[int, tuple[bytes | None, bytes | None, dict[str, Any]]]:
        """Return key, value, and the row as PostgreSQL sent it, of messages."""
        if not ids:
            return {}
        requested = pa.table(
            {"position": [number // PARTS for number in ids], "part": [number % PARTS for number in ids]}
        )
        # A hash join with the few requested rows does not spill, which would create a folder in the current
        # one.
        with session(temp_directory="") as connection:
            connection.register("wanted", requested)
            rows = connection.execute(
                "select position, part, key, value, key_json, before, after"
                " from read_parquet(?) semi join wanted using (position, part)",
                [self._files],
            ).fetchall()
        return {
            row[0] * PARTS + row[1]: (
                row[2],
                row[3],
                dict(zip(("key", "before", "after"), row[4:], strict=True)),
            )
            for row in rows
        }

    def records(self, places: Sequence[RecordPlace]) -> dict[RecordPlace, KafkaRecord]:
        """Read records again; those that were removed since the scan are left out."""
        records: dict[RecordPlace, KafkaRecord] = {}
        for (topic_id, partition), group in groupby(sorted(places), key=lambda place: place[:2]):
            for low, high, offsets in _runs(place.offset for place in group):
                split = Split(self._topics[topic_id], partition, low, high)
                for batch in SplitScan(self._config, split, "read_uncommitted", _PATIENCE_SECONDS):
                    for message, offset in zip(batch.messages, batch.offsets, strict=True):
                        if offset in offsets:
                            headers = headers_of(message)
                            relay_headers = {
                                k: v for k, v in headers if k.startswith(_HEADERS) and v is not None
                            }
                            record = KafkaRecord(message.key(), message.value(), relay_headers)
                            records[RecordPlace(topic_id, partition, offset)] = record
        return records


def _plain(value: Any) -> Any:
    """Return a value that is equal only for equal values: in Python 1, 1.0 and true are equal, and 0 and
    -0.
    """
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return type(value), repr(value)


def _name_of(schemas: Schemas, number: int) -> str | None:
    """Return the full name of a record schema, or None for other schemas."""
    parsed = schemas.get(number).parsed
    return parsed.get("name") if isinstance(parsed, dict) else None


def _number(data: bytes | None) -> int | None:
    """Return the number in a header; None if it is longer, or not below 2⁶³, as the relay never writes."""
    number = int.from_bytes(data, "big") if data is not None and len(data) <= 8 else None
    return number if number is not None and number < 1 << 63 else None


def _runs(offsets: Iterable[int]) -> Iterator[tuple[int, int, set[int]]]:
    """Group ascending offsets into ranges that are each read in one go."""
    run: list[int] = []
    for offset in offsets:
        if run and offset - run[-1] > _NEAR:
            yield run[0], run[-1] + 1, set(run)
            run = []
        run.append(offset)
    if run:
        yield run[0], run[-1] + 1, set(run)
