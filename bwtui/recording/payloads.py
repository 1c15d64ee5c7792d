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

import dataclasses
import json
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cache
from operator import itemgetter
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    TypedDict,
    TypeGuard,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from bwtui.compiled import Pack, speedups
from bwtui.model.from_json import from_json_object
from bwtui.model.headers import SESSION, Headers, make_headers
from bwtui.model.status import ErrorEntry, SchemaEntry, Status
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.messages import Binary, Relation
from bwtui.recording.blocks import (
    LARGEST,
    LAST_TIME,
    VERSION,
    BlockKind,
    JournalBlock,
    SegmentPlace,
    damaged,
    identity,
    json_array,
    number,
    obj,
    sha256,
    text,
)

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

_compiled: Pack | None = speedups.pack if speedups is not None else None
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
    for frame, column, value in filled:
        kind = _BYTES if isinstance(value, Binary) else 0
        parts += (_FILLED.pack(frame, column | kind, len(value)), value)
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


# Parse and validate JSON blocks, once, so that no reader has to check them again.
#
# ::
#
#     head = head_said(block, "00000001.partial")    # a dict whose members have the expected types
#
# File contents are untrusted. A checksum proves that they are unchanged, not who wrote them.

_PASSES = (1 << 31) - 1
_OIDS = (1 << 32) - 1
#: Free disk space in bytes may exceed 64 bits, because it is counted in blocks; a float can hold it.
_ANY_SIZE = 1 << 80


#: What of a recording is in Kafka: everything before a position, as recorded by one pass of one run.
RecordedBehind = TypedDict("RecordedBehind", {"session": str, "pass": int, "position": int})


class LastSentChange(TypedDict):
    """The last change that Kafka had when a pass with --exactly-once began.

    It is change ``ordinal`` of the transaction that commits at ``lsn``, or that transaction's last change
    (null). Later changes of transactions that earlier passes from the same position recorded were aborted.
    Older versions do not write ``recorded``.
    """

    lsn: int
    ordinal: int | None
    recorded: NotRequired[RecordedBehind]


#: A pass over the source. Before the first pass it has only its number. All LSNs are numbers.
Pass = TypedDict(
    "Pass",
    {
        "pass": int,
        "kind": NotRequired[Literal["snapshot", "stream"]],
        "start_lsn": NotRequired[int],
        "first_batch": NotRequired[int],
        "seen": NotRequired[list[int]],
        "session": NotRequired[str],
        "exactly_once": NotRequired[bool],
        "behind": NotRequired[LastSentChange],
    },
)


class Event(Pass):
    """An EVENT: a pass begins ("pass"), LSNs are missing ("gap"), or a kind that a later version added."""

    event: str
    from_lsn: NotRequired[int]
    to_lsn: NotRequired[int]


#: A segment's first block; empty until it was read. ``previous`` is the digest in the foot of the segment
#: before, or empty.
Head = TypedDict(
    "Head",
    {
        "version": int,
        "recording": str,
        "previous": str,
        "session": str,
        "first_position": int,
        "first_batch": int,
        "seen": list[int],
        "pass": Pass,
        "source": dict[str, Any],
    },
    total=False,
)
#: The end of a segment, as the relay records it. ``noted`` is the LSN up to which a recording that was given
#: up has noted its gap.
SegmentEnd = TypedDict(
    "SegmentEnd",
    {
        "first_position": int,
        "first_batch": int,
        "next_batch": int,
        "seen": list[int],
        "pass": Pass,
        "ended": str,
        "noted": NotRequired[int],
    },
)


class Foot(SegmentEnd):
    """A finished segment's last block: the segment's end, and totals derived from its blocks."""

    #: Digest of the headers of all blocks before it; in version 1 ``sha256`` of all bytes before it instead.
    headers_sha256: NotRequired[str]
    sha256: NotRequired[str]
    blocks: int
    changes: int
    transactions: int
    first_lsn: int
    last_lsn: int
    first_received: int
    last_received: int
    #: The LSN up to which everything was durable at the sink.
    reached: int
    tables: dict[str, dict[str, int]]
    #: Number of backfilled rows among a table's snapshot_rows; absent in older recordings.
    backfill_rows: NotRequired[dict[str, int]]


def digest_kind(foot: Mapping[str, Any]) -> Literal["sha256", "headers_sha256"]:
    """Return the name of a foot's digest; version 1 of the format used a different one."""
    return "sha256" if "sha256" in foot else "headers_sha256"


def is_sent(head: Head) -> bool:
    """Return whether the messages of a segment were sent to Kafka, rather than only recorded."""
    return bool(head["source"].get("cluster") or head["source"].get("broker"))


def parse_head(block: JournalBlock, segment: str) -> Head:
    """Parse a HEAD. Raises DamagedRecording."""
    return cast(Head, statement(block, segment))


