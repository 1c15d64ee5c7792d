"""Convert gathered batches to the rows of a sealed recording, by column, without an object per change.

The columns are those of `bwtui.recording.parquet`, and the rows equal those that it makes of the same
changes; it is used for rare kinds of changes (TRUNCATE, tombstones for keys without a row).
"""

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring as quoted
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bwtui.model.delivery import REFUSED, UNKNOWN
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.frames import PAYLOAD_OFFSET, POSTGRES_EPOCH_US
from bwtui.pgoutput.messages import UNCHANGED, Field, Insert, Relation, Update
from bwtui.pgoutput.tuples import MISLEADING, TEXT_HEAD, splitter
from bwtui.recording.blocks import BlockKind, JournalBlock
from bwtui.recording.change import KEY_CHANGE
from bwtui.recording.parquet import SCHEMA, message_rows
from bwtui.recording.payloads import HeaderForm, MessageSection, NoMessageReason, RecordedBatch, is_sent
from bwtui.recording.query_language import as_text
from bwtui.recording.reader import Assembly, key_columns
from bwtui.recording.segment_reader import SegmentReader
from bwtui.recording.walk import RecordedRoute, SegmentContext

# Count the changes of each transaction: up to the next one, or to anything else in between.


class TransactionLengths:
    """Counts the changes of each transaction from begin and end positions, in ascending order."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._open: int | None = None

    def begun(self, position: int) -> None:
        """Note that a transaction begins at ``position``."""
        self.interrupted(position)
        self._open = position

    def interrupted(self, position: int) -> None:
        """Note that the changes from ``position`` on do not belong to an earlier transaction."""
        if self._open is not None:
            self.lengths.append(position - self._open)
            self._open = None

    def end(self, last: SegmentReader, following: Iterable[SegmentReader]) -> None:
        """Find the end of the transaction that is open after ``last`` in the following segments."""
        if self._open is None:
            return
        position = last.stop_position
        for segment in following:
            position = segment.first_position
            first = next(iter(segment.transactions()), None)
            for entry, start in zip(segment.index, segment.starts, strict=True):
                position = segment.first_position + start
                if entry.kind == BlockKind.CHANGES and entry.transactions:
                    assert first is not None
                    self.interrupted(segment.first_position + first.position)
                    return
                if entry.kind == BlockKind.EVENT or (entry.kind == BlockKind.ROWS and entry.changes):
                    self.interrupted(position)
                    return
                position += entry.changes
        self.interrupted(position)


# Convert rows of the stream to JSON text, with one generated function per relation.
#
# Every function takes a frame and returns `ChangeTexts`. There are three ways with equal results, from fast
# to slow: rows with only text below 64 KiB in every column, split by one ``bytes.split`` as in
# `bwtui.pgoutput.tuples`; rows with NULLs; and all others, for which the functions of
# `bwtui.recording.parquet` are used.

#: Offset after the tag, the oid, and the letter for the kind of the row that follows.
_ROW = PAYLOAD_OFFSET + 6
_NEW = ord("N")
#: Types whose text is ASCII without quotes, backslashes and control characters, so that it needs no escaping:
#: numbers, boolean, oid, dates and times, uuid.
_PLAIN = frozenset({16, 20, 21, 23, 26, 700, 701, 1082, 1083, 1114, 1184, 1266, 1700, 2950})


class ChangeTexts(NamedTuple):
    """The texts of a change for the columns before, after, key_json and unchanged; None is null."""

    table: int
    op: int
    before: str | None
    after: str | None
    #: The keys of the new and of the old row; None if unknown.
    new_key: str | None
    old_key: str | None
    unchanged: list[str] | None
    filled: list[str] | None = None


OPERATIONS = ("snapshot", "insert", "update", "delete", "truncate", "cleanup", "backfill")
_SNAPSHOT, _INSERT, _UPDATE_OP, _DELETE = range(4)
_BACKFILL = OPERATIONS.index("backfill")

Row = Sequence[Field]


class TextMaker:
    """Makes the texts of one relation's rows; ``key`` has the key columns of its messages."""

    def __init__(self, relation: Relation, key: tuple[str, ...], table: int) -> None:
        self.relation = relation
        self.key = key
        self.table = table
        self._names = [column.name for column in relation.columns]
        places = {name: place for place, name in enumerate(self._names)}
        #: None if the key columns are not among the columns, so that keys are unknown.
        self._key_places = [places[name] for name in key] if set(key) <= places.keys() and key else None
        self._heads = [f"{quoted(name)}: " for name in self._names]
        self._identity = {place for place, column in enumerate(relation.columns) if column.is_key}
        self._split = splitter(len(self._names))
        scope = self._scope()
        self._nulls: Callable[[Row], tuple[str, str | None]] = scope["nulls"]
        self.insert: Callable[[bytes], ChangeTexts] = scope["insert"]
        self.update: Callable[[bytes], ChangeTexts] = scope["update"]

    # -- generated -----------------------------------------------------------------------------------------

    def _scope(self) -> dict[str, Any]:
        """Compile the functions; the only variable parts of their source are numbers."""
        scope: dict[str, Any] = {"quoted": quoted, "HEAD": TEXT_HEAD, "NEW": _NEW}
        scope |= {"slow_insert": self._any_insert, "slow_update": self._any_update, "Texts": ChangeTexts}
        lines = [*self._nulls_lines(scope), *self._plain_lines(scope, "insert", _INSERT)]
        lines += self._plain_lines(scope, "update", _UPDATE_OP)
        exec("\n".join(lines), scope)
        return scope

    def _plain_lines(self, scope: dict[str, Any], name: str, op: int) -> list[str]:
        count = len(self._names)
        if not count:
            return [f"{name} = slow_{name}"]
        pieces = [f"p{i}" for i in range(count)]
        row, key = self._format(scope, plain=True)
        return [
            f"def {name}(frame):",
            "    pieces = frame.split(HEAD)",
            f"    if len(pieces) == {count + 1}:",
            f"        head, {', '.join(pieces)} = pieces",
            f"        if len(head) == {_ROW + 2} and frame[{_ROW - 1}] == NEW and len(frame) < {MISLEADING}:",
            "            try:",
            *(f"                {line}" for line in self._decode_lines()),
            f"                return ({self.table}, {op}, None, {row}, {key}, None, None, None)",
            "            except UnicodeDecodeError: pass",
            f"    return slow_{name}(frame)",
        ]

    def _decode_lines(self) -> list[str]:
        return [
            f"p{i} = p{i}[2:].decode()" if self._is_plain(i) else f"p{i} = quoted(p{i}[2:].decode())"
            for i in range(len(self._names))
        ]

    def _nulls_lines(self, scope: dict[str, Any]) -> list[str]:
        """Return the source of ``nulls(row)``, for rows of texts and NULLs; others raise AttributeError."""
        pieces = [f"p{i}" for i in range(len(self._names))]
        row, _ = self._format(scope, plain=False)
        key = "None"
        if self._key_places:
            has_key = " and ".join(f"f{i} is not None" for i in self._key_places)
            key = f"{self._format(scope, plain=False)[1]} if {has_key} else None"
        assign = ", ".join(f"f{i}" for i in range(len(pieces)))
        return [
            "def nulls(row):",
            *([f"    {assign}, = row"] if pieces else []),
            *(f"    p{i} = 'null' if f{i} is None else quoted(f{i}.decode())" for i in range(len(pieces))),
            f"    return {row}, {key}",
        ]

    def _format(self, scope: dict[str, Any], *, plain: bool) -> tuple[str, str]:
        """Return the source of f-strings for a row and its key, from pieces p0, p1, …"""
        row = self._object(scope, "r", range(len(self._names)), plain)
        key = "None" if self._key_places is None else self._object(scope, "k", self._key_places, plain)
        return row, key

    def _object(self, scope: dict[str, Any], prefix: str, places: Sequence[int], plain: bool) -> str:
        prefix += "p" if plain else "n"
        source, text = "", "{"
        for number, place in enumerate(places):
            quote = '"' if plain and self._is_plain(place) else ""
            scope[f"{prefix}{number}"] = f"{text}{self._heads[place]}{quote}"
            source += f"{{{prefix}{number}}}{{p{place}}}"
            text = f"{quote}, "
        scope[f"{prefix}end"] = f"{text.removesuffix(', ')}}}"
        return f"f'{source}{{{prefix}end}}'"

    def _is_plain(self, place: int) -> bool:
        return self.relation.columns[place].type_oid in _PLAIN

    # -- any row -------------------------------------------------------------------------------------------

    def _any_insert(self, frame: bytes) -> ChangeTexts:
        return self._with_new(_INSERT, None, None, self._split(frame, _ROW))

    def _any_update(self, frame: bytes) -> ChangeTexts:
        if frame[_ROW - 1] == _NEW:
            return self._with_new(_UPDATE_OP, None, None, self._split(frame, _ROW))
        message = decode(frame[PAYLOAD_OFFSET:])
        assert isinstance(message, Update) and message.old is not None
        before, old_key = self._old(message.old, message.old_kind == "K")
        return self._with_new(_UPDATE_OP, before, old_key, message.new)

    def delete(self, frame: bytes) -> ChangeTexts:
        """Return the texts of a DELETE."""
        before, key = self._old(self._split(frame, _ROW), frame[_ROW - 1 : _ROW] == b"K")
        return ChangeTexts(self.table, _DELETE, before, None, None, key, None)

    def snapshot(self, row: Row) -> ChangeTexts:
        """Return the texts of a row of a snapshot."""
        return self._with_new(_SNAPSHOT, None, None, row)

    def backfill(self, row: Row) -> ChangeTexts:
        """Return the texts of a backfilled row."""
        return self._with_new(_BACKFILL, None, None, row)

    def completed(self, frame: bytes, filled: Sequence[tuple[int, bytes]]) -> ChangeTexts:
        """Return the texts of an INSERT or UPDATE with values that the relay filled in."""
        message = decode(frame[PAYLOAD_OFFSET:])
        assert isinstance(message, Insert | Update)
        new = list(message.new)
        for place, text in filled:
            new[place] = text
        op, before, old_key = _INSERT, None, None
        if isinstance(message, Update):
            op = _UPDATE_OP
            if message.old is not None:
                before, old_key = self._old(message.old, message.old_kind == "K")
        names = [self._names[place] for place, _ in filled]
        return self._with_new(op, before, old_key, new)._replace(filled=names)

    def _with_new(self, op: int, before: str | None, old_key: str | None, new: Row) -> ChangeTexts:
        try:
            after, new_key = self._nulls(new)
            return ChangeTexts(self.table, op, before, after, new_key, old_key, None)
        except (AttributeError, ValueError):
            # A value that was not sent, or is not UTF-8.
            values = {place: value for place, value in enumerate(new) if value is not UNCHANGED}
            unchanged = [self._names[place] for place, value in enumerate(new) if value is UNCHANGED]
            return ChangeTexts(
                self.table, op, before, self._json(values), self._key(values), old_key, unchanged
            )

    def _old(self, row: Row, is_key: bool) -> tuple[str, str | None]:
        if not is_key:
            try:
                return self._nulls(row)
            except (AttributeError, ValueError):
                pass
        values = {
            place: value
            for place, value in enumerate(row)
            if not (value is UNCHANGED or (is_key and value is None and place not in self._identity))
        }
        return self._json(values), self._key(values)

    def _json(self, values: dict[int, Field]) -> str:
        return f"{{{', '.join([self._heads[place] + _text(value) for place, value in values.items()])}}}"

    def _key(self, values: dict[int, Field]) -> str | None:
        if self._key_places is None:
            return None
        key = {place: values.get(place) for place in self._key_places}
        return None if None in key.values() else self._json(key)


