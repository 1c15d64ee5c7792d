"""Every planted fault is found, and nothing else is."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.audit import judging, making, planting, proof, truth, world

SEEDS = st.integers(0, 2**32)
CHANGES = st.sampled_from([3, 10, 30, 80])


def case(seed: int, changes: int, faults: list[str]) -> tuple[world.World, list[str]]:
    """Make a world and plant the faults that fit into it."""
    rng = random.Random(seed)
    made = making.make(rng, changes)
    return made, planting.plant(made, rng, faults)


def check(made: world.World) -> None:
    """Compare the findings with the truth."""
    found, _ = judging.audit(made)
    expected = truth.truth(made)
    assert not found - expected, "found what was not planted"
    assert not expected - found, "missed what was planted"


@given(SEEDS, CHANGES)
def test_nothing_is_found_where_nothing_was_planted(seed: int, changes: int) -> None:
    made, _ = case(seed, changes, [])
    check(made)


@given(SEEDS, CHANGES, st.lists(st.sampled_from(sorted(planting.FAULTS)), min_size=1, max_size=8))
def test_what_was_planted_is_found_and_nothing_else(seed: int, changes: int, faults: list[str]) -> None:
    made, _ = case(seed, changes, faults)
    check(made)


@pytest.mark.parametrize("fault", sorted(planting.FAULTS))
def test_each_fault_has_room_and_is_found(fault: str) -> None:
    rng = random.Random(fault)
    for _ in range(10):
        made, planted = planting.make_with(rng, 30, fault)
        if planted:
            check(made)
            return
    pytest.fail(f"{fault} never had room")


#: Former failures of the proof.
REGRESSIONS = {
    "gone from its place, settings unseen, and found in another partition": 10064,
    "a gap in a recording whose log lost its end": 10327,
    "a log lost its end, and the relay went on at the same offsets": 10777,
    "a row of the snapshot in another partition, out of its turn, beside a gap in the recording": 20237,
    "the same, of a message that was redelivered": 20303,
    "the first message of a partition was refused, and the window begins behind a phantom": 30142,
    "a log without keys lost its end, and another producer has the offset": 40552,
}


@pytest.mark.parametrize("seed", REGRESSIONS.values(), ids=REGRESSIONS)
def test_what_once_was_off_the_diagonal(seed: int) -> None:
    made, _ = proof.case(seed)
    check(made)
