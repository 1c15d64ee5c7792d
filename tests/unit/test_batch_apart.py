"""Batches that are not full follow each other with a delay; a single batch is sent immediately."""

from array import array
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bwtui.model.delivery import DeliverySpan
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows import batch as batches
from bwtui.relay.rows.batch import BATCH_ROWS, OutgoingBatch
from bwtui.relay.state.ack import Acknowledgements
from bwtui.relay.state.run_state import RunState, TableCounters
from bwtui.sink.destination import Sink


class _NoSink:
    def send(self, topic: str, messages: Any, span: DeliverySpan, receipt: Any = None) -> None:
        """Accept the messages and drop them."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(seconds=100.0)

    def sleep(seconds: float) -> None:
        now.seconds += seconds

    def seconds() -> float:
        return float(now.seconds)

    monkeypatch.setattr(batches, "time", SimpleNamespace(monotonic=seconds, time=seconds, sleep=sleep))
    return now


@pytest.fixture
def batch(clock: SimpleNamespace) -> OutgoingBatch:
    return OutgoingBatch(cast(Sink, _NoSink()), Acknowledgements(0, None), RunState(), None)


@pytest.fixture
def route() -> TableRoute:
    made: Any = SimpleNamespace(messages=[], positions=array("I"), bytes=0, topic="t")
    made.max_message_bytes = 1 << 20
    made.counters, made.relation = TableCounters(), SimpleNamespace(qualified_name="public.t")
    return cast(TableRoute, made)


def _add(batch: OutgoingBatch, route: TableRoute, rows: int = 1) -> None:
    for _ in range(rows):
        batch.rows += 1
        batch.add(route, b"k", b"v", 0, None)


def test_the_first_waits_for_nobody(batch: OutgoingBatch, route: TableRoute, clock: SimpleNamespace) -> None:
    assert batch.too_soon == 0
    _add(batch, route)
    assert batch.too_soon == 0
    batch.flush()
    clock.seconds += 0.0033
    _add(batch, route)
    assert batch.too_soon == 0


def test_what_follows_closely_waits_for_the_rest_of_two_milliseconds(
    batch: OutgoingBatch, route: TableRoute, clock: SimpleNamespace
) -> None:
    _add(batch, route)
    batch.flush()
    clock.seconds += 0.0005
    assert batch.too_soon == 0
    _add(batch, route)
    assert batch.too_soon == pytest.approx(0.0015)
    _add(batch, route, BATCH_ROWS)
    assert batch.too_soon == 0


def test_one_that_is_sent_with_care_waits_for_nothing_else(batch: OutgoingBatch, route: TableRoute) -> None:
    _add(batch, route)
    batch.flush()
    _add(batch, route)
    batch.bisector = cast(Any, object())
    assert batch.too_soon == 0


def test_what_comes_meanwhile_is_in_the_batch(
    batch: OutgoingBatch, route: TableRoute, clock: SimpleNamespace
) -> None:
    """A batch that has to end at a commit by that time is left as it is."""
    ends = [False, True, False, False]
    _add(batch, route)
    batch.flush()

    def read() -> bool:
        _add(batch, route)
        batch.received = clock.seconds
        return True

    _add(batch, route)
    batch.received = began = clock.seconds
    batch.gather(read, lambda: ends.pop(0))
    assert batch.rows == 1
    batch._handed_over_at = clock.seconds
    batch.gather(read, lambda: ends.pop(0))
    assert (batch.rows, batch.received) == (2, began)
