"""Compare topics with their tables: the latest value of every key must equal the row exactly.

A table without a key is compared as a multiset: the topic must have every row as often as the table, and no
others. Both sides are converted to the same form, by the declared type of each column; floats are compared
bit by bit. A value that a record has as text in ``__escaped`` never equals a value of the shop, which has no
values that Avro types can't hold.
"""

import datetime
import struct
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from psycopg2 import sql
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from bwtui.demo.rows import Row
from bwtui.demo.shop import DemoTable
from bwtui.demo.topics import DemoTopicReader, TopicContents
from bwtui.demo.verdict import ShopComparison, TableVerdict

ESCAPED = "__escaped"
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class ShopColumn:
    """A column as declared in the table: ``type`` is PostgreSQL's name without a modifier."""

    name: str
    type: str


def compare(
    connection: Connection,
    reader: DemoTopicReader,
    tables: Sequence[DemoTable],
    prefix: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ShopComparison:
    """Read the topics of ``tables``, then the tables in one snapshot, and return the differences.

    Nothing may be written meanwhile. Raises Indeterminate when one side can't be read completely.
    """
    topics = reader.topics(prefix)
    contents = {table: TopicContents(table.topic(prefix), table.key) for table in tables}
    reader.read([content for content in contents.values() if content.topic in topics], progress)
    connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
    with connection, connection.cursor() as cursor:
        verdicts = tuple(_compare_table(cursor, table, content) for table, content in contents.items())
    foreign = sorted(topics - {content.topic for content in contents.values()})
    return ShopComparison(verdicts, tuple(foreign))


def _compare_table(cursor: Cursor, table: DemoTable, content: TopicContents) -> TableVerdict:
    columns = _columns(cursor, table)
    rows = _rows(cursor, table, columns)
    if table.key:
        return _compare_latest(table, columns, rows, content)
    return _compare_multisets(table, columns, rows, content)


def _compare_latest(
    table: DemoTable, columns: Sequence[ShopColumn], rows: Iterator[Row], content: TopicContents
) -> TableVerdict:
    at = [[column.name for column in columns].index(name) for name in table.key]
    keys = [columns[index] for index in at]
    latest = {
        tuple(canonical(column.type, part) for column, part in zip(keys, key, strict=True)): value
        for key, value in content.latest.items()
    }
    count = missing = different = 0
    differing: Counter[str] = Counter()
    for row in rows:
        count += 1
        value = latest.pop(tuple(row[index] for index in at), None)
        if value is None:
            missing += 1
            continue
        names = _differences(columns, row, value)
        different += bool(names)
        differing.update(names)
    return TableVerdict(
        **_of_topic(table, content),
        rows=count,
        keys=len(content.latest),
        missing=missing,
        extra=len(latest),
        different=different,
        columns=dict(differing),
    )


def _compare_multisets(
    table: DemoTable, columns: Sequence[ShopColumn], rows: Iterator[Row], content: TopicContents
) -> TableVerdict:
    expected = Counter(rows)
    actual = Counter(_record(columns, value) for value in content.rows)
    missing, extra = (expected - actual).total(), (actual - expected).total()
    common = _of_topic(table, content)
    return TableVerdict(**common, rows=expected.total(), keys=None, missing=missing, extra=extra, different=0)


def _of_topic(table: DemoTable, content: TopicContents) -> dict[str, Any]:
    counts = {name: getattr(content, name) for name in ("messages", "unreadable", "split_keys", "holes")}
    return {"table": table.full_name, "topic": content.topic, **counts}


def _differences(columns: Sequence[ShopColumn], row: Row, value: Mapping[str, Any]) -> list[str]:
    record = _record(columns, value)
    names = [
        column.name
        for column, expected, actual in zip(columns, row, record, strict=False)
        if expected != actual
    ]
    return names + (["(unknown fields)"] if len(record) > len(row) else [])


def _record(columns: Sequence[ShopColumn], value: Mapping[str, Any]) -> Row:
    """Return a record in the form of a row; unknown fields are appended, so that it differs."""
    escaped = value.get(ESCAPED) or {}
    row = tuple(
        ("escaped",) if column.name in escaped else canonical(column.type, value.get(column.name, _ABSENT))
        for column in columns
    )
    unknown = set(value) - {column.name for column in columns} - {ESCAPED}
    return (*row, *sorted(unknown))


def _columns(cursor: Cursor, table: DemoTable) -> list[ShopColumn]:
    cursor.execute(
        "select attname, format_type(atttypid, null) from pg_attribute"
        " where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum",
        [table.full_name],
    )
    return [ShopColumn(*row) for row in cursor.fetchall()]


def _rows(cursor: Cursor, table: DemoTable, columns: Sequence[ShopColumn]) -> Iterator[Row]:
    """Yield every row in canonical form, in batches, so that a large table is not in memory twice."""
    expressions = [
        sql.SQL(_EXPRESSIONS.get(column.type, "{}")).format(sql.Identifier(column.name)) for column in columns
    ]
    with cursor.connection.cursor("comparison") as rows:
        rows.itersize = 5_000
        rows.execute(
            sql.SQL("select {} from {}").format(
                sql.SQL(", ").join(expressions), sql.Identifier(table.schema, table.name)
            )
        )
        for row in rows:
            yield tuple(canonical(column.type, value) for column, value in zip(columns, row, strict=True))


#: Expressions to read columns whose values psycopg2 would change: a real's text is not its value in double
#: precision, and parsed JSON is not PostgreSQL's text of it.
_EXPRESSIONS = {"real": "{}::double precision", "jsonb": "{}::text", "json": "{}::text", "uuid": "{}::text"}


def canonical(type_name: str, value: Any) -> Any:
    """Return the value in the canonical form in which both sides are compared.

    A value of a class that the column's type can't have is returned with the name of its class, which equals
    nothing on the other side.
    """
    if value is None:
        return None
    classes, form = _FORMS.get(type_name, _TEXT)
    # In Python a bool is also an int, and a datetime a date, but not for a reader of the topic.
    return form(value) if type(value) in classes else ("unexpected", type(value).__name__)


def _utc(value: datetime.datetime) -> Any:
    if value.tzinfo is None:
        return ("unexpected", "timestamp without time zone")
    return value.astimezone(datetime.UTC).isoformat()


def _local(value: datetime.datetime) -> Any:
    return ("unexpected", "timestamp with time zone") if value.tzinfo else value.isoformat()


def _decimal(value: Decimal) -> str:
    return format(value, "f")


_Form = tuple[tuple[type, ...], Callable[[Any], Any]]
_TEXT: _Form = ((str,), str)
_INTEGER: _Form = ((int,), int)
_FORMS: dict[str, _Form] = {
    "smallint": _INTEGER,
    "integer": _INTEGER,
    "bigint": _INTEGER,
    "boolean": ((bool,), bool),
    "real": ((float,), struct.Struct(">f").pack),
    "double precision": ((float,), struct.Struct(">d").pack),
    "numeric": ((Decimal,), _decimal),
    "date": ((datetime.date,), datetime.date.isoformat),
    "timestamp without time zone": ((datetime.datetime,), _local),
    "timestamp with time zone": ((datetime.datetime,), _utc),
    "bytea": ((bytes, memoryview), bytes),
    "uuid": ((str, uuid.UUID), str),
}
