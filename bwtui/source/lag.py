"""Sample the slot's lag once a second, in a thread of its own."""

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import psycopg2

from bwtui.errors import BwtuiError
from bwtui.model.events import event
from bwtui.model.number_format import duration
from bwtui.source.connection import Connection, execute, query, statement_failed
from bwtui.source.failover.stream_server import StreamServer
from bwtui.source.slot import CURRENT_LSN, slot_state

_log = logging.getLogger(__name__)
_PAUSE_SECONDS = 1.0
_KEPT = 7_200
#: Lock timeout of the second session (seconds); meanwhile the first one finds out who holds the lock.
_LOCK_SECONDS = 3
#: Period over which the WAL write rate is measured.
_RATE_SECONDS = 60.0
#: Wait events that count as work: disk I/O, and short waits for shared memory.
_WORK = ("IO", "LWLock")
_SENDER_SQL = """
select wait_event_type, wait_event, (sent_lsn - '0/0')::bigint
  from pg_catalog.pg_stat_activity left join pg_catalog.pg_stat_replication using (pid) where pid = %s"""
#: Several of our sessions may wait for the same one. Not every role may see when a transaction of another
#: role began.
_BLOCKERS_SQL = """
select other.pid, other.application_name,
       extract(epoch from clock_timestamp() - min(other.xact_start))::float8,
       min((select relation::regclass::text from pg_catalog.pg_locks
             where pid = ours.pid and not granted and relation is not null and database =
                   (select oid from pg_catalog.pg_database where datname = current_database()) limit 1))
  from pg_catalog.pg_stat_activity ours
 cross join lateral unnest(pg_catalog.pg_blocking_pids(ours.pid)) blocker
  join pg_catalog.pg_stat_activity other on other.pid = blocker
 where ours.datname = current_database() and ours.usename = current_user
   and ours.application_name = current_setting('application_name') and ours.wait_event_type = 'Lock'
 group by 1, 2
 order by 3 desc nulls last limit 3"""
#: One row, whether or not the slot exists.
_SPILL_SQL = """
select extract(epoch from clock_timestamp())::float8,
       (select spill_bytes from pg_catalog.pg_stat_replication_slots where slot_name = %s),
       pg_catalog.pg_is_in_recovery()"""
#: Error messages for a server that did not answer, from libpq or from the operating system through it.
_SILENT = re.compile("time(?:d )?out")


class Blocker(NamedTuple):
    """A session that holds a lock which one of bwtui's sessions waits for."""

    pid: int
    application: str
    #: Age of its transaction; None if the role may not see other roles' sessions.
    seconds: float | None
    #: The table that it has locked; None if the lock is not on a table.
    table: str | None

    def __str__(self) -> str:
        table = f" with a lock on {self.table}" if self.table else ""
        age = f", with a transaction open for {duration(self.seconds)}" if self.seconds else ""
        return f"pid {self.pid}{table}{age}{f', application {self.application}' if self.application else ''}"

    @property
    def end(self) -> str:
        """The statement that terminates the session."""
        return f"SELECT pg_terminate_backend({self.pid})"


@dataclass(frozen=True, slots=True)
class Lag:
    """One sample of the slot's lag; all zero before the first."""

    time: float = 0.0
    #: The same moment by ``time.monotonic``, and how far the server's clock was ahead of the local one
    #: (seconds).
    looked_at: float = 0.0
    clock_ahead: float = 0.0
    server_lsn: int = 0
    restart_lsn: int = 0
    wal_status: str = ""
    safe_wal_bytes: int | None = None
    retained_bytes: int = 0
    spill_bytes: int | None = None
    #: Wait event of the walsender; "" while it works, disk I/O included; None without a stream.
    waits_for: str | None = None
    sender_pid: int | None = None
    #: How far it has read the WAL; None if the role may not see it (pg_read_all_stats).
    sent_lsn: int | None = None
    #: Sessions that hold locks which bwtui's sessions wait for.
    blockers: "tuple[Blocker, ...]" = ()
    #: True if the server is a standby.
    in_recovery: bool = False


