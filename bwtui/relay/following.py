"""Following the stream from session to session: connecting, connecting again, reading again what failed."""

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
from bwtui.relay.apart.boundaries import Boundaries, form_of
from bwtui.relay.backfill.beside import Beside
from bwtui.relay.backfill.streamed import Origin
from bwtui.relay.careful import Redrive
from bwtui.relay.context import REFUSED, RelayContext
from bwtui.relay.promotion.former import refuse_former
from bwtui.relay.routes.published import PublicationStates, Published
from bwtui.relay.streaming import Streaming
from bwtui.relay.suspension import Suspension
from bwtui.source.chunks.visibility import running_transactions
from bwtui.source.failover.stream_server import ReachedServer, reached_server
from bwtui.source.preflight import wait_for_release
from bwtui.source.raw.session import ServerError, connect_raw
from bwtui.source.raw.stream import ReplicationStream
from bwtui.source.raw.timeline import ENDLESS, Server, identify
from bwtui.source.slot import SlotState, check_readable, slot_state

_log = logging.getLogger(__name__)
_RECONNECT_SECONDS = 1.0


class _SessionStart(NamedTuple):
    """What a server says in a new session."""

    connection: pq.abc.PGconn
    server: Server
    reached: ReachedServer
    slot: SlotState | None
    published: PublicationStates
    #: Transactions that were under way.
    running: set[int]


