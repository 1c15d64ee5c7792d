"""Write the Parquet files of one task, and read each one back before it counts.

Memory is limited: at most `_BUFFER` bytes wait to be written over all tables and hours, and at most `_OPEN`
files are open.
"""

import os
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bwtui.durable_files import private_file, private_parent, sync
from bwtui.errors import BwtuiError
from bwtui.recording.export.parquet import SCHEMA
from bwtui.recording.manifest import SealedFile
from bwtui.recording.sealed import sha256_of
from bwtui.seal.columns import CODED, CODED_SCHEMA
from bwtui.seal.rows import SealedRows

#: Maximum rows and bytes of a row group.
_GROUP_ROWS = 1 << 17
_GROUP_BYTES = 64 << 20
_BUFFER = 128 << 20
_OPEN = 128
_NAME_BYTES = 200
#: Characters that Hive, Spark and DuckDB unescape when they read a folder's name.
_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^<>|\x7f") | {chr(code) for code in range(32)}
#: Columns whose values rarely repeat, so that a dictionary would only add cost.
_UNCODED = frozenset({"position", "offset", "key", "value", "key_json", "before", "after"})
_DICTIONARY = [name for name in SCHEMA.names if name not in _UNCODED]

TRANSACTIONS = pa.schema(
    [
        ("xid", pa.int64()),
        ("lsn", pa.int64()),
        ("commit_time", pa.timestamp("us")),
        ("position", pa.int64()),
        ("changes", pa.int64()),
        ("pass", pa.int32()),
    ]
)
SCHEMAS = pa.schema(
    [
        ("subject", pa.string()),
        ("id", pa.int32()),
        ("version", pa.int32()),
        ("table", pa.string()),
        ("topic", pa.string()),
        ("part", pa.string()),
        ("schema", pa.string()),
    ]
)


def folder_of(table: tuple[str, str], hour: int) -> str:
    """Return the folder for one hour of a table's rows; ``hour`` counts from the Unix epoch."""
    name = "".join(f"%{ord(one):02X}" if one in _ESCAPED else one for one in ".".join(table))
    if len(name.encode()) > _NAME_BYTES:
        # The files have the whole name; the folder only needs to be distinct for each table.
        short = name.encode()[: _NAME_BYTES - 9].decode(errors="ignore").rpartition("%")[0]
        name = f"{short}~{zlib.crc32('.'.join(table).encode()):08x}"
    return f"changes/relation={name}/hour={hour_text(hour)}"


def hour_text(hour: int) -> str:
    """Return an hour as ``2026-01-31-17``, in UTC."""
    return str(np.datetime64(hour, "h")).replace("T", "-")


@dataclass(slots=True)
class _PartFile:
    """One file that is being written."""

    path: Path
    relative: str
    table: str
    hour: str
    writer: pq.ParquetWriter
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    waiting_rows: int = 0
    rows: int = 0
    positions: list[int] = field(default_factory=list)
    lsns: list[int] = field(default_factory=list)
    #: A checksum of each column of each row group, as it was in memory.
    digests: list[list[int]] = field(default_factory=list)

    def flush(self) -> None:
        """Write the waiting rows as a row group."""
        if not self.waiting:
            return
        table = pa.Table.from_batches(self.waiting).unify_dictionaries().combine_chunks()
        self.writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self.digests.append(digests(table))
        self.rows += table.num_rows
        for values, name in ((self.positions, "position"), (self.lsns, "lsn")):
            ends = pc.min_max(table[name])
            values += [ends["min"].as_py(), ends["max"].as_py()]
        self.waiting, self.bytes, self.waiting_rows = [], 0, 0


