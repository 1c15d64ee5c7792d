"""Report what the publications leave out, and how they affect the applications that write; change nothing.

``bwtui doctor`` shows the result, and a running relay reports it as notices. A table that is not captured at
all is a finding of ``bwtui verify --database``. docs/adr/0003-publish-explicit-table-lists.md has the
reasons.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from bwtui.model.sql import quote_identifier
from bwtui.settings import RelaySettings
from bwtui.source import publication
from bwtui.source.catalog import TableFilter, TableInfo, list_tables
from bwtui.source.connection import Connection, query
from bwtui.source.publication import PublishedTable, lacks_identity, quoted_name, table_clause
from bwtui.source.replica_identity import UnusedKey, unused_key
from bwtui.source.slot import slot_state
from bwtui.source.sql_hints import exclude_option, format_sql

# Publications of whole schemas exist since PostgreSQL 15.
_OPEN_SQL = """
select p.pubname, p.pubupdate or p.pubdelete, p.puballtables from pg_catalog.pg_publication p
 where p.pubname = any(%s) and (p.puballtables{schemas}) order by 1
"""
_LISTED_SQL = """
select count(*) from pg_catalog.pg_publication_rel r join pg_catalog.pg_publication p on p.oid = r.prpubid
 where p.pubname = %s and r.prrelid = %s
"""
# Column lists exist since PostgreSQL 15; a publication without one leaves generated columns out.
# MATERIALIZED: without it the view builds its list again for each column, which takes minutes for a table of
# 1,600 columns.
_COLUMNS_SQL = """
with t as materialized (
  select schemaname, tablename, attnames from pg_catalog.pg_publication_tables where pubname = any(%s))
select t.schemaname, t.tablename, array_agg(distinct a.attname::text order by a.attname::text)
  from t
  join pg_catalog.pg_namespace n on n.nspname = t.schemaname
  join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = t.tablename
  join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
   and a.attgenerated = '' and a.attname <> all (t.attnames)
 group by 1, 2
"""
_LEAVES_SQL = """
select p.relid::oid from pg_catalog.pg_partition_tree(%s) p where p.isleaf and p.level > 0 order by 1
"""
_PRIMARY_SQL = "select indrelid from pg_catalog.pg_index where indisprimary and indrelid = any(%s)"
_EVERYTHING = "insert, update, delete, truncate"
_BARE = "it has no replica identity: add a primary key first"
_WITHOUT_KEY = "it has no key: add a primary key first"
_ADDED = "a running relay adds it automatically, unless it was removed from the publication"
_JOINS = f"{_BARE}, or add it to the publication for inserts"
_EARLIER = "the relay also sends its earlier rows once you have run: "
_COMPARES = "the relay compares the table after this step, and sends what differs; "
_NEW_ONE = "while the relay runs, run the following, then restart the relay once it has caught up: {}"
_SCHEMAS = " or exists (select from pg_catalog.pg_publication_namespace n where n.pnpubid = p.oid)"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One shortfall of the publications: ``subject`` and ``says`` make a sentence.

    ``info`` is None if it does not concern a single table; ``hint`` says what to run. A table that is not
    ``captured`` has no row in Kafka.
    """

    subject: str
    info: TableInfo | None
    says: str
    hint: str
    captured: bool = True
    #: True if the table is outside the publication.
    outside: bool = False

    @property
    def table(self) -> str | None:
        """The table's qualified name."""
        return self.info.qualified_name if self.info else None


def is_chosen(settings: RelaySettings, shortfall: Shortfall) -> bool:
    """Whether ``shortfall`` is about a table that is requested, or that bwtui itself publishes.

    A publication of the user's own is itself a choice of tables.
    """
    return settings.owns_publication or bool(settings.tables) or not shortfall.outside


