"""Send the rows of a snapshot, one table or range of pages after another, under the exported snapshot.

`bwtui.relay.snapshot.initial_setup` does this in the relay's own process, `worker` in a separate one.
Rows of a snapshot have no order among each other, so a failed message is simply sent again on its own.
"""

import base64
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import cast

import psycopg2

from bwtui.blocking import StopRequested, check_stop
from bwtui.compiled import speedups
from bwtui.encode.avro import NoRoomError
from bwtui.encode.lines import Encoded, EncodedLines
from bwtui.errors import ConnectionFailed, RowError
from bwtui.model.delivery import REFUSED, DeliverySpan, Receipt
from bwtui.model.headers import SESSION, Headers, make_headers
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.messages import Field
from bwtui.recording.payloads import NoMessageReason
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows.batch import (
    BATCH_BYTES,
    BATCH_ROWS,
    IN_FLIGHT_BYTES,
    IN_FLIGHT_ROWS,
    RECORD_OVERHEAD,
    OutgoingBatch,
)
from bwtui.relay.rows.run_context import RowOutput, RunContext
from bwtui.relay.rows.samples import SampledCommit
from bwtui.relay.state.ack import Acknowledgements
from bwtui.relay.state.activity_clock import Activity
from bwtui.sink.dead_letters import ENCODED, ChangeIdentity, DroppedRow
from bwtui.sink.destination import DeliveryFailure, Message
from bwtui.source.connection import Connection, execute
from bwtui.source.snapshot import SnapshotTable, copy_refused, copy_rows

_OUTAGE_PAUSE_SECONDS = 1.0
_CHECK_SECONDS = 1.0


