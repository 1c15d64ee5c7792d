"""Completions of a query."""

import pytest

from bwtui.recording.query_completion import QueryNames, completed
from bwtui.recording.query_language import QueryError, parse
from bwtui.recording.query_syntax import FIELDS

NAMES = QueryNames(("public.orders", "public.order items", "audit.log"), ("id", "status", "odd name"))


@pytest.mark.parametrize(
    ("typed", "whole"),
    [
        ("ta", "table"),
        ("TA", "table"),
        ("table ", "table ="),
        ("table = or", "table = orders"),
        ("table = order ", "table = order and"),
        ("table = au", "table = audit.log"),
        ("table = public.or", "table = public.orders"),
        ("table = orders a", "table = orders and"),
        ("table = orders and o", "table = orders and op"),
        ("op = up", "op = update"),
        ("op in (", "op in (snapshot"),
        ("op in (insert, de", "op in (insert, delete"),
        ("op in (insert) ", "op in (insert) and"),
        ("(st", "(state"),
        ("not af", "not after."),
        ("af", "after."),
        ("after.st", "after.status"),
        ("before.od", None),
        ("after.status i", "after.status in ("),
        ("after.status is ", "after.status is null"),
        ("after.status is u", "after.status is unchanged"),
        ("repeat ", "repeat ="),
        ("repeat = t", "repeat = true"),
        ("repeat and wit", "repeat and without"),
        ("xid", None),
        ("xid = ", None),
        ("table=", None),
        ("after.status = 'pa", None),
        ("zzz", None),
        ("", "table"),
    ],
)
def test_a_query_goes_on(typed: str, whole: str | None) -> None:
    assert completed(typed, NAMES) == whole


def test_what_is_taken_again_and_again_is_a_query() -> None:
    taken: list[str] = []
    text = "t"
    while (longer := completed(text, NAMES)) is not None and len(taken) < 4:
        taken.append(longer)
        text = longer if longer[-1] in ".(" else f"{longer} "
    assert taken[:3] == ["table", "table =", "table = orders"]
    assert parse(taken[2]).text == "table = orders"


def test_every_field_is_offered() -> None:
    for field in FIELDS:
        whole = completed(field.name[:-1], QueryNames()) or ""
        assert any(f.name.startswith(whole.rstrip(".")) for f in FIELDS), field.name


@pytest.mark.parametrize(
    "text", ["table = 'x", "!", "a ! b", "((((", "and and", "= = =", "'" * 99, "\0", "é ö"]
)
def test_what_is_no_query_raises_nothing(text: str) -> None:
    completed(text, NAMES)
    with pytest.raises(QueryError):
        parse(text)
