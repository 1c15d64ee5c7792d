"""What the publications leave out, and what they do to the applications that write; nothing is changed here.

``bwtui doctor`` shows it, and a relay that runs tells of it as notices. docs/adr/0037-lists-of-tables.md has
the reasons.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bwtui.settings import RelaySettings
from bwtui.source import publication
from bwtui.source.catalog import TableFilter, TableInfo, list_tables
from bwtui.source.connection import Connection, query, quote_identifier
from bwtui.source.publication import PublishedTable, lacks_identity, quoted_name, table_clause

# Publications of whole schemas exist from PostgreSQL 15 on.
_OPEN_SQL = """
select p.pubname, p.pubupdate or p.pubdelete from pg_catalog.pg_publication p
 where p.pubname = any(%s) and (p.puballtables{schemas}) order by 1
"""
_LISTED_SQL = """
select count(*) from pg_catalog.pg_publication_rel r join pg_catalog.pg_publication p on p.oid = r.prpubid
 where p.pubname = %s and r.prrelid = %s
"""
_EVERYTHING = "insert, update, delete, truncate"
_NEW_ONE = "while the relay runs: {}; once it has caught up with that, start it again"
_SCHEMAS = " or exists (select from pg_catalog.pg_publication_namespace n where n.pnpubid = p.oid)"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One thing that the publications do not do: ``subject`` and ``says`` make a sentence.

    ``table`` is its qualified name, or None when it is about no single table; ``hint`` says what to run.
    """

    subject: str
    table: str | None
    says: str
    hint: str


def shortfalls(connection: Connection, settings: RelaySettings) -> Iterator[Shortfall]:
    """Yield what people should know of the publications; nothing while they are still to be made.

    Raises psycopg2.Error.
    """
    names = publication.existing(connection, settings.publication_name)
    if not names:
        return
    chosen = TableFilter(settings)
    tables = [table for table in list_tables(connection) if chosen(table.namespace, table.name)]
    published = {(one.namespace, one.name): one for one in publication.published_tables(connection, names)}
    opened = _open(connection, names)
    yield from _of_publications(settings, names, tables, opened)
    apart = [table for table in tables if (table.namespace, table.name) not in published]
    yield from _left_out(connection, settings, names, apart)
    # Also where the relay leaves a table out: PostgreSQL knows of the publication alone.
    every = list_tables(connection, partitions=True)
    for table in filter(lacks_identity, every):
        yield from _blocked(table, published.get((table.namespace, table.name)))
    own = {(one.namespace, one.name) for one in publication.published_tables(connection, names[:1])}
    # Updates of what it has without a replica identity, now or later, must not be published.
    is_mixed = names[0] in opened or any(
        (table.namespace, table.name) in own for table in filter(lacks_identity, every)
    )
    for table in every:
        entry = published.get((table.namespace, table.name))
        if entry is None or lacks_identity(table) or not chosen(table.namespace, table.name):
            continue
        if (table.namespace, table.name) not in own:
            yield from _in_part(table, entry, _move(connection, settings.publication_name, table))
        elif is_mixed:
            yield from _in_part(table, entry, _list_instead(settings, names, tables))
        else:
            alter = f"ALTER PUBLICATION {quote_identifier(names[0])}"
            yield from _in_part(table, entry, f"run: {alter} SET (publish = '{_EVERYTHING}')")


def _open(connection: Connection, names: Sequence[str]) -> dict[str, bool]:
    """Return which publications take in later tables, and if they publish updates or deletes."""
    sql = _OPEN_SQL.format(schemas=_SCHEMAS if connection.server_version >= 150000 else "")
    return dict(query(connection, sql, list(names)))


def _of_publications(
    settings: RelaySettings, names: Sequence[str], tables: Sequence[TableInfo], opened: dict[str, bool]
) -> Iterator[Shortfall]:
    """Yield the publications that will block tables which are not there yet."""
    for name in (name for name, publishes_updates in opened.items() if publishes_updates):
        yield Shortfall(
            f"publication {name}",
            None,
            "takes in every table that is made later, and publishes updates and deletes: PostgreSQL refuses"
            " an application's UPDATE and DELETE on one without a replica identity",
            _list_instead(settings, names, tables),
        )


