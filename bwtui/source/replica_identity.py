"""Check that each key is published whole: without one of its columns it would be the key of many rows.

PostgreSQL publishes a partial key if a publication's column list omits part of it, or if it has a generated
column. It then rejects updates and deletes, but not inserts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bwtui.errors import RefusedError
from bwtui.model.sql import quote_identifier, quote_qualified
from bwtui.pgoutput.messages import Relation
from bwtui.settings import RelaySettings
from bwtui.source import publication
from bwtui.source.catalog import (
    Attribute,
    TableFilter,
    TableInfo,
    attributes,
    find_table,
    key_of,
    list_tables,
    missing_identity_columns,
)
from bwtui.source.connection import Connection, query
from bwtui.source.publication import PublishedTable
from bwtui.source.sql_hints import exclude_option, format_sql

_IDENTITY_SQL = """
select a.attrelid, a.attname, a.attgenerated <> ''
  from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indrelid
  join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey[0:i.indnkeyatts - 1])
 where i.indrelid = any(%s)
   and case c.relreplident when 'n' then false when 'i' then i.indisreplident
            else i.indisprimary and i.indimmediate end
 order by 1, a.attnum
"""
# Column lists and row filters exist since PostgreSQL 15, pubgencols since 18.
_MEMBERSHIP_SQL = """
select p.pubname, {columns}, {row_filter}, pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's'
  from pg_catalog.pg_publication p
  left join pg_catalog.pg_publication_rel r on r.prpubid = p.oid and r.prrelid = %s
 where p.pubname = any(%s) order by 1
"""
_COLUMN_NUMBERS = "(select array_agg(n::int) from unnest(r.prattrs::int2[]) n)"
_NAME_SQL = """
select n.nspname, c.relname, c.relkind = 'p',
       (select conname from pg_catalog.pg_constraint where conrelid = c.oid and contype = 'p')
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = %s
"""


@dataclass(frozen=True, slots=True)
class _Membership:
    """A table's entry in a publication: the numbers of the listed columns, or None without a list."""

    publication: str
    columns: list[int] | None
    row_filter: str | None
    generated: bool | None

    def publishes(self, number: int, attribute: Attribute) -> bool:
        """Return whether the column with this number is included in the rows."""
        if self.columns is not None:
            return number in self.columns
        return not attribute.generated or bool(self.generated)


def check_published(
    connection: Connection,
    settings: RelaySettings,
    tables: Sequence[TableInfo],
    published: Sequence[PublishedTable] | None,
) -> None:
    """Check that each of ``tables`` has its whole key published.

    ``published`` is None if the publications are still to be created. Raises RefusedError with the columns
    and the SQL that fixes it.
    """
    columns = {(table.namespace, table.name): table.columns for table in published or ()}
    by_oid = {table.oid: table for table in tables}
    identity: dict[int, list[tuple[str, bool]]] = {}
    for oid, name, generated in query(connection, _IDENTITY_SQL, list(by_oid)):
        identity.setdefault(oid, []).append((name, generated))
    listable = connection.server_version >= 180000
    for oid, key in identity.items():
        table = by_oid[oid]
        chosen = columns.get((table.namespace, table.name))
        missing = tuple(
            name
            for name, generated in key
            if (chosen is not None and name not in chosen) or (generated and not (listable and chosen))
        )
        if _merges(settings, len(key), len(missing)):
            raise refusal(connection, settings, oid, table.qualified_name, missing)


def missing_columns(
    connection: Connection, settings: RelaySettings, relation: Relation, refused_before: Sequence[str]
) -> tuple[tuple[str, ...], bool]:
    """Return the key columns that block the rows of ``relation``, and whether any columns are unpublished.

    There are usually none. If the table has unpublished columns, a different key may contain one of them
    unnoticed. The catalog may have changed since the rows were written. A column that the rows lack counts if
    their table already had it, if it is not published now either, or if rows without it were
    ``refused_before``.
    """
    now = attributes(connection, relation.oid)
    in_part = sum(not attribute.dropped for attribute in now) > len(relation.columns)
    lacking = missing_identity_columns(relation, now)
    size = sum(attribute.in_identity for attribute in now)
    if not _merges(settings, size, len(lacking)):
        return (), in_part
    members = _memberships(connection, settings, relation.oid)
    missing = tuple(
        attribute.name
        for attribute, was_there in lacking
        if was_there or attribute.name in refused_before or not _is_published(members, now, attribute)
    )
    return missing, in_part


