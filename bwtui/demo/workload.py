"""The demo's workload: transactions at a constant rate, some rolled back, until it is stopped.

``python -m bwtui.demo.workload`` is a separate process, so that it takes no time from the relay or the UI. It
reads its settings as one JSON line from stdin, and writes its counts as one JSON line per second to stdout,
and a last one with ``"done": true``. It stops on SIGTERM, and when its stdin ends: so it never outlives the
demo, even if that was killed; then it also asks the demo's relay to stop, because nothing else would.
"""

import contextlib
import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values

from bwtui.console import say, say_json
from bwtui.demo import shop
from bwtui.demo.rows import SITES, STATUSES, Row, ShopRowMaker
from bwtui.errors import BwtuiError
from bwtui.relay.process.control import request

# The transactions of the shop.

#: Rows by (table, operation); the operation is "inserts", "updates" or "deletes".
Rows = Counter[tuple[str, str]]


@dataclass(slots=True)
class ShopKeys:
    """The existing keys, as of the last commit."""

    customers: list[int]
    orders: list[int]
    products: list[int]

    @classmethod
    def load(cls, connection: Connection) -> "ShopKeys":
        """Read the keys from the database, in a repeatable order."""
        with connection, connection.cursor() as cursor:
            return cls(*(_ids(cursor, table) for table in ("customers", "orders", "products")))


def _ids(cursor: Cursor, table: str) -> list[int]:
    cursor.execute(f"select id from public.{table} order by id")
    return [row[0] for row in cursor.fetchall()]


@dataclass(slots=True)
class ShopTransaction:
    """One open transaction: runs statements and records their effects."""

    cursor: Cursor
    make: ShopRowMaker
    memory: ShopKeys
    rows: Rows = field(default_factory=Counter)
    #: Changes to the memory, applied in order after the transaction has committed.
    on_commit: list[Callable[[ShopKeys], None]] = field(default_factory=list)

    @property
    def draw(self) -> random.Random:
        """The only source of randomness."""
        return self.make.random

    def insert(self, target: str, values: Sequence[Row]) -> None:
        """Insert rows; ``target`` is one of the constants in `shop`."""
        execute_values(self.cursor, f"insert into {target} values %s", values)
        self._count(target.split(" ")[0], "inserts", len(values))

    def insert_one(self, target: str, values: Row) -> int:
        """Insert a row with an identity column; return its id."""
        execute_values(self.cursor, f"insert into {target} values %s returning id", [values])
        self._count(target.split(" ")[0], "inserts", 1)
        return int(self._fetch()[0][0])

    def update(self, table: str, change: str, parameters: Sequence[Any] | Mapping[str, Any]) -> int:
        """Run ``update table change``; return how many rows it changed."""
        self.cursor.execute(f"update {table} {change}", parameters)
        return self._count(table, "updates", self.cursor.rowcount)

    def delete(self, table: str, where: str, parameters: Sequence[Any]) -> list[Row]:
        """Run ``delete from table where``; return the deleted rows."""
        self.cursor.execute(f"delete from {table} where {where} returning *", parameters)
        deleted = self._fetch()
        self._count(table, "deletes", len(deleted))
        return deleted

    def _fetch(self) -> list[Row]:
        return self.cursor.fetchall()

    def _count(self, table: str, operation: str, rows: int) -> int:
        self.rows[table, operation] += rows
        return rows


def place_order(session: ShopTransaction) -> None:
    """Place an order of one to five products; stock goes down, and the audit has an entry."""
    make, draw = session.make, session.draw
    customer = draw.choice(session.memory.customers)
    order = session.insert_one(shop.ORDERS, make.order(customer))
    products = draw.sample(session.memory.products, draw.randint(1, 5))
    session.insert(shop.ITEMS, [make.item(order, line, id) for line, id in enumerate(products, 1)])
    # Quantities may be at either end of bigint, so they are set, not decremented.
    session.update(
        "warehouse.stock",
        "set quantity = %s, updated_at = %s where product_id = %s",
        [make.quantity(), make.now().replace(tzinfo=None), products[0]],
    )
    session.insert(shop.AUDIT, [make.audit(order)])
    session.on_commit.append(lambda memory: memory.orders.append(order))


