"""Read a chunk from PostgreSQL in its own thread while the stream continues."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import psycopg2

from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.model.number_format import duration
from bwtui.relay.backfill.sent_transactions import SentTransactions
from bwtui.source.chunks.chunk_reader import Chunk, ChunkRequest, inserted_lsn, read_chunk, with_real_name
from bwtui.source.chunks.visibility import idle_in_transaction, in_progress, still_writing, writers
from bwtui.source.connection import Connection, execute
from bwtui.source.failover.stream_server import StreamServer
from bwtui.source.row_condition import check_condition

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
