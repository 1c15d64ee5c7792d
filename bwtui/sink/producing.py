"""What is done for each message that goes to Kafka, and for each report of one: in C the same, for less."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException

from bwtui.compiled import PACKAGE
from bwtui.model.delivery import Span
from bwtui.sink.base import MessageTuple
from bwtui.sink.delivery_reports import as_sent

#: What librdkafka's `produce` refuses a message with.
REFUSALS = (KafkaException, BufferError)


def hand_over_in_python(
    produce: Callable[..., None],
    topic: str,
    messages: Sequence[MessageTuple],
    first: int,
    reports: Any,
    refusals: tuple[type[Exception], ...],
) -> tuple[int, Exception | None]:
    """Hand ``messages`` over from ``first`` on, each with its report of a list, or with the one report.

    Those of one report have the same headers: a report of delivery has none, so others need another one.
    Return the place behind the last message that was tried, and what that one was refused with, or None.
    """
    headers = messages[first][3] if first < len(messages) else None
    has_each = isinstance(reports, list)
    for place in range(first, len(messages)):
        key, value, timestamp, own = messages[place]
        if own is not headers and not has_each:
            return place, None
        report = reports[place] if has_each else reports
        try:
            # By position, which costs half of what keywords do: …, partition, callback, on_delivery, ….
            produce(topic, value, key, -1, report, None, timestamp, own)
        except refusals as error:
            return place + 1, error
    return max(first, len(messages)), None


class Tally(Protocol):
    """The callback of many messages, which calls something once all of them have their report."""

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        """Take the report of one message."""

    def expect(self, count: int) -> None:
        """Say how many were accepted, and have a report each."""


class TallyInPython:
    """A `Tally`."""

    def __init__(self, failed: Callable[[KafkaError, Any], None], over: Callable[[int], None]) -> None:
        """``failed`` takes each that failed, and ``over`` is called last, with how many were delivered."""
        self._failed, self._over = failed, over
        self._reported = self._delivered = 0
        self._expected = -1

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        """Take the report of one message."""
        if error is None:
            self._delivered += 1
        else:
            self._failed(error, message)
        self._reported += 1
        self._end()

    def expect(self, count: int) -> None:
        """Say how many were accepted, and have a report each."""
        self._expected = count
        self._end()

    def _end(self) -> None:
        if self._reported == self._expected:
            self._over(self._delivered)


hand_over: Any = PACKAGE.hand_over if PACKAGE is not None else hand_over_in_python
tally_class: Any = PACKAGE.Tally if PACKAGE is not None else TallyInPython


def tally(
    failed: Callable[..., None], topic: str, span: Span, headers: list[tuple[str, bytes]] | None
) -> Tally:
    """Return what counts ``span`` down, once there is a report of each message with the same ``headers``.

    Nobody asks before how many are pending: a span is settled when none is. One that has failed goes to
    ``failed``, as `DeliveryReports` calls it, and is still counted.
    """

    def refused(error: KafkaError, message: Any) -> None:
        failed(topic, error, as_sent(message, headers), span)

    def over(delivered: int) -> None:
        span.pending -= delivered

    made: Tally = tally_class(refused, over)
    return made
