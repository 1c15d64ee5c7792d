"""One task of a seal: convert a run of consecutive segments to Parquet files in its own folder.

The folder gets its final name once everything in it is durable and was read back: a folder with that name is
complete.
"""

import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bwtui.durable_files import private_file, private_parent, sync, write_atomically, write_durably
from bwtui.errors import BwtuiError, DamagedRecording
from bwtui.recording.blocks import (
    BlockKind,
    JournalBlock,
    SegmentPlace,
    TransactionEntry,
    damaged,
    json_array,
    obj,
    text,
)
from bwtui.recording.folder import SegmentPath, existing_segments, is_being_written
from bwtui.recording.parquet import SCHEMA
from bwtui.recording.payloads import RecordedBatch, digest_kind, is_sent, parse_schema_fields
from bwtui.recording.sealed import (
    MANIFEST,
    SEALED,
    Manifest,
    SealedFile,
    SealedSegment,
    checked,
    read_manifest,
    sealed_files,
    sealed_segments,
    sha256_of,
    with_checksum,
)
from bwtui.recording.segment_reader import DeliveryBook, SegmentReader
from bwtui.recording.walk import BATCHES, SegmentContext, digest_of, read_batch, read_digest, tags
from bwtui.seal.rows import CODED, CODED_SCHEMA, BatchGroup, SealedRowMaker, SealedRows, TransactionLengths

# Choose the number of rows of sealed files to read at a time, so that they fit into memory.

#: Candidates: the first whose keys and values have at most this many bytes, over two row groups or more.
_ROWS = (100_000, 20_000, 5_000, 1_000, 200, 50, 10)
_BYTES = 160 << 20


def rows_at_a_time(paths: Iterable[Path], most: int = 20_000) -> int:
    """Return how many rows (at most ``most``) of consecutive files to read together.

    Even the largest ones then fit into memory. Raises OSError.
    """
    groups = [group for path in paths for group in _groups(path)]
    return next((rows for rows in _ROWS if rows <= most and _largest(groups, rows) <= _BYTES), 1)


def _groups(path: Path) -> list[tuple[int, int]]:
    metadata = pq.read_metadata(path)
    return [_group(metadata.row_group(number)) for number in range(metadata.num_row_groups)]


def _group(group: Any) -> tuple[int, int]:
    columns = map(group.column, range(group.num_columns))
    size = sum(one.total_uncompressed_size for one in columns if one.path_in_schema in ("key", "value"))
    return group.num_rows, size


def _largest(groups: Sequence[tuple[int, int]], rows: int) -> int:
    """Return the maximum size of that many rows; a touched row group may contribute all of its bytes."""
    largest, first, within, size = 0, 0, 0, 0
    for count, more in groups:
        size, within = size + more, within + count
        largest = max(largest, size)
        # The next group is included too as long as the rows can span from the first group into it.
        while first < len(groups) and within - groups[first][0] + 2 > rows:
            within, size = within - groups[first][0], size - groups[first][1]
            first += 1
    return largest


# Write the Parquet files of one task, and read each one back before it counts.
#
# Memory is limited: at most `_BUFFER` bytes wait to be written over all tables and hours, and at most `_OPEN`
# files are open.

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


PART = "part.json"
#: Number of frames to convert to columns together.
_GATHERED = 4_096
_TELL_SECONDS = 0.5
#: Blocks that may change the state of `SegmentContext`.
_CHANGING = (BlockKind.HEAD, BlockKind.RELATION, BlockKind.ROUTE, BlockKind.EVENT)


@dataclass(frozen=True, slots=True)
class SealTask:
    """The segments ``first`` to ``last`` of a recording, to be sealed in ``work``."""

    folder: str
    work: str
    first: int
    last: int
    #: Digest of the segment before, or empty.
    previous: str

    @property
    def name(self) -> str:
        """Name of its folder, and prefix of its files."""
        return f"{self.first:08d}-{self.last:08d}"


@dataclass(slots=True)
class SealedPart:
    """The result of a task."""

    recording: str
    segments: list[SealedSegment] = field(default_factory=list)
    files: list[SealedFile] = field(default_factory=list)
    schemas: list[dict[str, Any]] = field(default_factory=list)
    source: dict[str, Any] = field(default_factory=dict)


def read_part(folder: Path) -> SealedPart:
    """Read the result of a finished task. Raises OSError, ValueError, KeyError or TypeError."""
    content = checked((folder / PART).read_bytes())
    return SealedPart(
        text(content["recording"]),
        sealed_segments(content["segments"]),
        sealed_files(content["files"]),
        [parse_schema_fields(one) for one in json_array(content["schemas"])],
        obj(content["source"]),
    )


