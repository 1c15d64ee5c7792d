"""Following the stream from session to session: connecting, connecting again, reading again what failed."""

import time
from collections.abc import Callable
from functools import partial

import psycopg2

from bwtui.errors import ConnectionFailed, RefusedError
from bwtui.lsn import format_lsn
from bwtui.relay.ack import Acknowledgements
from bwtui.relay.parts import Parts, Redrive, StopRequested
from bwtui.relay.report import Report
from bwtui.relay.streaming import Streaming
from bwtui.settings import RelaySettings
from bwtui.source.connection import connect, connect_raw, statement_failed
from bwtui.source.preflight import wait_for_release
from bwtui.source.stream import ReplicationStream

_RECONNECT_SECONDS = 1.0


class Following:
    """The stream of one slot, for as many sessions as it takes."""

    def __init__(
        self,
        settings: RelaySettings,
        report: Report,
        parts: Parts,
        on_phase: Callable[[Streaming | None, str], None],
    ) -> None:
        """``on_phase`` is told of each session, and of the slot."""
        self._settings = settings
        self._report = report
        self._parts = parts
        self._on_phase = on_phase
        self._session: Streaming | None = None
        self._has_streamed = False

    def run(self, publications: tuple[str, ...], target: int | None) -> None:
        """Stream, and stream again after whatever passes by itself."""
        parts = self._parts
        self._report.state = "streaming"
        acks = Acknowledgements(self._report.confirmed_lsn, parts.recorder)
        careful_until = 0
        start_lsn = 0
        while True:
            try:
                stream = parts.router.calls.make(partial(self._open_stream, publications, start_lsn))
                self._has_streamed = True
                if parts.recorder is not None:
                    parts.recorder.begin_pass("stream", acks.confirmed)
                streaming = Streaming(parts, stream, acks, target)
                streaming.careful_until = careful_until
                self._enter(streaming)
                self._report.detail = ""
                streaming.run()
                return
            except Redrive as redrive:
                careful_until = max(self._recover(acks, redrive), streaming.begun_lsn + 1)
                acks = Acknowledgements(acks.confirmed, parts.recorder)
                start_lsn = acks.confirmed
            except ConnectionFailed as error:
                # Another server may answer next, whose slot may be an older copy: it says where to start.
                start_lsn = 0
                if self._session is not None:
                    careful_until = self._session.careful_until
                if careful_until:
                    # The batch that was under way must not be taken for one of the next session's.
                    self._let_arrive()
                    parts.sink.discard(in_order=True)
                    acks = Acknowledgements(acks.confirmed, parts.recorder)
                self._report.error("outage", error)
                self._report.detail = f"waiting for PostgreSQL: {error.message}"
                self._wait(_RECONNECT_SECONDS)
            finally:
                if self._session is not None:
                    self._session.abandon()
                self._enter(None)

    def _enter(self, session: Streaming | None) -> None:
        self._session = session
        self._on_phase(session, self._settings.slot)

    def _open_stream(self, publications: tuple[str, ...], start_lsn: int) -> ReplicationStream:
        """Start streaming from where the slot stands, or from ``start_lsn`` if that is later."""
        name = self._settings.slot
        session = connect(self._settings.postgres)
        try:
            # Somebody may have moved the slot while the connection was gone.
            self._parts.memory.check(wait_for_release(session, name))
        except RefusedError as error:
            if not self._has_streamed:
                raise
            # The server has not noticed yet that our old connection is gone, or somebody else reads the slot.
            raise ConnectionFailed(error.message, error.hint) from error
        except psycopg2.Error as error:
            raise statement_failed(error) from error
        finally:
            session.close()
        connection = connect_raw(self._settings.postgres)
        try:
            return ReplicationStream(connection, name, publications, start_lsn)
        except BaseException:
            connection.finish()
            raise

    def _recover(self, acks: Acknowledgements, redrive: Redrive) -> int:
        """Let everything in flight end one way or the other; return the LSN up to which to go carefully."""
        sink, recorder = self._parts.sink, self._parts.recorder
        self._report.detail = f"reading again from {format_lsn(acks.confirmed)}: {redrive.failure.reason}"
        self._let_arrive()
        # That a row was refused may be reported after what was held back behind it.
        failure = min([redrive.failure, *sink.take_failures()], key=lambda one: one.is_outage)
        self._report.error("delivery", ConnectionFailed(failure.reason, failure.hint))
        acks.advance()
        while acks.waits_for_ledger:
            # What is recorded late would be read, and sent, once more.
            if recorder is not None:
                recorder.settle()
            self._check_stop()
            sink.poll(0.01)
            acks.advance()
        sink.discard(in_order=True)
        if failure.is_outage:
            self._wait(_RECONNECT_SECONDS)
        return self._report.received_lsn + 1

    def _let_arrive(self) -> None:
        """Wait, without a bound, for what is under way: thrown away, it could arrive after newer rows."""
        while not self._parts.sink.flush(0.2):
            self._check_stop()

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._parts.sink.poll(0.1)
            self._check_stop()

    def _check_stop(self) -> None:
        if self._parts.stop_requested():
            raise StopRequested
