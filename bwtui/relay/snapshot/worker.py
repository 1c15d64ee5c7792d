"""A worker: a process that reads units of the snapshot and sends their rows, until the engine ends it.

The engine starts ``python -m bwtui.relay.snapshot.worker``, whose stdin is the socket to the engine. The
worker gets its settings over that socket, since other users can read its arguments.
"""

import contextlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psycopg2

from bwtui.crash import crash, frames
from bwtui.cycles import collect_rarely
from bwtui.errors import BwtuiError
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.model.events import event
from bwtui.pgoutput.messages import Field
from bwtui.recording.payloads import NoMessageReason
from bwtui.relay.process.log import log_to_stderr
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows.batch import BATCH_ROWS
from bwtui.relay.rows.policy import RowPolicy
from bwtui.relay.rows.recorder import NullRecorder, Recorder
from bwtui.relay.rows.run_context import RowOutput, RunContext
from bwtui.relay.rows.samples import SampledCommit, Samples, cut_long
from bwtui.relay.snapshot.snapshot_copier import SnapshotCopier
from bwtui.relay.snapshot.worker_protocol import (
    Answer,
    BatchToRecord,
    BlockingChannel,
    DeadLetterMessage,
    DeliveryReceipts,
    DependencyRecovered,
    ErrorReported,
    Heartbeat,
    HeartbeatReply,
    Piece,
    Request,
    RouteDescription,
    RowNumbersRequest,
    SerializedError,
    StartWorker,
    TableProgress,
    UnitLocked,
    UnitRequest,
    WiderSchemaRequest,
    WorkerFailed,
)
from bwtui.relay.state.activity_clock import ActivityClock
from bwtui.relay.state.run_state import RunState, cpu_seconds, resident_bytes
from bwtui.settings import RelaySettings
from bwtui.sink.dead_letters import DeadLetterWriter
from bwtui.sink.destination import kind_of
from bwtui.source.connection import Connection, connect, statement_failed
from bwtui.source.snapshot import import_snapshot, lock_at_once

BEAT_SECONDS = 0.25
#: Maximum time after the engine's last answer to a heartbeat in which a worker still sends.
_LEASH_SECONDS = 3.0


class EngineChannel:
    """The channel to the engine: several threads send, one thread reads, and one sends heartbeats.

    The worker ends when the engine does. While the engine does not answer heartbeats, nothing more is sent to
    Kafka: it may have been suspended for so long that a different relay is taking the snapshot by now. The
    worker's main thread calls `request`, any thread `send`.
    """

    def __init__(self, end: BlockingChannel) -> None:
        self._end = end
        self._sending = threading.Lock()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._heard_at = time.monotonic()
        self._is_answered = True

    def start(self, beat: Callable[[], Heartbeat]) -> None:
        """Start listening, and sending heartbeats: ``beat`` returns the progress in any thread."""
        threading.Thread(target=self._listen, name="engine messages", daemon=True).start()
        threading.Thread(target=self._beat_on, args=[beat], name="beats", daemon=True).start()

    def send(self, message: object) -> None:
        """Send a message that needs no answer."""
        try:
            with self._sending:
                self._end.send(message)
        except OSError:
            os._exit(1)

    def request(self, message: Request[Answer]) -> Answer:
        """Send a message, and wait for its answer."""
        self.send(message)
        return cast(Answer, self._answers.get())

    @property
    def may_send(self) -> bool:
        """True if the snapshot is known to be still the engine's."""
        return time.monotonic() - self._heard_at < _LEASH_SECONDS

    def _listen(self) -> None:
        try:
            while True:
                message = self._end.receive()
                if isinstance(message, HeartbeatReply):
                    self._heard_at, self._is_answered = time.monotonic(), True
                else:
                    self._answers.put(message)
        except (EOFError, OSError):
            # The engine, which knows what is in flight, has ended, or is ending this worker.
            os._exit(1)

    def _beat_on(self, beat: Callable[[], Heartbeat]) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            if self._is_answered:
                self._is_answered = False
                self.send(beat())


