"""Place the messages of a replay: choose each one's partition, and so its task, and its schema ids."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bwtui.kafka.columns import HEADERS
from bwtui.recording.format.sent_headers import sent_headers
from bwtui.replay.rows import Ints, ReplayRoute, partitions_of, routes_of, with_ids

#: Name of the column with headers as Kafka stores them.
RAW = "headers"
#: The columns for the sending tasks.
_SENT = pa.schema(
    [
        ("task", pa.int32()),
        ("lane", pa.int32()),
        ("position", pa.int64()),
        ("part", pa.int32()),
        ("stamp", pa.int64()),
        ("received", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
#: The columns that determine a message's headers.
_HEADER_TYPES = [
    ("header_form", pa.string()),
    ("lsn", pa.int64()),
    ("ordinal", pa.int32()),
    ("op", pa.string()),
    ("xid", pa.int64()),
    ("session", pa.string()),
]
HEADER_COLUMNS = tuple(name for name, _ in _HEADER_TYPES)


class PartitionSurvey(NamedTuple):
    """Number of a route's messages by partition, and of those recorded in a different partition."""

    messages: dict[int, int]
    moved: int


def lane_counts(batches: Iterable[pa.RecordBatch], routes: Sequence[ReplayRoute]) -> Ints:
    """Return two rows of counts per lane: its messages, and those recorded in a different partition."""
    lanes = routes[-1].first_lane + routes[-1].partitions
    messages, moved = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    for batch in batches:
        of = routes_of(batch["topic"], routes)
        lane, chosen, _ = _place(batch, of, routes)
        at = batch["recorded"].fill_null(-1).to_numpy(zero_copy_only=False)
        messages += np.bincount(lane, minlength=lanes)
        moved += np.bincount(lane, (at >= 0) & (at != chosen), minlength=lanes).astype(np.int64)
    return np.stack([messages, moved])


def surveys(counts: Ints, routes: Sequence[ReplayRoute]) -> list[PartitionSurvey]:
    """Return the distribution of each route's messages from the result of `lane_counts`."""
    results = []
    for route in routes:
        messages, moved = counts[:, route.first_lane : route.first_lane + route.partitions].tolist()
        results.append(
            PartitionSurvey({number: count for number, count in enumerate(messages) if count}, sum(moved))
        )
    return results


def _place(batch: pa.RecordBatch, of: Ints, routes: Sequence[ReplayRoute]) -> tuple[Ints, Ints, pa.Array]:
    """Return the lane and the partition of each row, and the keys to be written."""
    keys = with_ids(batch["key"], batch["key_schema_id"], of, routes, "key")
    positions = batch["position"].to_numpy(zero_copy_only=False)
    chosen = partitions_of(keys, batch["recorded"], positions, of, routes)
    first = np.array([route.first_lane for route in routes], np.int64)[of]
    return first + chosen, chosen, keys


@dataclass(frozen=True, slots=True)
class RowPlacement:
    """Prepares rows for sending: sets schema ids, lane and task, and skips what an earlier run has sent."""

    routes: Sequence[ReplayRoute]
    #: Lane → task.
    tasks: Sequence[int]
    #: Lane → (position, part) of the last message sent.
    done: dict[int, tuple[int, int]]
    with_headers: bool
    #: True if there is also a column with headers as Kafka stores them.
    with_raw: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The columns of the prepared rows."""
        schema = pa.schema([*_SENT, *_HEADER_TYPES]) if self.with_headers else _SENT
        return schema.append(pa.field(RAW, HEADERS)) if self.with_raw else schema

    @property
    def begin(self) -> int:
        """The first position that may not have been sent yet."""
        if any(lane not in self.done for lane in range(len(self.tasks))):
            return 0
        return min(position for position, _ in self.done.values())

    def placed(
        self, batches: Iterator[pa.RecordBatch], task: int | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the remaining rows, of all tasks or of one."""
        tasks = np.array(self.tasks, np.int32)
        for batch in batches:
            of = routes_of(batch["topic"], self.routes)
            lane, _, keys = _place(batch, of, self.routes)
            is_own_task = np.ones(len(lane), bool) if task is None else tasks[lane] == task
            if self.done:
                is_own_task &= self._left(batch, lane)
            rows = batch.set_column(batch.schema.get_field_index("key"), "key", keys)
            if not is_own_task.all():
                rows, lane, of = rows.filter(pa.array(is_own_task)), lane[is_own_task], of[is_own_task]
            if rows.num_rows:
                yield self._made(rows, of, {"lane": lane.astype(np.int32), "task": tasks[lane]})

    def _made(self, rows: pa.RecordBatch, of: Ints, more: dict[str, Any]) -> pa.RecordBatch:
        schema = self.schema
        columns = {name: rows[name] for name in schema.names if name in rows.schema.names}
        columns |= {name: pa.array(cells) for name, cells in more.items()}
        columns["value"] = with_ids(rows["value"], rows["value_schema_id"], of, self.routes, "value")
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _left(self, batch: pa.RecordBatch, lane: Ints) -> Any:
        lanes = int(max(lane.max(initial=0), *self.done)) + 1
        position, part = np.full(lanes, -1, np.int64), np.zeros(lanes, np.int64)
        for number, (at, last) in self.done.items():
            position[number], part[number] = at, last
        here, parts = (batch[name].to_numpy(zero_copy_only=False) for name in ("position", "part"))
        return (here > position[lane]) | ((here == position[lane]) & (parts > part[lane]))


def share_out(counts: dict[int, int], lanes: int, most: int) -> list[int]:
    """Assign every lane, even an empty one, to a task, with about the same number of messages per task."""
    tasks = max(1, min(most, len(counts)))
    loads = [0] * tasks
    chosen = [lane % tasks for lane in range(lanes)]
    for lane, messages in sorted(counts.items(), key=lambda one: (-one[1], one[0])):
        chosen[lane] = loads.index(min(loads))
        loads[chosen[lane]] += messages
    return chosen


def row_headers(columns: Mapping[str, list[Any]]) -> Callable[[int], Any] | None:
    """Return a function that returns the headers of a row, or None if no row has headers."""
    if "header_form" not in columns:
        return None
    texts = [columns[name] for name in HEADER_COLUMNS]
    values, raw = columns["value"], columns.get("headers")

    def headers(row: int) -> Any:
        if raw is not None and raw[row]:
            return [(one["key"], one["value"]) for one in raw[row]]
        form, lsn, ordinal, op, xid, session = (column[row] for column in texts)
        return sent_headers(form, lsn, ordinal, op, xid, session, tombstone=values[row] is None)

    return headers
