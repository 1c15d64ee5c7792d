"""Advise on settings and tables that may cause trouble later, each with the statement that fixes it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from bwtui.model.sql import quote_qualified
from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection, query
from bwtui.source.preflight import selected_tables
from bwtui.source.publication_coverage import Shortfall, is_chosen
from bwtui.source.replica_identity import unused_key
from bwtui.source.sql_hints import format_sql

#: Maximum number of tables that a note names.
_NAMED = 5
_SETTINGS_SQL = "select name, setting from pg_catalog.pg_settings where name = any(%s)"
_RELOAD = "SELECT pg_reload_conf()"
_TOAST_SQL = """
select c.oid from pg_catalog.pg_class c
 where c.oid = any(%s) and c.relreplident <> 'f' and c.reltoastrelid <> 0
   and pg_catalog.pg_relation_size(c.reltoastrelid) > 0
"""
# A root's own setting does not apply to its partitions, and those receive the writes.
_NOTHING_SQL = """
select root.oid, n.nspname, c.relname
  from pg_catalog.pg_class root
 cross join lateral (
       select root.oid as relid union select relid from pg_catalog.pg_partition_tree(root.oid)) t
  join pg_catalog.pg_class c on c.oid = t.relid
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where root.oid = any(%s) and c.relreplident = 'n' order by 2, 3
"""


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice; ``hint`` says what to run."""

    name: str
    message: str
    hint: str


def outside_publication(settings: RelaySettings, shortfalls: Iterable[Shortfall]) -> Iterator[Advice]:
    """Yield advice about tables that are missing from the user's own publication."""
    names = [one.table or "" for one in shortfalls if not is_chosen(settings, one)]
    if not names:
        return
    listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    yield Advice(
        "tables outside the publication",
        f"publication {settings.publication_name} does not contain {len(names)}: {listed}",
        "no action is needed if that is intended; otherwise name them with --table, and 'bwtui doctor' "
        "prints the statement for each",
    )


def advice(connection: Connection, settings: RelaySettings) -> Iterator[Advice]:
    """Yield advice for the time before the relay starts. Raises RefusedError if no table is chosen."""
    yield from _of_server(connection)
    yield from _of_tables(connection, settings)


#: By setting: a test of its value, the message, and the statement to run.
_SERVER: dict[str, tuple[Callable[[str], bool], str, str]] = {
    "max_slot_wal_keep_size": (
        lambda value: value == "-1",
        "a stalled relay retains WAL without a limit, until the server's disk is full",
        "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'",
    ),
    "wal_sender_timeout": (
        lambda value: value == "0",
        "the server never detects a lost network connection to the relay, so its slot stays active",
        "ALTER SYSTEM SET wal_sender_timeout = '60s'",
    ),
    "idle_replication_slot_timeout": (
        lambda value: value != "0",
        "the server invalidates the slot of a relay that is down for that long",
        "ALTER SYSTEM SET idle_replication_slot_timeout = 0",
    ),
}


def _of_server(connection: Connection) -> Iterator[Advice]:
    for name, value in sorted(query(connection, _SETTINGS_SQL, list(_SERVER))):
        applies, message, statement = _SERVER[name]
        if applies(value):
            # Printed separately, not as one transaction: ALTER SYSTEM can't run in a transaction block.
            yield Advice(name, message, f"run: {format_sql(statement)} {format_sql(_RELOAD)}")


def _of_tables(connection: Connection, settings: RelaySettings) -> Iterator[Advice]:
    tables = selected_tables(connection, settings)
    toasted = {row[0] for row in query(connection, _TOAST_SQL, [table.oid for table in tables])}
    nothing: dict[int, list[str]] = {}
    for oid, namespace, relation in query(connection, _NOTHING_SQL, [table.oid for table in tables]):
        nothing.setdefault(oid, []).append(f"{_alter(namespace, relation)} DEFAULT")
    for table in tables:
        name = f"table {table.qualified_name}"
        if statements := nothing.get(table.oid):
            message = "REPLICA IDENTITY NOTHING: updates and deletes are not captured"
            yield Advice(name, message, f"run: {format_sql(*statements)}")
        elif unused := None if table.has_key else unused_key(connection, table):
            message = f"{unused.says}: messages have a null key and no defined order"
            yield Advice(name, message, unused.hint)
        elif not table.has_key:
            full = table.replica_identity == "f"
            message = "no key: messages have a null key and no defined order" + (
                "" if full else "; updates and deletes are not captured"
            )
            yield Advice(name, message, "add a primary key: the columns that identify its rows")
        if table.oid in toasted:
            message = "an UPDATE sends large values only if it changes them (see --toast)"
            yield Advice(name, message, f"run: {format_sql(f'{_alter(table.namespace, table.name)} FULL')}")


def _alter(namespace: str, name: str) -> str:
    return f"ALTER TABLE {quote_qualified(namespace, name)} REPLICA IDENTITY"
