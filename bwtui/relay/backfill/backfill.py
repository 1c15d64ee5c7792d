"""Backfill rows of tables into the stream alongside its changes: one request at a time, chunk by chunk.

The relay's main thread calls `Backfill.turn` once a turn of its loop. Each chunk goes through four steps. A
thread reads it, while the keys that the stream sends of its table are collected. The stream passes the WAL
that the chunk's snapshot shows. The chunk's rows, without those keys, are added between two transactions.
When all of them are acknowledged, the progress is stored. Whatever breaks the window starts the chunk again.
See `bwtui.relay.rows.chunk_window` for why nothing older is sent after a newer row.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

import psycopg2

from bwtui.blocking import BlockingCalls
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, RowError, ServiceRefused, StateFailed
from bwtui.model.backfill import UNKNOWN, BackfillRequest, BackfillState
from bwtui.model.number_format import duration
from bwtui.model.status import State
from bwtui.relay.backfill.chunk_snapshot import ChunkSnapshot, with_advice
from bwtui.relay.backfill.outgoing_chunk import (
    BackfillRowPolicy,
    ChunkContext,
    OutgoingChunk,
    RowNumbers,
    refuse_unlike,
)
from bwtui.relay.history.backfill_store import BackfillStore, BackfillTask, Key, read_keys
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows.batch_bisector import BatchBisector
from bwtui.relay.rows.chunk_window import ChunkWindow, SentTransactions
from bwtui.relay.stream.context import RelayContext
from bwtui.relay.stream.stream_hook import BackfillStream
from bwtui.sink.destination import DeliveryFailure
from bwtui.source.catalog import TableFilter
from bwtui.source.connection import Connection, execute
from bwtui.source.present_rows import check_condition
from bwtui.source.raw_stream import StreamServer
from bwtui.source.slot import committed_lsn
from bwtui.source.snapshot import (
    Chunk,
    ChunkRequest,
    ChunkTooLarge,
    SessionEnded,
    TableNotPublished,
    idle_in_transaction,
    in_progress,
    inserted_lsn,
    oldest_running,
    read_chunk,
    still_writing,
    with_real_name,
    writers,
)

#: Maximum rows of a chunk, and of a list of keys; fewer if the rows are large.
CHUNK_ROWS, CHUNK_KEYS = 10_000, 2_000
_CHUNK_BYTES = 8 << 20
#: A chunk whose window breaks while it is read is made smaller: the minimum rows, and the maximum attempts.
_LEAST_ROWS, _MOST_ATTEMPTS = 100, 8
#: Maximum times that the session that reads by a condition may end.
_MOST_ENDS = 5
#: How often to check for work, and how long to wait after a failure of PostgreSQL.
_LOOK_SECONDS, _PAUSE_SECONDS = 0.1, 1.0
_OLDEST_SECONDS = 10.0


class BackfillFailed(Exception):
    """The request has failed.

    Other errors belong to the stream, whose messages are handled at the same time.
    """

    def __init__(self, error: BwtuiError) -> None:
        super().__init__(error.message)
        self.error = error


class Backfill:
    """All requests of one run, over all of its sessions."""

    def __init__(
        self,
        context: RelayContext,
        store: BackfillStore,
        publications: tuple[str, ...],
        first: ChunkSnapshot,
        is_more_due: Callable[[], bool],
    ) -> None:
        """``is_more_due``: whether other work before the relay has caught up may still send requests."""
        self._context = context
        self._is_more_due = is_more_due
        self._store = store
        self._first = first
        self._publications = publications
        self._share = context.run.settings.snapshot_share / 100
        self._chosen = TableFilter(context.run.settings)
        self._streamed = context.history.streamed
        self._chunks = ChunkContext(
            context.run.settings, context.services.router, context.output.recorder, context.run.session
        )
        self._numbers = RowNumbers()
        self._stream: BackfillStream | None = None
        self._task: BackfillTask | None = None
        self._window: ChunkWindow | None = None
        self._reading: ChunkRead | None = None
        self._outgoing: OutgoingChunk | None = None
        #: The rest of a list of keys, and the keys of the current chunk.
        self._list: Iterator[Key] | None = None
        self._keys: list[Key] | None = None
        self._chunk: Chunk | None = None
        #: Whether nothing of the task was read in this session yet.
        self._is_first = True
        self._saving: Future[None] | None = None
        self._saves = BlockingCalls(lambda _: None)
        #: The route that encodes the chunks of this session.
        self._route: TableRoute | None = None
        self._careful = False
        #: The position of the stream, and whether it had nothing to read in this turn.
        self._position, self._is_idle = 0, True
        #: Returns whether the chunk's rows are in the recording, once they are acknowledged.
        self._is_recorded: Callable[[], bool] | None = None
        self._rows = CHUNK_ROWS
        #: How often the chunk's window broke before the chunk was read.
        self._attempts = 0
        #: How often in a row the session that reads a chunk has ended, while the stream's has not.
        self._session_ends = 0
        self._poll_at = self._oldest_checked_at = 0.0
        #: Why the request fails at the next turn: its topic accepted nothing.
        self._topic_error: BwtuiError | None = None
        self._wal_nudge = WalNudge(context.services.patience.server)
        self._refusals = BackfillRowPolicy(context.output.policy, context.run.settings.on_error)

    # -- sessions ------------------------------------------------------------------------------------------

    def begin_session(self, stream: BackfillStream) -> None:
        """Resume with a new session of the stream."""
        self._stream = stream
        self._is_first, self._route, self._session_ends = True, None, 0
        if self._context.history.transactions.is_used:
            self._store.take(self._context.history.transactions.chunks)
            # Look up again where its list of keys continues.
            self._task = None

    def end_session(self) -> None:
        """Abandon the current chunk: changes that the next session reads again would follow its rows."""
        transactions, outgoing = self._context.history.transactions, self._outgoing
        # Otherwise each session, and each start, would meet it again.
        shut = self._topic_error = self._refusals.shut if outgoing is not None else None
        if transactions.is_used and outgoing and (error := transactions.refusal(outgoing.spans) or shut):
            # Kafka would reject it in each transaction, which would hold up the stream.
            self._fail(error)
        elif outgoing is not None and any(span.failed for span in outgoing.spans):
            # One of its own messages may be rejected. Waiting for each message finds it.
            self._careful = shut is None
        if self._window is not None and self._task is not None:
            self._task.again += 1
        self._drop_chunk()
        self._stream = None

    def claim_failures(self, failures: list[DeliveryFailure]) -> list[DeliveryFailure]:
        return (
            failures
            if self._outgoing is None
            else self._refusals.claim_failures(failures, self._outgoing.spans)
        )

    def _drop_chunk(self) -> None:
        if self._reading is not None:
            self._reading.give_up()
        if self._stream is not None:
            self._stream.batch.window = None
        self._window = self._reading = self._outgoing = self._chunk = self._is_recorded = None
        self._poll_at = 0.0

    def check_visible(self, connection: Connection) -> None:
        """Check periodically which transactions all sessions can see by now; in the sampler's thread."""
        if (now := time.monotonic()) >= self._oldest_checked_at + _OLDEST_SECONDS:
            self._oldest_checked_at = now
            server = self._streamed.server
            self._streamed.note_oldest(server, oldest_running(connection))

    # -- turns ---------------------------------------------------------------------------------------------

    @property
    def pause(self) -> float:
        if self._reading is not None or self._saving is not None:
            return 0.01
        return 0.002 if self._window is not None else 0.25

    @property
    def phase(self) -> State:
        return self._first.phase

    @property
    def is_due(self) -> bool:
        return self._saving is not None or self._is_more_due() or self._store.has_due

    @property
    def wants_boundary(self) -> bool:
        return self._outgoing is not None and self._outgoing.is_encoded and not self._outgoing.is_put

    def turn(self, position: int, seconds: float, *, at_boundary: bool, is_idle: bool) -> None:
        now = time.monotonic()
        self._position, self._is_idle = position, is_idle
        if (
            self._window is None
            and self._saving is None
            and now < self._poll_at
            and self._topic_error is None
        ):
            return
        shut, self._topic_error = self._topic_error, None
        if shut is not None:
            self._fail(shut)
            return
        try:
            until = now + seconds_beside(seconds, self._share, is_idle=is_idle)
            self._turn(until, at_boundary=at_boundary)
        except BackfillFailed as failed:
            self._fail(failed.error)
        except ServiceRefused as error:
            if self._context.output.policy.shut is not None:
                # The error is about messages of the stream, raised while this code waited.
                raise
            self._fail(error)

    def _turn(self, until: float, *, at_boundary: bool) -> None:
        if self._saving is not None:
            if self._saving.done():
                self._saving.result()
                self._saving, self._poll_at = None, 0.0
        elif self._window is None:
            self._begin()
        elif self._window.broken:
            self._broken(self._window.broken)
        elif self._reading is not None:
            self._check_reading()
        elif self._outgoing is None:
            self._wait_for_stream()
        elif not self._outgoing.is_encoded:
            self._outgoing.encode(self._window, until)
        elif not self._outgoing.is_put:
            self._put(until, at_boundary=at_boundary)
        else:
            self._finish()

    def _begin(self) -> None:
        """Take the next chunk of the next task, if there is one."""
        stream = self._stream
        self._poll_at = time.monotonic() + _LOOK_SECONDS
        # First forget a completed first snapshot, and finished requests.
        self._note_unsent()
        self._first.update()
        task = self._store.next()
        if task is None or stream is None or stream.batch.bisector is not None:
            self._task = None
            return
        if task is not self._task:
            self._task, self._is_first, self._rows, self._attempts = task, True, CHUNK_ROWS, 0
            self._session_ends = 0
            self._route = self._list = self._keys = None
        if task.state != "running":
            task.state = "running"
            task.started = task.started or time.time()
        chunk_request = self._chunk_request(task)
        if chunk_request is None:
            self._end(task, "done")
            return
        stream.batch.flush()
        self._window = stream.batch.window = ChunkWindow(task.request.table)
        self._reading = ChunkRead(
            self._context.services.patience.server, chunk_request, self._streamed, is_first=self._is_first
        )

    def _note_unsent(self) -> None:
        """Record in the coverage ledger whose rows were not sent, before `BackfillStore.note` forgets it."""
        coverage = self._context.history.coverage
        for status in self._store.unnoted():
            if status.table == UNKNOWN:
                coverage.mark_all(f"may lack {status.lacks}")
                is_noted = not coverage.is_empty
            else:
                is_noted = status.is_superseded(self._store.statuses())
                is_noted = is_noted or coverage.mark(status.table, f"lacks {status.lacks}", by_hand=True)
            if is_noted:
                self._store.note(status.id)

    def _chunk_request(self, task: BackfillTask) -> ChunkRequest | None:
        request = task.request
        if not self._chosen.passes_whole(request.table):
            # Check this before reading: the table may be left out because it can't be read.
            raise excluded_error(request.table)
        namespace, _, name = request.table.partition(".")
        chunk_request = ChunkRequest(namespace, name, self._publications, request.where, rows=self._rows)
        if not request.keys:
            return replace(chunk_request, after=task.after, key=task.key, unkeyed=request.unkeyed)
        if self._keys is None:
            self._list = self._list or read_keys(Path(request.keys), task.done_keys)
            try:
                self._keys = list(islice(self._list, min(CHUNK_KEYS, self._rows)))
            except StateFailed as error:
                raise BackfillFailed(error) from error
        if not self._keys:
            return None
        texts = [key for key in self._keys if not isinstance(key, bytes)]
        return replace(chunk_request, keys=texts, key_columns=request.key_columns)

    def _check_reading(self) -> None:
        reading, task = self._reading, self._task
        assert reading is not None and task is not None
        # Keep the reason of the last failure until there is something newer to report.
        task.detail = reading.detail or task.detail
        if not reading.is_done:
            if task.wanted:
                # A pause or a cancellation does not wait for what the reading is blocked on.
                self._drop_chunk()
            return
        self._reading = None
        if reading.error is not None:
            self._read_failed(reading.error)
            return
        chunk = reading.chunk
        assert chunk is not None
        self._is_first, self._session_ends = False, 0
        if not task.request.keys and not task.request.where:
            task.estimate = chunk.estimate
        self._chunk = chunk
        self._wal_nudge.begin()

    def _wait_for_stream(self) -> None:
        """Encode the chunk once the stream has passed it, and so has passed the changes of its schema."""
        task, chunk, stream = self._task, self._chunk, self._stream
        assert task is not None and chunk is not None and stream is not None
        if self._position < chunk.high:
            if self._is_idle:
                self._wal_nudge.request(stream)
            return
        route = self._route_of(task, chunk)
        self._refusals = BackfillRowPolicy(
            self._context.output.policy, self._context.run.settings.on_error, route.topic
        )
        self._outgoing = OutgoingChunk(self._chunks, chunk, route, self._keys, self._refusals, self._numbers)
        self._outgoing.is_first = task.request.reason == "first"

    def _route_of(self, task: BackfillTask, chunk: Chunk) -> TableRoute:
        """Return the route of a chunk: that of the chunk before, unless the table was altered since.

        Raises BackfillFailed if its rows can't be sent, or not as requested.
        """
        if self._route is not None and self._route.relation == chunk.relation:
            return self._route
        request, route = task.request, self._context.services.router.route(chunk.relation)
        if route is None:
            raise excluded_error(request.table)
        # In a first snapshot each row is dropped individually, as in the stream.
        is_dropped = request.reason == "first" and self._context.run.settings.on_error == "log"
        if route.refusal is not None and not is_dropped:
            raise BackfillFailed(route.refusal)
        try:
            refuse_unlike(route, request.topic, request.spelling)
        except RefusedError as error:
            raise BackfillFailed(error) from error
        self._route = route
        return route

    def _read_failed(self, error: BwtuiError) -> None:
        assert self._task is not None
        if not isinstance(error, ConnectionFailed):
            raise BackfillFailed(with_advice(self._task, error))
        if isinstance(error, ChunkTooLarge):
            self._ask_for_fewer()
        if isinstance(error, SessionEnded):
            self._note_session_end(self._task.request, error)
        self._again(error.message)
        self._poll_at = time.monotonic() + _PAUSE_SECONDS

    def _note_session_end(self, request: BackfillRequest, error: BwtuiError) -> None:
        """Count an end of a chunk's session. Raises BackfillFailed if a condition may be the cause."""
        self._session_ends += 1
        if self._session_ends >= _MOST_ENDS and request.where:
            message = (
                f"the session that reads rows of {request.table} ended {self._session_ends} times in a row, "
                f"while the stream's session did not: {error.message}"
            )
            raise BackfillFailed(
                RefusedError(message, f"check whether the condition ends the session: {request.where}")
            )

    def _ask_for_fewer(self) -> None:
        self._rows = max(1, self._rows // 4)
        if self._keys is not None:
            postponed = self._keys[self._rows :]
            self._keys, self._list = self._keys[: self._rows], chain(postponed, self._list or ())

    def _put(self, until: float, *, at_boundary: bool) -> None:
        outgoing, stream, window = self._outgoing, self._stream, self._window
        assert outgoing is not None and stream is not None and window is not None
        if at_boundary and stream.batch.bisector is None:
            stream.batch.flush()
            if not window.fits(outgoing.route):
                self._again("reading the chunk again: the table was altered")
                return
            careful = None
            if self._context.history.transactions.is_used:
                # All of it goes into one Kafka transaction, together with the progress that marks it as done.
                outgoing.put_all(stream.batch, window, self._position)
                self._context.history.transactions.note_chunk(self._task_after_chunk())
                return
            if self._careful:
                # Then every failure belongs to this chunk.
                while self._context.output.sink.queued():
                    stream.pulse(0.05)
                careful = BatchBisector(self._context.output.sink, self._refusals, stream.while_settling)
            outgoing.put(stream.batch, window, self._position, until, careful)

    def _finish(self) -> None:
        """Store the progress once all of the chunk is acknowledged, and in the recording."""
        task, outgoing, chunk, stream = self._task, self._outgoing, self._chunk, self._stream
        assert task is not None and outgoing is not None and chunk is not None and stream is not None
        if any(span.pending for span in outgoing.spans):
            return
        self._is_recorded = self._is_recorded or stream.promise()
        if not self._is_recorded():
            return
        if self._refusals.error is not None:
            error = self._refusals.error
            message = f"a row of {task.request.table} can't be sent: {error.message}"
            raise BackfillFailed(RowError(message, error.hint or ""))
        task.take(self._task_after_chunk())
        self._careful = False
        self._attempts = 0
        self._route = outgoing.route
        if chunk.lines and (size := sum(map(len, chunk.lines))):
            self._rows = max(1, min(CHUNK_ROWS, _CHUNK_BYTES * len(chunk.lines) // size))
        self._keys = None
        self._drop_chunk()
        self._save(task)

    def _task_after_chunk(self) -> BackfillTask:
        """Return the task as it will be once the chunk is done."""
        task, outgoing, chunk = self._task, self._outgoing, self._chunk
        assert task is not None and outgoing is not None and chunk is not None
        counts = (*outgoing.counts, self._refusals.dropped)
        return task.after_chunk(counts, chunk.last, chunk.key, self._keys)

    # -- ends of chunks and tasks --------------------------------------------------------------------------

    def _broken(self, why: str) -> None:
        """Read the chunk again with fewer rows; a chunk that is never read in time fails."""
        if self._reading is not None:
            self._attempts += 1
            self._rows = max(_LEAST_ROWS, self._rows // 4)
        assert self._task is not None
        request = self._task.request
        if self._attempts >= _MOST_ATTEMPTS and request.reason != "first":
            message = f"a chunk of {request.table} could not be read in {self._attempts} attempts: {why}"
            raise BackfillFailed(
                RefusedError(message, "request fewer rows, with a condition on an indexed column")
            )
        self._again(f"reading the chunk again: {why}")

    def _again(self, detail: str) -> None:
        assert self._task is not None
        self._task.again += 1
        self._task.detail = detail
        self._drop_chunk()

    def _end(self, task: BackfillTask, state: BackfillState) -> None:
        task.state, task.ended, task.detail = state, time.time(), ""
        self._save(task)

    def _save(self, task: BackfillTask) -> None:
        """Write progress, or the end; the next chunk waits for this, but the stream does not: disks are slow.

        Nothing changes the task until it is written.
        """
        self._saving = self._saves.begin(partial(self._store.save, task))
        if task.is_over:
            self._task = None
        if task.state == "done" and not (task.request.where or task.request.keys):
            self._context.history.coverage.resume(task.request.table)

    def _fail(self, error: BwtuiError) -> None:
        task = self._task
        self._drop_chunk()
        if task is None or not self._first.fails(task, error):
            return
        task.error, task.hint, task.is_gone = (
            error.message,
            error.hint or "",
            isinstance(error, TableNotPublished),
        )
        self._context.run.report.error("backfill", error, task.request.table)
        if task.request.reason != "first" and not task.is_gone:
            self._store.failed(task.request.table, error.message)
        self._end(task, "failed")


#: Time in seconds for backfilled rows in one turn: minimum and maximum while the stream has rows of its own,
#: and a fixed time while it has none. The maximum is how long a server and a stop may have to wait; a full
#: batch of 4,000 rows takes 15 to 50 ms.
_LEAST_SECONDS, _MOST_SECONDS, _IDLE_SECONDS = 0.001, 0.1, 0.01


def seconds_beside(seconds: float, share: float, *, is_idle: bool) -> float:
    """Return the time for backfilled rows after a turn that took ``seconds``: ``share`` of both."""
    if is_idle:
        return _IDLE_SECONDS
    return max(_LEAST_SECONDS, min(_MOST_SECONDS, seconds * share / (1 - share)))


#: How often the server is asked for its position, and when a commit is written for it.
_ASK_SECONDS, _PUSH_SECONDS = 0.02, 0.4


class WalNudge:
    """Asks the server for its position, and finally gives it something to send."""

    def __init__(self, server: StreamServer) -> None:
        self._server = server
        self._ask_at = self._push_at = 0.0

    def begin(self) -> None:
        """Restart the timer, since a chunk was read."""
        self._push_at = time.monotonic() + _PUSH_SECONDS

    def request(self, stream: BackfillStream) -> None:
        """Ask the server, if it is time to."""
        now = time.monotonic()
        if now >= self._ask_at:
            stream.ask_position()
            self._ask_at = now + _ASK_SECONDS
        if now >= self._push_at:
            write_commit(self._server)
            self._push_at = now + _PUSH_SECONDS


def write_commit(server: StreamServer) -> None:
    """Write a commit in a thread, so that a stream passes what was inserted into the WAL before.

    PostgreSQL writes whole pages while a transaction is open, and the rest of a record only with a commit, or
    every 15 s. Failures are ignored: the caller tries again while it is still waiting.
    """

    def push() -> None:
        try:
            connection = server.connect()
            try:
                committed_lsn(connection)
            finally:
                connection.close()
        except Exception:
            return

    threading.Thread(target=push, name="backfill push", daemon=True).start()


#: The first pause between two checks of running transactions, and the longest one.
_PAUSE_FIRST, _PAUSE_LAST = 0.002, 0.25
#: After waiting this long for a lock, the chunk is read later: a session that alters the table must not wait
#: for the relay.
_LOCK_TIMEOUT = "2s"


class ChunkAbandoned(Exception):
    """The chunk is not needed any more."""


class ChunkRead:
    """One chunk that is being read; its thread ends on its own, even if the chunk is not needed any more."""

    def __init__(
        self, server: StreamServer, request: ChunkRequest, streamed: SentTransactions, *, is_first: bool
    ) -> None:
        """Start the thread at once: the window must be open already.

        ``is_first`` is true for the first chunk of its task, or of this session.
        """
        self._connection: Connection | None = None
        # A different server may lack sent changes.
        self._server = server
        self._request = request
        self._streamed = streamed
        self._is_first = is_first
        self._is_needed = True
        #: The wait that blocks it, or "".
        self.detail = ""
        self.chunk: Chunk | None = None
        self.error: BwtuiError | None = None
        threading.Thread(target=self._run, name="backfill", daemon=True).start()

    @property
    def is_done(self) -> bool:
        """Whether there is a chunk, or an error."""
        return self.chunk is not None or self.error is not None

    def give_up(self) -> None:
        """Make the thread end soon, without a result."""
        self._is_needed = False
        # In a thread, because cancelling opens a connection of its own.
        threading.Thread(target=self._cancel, name="backfill cancel", daemon=True).start()

    def _cancel(self) -> None:
        connection = self._connection
        if connection is not None:
            with suppress(psycopg2.Error):
                connection.cancel()

    def _run(self) -> None:
        connection: Connection | None = None
        try:
            connection = self._connection = self._server.connect()
            if self._is_first and self._request.where:
                # The condition came over the control socket, and becomes a part of a statement.
                request = with_real_name(connection, self._request)
                check_condition(self._server.dsn, request.namespace, request.name, request.where)
            # A policy that hides rows must make the query fail, not leave rows out.
            execute(connection, "set row_security = off")
            execute(connection, f"set lock_timeout = '{_LOCK_TIMEOUT}'")
            chunk = read_chunk(connection, self._request, self._wait)
            if connection.closed:
                # The session was cut off in the middle of its rows, which were large.
                connection = self._server.connect()
                chunk = replace(chunk, high=inserted_lsn(connection))
            self.chunk = chunk
        except ChunkAbandoned:
            pass
        except BwtuiError as error:
            self.error = error
        except Exception as error:
            self.error = ConnectionFailed(
                f"the rows of {self._request.qualified_name} can't be read ({type(error).__name__})",
                "the relay reads them again; PostgreSQL's log may show the cause",
            )
        finally:
            if connection is not None:
                connection.close()

    def _wait(self, connection: Connection, oid: int) -> None:
        """Wait until everything that was sent before the window was opened is visible.

        Before the first chunk, also wait for transactions that have been writing to the table since before it
        was seen to be published.
        """
        begun = time.monotonic()
        if self._is_first:
            before = writers(connection, oid)
            self._until(
                lambda: still_writing(connection, oid, before),
                lambda remaining: self._writing(remaining, begun),
            )
        sent = self._streamed.among(in_progress(connection))
        if sent:
            self._until(
                lambda: self._unseen(connection, sent), lambda remaining: self._hidden(remaining, begun)
            )
        self.detail = ""

    def _unseen(self, connection: Connection, sent: set[int]) -> set[int]:
        remaining = sent & in_progress(connection)
        uncertain = {xid for xid in remaining if not self._streamed.is_certain(xid)}
        if uncertain:
            # It was already running before this relay. While its session waits for its client, it has not
            # begun to commit.
            remaining -= uncertain & idle_in_transaction(connection)
        return remaining

    def _until(
        self, remaining_of: Callable[[], set[int] | set[str]], describe: Callable[[set[int] | set[str]], str]
    ) -> None:
        pause = _PAUSE_FIRST
        while remaining := remaining_of():
            if not self._is_needed:
                raise ChunkAbandoned
            if pause >= _PAUSE_LAST:
                self.detail = describe(remaining)
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_LAST)

    @staticmethod
    def _writing(remaining: set[int] | set[str], begun: float) -> str:
        since = duration(time.monotonic() - begun)
        more = f" and {len(remaining) - 1} more" if len(remaining) > 1 else ""
        return f"waiting for an open transaction that writes to the table{more}, for {since}"

    @staticmethod
    def _hidden(remaining: set[int] | set[str], begun: float) -> str:
        numbers = ", ".join(sorted(map(str, remaining))[:3])
        since = duration(time.monotonic() - begun)
        return f"waiting until transaction {numbers} is visible to other sessions, for {since}"


def excluded_error(table: str) -> BackfillFailed:
    """Return the failure for a table that --table or --exclude-table leaves out."""
    return BackfillFailed(
        TableNotPublished(f"the relay's options exclude table {table}", "see --table and --exclude-table")
    )
