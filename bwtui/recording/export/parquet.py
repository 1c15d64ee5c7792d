"""Export to one Parquet file: one row per message, with the columns of a sealed recording."""

import contextlib
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from bwtui.recording.change import Change
from bwtui.recording.export.rows import COLUMNS, message_rows
from bwtui.recording.export.writer import Writer

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
