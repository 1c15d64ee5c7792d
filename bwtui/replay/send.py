"""One task of a replay: sends the rows of its lanes, each lane in order, and tracks their delivery.

The durable messages of a lane are always a prefix: the producer is idempotent, and stops at the first
rejected message. The first message of a lane is sent alone, since a broker accepts any sequence number as the
first of a producer in a partition (KIP-360). This module limits the messages and bytes in flight, so that
librdkafka's own queue never fills: if it refused a message for a full queue and accepted the next, the order
of a key would change.
"""

import contextlib
import hmac
import json
import socket
import threading
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from bwtui.errors import BwtuiError, ConnectionFailed, Interrupted, RefusedError
from bwtui.kafka.client import Config, LastClientError, new_client, plain_kafka_error
from bwtui.kafka.scan import Split, SplitScan, ends
from bwtui.replay.rows import FileRows, Ints, RowPlacement, row_headers

# The coordinator of a replay: tasks report what is durable, and request permission to send more.
#
# It is a small server next to the driver. Each task keeps one connection and exchanges lines of JSON: it
# reports the progress of its lanes, and the answer says how many messages it may send and whether to stop. So
# the rate limit applies to all tasks together, progress is kept in one place, and a replay stops cleanly.

#: Progress of a lane: messages since this run began, position and part of the last one, and its offset.
LaneDone = tuple[int, int, int, int]
_GRANT_SECONDS = 0.1
_ANSWER_SECONDS = 60.0
#: Maximum wait for a connection to end after its shutdown; usually it takes less.
_END_SECONDS = 2.0
#: Timeout for a client's token, and the maximum line lengths for the token and for reports.
_TOKEN_SECONDS = 10.0
_TOKEN_BYTES, _LINE_BYTES = 1 << 10, 1 << 24
#: Pause before the next accept when the system has no resources left for a connection.
_REST_SECONDS = 0.2
_REFUSAL = b"error: this is no task of the replay that runs here\n"
#: Number of messages that a task requests at a time.
MOST = 100_000


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """Address of the coordinator, and the token that a task must send first."""

    host: str
    port: int
    token: str

    def __repr__(self) -> str:
        return f"CoordinatorAddress({self.host}:{self.port})"


@dataclass(slots=True)
class CoordinatorReply:
    """Messages that a task may send, seconds since the start of sending, and whether it must stop."""

    messages: int
    elapsed: float
    stop: bool


