"""One task of a replay: sends the rows of its lanes, each lane in order, and tracks their delivery.

The durable messages of a lane are always a prefix: the producer is idempotent, and stops at the first
rejected message. The first message of a lane is sent alone, since a broker accepts any sequence number as the
first of a producer in a partition (KIP-360). This module limits the messages and bytes in flight, so that
librdkafka's own queue never fills: if it refused a message for a full queue and accepted the next, the order
of a key would change.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from bwtui.errors import BwtuiError, Interrupted, RefusedError
from bwtui.kafka.client import LastClientError, new_client, plain_kafka_error
from bwtui.replay.coordinator import MOST, CoordinatorAddress, CoordinatorClient
from bwtui.replay.lane import Lane, LaneBatch, LaneResult, SilenceTimeout
from bwtui.replay.placement import row_headers
from bwtui.replay.rows import Ints
from bwtui.replay.unconfirmed_tail import read_tail

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
        # librdkafka still has the callbacks of unsent messages, where Python's cycle collector can't see
        # them. These would keep the error and all that it refers to until the process ends, when DuckDB
        # complains.
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
