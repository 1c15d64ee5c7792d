"""What a replay is about to do: which messages, how many and how large, and where each of them will go."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bwtui.errors import UsageError
from bwtui.pipeline.failure import in_task
from bwtui.pipeline.kafka_columns import COLUMNS, HEADERS
from bwtui.pipeline.replay_rows import Route, partitions_of, routes_of, with_ids
from bwtui.recording.query import to_sql
from bwtui.recording.sealed import Sealed
from bwtui.recording.selection import Selection

#: What is read of a message; the headers' columns come when a message has any.
_COLUMNS = (
    "position",
    "part",
    "topic",
    "key",
    "value",
    "key_schema_id",
    "value_schema_id",
    "unix_millis(cast(commit_time as timestamp)) as stamp",
    "unix_micros(cast(received as timestamp)) as received",
    "if(state = 'acknowledged', partition, null) as recorded",
)
HEADER_COLUMNS = ("header_form", "lsn", "ordinal", "op", "xid", "session")
#: Headers as they stand in Kafka.
RAW = "headers"
_HEADERS = "header_form string, lsn bigint, ordinal int, op string, xid bigint, session string"
#: What goes to the tasks that send.
SENT = (
    "task int, lane int, position bigint, part int, stamp bigint, received bigint, key binary, value binary"
)
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
_HEADER_TYPES = [
    ("header_form", pa.string()),
    ("lsn", pa.int64()),
    ("ordinal", pa.int32()),
    ("op", pa.string()),
    ("xid", pa.int64()),
    ("session", pa.string()),
]


@dataclass(slots=True)
class TopicCount:
    """What the selection has of one recorded topic."""

    messages: int = 0
    bytes: int = 0
    largest: int = 0
    without_key: int = 0
    unplaced: int = 0
    #: Milliseconds of the first and the last message.
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
class Count:
    """What the selection has."""

    topics: dict[str, TopicCount] = field(default_factory=dict)
    repeats: int = 0
    refused: int = 0
    with_headers: bool = False
    first_received: int = 0
    last_received: int = 0

    @property
    def messages(self) -> int:
        """How many messages there are to send."""
        return sum(topic.messages for topic in self.topics.values())

    @property
    def bytes(self) -> int:
        """Of their keys and values."""
        return sum(topic.bytes for topic in self.topics.values())


def selected(spark: SparkSession, sealed: Sealed, selection: Selection) -> DataFrame:
    """Return the rows of the messages that are meant, with all columns; repeats and refused ones too."""
    files = [
        str((sealed.root / file.path).resolve())
        for file in sealed.manifest.files
        if file.kind == "changes"
        and selection.takes_table(file.table)
        and (selection.from_lsn is None or file.last_lsn >= selection.from_lsn)
        and (selection.to_lsn is None or file.first_lsn <= selection.to_lsn)
    ]
    if not files:
        raise UsageError("the recording has no message that is meant", "check --table and the range")
    # Folders' names are no columns here, and a recording's own name may hold what looks like a pattern.
    reader = spark.read.option("recursiveFileLookup", True).option("__globPaths__", False)
    return reader.parquet(*files).where(" and ".join(conditions(selection)))


def conditions(selection: Selection) -> list[str]:
    """Return the conditions of a selection in SQL, repeats left aside."""
    found = ["topic is not null"]
    for column, sign, lsn in (("lsn", ">=", selection.from_lsn), ("lsn", "<=", selection.to_lsn)):
        found += [] if lsn is None else [f"{column} {sign} {lsn}"]
    for sign, time in ((">=", selection.from_time), ("<=", selection.to_time)):
        found += [] if time is None else [f"commit_time {sign} timestamp_micros({time}L)"]
    return [*found, f"({to_sql(selection.query, 'spark')})"] if selection.query is not None else found


def sendable(selection: Selection) -> str:
    """Return the condition that takes repeats and refused messages away."""
    return "state <> 'refused'" + ("" if selection.with_repeats else " and not is_repeat")


def count(rows: DataFrame, selection: Selection) -> Count:
    """Count what is meant, in one pass over the small columns."""
    groups = rows.selectExpr(
        *("topic", "key_schema_id kid", "value_schema_id vid", "state = 'refused' refused"),
        f"{'false' if selection.with_repeats else 'is_repeat'} as left_out",
        "if(state = 'acknowledged', partition, null) recorded",
        "length(key) key_bytes",
        "coalesce(length(key), 0) + coalesce(length(value), 0) bytes",
        "unix_millis(cast(commit_time as timestamp)) stamp",
        "unix_micros(cast(received as timestamp)) received",
        "header_form <> 'none' headers",
    )
    groups.createOrReplaceTempView("replay_messages")
    found = rows.sparkSession.sql(
        "select topic, kid, vid, refused, left_out, recorded, count(*) messages, sum(bytes) bytes,"
        " max(bytes) largest, count(*) - count(key_bytes) without_key, min(stamp) first, max(stamp) last,"
        " min(received) first_received, max(received) last_received, bool_or(headers) headers"
        " from replay_messages group by all"
    ).collect()
    result = Count()
    for row in found:
        _add(result, row)
    return result


def _add(result: Count, row: Any) -> None:
    if row.refused or row.left_out:
        result.refused += row.messages if row.refused else 0
        result.repeats += 0 if row.refused else row.messages
        return
    topic = result.topics.setdefault(row.topic, TopicCount(first_stamp=row.first))
    topic.add(row)
    result.with_headers |= bool(row.headers)
    first = result.first_received or row.first_received
    result.first_received = min(first, row.first_received)
    result.last_received = max(result.last_received, row.last_received)


def columns(rows: DataFrame, *, with_headers: bool) -> DataFrame:
    """Return what `placed` and `survey` work on."""
    return rows.selectExpr(*_COLUMNS, *(HEADER_COLUMNS if with_headers else ()))


# -- where they go ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Survey:
    """How many messages of a route go where, and how many of them stood elsewhere."""

    messages: dict[int, int] = field(default_factory=dict)
    bytes: dict[int, int] = field(default_factory=dict)
    moved: int = 0


def survey(rows: DataFrame, routes: Sequence[Route]) -> list[Survey]:
    """Return, for each route, how its messages spread."""
    schema = "route int, partition int, messages bigint, bytes bigint, moved bigint"
    keys = rows.selectExpr(
        *("position", "topic", "key", "key_schema_id", "recorded"),
        "coalesce(length(key), 0) + coalesce(length(value), 0) bytes",
    )
    found = [Survey() for _ in routes]
    for row in keys.mapInArrow(_Surveying(routes), schema).collect():
        one = found[row.route]
        one.messages[row.partition] = one.messages.get(row.partition, 0) + row.messages
        one.bytes[row.partition] = one.bytes.get(row.partition, 0) + row.bytes
        one.moved += row.moved
    return found


class _Surveying:
    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _survey(batches, self._routes)


@in_task
def _survey(batches: Iterator[pa.RecordBatch], routes: Sequence[Route]) -> Iterator[pa.RecordBatch]:
    lanes = routes[-1].first_lane + routes[-1].partitions
    messages, moved = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    size = np.zeros(lanes, np.float64)
    for batch in batches:
        of = routes_of(batch["topic"], routes)
        lane, chosen, _ = _place(batch, of, routes)
        recorded = batch["recorded"]
        at = recorded.fill_null(-1).to_numpy(zero_copy_only=False)
        messages += np.bincount(lane, minlength=lanes)
        size += np.bincount(lane, batch["bytes"].to_numpy(zero_copy_only=False), minlength=lanes)
        moved += np.bincount(lane, (at >= 0) & (at != chosen), minlength=lanes).astype(np.int64)
    found = [
        {
            "route": number,
            "partition": partition,
            "messages": int(messages[route.first_lane + partition]),
            "bytes": int(size[route.first_lane + partition]),
            "moved": int(moved[route.first_lane + partition]),
        }
        for number, route in enumerate(routes)
        for partition in range(route.partitions)
        if messages[route.first_lane + partition]
    ]
    kinds = [("route", pa.int32()), ("partition", pa.int32())]
    kinds += [(name, pa.int64()) for name in ("messages", "bytes", "moved")]
    yield pa.RecordBatch.from_pylist(found, schema=pa.schema(kinds))


def _place(batch: pa.RecordBatch, of: Any, routes: Sequence[Route]) -> tuple[Any, Any, pa.Array]:
    """Return the lane and the partition of each row, and the keys as they will be written."""
    keys = with_ids(batch["key"], batch["key_schema_id"], of, routes, "key")
    positions = batch["position"].to_numpy(zero_copy_only=False)
    chosen = partitions_of(keys, batch["recorded"], positions, of, routes)
    first = np.array([route.first_lane for route in routes], np.int64)[of]
    return first + chosen, chosen, keys


@dataclass(frozen=True, slots=True)
class Placing:
    """Makes rows ready to be sent: ids, lane and task; leaves out what an earlier run has sent."""

    routes: Sequence[Route]
    #: Lane → task.
    tasks: Sequence[int]
    #: Lane → (position, part) of the last message that was sent.
    done: dict[int, tuple[int, int]]
    with_headers: bool
    #: There is a column with headers as they stand in Kafka, too.
    with_raw: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `SENT`, and the headers' columns if there are any."""
        return _placed(batches, self)

    @property
    def schema(self) -> str:
        """The columns."""
        found = f"{SENT}, {_HEADERS}" if self.with_headers else SENT
        return f"{found}, {RAW} {COLUMNS[RAW]}" if self.with_raw else found


