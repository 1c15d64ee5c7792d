"""Careful mode: send one batch at a time, and send the rows of a batch that Kafka refuses one by one.

See docs/adr/0009-isolate-the-refused-row.md.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, Protocol

from bwtui.errors import BwtuiError, RowError
from bwtui.model.delivery import REFUSED, DeliverySpan, Receipt
from bwtui.relay.routes.route import TableRoute
from bwtui.sink.dead_letters import ChangeIdentity, DroppedRow
from bwtui.sink.destination import DeliveryFailure, MessageTuple, Sink

#: Up to this many messages are sent one by one; more are sent together, in halves.
_FEW = 32
_WAIT_SECONDS = 0.1


class RestartFromConfirmed(Exception):
    """Messages were not delivered: read again from the last confirmed LSN, one batch at a time.

    A failed delivery fails its neighbours too, and later rows of a key may already be in Kafka. Sending the
    failed message again would put it after them; reading everything again keeps every key's order.
    """

    def __init__(self, failures: list[DeliveryFailure]) -> None:
        super().__init__(failures[0].reason)
        #: A message's own failure takes precedence over an outage that failed its neighbours.
        self.failure = min(failures, key=lambda failure: failure.is_outage)


class RefusedRowPolicy(Protocol):
    """Decides what happens to refused rows; see `bwtui.relay.rows.policy.RowPolicy`."""

    def refuse(self, route: TableRoute, row: DroppedRow, error: BwtuiError, span: DeliverySpan) -> None:
        """Drop ``row``, or raise RowError."""

    def undelivered(self, failures: list[DeliveryFailure]) -> list[DeliveryFailure]:
        """Return the failures that do not concern dead letters."""


class _SentSection(NamedTuple):
    """Messages that went to one topic; ``rows`` identifies the row of each."""

    topic: str
    messages: Sequence[MessageTuple]
    receipt: Receipt
    rows: Sequence[ChangeIdentity]


#: A message's position: the index of its `_SentSection` in the batch, and its index in there.
_Place = tuple[int, int]


class BatchBisector:
    """Waits for each batch, and applies the policy to the rows of it that Kafka refuses.

    Until a batch is settled nothing else is in flight, so nothing newer can overtake a failed message.
    """

    def __init__(self, sink: Sink, policy: RefusedRowPolicy, pulse: Callable[[], None]) -> None:
        """``pulse()`` is called while waiting; it keeps the server informed, and raises to stop."""
        self._sink = sink
        self._policy = policy
        self._pulse = pulse
        self._rows: dict[ChangeIdentity, tuple[TableRoute, DroppedRow]] = {}
        self._names: dict[TableRoute | None, list[ChangeIdentity]] = {}
        self._sent: list[_SentSection] = []
        #: True if the current producer sends in order; None once a refusal has ended it.
        self._in_order: bool | None = True

    def check(self, commit_lsn: int, ordinal: int) -> None:
        """Check a change before its message is added. Raises RowError if Kafka is known to refuse it."""

    def name(self, sender: TableRoute | None, route: TableRoute, row: DroppedRow) -> None:
        """Record that the message being added to ``sender`` is one of ``row``; None: it goes to a side topic.

        A row with two messages is identified by the last of them: both are dropped together.
        """
        self._rows[row.identity] = route, row
        self._names.setdefault(sender, []).append(row.identity)

    def receipt(
        self, sender: TableRoute | None, topic: str, messages: Sequence[MessageTuple], receipt: Receipt | None
    ) -> Receipt:
        """Return the receipt to send ``messages`` with: their failures are identified by it."""
        receipt = receipt or Receipt(0, len(self._sent), len(messages))
        self._sent.append(_SentSection(topic, messages, receipt, self._names.pop(sender)))
        return receipt

    def settle(self, span: DeliverySpan) -> None:
        """Wait until everything of ``span`` is durable, or is dropped and its dead letter is durable.

        Raises RowError under --on-error exit, Redrive when the service is at fault, and what `pulse` raises.
        """
        try:
            failures = self._reports(span)
            if failures:
                self._settle(span, failures)
        finally:
            self._sent, self._rows, self._names = [], {}, {}

    def _settle(self, span: DeliverySpan, failures: list[DeliveryFailure]) -> None:
        # The failure of a message that was held back says nothing about that message. Only a refusal of a
        # message that is sent alone concerns that message, and an outage shows up again.
        self._in_order = None
        self._deliver(sorted(_located(failures, self._sent)), span)
        letters = [failure for failure in failures if failure.receipt is None]
        if letters:
            self._begin(in_order=False)
        for letter in letters:
            assert letter.message is not None
            self._sink.send(letter.topic, [letter.message], span)
            span.settle_failed()
        self._expect_nothing(self._reports(span))
        self._begin(in_order=True)

    def _begin(self, *, in_order: bool) -> None:
        """Ensure a producer that sends in order, or not, while nothing is in flight.

        A new producer costs round trips, so the present one is kept if it fits.
        """
        if self._in_order != in_order:
            # After a suspension none of this may be sent: a new producer would not hold it back.
            self._pulse()
            self._sink.discard(in_order=in_order)
            self._in_order = in_order

    def _deliver(self, places: Sequence[_Place], span: DeliverySpan) -> None:
        """Deliver the failed messages in order, and drop those that are refused even when sent alone."""
        if len(places) > _FEW:
            half = len(places) // 2
            for part in (places[:half], places[half:]):
                self._begin(in_order=True)
                self._deliver(sorted(self._send_again(part, span)), span)
        elif places:
            self._begin(in_order=False)
            for place in places:
                for failure in self._send_again([place], span).values():
                    self._drop(place, failure, span)

    def _send_again(self, places: Sequence[_Place], span: DeliverySpan) -> dict[_Place, DeliveryFailure]:
        """Send once more, and return what fails again. Raises Redrive if all of the failures are outages."""
        by_number = [(number, list(members)) for number, members in groupby(places, itemgetter(0))]
        single, sent = DeliverySpan(), []
        for number, members in by_number:
            section = self._sent[number]
            messages = [section.messages[index] for _, index in members]
            receipt = Receipt(section.receipt.batch, section.receipt.section, len(messages))
            sent.append(_SentSection(section.topic, messages, receipt, ()))
            self._sink.send(section.topic, messages, single, receipt)
        failures = self._reports(single)
        if failures and self._in_order:
            self._in_order = None
        if all(failure.is_outage for failure in failures):
            self._expect_nothing(failures)
        located = _located(failures, sent)
        failed = {by_number[number][1][index]: failure for (number, index), failure in located.items()}
        for (number, members), resent in zip(by_number, sent, strict=True):
            for place, partition, offset in zip(
                members, resent.receipt.partitions, resent.receipt.offsets, strict=True
            ):
                if place not in failed:
                    receipt = self._sent[number].receipt
                    receipt.partitions[place[1]], receipt.offsets[place[1]] = partition, offset
                    span.settle_failed()
        return failed

    def _drop(self, place: _Place, failure: DeliveryFailure, span: DeliverySpan) -> None:
        sent, index = self._sent[place[0]], place[1]
        identity = sent.rows[index]
        if identity in self._rows:
            route, row = self._rows.pop(identity)
            self._policy.refuse(route, row, RowError(failure.reason, failure.hint), span)
            # Before the next producer starts: it knows nothing about messages that this one has in flight.
            self._expect_nothing(self._reports(span))
        sent.receipt.partitions[index] = REFUSED
        span.settle_failed()

    def _reports(self, span: DeliverySpan) -> list[DeliveryFailure]:
        """Wait until each message of ``span`` is durable or has failed; return the failures."""
        failures = self._policy.undelivered(self._sink.take_failures())
        while span.pending > span.failed:
            self._sink.flush(_WAIT_SECONDS)
            self._pulse()
            failures += self._policy.undelivered(self._sink.take_failures())
        return failures

    @staticmethod
    def _expect_nothing(failures: list[DeliveryFailure]) -> None:
        if failures:
            raise RestartFromConfirmed(failures)


def _located(
    failures: Sequence[DeliveryFailure], sent: Sequence[_SentSection]
) -> dict[_Place, DeliveryFailure]:
    """Return the failures by the position of their messages; dead letters have none."""
    numbers = {id(section.receipt): number for number, section in enumerate(sent)}
    return {
        (numbers[id(failure.receipt)], failure.index): failure
        for failure in failures
        if failure.receipt is not None
    }
