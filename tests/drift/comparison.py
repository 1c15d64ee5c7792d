"""Compares topics with tables: shares nothing with the relay and ``bwtui verify``.

A plain consumer reads every record, and fastavro decodes it with the registry's schemas. The records are
folded by key *and partition*: a row that is live in two partitions is a difference, since a reader of either
partition keeps it, and compaction keeps both. Rows and values are compared as text, column by column.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import psycopg2

from bwtui.sandbox.sandbox import ServiceAddresses
from tests.raw_topic import committed_records, place_of
from tests.torture.topics import Decoder

#: The names and values of the key's columns, as text.
Key = tuple[tuple[str, str | None], ...]
Row = Mapping[str, str | None]

_TABLES = """
select n.nspname, c.relname,
       (select array_agg(a.attname::text) from pg_index i, pg_attribute a
         where i.indrelid = c.oid and a.attrelid = c.oid and a.attnum = any(i.indkey)
           and (case c.relreplident when 'i' then i.indisreplident else i.indisprimary end))
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.relkind in ('r', 'p') and c.relpersistence = 'p' and not c.relispartition
   and n.nspname !~ '^(pg_|information_schema)'"""

_COLUMNS = """
select attname::text from pg_attribute
 where attrelid = %s::regclass and attnum > 0 and not attisdropped and attgenerated = '' order by attnum"""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that a relay is expected to capture."""

    schema: str
    name: str
    key: tuple[str, ...]

    @property
    def full_name(self) -> str:
        """The name as the status of a relay has it."""
        return f"{self.schema}.{self.name}"

    def topic(self, prefix: str) -> str:
        """Return its topic."""
        return ".".join((prefix, *([self.schema] if self.schema != "public" else []), self.name))


@dataclass(slots=True)
class TopicFold:
    """The newest value of each key in each partition of a topic; None is a tombstone."""

    newest: dict[Key, dict[int, Row | None]] = field(default_factory=lambda: defaultdict(dict))
    #: The values of records without a key.
    unkeyed: set[Key] = field(default_factory=set)
    #: Records that can't be decoded.
    unreadable: int = 0

    def add(self, partition: int, key: Row | None, value: Row | None) -> None:
        """Take the next record of a partition."""
        if key is None:
            self.unkeyed.add(tuple(sorted((value or {}).items())))
        else:
            self.newest[tuple(sorted(key.items()))][partition] = value

    def differences(self, rows: Mapping[Key, Row]) -> Counter[str]:
        """Count the differences from the table's rows, by kind."""
        found = Counter(unreadable=self.unreadable)
        found["without a key"] = len(self.unkeyed)
        for key in rows.keys() | self.newest.keys():
            live = [value for value in self.newest.get(key, {}).values() if value is not None]
            if key not in rows:
                found["kept although deleted"] += bool(live)
            elif not live:
                found["missing"] += 1
            elif len(live) > 1:
                found["live in two partitions"] += 1
            else:
                found["different"] += _differs(rows[key], live[0])
        return +found


def _differs(row: Row, value: Row) -> bool:
    columns = row.keys() | value.keys()
    return any(row.get(name) != value.get(name) for name in columns)


def differing(
    decoder: Decoder, services: ServiceAddresses, database: str, prefix: str, unkeyed: bool
) -> dict[str, str]:
    """Return the tables that differ from their topics, each with a sentence; nothing may write meanwhile.

    Unlogged tables are left out, and those without a key unless the relay captures the ``unkeyed`` ones, too.
    """
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute("set transaction isolation level repeatable read")
        cursor.execute(_TABLES)
        found = [Table(schema, name, tuple(key or ())) for schema, name, key in cursor.fetchall()]
        tables = [table for table in found if table.key or unkeyed]
        rows = {table: list(_rows(cursor, table)) for table in tables}
    folds = _fold(decoder, services, {table.topic(prefix) for table in tables})
    return {
        table.full_name: ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        for table in tables
        if (counts := _differences(table, rows[table], folds[table.topic(prefix)]))
    }


def _differences(table: Table, rows: Sequence[Row], fold: TopicFold) -> Counter[str]:
    if table.key:
        return fold.differences({tuple(sorted((name, row[name]) for name in table.key)): row for row in rows})
    # The topic of a table without a key keeps older rows, and may have a row twice.
    return +Counter(missing=len({tuple(sorted(row.items())) for row in rows} - fold.unkeyed))


def _rows(cursor: Any, table: Table) -> Iterator[Row]:
    """Yield the rows as they are published: without generated columns."""
    qualified = f'"{table.schema}"."{table.name}"'
    cursor.execute(_COLUMNS, (qualified,))
    names = [name for (name,) in cursor.fetchall()]
    quoted = ", ".join(f'"{name}"' for name in names)
    cursor.execute(f"select {quoted} from {qualified}")
    return (_texts(dict(zip(names, row, strict=True))) for row in cursor.fetchall())


def _fold(decoder: Decoder, services: ServiceAddresses, topics: Iterable[str]) -> dict[str, TopicFold]:
    folds: dict[str, TopicFold] = defaultdict(TopicFold)
    for message in committed_records(services, sorted(topics)):
        topic, partition, _ = place_of(message)
        try:
            key, value = decoder.decode(message.key()), decoder.decode(message.value())
        except AssertionError:
            folds[topic].unreadable += 1
        else:
            folds[topic].add(partition, _texts(key), _texts(value))
    return folds


def _texts(row: Mapping[str, Any] | None) -> Any:
    if row is None:
        return None
    return {name: None if value is None else str(value) for name, value in row.items()}
