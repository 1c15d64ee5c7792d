"""Columns of a sealed recording's rows on their way to a topic: set schema ids, and choose partitions.

All operations work on columns, not on rows. A *lane* is a partition of a target topic: all messages for it go
through one task, in the order of the recording, and so do all messages of a key.
"""

import contextlib
import copy
import os
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bwtui.errors import DamagedRecording, RefusedError, UsageError
from bwtui.kafka.columns import HEADERS
from bwtui.model.sql import parquet, quoted
from bwtui.recording.payloads import sent_headers
from bwtui.recording.query_language import ChangeSelection, to_sql
from bwtui.recording.sealed import SealedFile, SealedRecording
from bwtui.seal.task import rows_at_a_time
from bwtui.signals.duckdb_session import session
from bwtui.spark.scratch import scratch

Ints = npt.NDArray[np.int64]
Hash = Literal["murmur2", "crc32"]

_SEED, _M = 0x9747B28C, np.uint32(0x5BD1E995)
_ID = np.arange(1, 5)


@dataclass(slots=True)
class ReplayRoute:
    """The target of one recorded topic."""

    recorded: str
    topic: str
    partitions: int
    #: Recorded schema id → written schema id; empty without a registry.
    keys: Mapping[int, int] = field(default_factory=dict)
    values: Mapping[int, int] = field(default_factory=dict)
    #: True if every message stays in its recorded partition; otherwise its key determines the partition.
    keeps_partitions: bool = False
    #: Lane number of its partition 0, counted over all routes.
    first_lane: int = 0
    hash: Hash = "murmur2"


def number_lanes(routes: Sequence[ReplayRoute]) -> int:
    """Number the lanes of all routes, and return how many there are."""
    count = 0
    for route in routes:
        route.first_lane = count
        count += route.partitions
    return count


def routes_of(topics: pa.Array, routes: Sequence[ReplayRoute]) -> Ints:
    """Return the index of each row's route."""
    recorded = pa.array([route.recorded for route in routes], pa.string())
    indexes: Ints = pc.index_in(topics, value_set=recorded).to_numpy(zero_copy_only=False).astype(np.int64)
    return indexes


def with_ids(cells: pa.Array, ids: pa.Array, of: Ints, routes: Sequence[ReplayRoute], part: str) -> pa.Array:
    """Return keys or values (``part``) with their new schema ids, after a check of the recorded ids.

    Raises RefusedError for an id without a new one, DamagedRecording when the bytes have a different id.
    """
    has_id = ids.is_valid().to_numpy(zero_copy_only=False)
    if not has_id.any():
        return cells
    recorded = pc.fill_null(ids, 0).to_numpy(zero_copy_only=False)
    new_ids = recorded.copy()
    for number, route in enumerate(routes):
        here = has_id & (of == number)
        for schema in np.unique(recorded[here]).tolist():
            written_id = (route.keys if part == "key" else route.values).get(schema)
            if written_id is None:
                hint = "seal the recording again, which reads its schemas again: bwtui recording seal"
                raise RefusedError(
                    f"schema {schema} of topic {route.recorded} has no id in the target registry", hint
                )
            new_ids[here & (recorded == schema)] = written_id
    starts, lengths, data = parts_of(cells)
    rows = np.flatnonzero(has_id)
    _check(data, starts[rows], lengths[rows], recorded[rows], part)
    changed = np.flatnonzero(has_id & (new_ids != recorded))
    if not len(changed):
        return cells
    written = data.copy()
    written[starts[changed][:, None] + _ID] = new_ids[changed].astype(">u4").view(np.uint8).reshape(-1, 4)
    validity, offsets, _ = cells.buffers()
    buffers = [validity, offsets, pa.py_buffer(written)]
    return pa.Array.from_buffers(pa.binary(), len(cells), buffers, offset=cells.offset)


#: Hint for a recording whose parts contradict each other.
_CHECK = "find the damaged file with 'bwtui recording check', and restore it from a backup"


def _check(
    data: npt.NDArray[np.uint8], starts: Ints, lengths: Ints, ids: npt.NDArray[Any], part: str
) -> None:
    if (lengths < 5).any() or data[starts].any():
        raise DamagedRecording(
            f"a recorded {part} has a schema id, but does not start with the header of Confluent's "
            "wire format",
            _CHECK,
        )
    written_ids = data[starts[:, None] + _ID].reshape(-1).view(">u4")
    if (written_ids != ids).any():
        raise DamagedRecording(
            f"the schema id in a recorded {part} differs from the one recorded for it", _CHECK
        )