class SnapshotCopier:
    """Sends the rows of a snapshot."""

    def __init__(
        self,
        run: RunContext,
        output: RowOutput,
        consistent_point: int,
        time_ms: int,
        check_reservation: Callable[[], None],
        share: int = 1,
    ) -> None:
        """``consistent_point`` is the LSN that the snapshot shows, ``time_ms`` the rows' record timestamp.

        ``check_reservation`` is called every second, and raises ConnectionFailed once a different relay may
        take a snapshot. ``share`` processes share the limits of bytes and rows in flight equally.
        """
        self._run, self._output = run, output
        self._most_bytes = IN_FLIGHT_BYTES // share
        self._most_rows = IN_FLIGHT_ROWS // share
        self._check_reservation = check_reservation
        self._next_check = 0.0
        self._lsn = consistent_point
        self._recorder = output.recorder
        self._acks = Acknowledgements(0, output.recorder)
        self._batch = OutgoingBatch(output.sink, self._acks, run.report, output.recorder)
        self._timestamp = time_ms
        self._route: TableRoute | None = None
        #: The newest route into each topic.
        self._routes: dict[str, TableRoute] = {}
        self._ordinal = 0
        #: The activity to report while waiting for rows.
        self._reading: Activity = "copy"
        self._session_header: Headers = [(SESSION, run.session)]
        self._failures: deque[DeliveryFailure] = deque()

    def _wait_until_durable(self) -> None:
        clock, acks = self._run.report.clock, self._acks
        with clock.during("settling"):
            # A dead letter is in the span that would come next.
            while not acks.is_idle or self._batch.span.pending:
                for_disk = acks.waits_for_ledger and not self._output.sink.queued()
                clock.turn_to("ledger" if for_disk else "settling")
                self.pulse(0.02)

    def pulse(self, seconds: float) -> None:
        """Wait, handle deliveries and failures, and raise StopRequested if a stop was requested."""
        self._output.sink.poll(seconds)
        self._failures += self._output.policy.undelivered(self._output.sink.take_failures())
        if self._failures:
            with self._run.report.clock.during("settling"):
                while self._failures:
                    self._try_again(self._failures.popleft())
        self._recorder.settle()
        self._acks.advance()
        self._take_deliveries()
        check_stop(self._run.stop_requested)
        if time.monotonic() >= self._next_check:
            self._check_reservation()
            # Count from the answer, which may have taken some time.
            self._next_check = time.monotonic() + _CHECK_SECONDS

    def _take_deliveries(self) -> None:
        report = self._run.report
        report.outage(self._output.service.outage())
        report.take_deliveries(self._output.sink, self._acks)

    def _copy(self, connection: Connection, table: SnapshotTable, route: TableRoute) -> None:
        report = self._run.report
        name = table.relation.qualified_name
        self._route = route
        self._ordinal = self._first_ordinal(name)
        route.counters.begin_snapshot()
        self._recorder.begin_table(route.relation, self._lsn, self._timestamp)
        report.detail = f"snapshot of {name}"
        self._reading = "scan" if table.row_filter else "copy"
        report.clock.turn_to(self._reading)
        try:
            with interruptible(connection, self._run.stop_requested):
                take, end = gathering(self._rows)
                copy_rows(connection, table, take)
                end()
        except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
            reason = " ".join(str(error).split())
            hint = "no slot is left behind; start the relay again for a new snapshot"
            raise ConnectionFailed(f"the snapshot of {name} was interrupted: {reason}", hint) from error
        except psycopg2.Error as error:
            raise copy_refused(error, table, connection) from error
        self._flush()
        route.counters.snapshot_state = "done"

    def _first_ordinal(self, table: str) -> int:
        """Return the number of the row before the first one."""
        return 0

    def _rows(self, lines: list[bytes], size: int) -> None:
        """Send rows with ``size`` bytes of text: as many as a batch holds, or a single large one."""
        done = 0
        while done < len(lines):
            rest = lines[done:] if done else lines
            route = self._route
            assert route is not None
            encoded = None
            # A table without columns has empty lines, which would be read as one empty column. A line that is
            # far larger than a batch is not kept longer than necessary.
            if route.refusal is None and route.column_names and size < 2 * BATCH_BYTES:
                encoded = route.lines(rest, self._timestamp, self._session_header)
            if encoded is not None and encoded.largest + RECORD_OVERHEAD <= route.max_message_bytes:
                done += self._add(route, rest[: len(encoded.messages)], encoded)
                if done < len(lines) and self._batch.is_full():
                    self._flush()
                continue
            for line in rest:
                self._row(line)
            break
        self._flush()

    def _add(self, route: TableRoute, lines: list[bytes], encoded: EncodedLines) -> int:
        """Add the encoded ``lines``; return how many of them were added with ``route``."""
        done = 0
        for hole in encoded.holes:
            self._add_run(route, lines[done:hole], encoded.messages[done:hole])
            # On its own, which reports why there is no message.
            self._row(lines[hole])
            done = hole + 1
            if self._route is not route:
                return done
        rest = encoded.messages[done:] if done else encoded.messages
        self._add_run(route, lines[done:], rest, None if done else encoded.size)
        return len(lines)

    def _add_run(
        self,
        route: TableRoute,
        lines: list[bytes],
        messages: Sequence[Encoded | None],
        size: int | None = None,
    ) -> None:
        """Add rows that all have a message, with ``size`` bytes in total."""
        encoded = cast(list[Encoded], messages)
        if size is None:
            size = sum(len(key or b"") + len(value or b"") for key, value, _, _ in encoded)
        if self._run.settings.headers:
            encoded = [
                (key, value, time_ms, self._headers(number))
                for number, (key, value, time_ms, _) in enumerate(encoded, self._ordinal + 1)
            ]
        self._ordinal += len(lines)
        self._batch.add_many(route, encoded, size)
        if self._recorder.is_recording:
            self._recorder.frames += lines
            self._batch.held += sum(map(len, lines))
        route.counters.snapshot_rows += len(lines)
        for line in lines[: max(0, self._output.samples.budget)]:
            self._sample(route, unescape_copy_line(line))

    def _sample(self, route: TableRoute, fields: Sequence[Field] | None) -> None:
        commit = SampledCommit(self._lsn, 0, self._timestamp / 1000, 0)
        self._output.samples.take("snapshot", route, None, None, fields, commit)

    def _row(self, line: bytes) -> None:
        route = self._route
        assert route is not None
        self._ordinal += 1
        fields: list[Field] | None = None
        batch = self._batch
        batch.rows += 1
        try:
            # A table without columns has empty lines, which would be read as one empty column.
            fields = list(unescape_copy_line(line)) if route.column_names else []
            batch.add(route, *route.both(fields), self._timestamp, self._headers(self._ordinal))
        except NoRoomError:
            self._add_wider(route, fields)
        except RowError as error:
            self._refuse(route, fields, error)
        if self._recorder.is_recording:
            self._recorder.frames.append(line)
            batch.held += len(line)
        route.counters.snapshot_rows += 1
        if self._output.samples.budget > 0:
            self._sample(route, fields)
        if batch.is_full():
            self._flush()

    def _add_wider(self, route: TableRoute, fields: list[Field] | None) -> None:
        # Not within the try block above: while it waits for a service, errors of other rows may surface.
        wider = self._wider(route)
        try:
            headers = self._headers(self._ordinal)
            self._batch.add(wider, *wider.both(fields or ()), self._timestamp, headers)
        except RowError as error:
            self._refuse(wider, fields, error)

    def _refuse(self, route: TableRoute, fields: list[Field] | None, error: RowError) -> None:
        self._output.policy.refuse(route, self._dropped(route, fields), error, self._batch.span)
        self._recorder.without(route, NoMessageReason.DROPPED)

    def _wider(self, route: TableRoute) -> TableRoute:
        """Switch to a route whose schema has room for bytes that are not text, and return it."""
        self._batch.rows -= 1
        self._flush()
        self._batch.rows += 1
        wider = self._with_room(route)
        if wider.refusal is None:
            self._route = self._routes[wider.topic] = wider
        return wider

    def _with_room(self, route: TableRoute) -> TableRoute:
        raise NotImplementedError

    def _flush(self) -> None:
        self._output.samples.refill()
        clock = self._run.report.clock
        self._batch.flush()
        self.pulse(0)
        sink = self._output.sink
        while self._acks.bytes_in_flight > self._most_bytes or sink.queued() > self._most_rows:
            clock.turn_to("room")
            self.pulse(0.02)
        clock.turn_to(self._reading)

    def _headers(self, ordinal: int) -> Headers:
        if not self._run.settings.headers:
            return self._session_header
        return make_headers(self._lsn, ordinal, "snapshot", 0, self._run.session)

    def _dropped(self, route: TableRoute, fields: list[Field] | None) -> DroppedRow:
        identity = ChangeIdentity(self._lsn, self._ordinal, 0)
        name = route.relation.qualified_name
        columns, key = route.column_names, route.key_columns
        return DroppedRow(name, route.topic, "snapshot", identity, columns, None, fields, key)

    def _try_again(self, failure: DeliveryFailure) -> None:
        """Send one undelivered message on its own, until it is delivered or finally rejected."""
        span, receipt, index = failure.span, failure.receipt, failure.index
        assert span is not None and failure.message is not None
        again: DeliveryFailure | None
        while True:
            if failure.is_final:
                hint = "no slot is left behind; start the relay again for a new snapshot"
                raise ConnectionFailed(f"the snapshot was interrupted: {failure.reason}", hint)
            if failure.is_outage:
                self._wait(failure)
            again, single = self._alone(failure.topic, failure.message, receipt)
            if again is None:
                self._run.report.recovered(self._output.service.name)
                if receipt is not None and single is not None:
                    receipt.partitions[index] = single.partitions[0]
                    receipt.offsets[index] = single.offsets[0]
                break
            failure = again
            if not failure.is_outage:
                self._drop(failure)
                if receipt is not None:
                    receipt.partitions[index] = REFUSED
                break
        span.settle_failed()

    def _alone(
        self, topic: str, message: Message, recorded: Receipt | None
    ) -> tuple[DeliveryFailure | None, Receipt | None]:
        """Send one message and wait; return its failure, or None once it, or its dead letter, is delivered.

        Nothing else is in flight then: messages that share a request with a rejected one fail with it. The
        second part of the result is the message's receipt, if the message is ``recorded``.
        """
        sink, single = self._output.sink, DeliverySpan()
        receipt = Receipt(recorded.batch, recorded.section, 1) if recorded is not None else None
        sent = False
        while not sent or single.pending:
            if not sent and not sink.queued() and self._may_send():
                sink.send(topic, [message], single, receipt)
                sent = True
            sink.poll(0.1)
            self._run.report.take_deliveries(sink, self._acks)
            check_stop(self._run.stop_requested)
            # Others may have failed meanwhile; they are handled later. A rejected dead letter is sent again,
            # shortened.
            taken = self._output.policy.undelivered(sink.take_failures())
            self._failures += [failure for failure in taken if failure.span is not single]
            failed = next((failure for failure in taken if failure.span is single), None)
            if failed is not None:
                return failed, receipt
        return None, receipt

    def _may_send(self) -> bool:
        """Return whether the snapshot is known to be still ours."""
        return True

    def _wait(self, failure: DeliveryFailure) -> None:
        report = self._run.report
        report.detail = f"waiting for {self._output.service.name}: {failure.reason}"
        error = ConnectionFailed(failure.reason, failure.hint)
        report.error("outage", error, dependency=self._output.service.name)
        report.wait(self._output.sink, _OUTAGE_PAUSE_SECONDS, self._run.stop_requested)

    def _drop(self, failure: DeliveryFailure) -> None:
        """Drop a message that Kafka rejects; its dead letter can only contain the encoded bytes."""
        route = self._routes[failure.topic]
        message = failure.message
        assert message is not None
        encoded = [base64.b64encode(data or b"") for data in (message.key, message.value)]
        identity = ChangeIdentity(self._lsn, 0, 0)
        row = DroppedRow(
            route.relation.qualified_name, route.topic, "snapshot", identity, ENCODED, None, encoded
        )
        self._output.policy.refuse(route, row, RowError(failure.reason, failure.hint), self._batch.span)


