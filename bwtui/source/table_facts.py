"""The catalog's facts, all of one moment, that the completeness of a topic depends on.

Only catalog tables are read, no function or view that locks a table, so a query never waits for an ALTER
TABLE. Catalog tables also follow the session's snapshot, which pg_publication_tables does not. A row's oid
and xmin identify its version: a publication that drops a table and adds it again has a new row.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from bwtui.model.sql import quote_identifier
from bwtui.pgoutput.messages import Relation
from bwtui.settings import RelaySettings
from bwtui.source.catalog import TableFilter
from bwtui.source.connection import Connection, execute, query

_PUBLICATIONS_SQL = """
select pubname, oid::text || ' ' || xmin::text, pubviaroot,
       concat_ws(', ', case when pubinsert then 'inserts' end, case when pubupdate then 'updates' end,
                 case when pubdelete then 'deletes' end)
  from pg_catalog.pg_publication where pubname = any(%s)
"""
_MEMBERS_SQL = """
with p as (select oid, pubname, puballtables from pg_catalog.pg_publication where pubname = any(%s))
select p.pubname, r.prrelid, r.oid::text, r.xmin::text
  from p join pg_catalog.pg_publication_rel r on r.prpubid = p.oid
{schemas}
 union all
select p.pubname, c.oid, '', ''
  from p join pg_catalog.pg_class c on p.puballtables and c.relkind in ('r', 'p') and c.relpersistence <> 't'
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
   and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname !~ '^pg_(toast|temp)'
"""
# Publications of whole schemas exist since PostgreSQL 15.
_SCHEMA_MEMBERS = """
 union all
select p.pubname, c.oid, 'schema ' || s.oid, s.xmin::text
  from p join pg_catalog.pg_publication_namespace s on s.pnpubid = p.oid
  join pg_catalog.pg_class c on c.relnamespace = s.pnnspid and c.relkind in ('r', 'p')
   and c.relpersistence <> 't'
"""
# CREATE TABLE writes a column's row in pg_attribute in the same command as those of the system columns,
# whereas ATTACH PARTITION rewrites each of them. So they show which of the two made a table a partition.
_RELATIONS_SQL = """
with recursive tree (oid) as (
       select unnest(%s::oid[])
        union select i.inhrelid from tree join pg_catalog.pg_class c on c.oid = tree.oid and c.relkind = 'p'
                join pg_catalog.pg_inherits i on i.inhparent = tree.oid)
