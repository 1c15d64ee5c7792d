"""Recordings that end in an unconfirmed tail, while the relay continued: handmade cases."""

from typing import Any

import pytest

from tests.audit.made import LAST_MS, Made


def _tail(*, is_heard: bool) -> Made:
    """Return a confirmed message and three unconfirmed ones; ``is_heard``: the last one is acknowledged."""
    made = Made()
    made.send(1, 10, time_ms=LAST_MS - 30)
    made.send(1, 11, time_ms=LAST_MS - 20)
    made.send(2, 20, time_ms=LAST_MS - 10)
    made.send(1, 12, state="acknowledged" if is_heard else "unknown", arrives=is_heard)
    made.world.confirmed = 100
    return made


@pytest.mark.parametrize("is_heard", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_tail_that_comes_again(is_heard: bool, goes_on: bool) -> None:
    """A record matched by its bytes must not make earlier copies count as too early."""
    made = _tail(is_heard=is_heard)
    made.stand(1, 11, LAST_MS - 20)
    made.stand(2, 20, LAST_MS - 10)
    made.stand(1, 12, LAST_MS)
    if goes_on:
        made.stand(1, 13, LAST_MS + 10)
    messages, records, beside = made.classes()
    assert messages == {"matched": 4}
    assert records == {"matched": 4, "outside_window": 2 + is_heard + goes_on}
    assert not beside


@pytest.mark.parametrize("headers", [{}, {"lsn": 300, "ordinal": 1}])
def test_a_tail_that_comes_again_in_other_bytes(headers: dict[str, Any]) -> None:
    """Large values are read again, and a schema may have been altered."""
    made = _tail(is_heard=True)
    made.stand(1, 11, LAST_MS - 20)
    made.stand(2, 21, LAST_MS - 10, **headers)
    made.stand(1, 12, LAST_MS)
    messages, records, beside = made.classes()
    assert messages == {"matched": 4}
    assert records == {"matched": 4, "outside_window": 3}
    assert not beside


@pytest.mark.parametrize("value", [10, 99])
def test_a_change_of_the_tail_that_made_no_message_then(value: int) -> None:
    """It was superseded, and has a message when it is sent again, possibly with the row's earlier value."""
    made = _tail(is_heard=True)
    made.superseded(LAST_MS - 5)
    made.world.confirmed = 100
    made.stand(1, 11, LAST_MS - 20)
    made.stand(2, 20, LAST_MS - 10)
    made.stand(1, 12, LAST_MS)
    made.stand(1, value, LAST_MS - 5)
    messages, records, beside = made.classes()
    assert messages == {"matched": 4}
    assert records == {"matched": 4, "outside_window": 4}
    assert not beside


def test_what_was_confirmed_does_not_come_again() -> None:
    made = _tail(is_heard=True)
    made.stand(1, 10, LAST_MS - 30)
    made.stand(3, 33, LAST_MS - 30)
    made.stand(3, 34, LAST_MS, lsn=100, ordinal=1)
    messages, records, _ = made.classes()
    assert messages == {"matched": 4}
    assert records == {"matched": 4, "duplicated": 1, "phantom": 2}
