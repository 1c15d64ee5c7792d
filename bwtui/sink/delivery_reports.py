"""The callbacks of recorded batches, which note where each message went; made once, and used again and again.

Nothing that librdkafka says of a delivery tells two messages of one callback apart, so each needs its own. To
make and to free one costs half of what producing its message does in Python, so the callbacks of a section
that has arrived serve a later one.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from confluent_kafka import KafkaError

from bwtui.compiled import PACKAGE
from bwtui.model.delivery import Receipt, Span
from bwtui.sink.base import Message, MessageTuple

Callback = Callable[[KafkaError | None, Any], None]
#: Takes a failure: topic, error, message, span, receipt, and the message's place in the receipt.
Failed = Callable[[str, KafkaError, Message, Span, Receipt, int], None]

#: So many sections of about one size may wait to be used again; an outage leaves far more of them.
_IDLE_SECTIONS = 16
_NOTHING, _NOBODY = Receipt(0, 0, 0), Span()


def as_sent(message: Any, headers: list[tuple[str, bytes]] | None) -> Message:
    """Return what was sent, of a report, which has all of it but the ``headers``."""
    _, stamp = message.timestamp()
    return Message(message.key(), message.value(), stamp, headers)


class DeliveryReports:
    """The callbacks of one producer, whose reports they take; another producer needs others."""

    def __init__(self, failed: Failed) -> None:
        self._failed = failed
        #: By the number of bits of their size, so that a small one never takes a large one's callbacks.
        self._idle: defaultdict[int, list[Section]] = defaultdict(list)

    def take(self, topic: str, messages: Sequence[MessageTuple], span: Span, receipt: Receipt) -> "Section":
        """Return the section whose reports fill in ``receipt`` and count ``span`` down.

        A message that has failed goes to ``failed``, and is still counted.
        """
        # The memory of the one that was over last is in the processor's cache yet.
        idle = self._idle[len(messages).bit_length()]
        section = idle.pop() if idle else Section(self._failed, self._over)
        section.begin(topic, messages, span, receipt)
        return section

    def _over(self, section: "Section") -> None:
        # Of what has failed nothing is used again: a late report would stand in another batch's receipt.
        idle = self._idle[len(section.callbacks).bit_length()]
        if not section.has_failed and len(idle) < _IDLE_SECTIONS:
            idle.append(section)
        else:
            section.part()


class Section:
    """The messages of one receipt at a time. Each has one report, which librdkafka gives exactly once."""

    def __init__(self, failed: Failed, over: Callable[["Section"], None]) -> None:
        """``over`` is called once each of its messages has its report: no callback is called again then."""
        #: One for each message, by its place; there may be more.
        self.callbacks: list[Callback] = []
        self.has_failed = False
        self._failed = failed
        self._ended = over
        self._receipt, self._span, self._arriving = _NOTHING, _NOBODY, 0
        self._places = places_class(self._unplaced, self._over)

    def part(self) -> None:
        """Let go of the callbacks, since they refer back to it."""
        self.callbacks = []
        del self._places

    def begin(self, topic: str, messages: Sequence[MessageTuple], span: Span, receipt: Receipt) -> None:
        """Take reports of ``messages`` from now on, which ``receipt`` has as many places for."""
        if len(receipt.partitions) != len(messages):
            # The last report would be taken too early, or for ever waited for.
            raise ValueError(f"a receipt for {len(receipt.partitions)} of {len(messages)} messages")
        self._topic, self._span, self._receipt = topic, span, receipt
        self._arriving = len(messages)
        # A delivery report gives back all of a message but its headers, so nothing else is kept meanwhile.
        # Either all messages of a section have some, or none: see `bwtui.recording.format.batch.HeaderForm`.
        self._headers = [message[3] for message in messages] if messages and messages[0][3] else None
        self._places.begin(receipt.partitions, receipt.offsets)
        made = len(self.callbacks)
        if made < len(messages):
            self.callbacks += self._places.reports(made, len(messages))

    def _unplaced(self, index: int, error: KafkaError | None, message: Any) -> None:
        """Take a message that has failed; of one without an error the broker has forgotten where it is.

        Of one that the producer did not accept no report comes: whoever sent it calls back, with ours.
        """
        if error is None:
            return
        self.has_failed = True
        self._arriving -= 1
        if not isinstance(message, Message):
            message = as_sent(message, self._headers[index] if self._headers is not None else None)
        self._failed(self._topic, error, message, self._span, self._receipt, index)

    def _over(self) -> None:
        # Nobody asks before how many are pending: a span is settled when none is.
        self._span.pending -= self._arriving
        self._receipt, self._span, self._headers = _NOTHING, _NOBODY, None
        self._ended(self)


class Places:
    """Notes where the messages of a section are. In C it is the same, at half the cost."""

    def __init__(
        self, other: Callable[[int, KafkaError | None, Any], None], over: Callable[[], None]
    ) -> None:
        """``other`` takes a report that says no place, ``over`` is called behind the last one."""
        self.begin, self._report = self._closures(other, over)

    def reports(self, first: int, stop: int) -> list[Callback]:
        """Return what is to be called with the error, or None, and the message of each place."""
        # Made by `map`, a callback costs half of what it does one by one.
        return list(map(partial, repeat(self._report), range(first, stop)))

    @staticmethod
    def _closures(
        other: Callable[[int, KafkaError | None, Any], None], over: Callable[[], None]
    ) -> tuple[Callable[["array[int]", "array[int]"], None], Callable[[int, KafkaError | None, Any], None]]:
        # What a closure refers to is found sooner than an attribute, and is needed for every message.
        partitions, offsets, left = array("i"), array("q"), 0

        def begin(new_partitions: "array[int]", new_offsets: "array[int]") -> None:
            """Note the places of as many messages as there are in both, from now on."""
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


places_class: Any = PACKAGE.Places if PACKAGE is not None else Places