def _text(value: Field) -> str:
    if value is None:
        return "null"
    try:
        return quoted(value.decode())  # type: ignore[union-attr]
    except (AttributeError, UnicodeDecodeError):
        return json.dumps(as_text(value), ensure_ascii=False)


# Consecutive batches of a segment, gathered so that their columns are created together.
#
# A batch of the live stream may have a single change; creating columns for it alone would cost more than all
# else.

Ints = npt.NDArray[np.int64]

#: Codes of `bwtui.recording.change.DeliveryState`, in this order.
STATES = ("acknowledged", "refused", "unknown", "unsent")
_ACKNOWLEDGED, _REFUSED, _UNKNOWN, _UNSENT = range(4)
_BEGIN = ord("B")
_LSN = slice(PAYLOAD_OFFSET + 1, PAYLOAD_OFFSET + 9)
_TIME = slice(PAYLOAD_OFFSET + 9, PAYLOAD_OFFSET + 17)
_XID = slice(PAYLOAD_OFFSET + 17, PAYLOAD_OFFSET + 21)
_IS_CHANGE = np.zeros(256, bool)
_IS_CHANGE[list(b"IUD")] = True

#: Partitions and offsets, one per message of a section.
_Placed = tuple[list[int], list[int]]
#: By batch and section.
Deliveries = Mapping[tuple[int, int], _Placed]


