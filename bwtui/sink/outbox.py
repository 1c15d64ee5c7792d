"""Batches that wait in the relay, where they can be kept back, and not in librdkafka's queue.

What librdkafka has it sends as soon as it can, in threads of its own: after a suspension, before anybody can
purge it (docs/adr/0010-queue-messages-in-the-relay.md). So it is handed little more than it sends at once.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bwtui.model.delivery import Receipt, Span
from bwtui.sink.base import MessageTuple

#: So many handovers may be unanswered: as many requests as librdkafka has under way to one broker.
HANDOVERS = 5
#: What one handover takes together of what waits, and the rest of its last batch.
HANDOVER_ROWS = 10_000
HANDOVER_BYTES = 4 << 20


class Entry(NamedTuple):
    """Messages of one batch for one topic; see `bwtui.sink.base.Sink.send`."""

    topic: str
    messages: Sequence[MessageTuple]
    span: Span
    receipt: Receipt | None


class Outbox:
    """Lets batches go in the order in which they came, a few handovers at a time."""

    def __init__(self, unanswered: Callable[[], int]) -> None:
        """``unanswered`` counts the messages that were handed over and not answered yet."""
        self._unanswered = unanswered
        self._waiting: deque[Entry] = deque()
        self._rows = 0
        self._sent = 0
        #: For each handover that is not answered, how many messages had been sent with it.
        self._handed: deque[int] = deque()
        self._last: Span | None = None

    def __len__(self) -> int:
        """Messages that wait."""
        return self._rows

    def may_go(self, span: Span, count: int) -> bool:
        """Say whether ``count`` messages of ``span`` go at once, and count them as handed over if so."""
        if self._waiting:
            return False
        # A batch is one handover, however many topics it is for.
        is_new = span is not self._last
        if is_new and not self._has_turn():
            return False
        self._hand_over(span, count, is_new=is_new)
        return True

    def put(self, entry: Entry) -> None:
        """Let ``entry`` wait for its turn."""
        self._waiting.append(entry)
        self._rows += len(entry.messages)

    def take(self) -> Iterator[Entry]:
        """Yield what may go by now; it counts as handed over."""
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
        """Forget what waits."""
        self._waiting.clear()
        self._rows = 0

    def _has_turn(self) -> bool:
        handed = self._handed
        if handed:
            answered = self._sent - self._unanswered()
            while handed and handed[0] <= answered:
                handed.popleft()
        return len(handed) < HANDOVERS

    def _hand_over(self, span: Span, count: int, *, is_new: bool) -> None:
        self._last = span
        self._sent += count
        if is_new or not self._handed:
            self._handed.append(self._sent)
        else:
            self._handed[-1] = self._sent
