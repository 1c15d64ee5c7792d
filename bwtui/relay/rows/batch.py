"""Batches: the sink receives many messages at a time, and every batch is one span to acknowledge.

A batch also knows the transaction whose rows are being added to it, the `OpenTransaction`.
"""

import struct
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable

from bwtui.model.delivery import DeliverySpan, Part, Receipt
from bwtui.model.lsn import NO_COMMIT, SentCommit
from bwtui.pgoutput.frames import BODY_OFFSET, POSTGRES_EPOCH_US
from bwtui.pgoutput.messages import Relation
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows.batch_bisector import BatchBisector
from bwtui.relay.rows.chunk_window import ChunkWindow
from bwtui.relay.rows.policy import RowTooLarge
from bwtui.relay.rows.recorder import NullRecorder, Recorder
from bwtui.relay.state.ack import Acknowledgements
from bwtui.relay.state.run_state import RunState
from bwtui.relay.state.transaction_log import (
    LARGE_BYTES,
    LARGE_ROWS,
    TransactionLog,
    TransactionNote,
    TransactionTables,
)
from bwtui.sink.dead_letters import DroppedRow
from bwtui.sink.destination import Message, MessageTuple, Sink

_begin = struct.Struct(">QqI").unpack_from

#: A batch is handed over when it holds this many rows or bytes, or when there is nothing more to read.
#: Larger batches would gain nothing (docs/benchmarks/measurements.md).
BATCH_ROWS = 4_000
BATCH_BYTES = 1 << 20
#: Reading pauses while this many bytes are in flight: the bound on memory when Kafka is slow or unavailable.
IN_FLIGHT_BYTES = 64 << 20
IN_FLIGHT_ROWS = 100_000
#: Minimum time between batches that are not full: each batch costs relay and broker as much as several rows.
_APART_SECONDS = 0.002
#: Bytes allowed per record besides its key and value (KIP-98: varints, timestamps, the batch's header).
RECORD_OVERHEAD = 512
#: Frame numbers, enough for most batches: a slice of this array costs a twentieth of building a new one.
_NUMBERS = array("I", range(4 * BATCH_ROWS))
#: Conditions for finding a transaction's tables by checking each table of the batch: few tables; a small
#: batch, which is the normal case without a backlog; or this many rows of the transaction per table.
_FEW_TABLES, _SMALL_BATCH, _ROWS_A_TABLE = 5, 65, 8