def refusal(
    connection: Connection, settings: RelaySettings, oid: int, table: str, missing: Sequence[str]
) -> RefusedError:
    """Return the error for a table whose key lacks the columns ``missing``, with the fix."""
    plural = "columns" if len(missing) > 1 else "column"
    return RefusedError(
        f"the key of table {table} is not published completely, so rows would share a key: "
        f"{plural} {', '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing",
        "; ".join(_fixes(connection, settings, oid, table, missing)),
    )


@dataclass(frozen=True, slots=True)
class UnusedKey:
    """The reason why PostgreSQL does not identify a table's rows by its primary key.

    ``says`` continues a sentence about the table; ``advice`` is complete, or precedes the ``statements``.
    """

    says: str
    advice: str
    statements: tuple[str, ...] = ()

    @property
    def hint(self) -> str:
        """The advice with its statements."""
        return f"{self.advice}: {format_sql(*self.statements)}" if self.statements else self.advice


def unused_key(connection: Connection, table: TableInfo | Relation) -> UnusedKey | None:
    """Return why a table without a key does not use its primary key; None if it has none."""
    now = attributes(connection, table.oid)
    if any(attribute.in_identity for attribute in now):
        if isinstance(table, TableInfo) and table.partitioned:
            return UnusedKey(
                "has partitions without a replica identity", "set a replica identity on each partition"
            )
        return None
    # With REPLICA IDENTITY USING INDEX: the columns of that index. Otherwise also those of a deferrable key.
    columns = [column.name for column in key_of(connection, table.oid)]
    name = quote_qualified(table.namespace, table.name)
    if any(attribute.in_primary_key for attribute in now):
        says = (
            "has REPLICA IDENTITY NOTHING, so its primary key does not identify rows"
            if columns
            else "has a primary key, but the index of its replica identity was dropped"
        )
        return UnusedKey(says, "run", (f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT",))
    if not columns:
        return None
    says = "has a deferrable primary key, which can't be a replica identity"
    advice = "if no transaction relies on deferring it, run"
    listed = ", ".join(map(quote_identifier, columns))
    for *_, partitioned, constraint in query(connection, _NAME_SQL, table.oid):
        if partitioned:
            # Its index identifies the rows of no partition, so the key itself has to change.
            dropped = f"DROP CONSTRAINT {quote_identifier(constraint)}"
            return UnusedKey(says, advice, (f"ALTER TABLE {name} {dropped}, ADD PRIMARY KEY ({listed})",))
    index = quote_identifier(f"{table.name[:40]}_replica_identity")
    return UnusedKey(
        says,
        advice,
        (
            f"CREATE UNIQUE INDEX {index} ON {name} ({listed})",
            f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {index}",
        ),
    )


def use_deferrable_key(connection: Connection, namespace: str, name: str) -> str:
    """Return the statements that make the columns of a deferrable primary key the replica identity."""
    table = find_table(connection, namespace, name)
    unused = None if table is None else unused_key(connection, table)
    return "; ".join(unused.statements) if unused is not None else ""


def unkeyed_refusal(
    connection: Connection, tables: Sequence[TableInfo | Relation], *, can_exclude: bool = True
) -> RefusedError:
    """Return the error for ``tables`` without a key, with the statements that give them one.

    Pass ``can_exclude=False`` if these are all the tables that --table selects.
    """
    names = [table.qualified_name for table in tables]
    unused = {table.qualified_name: unused_key(connection, table) for table in tables}
    unused_keys = [(name, key) for name, key in unused.items() if key is not None]
    keyless = [name for name, key in unused.items() if key is None]
    reasons = [f"table {name} {key.says}" for name, key in unused_keys]
    if len(keyless) == 1:
        reasons.insert(0, f"table {keyless[0]} has no primary key and no replica identity index")
    elif keyless:
        without = "tables have no primary key and no replica identity index"
        reasons.insert(0, f"{len(keyless)} {without}: {', '.join(keyless)}")
    ways = ["add a primary key"] if keyless else []
    ways += [f"exclude with {exclude_option(names)}"] if can_exclude else []
    hint = ", or ".join(filter(None, [", ".join(ways), "allow with -u"]))
    together: dict[str, tuple[str, ...]] = {}
    for _, key in unused_keys:
        together[key.advice] = together.get(key.advice, ()) + key.statements
    # Statements come last, so that they can be pasted.
    ordered = sorted(together.items(), key=lambda one: bool(one[1]))
    advice = [UnusedKey("", one, statements).hint for one, statements in ordered]
    return RefusedError("; ".join(reasons), "; or ".join([hint, *advice]))


def _merges(settings: RelaySettings, size: int, missing: int) -> bool:
    """Return whether rows would share a key if ``missing`` of its ``size`` columns are lacking.

    With -u, a key that is missing entirely merges nothing: such rows are sent without a key.
    """
    return 0 < missing < size or (missing == size > 0 and not settings.allow_unkeyed)


def _memberships(connection: Connection, settings: RelaySettings, oid: int) -> list[_Membership]:
    modern = connection.server_version >= 150000
    sql = _MEMBERSHIP_SQL.format(
        columns=_COLUMN_NUMBERS if modern else "null",
        row_filter="pg_catalog.pg_get_expr(r.prqual, r.prrelid)" if modern else "null",
    )
    names = publication.existing(connection, settings.publication_name)
    return [_Membership(*row) for row in query(connection, sql, oid, list(names))]


def _is_published(members: Sequence[_Membership], now: Sequence[Attribute], attribute: Attribute) -> bool:
    """Return whether new rows include the column; publications with a column list take precedence.

    Without any publication, return whether bwtui's own ones will include it.
    """
    if not members:
        return not attribute.generated
    listing = [member for member in members if member.columns is not None] or members
    return any(member.publishes(now.index(attribute) + 1, attribute) for member in listing)


def _fixes(
    connection: Connection, settings: RelaySettings, oid: int, table: str, missing: Sequence[str]
) -> Iterator[str]:
    now = attributes(connection, oid)
    members = _memberships(connection, settings, oid)
    lacking = [attribute for attribute in now if attribute.name in missing]
    unpublished = [attribute for attribute in lacking if not _is_published(members, now, attribute)]
    if not unpublished:
        yield "new rows contain it: use --on-error log to write earlier rows to the dead letters"
        yield "or create a new slot with a new snapshot"
        return
    if any(attribute.generated for attribute in unpublished) and connection.server_version < 180000:
        yield "PostgreSQL publishes generated columns from version 18 on: use a different key"
        yield f"or exclude the table with {exclude_option([table])}"
        return
    if not members:
        tables = list(filter(TableFilter(settings), list_tables(connection)))
        creations = publication.create_statements(settings.publication_name, tables, generated=True)
        yield f"create the publications first: {format_sql(*creations)}"
        return
    for namespace, name, partitioned, _ in query(connection, _NAME_SQL, oid):
        named = f"{'' if partitioned else 'ONLY '}{quote_qualified(namespace, name)}"
        statements: list[str] = []
        for member in members:
            alter = f"ALTER PUBLICATION {quote_identifier(member.publication)}"
            if member.columns is not None:
                statements += _relisting(alter, named, member, now, unpublished)
            elif any(attribute.generated for attribute in unpublished):
                statements.append(f"{alter} SET (publish_generated_columns = stored)")
        if statements:
            yield f"run: {format_sql(*statements)}"


def _relisting(
    alter: str, named: str, member: _Membership, now: Sequence[Attribute], added: Sequence[Attribute]
) -> tuple[str, str]:
    """Return the statements that list the table again with its whole key.

    They run in one transaction, so that no row is missed in between.
    """
    assert member.columns is not None
    columns = [
        quote_identifier(attribute.name)
        for number, attribute in enumerate(now, 1)
        if number in member.columns or attribute in added
    ]
    where = f" WHERE ({member.row_filter})" if member.row_filter else ""
    again = f"{alter} ADD TABLE {named} ({', '.join(columns)}){where}"
    return f"{alter} DROP TABLE {named}", again
