"""Replication slots: what state they are in, and how they are made and dropped.

The permanent slot exists if and only if the snapshot finished. The snapshot runs under a TEMPORARY slot,
which dies with its session; ``pg_copy_logical_replication_slot`` then makes the permanent one at its LSN.
"""

import os
import secrets
from dataclasses import dataclass

import psycopg2
from psycopg import pq
from psycopg2 import errorcodes

from bwtui.errors import RefusedError, SlotLost
from bwtui.model.lsn import parse_lsn
from bwtui.model.sql import quote_identifier, quote_literal
from bwtui.source.connection import (
    Connection,
    ServerError,
    connection_failed,
    execute,
    execute_raw,
    query,
    statement_failed,
)
from bwtui.source.printed import printed
from bwtui.source.remedies import remedy

PLUGIN = "pgoutput"
CURRENT_LSN = (
    "(case when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()"
    " else pg_catalog.pg_current_wal_lsn() end)::text"
)
_STATE_SQL = f"""
select slot_name, plugin, slot_type, database, active, active_pid, wal_status, safe_wal_size,
       restart_lsn::text, confirmed_flush_lsn::text, {CURRENT_LSN}, temporary, two_phase
  from pg_catalog.pg_replication_slots
"""
#: What its columns are.
_STATE_TYPES = (str, str, str, str, bool, int, str, int, str, str, str, bool, bool)


_COMMITTED_SQL = """
select ((case when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn()
              else pg_catalog.pg_current_wal_insert_lsn() end) - '0/0')::bigint,
       case when not pg_catalog.pg_is_in_recovery() then pg_catalog.txid_current() end
"""


@dataclass(frozen=True, slots=True)
class SlotState:
    """One row of pg_replication_slots, with the server's current WAL position beside it."""

    name: str
    plugin: str | None
    slot_type: str
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


@dataclass(frozen=True, slots=True)
class TemporarySlot:
    """A temporary slot and its exported snapshot; both live as long as ``connection`` stays idle and open."""

    connection: pq.abc.PGconn
    name: str
    consistent_point: int
    snapshot: str

    def close(self) -> None:
        """End the session, and with it the slot."""
        self.connection.finish()


def list_slots(connection: Connection) -> list[SlotState]:
    """Return every slot of the server."""
    return [_state(row) for row in query(connection, _STATE_SQL + " order by slot_name")]


def slot_state(connection: Connection, name: str) -> SlotState | None:
    """Return the state of slot ``name``, or None when there is no such slot."""
    rows = query(connection, _STATE_SQL + " where slot_name = %s", name)
    return _state(rows[0]) if rows else None


def committed_lsn(connection: Connection) -> int:
    """Return an LSN that everything lies before that is committed by now, and that a stream soon passes.

    The end of what was written (`CURRENT_LSN`) may stand in the middle of a record: PostgreSQL writes whole
    pages while a transaction is open, and what is left of the record only at the next commit, or standby
    snapshot (every 15 s). A stream passes whole records alone. So this takes the end of what was inserted,
    and a transaction id, for which a commit record is written after it: within three times wal_writer_delay.
    """
    return int(query(connection, _COMMITTED_SQL)[0][0])


def slot_state_raw(connection: pq.abc.PGconn, name: str) -> SlotState | None:
    """Return the state of slot ``name`` as a raw session sees it, or None. Raises ServerError."""
    rows = execute_raw(connection, f"{_STATE_SQL} where slot_name = {quote_literal(name)}")
    return _state(tuple(map(_of_text, _STATE_TYPES, rows[0]))) if rows else None


def _of_text(kind: type, text: str | None) -> object:
    if text is None:
        return None
    return text == "t" if kind is bool else kind(text)


