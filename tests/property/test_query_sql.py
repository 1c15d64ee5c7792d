"""A query gives the same result in Python, on a recording, and in DuckDB, on the sealed recording."""

from dataclasses import replace
from typing import Any

import duckdb
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bwtui.pgoutput.messages import Relation
from bwtui.recording.change import Change
from bwtui.recording.parquet import COLUMNS, message_rows
from bwtui.recording.query_language import parse, to_sql
from tests.property.queries import TABLES, changes, floats, numbers, orders, queries, texts
from tests.recording_double import TIME, change, relation

_TYPES = {
    "position": "BIGINT",
    "pass": "INT",
    "is_repeat": "BOOLEAN",
    "lsn": "BIGINT",
    "ordinal": "INT",
    "part": "INT",
    "xid": "BIGINT",
    "commit_time": "BIGINT",
    "received": "BIGINT",
    "partition": "INT",
    "offset": "BIGINT",
    "key": "BLOB",
    "value": "BLOB",
    "key_schema_id": "INT",
    "value_schema_id": "INT",
    "filled": "VARCHAR[]",
    "unchanged": "VARCHAR[]",
}


@pytest.fixture(scope="module")
def duck() -> Any:
    # With few rows, more threads only add cost.
    connection = duckdb.connect(config={"threads": 1})
    declared = ", ".join(f'"{name}" {_TYPES.get(name, "VARCHAR")}' for name in COLUMNS)
    connection.execute(f"create table raw ({declared})")
    times = "make_timestamp(commit_time) as commit_time, make_timestamp(received) as received"
    connection.execute(f"create view sealed as select * replace ({times}) from raw")
    return connection


def _by_sql(duck: Any, condition: str, changes: list[Change]) -> list[int]:
    duck.execute("delete from raw")
    rows = [(index, *row[1:]) for index, one in enumerate(changes) for row in message_rows(one)]
    place = f"({', '.join('?' * len(COLUMNS))})"
    duck.execute(
        f"insert into raw values {', '.join([place] * len(rows))}", [one for row in rows for one in row]
    )
    found = duck.execute(f"select distinct position from sealed where {condition}").fetchall()
    return sorted(position for (position,) in found)


@given(query=queries, changes=st.lists(changes(), min_size=1, max_size=8))
@example(query="after.a > 1.5", changes=[change(TABLES[0], "insert", ["1", "-1.50", None, "x"])])
def test_a_query_means_the_same_in_sql(duck: Any, query: str, changes: list[Change]) -> None:
    parsed = parse(query, end=TIME + 1)
    numbered = [_numbered(one, position) for position, one in enumerate(changes)]
    expected = [one.position for one in numbered if parsed.matches(one)]
    assert _by_sql(duck, to_sql(parsed), numbered) == expected


def _numbered(one: Change, position: int) -> Change:
    return replace(one, position=position)


@given(values=st.lists(texts, min_size=1, max_size=30), wanted=numbers | floats, order=orders)
def test_numbers_have_the_same_order(duck: Any, values: list[str], wanted: str, order: str) -> None:
    table: Relation = relation("orders", ("id",))
    changes = [change(table, "insert", [value], position=position) for position, value in enumerate(values)]
    parsed = parse(f"after.id {order} {wanted}")
    expected = [one.position for one in changes if parsed.matches(one)]
    assert _by_sql(duck, to_sql(parsed), changes) == expected


@given(values=st.lists(texts, min_size=1, max_size=20), wanted=st.lists(numbers | floats, min_size=1))
@pytest.mark.long
def test_a_list_of_numbers_means_the_same(duck: Any, values: list[str], wanted: list[str]) -> None:
    table: Relation = relation("orders", ("id",))
    changes = [change(table, "insert", [value], position=position) for position, value in enumerate(values)]
    for asked in ("after.id in ({})", "not (after.id in ({}) or after.id = x)"):
        parsed = parse(asked.format(", ".join(wanted)))
        expected = [one.position for one in changes if parsed.matches(one)]
        assert _by_sql(duck, to_sql(parsed), changes) == expected


def test_a_long_list_of_numbers_is_no_megabyte(duck: Any) -> None:
    """Replaying some hundred rows names each of their keys."""
    listed = ", ".join(map(str, range(1000)))
    sql = to_sql(parse(f"after.id in ({listed})"))
    assert len(sql) < 100_000
    table: Relation = relation("orders", ("id",))
    assert _by_sql(duck, sql, [change(table, "insert", ["7.0"]), change(table, "insert", ["x"])]) == [0]