def edit_order(session: ShopTransaction) -> None:
    """Advance an order's status, and correct its items."""
    make, order = session.make, session.draw.choice(session.memory.orders)
    session.update(
        "public.orders",
        "set status = %s, note = %s, total = %s, gift = not gift where id = %s",
        [session.draw.choice(STATUSES), make.text(), make.money(1, 900), order],
    )
    session.update(
        "public.order_items",
        "set quantity = %s, discount = %s, comment = %s where order_id = %s",
        [session.draw.randint(-3, 30), make.double(), make.text(), order],
    )


def cancel_orders(session: ShopTransaction) -> None:
    """Delete up to three orders with their items."""
    cancelled = session.draw.sample(session.memory.orders, session.draw.randint(1, 3))
    for order in cancelled:
        session.delete("public.order_items", "order_id = %s", [order])
        session.delete("public.orders", "id = %s", [order])

    def forget(memory: ShopKeys) -> None:
        for order in cancelled:
            memory.orders.remove(order)

    session.on_commit.append(forget)
    session.insert(shop.AUDIT, [session.make.audit(None), session.make.audit(-1)])


def sign_up(session: ShopTransaction) -> None:
    """Add new customers, and update one in the same transaction."""
    ids = [session.insert_one(shop.CUSTOMERS, session.make.customer()) for _ in range(2)]
    session.update("public.customers", "set vip = true, nickname = '' where id = %s", [ids[0]])
    session.on_commit.append(lambda memory: memory.customers.extend(ids))


def edit_customer(session: ShopTransaction) -> None:
    """Update everything that a customer's profile page shows."""
    row = session.make.customer()
    session.update(
        "public.customers",
        "set (email, name, nickname, birthday, balance, vip, settings) = (%s, %s, %s, %s, %s, %s, %s)"
        " where id = %s",
        [*row[:7], session.draw.choice(session.memory.customers)],
    )
    # An update without a difference is still a change.
    session.update(
        "public.customers", "set name = name where id = %s", [session.draw.choice(session.memory.customers)]
    )


def close_account(session: ShopTransaction) -> None:
    """Delete a customer with all orders and their items."""
    customer = session.draw.choice(session.memory.customers)
    customer_orders = "select id from public.orders where customer_id = %s"
    session.delete("public.order_items", f"order_id in ({customer_orders})", [customer])
    deleted = {row[0] for row in session.delete("public.orders", "customer_id = %s", [customer])}
    session.delete("public.customers", "id = %s", [customer])

    def forget(memory: ShopKeys) -> None:
        memory.customers.remove(customer)
        memory.orders[:] = [order for order in memory.orders if order not in deleted]

    session.on_commit.append(forget)


def renumber_customer(session: ShopTransaction) -> None:
    """Give a customer a new primary key (its own, negated), and update the orders."""
    customer = session.draw.choice(session.memory.customers)
    session.update("public.customers", "set id = -id where id = %s", [customer])
    session.update("public.orders", "set customer_id = -customer_id where customer_id = %s", [customer])

    def rename(memory: ShopKeys) -> None:
        memory.customers[memory.customers.index(customer)] = -customer

    session.on_commit.append(rename)


def renumber_items(session: ShopTransaction) -> None:
    """Give all items of an order new composite primary keys, and revert that half of the time."""
    order = session.draw.choice(session.memory.orders)
    session.update("public.order_items", "set line = line + 1000 where order_id = %s", [order])
    if session.make.chance(0.5):
        session.update("public.order_items", "set line = line - 1000 where order_id = %s", [order])


def replace_item(session: ShopTransaction) -> None:
    """Delete items and insert different ones with the same keys, in one transaction."""
    order = session.draw.choice(session.memory.orders)
    deleted = session.delete("public.order_items", "order_id = %s", [order])
    products = session.memory.products
    new_items = [session.make.item(order, row[1], session.draw.choice(products)) for row in deleted]
    if new_items:
        session.insert(shop.ITEMS, new_items)


def change_prices(session: ShopTransaction) -> None:
    """Change the prices of five to twenty products in one statement."""
    products = session.draw.sample(session.memory.products, session.draw.randint(5, 20))
    session.update(
        "public.products",
        "set price = %s, rating = %s, weight = %s, attributes = %s where id = any(%s)",
        [
            session.make.money(0, 2_000),
            session.make.double(),
            session.make.single(),
            session.make.document(),
            products,
        ],
    )