def run(task: SealTask) -> int:
    """Run a task; return the number of sealed changes. Raises DamagedRecording, StateFailed or OSError."""
    work = Path(task.work)
    folder = work / f"{task.name}.{secrets.token_hex(4)}.tmp"
    # Do not create parents: if the run has ended, its folder is missing, and this task fails here.
    folder.mkdir(mode=0o700)
    try:
        part = _SegmentSealer(task, folder).part()
        write_durably(folder / PART, with_checksum(asdict(part)))
        sync_folders(folder)
        folder.rename(work / task.name)
        sync(work)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return sum(segment.changes for segment in part.segments)


class _SegmentRange(Sequence[SegmentReader]):
    """The segments from a number on, each opened when it is first accessed."""

    def __init__(self, folder: Path, first: int) -> None:
        self._paths = [one for one in existing_segments(folder) if one.number >= first and one.is_finished]
        self._opened: dict[int, SegmentReader] = {}

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, at: Any) -> Any:
        if at not in self._opened:
            self._opened[at] = SegmentReader(self._paths[at])
        return self._opened[at]

    def close(self) -> None:
        """Close the opened segments."""
        for segment in self._opened.values():
            segment.close()


class _SegmentSealer:
    def __init__(self, task: SealTask, folder: Path) -> None:
        self._task = task
        self._made = folder
        self._segments = _SegmentRange(Path(task.folder), task.first)
        self._book = DeliveryBook(self._segments)
        self._files = PartFiles(folder, task.name)
        self._rows = SealedRowMaker()
        self._gathered = BatchGroup()
        self._context = SegmentContext()
        self._transactions: list[tuple[TransactionEntry, int, int]] = []
        self._lengths = TransactionLengths()
        self._done = 0
        self._told = 0.0

    def part(self) -> SealedPart:
        """Seal all segments of the task."""
        part = SealedPart("")
        previous = self._task.previous
        schemas: dict[tuple[str, int], dict[str, Any]] = {}
        try:
            for at in range(self._task.last - self._task.first + 1):
                segment = self._segments[at]
                part.segments.append(_checked_segment(segment))
                self._context = SegmentContext()
                self._rows.forget()
                self._seal(segment)
                _check_head(segment, self._context, previous)
                previous = part.segments[-1].digest
                for entry in self._context.schemas.values():
                    schemas.setdefault((entry.subject, entry.id), asdict(entry))
            self._files.finish()
            part.files = [*self._files.files, self._transactions_file()]
            part.recording, part.source = self._context.head["recording"], self._context.head["source"]
            part.schemas = list(schemas.values())
            return part
        finally:
            self._segments.close()
            _progress_file(self._task).unlink(missing_ok=True)

    def _seal(self, segment: SegmentReader) -> None:
        position = segment.first_position
        transactions = segment.transactions()
        for block, entry in zip(_content(segment), segment.index, strict=True):
            if block.kind in BATCHES:
                self._count(segment, block, [next(transactions) for _ in range(entry.transactions)], position)
                if entry.changes:
                    self._take(segment, block, read_batch(block, segment.name), position)
                    position += entry.changes
                    self._tell(entry.changes)
            else:
                if block.kind in _CHANGING:
                    self._flush(segment)
                    self._rows.forget()
                    if block.kind == BlockKind.EVENT:
                        self._lengths.interrupted(position)
                self._context.take(block, segment.name)
        self._flush(segment)
        if position != segment.stop_position:
            raise damaged(
                SegmentPlace(segment.name, 0), "the number of changes in its foot differs from its blocks"
            )

    def _count(
        self, segment: SegmentReader, block: JournalBlock, begun: list[TransactionEntry], position: int
    ) -> None:
        if block.kind == BlockKind.ROWS:
            self._lengths.interrupted(position)
        for entry in begun:
            start = segment.first_position + entry.position
            self._lengths.begun(start)
            self._transactions.append((entry, start, self._context.pass_number))

    def _take(self, segment: SegmentReader, block: JournalBlock, batch: RecordedBatch, position: int) -> None:
        try:
            letters = tags(batch.frames) if block.kind == BlockKind.CHANGES else b""
            if batch.sections:
                self._book.read_for(batch.number)
            if not self._rows.suits(block, batch, letters, self._context):
                self._flush(segment)
                for rows in self._rows.rare_rows(block, batch, self._context, self._book.found, position):
                    self._files.write(rows)
                return
        except (KeyError, ValueError, IndexError) as error:
            raise _contradicts(segment, block.offset) from error
        if not self._gathered.fits(block, batch):
            self._flush(segment)
        self._gathered.add(block, batch, letters, self._context, position, self._book.found)
        if len(self._gathered.frames) >= _GATHERED:
            self._flush(segment)

    def _flush(self, segment: SegmentReader) -> None:
        gathered = self._gathered
        if not gathered.frames:
            return
        self._gathered = BatchGroup()
        try:
            for rows in self._rows.rows(gathered, self._context):
                self._files.write(rows)
        except (KeyError, ValueError, IndexError, OverflowError) as error:
            raise _contradicts(segment, gathered.offset) from error

    def _transactions_file(self) -> SealedFile:
        last = self._segments[self._task.last - self._task.first]
        following = range(self._task.last - self._task.first + 1, len(self._segments))
        self._lengths.end(last, (self._segments[at] for at in following))
        entries = [entry for entry, _, _ in self._transactions]
        table = pa.table(
            {
                "xid": pa.array([entry.xid for entry in entries], pa.int64()),
                "lsn": pa.array([entry.commit_lsn for entry in entries], pa.int64()),
                "commit_time": pa.array([entry.commit_time for entry in entries], pa.timestamp("us")),
                "position": pa.array([start for _, start, _ in self._transactions], pa.int64()),
                "changes": pa.array(np.array(self._lengths.lengths, np.int64)),
                "pass": pa.array([number for _, _, number in self._transactions], pa.int32()),
            },
            schema=TRANSACTIONS,
        )
        return write_table(self._made, f"transactions/{self._task.name}.parquet", "transactions", table)

    def _tell(self, changes: int) -> None:
        """Record the task's progress for `sealing`; losing it does no harm."""
        self._done += changes
        now = time.monotonic()
        if now - self._told >= _TELL_SECONDS:
            self._told = now
            write_atomically(_progress_file(self._task), str(self._done))


