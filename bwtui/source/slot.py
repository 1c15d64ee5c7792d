"""Inspect, create and drop replication slots.

The permanent slot exists if and only if the exported snapshot is complete; tables that are read in chunks may
still be due (see `bwtui.relay.backfill.chunk_snapshot`). That snapshot runs under a TEMPORARY slot, which
ends with its session. ``pg_copy_logical_replication_slot`` then creates the permanent one at its LSN.
"""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import psycopg2
from psycopg import pq
from psycopg2 import errorcodes

from bwtui.errors import RefusedError, SlotLost
from bwtui.model.lsn import parse_lsn
from bwtui.model.sql import quote_identifier, quote_literal
from bwtui.source.connection import CURRENT_LSN, Connection, connection_failed, query, statement_failed
from bwtui.source.raw_session import ServerError, execute_raw
from bwtui.source.sql_hints import format_sql, hint_for

PLUGIN = "pgoutput"
#: The hint for a lost slot.
HEAL = "add --heal to the same command (connect --heal), which sends what differs from the tables"
_TIME_SQL = "select pg_catalog.floor(extract(epoch from pg_catalog.clock_timestamp()) * 1000)::bigint::text"
_COMMITTED_SQL = """
select ((case when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
              else pg_catalog.pg_current_wal_insert_lsn() end) - '0/0')::bigint,
       case when not pg_catalog.pg_is_in_recovery() then pg_catalog.txid_current() end
"""


class SlotInUse(RefusedError):
    """A consumer reads the slot, so no other can."""

    def __init__(self, slot: str, reader: str, hint: str) -> None:
        super().__init__(f"slot {slot} is in use by {reader}", hint)
        self.slot = slot


@dataclass(frozen=True, slots=True)
class SlotState:
    """One row of pg_replication_slots, with the server's current WAL position."""

    name: str
    plugin: str | None
    database: str | None
    active: bool
    active_pid: int | None
    wal_status: str | None
    safe_wal_bytes: int | None
    restart_lsn: int
    confirmed_lsn: int
    server_lsn: int
    temporary: bool
    two_phase: bool = False
    #: True if it is synchronized to standbys, or came from a different server; None before PostgreSQL
    #: 17.
    failover: bool | None = None
    synced: bool | None = None
    #: Why it was invalidated; None before PostgreSQL 17, and for a valid slot.
    invalidated: str | None = None


#: The SQL expression of each field of SlotState, and the parser of its text.
_STATE: tuple[tuple[str, Callable[[str], object]], ...] = (
    ("slot_name", str),
    ("plugin", str),
    ("database", str),
    ("active", "true".__eq__),
    ("active_pid", int),
    ("wal_status", str),
    ("safe_wal_size", int),
    ("coalesce(restart_lsn, '0/0')", parse_lsn),
    ("coalesce(confirmed_flush_lsn, '0/0')", parse_lsn),
    (CURRENT_LSN, parse_lsn),
    ("temporary", "true".__eq__),
    ("two_phase", "true".__eq__),
    # Columns of PostgreSQL 17; null if they are missing.
    ("pg_catalog.to_jsonb(s) ->> 'failover'", "true".__eq__),
    ("pg_catalog.to_jsonb(s) ->> 'synced'", "true".__eq__),
    ("pg_catalog.to_jsonb(s) ->> 'invalidation_reason'", str),
)
#: Why a slot was invalidated, by pg_replication_slots' invalidation_reason.
_INVALIDATED = {
    "wal_removed": ": it exceeded max_slot_wal_keep_size",
    "rows_removed": ": catalog rows that it needs were removed",
    "wal_level_insufficient": ": wal_level was lowered",
    "idle_timeout": ": no client read it for idle_replication_slot_timeout",
}
_STATE_SQL = f"""
select {", ".join(f"({column})::text" for column, _ in _STATE)}
  from pg_catalog.pg_replication_slots s where slot_name = """


@dataclass(frozen=True, slots=True)
class TemporarySlot:
    """A temporary slot and its exported snapshot; both exist as long as ``connection`` stays idle and open.

    ``time_ms`` is the server's time: everything that the slot streams was committed then or later.
    """

    connection: pq.abc.PGconn
    name: str
    consistent_point: int
    snapshot: str
    time_ms: int

    def close(self) -> None:
        """End the session, and with it the slot."""
        self.connection.finish()


def slot_state(connection: Connection | pq.abc.PGconn, name: str) -> SlotState | None:
    """Return the state of slot ``name``, or None if it does not exist.

    Raises psycopg2.Error, or ServerError for a raw session.
    """
    sql = _STATE_SQL + quote_literal(name)
    rows = query(connection, sql) if isinstance(connection, Connection) else execute_raw(connection, sql)
    if not rows:
        return None
    texts = zip(_STATE, rows[0], strict=True)
    return SlotState(*(None if text is None else read(text) for (_, read), text in texts))  # type: ignore[arg-type]


def server_and_database(connection: Connection) -> tuple[str, str]:
    """Return the server's system identifier and the database, which identify its slots uniquely."""
    sql = "select system_identifier::text, current_database() from pg_catalog.pg_control_system()"
    [(identifier, database)] = query(connection, sql)
    return identifier, database


def committed_lsn(connection: Connection) -> int:
    """Return an LSN after everything that is committed now, and that a stream will pass soon.

    The end of the written WAL (`CURRENT_LSN`) may be in the middle of a record: PostgreSQL writes whole pages
    while a transaction is open, and the rest of the record only at the next commit or standby snapshot (every
    15 s). A stream passes only whole records. So this takes the end of the inserted WAL, and assigns a
    transaction ID, whose commit record follows it: within three times wal_writer_delay.
    """
    return int(query(connection, _COMMITTED_SQL)[0][0])


