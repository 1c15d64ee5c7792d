"""Every example in docs/query.md is valid and finds the documented changes."""

import re
from pathlib import Path

import pytest

from bwtui.model.lsn import parse_lsn
from bwtui.pgoutput.messages import UNCHANGED
from bwtui.recording.change import Change
from bwtui.recording.query_language import FIELDS, QueryError, parse, to_sql
from tests.recording_double import change, message, relation

PAGE = (Path(__file__).parents[2] / "docs" / "query.md").read_text()
EXAMPLES = [line for block in re.findall(r"```query\n(.*?)```", PAGE, re.S) for line in block.splitlines()]
ORDERS = relation(
    "orders", ("id", "status", "total", "description", 'odd "name"'), namespace="shop", identity="f"
)
JANUARY = 1_769_853_600_000_000
PAID = change(
    ORDERS,
    "update",
    ("42", "paid", "1000.5", UNCHANGED, "it's"),
    ("42", "new", "2000", "x", "it's"),
    lsn=parse_lsn("0/1A2C"),
    xid=7423,
    commit_time=JANUARY,
    messages=(message(topic="shop.orders", partition=3, offset=1234567),),
)
AGAIN = change(ORDERS, "insert", ("7", "sent", "1", "y", "z"), is_repeat=True)
DROPPED = change(ORDERS, "insert", ("8", "sent", "1", "y", "z"), messages=(), without="dropped")
FINDS: dict[str, Change] = {
    "repeat and op != snapshot": AGAIN,
    "without is not null or state in (refused, unknown)": DROPPED,
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_finds_its_change(example: str) -> None:
    chosen = FINDS.get(example, PAID)
    query = parse(example, end=JANUARY + 10**6)
    assert query.matches(chosen)
    assert [query.matches(other) for other in (PAID, AGAIN, DROPPED)].count(False) >= 1 or "time" in example
    assert to_sql(query)


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 15


def test_the_page_has_every_field() -> None:
    table = PAGE.partition("## Fields")[2].partition("## Values")[0]
    assert set(re.findall(r"`([a-z_]+)(?:\.column)?`", "".join(re.findall(r"^\|[^|]*\|", table, re.M)))) == {
        field.name for field in FIELDS
    }


def test_the_error_on_the_page_is_the_error() -> None:
    shown = re.search(r"```\n  (table = .*?)\n  ( *\^)\nbwtui: error: (.*?)\nhint: (.*?)\n```", PAGE)
    assert shown is not None
    with pytest.raises(QueryError) as raised:
        parse(shown[1])
    error = raised.value
    assert (error.rendered, error.message, error.hint) == (f"{shown[1]}\n{shown[2]}", shown[3], shown[4])
