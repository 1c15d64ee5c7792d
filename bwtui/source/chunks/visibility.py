"""Which transactions are under way, so that a snapshot of now does not show them."""

from typing import NamedTuple

from psycopg import pq

from bwtui.source.connection import Connection, query
from bwtui.source.raw.session import execute_raw

_WRITERS_SQL = """
select distinct l.virtualtransaction from pg_catalog.pg_locks l
 where l.locktype = 'relation' and l.granted
   and l.pid is distinct from pg_catalog.pg_backend_pid()
   and l.mode in ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
   and l.database = (select d.oid from pg_catalog.pg_database d
                      where d.datname = pg_catalog.current_database())
   and l.relation in (select %s::oid union all
                      select relid::oid from pg_catalog.pg_partition_tree(%s::oid))
"""
# A standby has no locks of the primary's writers, but it has replayed their first records: their numbers are
# below the next one, as age() has it there, and at or above the oldest that runs.
_PRIMARY_SQL = """
select (pg_catalog.age('3'::pg_catalog.xid)::bigint + 3) & 4294967295,
       pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::numeric % 4294967296
 where pg_catalog.pg_is_in_recovery()
"""


class Writers(NamedTuple):
    """Transactions that may have written a table before it was seen to be published.

    ``sessions`` are those of this server, as pg_locks names them. ``before``: on a standby, every transaction
    of the primary below this number (32 bits).
    """

    sessions: frozenset[str]
    before: int | None = None


def writers(connection: Connection, oid: int) -> Writers:
    """Return the transactions that write table ``oid`` or a partition of it.

    A table that has just joined a publication is not published for their earlier changes.
    """
    sessions = frozenset(str(row[0]) for row in query(connection, _WRITERS_SQL, oid, oid))
    on_primary = query(connection, _PRIMARY_SQL)
    return Writers(sessions, int(on_primary[0][0]) if on_primary else None)


def still_writing(connection: Connection, oid: int, before: Writers) -> set[str]:
    """Return those of the writers ``before`` that have not ended, by any name; none once all have."""
    left = before.sessions & writers(connection, oid).sessions
    if before.before is None:
        return set(left)
    oldest = [int(row[1]) for row in query(connection, _PRIMARY_SQL)]
    # Numbers go round. Once it is promoted, no transaction of the former primary runs.
    return set(left) | {str(one) for one in oldest if 0 < (before.before - one) & 0xFFFFFFFF < 1 << 31}


# Not pg_current_snapshot(), in whose list those are missing that began after the last one that has ended. A
# transaction holds the lock on its own number until others see it.
_RUNNING_SQL = """
select distinct transactionid::text from pg_catalog.pg_locks
 where locktype = 'transactionid' and granted and mode = 'ExclusiveLock'
   and not pg_catalog.pg_is_in_recovery()
"""


def in_progress(connection: Connection) -> set[int]:
    """Return the transactions (32 bits, those within others too) that others can't see; none on a standby.

    There a commit is replayed, and visible, before its WAL is sent on.
    """
    return {int(row[0]) & 0xFFFFFFFF for row in query(connection, _RUNNING_SQL)}


def running_transactions(connection: pq.abc.PGconn) -> set[int]:
    """Return `in_progress` of a raw session. Raises ServerError."""
    return {int(row[0] or 0) & 0xFFFFFFFF for row in execute_raw(connection, _RUNNING_SQL)}


def oldest_running(connection: Connection) -> int | None:
    """Return the oldest transaction (32 bits) that runs: all before it are visible, or were rolled back.

    None on a standby: what it shows, its primary may still hide.
    """
    sql = """select pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text
              where not pg_catalog.pg_is_in_recovery()"""
    rows = query(connection, sql)
    return int(rows[0][0]) & 0xFFFFFFFF if rows else None


def idle_in_transaction(connection: Connection) -> set[int]:
    """Return transactions (32 bits) whose sessions wait for their clients: they have not begun to commit."""
    sql = """select backend_xid::text from pg_catalog.pg_stat_activity
              where backend_xid is not null and state like 'idle in transaction%'"""
    return {int(row[0]) & 0xFFFFFFFF for row in query(connection, sql)}