class PartFiles:
    """The files of one task's changes in ``folder``; ``name`` is the task's name."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._open: dict[tuple[tuple[str, str], int], _PartFile] = {}
        self._made = 0
        self._waiting = 0
        self.files: list[SealedFile] = []

    def write(self, rows: SealedRows) -> None:
        """Add rows; those of one table and hour must arrive in order."""
        where = (rows.table, rows.hour)
        part = self._open.pop(where, None) or self._begin(rows.table, rows.hour)
        # The dictionary keeps the most recently used file last; the first one is closed if too many are open.
        self._open[where] = part
        size = rows.batch.nbytes
        part.waiting.append(rows.batch)
        part.waiting_rows += rows.batch.num_rows
        part.bytes += size
        self._waiting += size
        if part.waiting_rows >= _GROUP_ROWS or part.bytes >= _GROUP_BYTES:
            self._flush(part)
        while self._waiting > _BUFFER:
            self._flush(max(self._open.values(), key=lambda one: one.bytes))
        if len(self._open) > _OPEN:
            self._finish(self._open.pop(next(iter(self._open))))

    def _flush(self, part: _PartFile) -> None:
        self._waiting -= part.bytes
        part.flush()

    def finish(self) -> None:
        """Write what is left, and read everything back."""
        for part in self._open.values():
            self._finish(part)
        self._open.clear()

    def _begin(self, table: tuple[str, str], hour: int) -> _PartFile:
        relative = f"{folder_of(table, hour)}/{self._name}-{self._made:04d}.parquet"
        self._made += 1
        path = self._folder / relative
        return _PartFile(
            path, relative, ".".join(table), hour_text(hour), writer(path, CODED_SCHEMA, _DICTIONARY)
        )

    def _finish(self, part: _PartFile) -> None:
        self._flush(part)
        part.writer.close()
        self.files.append(
            checked_file(
                part.path,
                part.digests,
                SealedFile(
                    part.relative, "changes", part.rows, 0, "", part.table, part.hour,
                    min(part.positions), max(part.positions), min(part.lsns), max(part.lsns),
                ),
            )
        )  # fmt: skip


def writer(path: Path, schema: pa.Schema, dictionary: list[str] | bool = True) -> pq.ParquetWriter:
    """Return a writer of a Parquet file that other users can't read, like the journal."""
    private_parent(path)
    return pq.ParquetWriter(
        private_file(path),
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=dictionary,
        write_page_checksum=True,
        coerce_timestamps="us",
        store_schema=False,
    )


def write_table(folder: Path, relative: str, kind: str, table: pa.Table) -> SealedFile:
    """Write a small table as a file, read it back, and return its manifest entry."""
    path = folder / relative
    with writer(path, table.schema) as file:
        # A table without rows has no row group when it is read back.
        if table.num_rows:
            file.write_table(table, row_group_size=table.num_rows)
    expected = [digests(table.combine_chunks())] if table.num_rows else []
    return checked_file(path, expected, SealedFile(relative, kind, table.num_rows, 0, ""))


def checked_file(path: Path, expected: list[list[int]], file: SealedFile) -> SealedFile:
    """Make a file durable and compare its contents with what was written.

    Raises BwtuiError when they differ.
    """
    sync(path)
    coded = CODED if file.kind == "changes" else None
    with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=coded) as parquet:
        groups = (parquet.read_row_group(at) for at in range(parquet.num_row_groups))
        if parquet.metadata.num_rows != file.rows or [digests(group) for group in groups] != expected:
            raise BwtuiError(f"{path} does not contain the data that was written to it", "check the disk")
    return replace(file, bytes=path.stat().st_size, sha256=sha256_of(path))


def sync_folders(root: Path) -> None:
    """Make all names below ``root`` durable."""
    for folder, _, _ in os.walk(root):
        sync(Path(folder))


def digests(table: pa.Table) -> list[int]:
    """Return a checksum of every column's values."""
    return [_digest(column) for column in table.combine_chunks().columns]


def _digest(column: pa.ChunkedArray) -> int:
    if not len(column):
        return 0
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if pa.types.is_dictionary(array.type):
        # Reading may change the order of a dictionary, so each value is represented by its own checksum.
        names = np.array(
            [zlib.crc32(name.encode()) for name in array.dictionary.to_pylist()] or [0], np.uint32
        )
        codes = array.indices.fill_null(0).to_numpy()
        array = pa.array(names[codes], mask=array.is_null().to_numpy(zero_copy_only=False))
    crc = 0
    if array.null_count:
        crc = zlib.crc32(np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes())
    return _digest_values(array, crc)


def _digest_values(array: Any, crc: int) -> int:
    kind = array.type
    if pa.types.is_list(kind):
        crc = zlib.crc32(pc.fill_null(pc.list_value_length(array), -1).to_numpy().tobytes(), crc)
        values = array.flatten()
        return _digest_values(values, crc) if len(values) else crc
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        crc = zlib.crc32(np.diff(ends).tobytes(), crc)
        return zlib.crc32(memoryview(data)[ends[0] : ends[-1]], crc) if data is not None else crc
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.int64())
    filled = pc.fill_null(array, False if pa.types.is_boolean(kind) else 0)
    return zlib.crc32(filled.to_numpy(zero_copy_only=False).tobytes(), crc)