def shortfalls(
    connection: Connection, settings: RelaySettings, reads: Sequence[str] = ()
) -> Iterator[Shortfall]:
    """Yield the shortfalls of the publications; nothing if they are still to be created.

    ``reads``: the publications that a stream reads, which are those that existed when it began. Raises
    psycopg2.Error.
    """
    there = publication.existing(connection, settings.publication_name)
    names = tuple(name for name in there if name in reads) if reads else there
    if not names:
        return
    chosen = TableFilter(settings)
    tables = list(filter(chosen, list_tables(connection)))
    entries = publication.entries(connection, names)
    published = {(table.namespace, table.name): table for table in publication.merged(entries)}
    opened = _open(connection, names)
    has_slot = slot_state(connection, settings.slot) is not None
    instead = _list_instead(settings, names, tables, has_slot=has_slot)
    yield from _of_publications(opened, instead)
    adding = _PublicationHints(settings, names, there, has_slot=has_slot, runs=bool(reads))
    yield from _missing_tables(connection, adding, names, tables, published)
    # Tables that the relay leaves out are included: PostgreSQL considers the publication alone.
    every = list_tables(connection, partitions=True)
    bare = [one for one in every if lacks_identity(one) and (one.namespace, one.name) in published]
    unused = _unused_keys(connection, bare)
    for table in bare:
        if entry := published.get((table.namespace, table.name)):
            yield from _blocked(table, entry, unused.get(table.oid))
            if not entry.inserts and chosen(table):
                says = "is published without its inserts, and so not at all"
                yield _shortfall(table, says, instead, captured=False)
    keyed_entries = publication.published_tables(connection, names[:1])
    keyed = {(table.namespace, table.name) for table in keyed_entries}
    # The publication has tables without a replica identity, now or later, so it must not publish their
    # updates.
    is_mixed = names[0] in opened or any(
        (table.namespace, table.name) in keyed for table in filter(lacks_identity, every)
    )
    narrow = narrowed(connection, names, entries)
    for table in every:
        entry = published.get((table.namespace, table.name))
        if entry is None or not chosen(table):
            continue
        for says in narrow.get((table.namespace, table.name), ()):
            name = names[0] if (table.namespace, table.name) in keyed else names[-1]
            yield _shortfall(table, says, _widen(name, table, has_slot=has_slot))
        if lacks_identity(table):
            continue
        if (table.namespace, table.name) not in keyed:
            hint = f"run: {_move(connection, settings.publication_name, table)}"
        elif is_mixed:
            hint = instead
        else:
            alter = f"ALTER PUBLICATION {quote_identifier(names[0])} SET (publish = '{_EVERYTHING}')"
            hint = f"run: {format_sql(alter)}"
        compares = has_slot and settings.on_gap == "close"
        yield from _in_part(table, entry, f"{_COMPARES}{hint}" if compares else hint)


def narrowed(
    connection: Connection, names: Sequence[str], entries: Sequence[PublishedTable]
) -> dict[tuple[str, str], list[str]]:
    """Return, by schema and name, statements that rows or columns of a published table are left out.

    ``entries`` are the entries of the publications ``names``.
    """
    restrictions: dict[tuple[str, str], list[str]] = {}
    by_table: dict[tuple[str, str], list[PublishedTable]] = {}
    for entry in entries:
        by_table.setdefault((entry.namespace, entry.name), []).append(entry)
    for table, its_entries in by_table.items():
        if filtered := list(_filtered(its_entries)):
            restrictions[table] = filtered
    if connection.server_version >= 150000:
        for namespace, name, columns in query(connection, _COLUMNS_SQL, list(names)):
            plural = "columns" if len(columns) > 1 else "column"
            says = f"is published without its {plural} {', '.join(columns)}"
            restrictions.setdefault((namespace, name), []).append(says)
    return restrictions


def _filtered(entries: Sequence[PublishedTable]) -> Iterator[str]:
    """Yield statements on the rows that a table's row filters leave out.

    PostgreSQL combines the filters of each operation with OR.
    """
    filters: dict[str, list[str]] = {}
    every = []
    for operation in ("inserts", "updates", "deletes"):
        filters_of = [entry.row_filter for entry in entries if getattr(entry, operation)]
        if filters_of:
            every.append(operation)
        if filters_of and None not in filters_of:
            row_filter = " or ".join(dict.fromkeys(map(str, filters_of)))
            filters.setdefault(row_filter, []).append(operation)
    for row_filter, operations in filters.items():
        if operations == every:
            yield f"is published only where {row_filter}: other rows are not captured"
        else:
            some = " and ".join(operations)
            yield f"has {some} published only where {row_filter}: others are not captured"


def _widen(name: str, table: TableInfo, *, has_slot: bool) -> str:
    """Return the SQL that makes publication ``name``, which lists a table, publish it without
    restrictions.
    """
    alter, to = f"ALTER PUBLICATION {quote_identifier(name)}", table_clause(table)
    whole = format_sql(f"{alter} DROP TABLE {to}", f"{alter} ADD TABLE {to}")
    return f"if that is unintended: {_EARLIER}{whole}" if has_slot else f"if that is unintended, run: {whole}"