class RemoteReport(RunState):
    """The worker's report; counters are sent with its heartbeats."""

    def __init__(self, line: EngineChannel, on_error: str) -> None:
        super().__init__()
        self._line = line
        self._keeps_rows = on_error == "log"
        #: The hint for the last refused row.
        self.hint = ""

    def error(
        self, kind: str, error: BwtuiError, table: str | None = None, dependency: str = "", since: float = 0
    ) -> None:
        """Send an error to the engine; a dropped row is reported with its dead letter instead."""
        if kind == "row" and self._keeps_rows:
            self.hint = error.hint
        else:
            self._line.send(ErrorReported(kind, SerializedError.of(error), table, dependency))

    def outage(self, sentence: str | None, service: str = "Kafka") -> None:
        """Do nothing: heartbeats report outages, and the engine combines those of its workers."""

    def recovered(self, dependency: str) -> None:
        """Report to the engine that a dependency works again."""
        self._line.send(DependencyRecovered(dependency))


class RemoteDeadLetters(DeadLetterWriter):
    """Dead letters that the engine stores, each once however often its range is read."""

    def __init__(self, line: EngineChannel, report: RemoteReport) -> None:
        super().__init__(Path())
        self._line = line
        self._report = report

    def keep(self, letter: dict[str, Any]) -> None:
        """Let the engine store the dead letter, and wait for that."""
        self._line.request(DeadLetterMessage(letter, self._report.hint))


#: Maximum samples between two heartbeats.
_SAMPLES = 12
_LEASH_LOOK_SECONDS = 0.05


@dataclass(slots=True)
class ReadingPosition:
    """Where a worker reads: the number of its plan, and of the last row of the batch that is handed over."""

    plan: int = 0
    ordinal: int = 0


class PieceCopier(SnapshotCopier):
    """Sends the rows of one piece after another."""

    def __init__(
        self,
        run: RunContext,
        output: RowOutput,
        begin: StartWorker,
        line: EngineChannel,
        position: ReadingPosition,
    ) -> None:
        super().__init__(run, output, begin.lsn, begin.time_ms, lambda: None, begin.share)
        self._line = line
        self._position = position
        self._plans: dict[int, TableRoute] = {}
        #: For each table, the last number used and the last number that its rows may have.
        self._numbers: dict[str, tuple[int, int]] = {}
        self._is_within_row = False

    def take_plans(self, plans: Mapping[int, RouteDescription]) -> None:
        """Build routes from new plans."""
        for number, plan in plans.items():
            self._plans[number] = plan.route(self._run.settings, self._run.report)

    def read(self, connection: Connection, pieces: Sequence[Piece]) -> None:
        """Send all rows of ``pieces``, and return when every one of them is durable.

        If not all of their tables can be locked, nothing is read. Raises BwtuiError and psycopg2.Error.
        """
        locked = lock_at_once(connection, [piece.table for piece in pieces])
        if locked is not None:
            self._line.send(UnitLocked(locked.relation.qualified_name))
            return
        for piece in pieces:
            self._position.plan = piece.plan
            route = self._plans[piece.plan]
            self._routes[route.topic] = route
            self._copy(connection, piece.table, route)
            name = piece.table.relation.qualified_name
            self._numbers[name] = self._ordinal, self._numbers[name][1]
        self._wait_until_durable()

    @property
    def waited_since(self) -> float:
        """When the oldest message began to wait, by the monotonic clock; 0 if none is waiting."""
        return self._acks.oldest_since

    def _first_ordinal(self, table: str) -> int:
        before, last = self._numbers.get(table, (0, 0))
        if last - before < BATCH_ROWS:
            before, last = self._numbers[table] = self._line.request(RowNumbersRequest(table))
        return before

    def _may_send(self) -> bool:
        return self._line.may_send

    def _flush(self) -> None:
        while not self._line.may_send:
            self._run.report.clock.turn_to("room")
            self.pulse(0.1)
        # If a batch ends while a row is handled, that row is the first one of the next batch.
        self._position.ordinal = self._ordinal - self._is_within_row
        super()._flush()
        if self._route is None:
            return
        name = self._route.relation.qualified_name
        self._numbers[name] = self._position.ordinal, self._numbers[name][1]
        self._ordinal = self._first_ordinal(name) + self._is_within_row

    def _wider(self, route: TableRoute) -> TableRoute:
        self._is_within_row = True
        try:
            return super()._wider(route)
        finally:
            self._is_within_row = False

    def _with_room(self, route: TableRoute) -> TableRoute:
        number, plan = self._line.request(WiderSchemaRequest(self._position.plan))
        self.take_plans({number: plan})
        if plan.refusal is None:
            self._position.plan = number
        return self._plans[number]