class _TransactionRun(NamedTuple):
    """Changes of one transaction from frame ``at`` on; ``before`` counts its changes in earlier batches."""

    at: int
    lsn: int
    time: int
    xid: int
    before: int


@dataclass(slots=True)
class ChangePlaces:
    """The frame of each change, and the values that all changes of a transaction or a block share."""

    #: The frame of every change, and the change of every frame (-1 if it is not a change).
    frames: Ints
    of_frame: Ints
    lsn: Ints
    ordinal: Ints
    xid: Ints
    time: Ints
    received: Ints


@dataclass(slots=True)
class BatchMessages:
    """All messages, in the order of the changes; ``frame`` identifies the change."""

    frame: Ints
    route: Ints
    headers: Ints
    state: Ints
    partition: Ints
    offset: Ints
    keys: list[bytes | None]
    values: list[bytes | None]


@dataclass(slots=True)
class BatchGroup:
    """Consecutive batches of one kind, under one state of `SegmentContext`."""

    kind: BlockKind = BlockKind.CHANGES
    relation: int = 0
    first_position: int = 0
    offset: int = 0
    frames: list[bytes] = field(default_factory=list)
    letters: bytes = b""
    routes: dict[int, RecordedRoute] = field(default_factory=dict)
    without: dict[int, int] = field(default_factory=dict)
    filled: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    _begun: list[_TransactionRun] = field(default_factory=list)
    _blocks: list[tuple[int, int]] = field(default_factory=list)
    _sections: list[tuple[int, MessageSection, _Placed | None]] = field(default_factory=list)

    @property
    def is_rows(self) -> bool:
        """Return whether these are snapshot or backfilled rows, which are never repeats."""
        return self.kind == BlockKind.ROWS

    def fits(self, block: JournalBlock, batch: RecordedBatch) -> bool:
        """Return whether a batch can be added to those gathered so far."""
        return not self.frames or (self.kind == block.kind and self.relation == batch.relation)

    def add(
        self,
        block: JournalBlock,
        batch: RecordedBatch,
        letters: bytes,
        context: SegmentContext,
        position: int,
        deliveries: Deliveries,
    ) -> None:
        """Add a batch whose first change has ``position``; ``letters`` are its frames' tags."""
        base = len(self.frames)
        if not base:
            self.kind, self.relation = block.kind, batch.relation
            self.first_position, self.offset = position, block.offset
        self._blocks.append((base, block.received))
        lsn, time, xid, ordinal = batch.before
        self._begun.append(_TransactionRun(base, lsn, time, xid, ordinal))
        self.frames += batch.frames
        if block.kind == BlockKind.CHANGES:
            self._take_stream(batch, letters, base)
        for number, section in enumerate(batch.sections):
            self.routes[section.route] = context.routes[section.route]
            self._sections.append((base, section, deliveries.get((batch.number, number))))
        for frame, reason in batch.without.items():
            self.without[base + frame] = reason
        for frame, column, text in batch.filled:
            self.filled.setdefault(base + frame, []).append((column, text))

    def _take_stream(self, batch: RecordedBatch, letters: bytes, base: int) -> None:
        self.letters += letters
        number = int.from_bytes
        at = letters.find(_BEGIN)
        while at >= 0:
            frame = batch.frames[at]
            time = number(frame[_TIME], "big", signed=True) + POSTGRES_EPOCH_US
            self._begun.append(
                _TransactionRun(base + at, number(frame[_LSN], "big"), time, number(frame[_XID], "big"), 0)
            )
            at = letters.find(_BEGIN, at + 1)

    def places(self) -> ChangePlaces:
        """Return the changes with their transactions and blocks."""
        if self.kind == BlockKind.ROWS:
            frames = np.arange(len(self.frames))
            of_frame = frames
        else:
            is_change = _IS_CHANGE[np.frombuffer(self.letters, np.uint8)]
            frames = np.flatnonzero(is_change)
            of_frame = np.where(is_change, np.cumsum(is_change) - 1, -1)
        at, lsn, time, xid, before = np.array(self._begun, np.int64).T
        transaction = np.searchsorted(at, frames, "right") - 1
        # The number, among all changes, of the first change at or after each transaction's beginning.
        first = np.searchsorted(frames, at)
        ordinal = before[transaction] + np.arange(len(frames)) - first[transaction] + 1
        starts, received = np.array(self._blocks, np.int64).T
        block = np.searchsorted(starts, frames, "right") - 1
        return ChangePlaces(
            frames, of_frame, lsn[transaction], ordinal, xid[transaction], time[transaction], received[block]
        )

    def messages(self, *, is_sent: bool) -> BatchMessages:
        """Return the messages of all sections; ``is_sent`` means that they were for Kafka."""
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        frames, counts, placed = [], [], []
        for base, section, delivery in self._sections:
            keys += section.keys
            values += section.values
            frames.append(_ints(section.frames) + base)
            counts.append(len(section.keys))
            if is_sent:
                placed.append(_delivery(delivery, len(section.keys)))
        frame = np.concatenate(frames) if frames else np.zeros(0, np.int64)
        route = np.repeat([section.route for _, section, _ in self._sections], counts).astype(np.int64)
        headers = np.repeat([int(section.headers) for _, section, _ in self._sections], counts).astype(
            np.int64
        )
        if is_sent and placed:
            partition, offset = (np.concatenate(column) for column in zip(*placed, strict=True))
            state = np.full(len(frame), _ACKNOWLEDGED)
            state[partition == REFUSED] = _REFUSED
            state[partition == UNKNOWN] = _UNKNOWN
        else:
            partition, offset = np.full(len(frame), -1), np.full(len(frame), -1)
            state = np.full(len(frame), _UNSENT)
        messages = BatchMessages(frame, route, headers, state, partition, offset, keys, values)
        return messages if (frame[1:] >= frame[:-1]).all() else _sorted(messages)


