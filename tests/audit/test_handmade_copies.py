"""Handmade cases: copies, keys with different bytes, shifted logs."""

import pytest

from tests.audit.made import LAST_MS, Made
from tests.audit.world import DAY_MS, NOW_MS, Record

# -- keys with different bytes -------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [10, None])
def test_a_key_in_other_bytes_is_another_key(value: int | None) -> None:
    """Brokers and compaction compare bytes, whatever they decode to."""
    made = Made()
    made.send(2, 20)
    send = made.send(1, value)
    made.topic.logs[0][1].key_digest = 11
    made.world.equal_pairs.add(send.id)
    messages, records, beside = made.classes()
    assert messages == records == {"matched": 1, "rekeyed": 1}
    assert not beside


def test_a_key_in_other_bytes_leaves_the_older_row_under_its_own() -> None:
    made = Made()
    made.send(1, 10)
    send = made.send(1, 12)
    made.topic.logs[0][1].key_digest = 11
    made.world.equal_pairs.add(send.id)
    messages, _, beside = made.classes()
    assert messages == {"matched": 1, "rekeyed": 1}
    assert beside == {"regressed": 1}


def test_a_value_in_other_bytes_is_equivalent_under_the_same_key() -> None:
    made = Made()
    send = made.send(1, 10)
    made.topic.logs[0][0].value_digest = 11
    made.world.equal_pairs.add(send.id)
    messages, records, beside = made.classes()
    assert messages == records == {"matched": 1}
    assert beside == {"equivalent": 1}


def test_a_tombstone_under_another_key_is_a_changed_key() -> None:
    made = Made()
    made.send(2, 20)
    made.send(1, None)
    made.topic.logs[0][1].key_digest = 11
    messages, records, _ = made.classes()
    assert messages == records == {"matched": 1, "corrupted": 1}


@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("log_append", [False, True])
def test_an_older_row_in_a_tombstones_place(compacts: bool, log_append: bool) -> None:
    """The later, unacknowledged tombstone does not match the replaced record."""
    made = Made(compacts=compacts, deletes=not compacts, log_append=log_append)
    made.send(1, 10, time_ms=LAST_MS - 2)
    made.send(1, None, time_ms=LAST_MS - 1)
    made.topic.logs[0][1].value_digest = 10
    made.send(1, None, state="unknown")
    messages, records, beside = made.classes()
    assert messages == records == {"matched": 2, "corrupted": 1}
    assert not beside


# -- copies in other topics ----------------------------------------------------------------------------------


def _two_tables() -> Made:
    made = Made()
    made.add_topic("shop.u")
    made.send(1, 10)
    made.send(5, 50, topic="shop.u")
    return made


def test_equal_tombstones_of_two_tables_are_each_their_own() -> None:
    """In JSON a key does not name its table: one tombstone is lost, and the other is duplicated."""
    made = _two_tables()
    made.send(1, None, arrives=False)
    made.send(1, None, topic="shop.u")
    made.stand(1, None, topic="shop.u")
    made.send(2, 20)
    messages, records, _ = made.classes()
    assert messages == {"matched": 4, "lost_acked": 1}
    assert records == {"matched": 4, "duplicated": 1}


@pytest.mark.parametrize(("key", "value"), [(1, None), (None, 30), (1, 10)])
def test_a_copy_in_another_topic_is_misrouted(key: int | None, value: int | None) -> None:
    made = _two_tables()
    made.send(key, value)
    made.stand(key, value, topic="shop.u", is_ours=False)
    messages, records, beside = made.classes()
    assert messages == {"matched": 3}
    assert records == {"matched": 3, "misrouted": 1}
    assert not beside


def test_a_tombstone_that_the_relay_sent_later_is_no_copy_of_another_tables() -> None:
    """In JSON, tombstones of tables with the same key are identical."""
    made = _two_tables()
    made.send(1, None)
    made.stand(1, None, NOW_MS, topic="shop.u")
    assert made.classes()[1] == {"matched": 3, "outside_window": 1}


# -- shifted logs --------------------------------------------------------------------------------------------


def test_a_doubled_tombstone_in_a_shifted_log() -> None:
    """The order is intact: the additional record is a copy."""
    made = Made()
    for value in (None, 10, None):
        made.send(1, value)
    first = made.topic.logs[0][0]
    made.topic.logs[0] = {
        o: Record(1, value_digest, LAST_MS, "", first.send)
        for o, value_digest in enumerate([None, None, 10, None])
    }
    made.topic.high[0] = 4
    messages, records, beside = made.classes()
    assert messages == {"matched": 3}
    assert records == {"matched": 3, "duplicated": 1}
    assert beside == {"moved": 2}