class OutgoingBatch:
    """The messages that are encoded and not handed over yet."""

    def __init__(
        self, sink: Sink, acks: Acknowledgements, report: RunState, recorder: Recorder | None = None
    ) -> None:
        self._sink = sink
        #: Messages that belong to no table, by topic.
        self._apart: dict[str, list[MessageTuple]] = {}
        self._recorder = recorder or NullRecorder()
        self._frames = self._recorder.frames if self._recorder.is_recording else None
        self._acks = acks
        self._report = report
        #: The routes that have messages in the batch.
        self.routes: list[TableRoute] = []
        self.span = DeliverySpan()
        self.rows = 0
        self.bytes = 0
        #: Set in careful mode: each flush then waits until its batch is settled.
        self.bisector: BatchBisector | None = None
        #: The transaction that rows are added of, and the newest one with rows that were handed over.
        self.transaction = OpenTransaction(self, report.transaction_log)
        self.sent_commit = NO_COMMIT
        #: When the data being added was there to read, by the monotonic clock; 0.0 if nothing measures it.
        self.received = 0.0
        #: Bytes of all batches before this one.
        self.handed_over = 0
        #: When the last batch with messages was handed over, by the monotonic clock.
        self._handed_over_at = 0.0
        #: Observes the keys that are sent while a chunk is read alongside the stream.
        self.window: ChunkWindow | None = None
        #: While recording: bytes that wait to be recorded, in addition to the messages.
        self.held = 0

    def add(
        self,
        route: TableRoute,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: list[tuple[str, bytes]] | None,
    ) -> None:
        """Add one message. Raises RowTooLarge without having added anything."""
        size = (len(value) if value is not None else 0) + (len(key) if key is not None else 0)
        if size + RECORD_OVERHEAD > route.max_message_bytes:
            raise RowTooLarge(
                f"the message has {size} bytes; message.max.bytes allows {route.max_message_bytes}",
                f"raise -C message.max.bytes=… and max.message.bytes of topic {route.topic}",
            )
        messages = route.messages
        if not messages:
            self.routes.append(route)
            route.committed = self.transaction.commit_time()
        # A plain tuple in a Message's order: creating the named tuple costs as much as this whole function.
        messages.append((key, value, timestamp, headers))
        if self._frames is not None:
            route.positions.append(len(self._frames))
        route.bytes += size
        self.bytes += size

    def add_many(self, route: TableRoute, messages: list[MessageTuple], size: int) -> None:
        """Add one message per row, ``size`` bytes in total, none of which exceeds Kafka's limit.

        While recording, the caller adds the rows' frames afterwards.
        """
        if not messages:
            # Listing a route without messages would list it a second time with its first message, and its
            # messages would be recorded twice.
            return
        if not route.messages:
            self.routes.append(route)
            route.committed = self.transaction.commit_time()
        route.messages += messages
        if self._frames is not None:
            first = len(self._frames)
            route.positions.extend(_numbers(first, len(messages)))
        self.rows += len(messages)
        route.bytes += size
        self.bytes += size

    def add_apart(self, topic: str, key: bytes, value: bytes, timestamp: int) -> None:
        """Add a message that belongs to no table; it goes out with the batch and is not recorded."""
        self._apart.setdefault(topic, []).append((key, value, timestamp, None))
        self.bytes += len(key) + len(value)

    def has_part(self) -> bool:
        """Return whether a message of the change being handled was already added."""
        frame = len(self._frames or ())
        return any(route.positions and route.positions[-1] == frame for route in self.routes)

    def is_full(self) -> bool:
        """Return whether the batch should be handed over now."""
        return self.rows >= BATCH_ROWS or self.bytes + self.held >= BATCH_BYTES

    @property
    def too_soon(self) -> float:
        """Seconds to wait for more data before the batch is handed over; 0 to hand it over now."""
        if not self.routes or self.bisector is not None or self.is_full():
            return 0.0
        return max(0.0, self._handed_over_at + _APART_SECONDS - time.monotonic())

    def gather(self, read: Callable[[], bool], ends_at_commit: Callable[[], bool]) -> None:
        """Wait and read more if batches follow each other closely; a lone row is not delayed."""
        if not (seconds := self.too_soon) or ends_at_commit():
            return
        with self._report.clock.during("read"):
            time.sleep(seconds)
        # Meanwhile the batch may have to end at its last commit.
        if not ends_at_commit():
            received, handed_over = self.received, self.handed_over
            read()
            if self.handed_over == handed_over:
                # The batch's first row was there to read before the wait.
                self.received = received

    def commit(self, end_lsn: int) -> None:
        """Record that a transaction ended: everything added so far lies before ``end_lsn``."""
        self.span.lsn = end_lsn

    def send_apart(self, route: TableRoute, topic: str, message: Message, row: DroppedRow) -> None:
        """Send a message about ``row`` to a topic other than its table's, after everything added so far.

        It is not recorded. Raises what `flush` raises.
        """
        self.flush()
        self.rows += 1
        if self.bisector is None:
            self._sink.send(topic, [message], self.span)
            return
        self.bisector.name(None, route, row)
        self._sink.send(topic, [message], self.span, self.bisector.receipt(None, topic, [message], None))
        with self._report.clock.during("settling"):
            self.bisector.settle(self.span)

    def flush(self) -> None:
        """Hand everything over, to the recording first if there is one, and seal the span.

        Raises StateFailed, and in careful mode what `BatchBisector.settle` raises.
        """
        span = self.span
        if self.routes:
            self.transaction.hand_over(self.routes)
        if self.window is not None:
            self.window.note_batch(self.routes)
        routes, self.routes = self.routes, []
        receipts: list[Receipt] | None = None
        parts: list[Part] = []
        span.size += self.bytes
        encoded = time.monotonic()
        if routes:
            self.sent_commit = self.transaction.newest()
            self._handed_over_at = encoded
        clock = self._report.clock
        before = clock.turn_to("produce")
        if self._recorder.is_recording:
            clock.turn_to("disk")
            receipts = self._recorder.write_batch(routes) or None
            span.receipts += receipts or ()
            clock.turn_to("produce")
        for index, route in enumerate(routes):
            messages, route.messages = route.messages, []
            route.positions = array("I")
            receipt = receipts[index] if receipts is not None else None
            if self.bisector is not None:
                receipt = self.bisector.receipt(route, route.topic, messages, receipt)
            self._sink.send(route.topic, messages, span, receipt)
            counters = route.counters
            counters.messages += len(messages)
            counters.bytes += route.bytes
            route.bytes = 0
            self._report.messages += len(messages)
            parts.append((route.relation.qualified_name, len(messages), route.committed))
        while self._apart:
            self._sink.send(*self._apart.popitem(), span)
        if parts and self.received:
            self._stamp(span, parts, encoded)
        if span.sampled:
            _hand_over(span, routes, receipts, sum(part[1] for part in parts))
        if span.pending or span.failed or span.lsn is not None:
            self._acks.seal(span)
            self.span = DeliverySpan()
        self._report.rows_read += self.rows
        self.handed_over += self.bytes
        self.rows = 0
        self.bytes = 0
        self.held = 0
        if self.bisector is not None:
            with clock.during("settling"):
                self.bisector.settle(span)
        clock.turn_to(before)

    def _stamp(self, span: DeliverySpan, parts: list[Part], encoded: float) -> None:
        now = time.monotonic()
        # Set the clock first: another thread may read the times while they are set, and needs it for them.
        span.clock = time.time() - now
        span.parts, span.received, span.encoded, span.produced = parts, self.received, encoded, now
        # Rows that follow before the next turn of the loop count as received now.
        self.received = now


