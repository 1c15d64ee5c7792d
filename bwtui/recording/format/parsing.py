"""Read a batch's frames without decoding them: count changes by table, and list transactions."""

import struct
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from bwtui.compiled import PACKAGE, Tags
from bwtui.pgoutput.frames import PAYLOAD_OFFSET, POSTGRES_EPOCH_US
from bwtui.pgoutput.messages import Relation
from bwtui.recording.format.batch import NO_FRAME, MessageSection, Transaction
from bwtui.recording.format.blocks import TRANSACTION_ENTRY

_tag = itemgetter(PAYLOAD_OFFSET)
#: The tag and the relation's oid of a frame that has one.
_tag_and_oid = itemgetter(slice(PAYLOAD_OFFSET, PAYLOAD_OFFSET + 5))
_begin = struct.Struct(">QqI").unpack_from
_truncate = struct.Struct(">IB").unpack_from

_COUNTERS = {ord("I"): "inserts", ord("U"): "updates", ord("D"): "deletes"}
_BEGIN, _TRUNCATE = ord("B"), ord("T")
#: 1 for the tags of changes, 0 for all others.
_IS_CHANGE = bytes(tag in b"IUDT" for tag in range(256))
_compiled: Tags | None = PACKAGE.tags if PACKAGE is not None else None

_NO_FRAME = NO_FRAME.to_bytes(4, "big")

#: An increment of a table's counter: table, counter, and number.
Count = tuple[str, str, int]
Counts = list[Count]


class FrameScan(NamedTuple):
    """The result of `scan`; ``last`` is the transaction open after the frames, or else the last one."""

    changes: int
    #: Packed TRANSACTIONS entries; ``transactions`` is their number.
    entries: bytes
    transactions: int
    first_lsn: int
    last: Transaction


def tags(frames: Sequence[bytes]) -> bytes:
    """Return the pgoutput tag of every frame."""
    if _compiled is not None and isinstance(frames, list) and (found := _compiled(frames, PAYLOAD_OFFSET)):
        return found
    return bytes(map(_tag, frames))


def scan(frames: Sequence[bytes], tags: bytes, before: Transaction, first_position: int) -> FrameScan:
    """Number the changes of a batch and list the transactions that begin in it.

    ``tags`` are the frames' tags, ``before`` is the transaction that is open at their beginning, and
    ``first_position`` is the number of changes before them in the segment.
    """
    is_change = tags.translate(_IS_CHANGE)
    entries = []
    position, start, last = first_position, 0, before
    first_lsn = before.commit_lsn if tags[:1] != b"B" else 0
    at = tags.find(_BEGIN)
    while at >= 0:
        position += is_change.count(1, start, at)
        start = at
        lsn, time, xid = _begin(frames[at], PAYLOAD_OFFSET + 1)
        time += POSTGRES_EPOCH_US
        first_lsn = first_lsn or lsn
        entries.append(TRANSACTION_ENTRY.pack(lsn, time, xid, position))
        at = tags.find(_BEGIN, at + 1)
    if entries:
        last = Transaction(lsn, time, xid)
    last = last._replace(ordinal=last.ordinal + is_change.count(1, start))
    return FrameScan(is_change.count(1), b"".join(entries), len(entries), first_lsn, last)


def count_changes(
    frames: Sequence[bytes], found: bytes, relations: Mapping[int, Relation], only: str | None = None
) -> Counts:
    """Return the increments of the tables' counters; ``found`` are the frames' tags.

    ``only`` is the single table of all changes, if there is just one: then no frame needs to be read.
    """
    if only is not None and _TRUNCATE not in found:
        letters = ((counter, found.count(letter)) for letter, counter in _COUNTERS.items())
        return [(only, counter, number) for counter, number in letters if number]
    counts = []
    for start, number in Counter(map(_tag_and_oid, frames)).items():
        counter = _COUNTERS.get(start[0])
        if counter is not None:
            oid = int.from_bytes(start[1:], "big")
            counts.append((relations[oid].qualified_name, counter, number))
    at = found.find(_TRUNCATE)
    while at >= 0:
        # A TRUNCATE also names tables that the relay excludes; these are not recorded here.
        names = [relations[oid].qualified_name for oid in truncated(frames[at]) if oid in relations]
        counts += [(name, "truncates", 1) for name in names]
        at = found.find(_TRUNCATE, at + 1)
    return counts


def truncated(frame: bytes) -> tuple[int, ...]:
    """Return the oids of the relations that a TRUNCATE frame names."""
    (number, _) = _truncate(frame, PAYLOAD_OFFSET + 1)
    return struct.unpack_from(f">{number}I", frame, PAYLOAD_OFFSET + 6)


def count_messages(tables: Sequence[str], sections: Sequence[MessageSection], sizes: Sequence[int]) -> Counts:
    """Return what sections add to the counters of their ``tables``; ``sizes`` come from `size_of`."""
    counts = []
    for table, section, size in zip(tables, sections, sizes, strict=True):
        counts += [(table, "messages", len(section.keys)), (table, "bytes", size)]
        if cleared := _cleared(section.frames):
            counts.append((table, "cleanups", cleared))
    return counts


def _cleared(frames: Sequence[int]) -> int:
    # Tombstones without a row are rare, and a search for their bytes takes a tenth of the time of count().
    if isinstance(frames, array) and _NO_FRAME not in frames.tobytes():
        return 0
    return frames.count(NO_FRAME)


def size_of(section: MessageSection) -> int:
    """Return the total size of the section's keys and values in bytes."""
    return _size(section.keys) + _size(section.values)


def _size(cells: Sequence[bytes | None]) -> int:
    try:
        return sum(map(len, cells))  # type: ignore[arg-type]
    except TypeError:
        # At least one cell is null.
        return sum(len(cell) for cell in cells if cell is not None)
