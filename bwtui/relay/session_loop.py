"""Following the stream across sessions: connecting, reconnecting, and reading again after failures."""

import contextlib
import gc
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from psycopg import pq

from bwtui.blocking import check_stop
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, SlotLost
from bwtui.model.events import event
from bwtui.model.lsn import format_lsn
from bwtui.relay.ack import Acknowledgements
from bwtui.relay.backfill.sent_transactions import StreamOrigin
from bwtui.relay.backfill.stream_hook import StreamHook
from bwtui.relay.batch_bisector import RestartFromConfirmed
from bwtui.relay.context import REFUSED, RelayContext
from bwtui.relay.promotion.former_primary import refuse_former
from bwtui.relay.routes.publication_check import PublicationCheck, PublicationStates
from bwtui.relay.session import StreamSession
from bwtui.relay.side_topics.transaction_boundaries import TransactionBoundaries, form_of
from bwtui.relay.suspension import SuspensionDetector
from bwtui.source.chunks.visibility import running_transactions
from bwtui.source.failover.stream_server import ReachedServer, reached_server
from bwtui.source.preflight import wait_for_release
from bwtui.source.raw.session import ServerError, connect_raw
from bwtui.source.raw.stream import ReplicationStream
from bwtui.source.raw.timeline import ENDLESS, ServerIdentity, identify
from bwtui.source.slot import SlotState, check_readable, slot_state

