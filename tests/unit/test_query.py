"""The query language: its fields, its operators, and the positions in its errors."""

import time

import pytest

from bwtui.model.lsn import parse_lsn
from bwtui.pgoutput.messages import UNCHANGED
from bwtui.recording.change import Change
from bwtui.recording.query_language import FIELDS, QueryError, parse, to_sql
from tests.recording_double import TIME, change, message, relation

ORDERS = relation("orders", ("id", "status", "total", "note", "odd name"), namespace="shop", identity="f")
KEYED = relation("orders", ("id", "status"))
PAID = change(
    ORDERS,
    "update",
    after=("42", "paid", "10.50", None, UNCHANGED),
    before=("42", "new", "10.50", "x", "y"),
    lsn=parse_lsn("0/1A2C"),
    xid=9,
)
BIGGER = change(ORDERS, "insert", ("100", "t", "9", "2026-01-31", "it's"), xid=10)
MOVED = change(
    KEYED,
    "update",
    ("2", "new"),
    ("1", None),
    messages=(message(0, value=None, offset=7, partition=1), message(1, offset=8, partition=2)),
)
DROPPED = change(KEYED, "insert", ("3", "new"), messages=(), without="dropped", is_repeat=True)
TRUNCATED = change(
    KEYED, "truncate", tables=("public.orders", "public.items"), messages=(), without="truncated"
)


def found(query: str, *changes: Change) -> list[bool]:
    return [parse(query, end=TIME).matches(one) for one in changes]


@pytest.mark.parametrize(
    "query",
    [
        "table = orders and op = update and after.status = 'paid' and lsn > 0/1A2B",
        "table = shop.orders",
        "table ~ ^ord",
        "table ~ '^shop[.]'",
        "table in (items, orders)",
        "schema = shop",
        "op in (insert, update)",
        "OP = Update AND NOT op = insert",
        "ordinal = 1 and xid = 9 and position >= 0",
        "time >= -0s and time < 2100-01-01",
        "received > '2020-01-01 10:00' and commit_time < 2100-01-01T00:00:00+02:00",
        "topic = orders and partition = 0 and offset < 8",
        "state = acknowledged",
        "key = 42 and key.id = 42",
        "before.status = new",
        'after."odd name" is unchanged',
        'after."odd name" is not null',
        "changed = status and not changed = total",
        'not changed = "odd name"',
        "changed in (total, note)",
        "not repeat and repeat = false",
        "without is null",
        "after.note is null and before.note is not null",
        "after.total = before.total and after.status > before.status",
        "after.total = BEFORE.total and AFTER.status > Before.status and after.id = KEY.id",
        'after.status > BEFORE."status"',
        "after.total <= '11' and after.id in (BEFORE.id)",
        "after.total = 10.5 and after.total != '10.5'",
        "after.total > 9 and after.total < '9'",
        "after.id in (1, 42)",
        "after.status not in (new, 'shipped')",
        "after.status ~ '^P' or after.status ~ '(?i)^P'",
        "(op = insert or op = update) and (xid = 9)",
        "before is not null",
    ],
)
def test_a_query_finds_the_paid_order(query: str) -> None:
    assert found(query, PAID) == [True], query


@pytest.mark.parametrize(
    "query",
    [
        "table = Orders",
        "op = insert",
        "lsn = 0/1A2B",
        "after.lacking = 1",
        "not after.lacking = 1",
        "after.lacking is null",
        "after.lacking is not null",
        "after.note = x",
        "after.note != x",
        "not after.note = x",
        'after."odd name" = y',
        'after."odd name" != y',
        'after."odd name" is null',
        "changed = lacking",
        "not changed = lacking",
        'changed = "odd name"',
        "after.total = '10.5'",
        "repeat",
        "without = dropped",
        "state = refused",
        "after is null",
    ],
)
def test_a_query_does_not_find_the_paid_order(query: str) -> None:
    assert found(query, PAID) == [False], query


def test_numbers_are_exact() -> None:
    big = change(
        ORDERS, "insert", ("1", "x", "0.1000000000000000055511151231257827", "9007199254740993", "1e-7")
    )
    assert found("after.total = 0.1", big) == [False]
    assert found("after.note > 9007199254740992", big) == [True]
    assert found('after."odd name" = 0.0000001', big) == [True]


def test_a_bare_true_finds_postgresqls_booleans() -> None:
    assert found("after.status = true", BIGGER, PAID) == [True, False]
    assert found("after.status = 'true'", BIGGER) == [False]


