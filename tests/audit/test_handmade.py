"""Handmade cases of one rule each; `test_planted` mixes all of them."""

import random

import pytest

from tests.audit.made import LAST_MS, Made
from tests.audit.world import DAY_MS, NOW_MS, Record

# -- messages without a delivery report ----------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("then", ["itself", "a tombstone behind it"])
def test_an_unheard_message_may_have_gone_with_a_tombstone(then: str, known: bool) -> None:
    """The tombstone removed the key's rows, and was removed itself when delete.retention.ms had passed."""
    made = Made(compacts=True, deletes=False, settings_known=known)
    made.send(1, 10)
    if then == "itself":
        made.send(2, None, state="unknown", arrives=False)
    else:
        made.send(2, 20, state="unknown", arrives=False)
        made.send(2, None, arrives=False)
    messages, _, beside = made.classes()
    assert messages["lost_unacked"] == 0 and messages["indeterminate"] >= 1
    assert not beside


def test_an_unheard_row_that_nothing_replaced_is_lost() -> None:
    made = Made(compacts=True, deletes=False)
    made.send(1, 10)
    made.send(2, 20, state="unknown", arrives=False)
    assert made.classes()[0] == {"matched": 1, "lost_unacked": 1}


@pytest.mark.parametrize(
    ("later", "messages"),
    [
        ("a row", {"matched": 1, "indeterminate": 2, "lost_acked": 1}),
        ("none", {"matched": 1, "indeterminate": 1, "lost_acked": 1}),
        ("an older row survives", {"matched": 2, "lost_acked": 2}),
    ],
)
def test_a_young_tombstone_may_have_been_replaced_by_what_is_gone_too(
    later: str, messages: dict[str, int]
) -> None:
    """A later row replaced it, and is lost. Where an older row survives, the cleaner did not run."""
    made = Made(compacts=True, deletes=False, delete_retention_ms=30 * DAY_MS)
    made.send(1, 10)
    made.send(2, 20, arrives=later.startswith("an older"))
    made.send(2, None, arrives=False)
    if later != "none":
        made.send(2, 30, arrives=False)
    assert made.classes()[0] == messages


def test_what_may_be_behind_an_open_transaction_is_undecided() -> None:
    """An unacknowledged message does not count as lost.

    A key whose last record can't be read is not wrong.
    """
    made = Made()
    made.send(1, 10)
    made.topic.hole_kinds[0, made.topic.high[0]] = "open"
    made.send(1, 11, arrives=False)
    made.send(2, 20, state="unknown", arrives=False)
    messages, records, beside = made.classes()
    assert messages == {"matched": 1, "indeterminate": 2}
    assert records == {"matched": 1}
    assert not beside


def test_what_may_be_in_a_damaged_batch_is_undecided() -> None:
    """The relay is not to blame for an unacknowledged message, which may be in the batch.

    An acknowledged one is lost.
    """
    made = Made()
    made.send(1, 10)
    made.topic.hole_kinds[0, made.topic.high[0]] = "damaged"
    made.send(2, 20, arrives=False)
    made.send(3, 30, state="unknown", arrives=False)
    assert made.classes()[0] == {"matched": 1, "lost_acked": 1, "indeterminate": 1}


# -- after the recording -------------------------------------------------------------------------------------


def test_the_rest_of_a_transaction_that_was_recorded_in_part() -> None:
    """A segment ends in the middle of a transaction; the rest has the same time and the same LSN."""
    made = Made()
    made.send(1, 10)
    made.stand(2, 20)
    made.stand(3, 30, lsn=100, ordinal=2)
    assert made.classes()[1] == {"matched": 1, "outside_window": 2}


def test_a_change_of_the_last_transaction_that_was_never_made_is_a_phantom() -> None:
    made = Made()
    made.send(1, 10, ordinal=2)
    made.stand(2, 20, lsn=100, ordinal=1)
    assert made.classes()[1] == {"matched": 1, "phantom": 1}


def test_a_tail_that_was_sent_again_when_nobody_recorded() -> None:
    made = Made()
    made.send(1, 10)
    made.send(2, 20)
    made.world.confirmed = 100
    made.stand(2, 20)
    messages, records, beside = made.classes()
    assert messages == {"matched": 2}
    assert records == {"matched": 2, "outside_window": 1}
    assert not beside


def test_a_copy_of_what_was_confirmed_is_a_duplicate() -> None:
    made = Made()
    made.send(1, 10)
    made.stand(1, 10)
    made.stand(1, 10, NOW_MS)
    assert made.classes()[1] == {"matched": 1, "duplicated": 2}


