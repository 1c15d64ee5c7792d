"""Assign a class to every message and every record, in DuckDB, from digests alone.

The connection must contain ``expected_in``, ``actual_in``, ``topics_in``, ``partitions_in``, ``passes_in``
and ``gaps_in``, as `INPUTS` declares them, as tables or as views on Parquet. If digests can't decide, a
`ByteReader` reads the messages and records that differ. The rules are in sql/, one file for each family of
classes, in the order in which they run; sql/00_dictionary.md explains their tables and columns, docs/audit.md
the rules.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, Protocol

import duckdb
import pyarrow as pa

from bwtui.audit.classes import ACTUAL, EXPECTED, PAIRED
from bwtui.errors import BwtuiError

# Find the records of a key that came too late: those outside a longest increasing subsequence.


def late(numbers: Sequence[int]) -> list[int]:
    """Return the indexes of ``numbers`` outside a longest increasing subsequence.

    ``numbers`` are distinct. Of several longest ones, it takes the one that keeps the earliest elements, so
    of two that changed places the later one is late.
    """
    ending = _longest_ending(numbers)
    # Reversed and negated, the sequence increases again.
    starting = _longest_ending([-number for number in reversed(numbers)])[::-1]
    longest = max(ending, default=0)
    outside = []
    level, last = 1, None
    for index, number in enumerate(numbers):
        is_on = ending[index] == level and ending[index] + starting[index] == longest + 1
        if is_on and (last is None or number > last):
            level, last = level + 1, number
        else:
            outside.append(index)
    return outside


def _longest_ending(numbers: Sequence[int]) -> list[int]:
    """Return the length of the longest increasing subsequence that ends with each number."""
    tails: list[int] = []
    lengths = []
    for number in numbers:
        at = bisect_left(tails, number)
        if at == len(tails):
            tails.append(number)
        else:
            tails[at] = number
        lengths.append(at + 1)
    return lengths


#: A message's ID is its change's position times this, plus its number within the change; IDs sort in the same
#: order.
PARTS = 4096
#: Number of rows read or written at a time.
CHUNK = 10_000

INPUTS = {
    "expected_in": "id bigint, pass integer, is_repeat boolean, lsn bigint, ordinal integer, part integer,"
    " op varchar, xid bigint, commit_us bigint, received_us bigint, topic varchar, partition integer,"
    ' "offset" bigint, state varchar, no_message_reason varchar,'
    " key_digest bigint, value_digest bigint, key_hash integer, headers_digest bigint",
    "actual_in": 'topic varchar, partition integer, "offset" bigint, offset_end bigint, kind varchar,'
    " timestamp_ms bigint, key_digest bigint, value_digest bigint, headers_digest bigint",
    "topics_in": "topic varchar, partitions integer, settings_known boolean, compacts boolean,"
    " deletes boolean, retention_ms bigint, retention_bytes bigint, min_compaction_lag_ms bigint,"
    " delete_retention_ms bigint, log_append boolean",
    "partitions_in": "topic varchar, partition integer, low bigint, high bigint",
    "passes_in": "pass integer, is_confirmed boolean, reached_lsn bigint, is_exactly_once boolean,"
    " committed_id bigint",
    "gaps_in": "gap integer, before_id bigint",
}


@dataclass(frozen=True, slots=True)
class AuditWindow:
    """The range that the recording covers, and the time of the audit."""

    first_lsn: int
    last_lsn: int
    #: The LSN up to which the slot was confirmed, or everything had reached Kafka by the recording's own
    #: report.
    confirmed: int
    first_received_us: int
    last_commit_us: int
    now_ms: int
    #: The LSN at which a later session began to read, whose messages are not among those expected.
    resumed: int = (1 << 63) - 1


class RecordPlace(NamedTuple):
    """The position of a record in Kafka; ``topic_id`` numbers the audit's topics from 0, sorted by name."""

    topic_id: int
    partition: int
    offset: int


class DifferingPair(NamedTuple):
    """A message, by its ID, and the position of the record with different bytes at its offset."""

    id: int
    topic_id: int
    partition: int
    offset: int

    @property
    def place(self) -> RecordPlace:
        """The record's position."""
        return RecordPlace(self.topic_id, self.partition, self.offset)


class Inspection(NamedTuple):
    """The result of inspecting a record: whether the relay wrote it, and which change its headers name.

    ``has_other_session``: they name a relay's session that is not in the recording.
    """

    topic_id: int
    partition: int
    offset: int
    made_by_relay: bool
    lsn: int | None = None
    ordinal: int | None = None
    has_other_session: bool = False