_log = logging.getLogger(__name__)
_RECONNECT_SECONDS = 1.0


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
        on_phase: Callable[[StreamSession | None, str], None],
        backfill: StreamHook | None = None,
    ) -> None:
        """``on_phase`` is called with each session, and with the slot."""
        self._settings = context.settings
        self._report = context.report
        self._context = context
        self._on_phase = on_phase
        self._backfill = backfill
        self._session: StreamSession | None = None
        self._has_streamed = False
        #: The LSN up to which the next session sends one batch at a time.
        self._careful_until = 0
        self._published = PublicationCheck(self._settings.publication_name, self._report, context.checkpoint)

    def run(self, publications: tuple[str, ...], target: int | None) -> None:
        """Stream, and start a new session after every failure that passes on its own.

        Each session begins at the slot's position on the server that answers, and nowhere else: this may be a
        different server, an older copy or a promoted standby, on which nothing is confirmed yet.
        """
        # First: a status taken in between would show the previous activity as the reason why streaming waits.
        self._report.detail = ""
        if self._report.state != "starting":
            self._begin_phase()
        recall = self._context.destination.recall
        with self._late_records(), SuspensionDetector(recall.hold_back) as self._context.suspension:
            recall.before_sending(self._context.suspension.look)
            self._follow(publications, target)

    def _late_records(self) -> contextlib.AbstractContextManager[object]:
        """Return the context that detects late records and other producers.

        With --exactly-once Kafka fences producers of late records.
        """
        late = self._context.late
        if late is None:
            return contextlib.nullcontext()
        self._context.patience.ask(self._context.destination.service.name, late.begin)
        return late

    def _follow(self, publications: tuple[str, ...], target: int | None) -> None:
        context = self._context
        form = form_of(context)
        while True:
            # Objects of a broken session form reference cycles; see `bwtui.cycles`.
            gc.collect()
            try:
                self._report.account.turn_to("connect")
                stream, confirmed = self._open_stream(publications)
                if self._report.state == "starting":
                    # Not earlier: the first session's queries may end the relay after a supervisor was
                    # already notified that it started.
                    self._begin_phase()
                self._has_streamed = True
                self._report.recovered("PostgreSQL")
                self._report.sessions += 1
                acks = Acknowledgements(confirmed, context.recorder, self._report.acknowledged)
                if context.position_store is not None:
                    # The recording begins once the position in Kafka is determined.
                    context.position_store.start_lsn = confirmed
                elif context.recorder is not None:
                    context.recorder.begin_pass("stream", confirmed)
                streaming = StreamSession(context, stream, acks, target, self._backfill)
                streaming.careful_until = self._careful_until
                if form is not None:
                    TransactionBoundaries(form, self._settings.transaction_topic, streaming)
                context.toast.begin_session()
                self._enter(streaming)
                self._report.detail = ""
                if context.orphaned_keys is not None:
                    context.orphaned_keys.begin()
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
                    context.checkpoint.remember(acks.advance(), changed=bool(self._session.begun_lsn))
                self._report.detail = f"waiting for PostgreSQL: {error.message}"
                self._report.account.turn_to("connect")
                self._context.wait(_RECONNECT_SECONDS)
            finally:
                if self._session is not None:
                    self._session.abandon()
                context.patience.server.leave()
                self._enter(None)

    def _begin_phase(self) -> None:
        self._report.state = self._backfill.phase if self._backfill is not None else "streaming"

    def _enter(self, session: StreamSession | None) -> None:
        self._session = session
        self._on_phase(session, self._settings.slot)

    def _open_stream(self, publications: tuple[str, ...]) -> tuple[ReplicationStream, int]:
        """Start streaming; return the stream and its confirmed LSN: see `SlotCheckpointStore.start_lsn`.

        All queries run in the stream's own session, since another server may answer the next one.
        """
        calls = self._context.patience.calls
        answer = calls.make(partial(self._ask, publications))
        try:
            # A missing slot on a server of another cluster says nothing about this relay's slot.
            self._context.checkpoint.check_cluster(answer.server)
            refuse_former(self._settings, self._context.checkpoint, answer.server.timeline)
            # Another consumer may have moved the slot while the connection was down.
            self._context.checkpoint.check(answer.slot)
            assert answer.slot is not None
            check_readable(answer.slot, answer.connection.server_version)
            start_lsn = self._context.checkpoint.start_lsn(answer.server, answer.slot)
            make_failover = self._context.failover_slot.is_wanted(
                self._settings, self._context.checkpoint, answer.server, answer.slot
            )
            self._check_history(answer.server, answer.slot)
            self._published.take(publications, answer.published)
            server = answer.server
            origin = StreamOrigin(server.system_identifier, server.timeline, server.in_recovery)
            self._context.streamed.begin(origin, answer.running)
            # A different server may answer this time; queries alongside the stream go to the same one.
            self._context.patience.begin_session(answer.reached)
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
                self._context.failover_slot.make(connection, self._settings.slot, self._report)
            return ReplicationStream(connection, self._settings.slot, publications, start_lsn=start_lsn)
        except BaseException:
            connection.finish()
            raise

    def _ask(self, publications: tuple[str, ...]) -> _SessionStart:
        """Query, in a new session and a helper thread, what decides whether to continue; change nothing."""
        connection = connect_raw(self._settings.postgres)
        try:
            server, state = identify(connection), self._released(connection)
            reached = reached_server(connection, self._settings.postgres)
            # Before anything is read: the previous session may have sent changes that are not visible yet.
            running = running_transactions(connection)
            published = self._published.ask(connection, publications)
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
        if context.position_store is not None:
            context.position_store.server = server
        # A synchronized slot lies before the fork: everything that this server has beyond the fork is read
        # from it. But a position in Kafka that lies after the fork would cause those changes to be skipped.
        is_promoted = bool(state.synced) and context.checkpoint.is_promoted(server)
        accept = self._settings.accept_divergence or is_promoted
        accept = accept and not self._settings.exactly_once
        common_end = context.checkpoint.common_end(server, accept=accept)
        if common_end < ENDLESS:
            self._note_lacking(server, common_end)
            if context.recorder is not None:
                context.recorder.go_back(common_end)
            # Dropped rows are recognized by their LSN, which may belong to a different row on this server.
            context.policy.forget()
            self._report.transaction_log.go_back(common_end)
            # Later LSNs may never arrive here, and careful mode that lasted until then would not end.
            self._report.received_lsn = min(self._report.received_lsn, common_end)
            self._careful_until = min(self._careful_until, common_end)
        note = context.checkpoint.take_over(server, state, common_end)
        if note is not None:
            _log.warning("%s", note, extra=event("slot_differs"))
            hint = "topics keep rows that the server lacks; 'bwtui verify --database' shows them"
            self._report.error("notice", RefusedError(note, hint))

    def _note_lacking(self, server: ServerIdentity, common_end: int) -> None:
        """Record the changes that topics have and ``server`` lacks, before anything is read from it."""
        last, naming = self._context.checkpoint.last, self._context.orphaned_keys
        if last is None or last.sent() <= common_end:
            return
        self._context.coverage.mark_all(
            "may have rows in its topic that the new primary lacks", has_extra=True, since=common_end
        )
        # Without a known history there is no such range: it could be everything, or nothing.
        if naming is None or not common_end:
            return
        service = self._context.destination.service.name
        naming.note(
            common_end, last.sent(), server.timeline, lambda call: self._context.patience.ask(service, call)
        )

    def _recover(self, session: StreamSession, acks: Acknowledgements, redrive: RestartFromConfirmed) -> int:
        """Wait until nothing is in flight; return the LSN up to which to use careful mode."""
        sink, recorder = self._context.sink, self._context.recorder
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
        with self._report.account.during("ledger"):
            while acks.waits_for_ledger:
                # Rows that are recorded late would be read, and sent, a second time.
                if recorder is not None:
                    recorder.settle()
                check_stop(self._context.stop_requested)
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
        destination = self._context.destination
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
        report, context, sink = self._report, self._context, self._context.sink
        # With --exactly-once a commit waits for the recording's disk, and would wait forever for a disk
        # failure that nothing checks for.
        recorder = context.recorder if context.position_store is not None else None
        with report.account.during("settling"):
            while not sink.flush(0.2):
                if recorder is not None:
                    recorder.settle(idle=True)
                check_stop(context.stop_requested)
                report.take_deliveries(sink)
        report.in_flight = 0

    def _waiting(self, detail: str) -> None:
        self._report.detail = detail
        check_stop(self._context.stop_requested)