def _open(connection: Connection, names: Sequence[str]) -> dict[str, tuple[bool, bool]]:
    """Return the publications that include future tables, each with whether it publishes updates or deletes,
    and whether it includes all tables.
    """
    sql = _OPEN_SQL.format(schemas=_SCHEMAS if connection.server_version >= 150000 else "")
    return {name: (updates, everything) for name, updates, everything in query(connection, sql, list(names))}


def _of_publications(opened: dict[str, tuple[bool, bool]], instead: str) -> Iterator[Shortfall]:
    """Yield the publications that will block writes to future tables."""
    for name, (_, everything) in ((name, one) for name, one in opened.items() if one[0]):
        which = "" if everything else " of its schemas"
        yield Shortfall(
            f"publication {name}",
            None,
            f"includes all future tables{which}, and publishes updates and deletes: PostgreSQL rejects"
            " an application's UPDATE and DELETE on tables without a replica identity",
            instead,
        )


def _list_instead(
    settings: RelaySettings, names: Sequence[str], tables: Sequence[TableInfo], *, has_slot: bool
) -> str:
    """Return the SQL that replaces the publications by lists of tables without losing changes in between.

    A publication may be recreated under its existing name at any time. A new name is different: the stream
    must not reach WAL from before that publication was created.
    """
    unkeyed = [table for table in tables if lacks_identity(table)]
    joins = bool(unkeyed) and len(names) == 1 and settings.allow_unkeyed
    if joins and has_slot:
        statement = format_sql(publication.create_unkeyed_statement(names[0], unkeyed))
        return f"run 'bwtui doctor' again after this step: {_NEW_ONE.format(statement)}"
    statements = publication.create_statements(names[0], tables)[: 2 if joins else len(names)]
    dropped = ", ".join(map(quote_identifier, names))
    return "to list the tables instead, add the former row filters and options, and run: " + format_sql(
        f"DROP PUBLICATION {dropped}", *statements
    )


def _missing_tables(
    connection: Connection,
    adding: "_PublicationHints",
    names: Sequence[str],
    tables: Sequence[TableInfo],
    published: Container[tuple[str, str]],
) -> Iterator[Shortfall]:
    """Yield those of ``tables`` that are in none of the publications.

    The publications' entries were read after the tables, at a different moment: a table that no longer exists
    under its name was dropped or renamed in between. One snapshot for both would not help, since
    pg_publication_tables shows the latest catalog whatever the transaction's snapshot is.
    """
    apart = [table for table in tables if (table.namespace, table.name) not in published]
    if not apart:
        return
    present = {table.oid: table for table in list_tables(connection, partitions=True)}
    still = {(table.oid, table.namespace, table.name) for table in present.values()}
    apart = [table for table in apart if (table.oid, table.namespace, table.name) in still]
    adding.together(apart, _unused_keys(connection, apart))
    by_partition = not publication.via_root(connection, names)
    for table in apart:
        oids = query(connection, _LEAVES_SQL, table.oid) if table.partitioned else []
        leaves = [present[oid] for (oid,) in oids if oid in present]
        missing = [leaf for leaf in leaves if (leaf.namespace, leaf.name) not in published]
        if table.partitioned and len(missing) < len(leaves):
            for leaf in filter(adding.chosen, missing):
                yield _outside(leaf, adding.hint(leaf))
        elif leaves or not (table.partitioned and by_partition):
            yield _outside(table, adding.hint(table))


def _unused_keys(connection: Connection, tables: Sequence[TableInfo]) -> dict[int, UnusedKey]:
    """Return, by oid, why tables without a key do not use the primary key that they have."""
    bare = {table.oid: table for table in tables if not table.has_key}
    reasons = {
        oid: unused_key(connection, bare[oid]) for (oid,) in query(connection, _PRIMARY_SQL, list(bare))
    }
    return {oid: unused for oid, unused in reasons.items() if unused is not None}


