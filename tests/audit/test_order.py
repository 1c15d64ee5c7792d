"""Compare the longest rising run with its definition."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from bwtui.audit.core import late


def _longest(numbers: list[int]) -> int:
    for size in range(len(numbers), 0, -1):
        if any(list(some) == sorted(some) for some in combinations(numbers, size)):
            return size
    return 0


@given(st.lists(st.integers(0, 20), max_size=9, unique=True))
def test_what_is_left_rises_and_is_as_long_as_can_be(numbers: list[int]) -> None:
    outside = set(late(numbers))
    kept = [number for index, number in enumerate(numbers) if index not in outside]
    assert kept == sorted(kept)
    assert len(kept) == _longest(numbers)


def test_of_two_that_changed_places_the_one_behind_is_late() -> None:
    assert late([2, 1]) == [1]
    assert late([1, 3, 4, 2, 5]) == [3]
    assert late([]) == []