def test_a_doubled_tombstone_at_the_place_of_another() -> None:
    made = Made()
    for value in (None, 10, None):
        made.send(1, value)
    made.topic.logs[0] = {0: Record(9, 90, LAST_MS, "", is_ours=False)} | {
        o: Record(1, value_digest, LAST_MS, "") for o, value_digest in enumerate([None, None, 10, None], 1)
    }
    made.topic.high[0] = 5
    messages, records, beside = made.classes()
    assert messages == {"matched": 3}
    assert records == {"matched": 3, "duplicated": 1, "foreign": 1}
    assert beside == {"moved": 3}


def test_two_relays_at_once_in_a_log_that_was_shifted() -> None:
    made = Made()
    made.send(1, 10, pass_number=1)
    late = made.send(2, 20, pass_number=2)
    early = made.send(3, 30, pass_number=1)
    late.id, early.id = early.id, late.id
    made.topic.logs[0] = {o + 3: record for o, record in made.topic.logs[0].items()}
    made.topic.high[0] += 3
    made.topic.low[0] = 3
    beside = made.classes()[2]
    assert beside["interleaved_sessions"] == 1


@pytest.mark.parametrize(
    ("then", "found"),
    [("nothing", 0), ("a third pass", 0), ("the second pass", 1), ("another of the kind", 0)],
)
def test_what_was_not_acknowledged_and_sent_again_late_is_no_second_relay(then: str, found: int) -> None:
    """A replay puts missing messages after the following pass; two relays interleave their records."""
    made = Made()
    made.send(1, 10)
    late = [made.send(key, 20, state="unknown", arrives=False) for key in (2, 3)]
    made.send(4, 40, pass_number=2)
    for send in late if then == "another of the kind" else late[:1]:
        made.topic.append(0, Record(send.key_digest, send.value_digest, send.time_ms, "", send))
    if then.endswith("pass"):
        made.send(5, 50, pass_number=2 if then == "the second pass" else 3)
    made.world.reached = dict.fromkeys(made.world.passes, 0)
    messages, _, beside = made.classes()
    assert messages["matched"] >= 3
    assert beside["interleaved_sessions"] == found


def test_what_was_sent_again_late_is_no_second_relay() -> None:
    made = Made()
    made.send(1, 10, arrives=False)
    made.send(2, 20, pass_number=2)
    made.stand(1, 10)
    assert made.classes()[2] == {"moved": 1, "offset_gap": 1}


# -- compaction ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 30])
def test_a_record_that_may_not_be_compacted_yet_explains_nothing(value: int | None) -> None:
    """A record younger than min.compaction.lag.ms replaces nothing: the cleaner has not reached it."""
    made = Made(compacts=True, deletes=False, lag_ms=DAY_MS)
    made.send(1, 10, arrives=False)
    made.send(1, 20, arrives=False)
    made.send(1, value, time_ms=NOW_MS - 1000)
    messages, _, beside = made.classes()
    assert messages == {"matched": 1, "indeterminate": 2}
    assert not beside


def test_a_key_that_is_gone_with_its_young_tombstone() -> None:
    made = Made(compacts=True, deletes=False)
    made.send(2, 20)
    made.send(1, 10, arrives=False)
    made.send(1, None, arrives=False, time_ms=NOW_MS - 1000)
    messages, _, _ = made.classes()
    assert messages == {"matched": 1, "indeterminate": 1, "lost_acked": 1}


# -- times and headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_append", [False, True])
def test_another_timestamp_is_noted_unless_the_broker_sets_it(log_append: bool) -> None:
    made = Made(log_append=log_append)
    made.send(1, 10)
    made.send(2, 20)
    made.topic.logs[0][1].ts += 1
    messages, _, beside = made.classes()
    assert messages == {"matched": 2}
    assert beside == ({} if log_append else {"time_differs": 1})


def test_other_headers_are_noted() -> None:
    made = Made()
    made.send(1, 10, headers_digest=7)
    for sent, found in ((7, 8), (7, None), (None, 7)):
        made.send(2, made.number, headers_digest=sent)
        made.topic.logs[0][made.number - 1].headers_digest = found
    messages, _, beside = made.classes()
    assert messages == {"matched": 4}
    assert beside == {"headers_differ": 3}
