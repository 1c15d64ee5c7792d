"""The oracle on real services: equal if it is, and the right numbers for all planted differences."""

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from psycopg2.extensions import connection as Connection

from bwtui.demo import reset, shop
from bwtui.demo.shop import TABLES, DemoTable, ShopSize
from bwtui.errors import Indeterminate
from bwtui.sandbox import ports
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.demo_publisher import Publisher
from tests.oracle import IndependentReader, OracleComparison, OracleTable, compare

pytestmark = pytest.mark.services

CUSTOMERS, PRODUCTS, ORDERS, ITEMS, AUDIT, STOCK = TABLES
SIZE = ShopSize(customers=40, products=20, orders=60, audit=30)


@dataclass
class Published:
    """A shop whose topics equal its tables."""

    connection: Connection
    publisher: Publisher
    services: ServiceAddresses

    def run(self, statement: str) -> None:
        with self.connection, self.connection.cursor() as cursor:
            cursor.execute(statement)

    def compare(self) -> OracleComparison:
        self.publisher.flush()
        self.connection.reset()
        with contextlib.closing(
            IndependentReader(self.services.broker, self.services.schema_registry)
        ) as reader:
            return compare(self.connection, reader, TABLES, self.publisher.prefix)

    def differing(self) -> dict[str, OracleTable]:
        """Compare, and return the tables that differ."""
        comparison = self.compare()
        assert comparison.outcome == "different"
        return {table.table: table for table in comparison.tables if not table.equal}

    def one(self, table: DemoTable, where: str) -> dict[str, object]:
        self.connection.reset()
        return self.publisher.rows(self.connection, table, where)[0]


@pytest.fixture
def published(services: ServiceAddresses, database: str) -> Iterator[Published]:
    prefix = f"compare-{uuid.uuid4().hex[:8]}"
    reset.reset_topics(services.broker, prefix, [table.topic(prefix) for table in TABLES])
    publisher = Publisher(services.broker, services.schema_registry, prefix)
    with contextlib.closing(shop.connect(database)) as connection, contextlib.closing(publisher):
        shop.create(connection, size=SIZE)
        publisher.publish(connection, TABLES)
        yield Published(connection, publisher, services)
    reset.reset_topics(services.broker, prefix, [])


def test_equal(published: Published) -> None:
    comparison = published.compare()
    assert comparison.outcome == "equal"
    orders = next(table for table in comparison.tables if table.table == "public.orders")
    assert (orders.rows, orders.keys, orders.messages) == (60, 60, 60)
    audit = next(table for table in comparison.tables if table.table == "public.audit")
    assert (audit.rows, audit.keys, audit.messages) == (30, None, 30)


def test_a_tombstone_too_many_is_a_missing_row(published: Published) -> None:
    published.publisher.send_tombstone(STOCK, published.one(STOCK, "product_id = 3"))
    found = published.differing()
    assert found.keys() == {"warehouse.stock"}
    stock = found["warehouse.stock"]
    assert (stock.missing, stock.extra, stock.different) == (1, 0, 0)
    assert (stock.keys, stock.messages) == (stock.rows - 1, stock.rows + 1)


def test_a_row_that_was_never_sent_is_missing(published: Published) -> None:
    published.run(
        "insert into orders select 1000 + id, customer_id, reference, status, total, note, gift, "
        "placed_at, deliver_at from orders where id <= 3"
    )
    orders = published.differing()["public.orders"]
    assert (orders.missing, orders.extra, orders.different) == (3, 0, 0)


def test_a_lost_tombstone_is_an_extra_row(published: Published) -> None:
    published.run("delete from order_items where order_id = 7 and line = 1")
    items = published.differing()["public.order_items"]
    assert (items.missing, items.extra, items.different) == (0, 1, 0)


def test_a_lost_update_is_a_different_row_and_its_columns_are_named(published: Published) -> None:
    published.run("update customers set balance = balance * 0 - 0.5, vip = not vip where id in (5, 6)")
    customers = published.differing()["public.customers"]
    assert (customers.missing, customers.extra, customers.different) == (0, 0, 2)
    assert customers.columns == {"balance": 2, "vip": 2}