def check_readable(slot: SlotState, server_version: int) -> None:
    """Raise SlotLost for a slot without its WAL, RefusedError for one that sends what the relay can't read.

    ``server_version`` is libpq's number, such as 180006.
    """
    if slot.wal_status == "lost":
        raise SlotLost(
            f"slot {slot.name} lost the WAL that it needs",
            f"run 'bwtui slots drop {slot.name}' and start again with a new snapshot",
        )
    # Before 15 pgoutput knows no two-phase commit, and sends a prepared transaction when it is committed.
    if slot.two_phase and server_version >= 150_000:
        raise RefusedError(
            f"slot {slot.name} was made with two_phase: it sends transactions when they are prepared, "
            "and the relay reads committed ones",
            "run in a session with replication=database: "
            + printed(f"ALTER_REPLICATION_SLOT {quote_identifier(slot.name)} (TWO_PHASE false)")
            if server_version >= 180_000
            else f"run 'bwtui slots drop {slot.name}' and start again with a new snapshot",
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
    """Let the session of ``connection`` alone make slot ``name``; else return the process that may.

    By an advisory lock, which ends with the session: that of a relay that is suspended keeps others from
    taking a snapshot whose rows would stand before its own. 0 is a process that is gone by now.
    """
    words = f"bwtui makes slot {name}"
    if query(connection, _RESERVE_SQL, words)[0][0]:
        return None
    rows = query(connection, _RESERVED_BY_SQL, words)
    return int(rows[0][0]) if rows else 0


def create_temporary(connection: pq.abc.PGconn) -> TemporarySlot:
    """Create a temporary slot on a raw replication session, and export its snapshot. Raises RefusedError."""
    name = f"bwtui_tmp_{os.getpid()}_{secrets.token_hex(4)}"
    sql = f"CREATE_REPLICATION_SLOT {quote_identifier(name)} TEMPORARY LOGICAL {PLUGIN} EXPORT_SNAPSHOT"
    try:
        row = execute_raw(connection, sql)[0]
    except ServerError as error:
        if connection.status != pq.ConnStatus.OK:
            raise connection_failed(error.message) from error
        raise creation_refused(error.message, error.sqlstate, error.hint) from error
    return TemporarySlot(connection, name, parse_lsn(row[1] or "0/0"), row[2] or "")


def make_permanent(connection: Connection, temporary: str, name: str) -> None:
    """Copy the temporary slot to the permanent slot ``name``, at the same LSN. Raises RefusedError."""
    sql = "select pg_catalog.pg_copy_logical_replication_slot(%s, %s, false)"
    _create(connection, sql, temporary, name)


def create_permanent(connection: Connection, name: str) -> int:
    """Create slot ``name`` without a snapshot and return its consistent point. Raises RefusedError."""
    sql = "select lsn::text from pg_catalog.pg_create_logical_replication_slot(%s, %s)"
    return parse_lsn(_create(connection, sql, name, PLUGIN))


def drop_slot(connection: Connection, name: str) -> None:
    """Drop slot ``name``. Raises psycopg2.Error when it is active or missing."""
    execute(connection, "select pg_catalog.pg_drop_replication_slot(%s)", name)


def creation_refused(text: str, sqlstate: str | None, hint: str) -> RefusedError:
    """Return the refusal for a slot that could not be made, with the statement that helps.

    By SQLSTATE (PostgreSQL's "Error Codes"), for the text may be of any language.
    """
    if sqlstate == errorcodes.INSUFFICIENT_PRIVILEGE:
        hint = "let a superuser give the role the right to replicate; 'bwtui doctor' prints the statement"
    elif sqlstate == errorcodes.CONFIGURATION_LIMIT_EXCEEDED:
        hint = "drop a slot that is not needed ('bwtui slots list') or raise max_replication_slots"
    return RefusedError(f"can't create the replication slot: {text}", hint)


def _create(connection: Connection, sql: str, *args: str) -> str:
    try:
        return str(query(connection, sql, *args)[0][0])
    except psycopg2.Error as error:
        if connection.closed:
            raise statement_failed(error) from error
        raise creation_refused(" ".join(str(error).split()), error.pgcode, remedy(error)) from error


def _state(row: tuple[object, ...]) -> SlotState:
    values = list(row)
    for index in (8, 9, 10):
        values[index] = parse_lsn(str(row[index])) if row[index] is not None else 0
    return SlotState(*values)  # type: ignore[arg-type]
