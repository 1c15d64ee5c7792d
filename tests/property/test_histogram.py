"""Compare a histogram's percentiles with those of the sorted values."""

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from bwtui.model.histogram import ERROR, LARGEST, SMALLEST, Histogram

SECONDS = st.floats(-1e5, 1e5) | st.floats(-0.01, 0.01) | st.floats(0, 30)
VALUES = st.lists(st.tuples(SECONDS, st.integers(1, 1_000)), min_size=1, max_size=60)
SHARES = st.floats(0, 1) | st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.999, 1.0])


def exact(values: Sequence[tuple[float, int]], share: float) -> float:
    """Return the smallest value that at least ``share`` of all values do not exceed."""
    ordered, seen = sorted(values), 0
    wanted = max(math.ceil(share * sum(count for _, count in values)), 1)
    for value, count in ordered:
        seen += count
        if seen >= wanted:
            return value
    raise AssertionError("nothing was there")


def filled(values: Sequence[tuple[float, int]]) -> Histogram:
    histogram = Histogram()
    for value, count in values:
        histogram.add(value, count)
    return histogram


@given(VALUES, SHARES)
def test_a_percentile_is_off_by_no_more_than_is_promised(
    values: list[tuple[float, int]], share: float
) -> None:
    told, true = filled(values).percentile(share), exact(values, share)
    assert abs(told - true) <= abs(true) * ERROR + SMALLEST


@given(VALUES, VALUES, SHARES)
def test_merged_ones_are_as_one_that_took_all(
    one: list[tuple[float, int]], two: list[tuple[float, int]], share: float
) -> None:
    both, merged = filled(one + two), filled(one)
    merged.merge(filled(two))
    assert merged.percentile(share) == both.percentile(share)
    assert (merged.count, merged.least, merged.most) == (both.count, both.least, both.most)
    assert merged.buckets() == both.buckets()


@given(VALUES)
def test_count_and_ends_are_exact(values: list[tuple[float, int]]) -> None:
    histogram = filled(values)
    assert histogram.count == sum(count for _, count in values)
    assert (histogram.least, histogram.most) == (min(values)[0], max(values)[0])
    assert histogram.percentile(0) >= histogram.least
    assert histogram.percentile(1) <= histogram.most


@given(VALUES)
def test_every_value_lies_in_one_bucket(values: list[tuple[float, int]]) -> None:
    buckets = filled(values).buckets()
    assert all(lower < upper for lower, upper, _ in buckets)
    assert [lower for lower, _, _ in buckets] == sorted(lower for lower, _, _ in buckets)
    for value, _ in values:
        assert any(lower <= value <= upper for lower, upper, _ in buckets)
    assert sum(count for _, _, count in buckets) == sum(count for _, count in values)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=300))
def test_the_number_of_buckets_has_a_bound(values: list[float]) -> None:
    histogram = filled([(value, 1) for value in values])
    assert len(histogram.buckets()) <= 2 * 32 * (math.log2(LARGEST / SMALLEST)) + 1


def test_what_is_empty_has_no_percentile() -> None:
    histogram = Histogram()
    assert histogram.count == 0
    assert math.isnan(histogram.percentile(0.5))
    assert histogram.buckets() == []


def test_a_clock_that_is_behind_is_told_as_it_is() -> None:
    histogram = filled([(-3.0, 10), (0.001, 1)])
    assert abs(histogram.percentile(0.5) + 3.0) <= 3.0 * ERROR
    assert histogram.least == -3.0
