"""The journal's bytes: blocks, and the segments they form; JOURNAL.md describes the format.

A segment is a file of blocks. A block is a header of 44 bytes, little-endian, and a payload::

    length u32 | crc32 u32 | kind u8 | mark 3 bytes | number u32 | received i64
    first_lsn u64 | last_lsn u64 | payload_crc32 u32

``length`` is the payload's length, ``payload_crc32`` its checksum, and ``crc32`` covers the rest of the
header. With two checksums, a walk from header to header need not read the payloads. ``number`` counts the
segment's blocks from 0, ``received`` is in microseconds since the Unix epoch, and the LSNs are those of the
first and the last commit that the block has data of, or 0. ``mark`` binds a block to its file: rows may
contain the bytes of other recordings (docs/adr/0022-bind-recording-blocks-to-their-file.md).

A finished segment ends with an INDEX, a TRANSACTIONS and a FOOT block, and a trailer of 24 bytes with the
offset where they begin. The foot has the sha256 of all headers before it, and these contain their payloads'
checksums (docs/adr/0022-bind-recording-blocks-to-their-file.md).
"""

import hashlib
import json
import mmap
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from bwtui.errors import DamagedRecording

# CRC-32, computed by ISA-L if it is installed (packaging/compiled[checksum] brings it).
#
# The checksum is the same, at thirty times the speed of many zlib builds, with which it takes a sixth of the
# cost of recording a row (docs/benchmarks/measurements.md).
try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

#: In version 1 the foot's sha256 covers all bytes before it; before version 3 blocks have no mark.
VERSION = 3
_MARKED_VERSION = 3
SUFFIX = ".bwj"
PARTIAL_SUFFIX = ".partial"
#: Suffix of an empty marker file: the segment with this number is about to begin.
NEXT_SUFFIX = ".next"

_HEADER = struct.Struct("<IIB3sIqQQI")
_COVERED = struct.Struct("<IB3sIqQQI")
HEADER_SIZE = _HEADER.size
#: The last microsecond of the year 9999, and the largest LSN that a signed number holds.
LAST_TIME = 253_402_300_799_999_999
LAST_LSN = (1 << 63) - 1
_TRAILER = struct.Struct("<8sQII")
TRAILER_SIZE = _TRAILER.size
_MAGIC = b"bwtuiEND"
#: Maximum payload length: a greater length is damage, and reading it would only waste memory.
MAX_PAYLOAD = (1 << 32) - 1
#: The mark of the first block, and of all blocks up to version 2.
UNMARKED = b"\0\0\0"
_BEFORE_KIND = 8
_CHUNK = 1 << 20
#: The payload of a REACHED block.
_SYNCED = struct.Struct("<Q")


class BlockKind(IntEnum):
    """The content of a block."""

    #: JSON: the segment's origin; always the first block.
    HEAD = 1
    #: A RELATION message of pgoutput, as PostgreSQL sent it.
    RELATION = 2
    #: JSON: where a relation's rows are sent: topic, key columns, schema ids.
    ROUTE = 3
    #: JSON: a registered schema.
    SCHEMA = 4
    #: Frames of the stream, and the messages made from them.
    CHANGES = 5
    #: Rows of a snapshot, as lines of COPY, and the messages made from them.
    ROWS = 6
    #: Partitions and offsets of the messages of one section of a batch.
    DELIVERY = 7
    #: JSON: an event: a pass begins, changes are missing, the relay ends.
    EVENT = 8
    #: JSON: the relay's status without its tables, about once a second.
    STATUS = 9
    #: One entry per block; see `IndexEntry`.
    INDEX = 10
    #: One entry per transaction that begins in the segment; see `TransactionEntry`.
    TRANSACTIONS = 11
    #: JSON: counts, LSN range, and the sha256 of the headers before it.
    FOOT = 12
    #: JSON: an error, a notice, or a dropped row, as the relay showed it.
    ERROR = 13
    #: Everything before is durable at the sink, and may be confirmed up to ``last_lsn``. The payload is the
    #: number of bytes of this file that were on disk at that time; older versions wrote no payload.
    REACHED = 14


