"""A chunk on its way from PostgreSQL, read in a thread of its own while the stream goes on."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import psycopg2

from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.model.figures import duration
from bwtui.relay.backfill.streamed import Streamed
from bwtui.source.chosen_rows import check_condition
from bwtui.source.chunks.reading import Asked, Chunk, inserted_lsn, read_chunk, told_apart
from bwtui.source.chunks.visibility import idle_in_transaction, in_progress, still_writing, writers
from bwtui.source.connection import Connection, execute
from bwtui.source.failover.stream_server import StreamServer

#: The first pause between two looks at what is under way, and the longest one.
_PAUSE_FIRST, _PAUSE_LAST = 0.002, 0.25
#: Behind a lock for so long the chunk is read later: who alters a table must not wait for us.
_LOCK_TIMEOUT = "2s"


class GivenUp(Exception):
    """Nobody wants the chunk any more."""


class Reading:
    """One chunk that is being read; its thread ends by itself, whether anybody waits for it or not."""

    def __init__(self, server: StreamServer, asked: Asked, streamed: Streamed, *, is_first: bool) -> None:
        """Begin at once: the window must be open by now.

        ``is_first``: of its task, or of this session's.
        """
        self._connection: Connection | None = None
        # Another server may lack what was sent.
        self._server = server
        self._asked = asked
        self._streamed = streamed
        self._is_first = is_first
        self._is_wanted = True
        #: What it waits for, or "".
        self.detail = ""
        self.chunk: Chunk | None = None
        self.error: BwtuiError | None = None
        threading.Thread(target=self._run, name="backfill", daemon=True).start()

    @property
    def is_done(self) -> bool:
        """Whether there is a chunk, or an error."""
        return self.chunk is not None or self.error is not None

    def give_up(self) -> None:
        """Let the thread end soon; nothing comes of it."""
        self._is_wanted = False
        # In a thread: it takes a connection of its own.
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
            if self._is_first and self._asked.where:
                # It came over the control socket, and becomes a part of a statement.
                asked = told_apart(connection, self._asked)
                check_condition(self._server.dsn, asked.namespace, asked.name, asked.where)
            # A policy that hides rows must make the query fail, not leave them out.
            execute(connection, "set row_security = off")
            execute(connection, f"set lock_timeout = '{_LOCK_TIMEOUT}'")
            chunk = read_chunk(connection, self._asked, self._wait)
            if connection.closed:
                # It was cut off in the middle of its rows, which were large.
                connection = self._server.connect()
                chunk = replace(chunk, high=inserted_lsn(connection))
            self.chunk = chunk
        except GivenUp:
            pass
        except BwtuiError as error:
            self.error = error
        except Exception as error:
            self.error = ConnectionFailed(
                f"the rows of {self._asked.qualified_name} can't be read ({type(error).__name__})",
                "PostgreSQL's log may say why; they are read again",
            )
        finally:
            if connection is not None:
                connection.close()

    def _wait(self, connection: Connection, oid: int) -> None:
        """Wait until everything is visible that was sent before the window was opened.

        And, once a task, until those are done that write the table since before it was seen to be published.
        """
        begun = time.monotonic()
        if self._is_first:
            before = writers(connection, oid)
            self._until(
                lambda: still_writing(connection, oid, before), lambda left: self._writing(left, begun)
            )
        sent = self._streamed.among(in_progress(connection))
        if sent:
            self._until(lambda: self._unseen(connection, sent), lambda left: self._hidden(left, begun))
        self.detail = ""

    def _unseen(self, connection: Connection, sent: set[int]) -> set[int]:
        left = sent & in_progress(connection)
        uncertain = {xid for xid in left if not self._streamed.is_certain(xid)}
        if uncertain:
            # It ran before this relay did; whoever can still say something has not committed.
            left -= uncertain & idle_in_transaction(connection)
        return left

    def _until(
        self, look: Callable[[], set[int] | set[str]], say: Callable[[set[int] | set[str]], str]
    ) -> None:
        pause = _PAUSE_FIRST
        while left := look():
            if not self._is_wanted:
                raise GivenUp
            if pause >= _PAUSE_LAST:
                self.detail = say(left)
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_LAST)

    @staticmethod
    def _writing(left: set[int] | set[str], begun: float) -> str:
        since = duration(time.monotonic() - begun)
        others = f" and {len(left) - 1} more" if len(left) > 1 else ""
        return f"waiting for an open transaction that writes the table{others}, for {since}"

    @staticmethod
    def _hidden(left: set[int] | set[str], begun: float) -> str:
        numbers = ", ".join(sorted(map(str, left))[:3])
        since = duration(time.monotonic() - begun)
        return f"waiting until transaction {numbers} is visible to others, for {since}"