def _sorted(messages: BatchMessages) -> BatchMessages:
    """Return the messages ordered by frame; those of one frame stay in the order of their sections."""
    order = np.argsort(messages.frame, kind="stable")
    places = order.tolist()
    return BatchMessages(
        messages.frame[order],
        messages.route[order],
        messages.headers[order],
        messages.state[order],
        messages.partition[order],
        messages.offset[order],
        [messages.keys[place] for place in places],
        [messages.values[place] for place in places],
    )


def _delivery(placed: _Placed | None, count: int) -> tuple[Ints, Ints]:
    if placed is None:
        return np.full(count, UNKNOWN), np.full(count, UNKNOWN)
    # Messages at the end without a delivery report are missing from the lists.
    partitions, offsets = (np.array(column[:count], np.int64) for column in placed)
    missing = count - len(partitions)
    if missing:
        partitions = np.append(partitions, np.full(missing, UNKNOWN))
        offsets = np.append(offsets, np.full(missing, UNKNOWN))
    return partitions, offsets


def _ints(numbers: Sequence[int]) -> Ints:
    if isinstance(numbers, array):
        return np.frombuffer(numbers, np.dtype(numbers.typecode)).astype(np.int64)
    return np.array(numbers, np.int64)


# Create the columns of a sealed recording's rows as Arrow arrays.

