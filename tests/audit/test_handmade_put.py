"""Rows backfilled at the exact LSN where the next transaction commits: handmade cases."""

import pytest

from tests.audit.made import Made

#: The stream's position, where the next transaction's commit begins.
LSN = 150


def put(*, heard: bool = True, arrives: bool = True, reached: int = 0) -> Made:
    """Record a change, a backfilled row, and a change of another key at its LSN."""
    made = Made()
    made.send(1, 10)
    made.send(
        2,
        20,
        op="backfill",
        ordinal=1,
        lsn=LSN,
        state="acknowledged" if heard else "unknown",
        arrives=arrives,
    )
    made.send(3, 30, lsn=LSN)
    made.world.confirmed = LSN
    made.world.reached[1] = reached
    return made


@pytest.mark.parametrize("reached", [0, LSN, LSN + 1])
def test_all_is_well(reached: int) -> None:
    messages, records, beside = put(reached=reached).classes()
    assert (messages, records) == ({"matched": 3}, {"matched": 3})
    assert not beside


def test_one_that_is_lost_tears_no_transaction() -> None:
    messages, records, beside = put(arrives=False).classes()
    assert (messages, records) == ({"matched": 2, "lost_acked": 1}, {"matched": 2})
    assert set(beside) == {"offset_gap"}


@pytest.mark.parametrize(("reached", "name"), [(0, "pending"), (LSN, "pending"), (LSN + 1, "lost_unacked")])
def test_an_lsn_that_was_confirmed_says_nothing_of_what_was_put_there(reached: int, name: str) -> None:
    messages, _, _ = put(heard=False, arrives=False, reached=reached).classes()
    assert messages == {"matched": 2, name: 1}


def test_a_commit_that_begins_where_the_confirmed_lsn_ends_is_not_confirmed() -> None:
    made = Made()
    made.send(1, 10, lsn=LSN - 1)
    made.send(2, 20, lsn=LSN, state="unknown", arrives=False)
    made.world.confirmed = LSN - 1
    assert made.classes()[0] == {"matched": 1, "pending": 1}


def test_it_is_no_repeat_of_the_change_with_its_number() -> None:
    made = Made()
    made.send(2, 20, op="backfill", lsn=LSN)
    made.send(2, 20, lsn=LSN)
    made.send(2, 20, lsn=LSN, is_repeat=True, pass_number=2)
    made.world.reached = {1: 0, 2: 0}
    assert made.classes()[0] == {"matched": 2, "redelivered": 1}
