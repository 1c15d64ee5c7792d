"""The stream of one slot: sessions read frames, send batches, and confirm LSNs to the server.

`SessionLoop` connects, reconnects, and reads again after failures; each `StreamSession` relays from its
START_REPLICATION until it ends or breaks. One thread does all of it. Nothing is done once per row that can be
done once per batch.
"""

import contextlib
import gc
import logging
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

from psycopg import pq

from bwtui.blocking import StopRequested, check_stop
from bwtui.encode.names import subject_names
from bwtui.encode.transaction_metadata import KEY_SCHEMA, VALUE_SCHEMA, MetadataEncoder
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, RowError, SlotLost
from bwtui.model.events import event
from bwtui.model.lsn import NO_COMMIT, format_lsn
from bwtui.pgoutput.frames import BODY_OFFSET, PAYLOAD_OFFSET, XLOG_DATA
from bwtui.relay.history.promotion import refuse_former
from bwtui.relay.routes.publications import PublicationCheck, PublicationStates
from bwtui.relay.rows.batch import IN_FLIGHT_BYTES, IN_FLIGHT_ROWS, OutgoingBatch
from bwtui.relay.rows.batch_bisector import BatchBisector, RestartFromConfirmed
from bwtui.relay.rows.chunk_window import StreamOrigin
from bwtui.relay.rows.side_topics import TransactionBoundaries
from bwtui.relay.state.ack import Acknowledgements
from bwtui.relay.stream.context import REFUSED, RelayContext
from bwtui.relay.stream.row_handler import LEFT_OUT, BulkRows, FrameFilter, FrameHandlers, RowHandler
from bwtui.relay.stream.stream_hook import StreamHook
from bwtui.relay.stream.suspension import SuspensionDetector
from bwtui.source.preflight import wait_for_release
from bwtui.source.raw_session import ServerError, connect_raw, execute_raw
from bwtui.source.raw_stream import (
    ENDLESS,
    ReachedServer,
    ReplicationStream,
    ServerIdentity,
    changes_skipped,
    identify,
    parse_keepalive,
    reached_server,
)
from bwtui.source.slot import SlotState, check_readable, slot_state
from bwtui.source.snapshot import RUNNING_SQL

_log = logging.getLogger(__name__)
_commit = struct.Struct(">QQ").unpack_from

#: Interval at which the server receives the confirmed LSN: maximum, and when there is nothing else to do.
_CONFIRM_SECONDS, _CONFIRM_IDLE_SECONDS = 1.0, 0.2
_RECONNECT_SECONDS = 1.0
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


class _SessionStart(NamedTuple):
    """Facts that a server reports in a new session."""

    connection: pq.abc.PGconn
    server: ServerIdentity
    reached: ReachedServer
    slot: SlotState | None
    published: PublicationStates
    #: Transactions that were in progress.
    running: set[int]