#: Columns with few distinct values: they are dictionary-encoded, as Parquet stores them too.
CODED = ("session", "op", "schema", "table", "topic", "state", "without", "header_form")
CODED_SCHEMA = pa.schema(
    [
        pa.field(one.name, pa.dictionary(pa.int32(), pa.string())) if one.name in CODED else one
        for one in SCHEMA
    ]
)
_FORMS = [form.name.lower() for form in HeaderForm]
_OPERATIONS = (*OPERATIONS, KEY_CHANGE)
_UPDATE, _KEY_CHANGE = _OPERATIONS.index("update"), _OPERATIONS.index(KEY_CHANGE)
_REASONS = ["", *(reason.name.lower() for reason in NoMessageReason)]

Columns = dict[str, pa.Array]
Mask = npt.NDArray[np.bool_]


class RowLayout(NamedTuple):
    """For each row: its change, the number of its message within the change, and the message (-1 if none).

    ``is_plain`` means one message per change, so that rows, changes and messages correspond.
    """

    change: Ints
    part: Ints
    message: Ints
    is_plain: bool

    def by_change(self, column: pa.Array) -> pa.Array:
        """Expand a column of the changes to the rows."""
        return column if self.is_plain else column.take(pa.array(self.change))

    def by_message(self, column: pa.Array) -> pa.Array:
        """Expand a column of the messages to the rows."""
        if self.is_plain:
            return column
        return column.take(pa.array(self.message, mask=self.message < 0))


