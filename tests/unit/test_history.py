"""Map columns after a table was altered without the relay noticing."""

from dataclasses import replace

import pytest

from bwtui.pgoutput.messages import Column, Relation
from bwtui.source.catalog import Attribute, missing_identity_columns, present_names

INT, TEXT = 23, 25


def relation(*names: str) -> Relation:
    """Return a table as it was: an integer ``id``, and texts."""
    columns = [Column(name, INT if name == "id" else TEXT, -1, name == "id") for name in names]
    return Relation(1, "public", "t", "d", tuple(columns))


def table(*names: str, listed: bool = False) -> list[Attribute]:
    """Return a table as it is now: a dash is a dropped column, and a star marks a generated one."""
    return [
        Attribute(f"........pg.dropped.{place}........", 0, dropped=True, listed=listed)
        if name == "-"
        else Attribute(
            name.removeprefix("*"),
            INT if name == "id" else TEXT,
            generated=name.startswith("*"),
            listed=listed,
        )
        for place, name in enumerate(names, 1)
    ]


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        ("id a b", "id a b", "id a b"),
        ("id a b", "id a b c", "id a b"),
        ("id a b", "- id a b", "id a b"),
        ("id a b", "id x b", "id x b"),
        ("id a b", "id b a", "id b a"),
        ("id a c b", "id a - b", "id a - b"),
        ("id a c b", "- id a - b", "id a - b"),
        ("id a b", "id - x b", "id x b"),
        # A new column took the old one's name, and the old one was dropped.
        ("id a new", "id - a", "id - a"),
        ("id a new", "- id - a", "id - a"),
        # a was renamed to x, b to a, and b is new.
        ("id a b", "id x a b", "id x a"),
        # Either a and b swapped names, or a was dropped and recreated.
        ("id a b", "id - b a", "id - -"),
        ("id a", "id - x", "id -"),
        ("id a b", "id - -", "id - -"),
        ("id a b", "id a *s b", "id a b"),
        ("id a s b", "id a *s - b", "id a s b"),
        ("id", "- -", "-"),
        ("id a b", "id", "- - -"),
        ("", "id", ""),
    ],
)
def test_columns_are_told_by_name_type_and_place(then: str, now: str, expected: str) -> None:
    found = present_names(relation(*then.split()), table(*now.split()))
    assert [name or "-" for name in found] == expected.split()


def test_a_column_list_may_leave_columns_out() -> None:
    now = table("id", "hidden", "a", "other", "b", "more", listed=True)
    assert present_names(relation("id", "a", "b"), now) == ["id", "a", "b"]


def test_a_wide_table_is_read_in_no_time() -> None:
    names = [f"c{number}" for number in range(1_500)]
    now = table("id", *names[:700], "-", *names[701:], "-", "-", "-")
    expected = ["id", *names[:700], None, *names[701:]]
    assert present_names(relation("id", *names), now) == expected


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        ("id a b", "!id a b", {}),
        ("a b", "!id a b", {"id": True}),
        ("id b", "!id !a b", {"a": True}),
        # It may have been added since, to the table and to its key.
        ("id a", "!id a !b", {"b": False}),
        ("id a c", "!id a - c !b", {"b": False}),
        ("id a", "!id !x a !b", {"x": True, "b": False}),
        # One of them may be the other under its current name.
        ("id old a", "!id !new a", {}),
        ("id a", "id - a", {}),
    ],
)
def test_columns_of_the_identity_that_a_relation_lacks(
    then: str, now: str, expected: dict[str, bool]
) -> None:
    marked = {name.removeprefix("!") for name in now.split() if name.startswith("!")}
    present = [
        replace(attribute, in_identity=attribute.name in marked)
        for attribute in table(*now.replace("!", "").split(), listed=True)
    ]
    found = {
        attribute.name: had for attribute, had in missing_identity_columns(relation(*then.split()), present)
    }
    assert found == expected
