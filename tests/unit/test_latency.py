"""When a batch was received, encoded, produced and acknowledged, and how long ago its rows were committed."""

import struct
import time
from pathlib import Path

from bwtui.model.delivery import Span
from bwtui.pgoutput.frames import POSTGRES_EPOCH_US
from tests.scripted_relay import ScriptedRelay, table

ORDERS, ITEMS = table(1, "orders", ["id", "body"]), table(2, "items", ["id", "body"])


class Relay(ScriptedRelay):
    """A relay whose transactions are committed at given times, in Unix seconds."""

    def begin_at(self, moment: float) -> None:
        """Begin a transaction that was committed then."""
        self._lsn += 10
        self._frame(b"B" + struct.pack(">QqI", self._lsn, round(moment * 1e6) - POSTGRES_EPOCH_US, self._lsn))


def measured(relay: Relay) -> list[tuple[Span, float]]:
    """Relay what was written, and return the spans that were told of, and when."""
    spans: list[tuple[Span, float]] = []
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


def test_nothing_is_told_of_a_batch_without_messages(tmp_path: Path) -> None:
    relay = Relay(tmp_path, record=False)
    relay.begin()
    relay.commit()
    assert measured(relay) == []
