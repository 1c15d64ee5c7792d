"""Kafka's messages and the holes between them as Arrow record batches."""

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from bwtui.compiled import PACKAGE, Buffers, Columns
from bwtui.kafka.client import headers_of
from bwtui.kafka.splits import Hole, Split

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
_compiled: Columns | None = PACKAGE.columns if PACKAGE is not None else None


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
        said = _compiled(messages) if _compiled is not None and self._takes_contents else None
        made_at_once = _arrays(len(messages), *said) if said is not None else {}
        made = [
            made_at_once[name] if name in made_at_once else self._column(name, messages, offsets, kind)
            for name in self._columns
        ]
        batch = pa.RecordBatch.from_arrays(made, schema=self._schema)
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
        if name in _MADE:
            return _MADE[name](messages)
        constants: dict[str, Any] = {
            "kind": pa.scalar(kind, pa.string()),
            "topic": pa.scalar(self._split.topic, pa.string()),
            "partition": pa.scalar(self._split.partition, pa.int32()),
        }
        if name in constants:
            return pa.repeat(constants[name], len(messages))
        first, last = offsets[0], offsets[-1]
        is_whole = last - first + 1 == len(offsets)
        made = pa.array(np.arange(first, last + 1) if is_whole else offsets, pa.int64())
        return made if name == "offset" else pc.add(made, 1)


def _arrays(count: int, times: bytes, keys: Buffers, values: Buffers) -> dict[str, pa.Array]:
    """Return the columns that the C extension has made."""
    made = {"timestamp": pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(times)])}
    for name, buffers in (("key", keys), ("value", values)):
        each = [pa.py_buffer(buffer) if buffer is not None else None for buffer in buffers]
        made[name] = pa.Array.from_buffers(pa.binary(), count, each)
    return made


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
_MADE: dict[str, Callable[[list[Message]], pa.Array]] = {
    "timestamp": lambda messages: pa.array(list(map(_SECOND, map(Message.timestamp, messages))), pa.int64()),
    "timestamp_type": lambda messages: pa.array(
        list(map(_FIRST, map(Message.timestamp, messages))), pa.int32()
    ),
    "key": lambda messages: pa.array(list(map(Message.key, messages)), pa.binary()),
    "value": lambda messages: pa.array(list(map(Message.value, messages)), pa.binary()),
    "headers": _headers,
}
