"""The relay's own CPU for one inserted row of seven columns, without PostgreSQL and without Kafka.

``.venv/bin/python -m benchmarks.hot_path [ROWS]``: microseconds of the thread's CPU a row, the best of five
runs.
"""

import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from bwtui.encode.avro import build_encoder
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.pgoutput.messages import Column, Relation
from bwtui.pgoutput.tuples import splitter
from bwtui.relay.routes.route import TableRoute
from bwtui.relay.rows.batch import BATCH_ROWS, OutgoingBatch
from bwtui.relay.rows.run_context import RowOutput, RunContext
from bwtui.relay.rows.samples import Samples
from bwtui.relay.rows.toast import ToastFiller
from bwtui.relay.state.ack import Acknowledgements
from bwtui.relay.state.run_state import RunState, TableCounters
from bwtui.relay.stream.context import RelayContext, RelayServices, SlotHistory
from bwtui.relay.stream.row_handler import BulkRows, RowHandler
from bwtui.settings import RelaySettings
from bwtui.sink.destination import MessageTuple, TopicLimits

COLUMNS = (
    Column("id", 20, -1, True),
    Column("a", 23, -1, False),
    Column("b", 25, -1, False),
    Column("n", 1700, ((10 << 16) | 2) + 4, False),
    Column("t", 1184, -1, False),
    Column("ok", 16, -1, False),
    Column("note", 25, -1, False),
)


class NoSink:
    """Takes every message, and lets it be durable as soon as it is sealed."""

    def send(
        self, topic: str, messages: Sequence[MessageTuple], span: DeliverySpan, receipt: Receipt | None = None
    ) -> None:
        """Accept, and forget."""


def frame(number: int) -> bytes:
    """Return an XLogData frame with the INSERT of one row."""
    fields = (
        b"%d" % number,
        b"%d" % (number % 100),
        b"name %d" % number,
        b"%.2f" % (number / 7),
        b"2026-11-21 08:%02d:%02d.%06d+00" % (number // 60 % 60, number % 60, number),
        b"t" if number % 2 else b"f",
        b"x" * 100,
    )
    row = b"".join(b"t" + struct.pack(">I", len(field)) + field for field in fields)
    return b"w" + bytes(24) + b"I" + struct.pack(">I", 1) + b"N" + struct.pack(">H", len(fields)) + row


def cost(count: int, run: Callable[[], object]) -> float:
    """Return the CPU of ``run`` in microseconds a row."""
    best = float("inf")
    for _ in range(5):
        begin = time.thread_time()
        run()
        best = min(best, time.thread_time() - begin)
    return best / count * 1e6


def latency_cost(report: RunState, count: int = 5_000) -> float:
    """Return the microseconds that measuring a batch costs: noting it, and putting it into histograms."""
    span = DeliverySpan()
    span.received, span.encoded, span.produced, span.parts = 1.0, 1.01, 1.012, [("public.t", 1_000, 900_000)]

    def measure() -> None:
        for number in range(count):
            report.latency.take(span, 1.02 + number / count)
        report.latency.tick(time.monotonic())

    return cost(count, measure)


def transaction_cost(tables: int, count: int = 50_000) -> tuple[float, float]:
    """Return the microseconds that a small transaction costs, in a batch that has rows of so many tables.

    The first is what the relay's thread pays to note it, the second what that of the list does.
    """
    report = RunState()
    batch = OutgoingBatch(cast(Any, NoSink()), Acknowledgements(), report)
    for number in range(tables):
        relation = Relation(number, "public", f"t{number}", "d", COLUMNS)
        route = TableRoute(relation, "t", ("id",), TableCounters(), None, TopicLimits(1 << 26, False))
        # Any but the last one's message is another transaction's.
        route.messages.append((b"k", b"v", 1_800_000_000_000 + number, None))
        batch.routes.append(route)
    noted = batch.transaction
    noted.timestamp = route.messages[0][2]
    noted.ordinal = 1

    def note() -> None:
        for number in range(count):
            noted.commit_lsn = number
            noted.commit()

    def nothing() -> None:
        for _number in range(count):
            noted.commit_lsn = _number

    ticked = 0.0
    for turn in range(count // 4_000):
        for noted.commit_lsn in range(turn * 4_000, turn * 4_000 + 4_000):
            noted.commit()
        begin = time.thread_time()
        report.transaction_log.tick(time.monotonic())
        ticked += time.thread_time() - begin
    return cost(count, note) - cost(count, nothing), ticked / max(count // 4_000, 1) / 4_000 * 1e6


def main() -> None:
    """Measure the steps, and all of them together."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    frames = [frame(number) for number in range(count)]
    relation = Relation(1, "public", "t", "d", COLUMNS)
    bound = build_encoder(relation, ("id",), {}).bind(1, 2)
    split = splitter(len(COLUMNS))
    rows = [split(data, 31) for data in frames]
    report = RunState()
    settings = RelaySettings()
    toast = ToastFiller(settings, cast(Any, None), lambda seconds: None)
    # The parts that neither an insert nor a batch needs are left out.
    nothing: Any = None
    output = RowOutput(nothing, nothing, nothing, Samples())
    services = RelayServices(nothing, nothing, nothing, toast)
    context = RelayContext(RunContext(settings, report, b""), output, services, SlotHistory(nothing))
    sink: Any = NoSink()
    acks = Acknowledgements(measure=report.acknowledged)
    batch = OutgoingBatch(sink, acks, report)
    handled = RowHandler(context, batch)
    route = TableRoute(relation, "t", ("id",), TableCounters(), bound, TopicLimits(1 << 26, False))
    handled.routes[1] = route

    runs = BulkRows(handled, batch, output.samples, output.recorder)

    def relay() -> None:
        arrived = iter(frames)
        while True:
            for data in runs.between(arrived):
                handled.on_insert(data)
                if batch.is_full():
                    break
            if not batch.rows:
                break
            batch.commit(1)
            batch.received = time.monotonic()
            batch.flush()
            acks.advance()
        report.latency.tick(time.monotonic())

    print(f"split             {cost(count, lambda: [split(data, 31) for data in frames]):5.2f} µs a row")
    print(f"encode key, value {cost(count, lambda: [bound.both(row) for row in rows]):5.2f}")
    print(f"all of an insert  {cost(count, relay):5.2f}")
    assert report.messages == route.counters.messages == 5 * count, "every row became a message"
    print(f"of that, latency  {latency_cost(report) / BATCH_ROWS:5.3f}")
    for tables in (1, 4, 20):
        noting, listing = transaction_cost(tables, max(count // 2, 8_000))
        print(f"a transaction, {tables:2} tables in its batch: noted {noting:5.3f}, listed {listing:5.3f}")


if __name__ == "__main__":
    main()