def _list_instead(settings: RelaySettings, names: Sequence[str], tables: Sequence[TableInfo]) -> str:
    """Return what makes the publications lists, so that nothing falls in between.

    A name that was there before may get another publication at any time. A new one is different: the stream
    must not come upon WAL from before it was made.
    """
    unkeyed = [table for table in tables if lacks_identity(table)]
    if unkeyed and len(names) == 1 and settings.allow_unkeyed:
        made = publication.create_unkeyed_statement(names[0], unkeyed)
        return f"first run, {_NEW_ONE.format(made)}; then 'bwtui doctor' says what to run next"
    made = "; ".join(publication.create_statements(names[0], tables)[: len(names)])
    dropped = ", ".join(map(quote_identifier, names))
    return (
        f"for a list of tables instead, run: BEGIN; DROP PUBLICATION {dropped}; {made}; COMMIT, "
        "with the row filters and options that it had"
    )


def _left_out(
    connection: Connection, settings: RelaySettings, names: Sequence[str], apart: Sequence[TableInfo]
) -> Iterator[Shortfall]:
    """Yield the tables of ``apart`` that are none of the publications'.

    The publications' tables were read after them, as of another moment: a table that is not there any more
    under its name was dropped or renamed in between. pg_publication_tables has the latest catalog whatever
    the transaction's snapshot is, so one snapshot for both would not help.
    """
    if not apart:
        return
    by_partition = not publication.via_root(connection, names)
    still = {(table.oid, table.namespace, table.name) for table in list_tables(connection)}
    for table in apart:
        if (table.oid, table.namespace, table.name) in still and not (table.partitioned and by_partition):
            hint = _add(settings, names, table)
            yield Shortfall(
                f"table {table.qualified_name}", table.qualified_name, "is not in the publication", hint
            )


def _add(settings: RelaySettings, names: Sequence[str], table: TableInfo) -> str:
    """Return what an owner should run, so that ``table`` joins and no application breaks."""
    if not lacks_identity(table):
        return (
            f"rows from now on: ALTER PUBLICATION {quote_identifier(names[0])} ADD TABLE "
            f"{table_clause(table)}; those from before come with a new slot's snapshot only"
        )
    if not settings.allow_unkeyed:
        pattern = table.qualified_name
        return (
            f"it has no replica identity: give it a primary key first, leave it out with "
            f"--exclude-table '{pattern}', or start the relay again with -u"
        )
    keyed = (
        "it has no replica identity: give it a primary key first, or add it to the publication of inserts: "
    )
    companion = publication.unkeyed_name(names[0])
    if companion in names:
        return f"{keyed}ALTER PUBLICATION {quote_identifier(companion)} ADD TABLE {table_clause(table)}"
    made = publication.create_unkeyed_statement(names[0], [table])
    return f"{keyed}run, {_NEW_ONE.format(made)}"


def _blocked(table: TableInfo, entry: PublishedTable | None) -> Iterator[Shortfall]:
    """Yield a table whose UPDATE or DELETE PostgreSQL refuses, because of the publication."""
    if entry is None:
        return
    refused = [word for word, yes in (("UPDATE", entry.updates), ("DELETE", entry.deletes)) if yes]
    if not refused:
        return
    alter = f"ALTER TABLE {quoted_name(table)} REPLICA IDENTITY FULL"
    yield Shortfall(
        f"table {table.qualified_name}",
        table.qualified_name,
        f"has no replica identity, and PostgreSQL refuses an application's {' and '.join(refused)} on it, "
        "because its publication publishes them",
        "give each partition of it a primary key, or REPLICA IDENTITY FULL"
        if table.partitioned
        else f"give it a primary key, or run: {alter}",
    )


def _move(connection: Connection, name: str, table: TableInfo) -> str:
    """Return what moves a table out of the companion of publication ``name``, into that."""
    companion, to = publication.unkeyed_name(name), table_clause(table)
    add = f"ALTER PUBLICATION {quote_identifier(name)} ADD TABLE {to}"
    if not query(connection, _LISTED_SQL, companion, table.oid)[0][0]:
        return f"run: {add}"
    return f"run: BEGIN; ALTER PUBLICATION {quote_identifier(companion)} DROP TABLE {to}; {add}; COMMIT"


def _in_part(table: TableInfo, entry: PublishedTable, hint: str) -> Iterator[Shortfall]:
    """Yield a table of whose operations some are not published, so that its topic has rows that are gone."""
    operations = (("inserts", entry.inserts), ("updates", entry.updates), ("deletes", entry.deletes))
    missing = [word for word, yes in operations if not yes]
    if not missing:
        return
    yield Shortfall(
        f"table {table.qualified_name}",
        table.qualified_name,
        f"has a replica identity, but its {' and '.join(missing)} are not published: "
        "its topic does not follow it",
        f"{hint}; what was not published is not sent any more, but with a new slot's snapshot",
    )
