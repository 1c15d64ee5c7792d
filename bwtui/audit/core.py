"""The decision: every message and every record gets its class, in DuckDB, from digests alone.

The connection must hold ``expected_in``, ``actual_in``, ``topics_in``, ``partitions_in``, ``passes_in`` and
``gaps_in``, as `INPUTS` declares them, as tables or as views on Parquet. What only a look at the bytes can
tell is asked of a `Look`, for those messages and records that differ. The rules are in sql/, one file a
family of classes, in the order in which they run; docs/audit.md says them in words.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, Protocol

import duckdb
import pyarrow as pa

from bwtui.audit.classes import ACTUAL, EXPECTED
from bwtui.audit.order import late
from bwtui.errors import BwtuiError

#: A bound for what is looked at or written at a time.
CHUNK = 10_000

INPUTS = {
    "expected_in": "id bigint, pass integer, is_repeat boolean, lsn bigint, ordinal integer, part integer,"
    " op varchar, xid bigint, commit_us bigint, received_us bigint, topic varchar, partition integer,"
    ' "offset" bigint, state varchar, without varchar, kd bigint, vd bigint, hash31 integer, hd bigint',
    "actual_in": 'topic varchar, partition integer, "offset" bigint, offset_end bigint, kind varchar,'
    " ts bigint, kd bigint, vd bigint, hd bigint",
    "topics_in": "topic varchar, partitions integer, settings_known boolean, compacts boolean,"
    " deletes boolean, retention_ms bigint, retention_bytes bigint, min_compaction_lag_ms bigint,"
    " delete_retention_ms bigint, log_append boolean",
    "partitions_in": "topic varchar, partition integer, low bigint, high bigint",
    "passes_in": "pass integer, is_confirmed boolean",
    "gaps_in": "gap integer, before_id bigint",
}


@dataclass(frozen=True, slots=True)
class Window:
    """What the recording covers, and when the audit looks."""

    first_lsn: int
    last_lsn: int
    #: Up to here the slot was confirmed, or the recording says that everything had reached Kafka.
    confirmed: int
    first_received_us: int
    last_commit_us: int
    now_ms: int
    #: A later session, whose messages are not among those expected, began to read here.
    resumed: int = (1 << 63) - 1


class Record(NamedTuple):
    """A place in Kafka; ``t`` counts the topics by name."""

    t: int
    p: int
    o: int


class Pair(NamedTuple):
    """A message and the other bytes at its place."""

    id: int
    t: int
    p: int
    o: int


class Judged(NamedTuple):
    """What a look at a record told: whether the relay made it, and which change its headers name."""

    t: int
    p: int
    o: int
    ours: bool
    lsn: int | None = None
    ordinal: int | None = None


class Look(Protocol):
    """Looks at the bytes."""

    def equal_rows(self, pairs: Sequence[Pair]) -> Iterable[int]:
        """Return the ids of those whose rows are equal though their bytes are not."""

    def judge(self, records: Sequence[Record]) -> Iterable[Judged]:
        """Say of records that are no copies of a message what they are."""

    def miscoded(self) -> Iterable[int]:
        """Return the ids of messages that do not say what PostgreSQL said."""


class Broken(BwtuiError):
    """The audit does not balance: it is itself at fault."""


def run(connection: duckdb.DuckDBPyConnection, window: Window, look: Look) -> None:
    """Fill the tables of classes. Raises Broken when they do not come to the whole."""
    for name in window.__slots__:
        connection.execute(f"set variable {name} = {int(getattr(window, name))}::bigint")
    _run(connection, "10_load", "20_quiet", "30_places")
    _excuse_equal_rows(connection, look)
    _search(connection, "35_wanted_word", "word")
    _run(connection, "50_excuses")
    _search(connection, "55_wanted_moved", "moved")
    _run(connection, "57_shifted", "58_same_bytes", "60_astray")
    _give(connection, "stray order by is_near desc, id, t, p, o", "misrouted")
    _run(connection, "65_astray_by_relay", "70_extra")
    _judge_extras(connection, look)
    _run(connection, "75_extra_classes", "80_classes")
    _mark_miscoded(connection, look)
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


def _search(connection: duckdb.DuckDBPyConnection, wanted: str, how: str) -> None:
    _run(connection, wanted)
    if one(connection, "select count(*) from wanted"):
        connection.execute(f"set variable how = '{how}'")
        _run(connection, "40_search")
        _give(connection, "open_choice order by id, away, o, p", how)


def _give(connection: duckdb.DuckDBPyConnection, candidates: str, how: str) -> None:
    """Give each message the first record that it may have, in order, if no message before it has it."""
    found, served, taken = [], set(), set()
    rows = connection.execute(f"select id, t, p, o from {candidates}").fetchall()
    for number, *at in rows:
        place = tuple(at)
        if number not in served and place not in taken:
            served.add(number)
            taken.add(place)
            found.append((number, *place, how))
    _insert(connection, "hit", found)


def _excuse_equal_rows(connection: duckdb.DuckDBPyConnection, look: Look) -> None:
    connection.execute("create table alike (id bigint)")
    for rows in _chunks(connection, "select id, t, p, o from differing order by t, p, o"):
        equal = pa.table({"id": pa.array(look.equal_rows([Pair(*row) for row in rows]), pa.int64())})
        _with(connection, equal, "insert into alike select * from looked")
    _run(connection, "32_alike")


def _judge_extras(connection: duckdb.DuckDBPyConnection, look: Look) -> None:
    connection.execute(
        "create table judged (t smallint, p integer, o bigint, ours boolean, lsn bigint, ordinal bigint)"
    )
    unknown = (
        "select t, p, o from extra left join copied using (t, p, o)"
        " where not is_before and (here is null or not here or is_behind) order by t, p, o"
    )
    for rows in _chunks(connection, unknown):
        found = list(look.judge([Record(*row) for row in rows]))
        columns = zip(*found, strict=True) if found else ((),) * 6
        table = pa.table(dict(zip(Judged._fields, map(list, columns), strict=True)))
        _with(connection, table, "insert into judged select t, p, o, ours, lsn, ordinal from looked")


def _mark_miscoded(connection: duckdb.DuckDBPyConnection, look: Look) -> None:
    """A message that was wrong before it was sent is corrupted, wherever it stands."""
    connection.execute("create table miscoded (id bigint)")
    wrong = pa.table({"id": pa.array(look.miscoded(), pa.int64())})
    _with(connection, wrong, "insert into miscoded select distinct id from looked")
    if not wrong.num_rows:
        return
    # Those of quiet partitions come among the others: they stand at their places.
    _run(connection, "82_miscoded")


def _find_late(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("create table late (t smallint, p integer, o bigint, id bigint)")
    rows: list[tuple[Any, ...]] = []
    ordered = "select t, p, kd, o, id from disordered order by t, p, kd, o"
    found: list[tuple[Any, ...]] = []
    for row in _rows(connection, ordered):
        if rows and rows[-1][:3] != row[:3]:
            found += _late_of_key(rows)
            rows = []
        rows.append(row)
    found += _late_of_key(rows)
    _insert(connection, "late", found)


def _late_of_key(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [(*rows[at][:2], *rows[at][3:]) for at in late([row[4] for row in rows])]


def check_balance(connection: duckdb.DuckDBPyConnection) -> None:
    """Compare the classes with the whole, and each side with the other. Raises Broken."""
    expected, actual = classes_of(connection, "expected_classes"), classes_of(connection, "actual_classes")
    whole = one(connection, "select count(*) from e where t is not null or without is null")
    records = one(connection, "select count(*) from r")
    pairs = one(connection, "select count(*) from hit")
    equations = {
        "every message has a class": (sum(expected.values()), whole),
        "every record has a class": (sum(actual.values()), records),
        "no other class": (0, len(set(expected) - set(EXPECTED)) + len(set(actual) - set(ACTUAL))),
        "a message is found once": (one(connection, "select count(distinct id) from hit"), pairs),
        "a record is counted once": (
            one(connection, "select count(*) from (select distinct t, p, o from hit)")
            + one(connection, "select count(*) from (select distinct t, p, o from extra)"),
            one(connection, "select count(*) from f"),
        ),
        "every offset is in a record or in a hole": (
            records + one(connection, "select coalesce(sum(o_end - o), 0)::bigint from hole"),
            one(connection, "select coalesce(sum(high - low), 0)::bigint from part"),
        ),
    }
    for name in ("matched", "redelivered", "corrupted", "rekeyed"):
        equations[f"both sides agree on {name}"] = (expected.get(name, 0), actual.get(name, 0))
    broken = [f"{name}: {left} is not {right}" for name, (left, right) in equations.items() if left != right]
    if broken:
        raise Broken(f"the audit does not balance ({broken[0]})", "this is an error of the audit: report it")


def classes_of(connection: duckdb.DuckDBPyConnection, table: str) -> dict[str, int]:
    """Return class → number out of a table of classes."""
    rows = connection.execute(f"select class, sum(n)::bigint from {table} group by class").fetchall()
    return {name: number for name, number in rows if number}


def one(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    """Return the one value that a query has."""
    row = connection.execute(sql).fetchone()
    return None if row is None else row[0]


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    if rows:
        columns = [list(column) for column in zip(*rows, strict=True)]
        made = pa.table(columns, names=[f"c{number}" for number in range(len(columns))])
        _with(connection, made, f"insert into {table} select * from looked")


def _with(connection: duckdb.DuckDBPyConnection, table: pa.Table, sql: str) -> None:
    connection.register("looked", table)
    connection.execute(sql)
    connection.unregister("looked")


def _rows(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[tuple[Any, ...]]:
    for rows in _chunks(connection, sql):
        yield from rows


def _chunks(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[list[tuple[Any, ...]]]:
    # A cursor of its own: the connection is used between two chunks.
    cursor = connection.cursor()
    cursor.execute(sql)
    while rows := cursor.fetchmany(CHUNK):
        yield rows
    cursor.close()
