"""Find transactions that are in progress, which a snapshot taken now does not show."""

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
# A standby has no locks of the primary's writers, but it has replayed their first records. Their transaction
# IDs are below the next one, which age() uses there, and at or above the oldest one that runs.
_PRIMARY_SQL = """
select (pg_catalog.age('3'::pg_catalog.xid)::bigint + 3) & 4294967295,
       pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::numeric % 4294967296
 where pg_catalog.pg_is_in_recovery()
"""


class WriterTransactions(NamedTuple):
    """Transactions that may have written a table before it was seen to be published.

    ``sessions`` are those of this server, as virtual transaction IDs of pg_locks. ``before``: on a standby,
    every transaction of the primary below this ID (32 bits).
    """

    sessions: frozenset[str]
    before: int | None = None


def writers(connection: Connection, oid: int) -> WriterTransactions:
    """Return the transactions that write table ``oid`` or a partition of it.

    A table that has just joined a publication is not published for changes that they made earlier.
    """
    sessions = frozenset(str(row[0]) for row in query(connection, _WRITERS_SQL, oid, oid))
    on_primary = query(connection, _PRIMARY_SQL)
    return WriterTransactions(sessions, int(on_primary[0][0]) if on_primary else None)


def still_writing(connection: Connection, oid: int, before: WriterTransactions) -> set[str]:
    """Return identifiers of the writers ``before`` that have not ended yet; an empty set once all have."""
    remaining = before.sessions & writers(connection, oid).sessions
    if before.before is None:
        return set(remaining)
    oldest = [int(row[1]) for row in query(connection, _PRIMARY_SQL)]
    # Transaction IDs wrap around. Once the standby is promoted, no transaction of the former primary runs.
    return set(remaining) | {str(one) for one in oldest if 0 < (before.before - one) & 0xFFFFFFFF < 1 << 31}


# Not pg_current_snapshot(): its list lacks the transactions that began after the last one to end. A
# transaction holds the lock on its own ID until other sessions see it as ended.
_RUNNING_SQL = """
select distinct transactionid::text from pg_catalog.pg_locks
 where locktype = 'transactionid' and granted and mode = 'ExclusiveLock'
   and not pg_catalog.pg_is_in_recovery()
"""


def in_progress(connection: Connection) -> set[int]:
    """Return the transactions (32 bits, subtransactions included) that other sessions can't see yet.

    The set is empty on a standby, where a commit is replayed, and so visible, before its WAL is sent on.
    """
    return {int(row[0]) & 0xFFFFFFFF for row in query(connection, _RUNNING_SQL)}


def running_transactions(connection: pq.abc.PGconn) -> set[int]:
    """Return `in_progress` for a raw session. Raises ServerError."""
    return {int(row[0] or 0) & 0xFFFFFFFF for row in execute_raw(connection, _RUNNING_SQL)}


def oldest_running(connection: Connection) -> int | None:
    """Return the oldest running transaction (32 bits): all earlier ones are visible or were rolled back.

    Return None on a standby: the primary may still hide what the standby shows.
    """
    sql = """select pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text
              where not pg_catalog.pg_is_in_recovery()"""
    rows = query(connection, sql)
    return int(rows[0][0]) & 0xFFFFFFFF if rows else None


def idle_in_transaction(connection: Connection) -> set[int]:
    """Return the transactions (32 bits) of sessions that are idle in a transaction.

    They wait for their clients, so they have not begun to commit.
    """
    sql = """select backend_xid::text from pg_catalog.pg_stat_activity
              where backend_xid is not null and state like 'idle in transaction%'"""
    return {int(row[0]) & 0xFFFFFFFF for row in query(connection, sql)}
