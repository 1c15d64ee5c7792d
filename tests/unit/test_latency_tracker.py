"""When a batch was received, encoded, produced and acknowledged, and the age of its rows."""

import struct
import time
from collections.abc import Sequence
from pathlib import Path

from bwtui.model.delivery import DeliverySpan
from bwtui.pgoutput.frames import POSTGRES_EPOCH_US
from bwtui.relay.state.latency_tracker import LatencyTracker
from tests.scripted_relay import ScriptedRelay, table

ORDERS, ITEMS = table(1, "orders", ["id", "body"]), table(2, "items", ["id", "body"])


class Relay(ScriptedRelay):
    """A relay whose transactions have the given commit times, in Unix seconds."""

    def begin_at(self, moment: float) -> None:
        """Begin a transaction with this commit time."""
        self._lsn += 10
        self._frame(b"B" + struct.pack(">QqI", self._lsn, round(moment * 1e6) - POSTGRES_EPOCH_US, self._lsn))


def measured(relay: Relay) -> list[tuple[DeliverySpan, float]]:
    """Relay the written transactions; return the measured spans and their times."""
    spans: list[tuple[DeliverySpan, float]] = []
    relay.connect()
    relay.acks._measure = lambda span, now: spans.append((span, now))
    relay.play()
    relay.sink.flush(1)
    relay.acks.advance()
    relay.close()
    return spans


def test_a_span_says_when_its_batch_passed_each_stage(tmp_path: Path) -> None:
    relay, begun, now = Relay(tmp_path, record=False), time.monotonic(), time.time()
    relay.begin_at(now - 5)
    relay.announce(ORDERS)
    relay.insert(ORDERS, [b"1", b"a"])
    relay.commit()
    ((span, acknowledged),) = measured(relay)
    assert begun <= span.received <= span.encoded <= span.produced <= acknowledged <= time.monotonic()
    assert abs(span.clock + span.produced - now) < 5


def test_each_table_of_a_batch_counts_from_its_oldest_commit(tmp_path: Path) -> None:
    relay = Relay(tmp_path, record=False)
    relay.announce(ORDERS)
    relay.announce(ITEMS)
    for moment, relation in ((10.0, ORDERS), (20.0, ORDERS), (30.5, ITEMS), (40.0, ITEMS)):
        relay.begin_at(moment)
        relay.insert(relation, [b"1", b"a"])
        relay.commit()
    spans = measured(relay)
    parts = [part for span, _ in spans for part in span.parts]
    assert ("public.orders", 2, 10_000_000) in parts
    assert sum(count for _, count, _ in parts) == 4
    assert {name: min(at for n, _, at in parts if n == name) for name, _, _ in parts} == {
        "public.orders": 10_000_000,
        "public.items": 30_500_000,
    }


def test_a_batch_without_messages_has_no_latency(tmp_path: Path) -> None:
    relay = Relay(tmp_path, record=False)
    relay.begin()
    relay.commit()
    ((empty, now),) = measured(relay)
    assert empty.lsn == relay.report.received_lsn
    relay.report.acknowledged(empty, now)
    relay.report.latency.tick(now)
    assert relay.report.latency.figures.ever == {}


def span(
    committed: float, *, clock: float = 0.0, parts: Sequence[tuple[str, int]] = (("t", 1),)
) -> DeliverySpan:
    """Return a span with its stages at 100, 101 and 103 s, whose oldest row has the given commit time."""
    made = DeliverySpan()
    made.received, made.encoded, made.produced, made.clock = 100.0, 101.0, 103.0, clock
    made.parts = [(table, messages, round(committed * 1e6)) for table, messages in parts]
    return made


def test_stages_add_up_to_the_whole_way() -> None:
    latency = LatencyTracker()
    latency.take(span(98.0, parts=(("a", 3), ("b", 2))), 107.0)
    latency.tick(200.0)
    found = latency.figures.ever
    assert {stage: (one.count, one.min, one.max) for stage, one in found.items()} == {
        "received": (5, 2.0, 2.0),
        "encoded": (5, 1.0, 1.0),
        "produced": (5, 2.0, 2.0),
        "acknowledged": (5, 4.0, 4.0),
        "total": (5, 9.0, 9.0),
    }
    assert {table: one.count for table, one in latency.figures.tables.items()} == {"a": 3, "b": 2}


def test_the_commit_is_taken_by_the_systems_clock() -> None:
    latency = LatencyTracker()
    latency.take(span(1_000_098.0, clock=1_000_000.0), 107.0)
    latency.tick(200.0)
    assert latency.figures.ever["total"].max == 9.0


def test_a_server_whose_clock_is_ahead_is_told_as_it_is() -> None:
    latency = LatencyTracker()
    latency.take(span(109.0), 107.0)
    latency.tick(200.0)
    assert latency.figures.ever["received"].max == -9.0
    assert latency.figures.ever["total"].p99 == -2.0
    assert latency.figures.ever["acknowledged"].min == 4.0


def test_windows_forget_and_the_whole_run_does_not() -> None:
    latency = LatencyTracker()
    latency.take(span(98.0), 107.0)
    latency.tick(200.0)
    latency.take(span(97.0), 107.0)
    latency.tick(209.0)
    assert latency.figures.second is not None
    assert (latency.figures.second.count, latency.figures.ten_seconds["total"].count) == (1, 2)
    latency.tick(215.0)
    assert latency.figures.second is None
    assert (latency.figures.ten_seconds["total"].count, latency.figures.minute["total"].count) == (1, 2)
    latency.tick(275.0)
    assert latency.figures.ten_seconds == latency.figures.minute == latency.figures.tables == {}
    assert latency.figures.ever["total"].count == 2


def test_what_nobody_works_out_has_a_bound() -> None:
    latency = LatencyTracker()
    for _ in range(20_000):
        latency.take(span(98.0), 107.0)
    latency.tick(200.0)
    assert 0 < latency.figures.ever["total"].count < 20_000
