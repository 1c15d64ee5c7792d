"""The judge of the random faults finds lost, misordered and duplicated records, and nothing else."""

import pytest

from tests.torture.histories import Key, Transaction
from tests.torture.judging import Judge, Mark
from tests.torture.topics import Record

KEY: Key = ("public.accounts", 7)


def judged(*versions: int, final: int = 5) -> Judge:
    judge = Judge("p")
    judge.take(
        Record(judge.versions_topic, 0, offset, {"name": KEY[0], "id": KEY[1]}, {"number": one, "tx": one})
        for offset, one in enumerate(versions)
    )
    judge._complete(KEY, final)
    return judge


@pytest.mark.parametrize(
    ("versions", "repeats"),
    [
        ((1, 2, 3, 4, 5), 0),
        ((1, 2, 3, 2, 3, 4, 5), 2),
        # A second restart happens in the middle of the repeats of the first.
        ((1, 2, 3, 4, 2, 3, 2, 3, 4, 5), 5),
        ((1, 2, 3, 3, 4, 5), 1),
    ],
)
def test_what_is_sent_again_in_order_is_counted(versions: tuple[int, ...], repeats: int) -> None:
    verdict = judged(*versions).verdict
    assert verdict.repeats == repeats
    assert not verdict.problems(exactly_once=False)
    assert bool(verdict.problems(exactly_once=True)) == bool(repeats)


@pytest.mark.parametrize(
    ("versions", "what"),
    [
        ((1, 2, 3, 4), "lost"),
        ((2, 3, 4, 5), "lost"),
        ((1, 2, 4, 5), "lost"),
        ((1, 2, 4, 3, 5), "out of order"),
        ((1, 2, 3, 4, 5, 4), "out of order"),
        # Repeats must not skip anything.
        ((1, 2, 3, 4, 5, 2, 4, 5), "out of order"),
        ((1, 2, 3, 4, 5, 6), "wrong"),
    ],
)
def test_what_must_not_be_is_named(versions: tuple[int, ...], what: str) -> None:
    assert f" {what}: " in judged(*versions).verdict.problems(exactly_once=False)


@pytest.mark.parametrize("confirmed", [99, 100, 101])
def test_what_was_confirmed_may_not_come_again(confirmed: int) -> None:
    judge = judged(1, 2, 3, 2, 3, 4, 5)
    # Version 2 committed before 100, and three records existed when that LSN was confirmed.
    judge.marks = [Mark(confirmed, {0: 3})]
    judge._check_repeats([Transaction(1, [(KEY, 2, "row")], is_known=True, before=100)])
    assert bool(judge.verdict.confirmed_repeats) == (confirmed >= 100)


@pytest.mark.parametrize("written", [0, 99, 100])
def test_what_was_confirmed_since_a_slot_was_written_down_may_come_again(written: int) -> None:
    """Nothing that was confirmed before that may be repeated."""
    judge = judged(1, 2, 3, 2, 3, 4, 5)
    judge.marks = [Mark(120, {0: 2}), Mark(written, {0: 3}, taken_back=True)]
    judge._check_repeats([Transaction(1, [(KEY, 2, "row")], is_known=True, before=100)])
    assert bool(judge.verdict.confirmed_repeats) == (written >= 100)


def test_what_came_again_and_was_confirmed_again_may_not_come_once_more() -> None:
    judge = judged(1, 2, 3, 2, 3, 2, 3, 4, 5)
    judge.marks = [Mark(120, {0: 2}), Mark(0, {0: 3}, taken_back=True), Mark(120, {0: 5})]
    judge._check_repeats([Transaction(1, [(KEY, 2, "row")], is_known=True, before=100)])
    assert judge.verdict.confirmed_repeats == [f"{KEY} 2 at 0:5"]


def test_a_transaction_that_is_there_in_part_is_torn() -> None:
    judge = judged(1, 2)
    one = Transaction(1, [(KEY, 1, "row"), (("public.visits", 1), 1, "row")])
    other = Transaction(2, [(KEY, 2, "row")])
    absent = Transaction(3, [(KEY, 3, "row")])
    assert judge.torn([one, other, absent]) == {1}
