"""Query PostgreSQL alongside the stream, from any thread: a row or the catalog as they are now."""

from collections import deque
from collections.abc import Callable
from typing import TypeVar

import psycopg2

from bwtui.errors import ConnectionFailed, RefusedError, RowError
from bwtui.source.connection import Connection, execute
from bwtui.source.failover.stream_server import StreamServer
from bwtui.source.sqlstate_hints import hint_for

T = TypeVar("T")


class QueryPool:
    """Runs queries over pooled sessions; an abandoned query keeps its session until it ends."""

    def __init__(self, server: StreamServer) -> None:
        self._server = server
        #: Sessions that no query uses at present.
        self._idle: deque[Connection] = deque()
        self._is_closed = False

    def ask(self, question: Callable[[Connection], T]) -> T:
        """Return the result of ``question``; blocks until it is there.

        Raises ConnectionFailed, which is worth a retry, RowError for an invalid value, or RefusedError.
        """
        try:
            idle = self._idle
            session = self._take(idle)
            try:
                return question(session)
            except (psycopg2.OperationalError, psycopg2.InterfaceError):
                session.close()
                raise
            finally:
                self._give_back(session, idle)
        except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
            reason = " ".join(str(error).split())
            hint = "the relay retries; check that PostgreSQL runs and has free connections"
            raise ConnectionFailed(f"a query to PostgreSQL failed: {reason}", hint) from error
        except (psycopg2.DataError, psycopg2.errors.DataCorrupted) as error:
            # PostgreSQL's message may quote a row's value.
            raise RowError(
                f"PostgreSQL rejects a value of the row (SQLSTATE {error.pgcode})",
                "fix the row in PostgreSQL, or write such rows to the dead letters with --on-error log",
            ) from None
        except psycopg2.Error as error:
            raise RefusedError(f"PostgreSQL: {error.diag.message_primary}", hint_for(error)) from error

    def close(self) -> None:
        """Close the sessions, those in use as soon as their queries end."""
        self._is_closed = True
        self.renew()

    def renew(self) -> None:
        """Close the idle sessions: the next query opens a new one."""
        # A query in progress returns its session to the former pool, and it is closed there.
        former, self._idle = self._idle, deque()
        while former:
            former.pop().close()

    def _take(self, idle: deque[Connection]) -> Connection:
        try:
            return idle.pop()
        except IndexError:
            session = self._server.connect()
        # A policy that hides rows must make a query fail: a row that is not found counts as deleted.
        execute(session, "set row_security = off")
        # A query that is blocked by a lock is repeated.
        execute(session, "set lock_timeout = '2s'")
        return session

    def _give_back(self, session: Connection, idle: deque[Connection]) -> None:
        if self._is_closed or idle is not self._idle:
            session.close()
        elif not session.closed:
            idle.append(session)
