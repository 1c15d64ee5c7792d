"""Sample the slot's lag once a second, in a thread of its own."""

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import psycopg2

from bwtui.errors import BwtuiError
from bwtui.model.events import event
from bwtui.model.number_format import duration
from bwtui.model.service_views import LongRunningTransaction, SlotEntry, Slots, Standby
from bwtui.model.sql import quote_identifier
from bwtui.source.connection import CURRENT_LSN, Connection, execute, query, statement_failed
from bwtui.source.raw_stream import StreamServer
from bwtui.source.slot import slot_state
from bwtui.source.sql_hints import format_sql

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
    sampled_at: float = 0.0
    clock_ahead: float = 0.0
    server_lsn: int = 0
    restart_lsn: int = 0
    wal_status: str = ""
    #: True if the slot ends with the session that takes the first snapshot.
    is_temporary: bool = False
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
        self.pending = PendingQuery()
        #: Why the last attempt to sample failed, or "".
        self.failure = ""
        self._begun = time.monotonic()
        #: Whether to query who holds the locks that bwtui's sessions wait for.
        self.reads_blockers = False
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
        return time.monotonic() - (self.lag.sampled_at or self._begun)

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
                    self.pending = PendingQuery(self.pending.since or time.monotonic(), is_long=True)
                    connection = self._server.connect()
                self._sample(connection)
                self.pending, self.failure = PendingQuery(), ""
            except (psycopg2.Error, BwtuiError) as error:
                if connection is not None:
                    connection.close()
                connection = None
                plain = error if isinstance(error, BwtuiError) else statement_failed(error)
                self.failure = plain.message
                if not _SILENT.search(self.failure):
                    # The server has answered, although it rejects the session.
                    self.pending = PendingQuery()
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

    def _begin_query(self, *, is_long: bool = False) -> None:
        """Record that the previous query was answered, and that the next one begins."""
        self.pending = PendingQuery(time.monotonic(), is_long)

    def _query(self, connection: Connection, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        self._begin_query()
        return query(connection, sql, *args)

    def _sample(self, connection: Connection) -> None:
        name = self._slot()
        self._begin_query()
        state = slot_state(connection, name)
        if state is None:
            sql = f"select ({CURRENT_LSN}::pg_lsn - '0/0')::bigint, pg_catalog.pg_is_in_recovery()"
            [(server, in_recovery)] = self._query(connection, sql)
            lag = Lag(time.time(), time.monotonic(), server_lsn=int(server), in_recovery=in_recovery)
            self._keep(lag, connection)
            return
        [(clock, spill, in_recovery)] = self._query(connection, _SPILL_SQL, name)
        ahead = clock - time.time()
        sender = self._query(connection, _SENDER_SQL, state.active_pid) if state.active_pid else []
        kind, event, sent = sender[0] if sender else (None, None, None)
        lag = Lag(
            time=time.time(),
            sampled_at=time.monotonic(),
            clock_ahead=ahead,
            server_lsn=state.server_lsn,
            restart_lsn=state.restart_lsn,
            wal_status=state.wal_status or "",
            is_temporary=state.temporary,
            safe_wal_bytes=state.safe_wal_bytes,
            retained_bytes=max(0, state.server_lsn - state.restart_lsn) if state.restart_lsn else 0,
            spill_bytes=None if spill is None else int(spill),
            waits_for=("" if kind in _WORK else event or "") if sender else None,
            sender_pid=state.active_pid,
            sent_lsn=None if sent is None else int(sent),
            in_recovery=in_recovery,
        )
        self._keep(lag, connection)

    def _keep(self, lag: Lag, connection: Connection) -> None:
        self.lag = replace(lag, blockers=self._blockers(connection))
        # Not the wall clock, which may be set: the rate would be wrong.
        self._history.append((lag.sampled_at, lag.server_lsn))
        self._written.append((lag.sampled_at, lag.server_lsn))
        while lag.sampled_at - self._written[0][0] > _RATE_SECONDS:
            self._written.popleft()

    def _blockers(self, connection: Connection) -> tuple[Blocker, ...]:
        if not (self.reads_blockers or self._is_waiting):
            return ()
        return tuple(Blocker(*row) for row in self._query(connection, _BLOCKERS_SQL))


# Find what retains WAL on a server: its slots, long-open transactions, and standbys.

T = TypeVar("T", SlotEntry, LongRunningTransaction)

#: Minimum age of the transactions that are shown (seconds), and their maximum number.
LONG_SECONDS = 5
_MOST = 100
#: Columns that exist since PostgreSQL 17.
_SINCE_17 = """extract(epoch from pg_catalog.clock_timestamp() - s.inactive_since)::float8,
       s.invalidation_reason"""
_BEFORE_17 = "null::float8, null::text"
_SLOTS_SQL = f"""
select s.slot_name::text, s.slot_type, s.plugin::text, s.database::text, s.temporary, s.active, s.active_pid,
       s.wal_status, s.restart_lsn::text, s.confirmed_flush_lsn::text,
       pg_catalog.pg_wal_lsn_diff({CURRENT_LSN}::pg_lsn, s.restart_lsn)::bigint, s.safe_wal_size,
       %s, t.spill_bytes
  from pg_catalog.pg_replication_slots s
  left join pg_catalog.pg_stat_replication_slots t on t.slot_name = s.slot_name::text
 order by s.slot_name
"""
# For another role's session, PostgreSQL shows that a transaction writes and its xmin, but neither its age nor
# its state.
_SESSIONS_SQL = f"""
select 'pid ' || a.pid, coalesce(a.usename::text, ''), coalesce(a.datname::text, ''), a.application_name,
       coalesce(a.state, ''), extract(epoch from pg_catalog.clock_timestamp() - a.xact_start)::float8,
       a.backend_xid is not null,
       pg_catalog.age(a.backend_xmin)
  from pg_catalog.pg_stat_activity a
 where a.pid <> pg_catalog.pg_backend_pid() and a.backend_type is distinct from 'walsender'
   and (pg_catalog.clock_timestamp() - a.xact_start > interval '{LONG_SECONDS} s'
        or a.xact_start is null and a.backend_type is null
           and (a.backend_xid is not null or a.backend_xmin is not null))
 order by a.xact_start nulls last limit {_MOST}
"""
_PREPARED_SQL = f"""
select 'prepared ' || gid, owner::text, database::text, '', 'prepared',
       extract(epoch from pg_catalog.clock_timestamp() - prepared)::float8, true, pg_catalog.age(transaction)
  from pg_catalog.pg_prepared_xacts order by prepared limit {_MOST}
"""
_STANDBYS_SQL = f"""
select r.application_name, coalesce(r.client_addr::text, 'local'), coalesce(r.state, ''),
       coalesce(r.sync_state, ''), s.slot_name::text,
       pg_catalog.pg_wal_lsn_diff({CURRENT_LSN}::pg_lsn, r.replay_lsn)::bigint,
       extract(epoch from r.replay_lag)::float8
  from pg_catalog.pg_stat_replication r
  left join pg_catalog.pg_replication_slots s on s.active_pid = r.pid
 where s.slot_type is distinct from 'logical'
 order by 1, 2
"""
_LIMIT_SQL = """select nullif(setting::bigint, -1) * 1024 * 1024 from pg_catalog.pg_settings
                 where name = 'max_slot_wal_keep_size'"""


def list_slots(connection: Connection) -> tuple[SlotEntry, ...]:
    """Return all slots of the server. Raises psycopg2.Error."""
    newer = _SINCE_17 if connection.server_version >= 170_000 else _BEFORE_17
    rows = query(connection, _SLOTS_SQL.replace("%s", newer))
    return tuple(_since(SlotEntry(*row), "inactive_since") for row in rows)


def read_slots(connection: Connection) -> Slots:
    """Return what retains WAL on the server now; a note reports what the role may not see.

    Raises psycopg2.OperationalError or InterfaceError if the server does not answer.
    """
    notes: list[str] = []

    def rows(subject: str, sql: str) -> list[tuple[Any, ...]]:
        try:
            return query(connection, sql)
        except (psycopg2.OperationalError, psycopg2.InterfaceError):
            raise
        except psycopg2.Error as error:
            notes.append(f"{subject} can't be read: {error.diag.message_primary}")
            return []

    try:
        slots = list_slots(connection)
    except psycopg2.ProgrammingError as error:
        return Slots(time.time(), f"the slots can't be read: {error.diag.message_primary}")
    transactions = rows("open transactions", _SESSIONS_SQL) + rows("prepared transactions", _PREPARED_SQL)
    holders = [_since(LongRunningTransaction(*row), "since") for row in transactions]
    standbys = [Standby(*row) for row in rows("standbys", _STANDBYS_SQL)]
    masked = sum(holder.since is None for holder in holders) + sum(not standby.state for standby in standbys)
    if masked:
        notes.append(_masked(masked, connection.info.user))
    limit = rows("max_slot_wal_keep_size", _LIMIT_SQL)
    return Slots(
        time=time.time(),
        notes=tuple(notes),
        keep_limit_bytes=limit[0][0] if limit else None,
        slots=slots,
        holders=tuple(holders),
        standbys=tuple(standbys),
    )


def _since(entry: T, field: str) -> T:
    """Convert an age from the server into a local time: the two clocks may differ."""
    age = getattr(entry, field)
    return entry if age is None else replace(entry, **{field: time.time() - age})


def _masked(number: int, role: str) -> str:
    whose = "a session of another role" if number == 1 else f"{number} sessions of other roles"
    grant = format_sql(f"GRANT pg_read_all_stats TO {quote_identifier(role)}")
    return f"PostgreSQL hides details of {whose} from this role; to show them, run: {grant}"
