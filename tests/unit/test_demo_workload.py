"""The workload's rows: repeatable, and of the promised kinds."""

import signal
import subprocess
import sys
from collections import Counter

import pytest

from bwtui.demo.interrupts import Interrupts
from bwtui.demo.rows import ShopRowMaker
from bwtui.demo.shop import TABLES
from bwtui.demo.workload import ACTIONS, ShopKeys, WorkloadCounts, cancel_orders, choose, close_account
from bwtui.errors import Interrupted


def rows(seed: int) -> list[tuple[object, ...]]:
    make = ShopRowMaker(seed)
    return [
        row
        for number in range(200)
        for row in (
            make.customer(),
            make.product(),
            make.order(number),
            make.item(number, 1, 2),
            make.audit(number),
            make.stock(number, "Hamburg"),
        )
    ]


def test_the_same_seed_makes_the_same_rows() -> None:
    assert rows(7) == rows(7)
    assert rows(7) != rows(8)


def test_the_rows_hold_what_breaks_careless_relays() -> None:
    values = Counter(value for row in rows(1) for value in row if isinstance(value, str | int | None))
    for value in (None, "", "NULL", "\\N", "two\nlines\r\n", -(2**63), 2**63 - 1, "-0.0", "5e-324"):
        assert values[value] > 0, value


def test_topics_leave_public_out() -> None:
    topics = {table.full_name: table.topic("shop") for table in TABLES}
    assert topics["public.customers"] == "shop.customers"
    assert topics["warehouse.stock"] == "shop.warehouse.stock"
    assert TABLES[0].topic("") == "customers"


def test_the_shop_does_not_grow_without_bound() -> None:
    draw, full = ShopRowMaker(1).random, ShopKeys(list(range(10_001)), list(range(20_001)), [1])
    drawn = {choose(draw, full).__name__ for _ in range(500)}
    assert "place_order" not in drawn
    assert "sign_up" not in drawn
    assert {cancel_orders.__name__, close_account.__name__} <= drawn
    assert sum(ACTIONS.values()) == 100


def test_counts_are_grouped_by_table() -> None:
    counts = WorkloadCounts(committed=1)
    counts.rows["public.orders", "inserts"] += 2
    counts.rows["public.orders", "deletes"] += 1
    data = counts.to_json()
    assert data["rows"] == 3
    assert data["tables"] == {"public.orders": {"deletes": 1, "inserts": 2}}


def test_a_signal_interrupts_at_once_outside_a_shield_and_after_it_inside() -> None:
    with Interrupts() as interrupts, pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGTERM)
    steps = []
    with Interrupts() as interrupts, pytest.raises(Interrupted):
        with interrupts.shielded():
            signal.raise_signal(signal.SIGINT)
            steps.append("started and noted")
        steps.append("never")
    assert steps == ["started and noted"]


def test_nothing_interrupts_the_clean_up() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        interrupts.hold()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_is_diverted_and_the_exception_follows() -> None:
    steps: list[str] = []
    with (
        Interrupts() as interrupts,
        pytest.raises(Interrupted),
        interrupts.diverted(lambda: steps.append("leave"), lambda: steps.append("hang up")),
    ):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGHUP)
        steps.append("the screens end by themselves")
    assert steps == ["leave", "hang up", "the screens end by themselves"]
    with Interrupts() as interrupts, interrupts.diverted(lambda: None, lambda: None):
        pass


def test_the_workload_says_why_it_could_not_start() -> None:
    # No process listens on port 1 of the loopback interface.
    settings = '{"dsn": "host=127.0.0.1 port=1 dbname=shop", "rate": 10, "seed": 1, "relay": "none"}\n'
    ended = subprocess.run(
        [sys.executable, "-m", "bwtui.demo.workload"],
        input=settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 4
    assert "can't connect to PostgreSQL" in ended.stderr