def parts_of(cells: pa.Array) -> tuple[Ints, Ints, npt.NDArray[np.uint8]]:
    """Return the start of each cell, its length, and all bytes."""
    _, offsets, content = cells.buffers()
    ends = np.frombuffer(offsets, np.int32)[cells.offset : cells.offset + len(cells) + 1].astype(np.int64)
    data = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    return ends[:-1], np.diff(ends), data


def partitions_of(
    keys: pa.Array, recorded: pa.Array, positions: Ints, of: Ints, routes: Sequence[ReplayRoute]
) -> Ints:
    """Return each message's partition; one without a key keeps its own, or is distributed by position."""
    counts = np.array([route.partitions for route in routes], np.int64)[of]
    keeps = np.array([route.keeps_partitions for route in routes], bool)[of]
    at = pc.fill_null(recorded, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    has_place = (at >= 0) & (at < counts)
    without = keys.is_null().to_numpy(zero_copy_only=False)
    chosen = np.where(has_place, at, positions % counts)
    hashed = np.flatnonzero(~without & ~(keeps & has_place))
    if len(hashed):
        by_crc = any(route.hash == "crc32" for route in routes)
        some = keys if len(hashed) == len(keys) else keys.take(pa.array(hashed))
        chosen[hashed] = (crc32(some) if by_crc else murmur2(some)) % counts[hashed]
    return chosen


def crc32(keys: pa.Array) -> Ints:
    """Hash keys as librdkafka's partitioner ``consistent`` does."""
    return np.array([zlib.crc32(key) for key in keys.to_pylist()], np.int64)


def murmur2(keys: pa.Array) -> Ints:
    """Hash keys as the Java clients do: the remainder by the number of partitions is the partition."""
    starts, lengths, data = parts_of(keys)
    different = np.unique(lengths).tolist()
    if len(different) == 1:
        # Keys of one length already form a matrix.
        (length,) = different
        cells = data[starts[0] : starts[0] + len(keys) * length]
        hashes = _murmur2(cells.reshape(len(keys), length), length)
    else:
        hashes = np.zeros(len(keys), np.uint32)
        for length in different:
            rows = np.flatnonzero(lengths == length)
            hashes[rows] = _murmur2(data[starts[rows][:, None] + np.arange(length)], length)
    return (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64)


def _murmur2(keys: npt.NDArray[np.uint8], length: int) -> npt.NDArray[np.uint32]:
    """Hash keys of one length, one per row, all at once."""
    h = np.full(len(keys), _SEED ^ length, np.uint32)
    whole = length & ~3
    words = np.ascontiguousarray(keys[:, :whole]).view("<u4").astype(np.uint32)
    for at in range(whole // 4):
        k = words[:, at] * _M
        h = (h * _M) ^ ((k ^ (k >> np.uint32(24))) * _M)
    for shift, at in enumerate(range(whole, length)):
        h ^= keys[:, at].astype(np.uint32) << np.uint32(8 * shift)
    if length > whole:
        h *= _M
    h = (h ^ (h >> np.uint32(13))) * _M
    return h ^ (h >> np.uint32(15))


# Count the messages of a replay: which are selected, how many there are and how large they are.

NOT_REFUSED = "state <> 'refused'"


@dataclass(slots=True)
class TopicMessageCount:
    """The selected messages of one recorded topic."""

    messages: int = 0
    bytes: int = 0
    largest: int = 0
    without_key: int = 0
    unplaced: int = 0
    #: Timestamps of the first and the last message in milliseconds.
    first_stamp: int = 0
    last_stamp: int = 0
    #: Messages by recorded partition.
    partitions: dict[int, int] = field(default_factory=dict)
    key_ids: dict[int, int] = field(default_factory=dict)
    value_ids: dict[int, int] = field(default_factory=dict)

    def add(self, row: Any) -> None:
        """Add a group of messages."""
        self.messages += row.messages
        self.bytes += row.bytes
        self.largest = max(self.largest, row.largest)
        self.without_key += row.without_key
        self.first_stamp = min(self.first_stamp, row.first)
        self.last_stamp = max(self.last_stamp, row.last)
        if row.recorded is None:
            self.unplaced += row.messages
        else:
            self.partitions[row.recorded] = self.partitions.get(row.recorded, 0) + row.messages
        for ids, number in ((self.key_ids, row.kid), (self.value_ids, row.vid)):
            if number is not None:
                ids[number] = ids.get(number, 0) + row.messages


@dataclass(slots=True)
class MessageCount:
    """The selected messages of all topics."""

    topics: dict[str, TopicMessageCount] = field(default_factory=dict)
    repeats: int = 0
    refused: int = 0
    with_headers: bool = False
    first_received: int = 0

    @property
    def messages(self) -> int:
        """Number of messages to send."""
        return sum(topic.messages for topic in self.topics.values())

    @property
    def bytes(self) -> int:
        """Total size of their keys and values in bytes."""
        return sum(topic.bytes for topic in self.topics.values())

    def add(self, row: Any) -> None:
        """Add a group of messages."""
        if row.refused or row.left_out:
            self.refused += row.messages if row.refused else 0
            self.repeats += 0 if row.refused else row.messages
            return
        topic = self.topics.setdefault(row.topic, TopicMessageCount(first_stamp=row.first))
        topic.add(row)
        self.with_headers |= bool(row.headers)
        self.first_received = min(self.first_received or row.first_received, row.first_received)


def files_of(sealed: SealedRecording, selection: ChangeSelection) -> list[SealedFile]:
    """Return the files that may have selected messages. Raises UsageError when there is none."""
    files = [
        file
        for file in sealed.manifest.files
        if file.kind == "changes"
        and selection.takes_table(file.table)
        and (selection.from_lsn is None or file.last_lsn >= selection.from_lsn)
        and (selection.to_lsn is None or file.first_lsn <= selection.to_lsn)
    ]
    if not files:
        raise UsageError("the recording has no matching message", "check --table and the range")
    return files


def conditions(selection: ChangeSelection) -> str:
    """Return a selection's SQL condition, without those on repeats and refused messages."""
    terms = ["topic is not null"]
    for column, sign, lsn in (("lsn", ">=", selection.from_lsn), ("lsn", "<=", selection.to_lsn)):
        terms += [] if lsn is None else [f"{column} {sign} {lsn}"]
    for sign, time in ((">=", selection.from_time), ("<=", selection.to_time)):
        terms += [] if time is None else [f"commit_time {sign} make_timestamp({time})"]
    terms += [] if selection.query is None else [f"({to_sql(selection.query)})"]
    return " and ".join(terms)


def sendable(selection: ChangeSelection) -> str:
    """Return the SQL condition that excludes refused messages and, by default, repeats."""
    return NOT_REFUSED + ("" if selection.with_repeats else " and not is_repeat")


# Place the messages of a replay: choose each one's partition, and so its task, and its schema ids.

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
            is_selected = np.ones(len(lane), bool) if task is None else tasks[lane] == task
            if self.done:
                is_selected &= self._remaining(batch, lane)
            rows = batch.set_column(batch.schema.get_field_index("key"), "key", keys)
            if not is_selected.all():
                rows, lane, of = rows.filter(pa.array(is_selected)), lane[is_selected], of[is_selected]
            if rows.num_rows:
                yield self._prepared(rows, of, {"lane": lane.astype(np.int32), "task": tasks[lane]})

    def _prepared(self, rows: pa.RecordBatch, of: Ints, more: dict[str, Any]) -> pa.RecordBatch:
        schema = self.schema
        columns = {name: rows[name] for name in schema.names if name in rows.schema.names}
        columns |= {name: pa.array(cells) for name, cells in more.items()}
        columns["value"] = with_ids(rows["value"], rows["value_schema_id"], of, self.routes, "value")
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _remaining(self, batch: pa.RecordBatch, lane: Ints) -> Any:
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


# The messages of a recording, which the sending tasks read directly from the sealed files.
#
# Every Spark task reads all files with DuckDB, in the order of the recording, and keeps the rows of its
# lanes. This is cheaper than it seems: reading a message takes half a microsecond, while having Java read,
# sort and transfer it takes thirty (docs/adr/0023-seal-replay-and-audit-outside-the-jvm.md).

_RECORDED = "if(state = 'acknowledged', \"partition\", null) as recorded"
#: Milliseconds as the relay sent them; epoch_ms would round them.
_STAMP = "epoch_us(commit_time) // 1000"
_SURVEYED = ("position", "topic", "key", "key_schema_id", _RECORDED)
_SENT_STATES = (
    *("position", "part", "topic", "key", "value", "key_schema_id", "value_schema_id", _RECORDED),
    f"{_STAMP} as stamp",
    "epoch_us(received) as received",
)
_COUNT = """
select topic, key_schema_id kid, value_schema_id vid, state = 'refused' refused, {left_out} left_out,
       {recorded}, count(*) messages, sum(size) bytes, max(size) largest, count(*) - count(key) without_key,
       min({stamp}) "first", max({stamp}) "last",
       min(epoch_us(received)) first_received, bool_or(header_form <> 'none') headers
  from (select *, coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) as size from {files})
 where {where} group by all"""
#: A key with messages in two partitions.
_SPREAD = """
select key from (select key, {recorded} from {files} where {where} and topic = {topic} and key is not null)
 group by key having min(recorded) <> max(recorded) limit 1"""
#: The requested messages that are also selected.
_AMONG = "select position, part from {files} semi join asked using ({names}) where {where}"
_RECEIVED = "select epoch_us(received) received from {files} where {where} limit 1"
#: Number of progress steps while counting.
_STEPS = 20


@dataclass(frozen=True, slots=True)
class FileSelection:
    """Files with absolute paths, and the condition on their rows; what a task needs to read them."""

    files: tuple[SealedFile, ...]
    where: str

    def read(self, file: SealedFile, columns: Sequence[str], start: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the selected rows of a file from a position on, in order. Raises RefusedError."""
        query = f"select {', '.join(columns)} from {_from([file])} where {self.where}"
        query += f" and position >= {start}" if start > file.first_position else ""
        try:
            # One thread, which keeps the order; the task's core is busy anyway.
            with duckdb.connect(config={"threads": 1}) as connection:
                relation = connection.sql(query)
                # Before DuckDB 2.0 it has a different name.
                reader = getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch
                yield from reader(rows_at_a_time([Path(file.path)]))
        except (duckdb.IOException, FileNotFoundError, PermissionError) as error:
            raise RefusedError(
                f"{Path(file.path).name} of the recording can't be read",
                "check its permissions; on a cluster, every worker needs the recording under the same path",
            ) from error

    def to_send(self, placing: RowPlacement) -> Iterator[pa.RecordBatch]:
        """Yield the rows not yet sent according to ``placing``, in the order of the recording."""
        columns = (*_SENT_STATES, *(HEADER_COLUMNS if placing.with_headers else ()))
        return self.in_order(columns, placing.begin)

    def in_order(self, columns: Sequence[str], start: int) -> Iterator[pa.RecordBatch]:
        """Yield the selected rows of all files from a position on, in the order of the recording."""

        def read(chain: list[SealedFile]) -> Iterator[pa.RecordBatch]:
            return (
                batch
                for file in chain
                if file.last_position >= start
                for batch in self.read(file, columns, start)
                if batch.num_rows
            )

        return merged([read(chain) for chain in chains(self.files)])


def chains(files: Sequence[SealedFile]) -> list[list[SealedFile]]:
    """Arrange files in chains: in each chain, a file begins after the end of the one before it."""
    grouped: list[list[SealedFile]] = []
    for file in sorted(files, key=lambda file: (file.first_position, file.last_position)):
        chain = next((chain for chain in grouped if chain[-1].last_position < file.first_position), None)
        if chain is None:
            grouped.append([file])
        else:
            chain.append(file)
    return grouped


def merged(sources: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Merge sources that are each ordered by position."""
    heads = [(batch, source) for source in sources for batch in [next(source, None)] if batch is not None]
    while len(heads) > 1:
        # Rows after the smallest last position may have to follow rows that were not read yet.
        bound = min(batch["position"][-1].as_py() for batch, _ in heads)
        ready, remaining = [], []
        for batch, source in heads:
            count = int(np.searchsorted(batch["position"].to_numpy(), bound, "right"))
            ready.append(batch.slice(0, count))
            following: pa.RecordBatch | None = batch.slice(count)
            if count == batch.num_rows:
                following = next(source, None)
            if following is not None:
                remaining.append((following, source))
        heads = remaining
        together = pa.concat_batches([batch for batch in ready if batch.num_rows])
        yield together.take(pa.array(np.argsort(together["position"].to_numpy(), kind="stable")))
    for batch, source in heads:
        yield batch
        yield from source


def _shares(files: Sequence[SealedFile]) -> Iterator[list[SealedFile]]:
    """Yield files in groups with about the same number of rows."""
    least = sum(file.rows for file in files) / _STEPS
    group: list[SealedFile] = []
    for file in files:
        group.append(file)
        if sum(one.rows for one in group) >= least:
            yield group
            group = []
    if group:
        yield group


def _from(files: Sequence[SealedFile]) -> str:
    return parquet(file.path for file in files)


@contextlib.contextmanager
def _duckdb() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open DuckDB, with a folder for data that exceeds its memory."""
    with (
        scratch("bwtui-replay-") as folder,
        session(temp_directory=str(folder / "spill")) as connection,
    ):
        yield connection


class FileRows:
    """The selected rows of a sealed recording."""

    def __init__(self, sealed: SealedRecording, selection: ChangeSelection) -> None:
        """Raises UsageError when no file can have any of them."""
        self._selection = selection
        files = tuple(
            replace(file, path=str((sealed.root / file.path).resolve()))
            for file in files_of(sealed, selection)
        )
        #: Passed to the tasks to read the rows.
        self.files = FileSelection(files, f"{conditions(selection)} and {sendable(selection)}")

    def of_topics(self, topics: Sequence[str]) -> "FileRows":
        """Return the rows of some topics."""
        copied = copy.copy(self)
        names = ", ".join(map(quoted, topics))
        copied.files = replace(self.files, where=f"{self.files.where} and topic in ({names})")
        return copied

    def count(self, on_rows: Callable[[int, int], None]) -> MessageCount:
        """Count the selected rows, reading small columns only; ``on_rows`` gets rows done, and all rows."""
        repeats = "false" if self._selection.with_repeats else "is_repeat"
        counts, done, total = MessageCount(), 0, self.count_read
        for files in _shares(self.files.files):
            for row in self._ask(_COUNT, files, left_out=repeats, where=conditions(self._selection)):
                counts.add(row)
            done += sum(file.rows for file in files)
            on_rows(done, total)
        return counts

    def among(self, reported: pa.Table) -> pa.Table:
        """Return position and part of the selected messages, including repeats, that are in ``reported``."""
        where = f"{conditions(self._selection)} and {NOT_REFUSED}"
        with _duckdb() as connection:
            connection.register("asked", reported)
            text = _AMONG.format(
                files=_from(self.files.files), names=", ".join(reported.column_names), where=where
            )
            return connection.sql(text).to_arrow_table()

    @property
    def count_read(self) -> int:
        """Number of rows in the files, which are all read, whether they are selected or not."""
        return sum(file.rows for file in self.files.files)

    def received_at(self, position: int) -> int | None:
        """Return when a message at a position was received, in Unix microseconds."""
        files = [file for file in self.files.files if file.first_position <= position <= file.last_position]
        times = self._ask(_RECEIVED, files, where=f"position = {position}") if files else []
        return int(times[0].received) if times else None

    def is_spread(self, topic: str) -> bool:
        """Return whether any key of a topic was in two partitions."""
        return bool(self._ask(_SPREAD, self.files.files, where=self.files.where, topic=quoted(topic)))

    def _ask(self, text: str, files: Sequence[SealedFile], **parts: str) -> list[Any]:
        with _duckdb() as connection:
            sql = text.format(recorded=_RECORDED, stamp=_STAMP, files=_from(files), **parts)
            answer = connection.sql(sql)
            row = NamedTuple("Row", [(name, Any) for name in answer.columns])  # type: ignore[misc]
            return [row(*values) for values in answer.fetchall()]

    def survey(
        self, routes: Sequence[ReplayRoute], on_rows: Callable[[int, int], None]
    ) -> list[PartitionSurvey]:
        """Return the distribution of each route's messages; ``on_rows`` gets rows done, and all rows."""
        files, counts, done = self.files.files, lane_counts((), routes), 0

        def count(file: SealedFile) -> Ints:
            return lane_counts(self.files.read(file, _SURVEYED), routes)

        # Nearly all of this runs outside Python, so threads help.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for file, counted in zip(files, pool.map(count, files), strict=True):
                counts += counted
                done += file.rows
                on_rows(done, self.count_read)
        return surveys(counts, routes)
