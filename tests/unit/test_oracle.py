"""Folding records to the latest value of each key, and the form in which both sides are compared."""

import datetime
import math
import struct
import uuid
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from bwtui.kafka.client import WITHOUT_LEADER
from tests.oracle import OracleComparison, OracleTable, TopicContents, _decided, canonical


def keyed() -> TopicContents:
    return TopicContents("shop.items", ("order_id", "line"))


def test_the_latest_value_of_a_key_stays() -> None:
    contents = keyed()
    key = {"order_id": 1, "line": 2}
    contents.add(key, {"v": 1}, 0, b"k")
    contents.add(key, {"v": 2}, 0, b"k")
    assert contents.latest == {(1, 2): {"v": 2}}


def test_a_tombstone_removes_the_key_and_a_later_value_brings_it_back() -> None:
    contents = keyed()
    key = {"line": 2, "order_id": 1}
    contents.add(key, {"v": 1}, 0, b"k")
    contents.add(key, None, 0, b"k")
    assert contents.latest == {}
    contents.add(key, {"v": 3}, 0, b"k")
    assert contents.latest == {(1, 2): {"v": 3}}


@pytest.mark.parametrize(("partition", "raw"), [(1, b"k"), (0, b"other")])
def test_a_key_at_a_second_place_is_counted(partition: int, raw: bytes) -> None:
    contents = keyed()
    contents.add({"order_id": 1, "line": 2}, {"v": 1}, 0, b"k")
    contents.add({"order_id": 1, "line": 2}, {"v": 1}, partition, raw)
    assert contents.split_keys == 1


@pytest.mark.parametrize("key", [None, {"order_id": 1}, {"order_id": 1, "line": 2, "more": 3}, "text"])
def test_a_key_of_another_shape_is_unreadable(key: object) -> None:
    contents = keyed()
    contents.add(key, {"v": 1}, 0, b"k")
    assert contents.unreadable == 1
    assert contents.latest == {}


@pytest.mark.parametrize(("key", "value"), [({"id": 1}, {"v": 1}), (None, None)])
def test_an_unkeyed_topic_has_neither_keys_nor_tombstones(key: object, value: object) -> None:
    contents = TopicContents("shop.audit", ())
    contents.add(key, value, 0, None)
    assert contents.unreadable == 1
    contents.add(None, {"v": 1}, 0, None)
    contents.add(None, {"v": 1}, 1, None)
    assert contents.rows == [{"v": 1}, {"v": 1}]


def test_floats_are_compared_bit_by_bit() -> None:
    assert canonical("double precision", 0.0) != canonical("double precision", -0.0)
    assert canonical("double precision", math.nextafter(0.1, 1)) != canonical("double precision", 0.1)
    single = struct.unpack(">f", struct.pack(">f", 0.1))[0]
    assert canonical("real", single) == canonical("real", 0.1)


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("boolean", 1),
        ("integer", True),
        ("bigint", 1.0),
        ("text", b"x"),
        ("text", 5),
        ("date", datetime.datetime(2026, 1, 1)),
        ("timestamp with time zone", datetime.datetime(2026, 1, 1)),
        ("timestamp without time zone", datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
        ("numeric", 1.5),
        ("bytea", "text"),
        ("real", "0.5"),
    ],
)
def test_a_value_of_another_class_equals_nothing(type_name: str, value: object) -> None:
    assert canonical(type_name, value)[0] == "unexpected"


def test_equal_values_have_one_form() -> None:
    ours = uuid.uuid4()
    assert canonical("uuid", ours) == canonical("uuid", str(ours))
    assert canonical("bytea", memoryview(b"x")) == canonical("bytea", b"x")
    east = datetime.timezone(datetime.timedelta(hours=2))
    assert canonical("timestamp with time zone", datetime.datetime(2026, 1, 1, 2, tzinfo=east)) == canonical(
        "timestamp with time zone", datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    )
    assert canonical("numeric", Decimal("1.50")) == "1.50"
    assert canonical("numeric", Decimal("1.5")) != canonical("numeric", Decimal("1.50"))
    assert canonical("text", None) is None
    assert canonical("text", "") == ""


def verdict(**changes: int) -> OracleTable:
    numbers = {"rows": 3, "keys": 3, "messages": 5, "missing": 0, "extra": 0, "different": 0}
    fields: dict[str, Any] = numbers | changes
    return OracleTable(table="public.orders", topic="shop.orders", **fields)


def test_equal() -> None:
    comparison = OracleComparison((verdict(),))
    assert comparison.outcome == "equal"


@pytest.mark.parametrize("name", ["missing", "extra", "different", "unreadable", "split_keys"])
def test_each_kind_of_difference_is_enough(name: str) -> None:
    comparison = OracleComparison((verdict(), verdict(**{name: 1})))
    assert comparison.outcome == "different"


def test_a_topic_of_no_table_is_a_difference() -> None:
    comparison = OracleComparison((verdict(),), ("shop.other",))
    assert comparison.outcome == "different"
    assert "shop.other" in comparison.sentence


def test_a_log_with_holes_never_proves_equality_but_can_prove_a_difference() -> None:
    assert OracleComparison((verdict(holes=2),)).outcome == "indeterminate"
    assert OracleComparison((verdict(holes=2, missing=1),)).outcome == "different"


def test_a_partition_without_a_leader_is_waited_for() -> None:
    answers = [*WITHOUT_LEADER, 7]

    def ask() -> int:
        answer = answers.pop(0)
        if answers:
            raise KafkaException(KafkaError(answer))
        return answer

    assert _decided(ask, "pin the offsets") == 7