class _PublicationHints:
    """Builds the hints for owners on how to add tables to a publication without breaking applications."""

    def __init__(
        self,
        settings: RelaySettings,
        names: Sequence[str],
        there: Sequence[str],
        *,
        has_slot: bool,
        runs: bool,
    ) -> None:
        """Take ``names``, the publications that are read, and ``there``, those that exist.

        ``runs``: the caller is a running relay, which has already tried to add the tables itself.
        """
        self._settings = settings
        self.chosen = TableFilter(settings)
        self._names = names
        self._companion = publication.unkeyed_name(names[0])
        self._exists = self._companion in there
        self._has_slot = has_slot
        self._runs = runs
        self._when = _EARLIER if has_slot else "run: "
        self._unkeyed: dict[int, TableInfo] = {}
        self._statements = ""
        self._unused: dict[int, UnusedKey] = {}

    def together(self, tables: Sequence[TableInfo], unused: dict[int, UnusedKey]) -> None:
        """Register the tables that are to be added together: the publication of inserts is created only
        once.

        ``unused``: the result of `_unused_keys`.
        """
        self._unused = unused
        self._unkeyed = {table.oid: table for table in tables if lacks_identity(table)}
        self._statements = self._make(list(self._unkeyed.values()))

    def hint(self, table: TableInfo) -> str:
        """Return the hint for one table."""
        hint = self._statement(table)
        to = publication.publication_for(self._names[0], table, allow_unkeyed=self._settings.allow_unkeyed)
        is_added = self._settings.adds_new_tables and self._exists and table.owned and to
        return f"{_ADDED}; {hint}" if is_added and not self._runs else hint

    def _statement(self, table: TableInfo) -> str:
        if table.has_key or (self._settings.allow_unkeyed and not lacks_identity(table)):
            return f"{self._when}{_add(self._names[0], table)}"
        unused = self._unused.get(table.oid)
        if not self._settings.allow_unkeyed:
            options = f"leave it out with {exclude_option([table.qualified_name])}, or start with -u"
            if unused:
                return f"it {unused.says}: {options}, or {unused.hint}"
            return f"{_BARE if lacks_identity(table) else _WITHOUT_KEY}, {options}"
        if unused:
            return f"it {unused.says}: {unused.hint}"
        if self._companion in self._names:
            return f"{_JOINS}; {self._when}{_add(self._companion, table)}"
        if self._exists:
            return f"restart the relay once it has caught up with now: it then also reads {self._companion}"
        return self._statements if table.oid in self._unkeyed else self._make([table])

    def _make(self, tables: Sequence[TableInfo]) -> str:
        # One text for all of them: there may be thousands.
        statement = format_sql(publication.create_unkeyed_statement(self._names[0], tables))
        return f"{_JOINS}; {_NEW_ONE.format(statement) if self._has_slot else f'run: {statement}'}"


def _add(name: str, table: TableInfo) -> str:
    return format_sql(f"ALTER PUBLICATION {quote_identifier(name)} ADD TABLE {table_clause(table)}")


def _shortfall(table: TableInfo, says: str, hint: str, *, captured: bool = True) -> Shortfall:
    return Shortfall(f"table {table.qualified_name}", table, says, hint, captured)


def _outside(table: TableInfo, hint: str) -> Shortfall:
    says = "is not in the publication"
    return Shortfall(f"table {table.qualified_name}", table, says, hint, captured=False, outside=True)


def _blocked(table: TableInfo, entry: PublishedTable, unused: UnusedKey | None) -> Iterator[Shortfall]:
    """Yield a table whose UPDATE or DELETE PostgreSQL rejects because of the publication."""
    refused = [operation for operation, yes in (("UPDATE", entry.updates), ("DELETE", entry.deletes)) if yes]
    if not refused:
        return
    if table.partitioned:
        hint = "add a primary key to each of its partitions, or set REPLICA IDENTITY FULL"
    elif unused:
        hint = f"it {unused.says}: {unused.hint}"
    else:
        alter = format_sql(f"ALTER TABLE {quoted_name(table)} REPLICA IDENTITY FULL")
        hint = f"add a primary key, or run: {alter}"
    yield _shortfall(
        table,
        f"has no replica identity, so PostgreSQL rejects an application's {' and '.join(refused)} on it, "
        "which its publication publishes",
        hint,
    )


def _move(connection: Connection, name: str, table: TableInfo) -> str:
    """Return the SQL that moves a table from the companion publication of ``name`` into ``name``."""
    companion, to = publication.unkeyed_name(name), table_clause(table)
    add = f"ALTER PUBLICATION {quote_identifier(name)} ADD TABLE {to}"
    if not query(connection, _LISTED_SQL, companion, table.oid)[0][0]:
        return format_sql(add)
    return format_sql(f"ALTER PUBLICATION {quote_identifier(companion)} DROP TABLE {to}", add)


def _in_part(table: TableInfo, entry: PublishedTable, hint: str) -> Iterator[Shortfall]:
    """Yield a table with operations that are not published, so that its topic does not follow it."""
    operations = (("inserts", entry.inserts), ("updates", entry.updates), ("deletes", entry.deletes))
    missing = [operation for operation, yes in operations if not yes]
    if not missing:
        return
    yield _shortfall(
        table,
        f"has a replica identity, but its {' and '.join(missing)} are not published: "
        "its topic does not follow it",
        hint,
        captured=len(missing) < len(operations),
    )