class Coordinator:
    """The server next to the driver; a context manager."""

    def __init__(
        self,
        host: str,
        token: str,
        rate: float | None,
        on_report: Callable[[dict[int, LaneDone]], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._on_report = on_report
        self._is_stopped = is_stopped
        self._rate = rate
        self._lock = threading.Lock()
        self._granted = 0.0
        self._began: float | None = None
        self._closing = threading.Event()
        self._talking: list[tuple[socket.socket, threading.Thread]] = []
        self._socket = socket.create_server((host, 0))
        self.address = CoordinatorAddress(host, self._socket.getsockname()[1], token)
        self._thread = threading.Thread(target=self._serve, name="replay-coordinator", daemon=True)

    def __enter__(self) -> "Coordinator":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        # close() alone would not wake a blocked accept().
        _shut(self._socket)
        self._socket.close()
        self._thread.join()
        # Threads that are still running would keep this object alive when the process ends.
        for connection, thread in self._talking:
            _shut(connection)
            thread.join(_END_SECONDS)

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closing.wait(_REST_SECONDS):
                    return
                continue
            thread = threading.Thread(target=self._talk, args=(connection,), daemon=True)
            thread.start()
            self._talking = [one for one in self._talking if one[1].is_alive()] + [(connection, thread)]

    def _talk(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rwb") as lines:
            connection.settimeout(_TOKEN_SECONDS)
            token = lines.readline(_TOKEN_BYTES).rstrip(b"\r\n")
            if not hmac.compare_digest(token, self.address.token.encode()):
                lines.write(_REFUSAL)
                return
            connection.settimeout(None)
            while line := lines.readline(_LINE_BYTES):
                lanes, want = _report(line)
                answer = self._answer(lanes, want)
                lines.write(json.dumps(answer).encode() + b"\n")
                lines.flush()

    def _answer(self, lanes: dict[int, Any], want: int) -> tuple[int, float, bool]:
        with self._lock:
            if lanes:
                self._on_report(lanes)
            if self._began is None:
                self._began = time.monotonic()
        granted = self._grant(want) if want and not self._is_stopped() else 0
        return granted, time.monotonic() - self._began, self._is_stopped()

    def _grant(self, want: int) -> int:
        if self._rate is None:
            return want
        end = time.monotonic() + _GRANT_SECONDS
        # Grant the messages of a tenth of a second at a time, so that every task gets some.
        share = max(1, min(want, int(self._rate * _GRANT_SECONDS)))
        while True:
            with self._lock:
                assert self._began is not None
                earned = self._rate * (time.monotonic() - self._began) + 1
                # Unused messages expire, so that a burst can't follow a pause.
                self._granted = max(self._granted, earned - self._rate * 2 * _GRANT_SECONDS - 1)
                free = int(earned - self._granted)
                if free >= 1:
                    granted = min(share, free)
                    self._granted += granted
                    return granted
            wait = min(share / self._rate, end - time.monotonic())
            if wait <= 0 or self._closing.wait(wait):
                return 0


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _report(line: bytes) -> tuple[dict[int, Any], int]:
    """Return the progress of a task's lanes, and how many messages it requests. Raises ValueError."""
    try:
        report = json.loads(line)
        return {int(lane): tuple(done) for lane, done in report["lanes"].items()}, int(report["want"])
    except (LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError("it is not a valid report") from error


class CoordinatorClient:
    """A task's connection to the coordinator."""

    def __init__(self, address: CoordinatorAddress) -> None:
        try:
            self._socket = socket.create_connection((address.host, address.port), _ANSWER_SECONDS)
            self._lines = self._socket.makefile("rw")
            self._lines.write(address.token + "\n")
            self._lines.flush()
        except OSError as error:
            raise ConnectionFailed(
                f"a task can't reach the replay's command at {address.host}:{address.port}",
                "check the network between the Spark workers and this host",
            ) from error

    def ask(self, lanes: dict[int, LaneDone], want: int = 0) -> CoordinatorReply:
        """Report progress and request ``want`` messages to send. Raises ConnectionFailed without answer."""
        try:
            self._lines.write(json.dumps({"lanes": lanes, "want": want}) + "\n")
            self._lines.flush()
            line = self._lines.readline()
            if line:
                return CoordinatorReply(*json.loads(line))
        except (OSError, ValueError, TypeError):
            pass
        raise ConnectionFailed(
            "the replay's command has ended",
            "run the replay again; it resumes after the acknowledged messages",
        )

    def close(self) -> None:
        """Close the connection; the coordinator continues."""
        with contextlib.suppress(OSError):
            self._lines.close()
            self._socket.close()


# Find messages that a killed run has written after its last saved progress, so that they are not sent again.
#
# An idempotent producer writes a lane in order. So of the next messages of the recording, a prefix is already
# in the topic, perhaps mixed with other producers' messages: the search finds them one by one, and everything
# after the first that is missing was never written.
#
# But requests in flight when a connection broke may still be written after that search: the kernel continues
# to send its buffers, and a broker accepts the request of a client that has gone. So `count_duplicates`
# checks again afterwards.

_CREATE_TIME = 1


class UnconfirmedTail:
    """The messages of a partition from some offset on, as of the time it was read."""

    def __init__(self, records: list[tuple[int, int]], *, with_times: bool) -> None:
        """``records`` has the digest and the offset of each message."""
        self._found = records
        self._with_times = with_times
        self._at = 0
        self._seen = 0
        self.is_passed = not records

    @property
    def doubtful(self) -> int:
        """Number of its messages that may be duplicates: those that were not recognized."""
        return len(self._found) - self._seen

    def find(self, key: bytes | None, value: bytes | None, stamp: int) -> int | None:
        """Return the offset of the recording's next message; None if it and all after it are missing."""
        if self.is_passed:
            return None
        expected = digest(key, value, stamp if self._with_times else 0)
        for at in range(self._at, len(self._found)):
            if self._found[at][0] == expected:
                self._at = at + 1
                self._seen += 1
                return self._found[at][1]
        self.is_passed = True
        return None


def digest(key: bytes | None, value: bytes | None, stamp: int) -> int:
    """Return a digest of a message that is valid only within this process."""
    return hash((key, value, stamp))


def message_digest(message: Message) -> int:
    """Return the digest of a consumed message."""
    kind, stamp = message.timestamp()
    # With LogAppendTime, the message's own timestamp is lost.
    return digest(message.key(), message.value(), stamp if kind == _CREATE_TIME else 0)


def read_tail(
    config: Config, topic: str, partition: int, start: int, check: Callable[[], None] = lambda: None
) -> UnconfirmedTail:
    """Read a partition from ``start`` on. Raises ConnectionFailed or RefusedError.

    ``check`` is called regularly, and may raise to end the read.
    """
    low, _, high = ends(config, (topic, partition))
    start = max(start, low)
    if start >= high:
        return UnconfirmedTail([], with_times=True)
    messages: list[tuple[int, int]] = []
    with_times = True
    split = Split(topic, partition, start, high)
    for part in SplitScan(config, split, "read_uncommitted", 5.0, check):
        for message, offset in zip(part.messages, part.offsets, strict=True):
            with_times = message.timestamp()[0] == _CREATE_TIME
            messages.append((message_digest(message), offset))
    return UnconfirmedTail(messages, with_times=with_times)


@dataclass(slots=True)
class LaneCutoff:
    """A lane when its task was first cut off: where the unknown messages begin, and its progress."""

    tail: int
    noted: int
    #: Number of messages without a delivery report over all attempts: only these can arrive late.
    unknown: int = 0


def count_duplicates(
    config: Config, cuts: Mapping[tuple[str, int], LaneCutoff], acknowledged: Callable[[tuple[str, int]], int]
) -> int:
    """Return the maximum number of messages that are in the partitions twice after the cuts.

    ``noted(place)`` returns the number of durable messages of a lane. If Kafka does not answer, all messages
    without a delivery report may be there twice.
    """
    return sum(_of_one(config, place, cut, acknowledged(place) - cut.noted) for place, cut in cuts.items())


def _of_one(config: Config, place: tuple[str, int], cut: LaneCutoff, sent: int) -> int:
    digests, has_holes = array("q"), False
    try:
        low, _, high = ends(config, place)
        split = Split(*place, max(cut.tail, low), high)
        has_holes = low > cut.tail
        for part in SplitScan(config, split, "read_uncommitted", patience=5.0) if split.low < high else ():
            has_holes = has_holes or bool(part.holes)
            digests.extend(message_digest(message) for message in part.messages)
    except BwtuiError:
        return cut.unknown
    return twice(digests, sent, cut.unknown, has_holes=has_holes)


def twice(digests: "array[int]", sent: int, unknown: int, *, has_holes: bool) -> int:
    """Return how many of a log's messages may be duplicates, if ``sent`` of them are expected.

    A recording may have equal messages, and other producers may write to the topic: so duplicates require
    both more messages than expected, and equal ones. With holes in the log, the expected number is unknown.
    """
    equal = len(digests) - len(np.unique(np.frombuffer(digests, np.int64))) if digests else 0
    more = unknown if has_holes else max(0, len(digests) - sent)
    return min(equal, more, unknown)


# The state of one partition that a replay writes to: messages handed over, durable, and unknown.
#
# It also decides how long a task waits for Kafka to acknowledge any message of its lanes.

#: Timeout for a lane's messages while Kafka acknowledges none, normally and after a lost connection.
_SILENT_SECONDS, _LOST_SECONDS = 15.0, 3.0


class LaneResult(NamedTuple):
    """The result of a lane: messages sent, messages found in the topic, and the last one with its offset."""

    lane: int
    sent: int
    found: int
    doubled: int
    position: int
    part: int
    offset: int
    #: Messages that were handed over without a delivery report; the topic shows whether they were written.
    unknown: int


class LaneBatch(NamedTuple):
    """Messages handed over together, up to (position, part); durable at ``until`` acknowledgements."""

    until: int
    bytes: int
    position: int
    part: int


@dataclass(slots=True)
class Lane:
    """One partition of a topic, and the state of its messages."""

    number: int
    topic: str
    partition: int
    tail: UnconfirmedTail | None = None
    handed: int = 0
    acknowledged: int = 0
    found: int = 0
    batches: deque[LaneBatch] = field(default_factory=deque)
    #: Durable progress up to the end of a batch: number of messages, position and part of the last, its
    #: offset.
    noted: int = 0
    done: tuple[int, int] = (-1, 0)
    last_offset: int = -1
    is_broken: bool = False
    #: Acknowledged messages at the last check, and when that number last changed; 0 before the first check.
    _last_count: int = 0
    _changed_at: float = 0.0

    def state(self) -> LaneDone:
        """Return the durable progress."""
        return self.noted, *self.done, self.last_offset

    def waits(self, now: float) -> float:
        """Return for how many seconds Kafka has acknowledged none of the lane's outstanding messages."""
        is_settled = self.handed == self.acknowledged
        if is_settled or self.acknowledged != self._last_count or not self._changed_at:
            self._last_count, self._changed_at = self.acknowledged, now
        return now - self._changed_at

    def result(self) -> LaneResult:
        """Return the result of the lane."""
        doubled = self.tail.doubtful if self.tail is not None else 0
        unknown = self.handed - self.acknowledged
        return LaneResult(
            self.number, self.acknowledged, self.found, doubled, *self.done, self.last_offset, unknown
        )


class SilenceTimeout:
    """Checks whether Kafka is silent for too long; after an error, the limit is shorter until all recover."""

    def __init__(self, errors: LastClientError) -> None:
        self._heard = errors
        #: When the current error was first seen.
        self._silent_since: float | None = None

    def is_over(self, lanes: Collection[Lane], now: float) -> bool:
        """Return whether a lane has waited too long; ``now`` is in seconds of a monotonic clock."""
        longest = max((lane.waits(now) for lane in lanes), default=0.0)
        if self._heard.error is None:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        elif longest < now - self._silent_since and not self._heard.is_refusal:
            # Every waiting lane got an acknowledgement since the error, or had nothing outstanding at that
            # time.
            self._heard.forget()
            self._silent_since = None
        return longest > (_SILENT_SECONDS if self._heard.error is None else _LOST_SECONDS)


_IN_FLIGHT = 60_000
_IN_FLIGHT_BYTES = 32 << 20
_CHUNK = 5_000
_CHUNK_BYTES = 8 << 20
_WAIT_SECONDS = 0.05
_REPORT_SECONDS = 0.25
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
#: Too old for the topic, or without a key in a compacted topic; librdkafka does not always say which.
_INVALID = (KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD)
#: Producer settings that the user can't override.
FIXED = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "acks": "all",
    "allow.auto.create.topics": False,
    "delivery.report.only.error": False,
    "queue.buffering.max.messages": 10_000_000,
    "queue.buffering.max.kbytes": 2_097_151,
    # librdkafka would drop a message that took too long, and continue with the next.
    "message.timeout.ms": 0,
    # Nothing is retried. A broker recognizes a repeated request by its state for the producer, and drops that
    # state if the last message has a timestamp more than a day old (producer.id.expiration.ms). Recorded
    # messages are often that old: when the broker restarts, or at its check for expired producers every ten
    # minutes, it would write them twice. The topic shows what was written.
    "retry.backoff.ms": 300_000,
    "retry.backoff.max.ms": 300_000,
}


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The settings of all tasks."""

    producer: Mapping[str, Any]
    client: Mapping[str, Any]
    #: Topic and partition of every lane.
    places: Sequence[tuple[str, int]]
    coordinator: CoordinatorAddress
    #: Speed relative to recorded time, from ``pace_from`` (Unix microseconds); None sends without delay.
    pace: float | None = None
    pace_from: int = 0
    #: Lane → the offset from which an earlier run may have written messages missing from its progress.
    tails: Mapping[int, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        # The configuration may hold secrets.
        return f"Work({len(self.places)} lanes)"


def send(
    batches: Iterator[pa.RecordBatch], work: TaskSettings, is_over: Callable[[], bool] = lambda: False
) -> Iterator[LaneResult]:
    """Send a task's rows, and yield the results of its lanes.

    Raises Interrupted once ``is_over()`` is true, without waiting for deliveries; ConnectionFailed,
    RefusedError.
    """
    # Do not connect for a task without rows.
    first = next(batches, None)
    if first is None:
        return
    sender = _LaneSender(work, is_over)
    try:
        sender.send(first)
        for batch in batches:
            if sender.is_stopped:
                break
            sender.send(batch)
        sender.finish()
    finally:
        sender.close()
    yield from sender.result()


def _sizes(batch: pa.RecordBatch) -> Ints:
    """Return the approximate size of each row in the producer's queue, in bytes."""
    lengths = (pc.fill_null(pc.binary_length(batch[name]), 0).to_numpy() for name in ("key", "value"))
    sizes: Ints = sum(lengths, np.full(batch.num_rows, 50, np.int64))
    return sizes


def _by_lane(lanes: npt.NDArray[np.int32]) -> Iterator[tuple[int, Ints]]:
    """Yield each lane with the indexes of its rows, in order."""
    order = np.argsort(lanes, kind="stable")
    lane_numbers, starts = np.unique(lanes[order], return_index=True)
    yield from zip(lane_numbers.tolist(), np.split(order, starts[1:]), strict=True)


class _LaneSender:
    def __init__(self, work: TaskSettings, is_over: Callable[[], bool]) -> None:
        self._work = work
        self._is_over = is_over
        self._lanes: dict[int, Lane] = {}
        self._dirty: set[int] = set()
        self._failed: BwtuiError | None = None
        #: The fatal error that ended the producer.
        self._ended: KafkaError | None = None
        #: Size of the largest rejected message.
        self._refused = 0
        self._bytes = 0
        self._granted = 0
        self._reported = time.monotonic()
        self._clock = (0.0, time.monotonic())
        self._heard = LastClientError(has_answered=True)
        self._patience = SilenceTimeout(self._heard)
        self.is_stopped = False
        #: True once some messages have no delivery report: nothing more is sent.
        self._is_cut = False
        self._looked = time.monotonic()
        settings = {**work.producer, **FIXED, "error_cb": self._heard}
        self._producer = new_client(Producer, settings)
        self._coordinator = CoordinatorClient(work.coordinator)
        self._ask(0)

    def send(self, batch: pa.RecordBatch) -> None:
        """Send the rows of one batch, as fast as allowed."""
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        lanes, sizes = batch["lane"].to_numpy(), _sizes(batch)
        size, count = max(batch.nbytes, 1), batch.num_rows
        chunk = max(1, min(_CHUNK, count * _CHUNK_BYTES // size))
        at = 0
        while at < count and not self.is_stopped:
            until = min(at + chunk, count)
            if self._work.pace is not None:
                until = self._due(columns["received"], at, until)
            until = min(until, at + self._allowed(until - at))
            if until > at:
                by_lane = {lane: at + rows for lane, rows in _by_lane(lanes[at:until])}
                self._hand_over(columns, sizes, by_lane)
                at = until
            self._poll(0)
            while not self.is_stopped and self._is_full():
                self._poll(_WAIT_SECONDS)

    def finish(self) -> None:
        """Wait until everything is durable."""
        while len(self._producer):
            self._poll(_WAIT_SECONDS)
        self._poll(0)
        self._ask(0)

    def close(self) -> None:
        """Release everything; messages that are not durable are dropped."""
        self._producer.purge()
        # Until they are called, librdkafka keeps the callbacks of unsent messages, where Python's cycle
        # collector can't see them, and all that they refer to: DuckDB would complain when the process ends.
        with contextlib.suppress(KafkaException):
            while self._producer.poll(0):
                pass
        self._failed = None
        self._coordinator.close()

    def result(self) -> Iterator[LaneResult]:
        """Yield the result of each lane."""
        yield from (lane.result() for lane in self._lanes.values())

    # -- how fast ------------------------------------------------------------------------------------------

    def _allowed(self, want: int) -> int:
        """Return how many messages may be sent now; requests more from the coordinator when none are left."""
        if want and not self._granted:
            # With a rate limit, the coordinator grants less.
            self._ask(MOST)
        allowed = min(want, self._granted)
        self._granted -= allowed
        return allowed

    def _due(self, received: list[int], at: int, until: int) -> int:
        """Return the end of the rows that are due; waits a little when none is."""
        pace = self._work.pace
        assert pace is not None
        now = self._clock[0] + time.monotonic() - self._clock[1]
        reached = self._work.pace_from + int(now * pace * 1_000_000)
        due = bisect_right(received, reached, at, until)
        if due == at:
            early = (received[at] - reached) / 1_000_000 / pace
            self._poll(max(0.0, min(early, _WAIT_SECONDS)))
        return due

    def _is_full(self) -> bool:
        return len(self._producer) >= _IN_FLIGHT or self._bytes >= _IN_FLIGHT_BYTES

    def _ask(self, want: int) -> None:
        lanes = {number: self._lanes[number].state() for number in self._dirty}
        self._dirty.clear()
        answer = self._coordinator.ask(lanes, want)
        self._reported = time.monotonic()
        self._granted += answer.messages
        self._clock = (answer.elapsed, self._reported)
        self.is_stopped = answer.stop or self._is_cut

    # -- what is sent --------------------------------------------------------------------------------------

    def _hand_over(self, columns: Mapping[str, list[Any]], sizes: Ints, by_lane: dict[int, Ints]) -> None:
        deferred: list[tuple[Lane, Ints]] = []
        for number, rows in by_lane.items():
            lane = self._lanes.get(number) or self._open(number)
            has_tail = lane.tail is not None and not lane.tail.is_passed
            unfound = self._unfound(lane, columns, rows) if has_tail else rows
            first = 0 if lane.handed else 1
            if len(unfound[:first]):
                self._send_lane(lane, columns, sizes, unfound[:first])
            deferred.append((lane, unfound[first:]))
        while not self._is_cut and any(lane.handed and not lane.acknowledged for lane, _ in deferred):
            self._poll(_WAIT_SECONDS)
        for lane, unfound in deferred:
            if len(unfound) and not self._is_cut:
                self._send_lane(lane, columns, sizes, unfound)

    def _open(self, number: int) -> Lane:
        topic, partition = self._work.places[number]
        lane = self._lanes[number] = Lane(number, topic, partition)
        start = self._work.tails.get(number)
        if start is not None:
            lane.tail = read_tail(self._work.client, topic, partition, start, self._go_on)
        return lane

    def _unfound(self, lane: Lane, columns: Mapping[str, list[Any]], rows: Ints) -> Ints:
        """Return the rows that no earlier run has written."""
        assert lane.tail is not None
        keys, values, stamps = columns["key"], columns["value"], columns["stamp"]
        for count, row in enumerate(rows.tolist()):
            offset = lane.tail.find(keys[row], values[row], stamps[row])
            if offset is None:
                return rows[count:]
            lane.found += 1
            lane.noted += 1
            lane.last_offset = offset
            lane.done = (columns["position"][row], columns["part"][row])
            self._dirty.add(lane.number)
        return rows[:0]

    def _send_lane(self, lane: Lane, columns: Mapping[str, list[Any]], sizes: Ints, chosen: Ints) -> None:
        keys, values, stamps = columns["key"], columns["value"], columns["stamp"]
        size, rows = int(sizes[chosen].sum()), chosen.tolist()
        last = rows[-1]
        lane.handed += len(rows)
        lane.batches.append(LaneBatch(lane.handed, size, columns["position"][last], columns["part"][last]))
        self._bytes += size
        report = self._reporter(lane)
        produce, topic, partition = self._producer.produce, lane.topic, lane.partition
        headers = row_headers(columns)
        try:
            for row in rows:
                # Positional arguments cost half of keyword arguments; librdkafka's batch API has no
                # timestamps.
                produce(
                    topic,
                    values[row],
                    keys[row],
                    partition,
                    report,
                    None,
                    stamps[row],
                    headers and headers(row),
                )
        except (KafkaException, BufferError) as error:
            # The client keeps the exception that it raises here, and its traceback would keep this frame.
            error.__traceback__ = None
            # Nothing may follow the first message that was not accepted.
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError._FATAL:
                self._await_failure()
            self._producer.purge()
            cause = error.args[0] if isinstance(error, KafkaException) else KafkaError(KafkaError._QUEUE_FULL)
            raise self._refusal(cause, topic, len(values[row] or b"")) from error

    # -- what became of it ---------------------------------------------------------------------------------

    def _reporter(self, lane: Lane) -> Any:
        batches = lane.batches

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None or lane.is_broken:
                # Acknowledgements after a rejected message do not count: a lane must not have gaps.
                lane.is_broken = True
                self._refuse(error, lane.topic, message)
                return
            lane.acknowledged += 1
            if lane.acknowledged >= batches[0].until:
                _, size, position, part = batches.popleft()
                self._bytes -= size
                lane.noted = lane.acknowledged + lane.found
                # A message that the broker recognized as a duplicate may be reported without an offset.
                offset = message.offset()
                lane.done, lane.last_offset = (position, part), lane.last_offset if offset is None else offset
                self._dirty.add(lane.number)

        return report

    def _refuse(self, error: KafkaError | None, topic: str, message: Message) -> None:
        if error is not None and error.code() == KafkaError._PURGE_QUEUE:
            # It followed the message that ended the producer, which is reported before or after this one.
            return
        size = len(message.value() or b"")
        # The broker rejects a whole batch for one message, which is the largest.
        if error is not None and (
            self._failed is None or (error.code() in _TOO_LARGE and size > self._refused)
        ):
            self._failed, self._refused = self._refusal(error, topic, size), size

    def _await_failure(self) -> None:
        """Wait for the report of the message that ended the producer, and raise its error."""
        while len(self._producer):
            self._poll(_WAIT_SECONDS)
        self._poll(0)

    def _go_on(self) -> None:
        if self._is_over():
            self._producer.purge()
            raise Interrupted()

    def _serve(self, seconds: float) -> None:
        self._go_on()
        try:
            self._producer.poll(seconds)
        except KafkaException as error:
            # The end of the producer is raised as an exception, once; the delivery reports have the cause.
            if not error.args[0].fatal():
                raise
            self._ended = error.args[0]

    def _poll(self, seconds: float) -> None:
        self._serve(seconds)
        if self._ended is not None and self._failed is None and not len(self._producer):
            self._failed = plain_kafka_error(self._ended, self._work.client)
        if self._heard.error is not None and self._heard.is_refusal:
            self._failed = plain_kafka_error(self._heard.error, self._work.client)
        if self._failed is not None:
            self._producer.purge()
            # Report what is durable, whatever failed after it.
            self._dirty.update(self._lanes)
            self._ask(0)
            raise self._failed
        now = time.monotonic()
        if now - self._looked >= _REPORT_SECONDS:
            self._looked = now
            if self._patience.is_over(self._lanes.values(), now):
                self._cut()
        if now - self._reported >= _REPORT_SECONDS:
            self._ask(0)

    def _cut(self) -> None:
        """Purge messages that are unsent or waiting for a retry, until Kafka can't receive any of them."""
        while len(self._producer):
            # A request in flight is answered, or waits for a retry when its connection is lost.
            self._producer.purge(in_flight=False)
            self._serve(_WAIT_SECONDS)
        self._is_cut = any(lane.handed > lane.acknowledged for lane in self._lanes.values())
        self._dirty.update(self._lanes)
        self._ask(0)

    def _refusal(self, error: KafkaError, topic: str, size: int) -> BwtuiError:
        if error.code() in _TOO_LARGE:
            return RefusedError(
                f"topic {topic} does not accept a message of {size} bytes",
                f"raise max.message.bytes of topic {topic}, and run the replay again to resume",
            )
        if error.code() in _INVALID:
            return RefusedError(
                f"topic {topic} rejected a message: {error.str()}",
                f"check message.timestamp.before.max.ms and cleanup.policy of topic {topic}, and run the "
                "replay again to resume",
            )
        timed_out = error.code() in (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT)
        cause = self._heard.error if timed_out and self._heard.error else error
        return plain_kafka_error(cause, self._work.client, topic)


# Send a small replay in a thread of this process: starting Spark would take longer than the replay.
#
# One producer has all lanes, and every message is read once, whereas each Spark task reads all of them.

_ABANDONED_SECONDS = 5.0


class InProcessReplayEngine:
    """Sends the rows of files; reads and places the next batch while one is being sent."""

    #: Address of the coordinator, and maximum number of tasks that the lanes are divided into.
    host, tasks = "127.0.0.1", 1

    def __init__(self, rows: FileRows) -> None:
        self._rows = rows
        self._is_cancelled = threading.Event()

    def send(self, placing: RowPlacement, work: TaskSettings) -> list[LaneResult]:
        """Send the messages. Raises what `bwtui.replay.send.send` raises."""
        rows = placing.placed(self._rows.files.to_send(placing))
        # Close the rows: if this fails, DuckDB would otherwise still be open, and complain, when the process
        # ends.
        with contextlib.closing(rows) as placed, ThreadPoolExecutor(1, "replay-reader") as pool:
            return list(send(self._ahead(placed, pool), work, self._is_cancelled.is_set))

    def cancel(self) -> None:
        """Stop sending at once; the next run finds the messages in flight in the topics."""
        self._is_cancelled.set()

    def abandon(self, ended: threading.Event) -> None:
        """Stop, and wait briefly: a process must not end while a thread is inside librdkafka."""
        self.cancel()
        ended.wait(_ABANDONED_SECONDS)

    def _ahead(self, batches: Iterator[pa.RecordBatch], pool: ThreadPoolExecutor) -> Iterator[pa.RecordBatch]:
        following = pool.submit(next, batches, None)
        while (batch := following.result()) is not None and not self._is_cancelled.is_set():
            following = pool.submit(next, batches, None)
            yield batch
