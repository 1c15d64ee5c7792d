"""The payloads of CHANGES, ROWS and DELIVERY blocks.

A batch is what the relay passes to its sink in one call. Integers are little-endian. CHANGES and ROWS::

    batch u64 | relation u32 | commit_lsn u64 | commit_time i64 | xid u32 | ordinal u32
    frames u32 | sections u16 | without u32 | filled u32 | 2 × 0
    frames × length u32 | the frames
    per section: route u16 | headers u8 | 0 | messages u32 | messages × frame u32
                 messages × key length i32 | messages × value length i32 | the keys | the values
    per without: frame u32 | reason u8
    per filled:  frame u32 | column u16 (0x8000 added: the bytes are not text) | length u32 | text

``commit_lsn`` to ``ordinal`` describe the transaction that is open when the batch begins; in ROWS they are
the rows' LSN, the timestamp of their messages, 0, and the number of the row before. ``relation`` is 0 in
CHANGES. A frame is a whole CopyData frame of the stream (XLogData, with its 25 bytes of LSNs and time), or a
line of COPY. A length of -1 is null. ``frame`` identifies the frame that a message was made from. `NO_FRAME`
marks a tombstone for a key without a row: one sent after an unfinished snapshot, or a backfilled one.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from operator import itemgetter
from typing import Any, NamedTuple, TypeGuard

from bwtui.compiled import PACKAGE, Pack
from bwtui.pgoutput.messages import Binary

_HEAD = struct.Struct("<QIQqIIIHII2x")
_SECTION = struct.Struct("<HBxI")
_WITHOUT = struct.Struct("<IB")
_FILLED = struct.Struct("<IHI")
#: Flag of a filled column whose bytes are not text. A table has at most 1,600 columns.
_BYTES = 0x8000
_DELIVERY = struct.Struct("<QHII")

NO_FRAME = 0xFFFF_FFFF
#: Maximum ordinal of a change in a transaction, or of a row in a table's snapshot: sealed files store an INT.
LARGEST_ORDINAL = 0x7FFF_FFFF

_compiled: Pack | None = PACKAGE.pack if PACKAGE is not None else None
#: A frame or cell of more than this many bytes is not copied, because a copy would double its memory.
_LARGE = 1 << 16


class HeaderForm(IntEnum):
    """Which record headers the messages carry; see `bwtui.model.headers`."""

    NONE = 0
    SESSION = 1
    FULL = 2


class NoMessageReason(IntEnum):
    """Why a change has no message."""

    #: Dropped by --on-error log; an EVENT says why.
    DROPPED = 1
    #: The row was deleted before its unchanged TOAST value could be read; a later change of it follows.
    SUPERSEDED = 2
    #: The table has no key, so a tombstone is impossible.
    UNKEYED = 3
    #: TRUNCATE produces no message unless --truncate-topic is set.
    TRUNCATED = 4


class Transaction(NamedTuple):
    """The open transaction: ``commit_time`` in Unix microseconds, ``ordinal`` of its last row change."""

    commit_lsn: int = 0
    commit_time: int = 0
    xid: int = 0
    ordinal: int = 0


class Cells(Sequence[bytes | None]):
    """The keys or the values of messages, as a view of one element of each; nothing is copied."""

    def __init__(self, messages: Sequence[Sequence[Any]], place: int) -> None:
        self.messages, self.place = messages, place

    def __len__(self) -> int:
        return len(self.messages)

    def __getitem__(self, at: Any) -> Any:
        """Return the cell of one message; slices are not supported."""
        return self.messages[at][self.place]

    def __iter__(self) -> Iterator[bytes | None]:
        return map(itemgetter(self.place), self.messages)


class MessageSection(NamedTuple):
    """Messages of one route, in order; ``frames`` identifies the frame that each was made from."""

    route: int
    headers: HeaderForm
    frames: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]


class FilledValue(NamedTuple):
    """The text of an unchanged TOAST value that the relay filled in, from the old row or by a query."""

    frame: int
    column: int
    text: bytes


class RecordedBatch(NamedTuple):
    """The parsed payload of a CHANGES or ROWS block."""

    number: int
    relation: int
    before: Transaction
    frames: list[bytes]
    sections: list[MessageSection]
    without: dict[int, NoMessageReason]
    filled: list[FilledValue]


class DeliveredRange(NamedTuple):
    """Where Kafka put the messages ``first`` to ``first + len(partitions)`` of a batch's section."""

    batch: int
    section: int
    first: int
    partitions: Sequence[int]
    offsets: Sequence[int]


