"""The acknowledgement rule while recording: only changes on the disk are confirmed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bwtui.errors import StateFailed
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.recording.journal import SegmentWriter
from bwtui.relay.state.ack import Acknowledgements
from tests.faults.doubles import HoldResponse
from tests.faults.test_acknowledgements import Feed
from tests.recorded_stream import Stream, table
from tests.waiting import eventually

PATIENT = settings(deadline=None, max_examples=200)
TABLE = table(1, "a")


class SlowLedger:
    """A recording that becomes durable when `sync` says so; it notes its contents at that time."""

    def __init__(self) -> None:
        self.durable_lsn = 0
        self.frames: set[int] = set()
        self.settled_rows: set[int] = set()
        #: Both sets at the start of the last completed sync.
        self.durable: tuple[set[int], set[int]] = (set(), set())
        self._rows: dict[int, list[int]] = {}
        self._asked: tuple[int, set[int], set[int]] | None = None

    def write(self, batch: int, rows: list[int]) -> Receipt:
        """Take the frames of a batch."""
        self._rows[batch] = rows
        self.frames |= set(rows)
        return Receipt(batch, 0, len(rows))

    def take_settled(self, receipts: list[Receipt]) -> None:
        for receipt in receipts:
            self.settled_rows |= set(self._rows.pop(receipt.batch))

    def take_unsettled(self, receipts: list[Receipt]) -> None:
        self.take_settled(receipts)

    def reach(self, lsn: int) -> None:
        if self._asked is None and lsn > self.durable_lsn:
            self._asked = lsn, set(self.frames), set(self.settled_rows)

    def sync(self) -> None:
        """Complete the pending sync, if there is one."""
        if self._asked is not None:
            self.durable_lsn, *rest = self._asked
            self.durable = rest[0], rest[1]
            self._asked = None


@dataclass
class RecordedFeed(Feed):
    """The feed, with a ledger in front of the sink."""

    ledger: SlowLedger = field(default_factory=SlowLedger)
    batch: int = 0

    def __post_init__(self) -> None:
        self.acks = Acknowledgements(0, self.ledger)

    def flush(self) -> None:
        if self.messages:
            self.batch += 1
            rows = [int.from_bytes(message.value or b"") for message in self.messages]
            self.span.receipts.append(self.ledger.write(self.batch, rows))
        super().flush()

    def sync(self) -> None:
        """Complete the disk's pending write."""
        self.ledger.sync()

    def check(self) -> None:
        super().check()
        frames, settled = self.ledger.durable
        assert self.acks.confirmed <= self.ledger.durable_lsn
        for end, rows in self.ended.items():
            if end <= self.acks.confirmed:
                assert frames.issuperset(rows)
                assert settled.issuperset(rows)


STEPS = st.lists(
    st.one_of(
        st.sampled_from(["row", "row", "commit", "flush", "sync"]),
        st.integers(0, 5),
        st.tuples(st.sampled_from(["release", "release", "refuse"]), st.integers(0, 1_000)),
    ),
    max_size=60,
)


def play(feed: RecordedFeed, sink: HoldResponse, steps: list[object], *, failures: bool) -> None:
    for step in steps:
        if isinstance(step, int):
            feed.keepalive(step)
        elif isinstance(step, tuple):
            if sink.queued():
                refuse = step[0] == "refuse" and failures
                (sink.refuse if refuse else sink.release)(step[1] % sink.queued())
        else:
            getattr(feed, str(step))()
        feed.check()


@PATIENT
@given(STEPS)
def test_never_past_what_is_not_on_the_disk(steps: list[object]) -> None:
    sink = HoldResponse()
    play(RecordedFeed(sink), sink, steps, failures=True)


@PATIENT
@given(STEPS)
def test_a_disk_that_never_answers_confirms_nothing(steps: list[object]) -> None:
    sink = HoldResponse()
    feed = RecordedFeed(sink)
    play(feed, sink, [step for step in steps if step != "sync"], failures=True)
    assert feed.acks.confirmed == 0


@PATIENT
@given(STEPS)
def test_the_end_is_reached_when_all_is_on_the_disk(steps: list[object]) -> None:
    sink = HoldResponse()
    feed = RecordedFeed(sink)
    play(feed, sink, steps, failures=False)
    feed.commit()
    feed.flush()
    while sink.queued():
        sink.release(0)
        feed.check()
    for _ in range(3):
        feed.sync()
        feed.check()
    assert feed.acks.confirmed == feed.lsn
    assert feed.acks.is_idle


@dataclass
class HeldDisk:
    """Holds every sync until it is released; `failing` makes it end with an error."""

    free: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    failing: bool = False


@contextmanager
def held_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldDisk]:
    disk, real = HeldDisk(), SegmentWriter.sync

    def sync(writer: SegmentWriter) -> None:
        disk.begun.set()
        assert disk.free.wait(60)
        if disk.failing:
            raise OSError(5, "Input/output error")
        real(writer)

    monkeypatch.setattr(SegmentWriter, "sync", sync)
    try:
        yield disk
    finally:
        disk.free.set()


def one_transaction(stream: Stream, acks: Acknowledgements) -> int:
    """Record a transaction that the sink has made durable; return the transaction's end."""
    stream.begin_pass()
    stream.change("insert", TABLE, 1, b"body")
    stream.commit()
    span = DeliverySpan()
    span.lsn = end = stream.lsn + 5
    stream.flush()
    span.receipts = stream._sent.pop()
    acks.seal(span)
    return end


def test_the_journal_confirms_when_its_sync_has_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_disk(monkeypatch) as disk:
        stream = Stream(tmp_path / "recording")
        acks = Acknowledgements(0, stream.recorder)
        end = one_transaction(stream, acks)
        assert acks.advance() == 0
        assert disk.begun.wait(60)
        # Whatever happens meanwhile, and however often it polls.
        for _ in range(3):
            stream.settle()
            assert acks.advance() == 0
        assert acks.waits_for_ledger
        assert acks.delivered == end
        disk.free.set()
        eventually("the sync", lambda: acks.advance() == end)
        assert acks.is_idle
        stream.recorder.close()


@pytest.mark.parametrize("policy", ["stop", "stop-recording"])
def test_a_sync_that_fails_confirms_nothing_before_it_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    with held_disk(monkeypatch) as disk:
        disk.failing = True
        stream = Stream(tmp_path / "recording", {"on_record_error": policy})
        acks = Acknowledgements(0, stream.recorder)
        end = one_transaction(stream, acks)
        assert acks.advance() == 0
        disk.free.set()
        eventually("the failure", lambda: stream.recorder.status().state == "failed")
        assert acks.advance() == 0
        if policy == "stop":
            with pytest.raises(StateFailed, match="can't be written: Input/output error"):
                stream.settle()
            assert acks.advance() == 0
        else:
            stream.settle()
            kinds = [error.kind for error in stream.report.errors()]
            assert kinds.count("recording") == 1
            assert stream.recorder.status().state == "stopped"
            assert acks.advance() == end
        disk.failing = False
        stream.recorder.close()