def _hand_over(
    span: DeliverySpan, routes: list[TableRoute], receipts: list[Receipt] | None, messages: int
) -> None:
    """Give the sampled messages of a batch the receipt that will hold their partitions and offsets."""
    for passage in span.sampled:
        if passage.route in routes:
            at = routes.index(passage.route)
            passage.handed_over(receipts[at] if receipts is not None else None, messages)


def _numbers(first: int, count: int) -> "array[int]":
    if first + count <= len(_NUMBERS):
        return _NUMBERS[first : first + count]
    return array("I", range(first, first + count))


class OpenTransaction:
    """The transaction that a session is reading, and the record of it when it ends.

    Nothing here is done once per row. The batch already identifies the rows of a transaction: all its
    messages have one and the same object as their timestamp. Only `so_far` may be called from other threads.
    """

    def __init__(self, batch: "OutgoingBatch", log: TransactionLog) -> None:
        #: True between BEGIN and COMMIT; set by the code that reads them.
        self.is_open = False
        #: The commit LSN of the transaction, or of the last one.
        self.commit_lsn = 0
        self.xid = 0
        #: The number of its rows so far.
        self.ordinal = 0
        #: With --exactly-once: the number of earlier Kafka transactions that hold rows of it, and whether
        #: Kafka already holds what is read; it is then not recorded again.
        self.part = 0
        self.is_repeated = False
        #: With --transaction-topic: its messages, by table.
        self.events: dict[str, int] = {}
        #: When it was committed, in microseconds since PostgreSQL's epoch.
        self.committed = 0
        #: The same in Unix milliseconds: one object, shared as the timestamp of all its messages.
        self.timestamp = 0
        self._newest: tuple[int, int] = NO_COMMIT
        self._batch, self._log = batch, log
        self._note = log.note
        #: Bytes of everything before the transaction.
        self._bytes_before = 0
        #: Its messages that were handed over: when the first was received, or 0.0, and counts by table.
        self._received = 0.0
        self._tables: dict[str, int] = {}

    def begin(self, data: bytes) -> None:
        """Begin the transaction of a BEGIN frame."""
        if self.ordinal:
            # A plain tuple: creating the named tuple costs three times as much.
            self._newest = self.commit_lsn + 1, self.committed
        self.commit_lsn, self.committed, self.xid = _begin(data, BODY_OFFSET)
        self.timestamp = (self.committed + POSTGRES_EPOCH_US) // 1000
        self.ordinal = self.part = 0
        if self.events:
            self.events = {}
        self.is_open = True

    def newest(self) -> SentCommit:
        """Return the newest transaction from which a row was read."""
        return SentCommit(*((self.commit_lsn + 1, self.committed) if self.ordinal else self._newest))

    def commit_time(self) -> int:
        """Return when the transaction was committed, in Unix microseconds."""
        return self.committed + POSTGRES_EPOCH_US

    def commit(self) -> None:
        """End the transaction, and record it; called for each one, however small."""
        self.is_open, batch = False, self._batch
        size, self._bytes_before = -self._bytes_before, batch.handed_over + batch.bytes
        if not (count := self.ordinal):
            # Nothing of it may count for the next transaction.
            self._received, self._tables = 0.0, {}
            return
        size += self._bytes_before
        if self._received or count >= LARGE_ROWS or size >= LARGE_BYTES:
            self._note_large(size)
            return
        routes, stamp = batch.routes, self.timestamp
        # Not the routes, which reference the code of encoders, and may be replaced soon.
        mine: Relation | list[Relation] | None = None
        if len(routes) == 1:
            mine = routes[0].relation if routes[0].messages[-1][2] is stamp else []
        elif len(routes) < _FEW_TABLES or batch.rows < _SMALL_BATCH or count > _ROWS_A_TABLE * len(routes):
            mine = [route.relation for route in routes if route.messages[-1][2] is stamp]
        self._note((self.commit_lsn, self.xid, self.committed, count, size, batch.received, mine))

    def _note_large(self, size: int) -> None:
        """Record a transaction completely: it has enough rows to be worth the cost."""
        batch = self._batch
        self._count(batch.routes)
        received, tables = self._received or batch.received, self._tables
        noted = (self.commit_lsn, self.xid, self.committed, self.ordinal, size, received, tables)
        self._log.note(noted)
        self._log.note_large(noted)
        self._received, self._tables = 0.0, {}

    def hand_over(self, routes: list[TableRoute]) -> None:
        """Record the open transaction's part of a batch, before the batch is handed over."""
        # Before its first row the batch has nothing of it.
        if self.is_open and self.ordinal:
            self._received = self._received or self._batch.received
            self._count(routes)

    def _count(self, routes: list[TableRoute]) -> None:
        """Add the transaction's messages in the batch."""
        stamp, tables = self.timestamp, self._tables
        for route in routes:
            messages = route.messages
            if messages[0][2] is stamp:
                number = len(messages)
            elif messages[-1][2] is stamp:
                # They are the last ones, after those of earlier transactions.
                number = len(messages) - bisect_left(messages, True, key=lambda one: one[2] is stamp)
            else:
                continue
            name = route.relation.qualified_name
            tables[name] = tables.get(name, 0) + number

    def so_far(self) -> tuple[TransactionNote, TransactionTables] | None:
        """Return what is known of the transaction that is being read, or None; any thread may call this."""
        if not self.is_open:
            return None
        batch, stamp, count = self._batch, self.timestamp, self.ordinal
        size = max(batch.handed_over + batch.bytes - self._bytes_before, 0)
        received = self._received or batch.received
        noted = TransactionNote(self.commit_lsn, self.xid, self.committed, count, size, received)
        tables = TransactionTables.of(dict(self._tables))
        # Another transaction may have begun while this one was collected.
        return (noted, tables) if count and self.is_open and stamp is self.timestamp else None
