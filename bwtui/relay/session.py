"""The streaming session: read frames, send batches, and confirm LSNs to the server.

One thread does all of it. Nothing is done once per row that can be done once per batch.
"""

import struct
import time
from collections.abc import Callable, Sequence
from itertools import chain, islice

from bwtui.blocking import StopRequested, check_stop
from bwtui.errors import ConnectionFailed, RefusedError, RowError
from bwtui.pgoutput.frames import BODY_OFFSET, PAYLOAD_OFFSET, XLOG_DATA
from bwtui.relay.ack import Acknowledgements
from bwtui.relay.backfill.stream_hook import StreamHook
from bwtui.relay.batch import IN_FLIGHT_BYTES, IN_FLIGHT_ROWS, OutgoingBatch
from bwtui.relay.batch_bisector import BatchBisector, RestartFromConfirmed
from bwtui.relay.bulk_rows import BulkRows
from bwtui.relay.context import REFUSED, RelayContext
from bwtui.relay.metrics.open_transaction import OpenTransaction
from bwtui.relay.row_handler import FrameHandlers, RowHandler
from bwtui.source.raw.stream import ReplicationStream, changes_skipped, parse_keepalive

_commit = struct.Struct(">QQ").unpack_from

#: Interval at which the server receives the confirmed LSN: maximum, and when there is nothing else to do.
_CONFIRM_SECONDS, _CONFIRM_IDLE_SECONDS = 1.0, 0.2
_STATUS_SECONDS = 5.0
#: A server that has been silent for this long is asked for a reply.
_SILENT_SECONDS = 0.7
_STOP_SECONDS = 10.0
#: Maximum time that a stop waits for a service without which the open transaction can't continue.
_STOP_WAITING_SECONDS = 2.0
#: Maximum read-ahead, to build the routes of new tables together.
_AHEAD_FRAMES, _AHEAD_BYTES = 2_000, 1 << 20
_STOP_OUTAGE_SECONDS = 2.0
#: Maximum number of frames per turn: frames of skipped rows never fill a batch.
_FRAMES_A_TURN = 20_000


