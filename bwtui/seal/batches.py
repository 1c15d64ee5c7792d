"""Consecutive batches of a segment, gathered so that their columns are created together.

A batch of the live stream may have a single change; creating columns for it alone would cost more than all
else.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bwtui.model.delivery import REFUSED, UNKNOWN
from bwtui.pgoutput.frames import PAYLOAD_OFFSET, POSTGRES_EPOCH_US
from bwtui.recording.format.batch import MessageSection, RecordedBatch
from bwtui.recording.format.blocks import BlockKind, JournalBlock
from bwtui.recording.format.context import RecordedRoute, SegmentContext

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
