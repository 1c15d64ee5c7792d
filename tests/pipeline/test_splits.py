"""Splits cover their ranges exactly."""

from hypothesis import given
from hypothesis import strategies as st

from bwtui.kafka.scan import split

RANGES = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)),
    st.tuples(st.integers(0, 10_000), st.integers(0, 5_000)).map(lambda pair: (pair[0], sum(pair))),
)


@given(RANGES, st.integers(1, 8), st.integers(1, 500), st.integers(0, 2_000))
def test_splits_cover_each_range_once(
    ranges: dict[tuple[str, int], tuple[int, int]], cores: int, smallest: int, more: int
) -> None:
    splits = split(ranges, cores, smallest, smallest + more)
    for (topic, partition), (low, high) in ranges.items():
        own = [one for one in splits if (one.topic, one.partition) == (topic, partition)]
        assert [one.low for one in own] + [high] == [low] + [one.high for one in own] if own else low == high
        assert all(0 < one.high - one.low <= smallest + more for one in own)


def test_one_partition_is_read_by_all_cores() -> None:
    assert len(split({("a", 0): (0, 1_000_000)}, cores=2)) == 4
    assert len(split({("a", 0): (0, 1_000)}, cores=2)) == 1
