"""Sinks that imitate a failing broker; each keeps the durable messages in ``delivered``."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bwtui.encode.registry import LocalRegistry
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.sink.destination import (
    DeliveryFailure,
    Destination,
    KeyRecord,
    Limits,
    Message,
    MessageTuple,
    Offsets,
    Purgeable,
    SinkService,
    TopicLimits,
    TopicScanner,
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """An accepted message; ``index`` is its position in ``receipt``."""

    topic: str
    message: Message
    span: DeliverySpan
    receipt: Receipt | None
    index: int


class MemorySink(SinkService, Purgeable, TopicScanner):
    """A sink that makes every message durable at the next poll; see `bwtui.sink.destination.Sink`."""

    name = "memory"

    def __init__(self) -> None:
        self.delivered: list[tuple[str, Message]] = []
        self._waiting: deque[Waiting] = deque()
        self._accepted = 0
        self._failures: list[DeliveryFailure] = []

    def send(
        self, topic: str, messages: Sequence[MessageTuple], span: DeliverySpan, receipt: Receipt | None = None
    ) -> None:
        span.pending += len(messages)
        self._accepted += len(messages)
        self._waiting += (
            Waiting(topic, Message(*message), span, receipt, index) for index, message in enumerate(messages)
        )

    def poll(self, timeout: float) -> None:
        """Deliver all queued messages."""
        while self._waiting:
            self._arrive(self._waiting.popleft())

    def flush(self, timeout: float) -> bool:
        """Deliver all queued messages."""
        self.poll(timeout)
        return not self._waiting

    def take_failures(self) -> list[DeliveryFailure]:
        """Return the failures since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def hold_back(self) -> None:
        """Drop the queued messages; see `discard`."""
        self._waiting.clear()

    def discard(self, *, in_order: bool) -> None:
        """Drop the queued messages without counting them down from their spans."""
        self._waiting.clear()
        self._failures.clear()

    def queued(self) -> int:
        """Return the number of queued messages."""
        return len(self._waiting)

    def answered(self) -> int:
        """Return how many messages were delivered or failed."""
        return self._accepted - self.queued()

    def ensure_topics(self, wanted: Mapping[str, bool]) -> Limits:
        """Report every topic as existing."""
        return {topic: TopicLimits(1 << 20, compacted=keyed) for topic, keyed in wanted.items()}

    def end_offsets(self, topic: str) -> Offsets:
        """Return one partition, which ends after the delivered messages."""
        return {0: sum(name == topic for name, _ in self.delivered)}

    def keys(
        self, topic: str, start: Offsets, end: Offsets, on_wait: Callable[[], None]
    ) -> Iterator[KeyRecord]:
        """Yield the keys of the delivered messages."""
        found = [message for name, message in self.delivered if name == topic]
        yield from (
            KeyRecord(m.key, m.value is None, None) for m in found[start[0] : end[0]] if m.key is not None
        )

    @property
    def destination(self) -> Destination:
        """Return the destination for a relay that sends to this sink."""
        return Destination(self, LocalRegistry(), self, self, self)

    def _arrive(self, waiting: Waiting) -> None:
        self.delivered.append((waiting.topic, waiting.message))
        if waiting.receipt is not None:
            waiting.receipt.partitions[waiting.index] = 0
            waiting.receipt.offsets[waiting.index] = len(self.delivered) - 1
        waiting.span.pending -= 1

    def _fail(self, waiting: Waiting, reason: str, *, is_outage: bool) -> None:
        waiting.span.failed += 1
        failure = DeliveryFailure(
            waiting.topic, reason, is_outage, "see the log", waiting.message, waiting.span
        )
        self._failures.append(replace(failure, receipt=waiting.receipt, index=waiting.index))


class Reject(MemorySink):
    """A sink that rejects permanently every message for which ``refuses`` returns true."""

    def __init__(self, refuses: Callable[[Message], bool]) -> None:
        super().__init__()
        self._refuses = refuses

    def _arrive(self, waiting: Waiting) -> None:
        if self._refuses(waiting.message):
            self._fail(waiting, "refused", is_outage=False)
        else:
            super()._arrive(waiting)


class RefuseTogether(Reject):
    """A sink that sends all queued messages in one request; one rejected message rejects all of them."""

    def poll(self, timeout: float) -> None:
        """Send the queued messages."""
        self._send_request(len(self._waiting))

    def _send_request(self, size: int) -> None:
        request = [self._waiting.popleft() for _ in range(min(size, len(self._waiting)))]
        refused = any(self._refuses(waiting.message) for waiting in request)
        for waiting in request:
            if refused:
                self._fail(waiting, "refused", is_outage=False)
            else:
                self._arrive(waiting)


class EndAtRefusal(RefuseTogether):
    """A sink that sends small requests in order and stops at a rejection, as `KafkaSink` does.

    Messages after a rejected one are held back until `discard`.
    """

    def __init__(self, refuses: Callable[[Message], bool], size: int = 3) -> None:
        super().__init__(refuses)
        self._size = size
        self._in_order = True
        self._has_ended = False
        #: Number of `discard` calls. The real sink creates a new producer for each.
        self.discarded = 0
        #: Number of times a caller waited until nothing was in flight.
        self.waits = 0

    def poll(self, timeout: float) -> None:
        """Send one request."""
        self.waits += timeout > 0
        before = len(self._failures)
        if self._has_ended:
            while self._waiting:
                self._fail(self._waiting.popleft(), "held back", is_outage=True)
        else:
            self._send_request(self._size)
            self._has_ended = self._in_order and len(self._failures) > before

    def flush(self, timeout: float) -> bool:
        """Send all requests."""
        self.waits += 1
        while self._waiting:
            self.poll(0)
        return True

    def discard(self, *, in_order: bool) -> None:
        """Start over with an empty queue."""
        assert not self._waiting, "what is under way is thrown away"
        super().discard(in_order=in_order)
        self._in_order, self._has_ended = in_order, False
        self.discarded += 1


class FailAfterWrite(MemorySink):
    """A sink that writes the next ``lost`` messages but reports them as failed: the lost acknowledgement."""

    def __init__(self, lost: int = 0) -> None:
        super().__init__()
        self.lost = lost

    def _arrive(self, waiting: Waiting) -> None:
        if self.lost:
            self.lost -= 1
            self.delivered.append((waiting.topic, waiting.message))
            self._fail(waiting, "the acknowledgement was lost", is_outage=True)
        else:
            super()._arrive(waiting)


class HoldResponse(MemorySink):
    """A sink that acknowledges only the messages passed to `release`, in any order."""

    def poll(self, timeout: float) -> None:
        """Deliver nothing; only `release` does."""

    def release(self, at: int) -> None:
        """Deliver the queued message at position ``at``."""
        self._arrive(self._take(at))

    def refuse(self, at: int) -> None:
        """Fail the queued message at position ``at``."""
        self._fail(self._take(at), "refused", is_outage=False)

    def _take(self, at: int) -> Waiting:
        taken = self._waiting[at]
        del self._waiting[at]
        return taken
