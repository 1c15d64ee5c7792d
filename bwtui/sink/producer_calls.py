"""The work for each message sent to Kafka and each delivery report; the C extension does it faster."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException

from bwtui.compiled import PACKAGE
from bwtui.model.delivery import DeliverySpan
from bwtui.sink.base import MessageTuple
from bwtui.sink.delivery_reports import as_sent

#: The exceptions by which librdkafka's `produce` rejects a message.
REFUSALS = (KafkaException, BufferError)


def hand_over_in_python(
    produce: Callable[..., None],
    topic: str,
    messages: Sequence[MessageTuple],
    first: int,
    reports: Any,
    refusals: tuple[type[Exception], ...],
) -> tuple[int, Exception | None]:
    """Produce ``messages`` from index ``first`` on, with a list of callbacks or one callback for all.

    Messages of one callback have the same headers, since a delivery report contains none: at different
    headers it stops. Return the index after the last message that was tried, and the error that rejected that
    one, or None.
    """
    headers = messages[first][3] if first < len(messages) else None
    has_each = isinstance(reports, list)
    for place in range(first, len(messages)):
        key, value, timestamp, own = messages[place]
        if own is not headers and not has_each:
            return place, None
        report = reports[place] if has_each else reports
        try:
            # Positional arguments cost half as much as keywords: …, partition, callback, on_delivery, ….
            produce(topic, value, key, -1, report, None, timestamp, own)
        except refusals as error:
            return place + 1, error
    return max(first, len(messages)), None


class DeliveryTally(Protocol):
    """The callback of many messages, which calls a function once all of them have their report."""

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        pass

    def expect(self, count: int) -> None:
        """Set the number of messages that were accepted and will have a report."""


class PythonDeliveryTally:
    """A `DeliveryTally` in Python."""

    def __init__(self, failed: Callable[[KafkaError, Any], None], over: Callable[[int], None]) -> None:
        """Take ``failed``, called for each failure, and ``over``, called last with the number delivered."""
        self._failed, self._over = failed, over
        self._reported = self._delivered = 0
        self._expected = -1

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self._delivered += 1
        else:
            self._failed(error, message)
        self._reported += 1
        self._end()

    def expect(self, count: int) -> None:
        self._expected = count
        self._end()

    def _end(self) -> None:
        if self._reported == self._expected:
            self._over(self._delivered)


hand_over: Any = PACKAGE.hand_over if PACKAGE is not None else hand_over_in_python
tally_class: Any = PACKAGE.Tally if PACKAGE is not None else PythonDeliveryTally


def tally(
    failed: Callable[..., None], topic: str, span: DeliverySpan, headers: list[tuple[str, bytes]] | None
) -> DeliveryTally:
    """Return a callback that counts ``span`` down once each message with the same ``headers`` has its report.

    Nothing reads the pending count before: a span is settled when it is zero. A failed message is passed to
    ``failed``, as by `DeliveryReports`, and stays counted.
    """

    def refused(error: KafkaError, message: Any) -> None:
        failed(topic, error, as_sent(message, headers), span)

    def over(delivered: int) -> None:
        span.pending -= delivered

    made: DeliveryTally = tally_class(refused, over)
    return made