class Following:
    """The stream of one slot, for as many sessions as it takes."""

    def __init__(
        self,
        context: RelayContext,
        on_phase: Callable[[Streaming | None, str], None],
        backfill: Beside | None = None,
    ) -> None:
        """``on_phase`` is called with each session, and the slot."""
        self._settings = context.settings
        self._report = context.report
        self._context = context
        self._on_phase = on_phase
        self._backfill = backfill
        self._session: Streaming | None = None
        self._has_streamed = False
        #: Up to where the next session goes one batch at a time.
        self._careful_until = 0
        self._published = Published(self._settings.publication_name, self._report, context.memory)

    def run(self, publications: tuple[str, ...], target: int | None) -> None:
        """Stream, and stream again after whatever passes by itself.

        Each session begins where the slot stands on the server that answers, and nowhere else: it may be
        another one, an older copy or a standby that was promoted, of which nothing is confirmed yet.
        """
        # First: a status in between would show what was done before as what streaming waits for.
        self._report.detail = ""
        if self._report.state != "starting":
            self._begin_phase()
        recall = self._context.destination.recall
        with self._late_records(), Suspension(recall.hold_back) as self._context.suspension:
            recall.before_sending(self._context.suspension.look)
            self._follow(publications, target)

    def _late_records(self) -> contextlib.AbstractContextManager[object]:
        """Return what looks for late records and other producers.

        With --exactly-once Kafka fences those who sent late records.
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
            # What is left of a session that broke refers to itself; see `bwtui.cycles`.
            gc.collect()
            try:
                self._report.account.turn_to("connect")
                stream, confirmed = self._open_stream(publications)
                if self._report.state == "starting":
                    # Not before: what the first session asks may end the relay, of which a supervisor would
                    # have said that it has started.
                    self._begin_phase()
                self._has_streamed = True
                self._report.recovered("PostgreSQL")
                self._report.sessions += 1
                acks = Acknowledgements(confirmed, context.recorder, self._report.acknowledged)
                if context.exactly is not None:
                    # What is recorded begins when it is known what Kafka has.
                    context.exactly.start_lsn = confirmed
                elif context.recorder is not None:
                    context.recorder.begin_pass("stream", confirmed)
                streaming = Streaming(context, stream, acks, target, self._backfill)
                streaming.careful_until = self._careful_until
                if form is not None:
                    Boundaries(form, self._settings.transaction_topic, streaming)
                context.toast.begin_session()
                self._enter(streaming)
                self._report.detail = ""
                if context.naming is not None:
                    context.naming.begin()
                streaming.run()
                return
            except Redrive as redrive:
                self._careful_until = max(self._recover(streaming, acks, redrive), streaming.begun_lsn + 1)
            except SlotLost as error:
                error.in_stream = self._session is not None
                raise
            except ConnectionFailed as error:
                self._report.error("outage", error, dependency="PostgreSQL")
                if self._session is not None:
                    self._careful_until = self._session.careful_until
                    self.call_back(error)
                    # Another server may answer next, whose slot does not know of it.
                    context.memory.remember(acks.advance(), changed=bool(self._session.begun_lsn))
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

    def _enter(self, session: Streaming | None) -> None:
        self._session = session
        self._on_phase(session, self._settings.slot)

    def _open_stream(self, publications: tuple[str, ...]) -> tuple[ReplicationStream, int]:
        """Start streaming; return the stream, and up to where it is confirmed: see `SlotMemory.start_lsn`.

        All is asked in the stream's own session, since another server may answer the next one.
        """
        calls = self._context.patience.calls
        answer = calls.make(partial(self._ask, publications))
        try:
            # Of another cluster's server a slot that is missing says nothing.
            self._context.memory.check_cluster(answer.server)
            refuse_former(self._settings, self._context.memory, answer.server.timeline)
            # Somebody may have moved the slot while the connection was gone.
            self._context.memory.check(answer.slot)
            assert answer.slot is not None
            check_readable(answer.slot, answer.connection.server_version)
            start_lsn = self._context.memory.start_lsn(answer.server, answer.slot)
            make_failover = self._context.failover_slot.is_wanted(
                self._settings, self._context.memory, answer.server, answer.slot
            )
            self._check_history(answer.server, answer.slot)
            self._published.take(publications, answer.published)
            server = answer.server
            origin = Origin(server.system_identifier, server.timeline, server.in_recovery)
            self._context.streamed.begin(origin, answer.running)
            # Another server may answer this time: what is asked beside the stream is asked there.
            self._context.patience.begin_session(answer.reached)
        except BaseException:
            answer.connection.finish()
            raise
        # From here on the session is its thread's alone, which a stop does not wait for.
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
        """Start streaming; the thread that does it also closes the session where it fails."""
        try:
            if make_failover:
                self._context.failover_slot.make(connection, self._settings.slot, self._report)
            return ReplicationStream(connection, self._settings.slot, publications, start_lsn=start_lsn)
        except BaseException:
            connection.finish()
            raise

    def _ask(self, publications: tuple[str, ...]) -> _SessionStart:
        """Ask, in a new session and a helper thread, what decides whether to go on; nothing is changed."""
        connection = connect_raw(self._settings.postgres)
        try:
            server, state = identify(connection), self._released(connection)
            reached = reached_server(connection, self._settings.postgres)
            # Before anything is read: the session before may have sent what is not visible yet.
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
            # The server has not noticed yet that our old connection is gone, or somebody else reads the slot.
            raise ConnectionFailed(error.message, error.hint) from error

    def _check_history(self, server: Server, state: SlotState) -> None:
        """Go on with ``server`` where it has what was sent; see `SlotMemory.common_end`."""
        context = self._context
        if context.exactly is not None:
            context.exactly.server = server
        # A slot that came along lies before the fork: all that this server has beyond is read from it. But a
        # position in Kafka that lies behind the fork would have it left out.
        came_along = bool(state.synced) and context.memory.is_promoted(server)
        accept = self._settings.accept_divergence or came_along
        accept = accept and not self._settings.exactly_once
        common_end = context.memory.common_end(server, accept=accept)
        if common_end < ENDLESS:
            self._note_lacking(server, common_end)
            if context.recorder is not None:
                context.recorder.go_back(common_end)
            # A dropped row is known again by its LSN, which may be another row's here.
            context.policy.forget()
            self._report.transaction_log.go_back(common_end)
            # What lies beyond may never come here: care that lasted until then would not end.
            self._report.received_lsn = min(self._report.received_lsn, common_end)
            self._careful_until = min(self._careful_until, common_end)
        note = context.memory.take_over(server, state, common_end)
        if note is not None:
            _log.warning("%s", note, extra=event("slot_differs"))
            hint = "topics keep what the server lacks: 'bwtui verify --database' says which rows"
            self._report.error("notice", RefusedError(note, hint))

    def _note_lacking(self, server: Server, common_end: int) -> None:
        """Remember what topics have that ``server`` lacks, before anything is read from it."""
        last, naming = self._context.memory.last, self._context.naming
        if last is None or last.sent() <= common_end:
            return
        self._context.coverage.mark_all(
            "may have rows in its topic that the new primary lacks", has_extra=True, since=common_end
        )
        # Where no history is known there is no such part: all could be that, or nothing.
        if naming is None or not common_end:
            return
        service = self._context.destination.service.name
        naming.note(
            common_end, last.sent(), server.timeline, lambda call: self._context.patience.ask(service, call)
        )

    def _recover(self, session: Streaming, acks: Acknowledgements, redrive: Redrive) -> int:
        """Let everything in flight end one way or the other; return the LSN up to which to go carefully."""
        sink, recorder = self._context.sink, self._context.recorder
        self._report.detail = f"reading again from {format_lsn(acks.confirmed)}: {redrive.failure.reason}"
        self._drain()
        # That a row was refused may be reported after what was held back for it.
        failure = min([redrive.failure, *sink.take_failures()], key=lambda failure: failure.is_outage)
        error = ConnectionFailed(f"the stream was read again: {failure.reason}", failure.hint)
        self._report.error("delivery", error, dependency=REFUSED)
        acks.advance()
        with self._report.account.during("ledger"):
            while acks.waits_for_ledger:
                # What is recorded late would be read, and sent, once more.
                if recorder is not None:
                    recorder.settle()
                check_stop(self._context.stop_requested)
                sink.poll(0.01)
                acks.advance()
                self._report.take_deliveries(sink, acks)
        with contextlib.suppress(ConnectionFailed):
            # The next session begins where the slot stands.
            session.end()
        sink.discard(in_order=True)
        if failure.is_outage:
            self._context.wait(_RECONNECT_SECONDS)
        return self._report.received_lsn + 1

    def call_back(self, error: BwtuiError) -> None:
        """Keep back what can be of what a lost session sent: it is read again, or compared.

        Until then the slot may be another relay's, which sends newer rows.
        """
        destination = self._context.destination
        destination.recall.hold_back()
        name = destination.service.name
        self._report.detail = f"waiting for {name}'s answers to what is under way: {error.message}"
        self._drain()
        destination.sink.discard(in_order=True)

    def _drain(self) -> None:
        """Let everything in flight end one way or the other.

        What was under way may have arrived. Without a bound: what is thrown away could still arrive, after
        newer rows of its key.
        """
        report, context, sink = self._report, self._context, self._context.sink
        # With --exactly-once a commit waits for the recording's disk, and for ever if that has failed unseen.
        recorder = context.recorder if context.exactly is not None else None
        with report.account.during("settling"):
            while not sink.flush(0.2):
                if recorder is not None:
                    recorder.settle(idle=True)
                check_stop(context.stop_requested)
                report.take_deliveries(sink)
        report.in_flight = 0

    def _waiting(self, what: str) -> None:
        self._report.detail = what
        check_stop(self._context.stop_requested)
