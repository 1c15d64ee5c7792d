"""Find what retains WAL on a server: its slots, long-open transactions, and standbys."""

import time
from dataclasses import replace
from typing import Any, TypeVar

import psycopg2

from bwtui.model.service_views import LongRunningTransaction, SlotEntry, Slots, Standby
from bwtui.model.sql import quote_identifier
from bwtui.source.connection import Connection, query
from bwtui.source.slot import CURRENT_LSN
from bwtui.source.sql_hints import format_sql

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
