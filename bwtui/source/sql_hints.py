"""Format statements for hints: complete, quoted, each with its semicolon, on one line.

In a hint they come last, after a colon, so the text from there to the end can be pasted into psql.
"""

import re
from collections.abc import Iterable

import psycopg2
from psycopg2 import errorcodes

# A string literal, or a quoted name; a literal with backslashes has its own escapes.
_QUOTED = re.compile(r"""E'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|"(?:[^"]|"")*\"""", re.DOTALL)
# Blanks that would be collapsed into one.
_FOLDED = re.compile(r"(?<= ) |^ | $")


def format_sql(*statements: str) -> str:
    """Return ``statements`` as one line; several are one transaction.

    >>> printed('drop publication "p"')
    'drop publication "p";'
    >>> printed('drop publication "p"', 'create publication "two  blanks"')
    'BEGIN; drop publication "p"; create publication U&"two \\\\0020blanks"; COMMIT;'
    """
    shown = [_QUOTED.sub(_shown, statement) + ";" for statement in statements]
    return " ".join(["BEGIN;", *shown, "COMMIT;"] if len(shown) > 1 else shown)


def exclude_option(names: Iterable[str]) -> str:
    """Return the option that leaves the tables ``names`` (``schema.table``) out, as a shell takes it.

    >>> exclude_option(["public.a", "public.it's (old)"])
    "--exclude-table 'public.a|public.it'\\\\''s\\\\ \\\\(old\\\\)'"
    """
    # A plain dot is easier to read, and matches itself.
    pattern = "|".join(re.escape(name).replace("\\.", ".") for name in names)
    return "--exclude-table '" + pattern.replace("'", "'\\''") + "'"


def _shown(quoted: re.Match[str]) -> str:
    """Return a name or a literal without characters that a terminal hides or treats as control codes."""
    text = quoted[0]
    inner = text[1:-1]
    if text.startswith("E") or (inner.isprintable() and not _FOLDED.search(inner)):
        return text
    escaped = "".join(c if c.isprintable() and c != "\\" else _code(c) for c in inner)
    escaped = _FOLDED.sub(lambda blank: _code(" "), escaped)
    return f"U&{text[0]}{escaped}{text[-1]}"


def _code(character: str) -> str:
    return f"\\{ord(character):04X}" if ord(character) < 0x10000 else f"\\+{ord(character):06X}"


# Hints for statements that PostgreSQL rejects: its own hint, or one by SQLSTATE.

#: By SQLSTATE, or by its first two characters for a whole class.
_HINTS = {
    errorcodes.INSUFFICIENT_PRIVILEGE: "let the object's owner or a superuser grant the role that right",
    errorcodes.SYNTAX_ERROR: "fix the statement: psql marks the position with a caret",
    errorcodes.UNDEFINED_TABLE: "check the name and its schema: the role's search_path applies",
    errorcodes.UNDEFINED_COLUMN: "check the column's name in the current table",
    errorcodes.DUPLICATE_TABLE: "it already exists: omit the statement, or choose a different name",
    errorcodes.DUPLICATE_COLUMN: "the column already exists: omit the statement",
    errorcodes.DUPLICATE_OBJECT: "it already exists: choose a different name",
    errorcodes.OBJECT_IN_USE: "end the sessions that use it: see pg_stat_activity and pg_replication_slots",
    errorcodes.LOCK_NOT_AVAILABLE: "try again once the lock is released: pg_locks shows its holder",
    errorcodes.QUERY_CANCELED: "raise the role's statement_timeout, or find out who cancelled the statement",
    errorcodes.DISK_FULL: "free some space on the server's disk",
    errorcodes.OUT_OF_MEMORY: "give the server more memory, or lower work_mem",
    errorcodes.TOO_MANY_CONNECTIONS: "raise max_connections, or end unused sessions",
    errorcodes.ADMIN_SHUTDOWN: "start again once the server is up",
    errorcodes.READ_ONLY_SQL_TRANSACTION: "set the primary with -d/--postgres: a standby is read-only",
    "08": "check the network and PostgreSQL's log",
    "22": "check the values: PostgreSQL's log names the statement",
    "23": "existing rows violate the constraint: psql shows which",
    "42": "check names and types in the statement, such as by running it alone in psql",
    "53": "the server lacks a resource: its log says which",
    "57": "start again once the server is up",
    "58": "the server can't access its own files: check its log",
    "XX": "the server's own files may be damaged: check its log",
}


def hint_for(error: psycopg2.Error) -> str:
    """Return the hint for ``error``."""
    return error.diag.message_hint or hint_for_sqlstate(error.pgcode)


def hint_for_sqlstate(sqlstate: str | None) -> str:
    """Return the hint if PostgreSQL gives none of its own; None means a broken connection."""
    state = sqlstate or "08"
    return (
        _HINTS.get(state) or _HINTS.get(state[:2]) or "check PostgreSQL's log, which contains the statement"
    )
