"""A second read of the first one's gaps counts nothing twice."""

from hypothesis import given
from hypothesis import strategies as st

from bwtui.kafka.columns import within_gaps
from bwtui.kafka.scan import Hole

SETS = st.sets(st.integers(0, 40))


def ranges(offsets: set[int]) -> list[Hole]:
    """Return a set of offsets as holes that do not touch."""
    found: list[Hole] = []
    for offset in sorted(offsets):
        if found and found[-1].high == offset:
            found[-1] = found[-1]._replace(high=offset + 1)
        else:
            found.append(Hole("gap", offset, offset + 1))
    return found


def members(holes: list[Hole]) -> list[int]:
    """Return every offset, once for each hole that contains it."""
    return sorted(offset for _, low, high in holes for offset in range(low, high))


@given(SETS, SETS)
def test_only_what_lies_in_a_gap_is_a_hole(holes: set[int], gaps: set[int]) -> None:
    assert members(within_gaps(ranges(holes), ranges(gaps))) == sorted(holes & gaps)