@pytest.mark.parametrize("with_headers", [True, False])
def test_a_row_that_became_again_what_it_was_when_nobody_recorded(with_headers: bool) -> None:
    """The relay continued, and a later change has the bytes of a recorded one: a delete, or a flag."""
    made = Made()
    made.send(1, 10)
    made.send(1, None)
    lsn = 5_000 if with_headers else None
    made.stand(1, 10, NOW_MS, lsn=lsn)
    made.stand(1, None, NOW_MS, lsn=lsn)
    if not with_headers:
        # Only this record shows that the relay continued.
        made.stand(2, 99, NOW_MS)
    messages, records, beside = made.classes()
    assert messages == {"matched": 2}
    assert records == {"matched": 2, "outside_window": 2 if with_headers else 3}
    assert not beside


def test_a_copy_in_a_gap_of_the_recording_is_of_the_run_that_was_not_recorded() -> None:
    made = Made()
    made.send(1, 10)
    made.stand(1, 10)
    later = made.send(2, 20)
    made.world.gaps.append((0, later.id))
    assert made.classes()[1] == {"matched": 2, "outside_window": 1}


def test_a_record_that_has_gone_when_it_is_looked_at() -> None:
    """The relay continues, and the topic is compacted after the scan and before the record is inspected."""
    made = Made(compacts=True, deletes=False)
    made.send(1, 10)
    made.stand(2, 20, NOW_MS, is_gone=True)
    assert made.classes()[1] == {"matched": 1, "outside_window": 1}


# -- misrouted -----------------------------------------------------------------------------------------------


def test_two_messages_with_the_same_bytes_are_both_found_in_another_partition() -> None:
    made = Made(partitions=2)
    made.send(1, 10)
    made.send(2, 20, p=1)
    for _ in range(2):
        made.send(3, 30, arrives=False)
    for _ in range(2):
        made.stand(3, 30, p=1)
    messages, records, _ = made.classes()
    assert messages == {"matched": 2, "misrouted": 2}
    assert records == {"matched": 2, "misrouted": 2}


def test_a_copy_at_the_place_of_a_message_with_the_same_value_is_no_changed_key() -> None:
    made = Made()
    made.send(1, 10)
    made.send(2, 10, arrives=False)
    made.topic.logs[0][1] = Record(1, 10, LAST_MS, "")
    messages, records, _ = made.classes()
    assert messages == {"matched": 1, "lost_acked": 1}
    assert records == {"matched": 1, "duplicated": 1}


# -- topics that got more partitions -------------------------------------------------------------------------


def _widened(before: int, after: int, counts: tuple[int, ...]) -> Made:
    """Messages of many keys, some of which were sent when the topic had fewer partitions."""
    made = Made(partitions=counts[-1])
    rng = random.Random(before)
    for number in range(before + after):
        at = min(number // max(before // (len(counts) - 1), 1), len(counts) - 1)
        hashed = rng.getrandbits(31)
        made.send(number, 1000 + number, p=hashed % counts[at]).key_hash = hashed
    return made


@pytest.mark.parametrize("counts", [(3, 4), (1, 2), (2, 3, 6)])
@pytest.mark.parametrize("before", [24, 60, 200])
def test_partitions_were_added(counts: tuple[int, ...], before: int) -> None:
    messages, records, beside = _widened(before, 200, counts).classes()
    assert messages == records == {"matched": before + 200}
    assert not beside


@pytest.mark.parametrize("number", [5, 100])
def test_a_wrong_partition_is_found_among_those_of_before_and_after(number: int) -> None:
    made = _widened(30, 200, (3, 4))
    send = made.world.sends[number]
    _, p, offset = send.place
    record = made.topic.logs[p].pop(offset)
    made.topic.hole_kinds[p, offset] = "gap"
    send.partition = (p + 1) % 3
    send.offset = made.topic.append(send.partition, record)
    messages, _, _ = made.classes()
    assert messages["misrouted"] == 1, messages


def test_what_was_never_heard_of_is_looked_for_where_its_key_was_then() -> None:
    made = _widened(40, 200, (3, 4))
    send = next(
        s for s in made.world.sends[:30] if s.key_hash is not None and s.key_hash % 3 != s.key_hash % 4
    )
    send.state, send.partition, send.offset = "unknown", None, None
    messages, records, _ = made.classes()
    assert messages == {"matched": 240} and records == {"matched": 240}