def lay_out(messages: BatchMessages, places: ChangePlaces) -> RowLayout:
    """Lay out rows: one per message, and one for a change without any. Raises ValueError or IndexError."""
    count = len(places.frames)
    of_message = places.of_frame[messages.frame]
    if (of_message < 0).any():
        raise ValueError("a message belongs to no change")
    changes = np.arange(count)
    if len(of_message) == count and (of_message == changes).all():
        return RowLayout(changes, np.zeros(count, np.int64), changes, True)
    sent = np.bincount(of_message, minlength=count)
    rows = np.maximum(sent, 1)
    change = np.repeat(changes, rows)
    first = np.cumsum(rows) - rows
    part = np.arange(len(change)) - first[change]
    message = np.full(len(change), -1)
    message[sent[change] > 0] = np.arange(len(of_message))
    return RowLayout(change, part, message, False)


def of_changes(
    gathered: BatchGroup, places: ChangePlaces, context: SegmentContext, layout: RowLayout
) -> Columns:
    """Return the columns that depend on a change's transaction, block and pass."""
    change = layout.change
    lsn, ordinal = places.lsn[change], places.ordinal[change]
    last_lsn, last_ordinal = context.newest_before_pass
    repeats = (lsn < last_lsn) | ((lsn == last_lsn) & (ordinal <= last_ordinal))
    if gathered.is_rows:
        repeats = np.zeros(len(change), bool)
    reasons = np.zeros(len(gathered.frames), np.int32)
    for frame, reason in gathered.without.items():
        reasons[frame] = reason
    reasons = reasons[places.frames][change]
    return {
        "position": pa.array(gathered.first_position + change, pa.int64()),
        "pass": pa.array(np.full(len(change), context.pass_number, np.int32)),
        "is_repeat": pa.array(repeats),
        "lsn": pa.array(lsn),
        "ordinal": pa.array(ordinal.astype(np.int32)),
        "part": pa.array(layout.part.astype(np.int32)),
        "xid": pa.array(places.xid[change]),
        "commit_time": pa.array(places.time[change], pa.timestamp("us")),
        "received": pa.array(places.received[change], pa.timestamp("us")),
        "without": _coded(reasons, _REASONS, reasons == 0),
    }


def of_messages(
    messages: BatchMessages, layout: RowLayout, gathered: BatchGroup, context: SegmentContext
) -> Columns:
    """Return the columns of messages and their delivery."""
    at = layout.message
    missing = at < 0
    routes = sorted(gathered.routes)
    recorded_routes = [gathered.routes[number] for number in routes]
    route = np.searchsorted(routes, messages.route) if routes else messages.route
    key, value = (pa.array(cells, pa.binary()) for cells in (messages.keys, messages.values))
    ids = {
        "key_schema_id": _ids(route, [recorded.key_schema_id for recorded in recorded_routes], key),
        "value_schema_id": _ids(route, [recorded.value_schema_id for recorded in recorded_routes], value),
    }
    forms = messages.headers.astype(np.int32)
    unplaced = messages.state != STATES.index("acknowledged")
    return {
        "topic": _at(route, [recorded.topic for recorded in recorded_routes], at, missing),
        "header_form": _at(forms, _FORMS, at, missing),
        "session": _at(
            np.zeros(len(forms)), [context.head["session"]], at, missing, forms == HeaderForm.NONE
        ),
        "state": _at(messages.state, STATES, at, missing),
        "partition": layout.by_message(pa.array(messages.partition.astype(np.int32), mask=unplaced)),
        "offset": layout.by_message(pa.array(messages.offset, mask=unplaced)),
        "key": layout.by_message(key),
        "value": layout.by_message(value),
        **{name: layout.by_message(column) for name, column in ids.items()},
    }


def _ids(route: Ints, ids: Sequence[int | None], cells: pa.Array) -> pa.Array:
    """Return the schema ids of the cells, null for null cells."""
    if not len(route):
        return pa.array([], pa.int32())
    numbers = np.array([-1 if one is None else one for one in ids], np.int32)[route]
    nulls = numbers < 0
    if cells.null_count:
        nulls |= cells.is_null().to_numpy(zero_copy_only=False)
    return pa.array(numbers, mask=nulls)