def move_stock(session: ShopTransaction) -> None:
    """Move stock to a different site, which is part of its primary key, and recount another shelf."""
    product, site = session.draw.choice(session.memory.products), session.draw.choice(SITES)
    session.update(
        "warehouse.stock",
        "set site = %(to)s where product_id = %(id)s and site = ("
        "select min(site) from warehouse.stock where product_id = %(id)s)"
        " and not exists (select from warehouse.stock where product_id = %(id)s and site = %(to)s)",
        {"to": site, "id": product},
    )
    deleted = session.delete("warehouse.stock", "product_id = %s and site = %s", [product + 1, site])
    if deleted:
        session.insert(shop.STOCK, [session.make.stock(product + 1, site)])


#: Actions and their share among a hundred transactions.
ACTIONS: dict[Callable[[ShopTransaction], None], int] = {
    place_order: 36,
    edit_order: 22,
    cancel_orders: 8,
    sign_up: 5,
    edit_customer: 12,
    close_account: 1,
    renumber_customer: 2,
    renumber_items: 3,
    replace_item: 4,
    change_prices: 3,
    move_stock: 4,
}

#: Above these numbers of existing keys, orders and customers are deleted rather than added, so that the shop
#: does not grow without limit over hours.
_MOST_ORDERS, _MOST_CUSTOMERS = 20_000, 10_000


def choose(draw: random.Random, memory: ShopKeys) -> Callable[[ShopTransaction], None]:
    """Choose the next action; a shop that is too large deletes orders and customers instead."""
    action = draw.choices(list(ACTIONS), weights=list(ACTIONS.values()))[0]
    if action is place_order and len(memory.orders) > _MOST_ORDERS:
        return cancel_orders
    if action is sign_up and len(memory.customers) > _MOST_CUSTOMERS:
        return close_account
    return action


#: Fractions of all transactions.
_ROLLED_BACK = 0.03
_WITH_SAVEPOINT = 0.06
_STEPS_OF_LONG_TRANSACTION = 40


