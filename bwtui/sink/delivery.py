"""Batches that wait in the relay, where they can be held back, and not in librdkafka's queue.

librdkafka sends its messages as soon as it can, in threads of its own: after a suspension, before anything
can purge them (docs/adr/0010-queue-messages-in-the-relay.md). So it gets little more than it sends at once.
"""

from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, cast

from confluent_kafka import KafkaError, KafkaException

from bwtui.compiled import speedups
from bwtui.kafka.client import MISSING_TOPIC
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.sink.destination import DeliveryFailure, Message, MessageTuple

#: Maximum number of unanswered handovers: as many requests as librdkafka has in flight to one broker.
HANDOVERS = 5
#: Limits of one handover of waiting messages; its last batch is taken whole.
HANDOVER_ROWS = 10_000
HANDOVER_BYTES = 4 << 20


class OutboxEntry(NamedTuple):
    """Messages of one batch for one topic; see `bwtui.sink.destination.Sink.send`."""

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


# The delivery callbacks of recorded batches, which record where each message went; created once and reused.
#
# A delivery report has nothing that distinguishes two messages of one callback, so each message needs its
# own.
# Creating and freeing a callback costs half of producing its message in Python, so the callbacks of a section
# that has been delivered serve a later one.

Callback = Callable[[KafkaError | None, Any], None]
#: Called for a failure with the topic, error, message, span, receipt, and the message's place in the receipt.
Failed = Callable[[str, KafkaError, Message, DeliverySpan, Receipt, int], None]

#: Maximum number of idle sections of about one size; an outage leaves far more of them.
_IDLE_SECTIONS = 16
_NOTHING, _NOBODY = Receipt(0, 0, 0), DeliverySpan()


def as_sent(message: Any, headers: list[tuple[str, bytes]] | None) -> Message:
    """Return the message of a delivery report, which contains everything except the ``headers``."""
    _, stamp = message.timestamp()
    return Message(message.key(), message.value(), stamp, headers)


class DeliveryReports:
    """The callbacks of one producer; a different producer needs its own."""

    def __init__(self, failed: Failed) -> None:
        self._failed = failed
        #: By the bit length of their size, so that a small section never takes a large one's callbacks.
        self._idle: defaultdict[int, list[ReceiptSection]] = defaultdict(list)

    def take(
        self, topic: str, messages: Sequence[MessageTuple], span: DeliverySpan, receipt: Receipt
    ) -> "ReceiptSection":
        """Return the section whose reports fill in ``receipt`` and count ``span`` down.

        A message that has failed is passed to ``failed``, and stays counted.
        """
        # The most recently finished section is still in the processor's cache.
        idle = self._idle[len(messages).bit_length()]
        section = idle.pop() if idle else ReceiptSection(self._failed, self._over)
        section.begin(topic, messages, span, receipt)
        return section

    def _over(self, section: "ReceiptSection") -> None:
        # A section with failures is not reused: a late report would be written into another batch's receipt.
        idle = self._idle[len(section.callbacks).bit_length()]
        if not section.has_failed and len(idle) < _IDLE_SECTIONS:
            idle.append(section)
        else:
            section.part()


class ReceiptSection:
    """The messages of one receipt at a time. librdkafka reports each message exactly once."""

    def __init__(self, failed: Failed, over: Callable[["ReceiptSection"], None]) -> None:
        """Take ``over``, which is called once each message has its report: no callback is called after
        that.
        """
        #: One for each message, by its place; there may be more.
        self.callbacks: list[Callback] = []
        self.has_failed = False
        self._failed = failed
        self._ended = over
        self._receipt, self._span, self._arriving = _NOTHING, _NOBODY, 0
        self._places = places_class(self._unplaced, self._over)

    def part(self) -> None:
        """Release the callbacks, which refer back to the section."""
        self.callbacks = []
        del self._places

    def begin(
        self, topic: str, messages: Sequence[MessageTuple], span: DeliverySpan, receipt: Receipt
    ) -> None:
        """Accept the reports of ``messages`` from now on; ``receipt`` has a place for each."""
        if len(receipt.partitions) != len(messages):
            # Otherwise the last report would be expected too early, or never arrive.
            raise ValueError(f"a receipt for {len(receipt.partitions)} of {len(messages)} messages")
        self._topic, self._span, self._receipt = topic, span, receipt
        self._arriving = len(messages)
        # A delivery report returns everything of a message except its headers, so nothing else is kept
        # meanwhile. Either all messages of a section have headers, or none: see
        # `bwtui.recording.payloads.HeaderForm`.
        self._headers = [message[3] for message in messages] if messages and messages[0][3] else None
        self._places.begin(receipt.partitions, receipt.offsets)
        ready = len(self.callbacks)
        if ready < len(messages):
            self.callbacks += self._places.reports(ready, len(messages))

    def _unplaced(self, index: int, error: KafkaError | None, message: Any) -> None:
        """Handle a failed message, or one whose report has no offset because the broker no longer knows it.

        A message that the producer did not accept gets no report: the sender calls back with a `Message`.
        """
        if error is None:
            return
        self.has_failed = True
        self._arriving -= 1
        if not isinstance(message, Message):
            message = as_sent(message, self._headers[index] if self._headers is not None else None)
        self._failed(self._topic, error, message, self._span, self._receipt, index)

    def _over(self) -> None:
        # Nothing reads the pending count before: a span is settled when it is zero.
        self._span.pending -= self._arriving
        self._receipt, self._span, self._headers = _NOTHING, _NOBODY, None
        self._ended(self)


