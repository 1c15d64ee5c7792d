"""Changes as rows with the columns of a sealed recording, and as one Parquet file."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from bwtui.model.headers import SESSION
from bwtui.recording.change import KEY_CHANGE, Change, SentMessage
from bwtui.recording.export import Writer
from bwtui.recording.query_language import key_texts, row_texts, rows, unchanged_columns

# A change as rows with the columns of a sealed recording: one per message, or one if it has no message.
#
# A TRUNCATE yields one row per table. Times are Unix microseconds.

COLUMNS = (
    "position",
    "pass",
    "session",
    "is_repeat",
    "lsn",
    "ordinal",
    "part",
    "op",
    "schema",
    "table",
    "xid",
    "commit_time",
    "received",
    "topic",
    "partition",
    "offset",
    "state",
    "without",
    "key",
    "value",
    "key_schema_id",
    "value_schema_id",
    "key_json",
    "before",
    "after",
    "filled",
    "unchanged",
    "header_form",
)


def message_rows(change: Change) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ``change``, each with a value for every column of `COLUMNS`."""
    before, after = _object(row_texts(change, old=True)), _object(row_texts(change, old=False))
    unchanged = unchanged_columns(change)
    for number, (part, message) in enumerate(rows(change)):
        yield (
            change.position,
            change.pass_number,
            _session(message),
            change.is_repeat,
            change.lsn,
            change.ordinal,
            number if message is None else message.part,
            _operation(change, message),
            part.relation.namespace,
            part.relation.name,
            change.xid,
            change.commit_time,
            change.received,
            *_delivery(message),
            change.without,
            *_encoded(message),
            _object(key_texts(part, message)),
            before,
            after,
            list(change.filled),
            unchanged,
            _header_form(message),
        )


def _operation(change: Change, message: SentMessage | None) -> str:
    """Return the operation; a tombstone of an update means that the row has left this key."""
    is_tombstone = message is not None and message.value is None
    return KEY_CHANGE if is_tombstone and change.operation == "update" else change.operation


def _delivery(message: SentMessage | None) -> tuple[Any, ...]:
    if message is None:
        return None, None, None, None
    return message.topic, message.partition, message.offset, message.state


def _encoded(message: SentMessage | None) -> tuple[Any, ...]:
    if message is None:
        return None, None, None, None
    return message.key, message.value, message.key_schema_id, message.value_schema_id


def _session(message: SentMessage | None) -> str | None:
    if message is None:
        return None
    return next((value.hex() for name, value in message.headers if name == SESSION), None)


def _header_form(message: SentMessage | None) -> str | None:
    """Return which record headers the message has; all but the session follow from the other columns."""
    if message is None:
        return None
    return ("none", "session")[len(message.headers)] if len(message.headers) < 2 else "full"


def _object(texts: Mapping[str, str | None] | None) -> str | None:
    return None if texts is None else json.dumps(texts, ensure_ascii=False)


# Export to one Parquet file: one row per message, with the columns of a sealed recording.

_TYPES: dict[str, pa.DataType] = {
    "position": pa.int64(),
    "pass": pa.int32(),
    "is_repeat": pa.bool_(),
    "lsn": pa.int64(),
    "ordinal": pa.int32(),
    "part": pa.int32(),
    "xid": pa.int64(),
    "commit_time": pa.timestamp("us"),
    "received": pa.timestamp("us"),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
    "key_schema_id": pa.int32(),
    "value_schema_id": pa.int32(),
    "filled": pa.list_(pa.string()),
    "unchanged": pa.list_(pa.string()),
}
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.string())) for name in COLUMNS])
#: Maximum rows and bytes of values in a row group.
_ROWS = 65_536
_BYTES = 32 << 20
_SIZED = tuple(COLUMNS.index(name) for name in ("key", "value", "before", "after"))


class ParquetWriter(Writer):
    """Writes row groups with exact values; holds one row group in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._writer = pq.ParquetWriter(
            file, SCHEMA, compression="zstd", write_page_checksum=True, coerce_timestamps="us"
        )
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def write(self, change: Change) -> None:
        for row in message_rows(change):
            self._rows.append(row)
            self._bytes += sum(len(row[index]) for index in _SIZED if row[index] is not None)
            if len(self._rows) >= _ROWS or self._bytes >= _BYTES:
                self._flush()

    def finish(self) -> None:
        """Write the last row group and the file's end."""
        if self._rows:
            self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Close the writer now: pyarrow would otherwise close it after the file is gone."""
        with contextlib.suppress(Exception):
            self._writer.close()
        self._writer.is_open = False

    def _flush(self) -> None:
        arrays = [
            pa.array(values, type=field.type)
            for values, field in zip(zip(*self._rows, strict=True), SCHEMA, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))
        self._rows.clear()
        self._bytes = 0
