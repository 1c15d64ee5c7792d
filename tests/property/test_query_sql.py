"""A query means the same to Python, reading a recording, and to DuckDB, reading the sealed one."""

from dataclasses import replace
from typing import Any

import duckdb
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bwtui.pgoutput.messages import UNCHANGED, Relation
from bwtui.recording.change import Change
from bwtui.recording.export_rows import COLUMNS, message_rows
from bwtui.recording.query import parse, to_sql
from tests.recording_double import TIME, change, message, relation

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
_NAMES = ("id", "a", "b/~1 'ü\"", "$.*")
_TABLES = (
    relation("orders", _NAMES),
    relation("orders", _NAMES[::-1], ("id", "a"), "shop", "f"),
    relation("a.b", ("id", "a"), (), "x.y", "f"),
    relation("y", ("a",), (), "x", "n"),
)
_EDGES = (
    "",
    "0",
    "-0",
    "0.0",
    "1",
    "01",
    "1.0",
    "1e0",
    "+1",
    "-1",
    "-1.50",
    "-1.5",
    "10",
    "9",
    "9.99",
    "-10",
    "1e3",
    "1000",
    ".5",
    "5e-1",
    "5.",
    "1e-300",
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "t",
    "f",
    "true",
    "paid",
    "Paid",
    "pa\nid",
    "paid\n",
    "é",
    "ÿ",
    "\U0001f600",
    "\uffff",
    "a.b",
    "x.y",
    "x.y.a.b",
    "orders",
    "shop.orders",
    "1,1",
    "12345678901234567890123.1",
    "12345678901234567890123.2",
    "\\x41",
    "'",
    "''",
    "k",
    "K",
    "\u212a",
    "\u0131",
    "null",
    " 1",
    "1 ",
    "１",
)
_numbers = st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str) | st.integers(-20, 20).map(
    str
)
_floats = st.floats(allow_nan=False, allow_infinity=False).map(repr)
_any_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
_texts = st.sampled_from(_EDGES) | _numbers | _floats | _any_text
_values = st.none() | _texts.map(str.encode) | st.just(b"\xff\xfe")


@st.composite
def _changes(draw: st.DrawFn) -> Change:
    table = draw(st.sampled_from(_TABLES))
    operation = draw(st.sampled_from(("insert", "update", "delete", "snapshot", "truncate", "cleanup")))
    after = before = None
    if operation in ("insert", "update", "snapshot"):
        after = [draw(_values | st.just(UNCHANGED)) for _ in table.columns]
    if operation in ("update", "delete", "cleanup"):
        before = draw(st.none() | st.tuples(*(_values for _ in table.columns)))
    if before and table.replica_identity != "f":
        before = tuple(
            value if column.is_key else None for value, column in zip(before, table.columns, strict=True)
        )
    tables = (table.qualified_name,)
    if operation == "truncate" and draw(st.booleans()):
        tables = (*tables, "public.other")
    return change(
        table,
        operation,
        after,
        before,
        draw(st.sampled_from((("id",), ("id", "a"), ()))),
        tables=tables,
        messages=draw(_messages()),
        without=draw(st.sampled_from((None, "dropped", "unkeyed"))),
        is_repeat=draw(st.booleans()),
        lsn=draw(st.sampled_from((0, 0x1A2B, 0x1_0000_0000, (1 << 63) - 1))),
        xid=draw(st.integers(0, 3)),
        ordinal=draw(st.integers(1, 3)),
        commit_time=TIME + draw(st.integers(-2, 2)),
    )