def pack_batch(
    number: int,
    relation: int,
    before: Transaction,
    frames: Sequence[bytes],
    sections: Sequence[MessageSection],
    without: Sequence[tuple[int, int]] = (),
    filled: Sequence[FilledValue] = (),
) -> list[bytes]:
    """Return the parts of a payload, without a Python loop over the rows."""
    head = _HEAD.pack(number, relation, *before, len(frames), len(sections), len(without), len(filled))
    parts = [head, *_pack_cells(frames)]
    for section in sections:
        parts.append(_SECTION.pack(section.route, section.headers, len(section.keys)))
        parts.append(_pack_unsigned(section.frames))
        parts += _pack_cells(section.keys, section.values)
    for entry in without:
        parts.append(_WITHOUT.pack(*entry))
    for frame, column, text in filled:
        kind = _BYTES if isinstance(text, Binary) else 0
        parts += (_FILLED.pack(frame, column | kind, len(text)), text)
    return parts


def unpack_batch(payload: bytes) -> RecordedBatch:
    """Return what `pack_batch` packed. Raises ValueError when the payload is not a valid batch."""
    try:
        return _unpack_batch(payload)
    except struct.error as error:
        raise ValueError("the payload is too short") from error


def _unpack_batch(payload: bytes) -> RecordedBatch:
    number, relation, lsn, time, xid, ordinal, n_frames, n_sections, n_without, n_filled = _HEAD.unpack_from(
        payload
    )
    lengths, at = _unpack("I", payload, _HEAD.size, n_frames)
    frames, at = _cut(payload, at, lengths)
    sections = []
    for _ in range(n_sections):
        section, at = _unpack_section(payload, at, n_frames)
        sections.append(section)
    without = {}
    for _ in range(n_without):
        frame, reason = _WITHOUT.unpack_from(payload, at)
        without[_within(frame, n_frames)] = NoMessageReason(reason)
        at += _WITHOUT.size
    filled = []
    for _ in range(n_filled):
        frame, column, length = _FILLED.unpack_from(payload, at)
        at += _FILLED.size
        text = payload[at : at + length]
        if column & _BYTES:
            column, text = column ^ _BYTES, Binary(text)
        filled.append(FilledValue(_within(frame, n_frames), column, text))
        at += length
    if at != len(payload):
        raise ValueError(f"it has {len(payload) - at} additional bytes at its end")
    return RecordedBatch(
        number, relation, Transaction(lsn, time, xid, ordinal), frames, sections, without, filled
    )


def pack_delivery(delivery: DeliveredRange) -> list[bytes]:
    """Return the parts of a DELIVERY block's payload."""
    head = _DELIVERY.pack(delivery.batch, delivery.section, delivery.first, len(delivery.partitions))
    return [head, _pack("i", delivery.partitions), _pack("q", delivery.offsets)]


def unpack_delivery(payload: bytes) -> DeliveredRange:
    """Return what `pack_delivery` packed. Raises ValueError when the payload is not a valid delivery."""
    if len(payload) < _DELIVERY.size:
        raise ValueError("the payload is too short")
    batch, section, first, count = _DELIVERY.unpack_from(payload)
    partitions, at = _unpack("i", payload, _DELIVERY.size, count)
    offsets, at = _unpack("q", payload, at, count)
    if at != len(payload):
        raise ValueError(f"it has {len(payload) - at} additional bytes at its end")
    return DeliveredRange(batch, section, first, partitions, offsets)