def test_a_change_is_found_by_any_one_of_its_messages() -> None:
    assert found("partition = 1 and offset = 7", MOVED) == [True]
    assert found("partition = 1 and offset = 8", MOVED) == [False]
    assert found("key.id = 1", MOVED) == found("key.id = 2", MOVED) == [True]
    assert found("key.id = 1 and key.id = 2", MOVED) == [False]


def test_a_change_without_a_message_has_no_topic() -> None:
    assert found("topic = orders", DROPPED) == found("not topic = orders", DROPPED) == [False]
    assert found("topic is null and state is null and without = dropped and repeat", DROPPED) == [True]


@pytest.mark.parametrize("text", ["{}.total < {}.total", '{}."total" in ({}.total, 1)', "{}.id = {}.id"])
def test_rows_are_named_in_any_case(text: str) -> None:
    """This holds in Python and in SQL: a name taken for a text silently matched nothing."""
    lower, upper = parse(text.format("after", "before")), parse(text.format("AFTER", "Before"))
    assert upper.tree == lower.tree
    assert to_sql(upper) == to_sql(lower)
    less = change(ORDERS, "update", ("1", "t", "9", "x", "y"), ("1", "t", "10", "x", "y"))
    assert upper.matches(less) == lower.matches(less)


def test_texts_with_dots_are_texts_in_quotes_and_where_they_are_no_rows() -> None:
    assert found("after.status = 'BEFORE.status'", PAID) == found("after.id = water.example", PAID)
    assert found("table = 'key.orders' or topic = 'after.orders'", PAID) == [False]
    assert found("after.status = received", PAID) == [False]


def test_an_unknown_old_value_is_not_null() -> None:
    assert found("before.status is null", MOVED) == found("before.status is not null", MOVED) == [False]
    assert found("changed = status", MOVED) == found("not changed = status", MOVED) == [False]
    assert found("changed = id", MOVED) == [True]


def test_a_truncate_is_found_by_each_of_its_tables() -> None:
    assert found("table = items and op = truncate", TRUNCATED) == [True]
    assert found("table = other", TRUNCATED) == [False]


def test_bytes_that_are_no_text_are_written_in_hexadecimal() -> None:
    odd = change(KEYED, "insert", (b"\xe9", "x"))
    assert found(r"after.id = '\xe9'", odd) == [True]


