"""The demo's verdict: its sentence, and the error that decides the exit code."""

from typing import Any

import pytest

from bwtui.demo.verdict import ShopComparison, TableVerdict
from bwtui.errors import DifferencesFound, Indeterminate


def verdict(**changes: int) -> TableVerdict:
    numbers = {"rows": 3, "keys": 3, "messages": 5, "missing": 0, "extra": 0, "different": 0}
    fields: dict[str, Any] = numbers | changes
    return TableVerdict(table="public.orders", topic="shop.orders", **fields)


def test_equal() -> None:
    comparison = ShopComparison((verdict(),))
    assert (comparison.outcome, comparison.error()) == ("equal", None)
    assert comparison.sentence.startswith("equal: 3 rows")


@pytest.mark.parametrize("name", ["missing", "extra", "different", "split_keys"])
def test_each_kind_of_difference_is_enough(name: str) -> None:
    comparison = ShopComparison((verdict(), verdict(**{name: 1})))
    assert comparison.outcome == "different"
    assert comparison.sentence.startswith("NOT equal: 1 ")
    assert isinstance(comparison.error(), DifferencesFound)


def test_undecided_keys_never_prove_equality_but_hide_no_difference() -> None:
    undecided = ShopComparison((verdict(undecided=2),))
    assert isinstance(undecided.error(), Indeterminate)
    assert ShopComparison((verdict(undecided=2, missing=1),)).outcome == "different"