class SessionLoop:
    """The stream of one slot, for as many sessions as it takes."""

    def __init__(
        self,
        context: RelayContext,
        on_phase: "Callable[[StreamSession | None, str], None]",
        backfill: StreamHook | None = None,
    ) -> None:
        """``on_phase`` is called with each session, and with the slot."""
        self._settings = context.run.settings
        self._report = context.run.report
        self._context = context
        self._on_phase = on_phase
        self._backfill = backfill
        self._session: StreamSession | None = None
        self._has_streamed = False
        #: The LSN up to which the next session sends one batch at a time.
        self._careful_until = 0
        self._published = PublicationCheck(
            self._settings.publication_name, self._report, context.history.checkpoint
        )

    def run(self, publications: tuple[str, ...], target: int | None) -> None:
        """Stream, and start a new session after every failure that passes on its own.

        Each session begins at the slot's position on the server that answers, and nowhere else: this may be a
        different server, an older copy or a promoted standby, on which nothing is confirmed yet.
        """
        # First: a status taken in between would show the previous activity as the reason why streaming waits.
        self._report.detail = ""
        if self._report.state != "starting":
            self._begin_phase()
        recall = self._context.services.destination.recall
        with self._late_records(), SuspensionDetector(recall.hold_back) as suspension:
            recall.before_sending(suspension.check)
            self._follow(publications, target, suspension)

    def _late_records(self) -> contextlib.AbstractContextManager[object]:
        """Return the context that detects late records and other producers."""
        late = self._context.history.late
        if late is None:
            return contextlib.nullcontext()
        self._context.services.patience.call(self._context.services.destination.service.name, late.begin)
        return late

    def _follow(
        self, publications: tuple[str, ...], target: int | None, suspension: SuspensionDetector
    ) -> None:
        context = self._context
        form = _form_of(context)
        while True:
            # Objects of a broken session form reference cycles; see `bwtui.cycles`.
            gc.collect()
            try:
                self._report.clock.turn_to("connect")
                stream, confirmed = self._open_stream(publications)
                if self._report.state == "starting":
                    # Not earlier: the first session's queries may end the relay after a supervisor was
                    # already notified that it started.
                    self._begin_phase()
                self._has_streamed = True
                self._report.recovered("PostgreSQL")
                self._report.sessions += 1
                acks = Acknowledgements(confirmed, context.output.recorder, self._report.acknowledged)
                context.history.transactions.begin_pass(confirmed, context.output.recorder)
                streaming = StreamSession(
                    context,
                    stream,
                    acks,
                    target,
                    self._backfill,
                    form=form,
                    suspension=suspension,
                    careful_until=self._careful_until,
                )
                context.services.toast.begin_session()
                self._enter(streaming)
                self._report.detail = ""
                if context.history.orphaned_keys is not None:
                    context.history.orphaned_keys.begin()
                streaming.run()
                return
            except RestartFromConfirmed as redrive:
                self._careful_until = max(self._recover(streaming, acks, redrive), streaming.begun_lsn + 1)
            except SlotLost as error:
                error.in_stream = self._session is not None
                raise
            except ConnectionFailed as error:
                self._report.error("outage", error, dependency="PostgreSQL")
                if self._session is not None:
                    self._careful_until = self._session.careful_until
                    self.call_back(error)
                    # Another server may answer next, and its slot does not have this position.
                    context.history.checkpoint.remember(acks.advance(), changed=bool(self._session.begun_lsn))
                self._report.detail = f"waiting for PostgreSQL: {error.message}"
                self._report.clock.turn_to("connect")
                self._context.wait(_RECONNECT_SECONDS)
            finally:
                if self._session is not None:
                    self._session.abandon()
                context.services.patience.server.leave()
                self._enter(None)

    def _begin_phase(self) -> None:
        self._report.state = self._backfill.phase if self._backfill is not None else "streaming"

    def _enter(self, session: "StreamSession | None") -> None:
        self._session = session
        self._on_phase(session, self._settings.slot)

    def _open_stream(self, publications: tuple[str, ...]) -> tuple[ReplicationStream, int]:
        """Start streaming; return the stream and its confirmed LSN: see `SlotCheckpointStore.start_lsn`.

        All queries run in the stream's own session, since another server may answer the next one.
        """
        calls = self._context.services.patience.calls
        answer = calls.make(partial(self._prepare_session, publications))
        try:
            # A missing slot on a server of another cluster says nothing about this relay's slot.
            self._context.history.checkpoint.check_cluster(answer.server)
            refuse_former(self._settings, self._context.history.checkpoint, answer.server.timeline)
            # Another consumer may have moved the slot while the connection was down.
            self._context.history.checkpoint.check(answer.slot)
            assert answer.slot is not None
            check_readable(answer.slot, answer.connection.server_version, self._settings.drop_command)
            start_lsn = self._context.history.checkpoint.start_lsn(answer.server, answer.slot)
            make_failover = self._context.history.failover_slot.is_requested(
                self._settings, self._context.history.checkpoint, answer.server, answer.slot
            )
            self._check_history(answer.server, answer.slot)
            self._published.take(publications, answer.published)
            server = answer.server
            origin = StreamOrigin(server.system_identifier, server.timeline, server.in_recovery)
            self._context.history.streamed.begin(origin, answer.running)
            # A different server may answer this time; queries alongside the stream go to the same one.
            self._context.services.patience.begin_session(answer.reached)
        except BaseException:
            answer.connection.finish()
            raise
        # From here on only the session's thread uses it, and a stop does not wait for that thread.
        start = partial(self._start, answer.connection, publications, start_lsn, make_failover=make_failover)
        return calls.make(start), start_lsn

    def _start(
        self,
        connection: pq.abc.PGconn,
        publications: tuple[str, ...],
        start_lsn: int,
        *,
        make_failover: bool,
    ) -> ReplicationStream:
        """Start streaming; the thread that does this also closes the session if it fails."""
        try:
            if make_failover:
                self._context.history.failover_slot.make(connection, self._settings.slot, self._report)
            return ReplicationStream(
                connection,
                self._settings.slot,
                publications,
                start_lsn=start_lsn,
                drop=self._settings.drop_command,
            )
        except BaseException:
            connection.finish()
            raise

    def _prepare_session(self, publications: tuple[str, ...]) -> _SessionStart:
        """Query, in a new session and a helper thread, what decides whether to continue; change nothing."""
        connection = connect_raw(self._settings.postgres)
        try:
            server, state = identify(connection), self._released(connection)
            reached = reached_server(connection, self._settings.postgres)
            # Before anything is read: the previous session may have sent changes that are not visible yet.
            running = {int(row[0] or 0) & 0xFFFFFFFF for row in execute_raw(connection, RUNNING_SQL)}
            published = self._published.read(connection, publications)
            return _SessionStart(connection, server, reached, state, published, running)
        except ServerError as error:
            connection.finish()
            raise ConnectionFailed(error.message, "check PostgreSQL's log") from error
        except BaseException:
            connection.finish()
            raise

    def _released(self, connection: pq.abc.PGconn) -> SlotState | None:
        try:
            return wait_for_release(lambda: slot_state(connection, self._settings.slot), self._waiting)
        except RefusedError as error:
            if not self._has_streamed:
                raise
            # The server has not noticed the end of our old connection, or another client reads the slot.
            raise ConnectionFailed(error.message, error.hint) from error

    def _check_history(self, server: ServerIdentity, state: SlotState) -> None:
        """Continue with ``server`` if it has all that was sent; see `SlotCheckpointStore.common_end`."""
        context = self._context
        context.history.transactions.server = server
        # A synchronized slot lies before the fork: everything that this server has beyond the fork is read
        # from it. But a position in Kafka that lies after the fork would cause those changes to be skipped.
        is_promoted = bool(state.synced) and context.history.checkpoint.is_promoted(server)
        accept = self._settings.accept_divergence or is_promoted
        accept = accept and not self._settings.exactly_once
        common_end = context.history.checkpoint.common_end(server, accept=accept)
        if common_end < ENDLESS:
            self._note_lacking(server, common_end)
            context.output.recorder.go_back(common_end)
            # Dropped rows are recognized by their LSN, which may belong to a different row on this server.
            context.output.policy.forget()
            self._report.transaction_log.go_back(common_end)
            # Later LSNs may never arrive here, and careful mode that lasted until then would not end.
            self._report.received_lsn = min(self._report.received_lsn, common_end)
            self._careful_until = min(self._careful_until, common_end)
        note = context.history.checkpoint.take_over(server, state, common_end)
        if note is not None:
            _log.warning("%s", note, extra=event("slot_differs"))
            hint = "topics keep rows that the server lacks; 'bwtui verify --database' shows them"
            self._report.error("notice", RefusedError(note, hint))

    def _note_lacking(self, server: ServerIdentity, common_end: int) -> None:
        """Record the changes that topics have and ``server`` lacks, before anything is read from it."""
        last, naming = self._context.history.checkpoint.last, self._context.history.orphaned_keys
        if last is None or last.sent() <= common_end:
            return
        self._context.history.coverage.mark_all(
            "may have rows in its topic that the new primary lacks", has_extra=True, since=common_end
        )
        # Without a known history there is no such range: it could be everything, or nothing.
        if naming is None or not common_end:
            return
        service = self._context.services.destination.service.name
        naming.note(
            common_end,
            last.sent(),
            server.timeline,
            lambda call: self._context.services.patience.call(service, call),
        )

    def _recover(
        self, session: "StreamSession", acks: Acknowledgements, redrive: RestartFromConfirmed
    ) -> int:
        """Wait until nothing is in flight; return the LSN up to which to use careful mode."""
        sink, recorder = self._context.output.sink, self._context.output.recorder
        self._report.detail = (
            f"re-reading the stream from {format_lsn(acks.confirmed)}: {redrive.failure.reason}"
        )
        self._drain()
        # The refusal of a row may be reported after the failures of messages that were held back for it.
        failure = min([redrive.failure, *sink.take_failures()], key=lambda failure: failure.is_outage)
        error = ConnectionFailed(
            f"a delivery failed, and the relay re-read the stream: {failure.reason}", failure.hint
        )
        self._report.error("delivery", error, dependency=REFUSED)
        acks.advance()
        with self._report.clock.during("ledger"):
            while acks.waits_for_ledger:
                # Rows that are recorded late would be read, and sent, a second time.
                recorder.settle()
                check_stop(self._context.run.stop_requested)
                sink.poll(0.01)
                acks.advance()
                self._report.take_deliveries(sink, acks)
        with contextlib.suppress(ConnectionFailed):
            # The next session begins at the slot's position.
            session.end()
        sink.discard(in_order=True)
        if failure.is_outage:
            self._context.wait(_RECONNECT_SECONDS)
        return self._report.received_lsn + 1

    def call_back(self, error: BwtuiError) -> None:
        """Hold back unsent messages of a lost session: their changes are read again, or compared.

        In the meantime another relay may own the slot, and send newer rows.
        """
        destination = self._context.services.destination
        destination.recall.hold_back()
        name = destination.service.name
        self._report.detail = f"waiting for {name} to acknowledge messages in flight: {error.message}"
        self._drain()
        destination.sink.discard(in_order=True)

    def _drain(self) -> None:
        """Wait, without a timeout, until everything in flight is delivered or has failed.

        Messages in flight may have arrived. A discarded message could still arrive, after newer rows of its
        key.
        """
        report, context, sink = self._report, self._context, self._context.output.sink
        # With --exactly-once a commit waits for the recording's disk, and would wait forever for a disk
        # failure that nothing checks for.
        with report.clock.during("settling"):
            while not sink.flush(0.2):
                context.history.transactions.settle(context.output.recorder)
                check_stop(context.run.stop_requested)
                report.take_deliveries(sink)
        report.in_flight = 0

    def _waiting(self, detail: str) -> None:
        self._report.detail = detail
        check_stop(self._context.run.stop_requested)