def test_a_change_of_any_type_is_seen(published: Published) -> None:
    changes = [
        (PRODUCTS, "weight", "coalesce(weight, 0) + 0.001"),
        (PRODUCTS, "rating", "0.1 + 0.2::float8"),
        (PRODUCTS, "thumbnail", "'\\x00'"),
        (PRODUCTS, "attributes", """'{"a": 1.0}'"""),
        (PRODUCTS, "active", "case when active is null then false end"),
        (ORDERS, "placed_at", "placed_at + interval '1 microsecond'"),
        (ORDERS, "deliver_at", "'2026-01-01 00:00:00.000001'"),
        (ORDERS, "note", "' ' || coalesce(note, '')"),
        (CUSTOMERS, "birthday", "'1999-12-31'"),
        (CUSTOMERS, "public_id", "'00000000-0000-0000-0000-000000000000'"),
    ]
    for number, (table, column, value) in enumerate(changes, 1):
        published.run(f"update {table.full_name} set {column} = {value} where id = {number}")
    found = published.differing()
    assert {name: (table.different, table.columns) for name, table in found.items()} == {
        "public.products": (5, dict.fromkeys(("weight", "rating", "thumbnail", "attributes", "active"), 1)),
        "public.orders": (3, dict.fromkeys(("placed_at", "deliver_at", "note"), 1)),
        "public.customers": (2, dict.fromkeys(("birthday", "public_id"), 1)),
    }


def test_an_unkeyed_table_is_a_multiset(published: Published) -> None:
    row = published.one(AUDIT, "true")
    published.publisher.send(AUDIT, row)
    published.publisher.send(AUDIT, row)
    published.run("insert into audit (at, action) values (now(), 'never sent')")
    audit = published.differing()["public.audit"]
    assert (audit.missing, audit.extra, audit.different) == (1, 2, 0)


def test_a_key_in_a_second_partition_is_seen_though_the_latest_value_is_right(published: Published) -> None:
    row = published.one(ORDERS, "id = 1")
    for partition in range(3):
        published.publisher.send(ORDERS, row, partition=partition)
    orders = published.differing()["public.orders"]
    assert (orders.split_keys, orders.missing, orders.extra, orders.different) == (1, 0, 0, 0)


def test_what_no_reader_can_decode_is_seen(published: Published) -> None:
    topic = CUSTOMERS.topic(published.publisher.prefix)
    published.publisher.producer.produce(topic, b"\0\0\0\0\1not Avro", b"key")
    published.publisher.producer.produce(topic, b"short", None)
    published.publisher.producer.produce(topic, b"\0\x7f\xff\xff\xffunknown schema", b"\0\x7f\xff\xff\xffkey")
    customers = published.differing()["public.customers"]
    assert (customers.unreadable, customers.missing, customers.different) == (3, 0, 0)


def test_a_topic_of_no_table_is_seen(published: Published) -> None:
    stray = f"{published.publisher.prefix}.stray"
    published.publisher.producer.produce(stray, b"value")
    published.publisher.flush()
    assert published.compare().foreign_topics == (stray,)


def test_a_broker_that_is_not_there_decides_nothing(published: Published) -> None:
    nobody = f"127.0.0.1:{ports.choose(['nobody'], {})['nobody']}"
    with (
        contextlib.closing(
            IndependentReader(nobody, published.services.schema_registry, timeout=1)
        ) as reader,
        pytest.raises(Indeterminate),
    ):
        compare(published.connection, reader, TABLES, published.publisher.prefix)


def test_a_registry_that_is_not_there_decides_nothing(published: Published) -> None:
    nobody = f"http://127.0.0.1:{ports.choose(['nobody'], {})['nobody']}"
    with (
        contextlib.closing(IndependentReader(published.services.broker, nobody)) as reader,
        pytest.raises(Indeterminate),
    ):
        compare(published.connection, reader, TABLES, published.publisher.prefix)