@pytest.mark.parametrize(
    ("query", "column", "problem", "hint"),
    [
        ('after.status = "paid"', 15, "double quotes are for names of columns", "'single quotes'"),
        ('after.status in (a, "b")', 20, "double quotes are for names", "single quotes"),
        ('table ~ "x"', 8, "double quotes are for names", "single quotes"),
        ("", 0, "the query is empty", "table = orders"),
        ("tabel = orders", 0, "no field 'tabel'", "did you mean 'table'?"),
        ("xid = 1 and status = paid", 12, "no field 'status'", "after.status"),
        ("op = updat", 5, "op is never 'updat'", "did you mean 'update'?"),
        ("op = update annd xid = 1", 12, "expected 'and', 'or' or the end", "did you mean 'and'?"),
        ("op = update and", 15, "expected a field, but found the end", "use one of table"),
        ("(op = update", 12, "the end", "not closed"),
        ("op = update)", 11, "but found ')'", "no matching '('"),
        ("lsn > 12", 6, "not an LSN", "hexadecimal"),
        ("xid = 0/1", 6, "not a whole number", None),
        ("xid = 1.5", 6, "not a whole number", None),
        ("time > yesterday", 7, "not a time", "2026-01-31"),
        ("time > 2026-02-30", 7, "not a time", None),
        ("after.a = null", 10, "nothing equals null", "is null"),
        ("after.a = and", 10, "expected a value", "quote it"),
        ("after.a = don't", 13, "a quote that is not closed", "twice"),
        ("after.a ~ 'ab(c'", 10, "not a regular expression: missing ): ab(c", "docs/query.md"),
        ("after.a ~ '(?=x)'", 10, "not a regular expression: invalid perl operator: (?=", None),
        (r"after.a ~ 'a\1'", 10, r"not a regular expression: invalid escape sequence: \1", None),
        ("after.a ~ *", 10, "not a regular expression: no argument for repetition operator: *", None),
        ("after.a ~ '(?<n>a)'", 10, "not a regular expression: '(?<'", "plain group"),
        ("after.a ~ 'a{1001}'", 10, "not a regular expression: invalid repetition size", None),
        ("after.a.b = 1", 0, "two dots", 'after."a.b"'),
        ("after = 1", 6, "a whole row", "after.column"),
        ("op < update", 3, "does not have this operator", "in"),
        ("lsn ~ 1", 4, "does not have this operator", "<"),
        ("before.a is unchanged", 12, "never unchanged", "after.column"),
        ("repeat is null", 10, "never null", None),
        ("repeat = perhaps", 9, "neither true nor false", None),
        ("topic.x = 1", 0, "no columns", "before, after"),
        ("after.a ! b", 8, "not an operator", "!="),
        ("after.a in 1", 11, "'(' and a list", None),
        ("after.a in (1 2)", 14, "',' or ')'", None),
        ("after.a not = 1", 12, "expected 'in'", None),
        ("after.a is 1", 11, "'null' or 'unchanged'", None),
        ("table orders", 6, "an operator after 'table'", None),
        ("after.a = http://x?a=b", 20, "'='", "quotes"),
        ("after.", 0, "expected a column", None),
        ("after.total < befor.total", 14, "no row 'befor'", "did you mean before.total?"),
        ("after.total = aftr.total", 14, "no row 'aftr'", "in 'quotes'"),
        ("after.total < old.total", 14, "no row 'old'", "before, after and key"),
        ("after.total < BEFORE.", 14, "expected a column", None),
        ("after.total < BEFORE.a.b", 14, "two dots", 'BEFORE."a.b"'),
        ("after.total > position", 14, "the field 'position'", "after.position"),
        ("topic = after.topic", 8, "'topic' can't be compared with a column of 'after'", "'after.topic'"),
        ("schema < BEFORE.x", 9, "can't be compared with a column of 'before'", "quotes"),
        ("table in (a, before.x)", 13, "can't be compared with a column", None),
        ("changed = after.status", 10, "'changed' can't be compared with a column of 'after'", None),
        ("op = after.op", 5, "'op' can't be compared with a column", None),
        ("xid = Key.id", 6, "'xid' can't be compared with a column of 'key'", None),
        ("after.note ~ Before.note", 13, "an expression can't be compared with a column", "'Before.note'"),
        ("after.a = '\ud800'", 10, "no value can contain", None),
        ("(" * 101 + "xid = 1" + ")" * 101, 100, "more than 100 nested parentheses", None),
    ],
)
def test_an_error_points_at_its_column(query: str, column: int, problem: str, hint: str | None) -> None:
    with pytest.raises(QueryError) as raised:
        parse(query)
    error = raised.value
    assert (error.column, error.exit_code) == (column, 2), error
    assert problem in error.message
    assert f"column {column + 1}:" in error.message
    assert hint is None or hint in (error.hint or "")


def test_an_error_is_drawn_under_its_column() -> None:
    with pytest.raises(QueryError) as raised:
        parse("after.日本 = '表'\tand opp = 1")
    assert raised.value.rendered.split("\n") == ["after.日本 = '表' and opp = 1", " " * 22 + "^"]


def test_times_before_the_end_need_an_end() -> None:
    with pytest.raises(QueryError, match="is relative to the end of a recording"):
        parse("time > -5m")


def test_a_long_query_is_read_and_answered() -> None:
    query = parse(
        " or ".join(f"after.id = {number}" for number in range(2000)) + " or " + "not " * 500 + "xid = 1"
    )
    assert query.matches(PAID)
    assert to_sql(query).startswith("(")


def test_every_field_can_be_asked_for() -> None:
    for field in FIELDS:
        values = {"lsn": "0/1", "whole": "1", "time": "2026-01-31", "switch": "true"}
        operand = values.get(field.kind) or (field.words[0] if field.words else "x")
        query = f"{field.name} is null" if field.kind == "row" else f"{field.name} = {operand}"
        assert parse(query).matches(PAID) in (True, False)
        assert to_sql(parse(query))


def test_sql_prunes_by_table() -> None:
    assert to_sql(parse("table = orders")) == """("table" = 'orders')"""


@pytest.mark.parametrize("expression", ["(a+)+$", "(a|a)*c", "a*a*a*a*a*c", "(.*)*x"])
def test_no_expression_takes_for_ever(expression: str) -> None:
    query = parse(f"after.note ~ '{expression}'")
    found = change(relation("t", ("id", "note")), "insert", ("1", "a" * 20_000 + "b"))
    # Measure CPU time, because other processes may be running.
    begin = time.thread_time()
    assert not query.matches(found)
    assert time.thread_time() - begin < 5