@st.composite
def _messages(draw: st.DrawFn) -> Any:
    count = draw(st.integers(0, 2))
    return tuple(
        message(
            part,
            topic=draw(st.sampled_from(("orders", "Shop"))),
            key=draw(st.sampled_from((None, b"k", b"public.other"))),
            value=draw(st.sampled_from((None, b"v"))),
            state=draw(st.sampled_from(("acknowledged", "refused", "unknown", "unsent"))),
            partition=draw(st.none() | st.integers(0, 2)),
            offset=draw(st.none() | st.integers(0, 2)),
        )
        for part in range(count)
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_orders = st.sampled_from(("=", "!=", "<", "<=", ">", ">="))
_literals = (
    _texts.map(_quoted) | _numbers | _floats | st.sampled_from(("paid", "true", "False", "1.0", "-1", "5."))
)
_sides = st.sampled_from(("before", "after", "key"))
_refs = st.builds(
    lambda side, name: f'{side}."{name.replace(chr(34), chr(34) * 2)}"',
    _sides,
    st.sampled_from((*_NAMES, "lacking")),
)
_columns = _refs | st.just("key")
_regexes = st.sampled_from(
    (
        "",
        "a",
        "^pa",
        "d$",
        ".",
        "^.$",
        r"\d+",
        r"^\W",
        r"\bpaid\b",
        "(?i)K",
        "(?i)^[a-k]+$",
        "[^a-z]",
        r"\s",
        r"^(?:1|0)?[.]\d{1,3}$",
        "é",
        "[é-ÿ]",
        r"^\S*$",
        "ord.*s$",
        r"p\.y|x\.y",
        "a{2,}?",
        r"[\d.]+$",
        "^$",
        "(?i)é",
    ),
)


def _listed(values: list[str]) -> str:
    return f"({', '.join(values)})"


_conditions = st.one_of(
    st.builds("{} {} {}".format, _columns, _orders, _literals | _refs),
    st.builds(
        "{} {} {}".format,
        _columns,
        st.sampled_from(("in", "not in")),
        st.lists(_literals, min_size=1, max_size=3).map(_listed),
    ),
    st.builds(
        "{} {} {}".format,
        _columns | st.sampled_from(("table", "topic", "schema", "op", "state", "without")),
        st.sampled_from(("~", "!~")),
        _regexes.map(_quoted),
    ),
    st.builds(
        "{} is {}null".format,
        _columns | st.sampled_from(("before", "after", "topic", "state", "without", "offset", "lsn")),
        st.sampled_from(("", "not ")),
    ),
    st.builds(
        "after.{} is {}unchanged".format,
        st.sampled_from(("id", "a", "lacking", '"$.*"')),
        st.sampled_from(("", "not ")),
    ),
    st.builds(
        "{} {} {}".format,
        st.sampled_from(("table", "schema", "topic")),
        st.sampled_from(("=", "!=")),
        _texts.map(_quoted),
    ),
    st.builds("changed {} {}".format, st.sampled_from(("=", "!=")), st.sampled_from(("id", "a", "lacking"))),
    st.builds(
        "{} {} {}".format,
        st.sampled_from(("xid", "ordinal", "offset", "partition", "position")),
        _orders,
        st.sampled_from(("0", "1", "2", "-1", "9223372036854775807", "99999999999999999999999999")),
    ),
    st.builds("lsn {} {}".format, _orders, st.sampled_from(("0/0", "0/1A2B", "1/0", "FFFFFFFF/FFFFFFFF"))),
    st.builds(
        "{} {} {}".format,
        st.sampled_from(("time", "commit_time", "received")),
        _orders,
        st.sampled_from(("-0.000001s", "-0s", "-1m", "2026-09-21", "0001-01-01", "9999-12-31T23:59:59Z")),
    ),
    st.sampled_from(
        (
            "repeat",
            "repeat = false",
            "op = update",
            "op in (insert, delete)",
            "op != truncate",
            "state = acknowledged",
            "not state = refused",
            "without = dropped",
        )
    ),
)
_queries = st.recursive(
    _conditions,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not {}".format, inner),
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def duck() -> Any:
    connection = duckdb.connect()
    declared = ", ".join(f'"{name}" {_TYPES.get(name, "VARCHAR")}' for name in COLUMNS)
    connection.execute(f"create table raw ({declared})")
    times = "make_timestamp(commit_time) as commit_time, make_timestamp(received) as received"
    connection.execute(f"create view sealed as select * replace ({times}) from raw")
    return connection


def _by_sql(duck: Any, condition: str, changes: list[Change]) -> list[tuple[int, ...]]:
    duck.execute("delete from raw")
    rows = [(index, *row[1:]) for index, one in enumerate(changes) for row in message_rows(one)]
    duck.executemany(f"insert into raw values ({', '.join('?' * len(COLUMNS))})", rows)
    found = duck.execute(f"select distinct position from sealed where {condition}").fetchall()
    return sorted(position for (position,) in found)


@given(query=_queries, changes=st.lists(_changes(), min_size=1, max_size=8))
@example(query="after.a > 1.5", changes=[change(_TABLES[0], "insert", ["1", "-1.50", None, "x"])])
def test_a_query_means_the_same_in_sql(duck: Any, query: str, changes: list[Change]) -> None:
    parsed = parse(query, end=TIME + 1)
    numbered = [_numbered(one, position) for position, one in enumerate(changes)]
    expected = [one.position for one in numbered if parsed.matches(one)]
    assert _by_sql(duck, to_sql(parsed), numbered) == expected


def _numbered(one: Change, position: int) -> Change:
    return replace(one, position=position)


@given(values=st.lists(_texts, min_size=1, max_size=30), wanted=_numbers | _floats, order=_orders)
def test_numbers_have_the_same_order(duck: Any, values: list[str], wanted: str, order: str) -> None:
    table: Relation = relation("orders", ("id",))
    changes = [change(table, "insert", [value], position=position) for position, value in enumerate(values)]
    parsed = parse(f"after.id {order} {wanted}")
    expected = [one.position for one in changes if parsed.matches(one)]
    assert _by_sql(duck, to_sql(parsed), changes) == expected