@dataclass(slots=True)
class WorkloadCounts:
    """The work done; ``rows`` includes only committed transactions."""

    committed: int = 0
    rolled_back: int = 0
    savepoints_rolled_back: int = 0
    rows: Rows = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, with rows as ``{"schema.table": {"inserts": n, …}}``."""
        tables: dict[str, dict[str, int]] = {}
        for (table, operation), count in sorted(self.rows.items()):
            tables.setdefault(table, {})[operation] = count
        return {
            "committed": self.committed,
            "rolled_back": self.rolled_back,
            "savepoints_rolled_back": self.savepoints_rolled_back,
            "rows": self.rows.total(),
            "tables": tables,
        }


class Workload:
    """Runs transactions on two connections; the same seed on the same shop does the same.

    The second connection has one long transaction that stays open while dozens of others commit, so that the
    stream interleaves; it only inserts into the audit, so it never waits for a lock.
    """

    def __init__(self, dsn: str, seed: int) -> None:
        self.counts = WorkloadCounts()
        self._make = ShopRowMaker(seed)
        self._connection = shop.connect(dsn)
        self._long = _LongTransaction(shop.connect(dsn), self._make, self.counts)
        self._memory = ShopKeys.load(self._connection)

    def run(self, rate: float, stop: threading.Event, report: Callable[[], None]) -> None:
        """Run ``rate`` transactions a second until ``stop`` is set; call ``report`` once a second.

        A workload that is late by a second skips the missed transactions: it never catches up in a burst.
        """
        due = reported = time.monotonic()
        while not stop.is_set():
            self.step()
            due += 1 / rate
            now = time.monotonic()
            if now - reported >= 1:
                report()
                reported = now
            if due > now:
                stop.wait(due - now)
            elif now - due > 1:
                due = now

    def step(self) -> None:
        """Run one transaction, and one step of the long one."""
        self._long.step()
        draw = self._make.random
        action = choose(draw, self._memory)
        rolled_back, with_savepoint = draw.random() < _ROLLED_BACK, draw.random() < _WITH_SAVEPOINT
        with self._connection.cursor() as cursor:
            session = ShopTransaction(cursor, self._make, self._memory)
            if with_savepoint:
                self._try_in_vain(session)
            action(session)
        if rolled_back:
            self._connection.rollback()
            self.counts.rolled_back += 1
            return
        self._connection.commit()
        self.counts.committed += 1
        self.counts.rows += session.rows
        for change in session.on_commit:
            change(self._memory)

    def close(self) -> None:
        """Finish the long transaction and close both connections."""
        self._long.close()
        self._connection.close()

    def _try_in_vain(self, session: ShopTransaction) -> None:
        """Run an action after a savepoint and roll it back; then keep a row of a different subtransaction."""
        session.cursor.execute("savepoint attempt")
        attempt = ShopTransaction(session.cursor, self._make, self._memory)
        choose(session.draw, self._memory)(attempt)
        session.cursor.execute("rollback to savepoint attempt")
        self.counts.savepoints_rolled_back += 1
        session.cursor.execute("savepoint kept")
        session.insert(shop.AUDIT, [self._make.audit(0)])
        session.cursor.execute("release savepoint kept")


class _LongTransaction:
    """A transaction of many small steps, on its own connection."""

    def __init__(self, connection: Connection, make: ShopRowMaker, counts: WorkloadCounts) -> None:
        self._connection, self._make, self._counts = connection, make, counts
        self._steps = 0
        self._rows: Rows = Counter()

    def step(self) -> None:
        """Insert a row, and end the transaction once it is long enough."""
        with self._connection.cursor() as cursor:
            session = ShopTransaction(cursor, self._make, ShopKeys([], [], []), self._rows)
            session.insert(shop.AUDIT, [self._make.audit(self._steps)])
        self._steps += 1
        if self._steps >= _STEPS_OF_LONG_TRANSACTION:
            self._end(keep=not self._make.chance(0.2))

    def close(self) -> None:
        """Commit an open transaction, and close the connection."""
        if self._steps:
            self._end(keep=True)
        self._connection.close()

    def _end(self, keep: bool) -> None:
        if keep:
            self._connection.commit()
            self._counts.committed += 1
            self._counts.rows += self._rows
        else:
            self._connection.rollback()
            self._counts.rolled_back += 1
        self._rows, self._steps = Counter(), 0


def main() -> int:
    """Run the workload with settings from stdin: ``{"dsn": …, "rate": …, "seed": …, "relay": name}``."""
    settings = json.loads(sys.stdin.readline())
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    # Ctrl-C is for the demo, which stops its processes in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    demo = _DemoWatch(stop, settings["relay"])
    try:
        workload = Workload(settings["dsn"], settings["seed"])
        with contextlib.closing(workload):
            workload.run(settings["rate"], stop, lambda: _say(workload.counts, done=False))
        _say(workload.counts, done=True)
    except (BwtuiError, psycopg2.Error, BrokenPipeError) as error:
        # If the demo was killed, its PostgreSQL ends too, and the demo's end of the pipe is closed.
        demo.finish()
        with contextlib.suppress(BrokenPipeError):
            say(f"bwtui: error: the workload stopped: {_reason(error)}", err=True)
        return 4
    demo.finish()
    return 0


class _DemoWatch(threading.Thread):
    """Waits for the end of stdin, which precedes the signal to stop only if the demo was killed."""

    def __init__(self, stop: threading.Event, relay: str) -> None:
        super().__init__(daemon=True)
        self._stop_writes, self._relay = stop, relay
        self._killed = threading.Event()
        self.start()

    def run(self) -> None:
        while sys.stdin.readline():
            pass
        if not self._stop_writes.is_set():
            self._killed.set()
            # The relay first: it can confirm what it sent while Kafka and PostgreSQL are still running.
            with contextlib.suppress(BwtuiError):
                request(self._relay, {"request": "stop"})
            self._stop_writes.set()

    def finish(self) -> None:
        """Wait until the relay was asked to stop, if necessary."""
        if self._killed.is_set():
            self.join(10)


def _say(counts: WorkloadCounts, done: bool) -> None:
    say_json({"done": done, **counts.to_json()})


def _reason(error: Exception) -> str:
    """Return the first line: PostgreSQL includes row values in the DETAIL after it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


if __name__ == "__main__":
    sys.exit(main())
