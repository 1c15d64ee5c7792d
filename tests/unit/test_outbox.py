"""While librdkafka does not answer, it gets only the first few batches."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from bwtui.model.delivery import DeliverySpan
from bwtui.sink.delivery import HANDOVER_BYTES, HANDOVER_ROWS, HANDOVERS, Outbox, OutboxEntry
from bwtui.sink.destination import Message


class Client:
    """Takes messages from an outbox, and answers on request."""

    def __init__(self) -> None:
        self.outbox = Outbox(lambda: len(self.unanswered))
        self.unanswered: deque[int] = deque()
        self.taken: list[int] = []
        self._next = 0

    def send(self, rows: int, span: DeliverySpan | None = None, size: int = 0) -> None:
        """Send a batch of ``rows`` numbered messages."""
        span = span or DeliverySpan()
        span.size = size
        batch = [Message(None, None, self._next + n) for n in range(rows)]
        self._next += rows
        if self.outbox.may_go(span, rows):
            self._take(batch)
        else:
            self.outbox.put(OutboxEntry("topic", batch, span, None))

    def answer(self, count: int) -> None:
        """Answer the oldest ``count`` messages, and release others."""
        for _ in range(min(count, len(self.unanswered))):
            self.unanswered.popleft()
        self.pump()

    def pump(self) -> None:
        """Release the messages that may be sent."""
        for entry in self.outbox.take():
            self._take(list(entry.messages))  # type: ignore[arg-type]

    def _take(self, batch: list[Message]) -> None:
        self.taken += [message.timestamp for message in batch]
        self.unanswered += [message.timestamp for message in batch]


def test_while_nothing_is_answered_only_the_first_batches_go() -> None:
    client = Client()
    for _ in range(1_000):
        client.send(3)
        client.pump()
    assert len(client.taken) == 3 * HANDOVERS
    assert len(client.outbox) == 3_000 - 3 * HANDOVERS


def test_what_waits_goes_together_after_an_answer() -> None:
    client = Client()
    for _ in range(1_000):
        client.send(3)
    client.answer(3)
    assert len(client.outbox) == 0
    assert len(client.taken) == 3_000


def test_a_handover_is_bounded_in_rows_and_bytes() -> None:
    for rows, size, per_handover in ((1_000, 1, HANDOVER_ROWS), (1, HANDOVER_BYTES // 2, 2)):
        client = Client()
        for _ in range(100):
            client.send(rows, size=size)
        before = len(client.taken)
        client.answer(rows)
        assert len(client.taken) == before + per_handover


def test_a_batch_for_many_topics_is_one_handover() -> None:
    client, span = Client(), DeliverySpan()
    for _ in range(50):
        client.send(1, span)
    assert len(client.taken) == 50


@given(st.lists(st.one_of(st.integers(1, 2_000), st.integers(-3_000, 0)), max_size=60))
def test_everything_goes_once_and_in_order(steps: list[int]) -> None:
    client = Client()
    for step in steps:
        if step > 0:
            client.send(step)
        else:
            client.answer(-step)
    while client.unanswered:
        client.answer(len(client.unanswered))
    assert len(client.outbox) == 0
    assert client.taken == list(range(len(client.taken)))
    assert len(client.taken) == sum(step for step in steps if step > 0)
