"""Hints for statements that PostgreSQL rejects: its own hint, or one by SQLSTATE."""

import psycopg2
from psycopg2 import errorcodes

#: By SQLSTATE, or by its first two characters for a whole class.
_REMEDIES = {
    errorcodes.INSUFFICIENT_PRIVILEGE: "let the object's owner or a superuser grant the role that right",
    errorcodes.SYNTAX_ERROR: "mend the statement: psql shows the place with a caret",
    errorcodes.UNDEFINED_TABLE: "check the name, and its schema: the search path here is that of the role",
    errorcodes.UNDEFINED_COLUMN: "check the column's name in the table as it is now",
    errorcodes.DUPLICATE_TABLE: "it is there already: leave the statement out, or name another",
    errorcodes.DUPLICATE_COLUMN: "the column is there already: leave the statement out",
    errorcodes.DUPLICATE_OBJECT: "it is there already: name another",
    errorcodes.OBJECT_IN_USE: "end whoever uses it first: pg_stat_activity and pg_replication_slots say who",
    errorcodes.LOCK_NOT_AVAILABLE: "try again when nobody holds its lock: pg_locks says who does",
    errorcodes.QUERY_CANCELED: "raise statement_timeout for the role, or ask whoever cancelled it",
    errorcodes.DISK_FULL: "free some space on the server's disk",
    errorcodes.OUT_OF_MEMORY: "give the server more memory, or lower work_mem",
    errorcodes.TOO_MANY_CONNECTIONS: "raise max_connections, or end sessions that nobody needs",
    errorcodes.ADMIN_SHUTDOWN: "start again once the server is up",
    errorcodes.READ_ONLY_SQL_TRANSACTION: "name the primary with -d/--postgres: a standby takes no changes",
    "08": "check the network and PostgreSQL's log",
    "22": "check the values: PostgreSQL's log names the statement",
    "23": "the rows that are there contradict it: psql says which",
    "42": "check names and types in the statement: psql runs it alone",
    "53": "give the server what it lacks: its log says what",
    "57": "start again once the server is up",
    "58": "the server's own files are at fault: look at its log",
    "XX": "the server's own files may be damaged: look at its log",
}


def remedy(error: psycopg2.Error) -> str:
    """Return the hint for ``error``."""
    return error.diag.message_hint or remedy_for(error.pgcode)


def remedy_for(sqlstate: str | None) -> str:
    """Return the hint if PostgreSQL gives none of its own; None means a broken connection."""
    state = sqlstate or "08"
    return _REMEDIES.get(state) or _REMEDIES.get(state[:2]) or "PostgreSQL's log names the statement"