class StreamSession:
    """One session of streaming, from its START_REPLICATION until it ends or breaks."""

    def __init__(
        self,
        context: RelayContext,
        stream: ReplicationStream,
        acks: Acknowledgements,
        target_lsn: int | None,
        backfill: StreamHook | None = None,
    ) -> None:
        """``target_lsn``: end once this is confirmed and nothing is due. ``backfill`` adds backfilled rows.

        "Nothing is due" means that no backfill is left, and that the relay has finished comparing its tables.
        """
        self._context = context
        self._stream = stream
        self._acks = acks
        self._target = target_lsn
        self._recorder = context.recorder
        self._batch = OutgoingBatch(context.sink, acks, context.report, context.recorder)
        self.rows = RowHandler(context, self._batch, self._read_ahead)
        self._runs = BulkRows(self.rows, self._batch, context.samples, context.recorder)
        self._open = OpenTransaction(self._batch, self.rows, context.report.transaction_log)
        self._backfill = backfill
        self._streamed = context.streamed
        #: Everything that commits before this LSN was read.
        self._passed = 0
        self._confirmed = 0
        self._confirmed_at = 0.0
        self._status_sent_at = 0.0
        self._stop_requested_at = 0.0
        self._status_seconds = _STATUS_SECONDS
        #: Up to this LSN the relay waits for each batch, to find the row that Kafka refuses.
        self.careful_until = 0
        #: True if each batch ends with its transaction: the slot can then stop right before a refused row.
        self._by_transaction = False
        self.handlers = FrameHandlers(
            {
                ord("B"): self._on_begin,
                ord("C"): self._on_commit,
                ord("Y"): self._on_nothing,
                ord("O"): self._on_nothing,
                ord("M"): self._on_nothing,
                **self.rows.handlers,
            }
        )

    def run(self) -> None:
        """Relay until the target is confirmed or a stop is requested.

        Raises Redrive if messages were not delivered, ConnectionFailed or SlotLost if the stream breaks,
        RowError if a row ends the relay, and RefusedError if a topic rejects all rows.
        """
        if self._stream.patience:
            # The server requests a reply after half of its timeout, but the relay may not be reading then.
            self._status_seconds = min(_STATUS_SECONDS, self._stream.patience / 4)
        if self.careful_until:
            self._batch.careful = BatchBisector(self._context.sink, self._context.policy, self.while_settling)
            self._by_transaction = self._context.settings.on_error == "exit"
        # Requests for a reply in an earlier session need no answer any more.
        self._context.report.heard_at = time.monotonic()
        if self._backfill is not None:
            self._backfill.begin_session(self)
        try:
            self._loop()
        except StopRequested:
            pass
        except (RowError, RefusedError):
            self._finish()
            raise
        self._finish()

    def _loop(self) -> None:
        report = self._context.report
        while not self._is_at_end():
            if self._is_time_to_stop():
                return
            if not self._step() and self._acks.is_idle:
                report.account.turn_to("read")
                self._stream.wait(self._backfill.pause if self._backfill is not None else 0.25)

    def _is_at_end(self) -> bool:
        context = self._context
        if self._target is None or self._acks.confirmed < self._target or context.report.state == "snapshot":
            return False
        return self._backfill is None or not self._backfill.is_due

    def _is_time_to_stop(self, seconds: float = _STOP_SECONDS) -> bool:
        """Return whether to stop; after a request, the open transaction may take ``seconds`` to end.

        A restart then has nothing to repeat.
        """
        if not self._context.stop_requested():
            return False
        self._stop_requested_at = self._stop_requested_at or time.monotonic()
        return not self._open.is_open or time.monotonic() > self._stop_requested_at + seconds

    def pulse(self, seconds: float) -> None:
        """Wait, confirm to the server and process deliveries meanwhile. Raises StopRequested and Redrive."""
        self._context.sink.poll(seconds)
        self._settle(idle=False)
        if self._is_time_to_stop(_STOP_WAITING_SECONDS):
            raise StopRequested

    # -- for backfilled rows: see `bwtui.relay.backfill.backfill.BackfillStream` -----------------------------

    @property
    def batch(self) -> OutgoingBatch:
        """The batch that rows are added to."""
        return self._batch

    def promise(self) -> Callable[[], bool]:
        """Return a function that returns whether everything recorded so far is on the disk."""
        return self._recorder.promise() if self._recorder is not None else lambda: True

    def ask_position(self) -> None:
        """Have the server report its position in a keepalive."""
        self._stream.send_status(self._confirmed, answer=True)

    def without_care(self) -> None:
        """Leave careful mode in a session that began with it."""
        self.careful_until = 0
        self._by_transaction = False
        self._batch.careful = None

    @property
    def begun_lsn(self) -> int:
        """The commit LSN of the newest transaction of which anything was read."""
        return self.rows.commit_lsn

    def end(self) -> None:
        """Send the confirmed LSN to the server once more, and end the session. Raises ConnectionFailed."""
        self._confirm(time.monotonic())
        with self._context.report.account.during("ending"):
            self._stream.end()

    def abandon(self) -> None:
        """Close the session at once; does nothing if `run` ended the session normally."""
        if self._backfill is not None:
            self._backfill.end_session()
        self._stream.finish()
        self._acks.close()
        # The batch that was not handed over yet is not among the spans of `Acknowledgements`.
        self._batch.span.settle_sampled(0.0)
        self._open.close()
        # The next server may lack changes that were sent and never confirmed.
        with self._context.report.account.during("state"):
            self._context.checkpoint.remember_sent(self._batch.sent_lsn)

    # -- one turn of the loop ------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Read a batch, hand it over, and confirm; return whether there was anything to read."""
        report = self._context.report
        account = report.account
        account.turn_to("work")
        self._context.samples.refill()
        begun = time.monotonic()
        has_data = self._read()
        self._batch.gather(self._read, self._ends_at_commit)
        self._batch.flush()
        if self._streamed.is_full:
            self._streamed.tidy()
        if self._backfill is not None:
            seconds, at_boundary = time.monotonic() - begun, not self._open.is_open
            self._backfill.turn(self._passed, seconds, at_boundary=at_boundary, is_idle=not has_data)
        if self.careful_until and self._acks.advance() >= self.careful_until:
            self.without_care()
            report.recovered(REFUSED)
        if has_data:
            report.heard_at = time.monotonic()
        else:
            if self._stream.arrived_at > report.heard_at:
                # Part of a large row, which is returned once it is complete.
                report.heard_at = report.partial_at = self._stream.arrived_at
            self._call()
            if not self._acks.is_idle:
                # Deliveries and new data both end this wait soon: the stream's socket, or 5 ms.
                account.turn_to("read")
                self._stream.wait(0.005)
        # Delivery reports are processed here, and messages that had to wait for their turn are handed over.
        account.turn_to("produce")
        self._context.sink.poll(0)
        account.turn_to("work")
        self._settle(idle=not has_data)
        while self._acks.bytes_in_flight > IN_FLIGHT_BYTES or self._context.sink.queued() > IN_FLIGHT_ROWS:
            account.turn_to("room")
            self._context.sink.poll(0.02)
            self._settle(idle=False)
            if self._is_time_to_stop():
                break
        return has_data

    def _ends_at_commit(self) -> bool:
        """Return whether each batch must end with a transaction."""
        return self._by_transaction or (self._backfill is not None and self._backfill.wants_boundary)

    def _read(self) -> bool:
        """Handle frames until the turn is full or no more have arrived; return False if there was none."""
        batch, handlers = self._batch, self.handlers
        record = self._recorder.frames.append if self._recorder is not None else None
        by_transaction = self._ends_at_commit()
        frames = self._stream.frames()
        first = next(frames, None)
        if first is None:
            return False
        # Measured only now: a row can't be received before it was committed.
        batch.received = time.monotonic()
        arrived = chain((first,), islice(frames, _FRAMES_A_TURN))
        for data in self._runs.between(arrived, handlers):
            if data[0] == XLOG_DATA:
                try:
                    is_skipped = handlers[data[PAYLOAD_OFFSET]](data)
                except RowError:
                    if record is not None and batch.has_part():
                        # The tombstone of its old key is sent, so the change is recorded.
                        record(data)
                    raise
                if record is not None and not is_skipped:
                    record(data)
                    batch.held += len(data)
                if batch.is_full() or (by_transaction and batch.span.lsn is not None):
                    return True
            else:
                self._on_keepalive(data)
        return True

    def _read_ahead(self) -> Sequence[bytes]:
        return self._stream.read_ahead(_AHEAD_FRAMES, _AHEAD_BYTES)

    def _settle(self, *, idle: bool) -> None:
        """Process deliveries, and confirm to the server when it is due."""
        self._check_session()
        # In careful mode everything except dead letters is settled here, and those belong to their batch.
        if self._batch.careful is None:
            failures = self._context.sink.take_failures()
            if failures and self._backfill is not None:
                failures = self._backfill.claim_failures(failures)
            failures = self._context.policy.undelivered(failures)
            if failures:
                raise RestartFromConfirmed(failures)
        report, acks = self._context.report, self._acks
        if self._recorder is not None:
            self._recorder.settle(idle=idle and not acks.bytes_in_flight)
        acks.advance()
        report.outage(self._context.destination.service.outage())
        report.confirmed_lsn = acks.confirmed
        report.take_deliveries(self._context.sink, acks)
        now = report.settled_at
        pause = _CONFIRM_IDLE_SECONDS if idle and acks.is_idle else _CONFIRM_SECONDS
        moved = acks.confirmed > self._confirmed and now - self._confirmed_at >= pause
        if moved:
            self._confirm(now)
        self._send_due_status()

    def _check_session(self) -> None:
        """Raise ConnectionFailed if the stream needs a new session.

        After a suspension another relay may have sent newer rows.
        """
        if (suspension := self._context.suspension) is not None and (seconds := suspension.take()):
            raise ConnectionFailed(
                f"the relay was suspended for {seconds:.0f} s, and re-reads from the slot's position",
                "if another relay has taken over the slot, stop one of the two",
            )
        if self._context.coverage.is_stale(self._confirmed):
            raise ConnectionFailed(
                "partitions were attached or detached: this session may send their rows under former names",
                "no action needed: the relay reconnects and compares the tables",
            )

    def _send_due_status(self) -> None:
        """Send a status to the server if it is due; called wherever the stream is not read for a while."""
        now = time.monotonic()
        if now - self._status_sent_at >= self._status_seconds:
            self._confirm(now)

    def _call(self) -> None:
        """Ask a silent server for a reply, once: a blocked walsender looks like an idle one."""
        report, now = self._context.report, time.monotonic()
        if report.called_at <= report.heard_at <= now - _SILENT_SECONDS:
            self._stream.send_status(self._confirmed, answer=True)
            report.called_at = now

    def _confirm(self, now: float) -> None:
        """Store the LSN first, then send it: see `bwtui.relay.slot_checkpoint`."""
        if self._stream.warning:
            raise changes_skipped(self._stream.warning)
        lsn = self._acks.confirmed
        if lsn > self._confirmed:
            changed, sent = bool(self.begun_lsn), self._batch.sent_lsn
            with self._context.report.account.during("state"):
                self._context.checkpoint.remember(lsn, changed=changed, sent_lsn=sent)
            self._confirmed = lsn
            self._confirmed_at = now
        self._status_sent_at = now
        self._stream.send_status(self._confirmed)

    def while_settling(self) -> None:
        """Keep the server informed while waiting for a batch. Raises StopRequested and ConnectionFailed."""
        self._check_session()
        check_stop(self._context.stop_requested)
        self._context.report.take_deliveries(self._context.sink, self._acks)
        self._send_due_status()

    def _finish(self) -> None:
        """Wait for deliveries in flight, confirm them, and end the stream normally."""
        self._batch.careful = None
        self._batch.flush()
        self._settle_all()
        self._context.report.confirmed_lsn = self._acks.confirmed
        self.end()

    def _settle_all(self) -> None:
        """Wait until messages in flight are delivered and recorded, within the time that a stop may take."""
        sink, acks, report = self._context.sink, self._acks, self._context.report
        is_away = self._context.destination.service.outage() is not None
        deadline = time.monotonic() + (_STOP_OUTAGE_SECONDS if is_away else _STOP_SECONDS)
        # Not `poll`: it would wait forever for messages that an ended producer holds back.
        with report.account.during("settling"):
            while sink.queued() and time.monotonic() < deadline:
                sink.flush(0.05)
                acks.advance()
                report.take_deliveries(sink, acks)
                self._send_due_status()
        sink.poll(0)
        acks.advance()
        with report.account.during("ledger"):
            while acks.waits_for_ledger and time.monotonic() < deadline:
                if self._recorder is not None:
                    self._recorder.settle(idle=True)
                sink.poll(0.01)
                self._send_due_status()
                acks.advance()
                report.take_deliveries(sink, acks)
        report.take_deliveries(sink, acks)

    # -- frames --------------------------------------------------------------------------------------------

    def _on_keepalive(self, data: bytes) -> None:
        wal_end, reply_requested = parse_keepalive(data)
        self._context.report.server_lsn = max(self._context.report.server_lsn, wal_end)
        if not self._open.is_open:
            self._batch.flush()
            self._acks.keepalive(wal_end)
            self._passed = max(self._passed, wal_end)
        if reply_requested:
            self._acks.advance()
            self._confirm(time.monotonic())

    def _on_begin(self, data: bytes) -> bool | None:
        self.rows.begin(data)
        self._streamed.note(self.rows.xid)
        self._open.is_open = True
        return None

    def _on_commit(self, data: bytes) -> bool | None:
        _, end_lsn = _commit(data, BODY_OFFSET + 1)
        self._batch.commit(end_lsn)
        self._passed = end_lsn
        self._open.commit()
        self._open.is_open = False
        report = self._context.report
        report.transactions += 1
        report.received_lsn = end_lsn
        report.commit_time = self.rows.timestamp / 1000
        return None

    def _on_nothing(self, data: bytes) -> bool | None:
        """Skip TYPE, ORIGIN and MESSAGE, which contain nothing that a row needs."""
        return None