_KINDS = frozenset(BlockKind)
#: The blocks at the end of a finished segment.
ENDING = frozenset((BlockKind.INDEX, BlockKind.TRANSACTIONS, BlockKind.FOOT))


class JournalBlock(NamedTuple):
    """One block; its header begins at ``offset`` in the segment. ``payload`` is empty if it was not read."""

    kind: BlockKind
    number: int
    received: int
    first_lsn: int
    last_lsn: int
    offset: int
    length: int
    payload: bytes = b""

    @property
    def end(self) -> int:
        """Offset of the next block."""
        return self.offset + HEADER_SIZE + self.length


class IndexEntry(NamedTuple):
    """An index entry of a block; ``changes`` and ``transactions`` count those that begin in the block."""

    offset: int
    kind: int
    changes: int
    transactions: int
    received: int
    first_lsn: int
    last_lsn: int


INDEX_ENTRY = struct.Struct("<QIIIqQQ")


def is_sensible(entry: IndexEntry) -> bool:
    """Return whether an entry has values that a block can have."""
    return (
        entry.kind in _KINDS
        and 0 <= entry.received <= LAST_TIME
        and max(entry.first_lsn, entry.last_lsn) <= LAST_LSN
    )


class TransactionEntry(NamedTuple):
    """A transaction: ``commit_time`` in Unix microseconds, ``position`` from the segment's first change."""

    commit_lsn: int
    commit_time: int
    xid: int
    position: int


TRANSACTION_ENTRY = struct.Struct("<QqII")


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """A position: a segment's file name, and the offset in bytes."""

    segment: str
    offset: int

    def __str__(self) -> str:
        return f"{self.segment} at byte {self.offset}"


class DamagedAt(DamagedRecording):
    """A damaged place in a recording, and the reason."""

    def __init__(self, place: SegmentPlace, reason: str, hint: str) -> None:
        super().__init__(f"the recording is damaged: {place}: {reason}", hint)
        self.place = place
        self.reason = reason


def damaged(place: SegmentPlace, reason: str, hint: str | None = None) -> DamagedAt:
    """Return the error that names ``place``."""
    usual = "'bwtui recording check' lists all damage; restore the file from a backup"
    return DamagedAt(place, reason, hint or usual)


def pack_header(
    kind: int,
    number: int,
    received: int,
    first_lsn: int,
    last_lsn: int,
    parts: Sequence[bytes],
    mark: bytes = UNMARKED,
) -> bytes:
    """Return the header of a block whose payload is the concatenation of ``parts``."""
    length, crc = 0, 0
    for part in parts:
        length += len(part)
        crc = crc32(part, crc)
    covered = _COVERED.pack(length, kind, mark, number, received, first_lsn, last_lsn, crc)
    return _HEADER.pack(length, crc32(covered), kind, mark, number, received, first_lsn, last_lsn, crc)