def _at(
    codes: npt.NDArray[Any],
    names: Sequence[str],
    message: Ints,
    missing: Mask,
    nulls: Mask | None = None,
) -> pa.Array:
    """Return a dictionary-encoded column of the messages, expanded to the rows."""
    if not len(codes):
        return _coded(np.zeros(len(message), np.int32), [""], np.ones(len(message), bool))
    mask = missing if nulls is None else missing | nulls[message]
    return _coded(codes[message].astype(np.int32), names, mask)


def of_texts(texts: Sequence[ChangeTexts], layout: RowLayout, values: pa.Array) -> Columns:
    """Return the columns of row contents; ``values`` are the values of the rows' messages."""
    _, ops, befores, afters, new_keys, old_keys, unchanged, filled = zip(*texts, strict=True)
    before, after, key_json = (
        layout.by_change(pa.array(column, pa.string())) for column in (befores, afters, new_keys)
    )
    codes = np.array(ops, np.int32)[layout.change]
    if before.null_count < len(before) or after.null_count:
        # The old key applies to a delete, and to the tombstone of a changed key.
        is_tombstone = pc.and_(pa.array(layout.message >= 0), values.is_null())
        codes[(codes == _UPDATE) & is_tombstone.to_numpy(zero_copy_only=False)] = _KEY_CHANGE
        is_old = pc.or_(after.is_null(), pc.and_(is_tombstone, before.is_valid()))
        key_json = pc.if_else(is_old, layout.by_change(pa.array(old_keys, pa.string())), key_json)
    return {
        "op": _coded(codes, _OPERATIONS),
        "before": before,
        "after": after,
        "key_json": key_json,
        "unchanged": layout.by_change(_lists(unchanged)),
        "filled": layout.by_change(_lists(filled)),
    }


def of_tables(tables: Ints, names: Sequence[tuple[str, str]], layout: RowLayout) -> Columns:
    """Return the columns schema and table; ``tables`` has indexes into ``names``."""
    codes = tables[layout.change]
    by_relation = {}
    for column, texts in zip(("schema", "table"), zip(*names, strict=True), strict=True):
        distinct = list(dict.fromkeys(texts))
        code = np.array([distinct.index(text) for text in texts], np.int32)
        by_relation[column] = _coded(code[codes], distinct)
    return by_relation


def _lists(lists: Sequence[list[str] | None]) -> pa.Array:
    if any(lists):
        return pa.array([one or [] for one in lists], pa.list_(pa.string()))
    return pa.ListArray.from_arrays(pa.array(np.zeros(len(lists) + 1, np.int32)), pa.array([], pa.string()))


def _coded(codes: npt.NDArray[np.int32], names: Sequence[str], nulls: Mask | None = None) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=nulls), pa.array(names, pa.string()))


HOUR_US = 3_600_000_000
_TAG_AND_OID = slice(PAYLOAD_OFFSET, PAYLOAD_OFFSET + 5)


class SealedRows(NamedTuple):
    """Rows of one table and one hour, in the order of their positions."""

    table: tuple[str, str]
    hour: int
    batch: pa.RecordBatch