def _progress_file(task: SealTask) -> Path:
    return Path(task.work) / f"{task.name}.progress"


def _content(segment: SegmentReader) -> Iterator[JournalBlock]:
    return segment.file.blocks(0, segment.file.index_offset())


def _checked_segment(segment: SegmentReader) -> SealedSegment:
    """Compare a segment with its foot's digest; return its entry. Payloads are checked when read."""
    digest = digest_of(segment.foot)
    if read_digest(segment.file, segment.foot, segment.foot_offset) != digest:
        raise damaged(SegmentPlace(segment.name, 0), "it does not match the checksum in its foot")
    has_bytes = digest_kind(segment.foot) == "sha256"
    return SealedSegment(
        segment.name,
        digest if has_bytes else segment.file.sha256(segment.foot_offset),
        segment.first_position,
        segment.changes,
        segment.file.size,
        "" if has_bytes else digest,
    )


def _check_head(segment: SegmentReader, context: SegmentContext, previous: str) -> None:
    if context.head.get("previous", "") != previous:
        raise damaged(SegmentPlace(segment.name, 0), "it does not follow the previous segment")


def _contradicts(segment: SegmentReader, offset: int) -> Exception:
    return damaged(
        SegmentPlace(segment.name, offset), "a batch refers to a relation or route that was not recorded"
    )


# Plan a seal: which segments to seal, what an earlier run has made of them already, and the tasks.

#: Maximum bytes of the consecutive segments in a task, which has at least one.
TASK_BYTES = 128 << 20
_PART = re.compile(r"\d{8}-\d{8}")


@dataclass(slots=True)
class SealPlan:
    """``manifest`` is that of the earlier seal, or None; ``parts`` are reusable results of a killed run."""

    manifest: Manifest | None = None
    parts: dict[str, SealedPart] = field(default_factory=dict)
    tasks: list[SealTask] = field(default_factory=list)
    #: Number of changes that the tasks have to seal.
    changes: int = 0
    #: Number of segments at the end that are skipped because the recording is being written.
    skipped_segments: int = 0

    @property
    def is_empty(self) -> bool:
        """Return whether everything is sealed already."""
        return not self.parts and not self.tasks