select c.oid, n.nspname, c.relname, format('%%I.%%I', n.nspname, c.relname), c.relkind::text,
       c.relpersistence::text, c.relfilenode::bigint, c.xmin::text,
       case when c.relispartition then i.inhparent::bigint end, i.xmin::text,
       c.relreplident::text || ' ' || coalesce((
         select string_agg(a.attname || ':' || a.atttypid, ',' order by k.place)
           from pg_catalog.pg_index x
          cross join lateral unnest(x.indkey::int2[]) with ordinality as k (attnum, place)
           join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
          where x.indrelid = c.oid and k.place <= x.indnkeyatts
            and case c.relreplident when 'n' then false when 'i' then x.indisreplident
                     else x.indisprimary and x.indimmediate end), ''),
       array(select a.attname::text from pg_catalog.pg_attribute a
              where a.attrelid = c.oid and a.attnum > 0 and a.atthasmissing and not a.attisdropped
              order by 1),
       coalesce((select x.indexrelid::bigint from pg_catalog.pg_index x where x.indrelid = c.oid
          and case c.relreplident when 'n' then false when 'i' then x.indisreplident
                   else x.indisprimary end), 0),
       (select pg_catalog.json_object_agg(a.attname, a.attnum) from pg_catalog.pg_attribute a
         where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
       (select pg_catalog.json_object_agg(a.attname, a.xmin::text) from pg_catalog.pg_attribute a
         where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
       exists (select from pg_catalog.pg_attribute s
                 join pg_catalog.pg_attribute a on a.attrelid = s.attrelid and a.attnum > 0
                  and a.xmin = s.xmin and a.cmin = s.cmin
                where s.attrelid = c.oid and s.attnum = -1 and s.xmin = i.xmin)
  from tree join pg_catalog.pg_class c using (oid) join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  left join pg_catalog.pg_inherits i on i.inhrelid = c.oid and c.relispartition
"""
# Only user-defined types: no built-in type contains an enum.
_LABELS_SQL = """
with recursive used (relid, typ) as (
       select a.attrelid, a.atttypid from pg_catalog.pg_attribute a
        where a.attrelid = any(%s) and a.attnum > 0 and not a.attisdropped and a.atttypid >= 16384
        union
       select used.relid, part.typ from used join pg_catalog.pg_type t on t.oid = used.typ
        cross join lateral (
              select t.typelem where t.typelem <> 0 union all select t.typbasetype where t.typbasetype <> 0
               union all select r.rngsubtype from pg_catalog.pg_range r where r.rngtypid = t.oid
               union all select f.atttypid from pg_catalog.pg_attribute f
                          where f.attrelid = t.typrelid and f.attnum > 0 and not f.attisdropped) part (typ))
select used.relid, e.oid::text, e.enumlabel, e.xmin::text
  from used join pg_catalog.pg_enum e on e.enumtypid = used.typ
 union all
select used.relid, 'type ' || t.oid,
       string_agg(f.attnum::text, ',' order by f.attnum) filter (where not f.attisdropped),
       string_agg(f.xmin::text, ',' order by f.attnum)
  from used join pg_catalog.pg_type t on t.oid = used.typ
  join pg_catalog.pg_attribute f on f.attrelid = t.typrelid and f.attnum > 0
 group by 1, 2
"""
FORMER_KEY = "its topic may contain rows under the former key"
#: The operations of a table that a publication may publish.
OPERATIONS = ("inserts", "updates", "deletes")
#: The first part of a table's key: how PostgreSQL identifies its rows (pg_class.relreplident).
_IDENTITIES = {"d": "default", "i": "index", "f": "full", "n": "nothing"}


@dataclass(frozen=True, slots=True)
class LeafPartition:
    """A partition that stores rows of a published root."""

    name: str
    #: Its name, quoted for SQL.
    quoted: str
    kind: str
    persistence: str
    filenode: int
    key: str
    #: The xmin of its row in pg_inherits, and those of its parents below the root.
    attached: str
    #: Those of ``attached`` that ATTACH PARTITION wrote.
    by_attach: str = ""

    @property
    def columns(self) -> str:
        """The columns of its replica identity."""
        return self.key.partition(" ")[2]


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The facts that one table's topic depends on."""

    oid: int
    #: ``schema.table``, and the same quoted for SQL.
    name: str
    quoted: str
    #: Whether --table and --exclude-table select it.
    selected: bool
    #: The versions of the publications that have it, by name, and of its entries in them.
    publications: dict[str, str]
    entries: dict[str, str]
    #: The published ones of inserts, updates and deletes.
    operations: str
    persistence: str
    filenode: int
    #: The version of its row in pg_class if a publication of a whole schema has it; otherwise "".
    version: str
    #: Its replica identity and that identity's columns.
    key: str
    #: Columns whose value in earlier rows is the default with which they were added.
    defaulted: list[str] = field(default_factory=list)
    #: Labels of the enums that it uses, by oid, and the attribute numbers of its composite types.
    labels: dict[str, str] = field(default_factory=dict)
    #: By oid, as text.
    leaves: dict[str, LeafPartition] = field(default_factory=dict)
    #: The oid of the key's index; 0: unknown.
    index: int = 0
    #: The numbers of its columns, dropped ones included, by name; a column that was added again has a new
    #: number.
    numbers: dict[str, int] = field(default_factory=dict)
    #: If it is itself a partition: `LeafPartition.by_attach` up to the topmost table.
    attached: str = ""
    #: The versions of its columns by name, and of ``labels`` by oid: they show temporary changes.
    column_versions: dict[str, str] = field(default_factory=dict)
    label_versions: dict[str, str] = field(default_factory=dict)
    #: Why no publication has it, as the rest of a sentence, and the statement that has to come first.
    outside: str = ""
    remedy: str = ""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "TableFacts":
        """Rebuild the facts from ``dataclasses.asdict``. Raises TypeError and KeyError for invalid data."""
        return cls(**{**data, "leaves": {oid: LeafPartition(**leaf) for oid, leaf in data["leaves"].items()}})

    @property
    def columns(self) -> list[str]:
        """The columns that identify a row."""
        columns = self.key.partition(" ")[2]
        return [column.rpartition(":")[0] for column in columns.split(",")] if columns else []

    @property
    def key_columns(self) -> str:
        """The columns that identify a row, formatted for a message."""
        return f"({', '.join(self.columns)})" if self.columns else "none"

    @property
    def published(self) -> str:
        """The ``operations`` that can reach the stream: none for an unlogged table."""
        possible = () if self.persistence == "u" else self._possible
        return ", ".join(one for one in possible if one in self.operations)

    @property
    def _possible(self) -> tuple[str, ...]:
        """The operations that can be published: rows without an identity can't be updated or deleted then."""
        return OPERATIONS if self.columns or self.key[0] == "f" else OPERATIONS[:1]

    def changes_since(self, before: "TableFacts") -> Iterator[str]:
        """Yield changes since ``before`` that the stream may not contain, each as the rest of a sentence."""
        if self.oid != before.oid:
            yield "was dropped and created again: its topic may keep rows of the former table"
            return
        if self.selected and not before.selected:
            yield "was excluded by --table or --exclude-table: its changes from that time were not sent"
        yield from self._changes_of_publications(before)
        if self.persistence != before.persistence:
            yield "was unlogged: the stream lacks the changes from that time"
        elif self.filenode != before.filenode:
            yield "was truncated or rewritten: its topic may contain the former rows"
        elif self.version and before.version and self.version != before.version:
            yield "was altered: the stream lacks changes if it was in a different schema meanwhile"
        if self.key != before.key:
            yield f"{self._key_instead_of(before)}: {FORMER_KEY}"
        elif before.index and self.index != before.index:
            yield "temporarily had a different key: its topic may contain rows under that key"
        if again := [
            name for name, number in self.numbers.items() if before.numbers.get(name, number) != number
        ]:
            yield f"had column {again[0]} dropped and added again: its topic may contain the former values"
        names = {number: name for name, number in before.numbers.items()}
        for name, number in self.numbers.items():
            if (former := names.get(number, name)) != name:
                yield f"had column {former} renamed to {name}: its topic contains rows with the former name"
        if altered := [
            name
            for name in _altered(self.column_versions, before.column_versions)
            if self.numbers[name] == before.numbers.get(name)
        ]:
            yield f"has column {altered[0]}, which was altered: its topic may have values in the former form"
        if added := [name for name in self.defaulted if name not in before.defaulted]:
            yield f"got column {added[0]} with a default: its topic contains earlier rows without that value"
        if _altered(self.labels, before.labels) or _altered(self.label_versions, before.label_versions):
            yield (
                "uses a type whose labels were renamed, or whose attributes were changed: "
                "its topic contains values in the former form"
            )
        yield from self._changes_of_leaves(before)

    def _key_instead_of(self, before: "TableFacts") -> str:
        if self.key_columns != before.key_columns:
            return f"has a different key, {self.key_columns} instead of {before.key_columns}"
        now, then = (_IDENTITIES.get(one.key[0], one.key[0]) for one in (self, before))
        if now != then:
            return f"has replica identity {now} instead of {then}"
        return f"has different column types in its key {self.key_columns}"

    def _changes_of_publications(self, before: "TableFacts") -> Iterator[str]:
        for name, version in before.publications.items():
            now = self.publications.get(name, "")
            if not now:
                yield f"was removed from publication {name}: its changes since then may not have been sent"
            elif now.split()[0] != version.split()[0]:
                yield f"is in publication {name}, which was dropped and created again"
            elif now != version:
                yield f"is in publication {name}, which was altered: some changes may not have been published"
            elif self.entries.get(name, "") != before.entries.get(name, ""):
                yield (
                    f"left publication {name} for a while, or its filter or column list changed: "
                    "some changes may not have been published"
                )

    def _changes_of_leaves(self, before: "TableFacts") -> Iterator[str]:
        for oid, leaf in before.leaves.items():
            now = self.leaves.get(oid)
            if now is None:
                yield f"lost partition {leaf.name}: its topic still contains that partition's rows"
            elif not f"{now.attached} ".startswith(f"{leaf.attached} "):
                # An earlier version recorded only the first link.
                yield f"had partition {leaf.name} detached and attached again"
            elif now.persistence != leaf.persistence:
                yield f"had partition {leaf.name} unlogged: the stream lacks the changes from that time"
            elif now.filenode != leaf.filenode:
                yield f"had partition {leaf.name} truncated or rewritten"
            elif now.key != leaf.key:
                yield f"has a different replica identity in partition {leaf.name}"
        for oid, leaf in self.leaves.items():
            # The first file of a table has the number of its oid.
            if oid not in before.leaves and leaf.filenode not in (0, int(oid)):
                yield f"got partition {leaf.name}, which had been truncated, rewritten or unlogged"

    def gaps(self, operations: str) -> Iterator[tuple[str, str]]:
        """Yield why changes do not reach the stream now, and the statement that helps.

        The reason is the rest of a sentence. ``operations`` are those that were `published` so far: a table
        that was always unlogged has no topic, as PostgreSQL publishes none of its changes.
        """
        if not self.publications:
            outside = "is not in the publication: none of its changes are sent, deletes included"
            yield self.outside or outside, self.remedy
        if self.persistence == "u":
            if operations:
                logged = f"ALTER TABLE {self.quoted} SET LOGGED"
                yield "is unlogged: none of its changes are in the stream", logged
            return
        lost = [one for one in self._possible if one in operations and one not in self.operations]
        if self.publications and lost:
            alter = f"ALTER PUBLICATION {quote_identifier(next(iter(self.publications)))}"
            widen = f"{alter} SET (publish = 'insert, update, delete, truncate')"
            yield f"is published without its {' and '.join(lost)}", widen
        for leaf in self.leaves.values():
            if leaf.kind == "f":
                detach = f"ALTER TABLE {self.quoted} DETACH PARTITION {leaf.quoted}"
                yield (
                    f"has the foreign table {leaf.name} as a partition, whose changes the stream lacks",
                    detach,
                )
            elif leaf.persistence == "u":
                logged = f"ALTER TABLE {leaf.quoted} SET LOGGED"
                yield f"has the unlogged partition {leaf.name}, whose changes the stream lacks", logged
            elif not {leaf.key[0], self.key[0]} & {"f", "n"} and leaf.columns != self.key.partition(" ")[2]:
                full = f"ALTER TABLE {leaf.quoted} REPLICA IDENTITY FULL"
                yield (
                    (
                        f"has partition {leaf.name} with a different replica identity: "
                        "an UPDATE of a key there may leave the old row in the topic"
                    ),
                    full,
                )


def closed(gap: str, lsn: str) -> str:
    """Return the reason for a table whose ``gap`` (see `TableFacts.gaps`) lasted until ``lsn``."""
    state, colon, effect = gap.partition(": ")
    verb, _, rest = state.partition(" ")
    past = {"is": "was", "has": "had"}.get(verb)
    if past is None:
        return f"{gap}, until {lsn}"
    return f"{past} {rest} until {lsn}{colon}{effect.replace(' are ', ' were ')}"


def _altered(now: dict[str, str], before: dict[str, str]) -> list[str]:
    """Return the names of what both have, in different versions."""
    return [name for name, version in before.items() if now.get(name, version) != version]


#: Facts by the table's name.
Facts = dict[str, TableFacts]


def read_facts(connection: Connection, publications: Collection[str], settings: RelaySettings) -> Facts:
    """Return the facts of all tables of ``publications``, selected or not. Raises psycopg2.Error.

    All facts are of one moment: that of the session's transaction, which may have imported a snapshot, or of
    a transaction of its own.
    """
    if connection.info.transaction_status != TRANSACTION_STATUS_IDLE:
        return _read(connection, publications, settings)
    execute(connection, "begin isolation level repeatable read read only")
    try:
        return _read(connection, publications, settings)
    finally:
        if not connection.closed:
            execute(connection, "rollback")


def _read(connection: Connection, publications: Collection[str], settings: RelaySettings) -> Facts:
    names = list(publications)
    published = {row[0]: row[1:] for row in query(connection, _PUBLICATIONS_SQL, names)}
    schemas = _SCHEMA_MEMBERS if connection.server_version >= 150000 else ""
    members: dict[int, dict[str, str]] = {}
    by_schema: set[int] = set()
    for name, oid, entry, version in query(connection, _MEMBERS_SQL.format(schemas=schemas), names):
        entries = members.setdefault(int(oid), {})
        entries[name] = " ".join(filter(None, (entries.get(name, ""), entry, version)))
        if entry.startswith("schema"):
            by_schema.add(int(oid))
    relations = {int(row[0]): row for row in query(connection, _RELATIONS_SQL, list(members))}
    labels: dict[int, dict[str, str]] = defaultdict(dict)
    label_versions: dict[int, dict[str, str]] = defaultdict(dict)
    for relid, oid, label, version in query(connection, _LABELS_SQL, list(relations)):
        labels[int(relid)][oid] = label
        label_versions[int(relid)][oid] = version
    chosen = TableFilter(settings)
    owners = _owners(relations, members, {name for name, (_, via_root, _) in published.items() if via_root})
    facts: Facts = {}
    for owner, leaves in owners.items():
        _, namespace, name, quoted, _, persistence, filenode, version, _, _, key, _, index, *more = relations[
            owner
        ]
        numbers, column_versions, _ = more
        line = [owner, *_ancestors(relations, owner)]
        entries = {pub: entry for oid in line for pub, entry in members.get(oid, {}).items()}
        facts[f"{namespace}.{name}"] = TableFacts(
            oid=owner,
            name=f"{namespace}.{name}",
            quoted=quoted,
            selected=chosen.passes(namespace, name),
            publications={pub: published[pub][0] for pub in sorted(entries)},
            entries=dict(sorted(entries.items())),
            operations=", ".join(
                one for one in OPERATIONS if any(one in published[pub][2] for pub in entries)
            ),
            persistence=persistence,
            filenode=filenode,
            version=version if by_schema.intersection(line) else "",
            key=key,
            defaulted=sorted({name for oid in (owner, *leaves) for name in relations[oid][11]}),
            labels=labels[owner],
            leaves={str(oid): _leaf(relations, oid, owner) for oid in leaves},
            index=index,
            numbers=numbers or {},
            attached=_leaf(relations, owner, line[-1]).by_attach,
            column_versions=column_versions or {},
            label_versions=label_versions[owner],
        )
    return facts


def moved_tables(before: Facts, now: Facts) -> set[str]:
    """Return the tables to or from which partitions were attached or detached, with rows or without."""
    then, there = _homes(before), _homes(now)
    moved = set()
    for oid in then.keys() | there.keys():
        former, present = then.get(oid), there.get(oid)
        if former is None or present is None:
            # A table that was just created or dropped is in no session's cache.
            is_moved = former.is_leaf if former is not None else present is not None and bool(present.links)
        else:
            is_moved = (former.owner, former.links) != (present.owner, present.links)
        if is_moved:
            moved |= {home.name for home in (former, present) if home is not None}
    return moved


class _TopicTable(NamedTuple):
    """The table under whose name the rows of a relation are sent, and how the relation became part of it."""

    name: str
    owner: int
    is_leaf: bool
    links: str


def _homes(facts: Facts) -> dict[int, _TopicTable]:
    homes = {
        int(oid): _TopicTable(one.name, one.oid, True, leaf.by_attach)
        for one in facts.values()
        for oid, leaf in one.leaves.items()
    }
    targets = {one.oid: _TopicTable(one.name, one.oid, False, one.attached) for one in facts.values()}
    return targets | homes


def _leaf(relations: dict[int, tuple[Any, ...]], oid: int, owner: int) -> LeafPartition:
    _, namespace, name, quoted, kind, persistence, filenode, _, _, _, key, *_ = relations[oid]
    line = [oid, *_ancestors(relations, oid)]
    links = [(relations[one][9], relations[one][15]) for one in line[: line.index(owner)]]
    attached = " ".join(link for link, _ in links)
    by_attach = " ".join(link for link, is_created in links if not is_created)
    return LeafPartition(f"{namespace}.{name}", quoted, kind, persistence, filenode, key, attached, by_attach)


def _ancestors(relations: dict[int, tuple[Any, ...]], oid: int) -> Iterator[int]:
    while (parent := relations[oid][8]) is not None and parent in relations:
        oid = int(parent)
        yield oid


def _owners(
    relations: dict[int, tuple[Any, ...]], members: dict[int, dict[str, str]], via_root: set[str]
) -> dict[int, list[int]]:
    """Return the tables under whose names rows are sent, each with the partitions that store them."""
    owners: dict[int, list[int]] = {}
    for oid, row in relations.items():
        line = [oid, *_ancestors(relations, oid)]
        # PostgreSQL sends rows under the name of the topmost ancestor that such a publication lists.
        roots = [one for one in line if via_root.intersection(members.get(one, {}))]
        owner = roots[-1] if roots else oid
        if row[4] == "p" and owner != oid:
            continue
        leaves = owners.setdefault(owner, []) if row[4] != "p" or roots else []
        if owner != oid:
            leaves.append(oid)
    return owners


def may_have_had_rows(connection: Connection, leaf: LeafPartition, links: Collection[str]) -> bool:
    """Return whether a new partition may have held rows when it was attached. Raises psycopg2.Error.

    A locked partition, or one that the role may not read, may have. ``links`` existed before. Rows inserted
    afterwards count too: a transaction that fills a table in a savepoint and attaches it can't be
    distinguished from two transactions.
    """
    if leaf.kind != "r":
        return True
    if set(leaf.by_attach.split()) <= set(links):
        return False
    former = query(connection, "select current_setting('lock_timeout')")[0][0]
    try:
        execute(connection, "set lock_timeout = '100ms'")
        return bool(query(connection, f"select exists (select from only {leaf.quoted})")[0][0])
    except psycopg2.ProgrammingError:
        # It was dropped, or the role may not read it.
        return True
    except psycopg2.errors.LockNotAvailable:
        return True
    finally:
        execute(connection, f"set lock_timeout = '{former}'")


def differs_in_key(relation: Relation, columns: Collection[str]) -> bool:
    """Return whether PostgreSQL identifies the rows of ``relation`` by columns other than ``columns``."""
    if relation.replica_identity in "fn":
        return False
    key = {column.name for column in relation.columns if column.is_key}
    # A publication of inserts alone may leave out columns of the key.
    return bool(key) and key != {column.name for column in relation.columns}.intersection(columns)
