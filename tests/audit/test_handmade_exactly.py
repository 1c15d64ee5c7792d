"""Check the promises of --exactly-once: handmade cases."""

from collections import Counter
from typing import Any

import pytest

from bwtui.audit import core
from bwtui.audit.classes import COUNTED
from tests.audit import judging
from tests.audit.made import LAST_MS, Made
from tests.audit.world import DAY_MS


def twice(*exactly: int) -> Made:
    """Return a change that two passes sent; both messages arrived."""
    made = Made()
    made.send(1, 10)
    made.send(2, 20, lsn=200)
    made.send(2, 20, lsn=200, is_repeat=True, pass_number=2)
    made.world.reached = {1: 0, 2: 0}
    made.world.exactly_once = set(exactly)
    return made


@pytest.mark.parametrize("exactly", [(), (1,), (2,)])
def test_a_repeat_is_benign_where_one_of_the_two_passes_promised_nothing(exactly: tuple[int, ...]) -> None:
    messages, records, _ = twice(*exactly).classes()
    assert messages == records == {"matched": 2, "redelivered": 1}


def test_a_repeat_is_a_finding_where_both_promised_that_there_is_none() -> None:
    messages, records, _ = twice(1, 2).classes()
    assert messages == records == {"matched": 2, "repeated": 1}
    _, connection = judging.audit(twice(1, 2).world)
    for statement in core.statements("99_findings"):
        connection.execute(statement)
    assert connection.execute("select class, hop from finding").fetchall() == [("repeated", "relay")]
    connection.close()


@pytest.mark.parametrize("arrives", ["the first", "the second"])
def test_what_was_aborted_and_comes_again_is_there_once(arrives: str) -> None:
    """The first one has no delivery report: its transaction was aborted, or the commit's reply was lost."""
    made = Made()
    made.send(1, 10)
    made.send(2, 20, lsn=200, state="unknown", arrives=arrives == "the first")
    if arrives == "the second":
        made.send(2, 20, lsn=200, is_repeat=True, pass_number=2)
    made.send(3, 30, pass_number=2)
    made.world.reached = {1: 0, 2: 0}
    made.world.exactly_once = {1, 2}
    messages, _, _ = made.classes()
    assert messages == {"matched": 3} | ({"resent": 1} if arrives == "the second" else {})


@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("passes", [2, 3])
def test_what_was_aborted_and_then_committed_unheard_is_the_last_copy(passes: int, compacts: bool) -> None:
    """None of them has a delivery report, and one record has the bytes of all."""
    made = Made(compacts=compacts)
    made.send(1, 10)
    for number in range(1, passes + 1):
        there = number == passes
        again: dict[str, Any] = {
            "is_repeat": number > 1,
            "pass_number": number,
            "state": "unknown",
            "arrives": there,
        }
        # Only their order distinguishes two rows with the same bytes.
        made.send(2, 20, lsn=200, **again)
        made.send(2, 20, lsn=200, ordinal=2, **again)
        made.send(3, 30, lsn=200, ordinal=3, **again)
        made.send(4, number, lsn=300 + number, pass_number=number)
    made.send(5, 50, pass_number=passes + 1)
    made.world.reached = dict.fromkeys(range(1, passes + 2), 0)
    made.world.exactly_once = set(range(1, passes + 2))
    messages, records, beside = made.classes()
    assert messages == {"matched": 5 + passes, "resent": 3 * (passes - 1)}
    assert records == {"matched": 5 + passes}
    assert not beside


@pytest.mark.parametrize("exactly", [{1, 2}, {2}, set()])
@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("gone", ["deleted", "truncated"])
def test_what_was_not_acknowledged_and_then_made_no_message_is_not_lost(
    exactly: set[int], compacts: bool, gone: str
) -> None:
    """Its row was deleted before the relay could read a value that PostgreSQL had not sent."""
    made = Made(compacts=compacts)
    made.send(1, 10)
    made.send(2, 15)
    made.send(2, 20, lsn=250, state="unknown", arrives=False)
    made.superseded()
    again = made.world.sends[-1]
    again.lsn, again.pass_number, again.is_repeat = 250, 2, True
    if gone == "deleted":
        made.send(2, None, pass_number=2)
    made.send(3, 30, pass_number=2)
    made.world.reached = {1: 0, 2: 0}
    made.world.exactly_once = exactly
    messages, _, beside = made.classes()
    assert messages == {"matched": 3 + (gone == "deleted"), "resent": 1}
    assert not beside


@pytest.mark.parametrize(
    ("later", "exactly", "name"),
    [
        (20, {1, 2}, "compacted"),
        (20, {1}, "indeterminate"),
        (20, set(), "indeterminate"),
        (None, {1, 2}, "indeterminate"),
    ],
)
def test_what_was_committed_unheard_may_have_been_compacted(
    later: int | None, exactly: set[int], name: str
) -> None:
    """The next pass began after it, so Kafka had it; a later record of its key has replaced it."""
    made = Made(compacts=True)
    made.send(1, 10)
    made.send(2, 10, lsn=200, state="unknown", arrives=False)
    made.send(3, 30, pass_number=2)
    # An aborted copy of the message itself proves nothing, and neither does a record without a message.
    if later is None:
        made.stand(2, 99)
    else:
        made.send(2, later, pass_number=2)
    made.world.reached = {1: 0, 2: 0}
    made.world.exactly_once = exactly
    messages, _, beside = made.classes()
    assert messages == {"matched": 2 + (later is not None), name: 1}
    assert "torn_transaction" not in beside


