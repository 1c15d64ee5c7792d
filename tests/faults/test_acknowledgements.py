"""The acknowledgement rule holds in whatever order rows become durable, rows fail and keepalives arrive."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from bwtui.model.delivery import DeliverySpan
from bwtui.relay.state.ack import Acknowledgements
from bwtui.sink.destination import Message
from tests.faults.doubles import FailAfterWrite, HoldResponse, MemorySink, Reject

TOPIC = "topic"
#: No deadline, because a busy machine must not fail the test.
PATIENT = settings(deadline=None, max_examples=500)


@dataclass
class Feed:
    """Reads a made-up stream as the relay does, with batches that end anywhere.

    Call `check` after each step.
    """

    sink: MemorySink
    acks: Acknowledgements = field(default_factory=Acknowledgements)
    span: DeliverySpan = field(default_factory=DeliverySpan)
    lsn: int = 100
    messages: list[Message] = field(default_factory=list)
    #: The end of each transaction read, with the numbers of its rows.
    ended: dict[int, list[int]] = field(default_factory=dict)
    open: list[int] = field(default_factory=list)
    inside: bool = False
    count: int = 0
    highest: int = 0

    def row(self) -> None:
        """Read one row, of the open transaction or of a new one."""
        self.inside = True
        self.lsn += 1
        self.count += 1
        self.open.append(self.count)
        self.messages.append(Message(None, self.count.to_bytes(4, "big"), 0))

    def commit(self) -> None:
        """Read a COMMIT, possibly of a transaction without rows."""
        self.lsn += 2
        self.span.lsn = self.lsn
        self.ended[self.lsn] = self.open
        self.open = []
        self.inside = False

    def flush(self) -> None:
        """Hand the batch over, as `bwtui.relay.rows.batch.OutgoingBatch.flush` does."""
        self.sink.send(TOPIC, self.messages, self.span)
        size = len(self.messages)
        self.messages = []
        if self.span.pending or self.span.failed or self.span.lsn is not None:
            self.span.size = size
            self.acks.seal(self.span)
            self.span = DeliverySpan()

    def keepalive(self, ahead: int) -> None:
        """Read a keepalive after ``ahead`` bytes of WAL that hold nothing for the relay."""
        self.lsn += ahead
        if not self.inside:
            self.flush()
            self.acks.keepalive(self.lsn)

    def check(self) -> None:
        """Check that only durable positions are confirmed, and that they never move back."""
        confirmed = self.acks.advance()
        assert confirmed >= self.highest
        self.highest = confirmed
        durable = {int.from_bytes(message.value or b"") for _, message in self.sink.delivered}
        for end, rows in self.ended.items():
            assert confirmed < end or durable.issuperset(rows)
        assert confirmed <= self.lsn


STEPS = st.lists(
    st.one_of(
        st.sampled_from(["row", "row", "commit", "flush"]),
        st.integers(0, 5),
        st.tuples(st.sampled_from(["release", "refuse"]), st.integers(0, 1_000)),
    ),
    max_size=60,
)


def play(feed: Feed, steps: list[object], *, failures: bool) -> None:
    for step in steps:
        if isinstance(step, int):
            feed.keepalive(step)
        elif isinstance(step, tuple):
            what, at = step
            sink = feed.sink
            assert isinstance(sink, HoldResponse)
            if sink.queued():
                answer = sink.refuse if what == "refuse" and failures else sink.release
                answer(at % sink.queued())
        else:
            getattr(feed, str(step))()
        feed.check()


@PATIENT
@given(STEPS)
def test_never_past_a_row_that_is_not_durable(steps: list[object]) -> None:
    play(Feed(HoldResponse()), steps, failures=True)


@PATIENT
@given(STEPS, st.randoms(use_true_random=False))
def test_the_end_is_reached_when_all_is_durable(steps: list[object], chance: object) -> None:
    sink = HoldResponse()
    feed = Feed(sink)
    play(feed, steps, failures=False)
    feed.commit()
    feed.flush()
    while sink.queued():
        sink.release(chance.randrange(sink.queued()))  # type: ignore[attr-defined]
        feed.check()
    feed.check()
    assert feed.acks.confirmed == feed.lsn
    assert feed.acks.is_idle
    assert feed.acks.bytes_in_flight == 0


@PATIENT
@given(STEPS.filter(lambda steps: not any(isinstance(step, tuple) for step in steps)), st.integers(1, 20))
def test_a_row_that_is_refused_holds_back_its_transaction(steps: list[object], unlucky: int) -> None:
    sink = Reject(lambda message: message.value == unlucky.to_bytes(4, "big"))
    feed = Feed(sink)
    play(feed, steps, failures=False)
    feed.commit()
    feed.flush()
    sink.poll(0)
    feed.check()
    held = [end for end, rows in feed.ended.items() if unlucky in rows]
    assert feed.acks.confirmed < min(held, default=feed.lsn + 1)
    assert any(span.failed for span in feed.acks._spans) == bool(held)
    assert [failure.is_outage for failure in sink.take_failures()] == [False] * len(held)


@PATIENT
@given(STEPS.filter(lambda steps: not any(isinstance(step, tuple) for step in steps)), st.integers(1, 5))
def test_a_lost_acknowledgement_counts_as_not_durable(steps: list[object], lost: int) -> None:
    sink = FailAfterWrite(lost)
    feed = Feed(sink)
    play(feed, steps, failures=False)
    feed.row()
    feed.commit()
    feed.flush()
    sink.poll(0)
    feed.check()
    first = next(end for end, rows in feed.ended.items() if rows)
    assert feed.acks.confirmed < first
    assert all(failure.is_outage for failure in sink.take_failures())
    # The row was written all the same, so reading it again duplicates it.
    assert len(sink.delivered) == feed.count


def test_a_keepalive_behind_an_open_span_waits_for_it() -> None:
    sink = HoldResponse()
    feed = Feed(sink)
    feed.row()
    feed.commit()
    feed.keepalive(50)
    feed.check()
    assert feed.acks.confirmed == 0
    sink.release(0)
    feed.check()
    assert feed.acks.confirmed == feed.lsn


def test_a_keepalive_inside_a_transaction_confirms_nothing() -> None:
    feed = Feed(HoldResponse())
    feed.row()
    feed.flush()
    feed.keepalive(1_000)
    feed.check()
    assert feed.acks.confirmed == 0