class SealedRowMaker:
    """Makes the rows of one segment; call `forget` whenever the state of `SegmentContext` has changed."""

    def __init__(self) -> None:
        self._tables: list[tuple[str, str]] = []
        self._makers: dict[int, TextMaker] = {}
        self._cached: dict[tuple[object, tuple[str, ...]], TextMaker] = {}

    def forget(self) -> None:
        """Forget relations and routes."""
        self._makers.clear()

    def suits(
        self, block: JournalBlock, batch: RecordedBatch, letters: bytes, context: SegmentContext
    ) -> bool:
        """Return whether `rows` can handle a batch with the tags ``letters``; otherwise `rare_rows` can."""
        if block.kind == BlockKind.ROWS:
            return bool(batch.frames) and bool(context.relations[batch.relation].columns) and not batch.filled
        return b"T" not in letters and all(
            context.routes[section.route].key_columns
            == context.route_of[context.routes[section.route].relation_oid].key_columns
            for section in batch.sections
        )

    def rare_rows(
        self,
        block: JournalBlock,
        batch: RecordedBatch,
        context: SegmentContext,
        deliveries: Deliveries,
        position: int,
    ) -> Iterator[SealedRows]:
        """Yield the rows of any batch, by assembling its changes."""
        by_table: dict[tuple[tuple[str, str], int], list[tuple[object, ...]]] = {}
        schema, table, time = (SCHEMA.get_field_index(name) for name in ("schema", "table", "commit_time"))
        for change in Assembly(block, batch, context, deliveries, position).changes():
            for row in message_rows(change):
                where = ((str(row[schema]), str(row[table])), int(row[time]) // HOUR_US)
                by_table.setdefault(where, []).append(row)
        for (name, hour), rows in by_table.items():
            columns = [
                pa.array(values, type=one.type)
                for values, one in zip(zip(*rows, strict=True), SCHEMA, strict=True)
            ]
            batch_of = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
            yield SealedRows(name, hour, batch_of.cast(CODED_SCHEMA))

    def rows(self, gathered: BatchGroup, context: SegmentContext) -> Iterator[SealedRows]:
        """Yield the rows of gathered batches. May raise any error if a batch is inconsistent."""
        places = gathered.places()
        count = len(places.frames)
        if not count:
            return
        texts = list(self._texts(gathered, places, context))
        messages = gathered.messages(is_sent=is_sent(context.head))
        layout = lay_out(messages, places)
        tables = np.array([one[0] for one in texts], np.int64)
        sent = of_messages(messages, layout, gathered, context)
        columns = {
            **of_changes(gathered, places, context, layout),
            **sent,
            **of_texts(texts, layout, sent["value"]),
            **of_tables(tables, self._tables, layout),
        }
        batch = pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=CODED_SCHEMA)
        change = layout.change
        tables = tables[change]
        yield from self._partitioned(batch, tables, places.time[change] // HOUR_US)

    def _partitioned(self, batch: pa.RecordBatch, tables: Ints, hours: Ints) -> Iterator[SealedRows]:
        if (tables == tables[0]).all() and (hours == hours[0]).all():
            yield SealedRows(self._tables[tables[0]], int(hours[0]), batch)
            return
        order = np.lexsort((hours, tables))
        table, hour = tables[order], hours[order]
        edges = np.flatnonzero((table[1:] != table[:-1]) | (hour[1:] != hour[:-1])) + 1
        for places in np.split(order, edges):
            first = places[0]
            yield SealedRows(self._tables[tables[first]], int(hours[first]), batch.take(pa.array(places)))

    # -- texts ---------------------------------------------------------------------------------------------

    def _texts(
        self, gathered: BatchGroup, places: ChangePlaces, context: SegmentContext
    ) -> Iterator[ChangeTexts]:
        if gathered.kind == BlockKind.ROWS:
            maker = self.maker(gathered.relation, context)
            make = maker.backfill if context.puts_rows else maker.snapshot
            for line in gathered.frames:
                yield make(unescape_copy_line(line))
            return
        functions = _TextFunctions(self, context)
        frames, filled = gathered.frames, gathered.filled
        if not filled:
            for at in places.frames.tolist():
                frame = frames[at]
                yield functions[frame[_TAG_AND_OID]](frame)
            return
        for at in places.frames.tolist():
            frame = frames[at]
            if at in filled:
                oid = int.from_bytes(frame[PAYLOAD_OFFSET + 1 : PAYLOAD_OFFSET + 5], "big")
                yield self.maker(oid, context).completed(frame, filled[at])
            else:
                yield functions[frame[_TAG_AND_OID]](frame)

    def maker(self, oid: int, context: SegmentContext) -> TextMaker:
        """Return the text maker of a relation, with its current columns and key."""
        maker = self._makers.get(oid)
        if maker is None:
            relation = context.relations[oid]
            key = key_columns(context.route_of.get(oid), relation)
            maker = self._cached.get((relation, key))
            if maker is None:
                table = (relation.namespace, relation.name)
                if table not in self._tables:
                    self._tables.append(table)
                maker = TextMaker(relation, key, self._tables.index(table))
                self._cached[relation, key] = maker
            self._makers[oid] = maker
        return maker


class _TextFunctions(dict[bytes, Callable[[bytes], ChangeTexts]]):
    """Tag and oid → function that makes the texts of such a frame."""

    def __init__(self, maker: SealedRowMaker, context: SegmentContext) -> None:
        self._maker = maker
        self._context = context

    def __missing__(self, key: bytes) -> Callable[[bytes], ChangeTexts]:
        maker = self._maker.maker(int.from_bytes(key[1:], "big"), self._context)
        function = {ord("I"): maker.insert, ord("U"): maker.update, ord("D"): maker.delete}[key[0]]
        self[key] = function
        return function