class PendingQuery(NamedTuple):
    """The start of a query that is unanswered so far, by ``time.monotonic``; 0 if there is none.

    ``is_long``: it takes more than one round trip, or reads more than the row of a slot.
    """

    since: float = 0.0
    is_long: bool = False


class LagSampler:
    """Samples the slot once a second; while the server does not answer, the last sample ages.

    None of its own queries needs a table lock. Those that do run in ``on_tick``, in another thread and
    session: pg_publication_tables locks each table, and waits for an ALTER TABLE.
    """

    def __init__(
        self,
        server: StreamServer,
        slot: Callable[[], str],
        on_tick: Callable[[Connection], None],
        on_lock: Callable[[tuple[Blocker, ...] | None], None] = lambda blockers: None,
        on_failure: Callable[[str], None] = lambda says: None,
    ) -> None:
        """Take functions that name the slot (``slot``) and run further queries (``on_tick``, once a second).

        ``on_lock`` is called with the sessions that block ``on_tick`` by a lock, and with None once it has
        succeeded. ``on_failure`` is called with the reason when ``on_tick`` fails.
        """
        self.lag = Lag()
        self._on_lock = on_lock
        self._on_failure = on_failure
        self._is_waiting = False
        self._tick_soon = threading.Event()
        self._ticks = threading.Thread(target=self._tick, name="publications", daemon=True)
        self._server = server
        self._slot = slot
        self._on_tick = on_tick
        self._history: deque[tuple[float, int]] = deque(maxlen=_KEPT)
        self._written: deque[tuple[float, int]] = deque()
        self.asking = PendingQuery()
        #: Why the last attempt to sample failed, or "".
        self.failure = ""
        self._begun = time.monotonic()
        #: Whether to query who holds the locks that bwtui's sessions wait for.
        self.asks_for_blockers = False
        self._stop = threading.Event()
        self._soon = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lag", daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._begun = time.monotonic()
        self._thread.start()
        self._ticks.start()

    @property
    def age(self) -> float:
        """Age of the last sample, or the time since the start if there is none (seconds)."""
        return time.monotonic() - (self.lag.looked_at or self._begun)

    def stop(self) -> None:
        """Stop, and wait for the threads."""
        self._stop.set()
        self.hurry()
        for thread in (self._thread, self._ticks):
            if thread.is_alive():
                thread.join(timeout=5)

    def hurry(self) -> None:
        """Sample immediately instead of after the pause."""
        self._soon.set()
        self._tick_soon.set()

    def seconds_behind(self, confirmed_lsn: int) -> float:
        """Return for how many seconds there has been WAL after ``confirmed_lsn``, as far as samples go
        back.
        """
        for moment, lsn in tuple(self._history):
            if lsn > confirmed_lsn:
                return max(0.0, time.monotonic() - moment)
        return 0.0

    def safe_seconds(self) -> float | None:
        """Return how many seconds the safe WAL lasts at the present write rate; None: no limit."""
        written, safe = tuple(self._written), self.lag.safe_wal_bytes
        if safe is None or len(written) < 2:
            return None
        (start, first), (end, last) = written[0], written[-1]
        grown = last - first
        return max(safe, 0) * (end - start) / grown if grown > 0 else None

    def forget_before(self, confirmed_lsn: int) -> None:
        """Drop samples that are confirmed, which keeps `seconds_behind` cheap."""
        history = self._history
        while history and history[0][1] <= confirmed_lsn:
            history.popleft()

    def _run(self) -> None:
        connection: Connection | None = None
        epoch = self._server.epoch
        while self._is_due():
            try:
                if connection is not None and epoch != self._server.epoch:
                    connection.close()
                    connection = None
                if connection is None:
                    epoch = self._server.epoch
                    # An earlier query counts as unanswered until a server answers.
                    self.asking = PendingQuery(self.asking.since or time.monotonic(), is_long=True)
                    connection = self._server.connect()
                self._look(connection)
                self.asking, self.failure = PendingQuery(), ""
            except (psycopg2.Error, BwtuiError) as error:
                if connection is not None:
                    connection.close()
                connection = None
                plain = error if isinstance(error, BwtuiError) else statement_failed(error)
                self.failure = plain.message
                if not _SILENT.search(self.failure):
                    # The server has answered, although it rejects the session.
                    self.asking = PendingQuery()
                self._stop.wait(_PAUSE_SECONDS)
        if connection is not None:
            connection.close()

    def _tick(self) -> None:
        connection: Connection | None = None
        epoch = self._server.epoch
        while not self._stop.is_set():
            try:
                if connection is not None and epoch != self._server.epoch:
                    connection.close()
                    connection = None
                if connection is None:
                    epoch = self._server.epoch
                    connection = self._server.connect()
                    execute(connection, f"set lock_timeout = '{_LOCK_SECONDS}s'")
                self._is_waiting = True
                self._on_tick(connection)
                self._on_lock(None)
            except psycopg2.errors.LockNotAvailable:
                self._on_lock(self.lag.blockers)
            except Exception as error:
                # No exception may end this thread: publications would never be checked again.
                is_expected = isinstance(error, psycopg2.Error | BwtuiError)
                says = _log.info if is_expected else _log.warning
                extra = event("tables_unseen")
                says("publications and tables: %s", error, exc_info=not is_expected, extra=extra)
                self._on_failure(" ".join(str(error).split()))
                if connection is not None:
                    connection.close()
                connection = None
            self._is_waiting = False
            self._tick_soon.wait(_PAUSE_SECONDS)
            self._tick_soon.clear()
        if connection is not None:
            connection.close()

    def _is_due(self) -> bool:
        self._soon.wait(_PAUSE_SECONDS if self.lag.time else 0)
        self._soon.clear()
        return not self._stop.is_set()

    def _ask(self, *, is_long: bool = False) -> None:
        """Record that the previous query was answered, and that the next one begins."""
        self.asking = PendingQuery(time.monotonic(), is_long)

    def _query(self, connection: Connection, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        self._ask()
        return query(connection, sql, *args)

    def _look(self, connection: Connection) -> None:
        name = self._slot()
        self._ask()
        state = slot_state(connection, name)
        if state is None:
            sql = f"select ({CURRENT_LSN}::pg_lsn - '0/0')::bigint, pg_catalog.pg_is_in_recovery()"
            [(server, in_recovery)] = self._query(connection, sql)
            look = Lag(time.time(), time.monotonic(), server_lsn=int(server), in_recovery=in_recovery)
            self._keep(look, connection)
            return
        [(clock, spill, in_recovery)] = self._query(connection, _SPILL_SQL, name)
        ahead = clock - time.time()
        sender = self._query(connection, _SENDER_SQL, state.active_pid) if state.active_pid else []
        kind, event, sent = sender[0] if sender else (None, None, None)
        look = Lag(
            time=time.time(),
            looked_at=time.monotonic(),
            clock_ahead=ahead,
            server_lsn=state.server_lsn,
            restart_lsn=state.restart_lsn,
            wal_status=state.wal_status or "",
            safe_wal_bytes=state.safe_wal_bytes,
            retained_bytes=max(0, state.server_lsn - state.restart_lsn) if state.restart_lsn else 0,
            spill_bytes=None if spill is None else int(spill),
            waits_for=("" if kind in _WORK else event or "") if sender else None,
            sender_pid=state.active_pid,
            sent_lsn=None if sent is None else int(sent),
            in_recovery=in_recovery,
        )
        self._keep(look, connection)

    def _keep(self, look: Lag, connection: Connection) -> None:
        self.lag = replace(look, blockers=self._blockers(connection))
        # Not the wall clock, which may be set: the rate would be wrong.
        self._history.append((look.looked_at, look.server_lsn))
        self._written.append((look.looked_at, look.server_lsn))
        while look.looked_at - self._written[0][0] > _RATE_SECONDS:
            self._written.popleft()

    def _blockers(self, connection: Connection) -> tuple[Blocker, ...]:
        if not (self.asks_for_blockers or self._is_waiting):
            return ()
        return tuple(Blocker(*row) for row in self._query(connection, _BLOCKERS_SQL))
