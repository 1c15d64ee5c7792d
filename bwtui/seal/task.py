"""One task of a seal: convert a run of consecutive segments to Parquet files in its own folder.

The folder gets its final name once everything in it is durable and was read back: a folder with that name is
complete.
"""

import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bwtui.durable_files import sync, write_atomically, write_durably
from bwtui.recording.folder import existing_segments
from bwtui.recording.format.batch import RecordedBatch
from bwtui.recording.format.blocks import BlockKind, JournalBlock, SegmentPlace, TransactionEntry, damaged
from bwtui.recording.format.context import SegmentContext, read_batch
from bwtui.recording.format.digest import digest_of, read_digest
from bwtui.recording.format.parsing import tags
from bwtui.recording.format.statements import digest_kind, parse_schema_fields
from bwtui.recording.format.validation import array, obj, text
from bwtui.recording.manifest import (
    SealedFile,
    SealedSegment,
    checked,
    sealed_files,
    sealed_segments,
    with_checksum,
)
from bwtui.recording.reading.deliveries import DeliveryBook
from bwtui.recording.reading.segment_reader import BATCHES, SegmentReader
from bwtui.seal.batches import BatchGroup
from bwtui.seal.files import TRANSACTIONS, PartFiles, sync_folders, write_table
from bwtui.seal.rows import SealedRowMaker
from bwtui.seal.transactions import TransactionLengths

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
        [parse_schema_fields(one) for one in array(content["schemas"])],
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
                "changes": pa.array(np.array(self._lengths.found, np.int64)),
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
