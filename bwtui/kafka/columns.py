"""Kafka's messages and the holes between them as Arrow record batches."""

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message
from numpy.typing import NDArray

from bwtui.audit.partitioner import murmur2_of
from bwtui.compiled import Buffers, Columns, speedups
from bwtui.kafka.client import Config, headers_of
from bwtui.kafka.scan import Hole, Isolation, Split, SplitScan

#: Column → Spark's type, in order.
COLUMNS = {
    "kind": "string",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "offset_end": "bigint",
    "timestamp": "bigint",
    "timestamp_type": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
}

RECORD = "record"
#: A record of a transaction that was aborted.
ABORTED = "aborted"

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    COLUMNS["headers"]: HEADERS,
}
#: Spark accepts only whole batches, so batches of large messages are split.
_BATCH_BYTES = 16 * 1024 * 1024
_FIRST, _SECOND = itemgetter(0), itemgetter(1)
_compiled: Columns | None = speedups.columns if speedups is not None else None


class SplitBatches:
    """Makes record batches of one split with the requested columns."""

    def __init__(self, split: Split, columns: Sequence[str]) -> None:
        self._split = split
        self._columns = columns
        self._takes_contents = {"key", "value"} <= set(columns)
        # Spark's schemas are nullable throughout, and it accepts no others.
        self._schema = pa.schema([(name, _TYPES[COLUMNS[name]]) for name in columns])

    def of_messages(
        self, messages: list[Message], offsets: list[int], kind: str = RECORD
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages at ``offsets`` as batches of a bounded size."""
        if not messages:
            return
        buffers = _compiled(messages) if _compiled is not None and self._takes_contents else None
        ready_arrays = _arrays(len(messages), *buffers) if buffers is not None else {}
        arrays = [
            ready_arrays[name] if name in ready_arrays else self._column(name, messages, offsets, kind)
            for name in self._columns
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        rows = max(1, batch.num_rows * _BATCH_BYTES // max(batch.nbytes, _BATCH_BYTES))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)

    def of_holes(self, holes: Sequence[Hole]) -> Iterator[pa.RecordBatch]:
        """Yield the holes as one batch: a row each, with neither key nor value."""
        if not holes:
            return
        columns: dict[str, Any] = {
            "kind": [hole.kind for hole in holes],
            "topic": [self._split.topic] * len(holes),
            "partition": [self._split.partition] * len(holes),
            "offset": [hole.low for hole in holes],
            "offset_end": [hole.high for hole in holes],
        }
        nothing = [None] * len(holes)
        yield pa.RecordBatch.from_pydict(
            {name: columns.get(name, nothing) for name in self._columns}, schema=self._schema
        )

    def _column(self, name: str, messages: list[Message], offsets: list[int], kind: str) -> pa.Array:
        if name in _CONVERTERS:
            return _CONVERTERS[name](messages)
        constants: dict[str, Any] = {
            "kind": pa.scalar(kind, pa.string()),
            "topic": pa.scalar(self._split.topic, pa.string()),
            "partition": pa.scalar(self._split.partition, pa.int32()),
        }
        if name in constants:
            return pa.repeat(constants[name], len(messages))
        first, last = offsets[0], offsets[-1]
        is_whole = last - first + 1 == len(offsets)
        positions = pa.array(np.arange(first, last + 1) if is_whole else offsets, pa.int64())
        return positions if name == "offset" else pc.add(positions, 1)


def _arrays(count: int, times: bytes, keys: Buffers, values: Buffers) -> dict[str, pa.Array]:
    """Return the columns that the C extension has made."""
    arrays = {"timestamp": pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(times)])}
    for name, buffers in (("key", keys), ("value", values)):
        each = [pa.py_buffer(buffer) if buffer is not None else None for buffer in buffers]
        arrays[name] = pa.Array.from_buffers(pa.binary(), count, each)
    return arrays


def _headers(messages: list[Message]) -> pa.Array:
    every: list[Any] = [headers_of(message) for message in messages]
    starts, end = [0], 0
    for headers in every:
        end += len(headers)
        starts.append(end)
    names = pa.array([name for headers in every for name, _ in headers], pa.string())
    values = pa.array([value for headers in every for _, value in headers], pa.binary())
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), pairs, type=HEADERS)


# This runs with the interpreter's lock held; `map` takes half the time of a comprehension.
_CONVERTERS: dict[str, Callable[[list[Message]], pa.Array]] = {
    "timestamp": lambda messages: pa.array(list(map(_SECOND, map(Message.timestamp, messages))), pa.int64()),
    "timestamp_type": lambda messages: pa.array(
        list(map(_FIRST, map(Message.timestamp, messages))), pa.int32()
    ),
    "key": lambda messages: pa.array(list(map(Message.key, messages)), pa.binary()),
    "value": lambda messages: pa.array(list(map(Message.value, messages)), pa.binary()),
    "headers": _headers,
}


# Read one split into Arrow batches: its records, its holes, and records of aborted transactions.
#
# Every offset of the split is returned once, as a record or within a hole. Spark tasks and bwtui's own
# threads use the same reader.

#: Maximum number of holes to collect before they are yielded as rows.
_MOST_HOLES = 10_000


@dataclass(frozen=True, slots=True)
class SplitReadOptions:
    """The columns to read of a split, and how."""

    columns: tuple[str, ...]
    isolation: Isolation = "read_uncommitted"
    #: With read_committed, return records of aborted transactions as rows of kind ``aborted``.
    aborted: bool = False
    #: Seconds to wait for an open transaction to end, or for a log that ends too early.
    patience: float = 5.0


def read_split(
    config: Config, split: Split, options: SplitReadOptions, check: Callable[[], None] = lambda: None
) -> Iterator[pa.RecordBatch]:
    """Yield the records and the holes of one split.

    ``check`` is called between two reads, and may raise to end the scan. Raises ConnectionFailed, and
    RefusedError for a missing topic.
    """
    batches = SplitBatches(split, options.columns)
    held: list[Hole] = []
    delivered = missing = 0
    keeps_gaps = options.aborted and options.isolation == "read_committed"
    for part in SplitScan(config, split, options.isolation, options.patience, check):
        yield from batches.of_messages(part.messages, part.offsets)
        held += part.holes
        delivered += len(part.offsets)
        missing += sum(high - low for _, low, high in part.holes)
        if len(held) > _MOST_HOLES and not keeps_gaps:
            yield from batches.of_holes(held)
            held = []
    assert delivered + missing == split.high - split.low, "an offset is not accounted for"
    gaps = [hole for hole in held if hole.kind == "gap"] if keeps_gaps else []
    if gaps:
        again = split._replace(low=gaps[0].low, high=gaps[-1].high)
        scan = SplitScan(config, again, "read_uncommitted", options.patience, check)
        yield from _aborted(scan, gaps, batches)
        held = [hole for hole in held if hole.kind != "gap"]
    yield from batches.of_holes(held)


def _aborted(scan: SplitScan, gaps: list[Hole], batches: SplitBatches) -> Iterator[pa.RecordBatch]:
    """Read again from the first gap to the last: the records in the gaps belong to aborted transactions."""
    lows = [gap.low for gap in gaps]
    for part in scan:
        # Compaction may have made more holes meanwhile, where the first scan had records.
        yield from batches.of_holes(within_gaps(part.holes, gaps))
        numbers = [
            number
            for number, offset in enumerate(part.offsets)
            for gap in [gaps[bisect_right(lows, offset) - 1]]
            if offset < gap.high
        ]
        messages = [part.messages[number] for number in numbers]
        yield from batches.of_messages(messages, [part.offsets[number] for number in numbers], ABORTED)


def within_gaps(holes: Sequence[Hole], gaps: Sequence[Hole]) -> list[Hole]:
    """Return the parts of ``holes`` within ``gaps``, which must be in ascending order."""
    lows = [gap.low for gap in gaps]
    result = []
    for kind, low, high in holes:
        for gap in gaps[max(bisect_right(lows, low) - 1, 0) : bisect_right(lows, high - 1)]:
            if max(low, gap.low) < min(high, gap.high):
                result.append(Hole(kind, max(low, gap.low), min(high, gap.high)))
    return result


# The hashes with which librdkafka's partitioners choose the partition of a key.


def hashes_of(partitioner: str) -> Callable[[Sequence[bytes]], NDArray[np.int64]]:
    """Return librdkafka's hash function. A key's partition is its hash modulo the number of partitions."""
    partitioner = partitioner.lower()
    if partitioner.startswith("murmur2"):
        return lambda keys: murmur2_of(pa.array(keys, pa.binary())).to_numpy().astype(np.int64)
    if partitioner.startswith("consistent"):
        return lambda keys: np.fromiter(map(zlib.crc32, keys), np.int64, len(keys))
    return lambda keys: np.fromiter(map(_fnv1a, keys), np.int64, len(keys))


def _fnv1a(key: bytes) -> int:
    """Return the FNV-1a hash as Sarama and librdkafka compute it: the absolute value of a signed int32."""
    number = 0x811C9DC5
    for byte in key:
        number = (number ^ byte) * 0x01000193 & 0xFFFFFFFF
    return number if number < 1 << 31 else (1 << 32) - number