def check_readable(slot: SlotState, server_version: int, drop: str) -> None:
    """Check that the relay can read a slot. Raises SlotLost if its WAL was removed, or RefusedError.

    ``server_version`` is libpq's number, such as 180006; ``drop`` is the command that drops the slot. A slot
    with two_phase is refused.
    """
    if slot.wal_status == "lost":
        raise SlotLost(
            f"slot {slot.name} lost the WAL that it needs{_INVALIDATED.get(slot.invalidated or '', '')}",
            f"{HEAL}; or run '{drop}', and start with a new snapshot",
        )
    # Before 15, pgoutput has no two-phase commit, and sends a prepared transaction when it is committed.
    if slot.two_phase and server_version >= 150_000:
        raise RefusedError(
            f"slot {slot.name} has two_phase enabled: it sends transactions when they are prepared, "
            "but the relay needs committed ones",
            "run this in a session with replication=database: "
            + format_sql(f"ALTER_REPLICATION_SLOT {quote_identifier(slot.name)} (TWO_PHASE false)")
            if server_version >= 180_000
            else f"run '{drop}' and start again with a new snapshot",
        )


# One key of 64 bits, which pg_locks shows in two halves.
_RESERVE_SQL = "select pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended(%s, 0))"
_RESERVED_BY_SQL = """
select pid from pg_catalog.pg_locks, pg_catalog.hashtextextended(%s, 0) as name (key)
 where locktype = 'advisory' and granted and objsubid = 1
   and database = (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())
   and (classid::bigint << 32 | objid::bigint) = key
"""


def reserve(connection: Connection, name: str) -> int | None:
    """Reserve the creation of slot ``name`` for this session, or return the process that has reserved it.

    This takes an advisory lock, which ends with the session. The lock of a suspended relay keeps other relays
    from taking a snapshot whose rows would be sent before its own. 0 means a process that has ended
    meanwhile.
    """
    lock = f"bwtui makes slot {name}"
    if query(connection, _RESERVE_SQL, lock)[0][0]:
        return None
    rows = query(connection, _RESERVED_BY_SQL, lock)
    return int(rows[0][0]) if rows else 0


def create_temporary(connection: pq.abc.PGconn) -> TemporarySlot:
    """Create a temporary slot on a raw replication session, and export its snapshot. Raises RefusedError."""
    name = f"bwtui_tmp_{os.getpid()}_{secrets.token_hex(4)}"
    sql = f"CREATE_REPLICATION_SLOT {quote_identifier(name)} TEMPORARY LOGICAL {PLUGIN} EXPORT_SNAPSHOT"
    try:
        # A new slot waits for the transactions in progress, so their commits are before it.
        [(time_ms,)] = execute_raw(connection, _TIME_SQL)
        row = execute_raw(connection, sql)[0]
    except ServerError as error:
        if connection.status != pq.ConnStatus.OK:
            raise connection_failed(error.message) from error
        raise creation_refused(error.message, error.sqlstate, error.hint) from error
    return TemporarySlot(connection, name, parse_lsn(row[1] or "0/0"), row[2] or "", int(time_ms or 0))


def make_permanent(connection: Connection, temporary: str, name: str) -> None:
    """Copy the temporary slot to the permanent slot ``name``, at the same LSN. Raises RefusedError."""
    sql = "select pg_catalog.pg_copy_logical_replication_slot(%s, %s, false)"
    _create(connection, sql, temporary, name)


def create_permanent(connection: Connection, name: str) -> int:
    """Create slot ``name`` without a snapshot and return its consistent point. Raises RefusedError."""
    sql = "select lsn::text from pg_catalog.pg_create_logical_replication_slot(%s, %s)"
    return parse_lsn(_create(connection, sql, name, PLUGIN))


def make_failover(connection: pq.abc.PGconn, name: str) -> None:
    """Enable synchronization of slot ``name`` to standbys, on a raw session that does not stream yet.

    Neither a temporary slot nor a copy of one can be created that way, so this is a separate step. Requires
    PostgreSQL 17, a primary and a replication session. Raises ServerError.
    """
    execute_raw(connection, f"ALTER_REPLICATION_SLOT {quote_identifier(name)} (FAILOVER true)")


def creation_refused(text: str, sqlstate: str | None, hint: str) -> RefusedError:
    """Return the error for a slot that could not be created, with the statement that helps.

    The hint depends on the SQLSTATE (PostgreSQL's "Error Codes"), since the text may be in any language.
    """
    if sqlstate == errorcodes.INSUFFICIENT_PRIVILEGE:
        hint = "let a superuser grant the role REPLICATION; 'bwtui doctor' prints the statement"
    elif sqlstate == errorcodes.CONFIGURATION_LIMIT_EXCEEDED:
        hint = "drop an unused slot ('bwtui slots list'), or raise max_replication_slots"
    return RefusedError(f"can't create the replication slot: {text}", hint)


def _create(connection: Connection, sql: str, *args: str) -> str:
    try:
        return str(query(connection, sql, *args)[0][0])
    except psycopg2.Error as error:
        if connection.closed:
            raise statement_failed(error) from error
        raise creation_refused(" ".join(str(error).split()), error.pgcode, hint_for(error)) from error