Give = Callable[[list[bytes], int], None]
Gathering = tuple[Callable[[bytes], None], Callable[[], None]]


def gathering(give: Give) -> Gathering:
    """Return a function that takes one line after another, and one to call at the end.

    ``give`` is called with lines and their size in bytes. A large line is given alone, or as the last one.
    """
    if speedups is None:
        return in_python(give)
    gathered = speedups.Gathering(give, BATCH_ROWS, BATCH_BYTES)
    return gathered, gathered.end


def in_python(give: Give) -> Gathering:
    """Return the same without the C extension."""
    lines: list[bytes] = []
    size = 0

    def take(line: bytes) -> None:
        nonlocal size
        lines.append(line)
        size += len(line)
        if size >= BATCH_BYTES or len(lines) >= BATCH_ROWS:
            end()

    def end() -> None:
        nonlocal lines, size
        gathered, length = lines, size
        lines, size = [], 0
        if gathered:
            give(gathered, length)

    return take, end


#: How often to check for a stop request.
_LOOK_SECONDS = 0.2


@contextmanager
def interruptible(connection: Connection, stop_requested: Callable[[], bool]) -> Iterator[None]:
    """Shut down ``connection`` on a stop request in the block: nothing else ends a wait inside libpq.

    COPY may return no row for a long time, if a row filter passes none or the server hangs, and any statement
    may wait for a lock. Raises StopRequested in place of the error that follows, of psycopg2 or of bwtui.
    """
    done, cut = threading.Event(), threading.Event()
    end = socket.socket(fileno=os.dup(connection.fileno()))

    def watch() -> None:
        while not done.wait(_LOOK_SECONDS):
            if stop_requested():
                cut.set()
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                return

    thread = threading.Thread(target=watch, name="copy interrupt", daemon=True)
    thread.start()
    try:
        yield
    except (psycopg2.Error, ConnectionFailed) as error:
        if cut.is_set():
            raise StopRequested from error
        raise
    finally:
        done.set()
        thread.join()
        end.close()


def check_alive(
    connection: Connection, stop_requested: Callable[[], bool], description: str, hint: str
) -> None:
    """Check that the session of ``connection`` is alive.

    Raises StopRequested, or ConnectionFailed if the session has ended.
    """
    try:
        with interruptible(connection, stop_requested):
            execute(connection, "select")
    except psycopg2.Error as error:
        reason = " ".join(str(error).split())
        raise ConnectionFailed(f"the snapshot was interrupted: {description}: {reason}", hint) from error