class ByteReader(Protocol):
    """Reads messages and records again if digests can't decide. Raises ConnectionFailed."""

    def equal_rows(self, pairs: Sequence[DifferingPair]) -> Iterable[int]:
        """Return the IDs of the messages whose rows equal their records' rows although the bytes differ."""

    def inspect(self, places: Sequence[RecordPlace]) -> Iterable[Inspection]:
        """Inspect records; those that were removed from Kafka since the scan are left out."""

    def miscoded(self) -> Iterable[int]:
        """Return the IDs of messages that differ from what PostgreSQL sent."""


class UnbalancedAudit(BwtuiError):
    """The audit does not balance, which is an error of the audit itself."""


def run(connection: duckdb.DuckDBPyConnection, window: AuditWindow, reader: ByteReader) -> None:
    """Fill the tables of classes. Raises Broken if they don't add up to all messages and records."""
    for name in window.__slots__:
        connection.execute(f"set variable {name} = {int(getattr(window, name))}::bigint")
    _run(connection, "10_load", "20_suspects", "30_places")
    _match_equal_rows(connection, reader)
    _run(connection, "33_repeats")
    _search(connection, "35_sought_unacknowledged", "searched")
    _run(connection, "50_excuses")
    _search(connection, "55_sought_moved", "moved")
    _run(connection, "57_shifted", "58_same_bytes", "60_misplaced")
    _assign(
        connection,
        "misplaced order by is_own_topic desc, id, topic_id, partition_id, log_offset",
        "misrouted",
    )
    _run(connection, "65_mispartitioned", "70_extra")
    _inspect_extras(connection, reader)
    _run(connection, "75_extra_classes", "80_classes")
    _mark_miscoded(connection, reader)
    _run(connection, "85_balance", "90_order")
    _find_late(connection)
    _run(connection, "95_structure")
    check_balance(connection)


@cache
def statements(name: str) -> list[str]:
    """Return the statements of one file."""
    text = (files("bwtui.audit") / "sql" / f"{name}.sql").read_text()
    return [part for part in text.split(";\n") if part.strip()]


def _run(connection: duckdb.DuckDBPyConnection, *names: str) -> None:
    for name in names:
        for statement in statements(name):
            connection.execute(statement)


def _search(connection: duckdb.DuckDBPyConnection, sought: str, how: str) -> None:
    _run(connection, sought)
    if scalar(connection, "select count(*) from sought"):
        connection.execute(f"set variable how = '{how}'")
        _run(connection, "40_search")
        order = "has_later, is_committed desc, first_id, id, deviation, log_offset, partition_id"
        _assign(connection, f"ambiguous_choice order by {order}", how)


def _assign(connection: duckdb.DuckDBPyConnection, candidates: str, how: str) -> None:
    """Match each message, in order, with its first candidate that no earlier message has taken."""
    matches, matched, used = [], set(), set()
    rows = connection.execute(f"select id, topic_id, partition_id, log_offset from {candidates}").fetchall()
    for number, *at in rows:
        place = tuple(at)
        if number not in matched and place not in used:
            matched.add(number)
            used.add(place)
            matches.append((number, *place, how))
    insert(connection, "match", matches)


def _match_equal_rows(connection: duckdb.DuckDBPyConnection, reader: ByteReader) -> None:
    connection.execute("create table equal_row (id bigint)")
    differing = (
        "select id, topic_id, partition_id, log_offset from different_bytes"
        " order by topic_id, partition_id, log_offset"
    )
    for rows in _chunks(connection, differing):
        pairs = [DifferingPair(*row) for row in rows]
        equal = pa.table({"id": pa.array(reader.equal_rows(pairs), pa.int64())})
        _with(connection, equal, "insert into equal_row select * from python_rows")
    _run(connection, "32_equal_rows")


def _inspect_extras(connection: duckdb.DuckDBPyConnection, reader: ByteReader) -> None:
    connection.execute(
        "create table inspected (topic_id smallint, partition_id integer, log_offset bigint,"
        " made_by_relay boolean, lsn bigint, ordinal bigint, has_other_session boolean)"
    )
    extras = (
        "select topic_id, partition_id, log_offset from extra"
        " left join copy using (topic_id, partition_id, log_offset)"
        " where not is_before_window and (is_same_topic is null or not is_same_topic or is_after_window)"
        " order by topic_id, partition_id, log_offset"
    )
    for rows in _chunks(connection, extras):
        insert(connection, "inspected", list(reader.inspect([RecordPlace(*row) for row in rows])))