def parse_event(block: JournalBlock, segment: str) -> Event:
    """Parse an EVENT. Raises DamagedRecording."""
    return cast(Event, statement(block, segment))


def parse_foot(block: JournalBlock, segment: str) -> Foot:
    """Parse a FOOT. Raises DamagedRecording."""
    return cast(Foot, statement(block, segment))


def statement(block: JournalBlock, segment: str) -> dict[str, Any]:
    """Parse and validate the JSON of a block. Raises DamagedRecording when it is invalid."""
    try:
        content = obj(json.loads(block.payload))
        _CHECKS[block.kind](content)
    except _NewerFormat as newer:
        raise damaged(SegmentPlace(segment, block.offset), newer.reason, newer.hint) from newer
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(SegmentPlace(segment, block.offset), f"a {block.kind.name} block is invalid") from error
    return content


class _NewerFormat(Exception):
    """The block needs a newer version of bwtui."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason, self.hint = reason, hint


def _head(head: dict[str, Any]) -> None:
    version = number(head["version"], 1)
    if version > VERSION:
        reason = f"a newer bwtui wrote it in format {version}; this version reads formats up to {VERSION}"
        raise _NewerFormat(reason, "install the version of bwtui that wrote it")
    bytes.fromhex(text(head["session"]))
    number(head["first_position"])
    number(head["first_batch"])
    identity(head["seen"])
    _pass(head["pass"])
    for name in ("recording", "previous"):
        text(head[name])
    source = obj(head["source"])
    text(source["slot"])
    for name in _SOURCE:
        if source.get(name) is not None:
            text(source[name])


_SOURCE = (
    *("database", "system_identifier", "server_version", "publication", "broker", "cluster", "registry"),
    *("output_format", "topic_prefix"),
)


def _pass(content: Any) -> None:
    """Check a pass; before the first pass, only its number is present."""
    number(obj(content)["pass"], most=_PASSES)
    if len(content) > 1:
        if content["kind"] not in ("snapshot", "stream"):
            raise ValueError("the kind of the pass is unknown")
        number(content["start_lsn"])
        number(content["first_batch"])
        identity(content["seen"])
        bytes.fromhex(text(content["session"]))
    if (last_sent := content.get("behind")) is not None:
        number(obj(last_sent)["lsn"])
        number(last_sent["ordinal"] or 0)
        if (recorded := last_sent.get("recorded")) is not None:
            bytes.fromhex(text(obj(recorded)["session"]))
            number(recorded["pass"], most=_PASSES)
            number(recorded["position"])


def _event(event: dict[str, Any]) -> None:
    kind = text(event["event"])
    if kind == "pass":
        if len(event) < 3:
            raise ValueError("it is incomplete")
        _pass({name: value for name, value in event.items() if name != "event"})
    elif kind == "gap":
        number(event["from_lsn"])
        number(event["to_lsn"])


def _route(route: dict[str, Any]) -> None:
    number(route["route"])
    number(route["relation"], most=_OIDS)
    for one in (route["table"], route["topic"], *json_array(route["key_columns"])):
        text(one)
    for name in ("key_schema_id", "value_schema_id"):
        if route[name] is not None:
            number(route[name], most=(1 << 31) - 1)


def parse_schema_fields(content: Any) -> dict[str, Any]:
    """Return the fields of a schema that this version knows. Raises ValueError or TypeError."""
    entry = from_json_object(SchemaEntry, obj(content))
    _conform(entry, SchemaEntry)
    _moment(entry.time)
    fields = dataclasses.asdict(entry)
    for value in fields.values():
        if isinstance(value, str):
            text(value)
        elif isinstance(value, int):
            number(value, -LARGEST)
    return fields


def _status(content: dict[str, Any]) -> None:
    _conform(Status.from_json(content), Status)
    for outage in parse_outages(content):
        _conform(outage, ErrorEntry)
        _moment(outage.since or 0.0)
        _moment(outage.until or 0.0)


def parse_outages(status: dict[str, Any]) -> list[ErrorEntry]:
    """Return the outages in a recorded status: errors with their beginning, and their end once over."""
    return [
        from_json_object(ErrorEntry, {"time": 0.0, **one}) for one in json_array(status.get("outages", []))
    ]


def _error(content: dict[str, Any]) -> None:
    entry = from_json_object(ErrorEntry, content)
    _conform(entry, ErrorEntry)
    _moment(entry.time)


def _moment(seconds: float) -> None:
    """Check a time in seconds since 1970, which the screens display."""
    if not 0 <= seconds <= LAST_TIME / 1_000_000:
        raise ValueError("it is not a valid time")


def _foot(foot: dict[str, Any]) -> None:
    kind = digest_kind(foot)
    if kind not in foot:
        reason = "this bwtui does not support the digest in its foot; a newer version may have written it"
        raise _NewerFormat(reason, "install the newest bwtui")
    sha256(foot[kind])
    for name in _NUMBERS:
        number(foot[name])
    number(foot.get("noted", 0))
    identity(foot["seen"])
    _pass(foot["pass"])
    text(foot["ended"])
    for table, counters in obj(foot["tables"]).items():
        text(table)
        for value in obj(counters).values():
            number(value)
    for table, rows in obj(foot.get("backfill_rows", {})).items():
        number(rows, least=1, most=number(obj(foot["tables"][table])["snapshot_rows"]))


_NUMBERS = (
    *("first_position", "changes", "transactions", "first_batch", "next_batch", "blocks", "reached"),
    *("first_lsn", "last_lsn", "first_received", "last_received"),
)

_CHECKS: dict[BlockKind, Callable[[dict[str, Any]], object]] = {
    BlockKind.HEAD: _head,
    BlockKind.EVENT: _event,
    BlockKind.ROUTE: _route,
    BlockKind.SCHEMA: parse_schema_fields,
    BlockKind.STATUS: _status,
    BlockKind.ERROR: _error,
    BlockKind.FOOT: _foot,
}


# -- dataclasses ---------------------------------------------------------------------------------------------


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _conform(value: Any, hint: Any) -> None:
    """Raise ValueError unless a value that was read from a file has the annotated type.

    Text need not be UTF-8: a relay's status contains file names, which may not be.
    """
    if not _conforms(value, hint):
        raise ValueError("it has a wrong type")


def _conforms(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_conforms(value, one) for one in inner)
    if origin is Literal:
        # A later version may have additional states and causes; they are shown unchanged.
        return isinstance(value, str)
    if origin is tuple:
        return isinstance(value, tuple | list) and all(_conforms(one, inner[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _conforms(name, inner[0]) and _conforms(one, inner[1]) for name, one in value.items()
        )
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        if not isinstance(value, hint):
            return False
        return all(_conforms(getattr(value, name), one) for name, one in _hints(hint).items())
    return _is_plain(value, hint)


def _is_plain(value: Any, hint: Any) -> bool:
    if hint is str:
        return isinstance(value, str)
    if hint is float:
        return type(value) in (int, float) and abs(value) <= _ANY_SIZE
    if hint is int:
        return type(value) is int and abs(value) <= _ANY_SIZE
    return type(value) is (NoneType if hint is None else hint)


# RELATION blocks: a relation in the form of pgoutput's RELATION message, so that one decoder reads both.

_COLUMN = struct.Struct(">Ii")


def pack_relation(relation: Relation) -> bytes:
    """Return the RELATION message of ``relation`` (PostgreSQL, "Logical Replication Message Formats")."""
    parts = [
        b"R",
        relation.oid.to_bytes(4, "big"),
        relation.namespace.encode() + b"\0",
        relation.name.encode() + b"\0",
        relation.replica_identity.encode(),
        len(relation.columns).to_bytes(2, "big"),
    ]
    for column in relation.columns:
        parts.append(bytes([column.is_key]) + column.name.encode() + b"\0")
        parts.append(_COLUMN.pack(column.type_oid, column.typmod))
    return b"".join(parts)


def unpack_relation(payload: bytes) -> Relation:
    """Return the relation that `pack_relation` packed. Raises DecodeError or ValueError."""
    relation = decode(payload)
    if not isinstance(relation, Relation):
        raise ValueError("the block contains no RELATION message")
    return relation


# Reconstruct the record headers of a sealed message from its other columns.

#: The columns that determine the headers.
COLUMNS = ("header_form", "lsn", "ordinal", "op", "xid", "session")

#: The same as an SQL expression for DuckDB: name=value in hexadecimal, joined by semicolons; null if none.
SENT_HEADERS = f"""
case header_form
  when 'session' then '{SESSION}=' || upper(session)
  when 'full' then concat('bwtui.lsn=', printf('%016X', lsn), ';bwtui.ordinal=', printf('%08X', ordinal),
                          ';bwtui.op=', hex(case when value is null then 'delete' else op end),
                          ';bwtui.xid=', printf('%08X', xid), ';{SESSION}=', upper(session)) end
"""


def sent_headers(
    form: str | None, lsn: int, ordinal: int, op: str, xid: int, session: str | None, *, tombstone: bool
) -> Headers | None:
    """Return the headers that the relay gave to a message, or None if it gave none."""
    if form in (None, "none") or session is None:
        return None
    name = bytes.fromhex(session)
    if form == "session":
        return [(SESSION, name)]
    return make_headers(lsn, ordinal, "delete" if tombstone else op, xid, name)
