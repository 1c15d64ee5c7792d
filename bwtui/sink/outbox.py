"""Batches that wait in the relay, where they can be held back, and not in librdkafka's queue.

librdkafka sends its messages as soon as it can, in threads of its own: after a suspension, before anything
can purge them (docs/adr/0010-queue-messages-in-the-relay.md). So it gets little more than it sends at once.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.sink.base import MessageTuple

#: Maximum number of unanswered handovers: as many requests as librdkafka has in flight to one broker.
HANDOVERS = 5
#: Limits of one handover of waiting messages; its last batch is taken whole.
HANDOVER_ROWS = 10_000
HANDOVER_BYTES = 4 << 20


class OutboxEntry(NamedTuple):
    """Messages of one batch for one topic; see `bwtui.sink.base.Sink.send`."""

    topic: str
    messages: Sequence[MessageTuple]
    span: DeliverySpan
    receipt: Receipt | None


class Outbox:
    """Releases batches in the order of arrival, a few handovers at a time."""

    def __init__(self, unanswered: Callable[[], int]) -> None:
        """Take ``unanswered``, which counts the messages that were handed over and have no report yet."""
        self._unanswered = unanswered
        self._waiting: deque[OutboxEntry] = deque()
        self._rows = 0
        self._sent = 0
        #: For each unanswered handover, the number of messages sent up to its end.
        self._handed: deque[int] = deque()
        self._last: DeliverySpan | None = None

    def __len__(self) -> int:
        """Return the number of waiting messages."""
        return self._rows

    def may_go(self, span: DeliverySpan, count: int) -> bool:
        """Return whether ``count`` messages of ``span`` may be sent now, and if so count them as handed
        over.
        """
        if self._waiting:
            return False
        # A batch is one handover, however many topics it is for.
        is_new = span is not self._last
        if is_new and not self._has_turn():
            return False
        self._hand_over(span, count, is_new=is_new)
        return True

    def put(self, entry: OutboxEntry) -> None:
        """Let ``entry`` wait for its turn."""
        self._waiting.append(entry)
        self._rows += len(entry.messages)

    def take(self) -> Iterator[OutboxEntry]:
        """Yield the entries whose turn has come; they count as handed over."""
        waiting = self._waiting
        while waiting and self._has_turn():
            rows = size = 0
            is_new = True
            while waiting and rows < HANDOVER_ROWS and size < HANDOVER_BYTES:
                entry = waiting.popleft()
                count = len(entry.messages)
                size += entry.span.size if entry.span is not self._last else 0
                rows += count
                self._rows -= count
                self._hand_over(entry.span, count, is_new=is_new)
                is_new = False
                yield entry

    def clear(self) -> None:
        """Drop everything that waits."""
        self._waiting.clear()
        self._rows = 0

    def _has_turn(self) -> bool:
        handed = self._handed
        if handed:
            answered = self._sent - self._unanswered()
            while handed and handed[0] <= answered:
                handed.popleft()
        return len(handed) < HANDOVERS

    def _hand_over(self, span: DeliverySpan, count: int, *, is_new: bool) -> None:
        self._last = span
        self._sent += count
        if is_new or not self._handed:
            self._handed.append(self._sent)
        else:
            self._handed[-1] = self._sent