@in_task
def _placed(batches: Iterator[pa.RecordBatch], placing: Placing) -> Iterator[pa.RecordBatch]:
    routes = placing.routes
    tasks = np.array(placing.tasks, np.int32)
    schema = pa.schema([*_SENT, *_HEADER_TYPES]) if placing.with_headers else _SENT
    schema = schema.append(pa.field(RAW, HEADERS)) if placing.with_raw else schema
    for batch in batches:
        of = routes_of(batch["topic"], routes)
        lane, _, keys = _place(batch, of, routes)
        found = {name: batch[name] for name in schema.names if name in batch.schema.names}
        found["key"] = keys
        found["value"] = with_ids(batch["value"], batch["value_schema_id"], of, routes, "value")
        found["lane"] = pa.array(lane.astype(np.int32))
        found["task"] = pa.array(tasks[lane])
        made = pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=schema)
        if placing.done:
            made = made.filter(pa.array(_left(made, lane, placing.done)))
        yield made


def _left(batch: pa.RecordBatch, lane: Any, done: dict[int, tuple[int, int]]) -> Any:
    lanes = int(max(lane.max(initial=0), *done)) + 1
    position, part = np.full(lanes, -1, np.int64), np.zeros(lanes, np.int64)
    for number, (at, last) in done.items():
        position[number], part[number] = at, last
    here, parts = (batch[name].to_numpy(zero_copy_only=False) for name in ("position", "part"))
    return (here > position[lane]) | ((here == position[lane]) & (parts > part[lane]))


def share_out(counts: dict[int, int], lanes: int, most: int) -> list[int]:
    """Return the task of each lane, so that all have about the same to do; lanes without messages too."""
    tasks = max(1, min(most, len(counts)))
    loads = [0] * tasks
    found = [lane % tasks for lane in range(lanes)]
    for lane, messages in sorted(counts.items(), key=lambda one: (-one[1], one[0])):
        found[lane] = loads.index(min(loads))
        loads[found[lane]] += messages
    return found