class OffsetRecorder:
    """Records where the messages of a section are. The C extension does the same at half the cost."""

    def __init__(
        self, without_offset: Callable[[int, KafkaError | None, Any], None], over: Callable[[], None]
    ) -> None:
        """Call ``without_offset`` for reports without an offset, and ``over`` after the last report."""
        self.begin, self._report = self._closures(without_offset, over)

    def reports(self, first: int, stop: int) -> list[Callback]:
        """Return the callbacks of the places, to be called with the error, or None, and the message."""
        # Created by `map`, a callback costs half as much as in a loop.
        return list(map(partial, repeat(self._report), range(first, stop)))

    @staticmethod
    def _closures(
        without_offset: Callable[[int, KafkaError | None, Any], None], over: Callable[[], None]
    ) -> tuple[Callable[["array[int]", "array[int]"], None], Callable[[int, KafkaError | None, Any], None]]:
        # Closure variables are faster than attributes, and every message needs them.
        partitions, offsets, pending = array("i"), array("q"), 0

        def begin(new_partitions: "array[int]", new_offsets: "array[int]") -> None:
            """Record the places of as many messages as both arrays have, from now on."""
            nonlocal partitions, offsets, pending
            partitions, offsets, pending = new_partitions, new_offsets, len(new_partitions)

        def report(index: int, error: KafkaError | None, message: Any) -> None:
            nonlocal pending
            offset = message.offset() if error is None else None
            if offset is None:
                without_offset(index, error, message)
            else:
                partitions[index] = message.partition()
                offsets[index] = offset
            pending -= 1
            if not pending:
                over()

        return begin, report


places_class: Any = speedups.Places if speedups is not None else OffsetRecorder


# Interpret Kafka's delivery errors: is it the message, the set-up or an outage; with hints.

#: The broker rejected this message, or a batch of only this message; all other errors may pass when the
#: service recovers. INVALID_MSG is not included: a checksum that does not match is corruption in transit.
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
# Also the errors of a broker's own checks of the record: a null key in a compacted topic, a schema ID.
_MESSAGE_ERRORS = _TOO_LARGE | {KafkaError.INVALID_RECORD}
#: Every message for the topic fails until someone fixes what the hint names.
_SETUP_ERRORS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant the relay's user the right (ACL) to write to topic {topic}",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant the relay's user the right (ACL) IdempotentWrite",
    KafkaError.TOPIC_EXCEPTION: "choose a different --topic-prefix: Kafka accepts no writes to {topic}",
    KafkaError.POLICY_VIOLATION: "ask Kafka's operators which policy forbids writing to topic {topic}",
    KafkaError.INVALID_TIMESTAMP: "compare PostgreSQL's clock with Kafka's, or widen message.timestamp.after"
    ".max.ms and message.timestamp.before.max.ms of topic {topic}",
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT: "set message.format.version of topic {topic} to 0.11 or newer",
}
#: The topic does not exist any more: it is created again, so that no new message is lost.
_TOPIC_GONE = MISSING_TOPIC | {KafkaError._UNKNOWN_PARTITION}
#: The message itself is valid: another one was rejected before it, or in the same request (KIP-467).
_HELD_BACK = frozenset({KafkaError._PURGE_QUEUE, KafkaError._FATAL, KafkaError._INVALID_DIFFERENT_RECORD})


def delivery_failure(
    topic: str,
    error: KafkaError,
    message: Message,
    span: DeliverySpan,
    receipt: Receipt | None,
    index: int,
    *,
    ends: bool = False,
) -> DeliveryFailure:
    """Return the reason why ``message`` was not delivered; ``index`` is its place in ``receipt``.

    ``ends``: this failure ends the whole transaction, so the message is not retried on its own.
    """
    code = error.code()
    is_setup = code in _SETUP_ERRORS
    is_outage = not is_setup and code not in _MESSAGE_ERRORS
    is_final = ends or code in _TOPIC_GONE or error.fatal()
    size = len(message.key or b"") + len(message.value or b"")
    reason = f"Kafka rejects a message of {size} bytes: {error.str()}"
    if is_setup:
        reason = f"Kafka rejects every message for topic {topic}: {error.str()}"
    elif code in MISSING_TOPIC:
        reason = f"topic {topic} does not exist: {error.str()}"
    elif code in _HELD_BACK:
        reason = "a message was held back because an earlier one failed"
    hint = _hint(code, topic, is_outage=is_outage)
    return DeliveryFailure(topic, reason, is_outage, hint, message, span, is_final, is_setup, receipt, index)


def _hint(code: int, topic: str, *, is_outage: bool) -> str:
    if code in _SETUP_ERRORS:
        return _SETUP_ERRORS[code].format(topic=topic)
    if code in _TOO_LARGE:
        return f"raise max.message.bytes of topic {topic}; the producer allows this size"
    if code in _TOPIC_GONE:
        return f"topic {topic} was deleted; the relay recreates it, but earlier rows are not in it"
    if is_outage:
        return "the relay resumes automatically once Kafka accepts messages again: check the brokers"
    return "fix the cause, or write such rows to the dead letters with --on-error log"


def held_back(*args: Any) -> None:
    """Refuse a message in place of librdkafka, with the same error as for one that it purges."""
    raise KafkaException(KafkaError(KafkaError._PURGE_QUEUE))


def reason_of(error: KafkaException | BufferError) -> KafkaError:
    """Return the reason why librdkafka did not accept a message."""
    if isinstance(error, KafkaException):
        return cast(KafkaError, error.args[0])
    return KafkaError(KafkaError._QUEUE_FULL)