class WorkerRecorder(Recorder):
    """A worker's recorder: the engine writes each batch before it is sent, and its delivery reports."""

    is_recording = True
    durable_lsn = 0

    def __init__(self, line: EngineChannel, position: ReadingPosition, clock: ActivityClock) -> None:
        super().__init__()
        self._line = line
        self._position = position
        self._clock = clock
        self._without: list[tuple[int, int]] = []

    def without(self, route: TableRoute, reason: NoMessageReason, frame: int | None = None) -> None:
        """Note that the current row makes no message."""
        self._without.append((len(self.frames), int(reason)))

    def write_batch(self, routes: Sequence[TableRoute]) -> list[Receipt]:
        """Let the engine write the batch, and wait for it."""
        assert len(routes) <= 1
        messages = routes[0].messages if routes else []
        positions = routes[0].positions if routes else array("I")
        if not self.frames:
            return []
        keys, values = [message[0] for message in messages], [message[1] for message in messages]
        without = [entry for entry in self._without if entry[0] < len(self.frames)]
        plan, before = self._position.plan, self._position.ordinal - len(self.frames)
        rows = BatchToRecord(plan, before, self.frames, keys, values, positions, without)
        places = self._line.request(rows)
        # The engine may have stood still before it wrote the batch. Deliveries are not handled meanwhile.
        with self._clock.during("room"):
            while not self._line.may_send:
                time.sleep(_LEASH_LOOK_SECONDS)
        self.frames.clear()
        self._without.clear()
        return [Receipt(*place) for place in places]

    def take_settled(self, receipts: list[Receipt]) -> None:
        """Send the places of messages to the engine."""
        places = [(r.batch, r.section, r.partitions, r.offsets) for r in receipts]
        self._line.send(DeliveryReceipts(places))


class WorkerSamples(Samples):
    """Samples that the engine decodes: only a few at a time, with long values cut."""

    def __init__(self, position: ReadingPosition) -> None:
        super().__init__()
        self._position = position
        self._taken: deque[tuple[int, Sequence[Field], int]] = deque(maxlen=_SAMPLES)

    def take(
        self,
        operation: str,
        route: TableRoute,
        key: bytes | None,
        before: Sequence[Field] | None,
        after: Sequence[Field] | None,
        commit: SampledCommit,
        span: DeliverySpan | None = None,
    ) -> None:
        """Keep one row until the next heartbeat."""
        self.budget -= 1
        fields = cut_long(after)
        if fields is not None:
            self._taken.append((self._position.plan, fields, commit.ordinal))

    def taken(self) -> list[tuple[int, Sequence[Field], int]]:
        """Return the samples since the last call; any thread may call it."""
        samples = []
        while self._taken:
            samples.append(self._taken.popleft())
        return samples


_log = logging.getLogger("bwtui.relay.snapshot.worker")


class Worker:
    """The worker's process."""

    def __init__(self, begin: StartWorker, end: BlockingChannel) -> None:
        """Open the sink; no connection is needed yet."""
        self._begin = begin
        self._settings = settings = RelaySettings.from_json(dict(begin.settings))
        self._unit = 0
        self._counting = threading.Lock()
        self._line = line = EngineChannel(end)
        self._report = report = RemoteReport(line, settings.on_error)
        position = ReadingPosition()
        self._shown = WorkerSamples(position)
        self._sink, self._service = sink, service = kind_of(settings).open_service(settings)
        # A failed row of a snapshot does not require other rows to be read again.
        sink.discard(in_order=False)
        recorder = WorkerRecorder(line, position, report.clock) if begin.is_recorded else NullRecorder()
        policy = RowPolicy(settings, report, RemoteDeadLetters(line, report), sink)
        run = RunContext(settings, report, begin.session)
        output = RowOutput(sink, service, policy, self._shown, recorder)
        self._reading = PieceCopier(run, output, begin, line, position)

    def run(self) -> None:
        """Read unit after unit; errors are sent to the engine, which ends this process."""
        self._line.start(self._beat)
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
        unit = self._line.request(UnitRequest(self._beat()))
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
            report.clock.current[0],
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
    collect_rarely()
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