@pytest.mark.parametrize(("exactly", "name"), [({1, 2}, "expired"), ({2}, "indeterminate")])
def test_what_was_committed_unheard_may_have_expired(exactly: set[int], name: str) -> None:
    """A later message of its partition has expired."""
    made = Made(retention_ms=DAY_MS)
    made.send(2, 20, lsn=200, state="unknown")
    made.send(1, 10, pass_number=2)
    made.send(3, 30, pass_number=2)
    made.topic.low[0] = 2
    del made.topic.logs[0][0], made.topic.logs[0][1]
    made.world.reached = {1: 0, 2: 0}
    made.world.exactly_once = exactly
    assert made.classes()[0] == Counter(["matched", "expired", name])


def chunk(name: str, committed: bool | None, *, there: bool = False, **settings: Any) -> Counter[str]:
    """Audit a backfilled row without a delivery report.

    ``committed``: whether the next pass recorded that Kafka had it; None if it recorded nothing.
    """
    made = Made(**settings)
    made.send(1, 10)
    put = made.send(2, 20, op="backfill", lsn=200, state="unknown", arrives=there)
    made.send(3, 30, pass_number=2)
    if name:
        made.send(2, 40, pass_number=2)
    made.world.reached = {1: 0, 2: 0}
    made.world.exactly_once = {1, 2}
    if committed is not None:
        made.world.committed = {1: put.id + (1 if committed else 0)}
    return made.classes()[0] - Counter(matched=3 if name else 2)


@pytest.mark.parametrize(
    ("committed", "name"), [(None, "pending"), (False, "pending"), (True, "lost_unacked")]
)
def test_a_chunk_that_was_committed_unheard_may_be_lost(committed: bool | None, name: str) -> None:
    assert chunk("", committed) == {name: 1}
    if committed is not False:
        assert chunk("", committed, there=True) == {"matched": 1}


@pytest.mark.parametrize(
    ("committed", "later", "name"),
    [(None, "a later row", "pending"), (True, "a later row", "compacted"), (True, "", "lost_unacked")],
)
def test_a_chunk_that_was_committed_unheard_may_have_been_compacted(
    committed: bool | None, later: str, name: str
) -> None:
    assert chunk(later, committed, compacts=True) == {name: 1}


def test_a_chunk_that_was_aborted_takes_no_record_of_one_that_was_committed_unheard() -> None:
    """If the broker sets the time, only the next pass distinguishes them."""
    made = Made(log_append=True)
    made.send(1, 10)
    made.send(2, 20, op="backfill", lsn=200, state="unknown", arrives=False)
    again = made.send(2, 20, op="backfill", lsn=200, state="unknown", pass_number=2)
    made.send(3, 30, pass_number=3)
    made.world.reached = {1: 0, 2: 0, 3: 0}
    made.world.exactly_once = {1, 2, 3}
    made.world.committed = {2: again.id + 1}
    messages, records, beside = made.classes()
    assert (messages, records) == ({"matched": 3, "pending": 1}, {"matched": 3})
    assert not beside


@pytest.mark.parametrize(("is_known", "names"), [(True, ["duplicated"]), (False, [])])
def test_a_chunk_that_kafka_had_in_spite_of_its_position_is_there_twice(
    is_known: bool, names: list[str]
) -> None:
    """Its rows were committed, but not the note that the chunk was done, so it was sent again."""
    made = Made()
    made.send(1, 10)
    first = made.send(2, 20, op="backfill", lsn=200, state="unknown")
    made.send(2, 20, op="backfill", lsn=200, pass_number=2, time_ms=LAST_MS + 5)
    made.send(3, 30, pass_number=2)
    made.world.reached = {1: 0, 2: 0}
    made.world.exactly_once = {1, 2}
    if is_known:
        made.world.committed = {1: first.id}
    _, records, beside = made.classes()
    assert records == Counter(["matched"] * (4 - len(names)) + names)
    assert not beside


@pytest.mark.parametrize(("exactly", "markers"), [({1}, 3), (set(), 0)])
def test_markers_are_offsets_without_a_record_and_without_a_message(exactly: set[int], markers: int) -> None:
    made = Made()
    # Markers of other producers, before and after the recording.
    made.topic.high[0] = 1
    made.send(1, 10)
    made.topic.high[0] += 2
    made.send(2, 20)
    made.send(3, 30, arrives=False)
    made.send(4, 40)
    made.topic.high[0] += 3
    made.world.reached, made.world.exactly_once = {1: 0}, exactly
    _, connection = judging.audit(made.world)
    counts = {kind.name: core.scalar(connection, kind.count) for kind in COUNTED if kind.count}
    assert counts["markers"] == markers
    connection.close()
