"""What becomes of several workers' batches, in the order of the batches."""

import random

import pytest

from bwtui.model.delivery import Receipt
from bwtui.relay.snapshot.workers import receipt_order
from bwtui.relay.snapshot.workers.receipt_order import ReceiptOrder


@pytest.fixture
def receipts() -> list[Receipt]:
    return [Receipt(batch, section, 2) for batch in range(7, 27) for section in (0, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_all_are_written_once_and_none_before_an_earlier_one(receipts: list[Receipt], seed: int) -> None:
    written: list[Receipt] = []
    ledger = ReceiptOrder(written.extend)
    chance = random.Random(seed)
    left = list(receipts)
    under_way: list[Receipt] = []
    while left or under_way:
        if left and (not under_way or chance.random() < 0.5):
            ledger.expect([left[0]])
            under_way.append(left.pop(0))
        else:
            ledger.take([under_way.pop(chance.randrange(len(under_way)))])
    assert written == receipts


def test_they_are_written_as_soon_as_they_may_be(receipts: list[Receipt]) -> None:
    written: list[Receipt] = []
    ledger = ReceiptOrder(written.extend)
    ledger.expect(receipts)
    ledger.take(receipts[1:3])
    assert written == []
    ledger.take(receipts[:1])
    assert written == receipts[:3]


def test_no_more_wait_than_there_may(receipts: list[Receipt], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt_order, "_MOST", 9)
    written: list[Receipt] = []
    ledger = ReceiptOrder(written.extend)
    ledger.expect(receipts)
    ledger.take(receipts[1:5])
    assert written == []
    ledger.take(receipts[6:7])
    assert written == [*receipts[1:5], receipts[6]]
    ledger.take(receipts[:1])
    assert written[-1] is receipts[0]
