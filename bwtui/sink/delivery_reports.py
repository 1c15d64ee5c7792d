"""The delivery callbacks of recorded batches, which record where each message went; created once and reused.

A delivery report has nothing that distinguishes two messages of one callback, so each message needs its own.
Creating and freeing a callback costs half of producing its message in Python, so the callbacks of a section
that has been delivered serve a later one.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from confluent_kafka import KafkaError

from bwtui.compiled import PACKAGE
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.sink.base import Message, MessageTuple

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
        # `bwtui.recording.format.batch.HeaderForm`.
        self._headers = [message[3] for message in messages] if messages and messages[0][3] else None
        self._places.begin(receipt.partitions, receipt.offsets)
        made = len(self.callbacks)
        if made < len(messages):
            self.callbacks += self._places.reports(made, len(messages))

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
        self, other: Callable[[int, KafkaError | None, Any], None], over: Callable[[], None]
    ) -> None:
        """Take ``other``, for reports without an offset, and ``over``, called after the last report."""
        self.begin, self._report = self._closures(other, over)

    def reports(self, first: int, stop: int) -> list[Callback]:
        """Return the callbacks of the places, to be called with the error, or None, and the message."""
        # Created by `map`, a callback costs half as much as in a loop.
        return list(map(partial, repeat(self._report), range(first, stop)))

    @staticmethod
    def _closures(
        other: Callable[[int, KafkaError | None, Any], None], over: Callable[[], None]
    ) -> tuple[Callable[["array[int]", "array[int]"], None], Callable[[int, KafkaError | None, Any], None]]:
        # Closure variables are faster than attributes, and every message needs them.
        partitions, offsets, left = array("i"), array("q"), 0

        def begin(new_partitions: "array[int]", new_offsets: "array[int]") -> None:
            """Record the places of as many messages as both arrays have, from now on."""
            nonlocal partitions, offsets, left
            partitions, offsets, left = new_partitions, new_offsets, len(new_partitions)

        def report(index: int, error: KafkaError | None, message: Any) -> None:
            nonlocal left
            offset = message.offset() if error is None else None
            if offset is None:
                other(index, error, message)
            else:
                partitions[index] = message.partition()
                offsets[index] = offset
            left -= 1
            if not left:
                over()

        return begin, report


places_class: Any = PACKAGE.Places if PACKAGE is not None else OffsetRecorder
