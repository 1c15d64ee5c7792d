"""Find tables that may omit unchanged large values from the replication stream."""

from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection, query
from bwtui.source.preflight import selected_tables

# A table without a TOAST table has no large values. The rows of a partitioned table are in its partitions.
_TABLES_SQL = """
select c.oid from pg_catalog.pg_class c
 where c.oid = any(%s) and c.relreplident <> 'f'
   and (c.reltoastrelid <> 0
        or exists (select from pg_catalog.pg_partition_tree(c.oid) t
                     join pg_catalog.pg_class p on p.oid = t.relid where p.reltoastrelid <> 0))
"""
_MEANING = {
    "fetch": "missing values are read from the table",
    "error": "--on-error applies to rows without them",
    "placeholder": "missing values are marked in the messages",
}


def large_values(connection: Connection, settings: RelaySettings) -> str:
    """Return the affected tables, and how --toast handles them, in one line. Raises RefusedError."""
    tables = [table for table in selected_tables(connection, settings) if table.has_key]
    oids = {row[0] for row in query(connection, _TABLES_SQL, [table.oid for table in tables])}
    names = ", ".join(table.qualified_name for table in tables if table.oid in oids)
    if not names:
        return "no table omits any"
    return f"--toast {settings.toast}: {_MEANING[settings.toast]} ({names}); REPLICA IDENTITY FULL sends them"
