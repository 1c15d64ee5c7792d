"""Waits of a replay's task, and possible duplicates in a log."""

from array import array

import pytest
from confluent_kafka import KafkaError

from bwtui.kafka.client import LastClientError
from bwtui.replay.send import Lane, SilenceTimeout, twice


def lost() -> KafkaError:
    return KafkaError(KafkaError._TRANSPORT, "broker/1: Connection refused")


def test_an_error_is_forgotten_once_the_lanes_have_got_over_it() -> None:
    lane, heard = Lane(0, "t", 0), LastClientError()
    patience = SilenceTimeout(heard)
    lane.handed = 10
    assert not patience.is_over([lane], 1.0)
    heard(lost())
    assert not patience.is_over([lane], 2.0)
    assert not patience.is_over([lane], 3.5), "nothing came since, and it waits for 2.5 seconds"
    lane.acknowledged = 5
    assert not patience.is_over([lane], 4.0)
    assert heard.error is None
    assert not patience.is_over([lane], 10.0), "as patient as before"
    assert patience.is_over([lane], 19.5)


def test_a_lane_that_stands_still_keeps_the_error() -> None:
    lanes, heard = [Lane(0, "t", 0), Lane(1, "t", 1)], LastClientError()
    patience = SilenceTimeout(heard)
    for lane in lanes:
        lane.handed = 10
    assert not patience.is_over(lanes, 1.0)
    heard(lost())
    for number in range(1, 6):
        lanes[0].acknowledged = number
        assert not patience.is_over(lanes, 1.0 + number / 2)
    assert patience.is_over(lanes, 4.5)


def test_a_refusal_is_not_forgotten() -> None:
    lane, heard = Lane(0, "t", 0), LastClientError()
    patience = SilenceTimeout(heard)
    heard(KafkaError(KafkaError._AUTHENTICATION, "no"))
    for now in (1.0, 2.0, 3.0):
        patience.is_over([lane], now)
    assert heard.is_refusal


@pytest.mark.parametrize(
    ("log", "sent", "unknown", "has_holes", "doubled"),
    [
        ([1, 2, 3, 2, 3], 3, 2, False, 2),
        ([1, 2, 3], 3, 2, False, 0),
        # Equal messages of the recording, and one of another producer.
        ([1, 2, 2, 3], 4, 4, False, 0),
        ([1, 2, 2, 3, 9], 4, 4, False, 1),
        ([1, 2, 3, 9, 8], 3, 2, False, 0),
        # No more messages can be late than were in flight.
        ([1, 1, 1, 1], 1, 2, False, 2),
        # Compacted messages can't be counted.
        ([2, 2, 3], 5, 4, True, 1),
        ([], 0, 4, False, 0),
    ],
)
def test_how_many_may_be_there_twice(
    log: list[int], sent: int, unknown: int, has_holes: bool, doubled: int
) -> None:
    assert twice(array("q", log), sent, unknown, has_holes=has_holes) == doubled
