"""Callbacks that note where each message of a recorded batch went; made once, and used again and again.

Nothing that librdkafka says of a delivery tells two messages of one callback apart, so each needs its own. To
make and to free one costs half of what producing its message does in Python, so the callbacks of a section
that has arrived serve a later one.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from confluent_kafka import KafkaError

from bwtui.model.delivery import Receipt, Span
from bwtui.sink.base import Message, MessageTuple

Callback = Callable[[KafkaError | None, Any], None]
#: Takes a failure: topic, error, message, span, receipt, and the message's place in the receipt.
Failed = Callable[[str, KafkaError, Message, Span, Receipt, int], None]

#: Callbacks are used again for a section of at least this part of their number, so that few are idle.
_IDLE_FACTOR = 4
#: So many sections may wait to be used again; an outage leaves far more of them.
_IDLE_SECTIONS = 64


class DeliveryReports:
    """The callbacks of one producer, whose reports they take; another producer needs others."""

    def __init__(self, failed: Failed) -> None:
        self._failed = failed
        self._used: deque[Section] = deque()

    def take(self, topic: str, messages: Sequence[MessageTuple], span: Span, receipt: Receipt) -> "Section":
        """Return the section whose reports fill in ``receipt`` and count ``span`` down.

        A message that has failed goes to ``failed``, and is still counted.
        """
        used = self._used
        while used and used[0].is_spent:
            used.popleft()
        # They arrive about in the order in which they were sent.
        if len(used) > _IDLE_SECTIONS and used[_IDLE_SECTIONS].is_over and used[0].is_over:
            used.popleft().part()
        section = used.popleft() if used and used[0].is_over else Section(self._failed)
        if len(section.callbacks) > _IDLE_FACTOR * len(messages):
            section.part()
            section = Section(self._failed)
        section.begin(topic, messages, span, receipt)
        used.append(section)
        return section


class Section:
    """The messages of one receipt at a time."""

    def __init__(self, failed: Failed) -> None:
        #: One for each message, by its place; there may be more.
        self.callbacks: list[Callback] = []
        #: Whether its callbacks can't be used again, as it can't be known when all were called.
        self.is_spent = False
        self._failed = failed
        self._receipt = Receipt(0, 0, 0)
        self._bind, self._report = self._closures()

    @property
    def is_over(self) -> bool:
        """Whether each of its messages has arrived, so that none of its callbacks will be called again."""
        return min(self._receipt.partitions, default=0) >= 0

    def part(self) -> None:
        """Let go of the callbacks of a section that is over, since they refer back to it."""
        self.callbacks = []
        del self._bind, self._report

    def begin(self, topic: str, messages: Sequence[MessageTuple], span: Span, receipt: Receipt) -> None:
        """Take reports of ``messages`` from now on."""
        self._topic, self._span, self._receipt = topic, span, receipt
        # A delivery report gives back all of a message but its headers, so nothing else is kept meanwhile.
        # Either all messages of a section have some, or none: see `bwtui.recording.format.batch.HeaderForm`.
        self._headers = [message[3] for message in messages] if messages and messages[0][3] else None
        self._bind(receipt, span)
        made = len(self.callbacks)
        if made < len(messages):
            # Made by `map`, a callback costs half of what it does one by one.
            self.callbacks += map(partial, repeat(self._report), range(made, len(messages)))

    def _closures(
        self,
    ) -> tuple[Callable[[Receipt, Span], None], Callable[[int, KafkaError | None, Any], None]]:
        # What a closure refers to is found sooner than an attribute, and is needed for every message.
        partitions: list[int] = []
        offsets: list[int] = []
        span = Span()

        def bind(receipt: Receipt, new_span: Span) -> None:
            nonlocal partitions, offsets, span
            partitions, offsets, span = receipt.partitions, receipt.offsets, new_span

        def report(index: int, error: KafkaError | None, message: Any) -> None:
            if error is None:
                offset = message.offset()
                if offset is None:
                    # The broker had it already, and has forgotten where: what is not known stays so.
                    self.is_spent = True
                else:
                    partitions[index] = message.partition()
                    offsets[index] = offset
                span.pending -= 1
            else:
                self._reported(index, error, message)

        return bind, report

    def _reported(self, index: int, error: KafkaError, message: Any) -> None:
        _, stamp = message.timestamp()
        headers = self._headers[index] if self._headers is not None else None
        self._fail(index, error, Message(message.key(), message.value(), stamp, headers))

    def refuse(self, callback: Callback, error: KafkaError, message: Message) -> None:
        """Take that the producer did not accept the message of ``callback``."""
        self._fail(self.callbacks.index(callback), error, message)

    def _fail(self, index: int, error: KafkaError, message: Message) -> None:
        self.is_spent = True
        self._failed(self._topic, error, message, self._span, self._receipt, index)
