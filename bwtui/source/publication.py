"""The publication: which tables, and which of their operations, PostgreSQL sends.

bwtui makes publications only when the named one is missing:

- ``<name>`` FOR ALL TABLES, when no table is filtered out, none is unkeyed and the user is a superuser;
  tables made later then come from their first row on.
- otherwise ``<name>`` FOR TABLE … of the keyed tables, and ``<name>_unkeyed`` of the unkeyed ones, which
  publishes only inserts and truncates: PostgreSQL refuses an application's UPDATE and DELETE on a published
  table without replica identity, and a relay must never break the application that it watches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psycopg2

from bwtui.errors import RefusedError
from bwtui.source.catalog import TableInfo
from bwtui.source.connection import Connection, execute, query, quote_identifier, quote_qualified

_PUBLISHED_SQL = """
select schemaname, tablename, {columns}, {rowfilter}
  from pg_catalog.pg_publication_tables where pubname = any(%s) order by 1, 2
"""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One table of a publication; ``columns`` None means all, ``row_filter`` None means every row."""

    namespace: str
    name: str
    columns: tuple[str, ...] | None
    row_filter: str | None


def unkeyed_name(publication: str) -> str:
    """Return the name of the publication of unkeyed tables that goes with ``publication``."""
    return f"{publication}_unkeyed"


def existing(connection: Connection, publication: str) -> tuple[str, ...]:
    """Return which of ``publication`` and its unkeyed companion exist, in this order."""
    names = [publication, unkeyed_name(publication)]
    sql = "select pubname from pg_catalog.pg_publication where pubname = any(%s)"
    found = {row[0] for row in query(connection, sql, names)}
    return tuple(name for name in names if name in found)


def via_root(connection: Connection, publications: Sequence[str]) -> bool:
    """Return whether all ``publications`` send the rows of partitions as rows of their root."""
    sql = "select coalesce(bool_and(pubviaroot), true) from pg_catalog.pg_publication where pubname = any(%s)"
    return bool(query(connection, sql, list(publications))[0][0])


def published_tables(connection: Connection, publications: Sequence[str]) -> list[PublishedTable]:
    """Return the tables of ``publications``; column lists and row filters exist from PostgreSQL 15 on.

    A row of a table that stands in several of them is published where any one of them does.
    """
    modern = connection.server_version >= 150000
    sql = _PUBLISHED_SQL.format(
        columns="attnames::text[]" if modern else "null", rowfilter="rowfilter" if modern else "null"
    )
    tables: dict[tuple[str, str], PublishedTable] = {}
    for namespace, name, columns, row_filter in query(connection, sql, list(publications)):
        chosen = None if columns is None else tuple(columns)
        before = tables.get((namespace, name))
        where = row_filter if before is None else _either(before.row_filter, row_filter)
        tables[namespace, name] = PublishedTable(namespace, name, chosen, where)
    return list(tables.values())


def _either(one: str | None, other: str | None) -> str | None:
    return None if one is None or other is None else f"({one}) or ({other})"


def create(
    connection: Connection, publication: str, tables: Sequence[TableInfo], *, every_table: bool
) -> tuple[str, ...]:
    """Create the publications for ``tables`` and return their names. Raises RefusedError.

    ``every_table``: no table is filtered out, so that FOR ALL TABLES may serve.
    """
    unkeyed = [table for table in tables if lacks_identity(table)]
    keyed = [table for table in tables if table not in unkeyed]
    whole = every_table and not unkeyed and _is_superuser(connection)
    target = "for all tables" if whole else _target(keyed)
    statements = [(publication, f"{target} with (publish_via_partition_root = true)".strip())]
    if unkeyed:
        options = "with (publish = 'insert, truncate', publish_via_partition_root = true)"
        statements.append((unkeyed_name(publication), f"{_target(unkeyed)} {options}"))
    made: list[str] = []
    for name, rest in statements:
        sql = f"create publication {quote_identifier(name)} {rest}"
        try:
            execute(connection, sql)
        except psycopg2.Error as error:
            drop(connection, made)
            plain = " ".join(str(error).split())
            raise RefusedError(
                f"can't create publication {name}: {plain}", f"let its owner run: {sql}"
            ) from error
        made.append(name)
    return tuple(made)


def add_statement(publication: str, table: TableInfo) -> str:
    """Return what an owner should run, so that ``table`` joins the publication and no application breaks."""
    if not lacks_identity(table):
        return (
            f"rows from now on: ALTER PUBLICATION {quote_identifier(publication)} ADD TABLE "
            f"{table_clause(table)}; those from before come with a new slot's snapshot only"
        )
    return (
        f"it has no replica identity: give it a primary key first, or add it to the publication of inserts: "
        f"ALTER PUBLICATION {quote_identifier(unkeyed_name(publication))} ADD TABLE {table_clause(table)}"
    )


def lacks_identity(table: TableInfo) -> bool:
    """Whether PostgreSQL would refuse UPDATE and DELETE on ``table``, were they published."""
    return not table.has_key and table.replica_identity != "f"


def drop(connection: Connection, publications: Iterable[str]) -> None:
    """Drop ``publications``, where they exist."""
    for name in publications:
        execute(connection, f"drop publication if exists {quote_identifier(name)}")


def _target(tables: Sequence[TableInfo]) -> str:
    if not tables:
        return ""
    return f"for table {', '.join(map(table_clause, tables))}"


def table_clause(table: TableInfo) -> str:
    """Return ``table`` as a publication names it: without ONLY its inheriting tables would come along."""
    return quoted_name(table) if table.partitioned else f"only {quoted_name(table)}"


def quoted_name(table: TableInfo) -> str:
    """Return ``"schema"."table"``, as SQL takes it."""
    return quote_qualified(table.namespace, table.name)


def _is_superuser(connection: Connection) -> bool:
    return bool(
        query(connection, "select rolsuper from pg_catalog.pg_roles where rolname = current_user")[0][0]
    )