def mark_after(header: bytes, payload: bytes) -> bytes:
    """Return the mark of all blocks after a segment's first block: part of the first block's checksum."""
    try:
        version = json.loads(payload)["version"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return UNMARKED
    is_marked = isinstance(version, int) and version >= _MARKED_VERSION
    return header[4 : 4 + len(UNMARKED)] if is_marked else UNMARKED


class SegmentFile:
    """Reads the blocks of one segment and verifies every byte that it returns. Raises DamagedRecording."""

    def __init__(self, file: BinaryIO, name: str, folder: Path = Path()) -> None:
        """``folder`` is the recording's, for hints."""
        self._file = file
        self.name = name
        self.folder = folder
        self.size = file.seek(0, 2)

    def close(self) -> None:
        self._file.close()

    def block(self, offset: int, *, with_payload: bool = True) -> JournalBlock:
        """Return the block at ``offset``."""
        place = SegmentPlace(self.name, offset)
        if offset + HEADER_SIZE > self.size:
            raise damaged(place, "the file ends within a block's header")
        expected = self.mark if offset else None
        self._file.seek(offset)
        raw = self._file.read(HEADER_SIZE)
        length, crc, kind, mark, number, received, first_lsn, last_lsn, payload_crc = _HEADER.unpack(raw)
        covered = _COVERED.pack(length, kind, mark, number, received, first_lsn, last_lsn, payload_crc)
        if crc32(covered) != crc or kind not in _KINDS:
            raise damaged(place, "a block's header does not match its checksum")
        if mark != expected and expected is not None:
            raise damaged(place, "a block of a different segment is in its place")
        if offset + HEADER_SIZE + length > self.size:
            raise damaged(place, "the file ends within a block")
        if received > LAST_TIME or received < 0 or max(first_lsn, last_lsn) > LAST_LSN:
            raise damaged(place, "a block's header is invalid")
        payload = b""
        if with_payload:
            payload = self._file.read(length)
            if crc32(payload) != payload_crc:
                raise damaged(place, "a block does not match its checksum")
        return JournalBlock(BlockKind(kind), number, received, first_lsn, last_lsn, offset, length, payload)

    @cached_property
    def mark(self) -> bytes | None:
        """The mark of every block after the first; None if the first block is damaged."""
        try:
            first = self.block(0)
        except DamagedAt:
            return None
        return mark_after(self.raw(first)[:HEADER_SIZE], first.payload)

    def blocks(
        self, start: int = 0, end: int | None = None, *, with_payload: bool = True
    ) -> Iterator[JournalBlock]:
        """Yield the blocks in ``[start, end)``, up to the trailer or the end of the file."""
        offset = start
        limit = self.size if end is None else end
        while offset < limit:
            if self.size - offset == TRAILER_SIZE and self.has_trailer:
                return
            block = self.block(offset, with_payload=with_payload)
            yield block
            offset = block.end

    def headers_sha256(self, stop: int) -> str:
        """Return the sha256 of the headers before ``stop``, in hexadecimal; no payload is read."""
        digest = hashlib.sha256()
        for block in self.blocks(0, stop, with_payload=False):
            self._file.seek(block.offset)
            digest.update(self._file.read(HEADER_SIZE))
        return digest.hexdigest()

    def sha256(self, stop: int) -> str:
        """Return the sha256 of all bytes before ``stop``, in hexadecimal."""
        digest = hashlib.sha256()
        self._file.seek(0)
        while stop > 0 and (data := self._file.read(min(_CHUNK, stop))):
            digest.update(data)
            stop -= len(data)
        return digest.hexdigest()

    def raw(self, block: JournalBlock) -> bytes:
        """Return the bytes of a block, header and payload, without verifying them again."""
        self._file.seek(block.offset)
        return self._file.read(block.end - block.offset)

    def resume(self, offset: int, number: int) -> int | None:
        """Return the offset of the next intact header after block ``number``, which is damaged at ``offset``.

        The search finds candidates by the bytes that a header must have, and verifies their checksum, at any
        distance.
        """
        if offset >= self.size:
            return None
        like_header = _like_header(self.mark)
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            match = like_header.search(view, offset + _BEFORE_KIND)
            while match is not None:
                begins = match.start() - _BEFORE_KIND
                if self._is_header(view[begins : begins + HEADER_SIZE], number, self.size - begins):
                    return begins
                match = like_header.search(view, match.start() + 1)
        return None

    @staticmethod
    def _is_header(raw: bytes, before: int, room: int) -> bool:
        if len(raw) < HEADER_SIZE:
            return False
        length, crc, kind, mark, number, *rest = _HEADER.unpack(raw)
        if number <= before or HEADER_SIZE + length > room:
            return False
        return crc32(_COVERED.pack(length, kind, mark, number, *rest)) == int(crc)

    @property
    def has_trailer(self) -> bool:
        """Return whether the file ends with a trailer's magic bytes."""
        if self.size < TRAILER_SIZE:
            return False
        self._file.seek(self.size - TRAILER_SIZE)
        return self._file.read(len(_MAGIC)) == _MAGIC

    def index_offset(self) -> int:
        """Return where the INDEX block of a finished segment begins."""
        place = SegmentPlace(self.name, max(0, self.size - TRAILER_SIZE))
        if self.size < TRAILER_SIZE:
            raise damaged(place, "the file is too short to be a finished segment")
        self._file.seek(self.size - TRAILER_SIZE)
        raw = self._file.read(TRAILER_SIZE)
        magic, offset, zero, crc = _TRAILER.unpack(raw)
        if magic != _MAGIC or zero or crc32(raw[:-4]) != crc:
            raise damaged(place, "the segment's end is missing or does not match its checksum")
        return int(offset)


def _like_header(mark: bytes | None) -> re.Pattern[bytes]:
    """Return the pattern of a header from its kind on: kind, mark, and a plausible block number."""
    marked = b"..." if mark is None else re.escape(mark)
    return re.compile(rb"[\x01-\x0e]" + marked + rb"..[\0-\x0f]\0", re.DOTALL)


def pack_synced(size: int) -> bytes:
    """Return the payload of a REACHED block: ``size`` bytes of the file were on disk before it."""
    return _SYNCED.pack(size)


def synced_before(block: JournalBlock) -> int | None:
    """Return what `pack_synced` packed; None if the recording has no such payload. Raises ValueError."""
    if not block.payload:
        return None
    if len(block.payload) != _SYNCED.size:
        raise ValueError("it is not a valid size")
    return int(_SYNCED.unpack(block.payload)[0])


def pack_trailer(index_offset: int) -> bytes:
    """Return the trailer of a segment whose INDEX block begins at ``index_offset``."""
    raw = _TRAILER.pack(_MAGIC, index_offset, 0, 0)[:-4]
    return raw + struct.pack("<I", crc32(raw))


def pack_index(entries: Sequence[IndexEntry]) -> bytes:
    """Return the payload of an INDEX block."""
    return b"".join(INDEX_ENTRY.pack(*entry) for entry in entries)


def unpack_index(payload: bytes) -> list[IndexEntry]:
    """Return what `pack_index` packed. Raises ValueError when an entry is cut off."""
    if len(payload) % INDEX_ENTRY.size:
        raise ValueError("an index entry is cut off")
    return [IndexEntry(*entry) for entry in INDEX_ENTRY.iter_unpack(payload)]


def segment_name(number: int, first_lsn: int, last_lsn: int) -> str:
    """Return the file name of a finished segment: its number, first LSN and last commit LSN."""
    return f"{number:08d}-{first_lsn:016X}-{last_lsn:016X}{SUFFIX}"


# Validate values that were read from a file: types, ranges, names.
#
# Every function returns its argument, or raises ValueError.

#: The largest signed 64-bit number.
LARGEST = (1 << 63) - 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: Characters that no folder or file of a recording has in its name, because they have a special meaning.
_NO_NAME = re.compile(r"[\x00-\x1f\x7f*?\[\]\\]")


def number(value: Any, least: int = 0, most: int = LARGEST) -> int:
    """Check an integer and its range."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError("it is not a valid number")
    return value


def text(value: Any) -> str:
    """Check a text that can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise ValueError("it is not a text")
    value.encode()
    return value


def obj(value: Any) -> dict[str, Any]:
    """Check a JSON object."""
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    return value


def json_array(value: Any) -> list[Any]:
    """Check a JSON array."""
    if not isinstance(value, list):
        raise ValueError("it is not a list")
    return value


def sha256(value: Any) -> str:
    """Check a sha256 in hexadecimal."""
    if not _SHA256.fullmatch(text(value)):
        raise ValueError("it is not a sha256")
    return str(value)


def relative(value: Any) -> str:
    """Check a relative path that stays within its folder."""
    path = PurePosixPath(text(value))
    if (
        path.is_absolute()
        or ".." in path.parts
        or not path.parts
        or str(path) != value
        or _NO_NAME.search(value)
    ):
        raise ValueError("it is not a path within the folder")
    return str(value)


def identity(value: Any) -> tuple[int, int]:
    """Check the LSN and the ordinal of a change."""
    lsn, ordinal = json_array(value)
    return number(lsn, most=(1 << 64) - 1), number(ordinal)
