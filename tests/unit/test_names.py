"""Names in Avro and Kafka."""

import re

import pytest

from bwtui.encode.names import (
    ESCAPED_FIELD,
    MAX_TOPIC,
    RecordOwners,
    avro_name,
    colliding_topics,
    record_names,
    subject_names,
    topic_name,
)
from bwtui.errors import UsageError
from bwtui.pgoutput.messages import Relation
from tests.escaped_names import unescape


@pytest.mark.parametrize(
    ("identifier", "name"),
    [
        ("orders", "orders"),
        ("Order_Items2", "Order_Items2"),
        ("pos_x", "pos_x"),
        ("_xmin", "_xmin"),
        ("größe", "gr_xf6__xdf_e"),
        ("order id", "order_x20_id"),
        ("a.b-c", "a_x2e_b_x2d_c"),
        ("1st", "_x31_st"),
        ("is_xact", "is_x5f_xact"),
        ("_x20_", "_x5f_x20_"),
        ("😀", "_x1f600_"),
        (ESCAPED_FIELD, "_x5f__escaped"),
    ],
)
def test_avro_names(identifier: str, name: str) -> None:
    assert avro_name(identifier) == name
    assert unescape(name) == identifier


@pytest.mark.parametrize(
    ("prefix", "namespace", "table", "topic"),
    [
        ("", "public", "orders", "orders"),
        ("", "shop", "orders", "shop.orders"),
        ("prod", "public", "orders", "prod.orders"),
        ("prod.eu", "shop", "orders", "prod.eu.shop.orders"),
        ("", "public", "shop.orders", "shop_x2e_orders"),
        ("", "public", "order-items", "order-items"),
        ("", "public", "2024", "2024"),
        ("", "Public", "orders", "Public.orders"),
        ("", "public", "..", "_x2e__x2e_"),
        ("", "public", "_prisma", "_prisma"),
        ("", "public", "__consumer_offsets", "_x5f__consumer_offsets"),
        ("", "public", "_schemas", "_x5f_schemas"),
        ("p", "public", "_schemas", "p._schemas"),
    ],
)
def test_topics(prefix: str, namespace: str, table: str, topic: str) -> None:
    assert topic_name(prefix, namespace, table) == topic


def test_long_topics_keep_their_beginning_and_end_in_a_hash() -> None:
    tables = ["ä" * 31 + end for end in ("a", "b")]
    topics = [topic_name("prefix" * 10, "ö" * 31, table) for table in tables]
    assert all(len(topic) == MAX_TOPIC and topic.startswith("prefix") for topic in topics)
    assert topics[0] != topics[1]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", topic) for topic in topics)
    assert topics[0] == topic_name("prefix" * 10, "ö" * 31, tables[0])


@pytest.mark.parametrize("prefix", ["a b", "ä", "a/b", "x" * 101])
def test_a_prefix_that_kafka_refuses(prefix: str) -> None:
    with pytest.raises(UsageError, match="prefix"):
        topic_name(prefix, "public", "t")


def test_subjects() -> None:
    assert subject_names("shop.orders") == ("shop.orders-key", "shop.orders-value")


def test_topics_that_kafka_does_not_take_side_by_side() -> None:
    assert colliding_topics(["a.b", "c", "a_b", "a.b", "x.y.z", "x.y_z"]) == [
        ("a.b", "a_b"),
        ("x.y.z", "x.y_z"),
    ]


def _table(namespace: str, name: str) -> Relation:
    return Relation(1, namespace, name, "d", ())


@pytest.mark.parametrize(
    ("namespace", "table", "names"),
    [
        ("public", "orders", ("com.acme", "Orders", "OrdersKey")),
        ("sales", "order_items", ("com.acme.sales", "OrderItems", "OrderItemsKey")),
        ("public", "orderItems", ("com.acme", "OrderItems", "OrderItemsKey")),
        ("public", "order-items v2", ("com.acme", "OrderItemsV2", "OrderItemsV2Key")),
        ("Odd one", "größe", ("com.acme.Odd_x20_one", "Gr_xf6__xdf_e", "Gr_xf6__xdf_eKey")),
        ("public", "2024", ("com.acme", "_x32_024", "_x32_024Key")),
        ("public", "__", ("com.acme", "__", "__Key")),
    ],
)
def test_records_named_after_tables(namespace: str, table: str, names: tuple[str, str, str]) -> None:
    assert record_names(_table(namespace, table), "com.acme") == names
    schema, value, key = record_names(_table(namespace, table))
    assert (unescape(schema), value, key) == (f"{namespace}.{table}", "Value", "Key")


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        (("public", "a_b"), ("public", "A_B"), "n.AB"),
        (("public", "ab"), ("public", "a_b"), "n.AB"),
        (("public", "orders"), ("public", "orders_key"), "n.OrdersKey"),
        (("public", "orders_key"), ("public", "orders"), "n.OrdersKey"),
        (("public", "a_b"), ("sales", "a_b"), None),
        (("public", "a_b"), ("public", "a_b"), None),
    ],
)
def test_records_that_would_share_a_name(
    first: tuple[str, str], second: tuple[str, str], shared: str | None
) -> None:
    owners = RecordOwners("n")
    assert owners.claim(_table(*first)) is None
    told = None if shared is None else (".".join(first), shared)
    assert owners.claim(_table(*second)) == told
    each = RecordOwners("")
    assert each.claim(_table(*first)) is each.claim(_table(*second)) is None