def make_plan(folder: Path, work: Path, cores: int, task_bytes: int = TASK_BYTES) -> SealPlan:
    """Determine what to do, and remove the partial results of a killed run.

    Raises UsageError, StateFailed, or DamagedRecording, also when the last segment is unfinished.
    """
    paths = existing_segments(folder)
    plan = SealPlan()
    readers: list[SegmentReader] = []
    try:
        readers += map(SegmentReader, finished_segments(folder, paths, plan))
        if is_being_written(folder):
            settled = _settled(readers)
            plan.skipped_segments += len(readers) - settled
            for reader in readers[settled:]:
                reader.close()
            del readers[settled:]
        if (folder / SEALED / MANIFEST).exists():
            plan.manifest = read_manifest(folder / SEALED / MANIFEST)
            _check_prefix(plan.manifest, readers)
        done = len(plan.manifest.segments) if plan.manifest else 0
        todo = readers[done:]
        plan.parts = _whole_parts(work, folder / SEALED, todo)
        covered = {one.name for part in plan.parts.values() for one in part.segments}
        plan.tasks = _tasks(folder, work, readers, covered, done, cores, task_bytes)
        plan.changes = sum(one.changes for one in todo if one.name not in covered)
    finally:
        for reader in readers:
            reader.close()
    return plan


def finished_segments(folder: Path, paths: list[SegmentPath], plan: SealPlan) -> list[SegmentPath]:
    if paths[-1].is_finished:
        return paths
    if not is_being_written(folder):
        raise DamagedRecording(
            f"the recording {folder} is unfinished: segment {paths[-1].path.name} is not finished",
            f"run 'bwtui recording recover {folder}' first",
        )
    plan.skipped_segments = 1
    return [one for one in paths if one.is_finished]


def _settled(readers: Sequence[SegmentReader]) -> int:
    """Return the number of segments, from the first on, with all their delivery reports recorded."""
    for at in range(len(readers) - 1, -1, -1):
        if not is_sent(readers[at].head):
            return at + 1
        book = DeliveryBook(readers[at:])
        book.read_for(int(readers[at].foot["next_batch"]) - 1)
        if not book.is_at_end:
            return at + 1
    return 0


def _check_prefix(manifest: Manifest, readers: Sequence[SegmentReader]) -> None:
    for sealed, reader in zip(manifest.segments, readers, strict=False):
        if reader.name != sealed.name or digest_of(reader.foot) != sealed.digest:
            raise damaged(
                SegmentPlace(reader.name, 0), f"{SEALED}/{MANIFEST} lists a different checksum for it"
            )
    if len(manifest.segments) > len(readers):
        raise damaged(
            SegmentPlace(manifest.segments[len(readers)].name, 0), "it was sealed, and is missing now"
        )


def locate(work: Path, sealed: Path, part: str, file: SealedFile) -> Path:
    """Return the path of a part's file: still in its part's folder, or at its final place."""
    here = work / part / file.path
    return here if here.exists() else sealed / file.path


def _whole_parts(work: Path, sealed: Path, todo: Sequence[SegmentReader]) -> dict[str, SealedPart]:
    """Return complete parts of an earlier run that are about these segments; remove all others."""
    digests = {segment.name: digest_of(segment.foot) for segment in todo}
    parts: dict[str, SealedPart] = {}
    for folder in sorted(work.iterdir()):
        if not folder.is_dir():
            folder.unlink()
            continue
        part = _whole_part(work, sealed, folder, digests) if _PART.fullmatch(folder.name) else None
        if part is None:
            shutil.rmtree(folder)
        else:
            parts[folder.name] = part
            for segment in part.segments:
                del digests[segment.name]
    return parts


def _whole_part(work: Path, sealed: Path, folder: Path, digests: dict[str, str]) -> SealedPart | None:
    try:
        part = read_part(folder)
        if any(digests.get(segment.name) != segment.digest for segment in part.segments):
            return None
        for file in part.files:
            if sha256_of(locate(work, sealed, folder.name, file)) != file.sha256:
                return None
    except (OSError, BwtuiError, ValueError, KeyError, TypeError):
        return None
    return part


def _tasks(
    folder: Path,
    work: Path,
    readers: Sequence[SegmentReader],
    covered: set[str],
    done: int,
    cores: int,
    task_bytes: int,
) -> list[SealTask]:
    total = sum(one.file.size for one in readers[done:] if one.name not in covered)
    # Divide the work so that no core waits for one that has all of it.
    limit = min(task_bytes, max(total // max(cores, 1), 1))
    tasks: list[SealTask] = []
    size, is_open = 0, False
    for at in range(done, len(readers)):
        reader = readers[at]
        if reader.name in covered:
            is_open = False
            continue
        if is_open and size + reader.file.size // 2 <= limit:
            tasks[-1] = SealTask(str(folder), str(work), tasks[-1].first, reader.number, tasks[-1].previous)
            size += reader.file.size
        else:
            previous = digest_of(readers[at - 1].foot) if at else ""
            tasks.append(SealTask(str(folder), str(work), reader.number, reader.number, previous))
            size, is_open = reader.file.size, True
    return tasks
