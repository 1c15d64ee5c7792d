"""Sinks that do what a broker does on its worst days; each holds what became durable in ``delivered``."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bwtui.encode.local_registry import LocalRegistry
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.sink.base import DeliveryFailure, Message, MessageTuple
from bwtui.sink.destination import (
    Destination,
    KeyRecord,
    Limits,
    Offsets,
    Purgeable,
    SinkService,
    TopicLimits,
    TopicScanner,
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that was accepted; ``index`` is its place in ``receipt``."""

    topic: str
    message: Message
    span: DeliverySpan
    receipt: Receipt | None
    index: int


class MemorySink(SinkService, Purgeable, TopicScanner):
    """Takes every message, and makes it durable at the next poll; see `bwtui.sink.base.Sink`."""

    name = "memory"

    def __init__(self) -> None:
        self.delivered: list[tuple[str, Message]] = []
        self._waiting: deque[Waiting] = deque()
        self._accepted = 0
        self._failures: list[DeliveryFailure] = []

    def send(
        self, topic: str, messages: Sequence[MessageTuple], span: DeliverySpan, receipt: Receipt | None = None
    ) -> None:
        """Accept ``messages``."""
        span.pending += len(messages)
        self._accepted += len(messages)
        self._waiting += (
            Waiting(topic, Message(*message), span, receipt, index) for index, message in enumerate(messages)
        )

    def poll(self, timeout: float) -> None:
        """Let everything that waits arrive."""
        while self._waiting:
            self._arrive(self._waiting.popleft())

    def flush(self, timeout: float) -> bool:
        """Let everything that waits arrive."""
        self.poll(timeout)
        return not self._waiting

    def take_failures(self) -> list[DeliveryFailure]:
        """Return the failures since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def hold_back(self) -> None:
        """Forget what waits; see `discard`."""
        self._waiting.clear()

    def discard(self, *, in_order: bool) -> None:
        """Forget what waits; nobody counts it down any more."""
        self._waiting.clear()
        self._failures.clear()

    def queued(self) -> int:
        """Messages that wait."""
        return len(self._waiting)

    def answered(self) -> int:
        """Return how many messages arrived or failed."""
        return self._accepted - self.queued()

    def ensure_topics(self, wanted: Mapping[str, bool]) -> Limits:
        """Every topic is there."""
        return {topic: TopicLimits(1 << 20, compacted=keyed) for topic, keyed in wanted.items()}

    def end_offsets(self, topic: str) -> Offsets:
        """One partition, which ends behind what was delivered."""
        return {0: sum(name == topic for name, _ in self.delivered)}

    def keys(
        self, topic: str, start: Offsets, end: Offsets, on_wait: Callable[[], None]
    ) -> Iterator[KeyRecord]:
        """Yield the keys of what was delivered."""
        found = [message for name, message in self.delivered if name == topic]
        yield from (
            KeyRecord(m.key, m.value is None, None) for m in found[start[0] : end[0]] if m.key is not None
        )

    @property
    def destination(self) -> Destination:
        """What a relay that sends here is given."""
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
    """Refuses every message of which ``refuses`` says so, for good."""

    def __init__(self, refuses: Callable[[Message], bool]) -> None:
        super().__init__()
        self._refuses = refuses

    def _arrive(self, waiting: Waiting) -> None:
        if self._refuses(waiting.message):
            self._fail(waiting, "refused", is_outage=False)
        else:
            super()._arrive(waiting)


class RefuseTogether(Reject):
    """Sends all that waits in one request, and refuses the whole of it when it refuses one message."""

    def poll(self, timeout: float) -> None:
        """Send what waits."""
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
    """Sends requests of a few messages, as `bwtui.sink.kafka.KafkaSink` does: in order, it ends at a refusal.

    What comes after one that is refused is held back, until `discard`.
    """

    def __init__(self, refuses: Callable[[Message], bool], size: int = 3) -> None:
        super().__init__(refuses)
        self._size = size
        self._in_order = True
        self._has_ended = False
        #: How often it was discarded: for each, the real one makes a producer.
        self.discarded = 0
        #: How often somebody waited until nothing was under way.
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
        """Begin anew."""
        assert not self._waiting, "what is under way is thrown away"
        super().discard(in_order=in_order)
        self._in_order, self._has_ended = in_order, False
        self.discarded += 1


class FailAfterWrite(MemorySink):
    """Writes the next ``lost`` messages, and then says that it failed: the lost acknowledgement."""

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
    """Answers only for what `release` lets go, in any order that the test likes."""

    def poll(self, timeout: float) -> None:
        """Nothing arrives by itself."""

    def release(self, at: int) -> None:
        """Let the message at place ``at`` of those that wait arrive."""
        self._arrive(self._take(at))

    def refuse(self, at: int) -> None:
        """Let the message at place ``at`` of those that wait fail."""
        self._fail(self._take(at), "refused", is_outage=False)

    def _take(self, at: int) -> Waiting:
        taken = self._waiting[at]
        del self._waiting[at]
        return taken