def _pack_cells(*columns: Sequence[bytes | None]) -> list[bytes]:
    """Return the lengths of all columns' cells, followed by the cells."""
    packed = [_pack_column(column) for column in columns]
    return [lengths for lengths, _ in packed] + [part for _, parts in packed for part in parts]


def _pack_column(cells: Sequence[bytes | None]) -> tuple[bytes, list[bytes]]:
    if _compiled is not None:
        from_list, place = (cells.messages, cells.place) if isinstance(cells, Cells) else (cells, -1)
        if isinstance(from_list, list) and (packed := _compiled(from_list, place, _LARGE)) is not None:
            return packed[0], [packed[1]]
    plain = list(cells)
    try:
        return _pack_unsigned(map(len, plain)), _joined(plain)  # type: ignore[arg-type]
    except TypeError:
        # At least one cell is null.
        lengths = _pack("i", (-1 if cell is None else len(cell) for cell in plain))
        return lengths, _joined([cell for cell in plain if cell is not None])


def _joined(cells: Sequence[bytes]) -> list[bytes]:
    """Return the cells as one part; a large last cell, which filled the batch, stays separate."""
    if len(cells) > 1 and len(cells[-1]) > _LARGE:
        return [b"".join(cells[:-1]), cells[-1]]
    return [b"".join(cells)]


def _within(frame: int, n_frames: int) -> int:
    if frame >= n_frames:
        raise ValueError("it refers to a missing frame")
    return frame


def _unpack_section(payload: bytes, at: int, n_frames: int) -> tuple[MessageSection, int]:
    route, headers, count = _SECTION.unpack_from(payload, at)
    frames, at = _unpack("I", payload, at + _SECTION.size, count)
    if count and max(frames) >= n_frames:
        for frame in frames:
            if frame != NO_FRAME:
                _within(frame, n_frames)
    key_lengths, at = _unpack("i", payload, at, count)
    value_lengths, at = _unpack("i", payload, at, count)
    keys, at = _cut_nullable(payload, at, key_lengths)
    values, at = _cut_nullable(payload, at, value_lengths)
    return MessageSection(route, HeaderForm(headers), frames, keys, values), at


def _pack(code: str, numbers: Iterable[int]) -> bytes:
    if _is_packed(numbers, code):
        return numbers.tobytes()
    # With signed numbers `array` takes twice as long as `struct`.
    plain = tuple(numbers)
    return struct.pack(f"<{len(plain)}{code}", *plain)


def _pack_unsigned(numbers: Iterable[int]) -> bytes:
    """Return non-negative numbers as `_pack` does with either sign, in half the time."""
    if _is_packed(numbers, "I"):
        return numbers.tobytes()
    packed = array("I", list(numbers))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _is_packed(numbers: Iterable[int], code: str) -> TypeGuard["array[int]"]:
    return isinstance(numbers, array) and numbers.typecode == code and sys.byteorder == "little"


def _unpack(code: str, payload: bytes, at: int, count: int) -> tuple["array[int]", int]:
    numbers: array[int] = array(code)
    end = at + count * numbers.itemsize
    if end > len(payload):
        raise ValueError("the payload is too short")
    numbers.frombytes(payload[at:end])
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers, end


def _cut(payload: bytes, at: int, lengths: Sequence[int]) -> tuple[list[bytes], int]:
    cells = []
    for length in lengths:
        end = at + length
        cells.append(payload[at:end])
        at = end
    if at > len(payload):
        raise ValueError("the payload is too short")
    return cells, at


def _cut_nullable(payload: bytes, at: int, lengths: Sequence[int]) -> tuple[list[bytes | None], int]:
    if not lengths or min(lengths) >= 0:
        return _cut(payload, at, lengths)  # type: ignore[return-value]
    cells: list[bytes | None] = []
    for length in lengths:
        if length == -1:
            cells.append(None)
        elif length < 0:
            raise ValueError("a length is negative")
        else:
            cells.append(payload[at : at + length])
            at += length
    if at > len(payload):
        raise ValueError("the payload is too short")
    return cells, at