def _mark_miscoded(connection: duckdb.DuckDBPyConnection, reader: ByteReader) -> None:
    """Mark messages that were encoded wrongly as corrupted, whatever the state of their record."""
    connection.execute("create table miscoded (id bigint)")
    wrong = pa.table({"id": pa.array(reader.miscoded(), pa.int64())})
    _with(connection, wrong, "insert into miscoded select distinct id from python_rows")
    if wrong.num_rows:
        _run(connection, "82_miscoded")


def _find_late(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute(
        "create table late_message (topic_id smallint, partition_id integer, log_offset bigint, id bigint)"
    )
    rows: list[tuple[Any, ...]] = []
    ordered = (
        "select topic_id, partition_id, key_digest, log_offset, id from disordered_message"
        " order by topic_id, partition_id, key_digest, log_offset"
    )
    late_ones: list[tuple[Any, ...]] = []
    for row in _rows(connection, ordered):
        if rows and rows[-1][:3] != row[:3]:
            late_ones += _late_of_key(rows)
            rows = []
        rows.append(row)
    late_ones += _late_of_key(rows)
    insert(connection, "late_message", late_ones)


def _late_of_key(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [(*rows[at][:2], *rows[at][3:]) for at in late([row[4] for row in rows])]


def check_balance(connection: duckdb.DuckDBPyConnection) -> None:
    """Compare the classes with the totals, and each side with the other. Raises Broken."""
    expected, actual = classes_of(connection, "expected_classes"), classes_of(connection, "actual_classes")
    whole = scalar(
        connection, "select count(*) from message where topic_id is not null or no_message_reason is null"
    )
    records = scalar(connection, "select count(*) from record")
    pairs = scalar(connection, "select count(*) from match")
    equations = {
        "every message has a class": (sum(expected.values()), whole),
        "every record has a class": (sum(actual.values()), records),
        "no other class": (0, len(set(expected) - set(EXPECTED)) + len(set(actual) - set(ACTUAL))),
        "a message has one record": (scalar(connection, "select count(distinct id) from match"), pairs),
        "a record is counted once": (
            scalar(
                connection,
                "select count(*) from (select distinct topic_id, partition_id, log_offset from match)",
            )
            + scalar(
                connection,
                "select count(*) from (select distinct topic_id, partition_id, log_offset from extra)",
            ),
            scalar(connection, "select count(*) from suspect_record"),
        ),
        "every offset is in a record or in a hole": (
            records
            + scalar(connection, "select coalesce(sum(end_offset - log_offset), 0)::bigint from hole"),
            scalar(connection, "select coalesce(sum(high - low), 0)::bigint from partition_range"),
        ),
    }
    for name in PAIRED:
        equations[f"both sides agree on {name}"] = (expected.get(name, 0), actual.get(name, 0))
    broken = [f"{name}: {left} is not {right}" for name, (left, right) in equations.items() if left != right]
    if broken:
        raise UnbalancedAudit(
            f"the audit does not balance ({broken[0]})", "this is a bug in the audit: please report it"
        )


def classes_of(connection: duckdb.DuckDBPyConnection, table: str) -> dict[str, int]:
    """Return class → number from a table of classes."""
    rows = connection.execute(f"select class, sum(n)::bigint from {table} group by class").fetchall()
    return {name: number for name, number in rows if number}


def scalar(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    """Return the single value of a query, or None."""
    row = connection.execute(sql).fetchone()
    return None if row is None else row[0]


def insert(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows into a table at once, through Arrow."""
    if rows:
        columns = [list(column) for column in zip(*rows, strict=True)]
        rows_table = pa.table(columns, names=[f"c{number}" for number in range(len(columns))])
        _with(connection, rows_table, f"insert into {table} select * from python_rows")


def _with(connection: duckdb.DuckDBPyConnection, table: pa.Table, sql: str) -> None:
    connection.register("python_rows", table)
    connection.execute(sql)
    connection.unregister("python_rows")


def _rows(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[tuple[Any, ...]]:
    for rows in _chunks(connection, sql):
        yield from rows


def _chunks(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[list[tuple[Any, ...]]]:
    # A separate cursor: the connection is used between two chunks.
    cursor = connection.cursor()
    cursor.execute(sql)
    while rows := cursor.fetchmany(CHUNK):
        yield rows
    cursor.close()
