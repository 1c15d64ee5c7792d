"""A worker: a process that reads units of the snapshot and sends their rows, until the engine ends it.

`pool` starts ``python -m bwtui.relay.snapshot.workers.worker``, whose stdin is the socket to the engine. The
worker gets its settings over that socket, since other users can read its arguments.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time

import psycopg2

from bwtui.crash import crash, frames
from bwtui.cycles import look_rarely
from bwtui.errors import BwtuiError
from bwtui.model.events import event
from bwtui.relay.policy import RowPolicy
from bwtui.relay.process.log import log_to_stderr
from bwtui.relay.snapshot.workers.channel import BlockingChannel
from bwtui.relay.snapshot.workers.engine_channel import EngineChannel
from bwtui.relay.snapshot.workers.messages import (
    Heartbeat,
    SerializedError,
    StartWorker,
    TableProgress,
    UnitRequest,
    WorkerFailed,
    WorkUnit,
)
from bwtui.relay.snapshot.workers.piece_copier import (
    PieceCopier,
    WorkerContext,
    WorkerRecorder,
    WorkerSamples,
)
from bwtui.relay.snapshot.workers.remote_report import RemoteDeadLetters, RemoteReport
from bwtui.relay.status_builder import cpu_seconds, resident_bytes
from bwtui.settings import RelaySettings
from bwtui.sink.destination import kind_of
from bwtui.source.connection import Connection, connect, statement_failed
from bwtui.source.snapshot import import_snapshot

_log = logging.getLogger("bwtui.relay.snapshot.workers.worker")


class Worker:
    """The worker's process."""

    def __init__(self, begin: StartWorker, end: BlockingChannel) -> None:
        """Open the sink; no connection is needed yet."""
        self._begin = begin
        self._settings = settings = RelaySettings.from_json(dict(begin.settings))
        self._unit = 0
        self._counting = threading.Lock()
        self._report = RemoteReport(settings.on_error)
        self._shown = WorkerSamples()
        self._sink, self._service = sink, service = kind_of(settings).open_service(settings)
        # A failed row of a snapshot does not require other rows to be read again.
        sink.discard(in_order=False)
        self._line = line = EngineChannel(end, self._beat)
        self._report.line = line
        recording = WorkerRecorder(line) if begin.is_recorded else None
        policy = RowPolicy(settings, self._report, RemoteDeadLetters(line, self._report), sink)
        self._context = WorkerContext(
            settings, self._report, sink, service, policy, self._shown, begin.session, recording
        )
        self._reading = PieceCopier(self._context, begin, line)
        self._shown.reading = self._reading
        if recording is not None:
            recording.reading = self._reading

    def run(self) -> None:
        """Read unit after unit; errors are sent to the engine, which ends this process."""
        self._line.start()
        connection: Connection | None = None
        try:
            connection = import_snapshot(connect(self._settings.postgres), self._begin.snapshot)
            while True:
                self._next(connection)
        except psycopg2.Error as error:
            failed = statement_failed(error)
        except Exception as error:
            failed = _plain(error)
        in_session = connection is not None and bool(connection.closed)
        self._line.send(
            WorkerFailed(SerializedError.of(failed), at_start=connection is None, in_session=in_session)
        )
        threading.Event().wait()

    def _next(self, connection: Connection) -> None:
        unit = self._line.ask(UnitRequest(self._beat()), WorkUnit)
        with self._counting:
            self._unit = unit.number
            for counters in self._report.tables.values():
                counters.snapshot_rows = counters.messages = counters.bytes = 0
            self._reading.take_plans(unit.plans)
        self._reading.read(connection, unit.pieces)

    def _beat(self) -> Heartbeat:
        report, reading = self._report, self._reading
        since = reading.waited_since
        with self._counting:
            unit = self._unit
            progress = {
                name: TableProgress(counters.snapshot_rows, counters.messages, counters.bytes)
                for name, counters in report.tables.items()
                if counters.snapshot_rows or counters.messages
            }
        return Heartbeat(
            unit,
            progress,
            self._sink.queued(),
            self._sink.answered(),
            time.monotonic() - since if since else 0.0,
            self._service.outage(),
            report.account.current[0],
            resident_bytes(with_files=False),
            cpu_seconds(),
            self._shown.taken(),
        )


def _plain(error: Exception) -> BwtuiError:
    """Return the error to report; an unexpected one is logged."""
    if isinstance(error, BwtuiError):
        return error
    _log.error("unexpected exception\n%s", frames(error), extra=event("crashed"))
    return crash(error)


def main() -> None:
    """Work for the engine at the other end of stdin."""
    # A service manager may send these signals to every process of the relay. The engine ends its workers.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # A row creates objects that live until Kafka has acknowledged it, and no reference cycles.
    look_rarely()
    end = BlockingChannel(socket.socket(fileno=os.dup(0)))
    try:
        begin = end.receive()
    except EOFError:
        sys.exit(1)
    settings = RelaySettings.from_json(dict(begin.settings))
    log_to_stderr(settings.relay_name, settings.log_format)
    try:
        worker = Worker(begin, end)
    except Exception as error:
        failed = WorkerFailed(SerializedError.of(_plain(error)), at_start=True)
        with contextlib.suppress(OSError, EOFError):
            end.send(failed)
            # Wait until the engine, which has read the message then, ends this process or closes the
            # connection.
            while True:
                end.receive()
    else:
        worker.run()


if __name__ == "__main__":
    main()
