"""The Kafka sink: an idempotent producer whose delivery reports count down the spans.

The relay bounds what is in flight (`Acknowledgements.bytes_in_flight`), so librdkafka's queue never fills:
a message refused for a full queue while the next one is taken would change the order of a key.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, Producer

from bwtui.errors import RefusedError
from bwtui.kafka.client import REQUEST_SECONDS, bad_setting
from bwtui.kafka.config import IN_ORDER, client_config, producer_config
from bwtui.model.delivery import Receipt, Span
from bwtui.settings import RelaySettings
from bwtui.sink.base import (
    DeliveryFailure,
    KeyRecord,
    Marks,
    Message,
    MessageTuple,
    TopicLimits,
    TopicsFound,
)
from bwtui.sink.delivery_reports import Callback, DeliveryReports
from bwtui.sink.first_requests import FirstRequests, Refuse
from bwtui.sink.outbox import Entry, Outbox
from bwtui.sink.topic_reader import TopicReader
from bwtui.sink.topics import TopicAdmin

_log = logging.getLogger("bwtui.kafka")
# librdkafka warns of each setting that it calls experimental, and this one is meant: see `IN_ORDER`.
_log.addFilter(lambda record: "enable.gapless.guarantee" not in record.getMessage())

#: The broker judged this message, or the batch that it was alone in; everything else may pass when the
#: service recovers. INVALID_MSG is not among them: a checksum that does not match is damage on the way.
_MESSAGE_ERRORS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        # What a broker's own checks say of the record: a null key in a compacted topic, a schema id.
        KafkaError.INVALID_RECORD,
    }
)
#: No message for the topic fares better, until somebody mends what the hint names.
_SETUP_ERRORS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant the relay's user the right (ACL) to write to topic {topic}",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant the relay's user the right (ACL) IdempotentWrite",
    KafkaError.TOPIC_EXCEPTION: "choose another --topic-prefix: Kafka does not let clients write to {topic}",
    KafkaError.POLICY_VIOLATION: "ask whoever runs Kafka which policy forbids writing to topic {topic}",
    KafkaError.INVALID_TIMESTAMP: "compare PostgreSQL's clock with Kafka's, or widen message.timestamp.after"
    ".max.ms and message.timestamp.before.max.ms of topic {topic}",
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT: "set message.format.version of topic {topic} to 0.11 or newer",
}
#: The topic is not there any more: it is made again, so that nothing that comes now is lost.
_TOPIC_GONE = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
#: Nothing is wrong with the message: another one was refused before it, or in the same request (KIP-467).
_HELD_BACK = frozenset({KafkaError._PURGE_QUEUE, KafkaError._FATAL, KafkaError._INVALID_DIFFERENT_RECORD})
_CONNECTION_ERRORS = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
    }
)


class KafkaSink:
    """Sends messages to Kafka; see `bwtui.sink.base.Sink`."""

    def __init__(self, settings: RelaySettings) -> None:
        """Check the settings and make the producer; no connection is needed yet. Raises UsageError."""
        self._config = producer_config(settings)
        self._failures: list[DeliveryFailure] = []
        self._outage: str | None = None
        self._heard_error = False
        self._reader: TopicReader | None = None
        self._client_config = client_config(settings)
        self._in_order = True
        #: A letter that is refused is sent shorter, and no row has to wait for it.
        self._letters = settings.dead_letter_topic
        self._partitions: dict[str, int] = {}
        self._first: dict[str, FirstRequests] = {}
        #: Those of them in which messages wait.
        self._held: dict[str, FirstRequests] = {}
        #: Topics of which every partition has taken a message from this producer.
        self._open: set[str] = set()
        self._outbox = Outbox(self._unanswered)
        self._look: Callable[[], None] = _nothing
        self._producer = self._new_producer()
        self._produce: Callable[..., None] = self._producer.produce
        self._reports = DeliveryReports(self._failed)
        self.max_message_bytes = int(self._config["message.max.bytes"])
        try:
            self._admin = TopicAdmin(self._client_config, self.max_message_bytes)
        except KafkaException as error:
            raise bad_setting(error) from error

    def send(
        self, topic: str, messages: Sequence[MessageTuple], span: Span, receipt: Receipt | None = None
    ) -> None:
        """Accept ``messages``; see `Sink.send`."""
        self._look()
        if self._in_order and not self._outbox.may_go(span, len(messages)):
            span.pending += len(messages)
            self._outbox.put(Entry(topic, messages, span, receipt))
            return
        self._hand_over(topic, messages, span, receipt)

    def _hand_over(
        self, topic: str, messages: Sequence[MessageTuple], span: Span, receipt: Receipt | None
    ) -> None:
        if self._in_order and topic not in self._open:
            first = self._first.setdefault(topic, FirstRequests(self._partitions.get(topic, 1)))
            if first.is_open and not len(first):
                self._open.add(topic)
                del self._first[topic]
            elif not first.knows(messages):
                self._send_first(first, topic, messages, span, receipt)
                return
        if receipt is not None:
            self._send_recorded(topic, messages, span, receipt)
            return
        plain = self._report_for(span, topic, None)
        span.pending += len(messages)
        report, kept = plain, None
        produce = self._produce
        for message in messages:
            key, value, timestamp, headers = message
            if headers is not kept:
                # A delivery report has no headers, so they are kept beside it for the case that it fails.
                report = plain if headers is None else self._report_for(span, topic, headers)
                kept = headers
            try:
                # By position, which costs half of what keywords do: …, partition, callback, on_delivery, ….
                produce(topic, value, key, -1, report, None, timestamp, headers)
            except (KafkaException, BufferError) as error:
                self._failed(topic, _reason(error), Message(*message), span)
                produce = self._produce

    def _send_recorded(
        self, topic: str, messages: Sequence[MessageTuple], span: Span, receipt: Receipt
    ) -> None:
        """Send with a callback for each message, which notes where it went."""
        produce = self._produce
        span.pending += len(messages)
        section = self._reports.take(topic, messages, span, receipt)
        for callback, (key, value, timestamp, headers) in zip(section.callbacks, messages, strict=False):
            try:
                produce(topic, value, key, -1, callback, None, timestamp, headers)
            except (KafkaException, BufferError) as error:
                section.refuse(callback, _reason(error), Message(key, value, timestamp, headers))
                produce = self._produce

    def _send_first(
        self,
        first: FirstRequests,
        topic: str,
        messages: Sequence[MessageTuple],
        span: Span,
        receipt: Receipt | None,
    ) -> None:
        """Send to a topic of which not every partition has taken a message from this producer."""
        span.pending += len(messages)
        if receipt is not None:
            section = self._reports.take(topic, messages, span, receipt)
            for callback, message in zip(section.callbacks, messages, strict=False):
                first.add(message, callback, partial(section.refuse, callback))
        else:
            plain = self._report_for(span, topic, None)
            refuse = partial(self._failed, topic, span=span)
            for message in messages:
                headers = message[3]
                report = plain if headers is None else self._report_for(span, topic, headers)
                first.add(message, report, refuse)
        self._held[topic] = first
        self._pump()

    def _pump(self) -> None:
        """Let go what need not wait any more: for its turn, or behind the first message into a partition."""
        self._look()
        if self._produce is _hold_back:
            self._outbox.clear()
        for topic, first in list(self._held.items()):
            first.pump(partial(self._put, topic))
            if not len(first):
                del self._held[topic]
        for entry in self._outbox.take():
            entry.span.pending -= len(entry.messages)
            self._hand_over(*entry)

    def _unanswered(self) -> int:
        return len(self._producer) + sum(map(len, self._held.values()))

    def _put(self, topic: str, message: MessageTuple, callback: Callback, refuse: Refuse) -> bool:
        key, value, timestamp, headers = message
        try:
            self._produce(topic, value, key, -1, callback, None, timestamp, headers)
        except (KafkaException, BufferError) as error:
            refuse(_reason(error), Message(*message))
            return False
        return True

    def poll(self, timeout: float) -> None:
        """See `Sink.poll`."""
        self._heard_error = False
        # The number of events counts errors too.
        if self._serve(self._producer.poll, timeout) and not self._heard_error:
            self._outage = None
        if self._held or len(self._outbox):
            self._pump()

    def flush(self, timeout: float) -> bool:
        """See `Sink.flush`."""
        until = time.monotonic() + timeout
        while True:
            if self._produce is _hold_back:
                # What the broker sends back when the producer has ended would wait in its queue for ever.
                self._producer.purge(in_flight=False)
            flushed = self._serve(self._producer.flush, max(0.0, until - time.monotonic())) == 0
            if flushed:
                self._outage = None
            self._pump()
            if not self.queued() or time.monotonic() >= until:
                return flushed and not self.queued()

    @staticmethod
    def _serve(call: Callable[[float], int], timeout: float) -> int | None:
        """Return what ``call`` returns, or None when the producer has just broken for good.

        That comes as an exception here, and once. What it means for messages, their reports say.
        """
        try:
            return call(timeout)
        except KafkaException as error:
            if not error.args[0].fatal():
                raise
            _log.warning("the producer has ended: %s", error.args[0].str())
            return None

    def take_failures(self) -> list[DeliveryFailure]:
        """See `Sink.take_failures`."""
        failures, self._failures = self._failures, []
        return failures

    def outage(self) -> str | None:
        """See `Sink.outage`."""
        # With nothing to deliver nothing would take the word back, so it counts only while something waits.
        return self._outage if len(self._producer) else None

    def hold_back(self) -> None:
        """See `Sink.hold_back`."""
        self._produce = _hold_back
        self._producer.purge(in_flight=False)

    def before_sending(self, look: Callable[[], None]) -> None:
        """See `Sink.before_sending`."""
        self._look = look

    def discard(self, *, in_order: bool) -> None:
        """See `Sink.discard`: a new producer also leaves behind whatever made the old one unusable."""
        self._in_order = in_order
        self._first.clear()
        self._held.clear()
        self._open.clear()
        self._outbox = Outbox(self._unanswered)
        self._producer.purge()
        self.poll(0)
        self._producer = self._new_producer()
        self._produce = self._producer.produce
        self._reports = DeliveryReports(self._failed)
        self._failures = []

    def queued(self) -> int:
        """See `Sink.queued`."""
        return self._unanswered() + len(self._outbox)

    def ensure_topic(self, topic: str, *, keyed: bool) -> TopicLimits:
        """See `Sink.ensure_topic`."""
        limits = self.ensure_topics({topic: keyed}, lambda ask: ask())[topic]
        if isinstance(limits, RefusedError):
            raise limits
        return limits

    def ensure_topics(
        self, wanted: Mapping[str, bool], call: Callable[[Callable[[], TopicsFound]], TopicsFound]
    ) -> TopicsFound:
        """See `Sink.ensure_topics`."""
        found = call(lambda: self._admin.ensure_all(wanted))
        for topic, limits in found.items():
            if isinstance(limits, TopicLimits):
                self._partitions[topic] = limits.partitions
        return found

    def marks(self, topic: str) -> Marks:
        """See `Sink.marks`."""
        return self._reading().marks(topic)

    def keys(self, topic: str, start: Marks, end: Marks, on_wait: Callable[[], None]) -> Iterator[KeyRecord]:
        """See `Sink.keys`."""
        return self._reading().keys(topic, start, end, on_wait)

    def check(self) -> dict[str, Any]:
        """See `Sink.check`."""
        # A relay that starts waits for a broker that is being started again.
        return self._admin.check(REQUEST_SECONDS)

    def close(self) -> None:
        """See `Sink.close`."""
        self._producer.purge()
        if self._reader is not None:
            self._reader.close()

    def _reading(self) -> TopicReader:
        if self._reader is None:
            self._reader = TopicReader(self._client_config)
        return self._reader

    def _new_producer(self) -> Producer:
        try:
            order = IN_ORDER if self._in_order else {}
            return Producer({**self._config, **order, "error_cb": self._noticed}, logger=_log)
        except (KafkaException, ValueError, TypeError) as error:
            raise bad_setting(error) from error

    def _report_for(self, span: Span, topic: str, headers: list[tuple[str, bytes]] | None) -> Any:
        """Return the delivery callback of one batch, or of one message that has headers."""

        def report(error: KafkaError | None, message: Any) -> None:
            if error is None:
                span.pending -= 1
            else:
                _, stamp = message.timestamp()
                sent = Message(message.key(), message.value(), stamp, headers)
                self._failed(topic, error, sent, span)

        return report

    def _failed(
        self,
        topic: str,
        error: KafkaError,
        message: Message,
        span: Span,
        receipt: Receipt | None = None,
        index: int = 0,
    ) -> None:
        if self._in_order and topic != self._letters:
            self._produce = _hold_back
        span.failed += 1
        hint = "mend the cause, or drop such rows into the dead letters with --on-error log"
        if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
            hint = f"raise max.message.bytes of topic {topic}; the producer would send it"
        elif error.code() in _TOPIC_GONE:
            hint = f"topic {topic} was deleted; it is made again, and the rows from before are not in it"
        is_setup = error.code() in _SETUP_ERRORS
        is_outage = not is_setup and error.code() not in _MESSAGE_ERRORS
        size = len(message.key or b"") + len(message.value or b"")
        reason = f"Kafka refuses a message of {size} bytes: {error.str()}"
        if is_setup:
            hint = _SETUP_ERRORS[error.code()].format(topic=topic)
            reason = f"Kafka lets nothing into topic {topic}: {error.str()}"
        if is_outage and error.code() not in _TOPIC_GONE:
            hint = "the relay goes on by itself once Kafka takes messages again: look at the brokers"
        if error.code() in _HELD_BACK:
            reason = "a message was held back behind one that failed"
        is_final = error.code() in _TOPIC_GONE or error.fatal()
        failure = DeliveryFailure(topic, reason, is_outage, hint, message, span, is_final, is_setup)
        self._failures.append(replace(failure, receipt=receipt, index=index))

    def _noticed(self, error: KafkaError) -> None:
        """Take librdkafka's word on a connection that failed; the next delivery takes it back."""
        if error.code() in _CONNECTION_ERRORS:
            self._heard_error = True
            if self._outage is not None and error.code() == KafkaError._ALL_BROKERS_DOWN:
                # It follows what says why.
                return
            self._outage = f"Kafka can't be reached: {error.str()}"


def _nothing() -> None:
    """Look at nothing."""


def _hold_back(*args: Any) -> None:
    """Refuse a message in librdkafka's stead, as it refuses one that it purges."""
    raise KafkaException(KafkaError(KafkaError._PURGE_QUEUE))


def _reason(error: KafkaException | BufferError) -> KafkaError:
    if isinstance(error, KafkaException):
        return cast(KafkaError, error.args[0])
    return KafkaError(KafkaError._QUEUE_FULL)