def _form_of(context: RelayContext) -> MetadataEncoder | None:
    """Return the format of transaction messages, or None without --transaction-topic.

    Raises StopRequested, RefusedError, and the errors of a registry.
    """
    settings = context.run.settings
    if not settings.transaction_topic:
        return None
    if settings.output_format != "avro":
        return MetadataEncoder()
    register = context.services.destination.registry.register
    subjects = subject_names(settings.transaction_topic)
    key_id, value_id = (
        context.services.patience.call("the schema registry", partial(register, subject, schema)).id
        for subject, schema in zip(subjects, (KEY_SCHEMA, VALUE_SCHEMA), strict=True)
    )
    return MetadataEncoder(key_id, value_id)


class StreamSession:
    """One session of streaming, from its START_REPLICATION until it ends or breaks."""

    def __init__(
        self,
        context: RelayContext,
        stream: ReplicationStream,
        acks: Acknowledgements,
        target_lsn: int | None,
        backfill: StreamHook | None = None,
        *,
        form: MetadataEncoder | None = None,
        suspension: SuspensionDetector | None = None,
        careful_until: int = 0,
    ) -> None:
        """``target_lsn``: end once this is confirmed and nothing is due. ``backfill`` adds backfilled rows.

        "Nothing is due" means that no backfill is left, and that the relay has finished comparing its tables.
        ``form``: the format of --transaction-topic. Up to the LSN ``careful_until`` the relay waits for each
        batch, to find the row that Kafka refuses.
        """
        self._context = context
        self._settings, self._report = context.run.settings, context.run.report
        self._stream = stream
        self._acks = acks
        self._target = target_lsn
        self._sink = context.output.sink
        self._recorder = context.output.recorder
        self._batch = OutgoingBatch(self._sink, acks, context.run.report, self._recorder)
        self.transaction = self._batch.transaction
        context.run.report.transaction_log.begin_session(self.transaction.so_far)
        topic = context.run.settings.transaction_topic
        self._boundaries = TransactionBoundaries(form, topic, self._batch) if form else None
        self.rows = RowHandler(context, self._batch, self._read_ahead, self._boundaries)
        #: Frames pass these in turn before they are handled; a filter that is over is removed.
        self.filters: list[FrameFilter] = []
        self._suspension = suspension
        self._runs = BulkRows(self.rows, self._batch, context.output.samples, self._recorder)
        self._backfill = backfill
        self._streamed = context.history.streamed
        #: Everything that commits before this LSN was read.
        self._passed = 0
        self._confirmed = 0
        self._confirmed_at = 0.0
        self._status_sent_at = 0.0
        self._stop_requested_at = 0.0
        self._status_seconds = _STATUS_SECONDS
        #: The newest transaction that an earlier session sent, until this one has passed it.
        self._to_come = context.history.checkpoint.commit_to_come(acks.confirmed)
        self._began_lsn = acks.confirmed
        self.careful_until = careful_until
        #: True if each batch ends with its transaction: the slot can then stop right before a refused row.
        self._by_transaction = False
        self._handlers = FrameHandlers(
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
            self._batch.bisector = BatchBisector(self._sink, self._context.output.policy, self.while_settling)
            self._by_transaction = self._settings.on_error == "exit"
        # Requests for a reply in an earlier session need no answer any more.
        self._report.heard_at = time.monotonic()
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
        report = self._report
        while not self._is_at_end():
            if self._is_time_to_stop():
                return
            if not self._step() and self._acks.is_idle:
                report.clock.turn_to("read")
                self._stream.wait(self._backfill.pause if self._backfill is not None else 0.25)

    def _is_at_end(self) -> bool:
        context = self._context
        if (
            self._target is None
            or self._acks.confirmed < self._target
            or context.run.report.state == "snapshot"
        ):
            return False
        return self._backfill is None or not self._backfill.is_due

    def _is_time_to_stop(self, seconds: float = _STOP_SECONDS) -> bool:
        """Return whether to stop; after a request, the open transaction may take ``seconds`` to end.

        A restart then has nothing to repeat.
        """
        if not self._context.run.stop_requested():
            return False
        self._stop_requested_at = self._stop_requested_at or time.monotonic()
        return not self.transaction.is_open or time.monotonic() > self._stop_requested_at + seconds

    def pulse(self, seconds: float) -> None:
        """Wait, confirm to the server and process deliveries meanwhile. Raises StopRequested and Redrive."""
        self._sink.poll(seconds)
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
        return self._recorder.promise()

    def ask_position(self) -> None:
        """Have the server report its position in a keepalive."""
        self._stream.send_status(self._confirmed, answer=True)

    def leave_careful_mode(self) -> None:
        """Leave careful mode in a session that began with it."""
        self.careful_until = 0
        self._by_transaction = False
        self._batch.bisector = None

    @property
    def begun_lsn(self) -> int:
        """The commit LSN of the newest transaction of which anything was read."""
        return self.transaction.commit_lsn

    def end(self) -> None:
        """Send the confirmed LSN to the server once more, and end the session. Raises ConnectionFailed."""
        self._confirm(time.monotonic())
        with self._report.clock.during("ending"):
            self._stream.end()

    def abandon(self) -> None:
        """Close the session at once; does nothing if `run` ended the session normally."""
        if self._backfill is not None:
            self._backfill.end_session()
        self._stream.finish()
        self._acks.close()
        # The batch that was not handed over yet is not among the spans of `Acknowledgements`.
        self._batch.span.settle_sampled(0.0)
        # The part of the open transaction that was read is read again.
        self._report.transaction_log.end_session()
        # The next server may lack changes that were sent and never confirmed.
        with self._report.clock.during("state"):
            sent = self._batch.sent_commit
            self._context.history.checkpoint.remember_sent(sent.end, sent)

    # -- one turn of the loop ------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Read a batch, hand it over, and confirm; return whether there was anything to read."""
        report = self._report
        clock = report.clock
        clock.turn_to("work")
        self._context.output.samples.refill()
        begun = time.monotonic()
        has_data = self._read()
        self._batch.gather(self._read, self._ends_at_commit)
        self._batch.flush()
        if self._streamed.is_full:
            self._streamed.tidy()
        if self._backfill is not None:
            seconds, at_boundary = time.monotonic() - begun, not self.transaction.is_open
            self._backfill.turn(self._passed, seconds, at_boundary=at_boundary, is_idle=not has_data)
        if self.careful_until and self._acks.advance() >= self.careful_until:
            self.leave_careful_mode()
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
                clock.turn_to("read")
                self._stream.wait(0.005)
        # Delivery reports are processed here, and messages that had to wait for their turn are handed over.
        clock.turn_to("produce")
        self._sink.poll(0)
        clock.turn_to("work")
        self._settle(idle=not has_data)
        while self._acks.bytes_in_flight > IN_FLIGHT_BYTES or self._sink.queued() > IN_FLIGHT_ROWS:
            clock.turn_to("room")
            self._sink.poll(0.02)
            self._settle(idle=False)
            if self._is_time_to_stop():
                break
        return has_data

    def _ends_at_commit(self) -> bool:
        """Return whether each batch must end with a transaction."""
        return self._by_transaction or (self._backfill is not None and self._backfill.wants_boundary)

    def _read(self) -> bool:
        """Handle frames until the turn is full or no more have arrived; return False if there was none."""
        batch, handlers = self._batch, self._handlers
        record = self._recorder.frames.append if self._recorder.is_recording else None
        by_transaction = self._ends_at_commit()
        frames = self._stream.frames()
        first = next(frames, None)
        if first is None:
            return False
        # Measured only now: a row can't be received before it was committed.
        batch.received = time.monotonic()
        arrived: Iterator[bytes] = chain((first,), islice(frames, _FRAMES_A_TURN))
        self.filters = [each for each in self.filters if not each.is_over]
        if self.filters:
            arrived = self._filtered(arrived)
        for data in self._runs.between(arrived):
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

    def _filtered(self, frames: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the frames that pass all filters."""
        for frame in frames:
            data: bytes | None = frame
            if frame[0] == XLOG_DATA:
                for each in self.filters:
                    data = data and each(data)
            if data is not None:
                yield data

    def _read_ahead(self) -> Sequence[bytes]:
        return self._stream.read_ahead(_AHEAD_FRAMES, _AHEAD_BYTES)

    def _settle(self, *, idle: bool) -> None:
        """Process deliveries, and confirm to the server when it is due."""
        self._check_session()
        # In careful mode everything except dead letters is settled here, and those belong to their batch.
        if self._batch.bisector is None:
            failures = self._sink.take_failures()
            if failures and self._backfill is not None:
                failures = self._backfill.claim_failures(failures)
            failures = self._context.output.policy.undelivered(failures)
            if failures:
                raise RestartFromConfirmed(failures)
        report, acks = self._report, self._acks
        self._recorder.settle(idle=idle and not acks.bytes_in_flight)
        acks.advance()
        report.outage(self._context.services.destination.service.outage())
        report.confirmed_lsn = acks.confirmed
        report.take_deliveries(self._sink, acks)
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
        if self._suspension is not None and (seconds := self._suspension.take()):
            raise ConnectionFailed(
                f"the relay was suspended for {seconds:.0f} s, and re-reads from the slot's position",
                "if another relay has taken over the slot, stop one of the two",
            )
        if self._context.history.coverage.is_stale(self._confirmed):
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
        report, now = self._report, time.monotonic()
        if report.called_at <= report.heard_at <= now - _SILENT_SECONDS:
            self._stream.send_status(self._confirmed, answer=True)
            report.called_at = now

    def _confirm(self, now: float) -> None:
        """Store the LSN first, then send it: see `bwtui.relay.history.slot_checkpoint`."""
        if self._stream.warning:
            raise changes_skipped(self._stream.warning, self._settings.drop_command)
        lsn = self._acks.confirmed
        if lsn > self._confirmed:
            changed, sent = bool(self.begun_lsn), self._batch.sent_commit
            with self._report.clock.during("state"):
                self._context.history.checkpoint.remember(lsn, changed=changed, sent_commit=sent)
            self._confirmed = lsn
            self._confirmed_at = now
        self._status_sent_at = now
        self._stream.send_status(self._confirmed)

    def while_settling(self) -> None:
        """Keep the server informed while waiting for a batch. Raises StopRequested and ConnectionFailed."""
        self._check_session()
        check_stop(self._context.run.stop_requested)
        self._report.take_deliveries(self._sink, self._acks)
        self._send_due_status()

    def _finish(self) -> None:
        """Wait for deliveries in flight, confirm them, and end the stream normally."""
        self._batch.bisector = None
        self._batch.flush()
        self._settle_all()
        self._report.confirmed_lsn = self._acks.confirmed
        self.end()

    def _settle_all(self) -> None:
        """Wait until messages in flight are delivered and recorded, within the time that a stop may take."""
        sink, acks, report = self._sink, self._acks, self._report
        is_away = self._context.services.destination.service.outage() is not None
        deadline = time.monotonic() + (_STOP_OUTAGE_SECONDS if is_away else _STOP_SECONDS)
        # Not `poll`: it would wait forever for messages that an ended producer holds back.
        with report.clock.during("settling"):
            while sink.queued() and time.monotonic() < deadline:
                sink.flush(0.05)
                acks.advance()
                report.take_deliveries(sink, acks)
                self._send_due_status()
        sink.poll(0)
        acks.advance()
        with report.clock.during("ledger"):
            while acks.waits_for_ledger and time.monotonic() < deadline:
                self._recorder.settle(idle=True)
                sink.poll(0.01)
                self._send_due_status()
                acks.advance()
                report.take_deliveries(sink, acks)
        report.take_deliveries(sink, acks)

    # -- frames --------------------------------------------------------------------------------------------

    def _on_keepalive(self, data: bytes) -> None:
        wal_end, reply_requested = parse_keepalive(data)
        self._report.server_lsn = max(self._report.server_lsn, wal_end)
        if not self.transaction.is_open:
            if self._to_come is not NO_COMMIT and self._to_come.end <= wal_end:
                self._lacks_commit()
            self._batch.flush()
            self._acks.keepalive(wal_end)
            self._passed = max(self._passed, wal_end)
        if reply_requested:
            self._acks.advance()
            self._confirm(time.monotonic())

    def _on_begin(self, data: bytes) -> bool | None:
        transaction = self.transaction
        transaction.begin(data)
        if self._boundaries is not None:
            self._boundaries.begin(transaction.xid, data)
        if self._to_come is not NO_COMMIT and self._to_come.end <= transaction.commit_lsn + 1:
            if self._to_come == (transaction.commit_lsn + 1, transaction.committed):
                self._to_come = NO_COMMIT
            else:
                self._lacks_commit()
        self._streamed.note(transaction.xid)
        return LEFT_OUT if transaction.is_repeated else None

    def _lacks_commit(self) -> None:
        """Mark every table: the stream has passed the LSN of a sent transaction, and does not have it."""
        at, self._to_come = format_lsn(self._to_come.end - 1), NO_COMMIT
        text = f"the server lacks a sent transaction, which committed at {at}: it may be an older copy"
        _log.warning("%s", text, extra=event("slot_differs"))
        hint = "no action needed: the relay compares all tables with their topics and sends what differs"
        self._report.error("notice", RefusedError(text, hint))
        reason = f"may have rows in its topic that are not in the table: {text}"
        self._context.history.coverage.mark_all(reason, has_extra=True, since=self._began_lsn)
        self._context.history.checkpoint.forget_commit()

    def _on_commit(self, data: bytes) -> bool | None:
        transaction = self.transaction
        if self._boundaries is not None:
            self._boundaries.end(transaction.xid, data, transaction.events, transaction.timestamp)
        _, end_lsn = _commit(data, BODY_OFFSET + 1)
        self._batch.commit(end_lsn)
        self._passed = end_lsn
        transaction.commit()
        report = self._report
        report.transactions += 1
        report.received_lsn = end_lsn
        report.commit_time = transaction.timestamp / 1000
        return LEFT_OUT if transaction.is_repeated else None

    def _on_nothing(self, data: bytes) -> bool | None:
        """Skip TYPE, ORIGIN and MESSAGE, which contain nothing that a row needs."""
        return None
