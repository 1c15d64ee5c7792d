"""The Kafka sink: an idempotent producer whose delivery reports count down the spans.

The relay limits what is in flight (`Acknowledgements.bytes_in_flight`), so librdkafka's queue never fills: a
message rejected for a full queue, while the next one is accepted, would change the order of a key.
"""

import shlex
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Producer

from bwtui.compiled import speedups
from bwtui.kafka.client import (
    DEFAULT_MAX_MESSAGE_BYTES,
    IN_BULK,
    IN_ORDER,
    REQUEST_SECONDS,
    client_config,
    log,
    new_client,
    producer_config,
    request_size_note,
)
from bwtui.kafka.groups import GroupReader
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.model.events import event
from bwtui.settings import RelaySettings
from bwtui.sink.delivery import (
    Callback,
    DeliveryReports,
    Outbox,
    OutboxEntry,
    as_sent,
    delivery_failure,
    held_back,
    reason_of,
)
from bwtui.sink.destination import (
    DeliveryFailure,
    Destination,
    Limits,
    Message,
    MessageCounts,
    MessageTuple,
    Precondition,
    PresentTopics,
    Purgeable,
    Sink,
    SinkService,
    TopicEnd,
    TopicLimits,
)
from bwtui.sink.topics import KafkaTopicScanner, TopicAdmin, TopicInspector

# The work for each message sent to Kafka and each delivery report; the C extension does it faster.

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
        key, value, timestamp, message_headers = messages[place]
        if message_headers is not headers and not has_each:
            return place, None
        report = reports[place] if has_each else reports
        try:
            # Positional arguments cost half as much as keywords: …, partition, callback, on_delivery, ….
            produce(topic, value, key, -1, report, None, timestamp, message_headers)
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


hand_over: Any = speedups.hand_over if speedups is not None else hand_over_in_python
tally_class: Any = speedups.Tally if speedups is not None else PythonDeliveryTally


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

    callback: DeliveryTally = tally_class(refused, over)
    return callback


# Send the first message to each partition alone, so that none can overtake one that is rejected.
#
# A broker accepts any sequence number as the first of a producer in a partition (KIP-360). So if it rejects a
# new producer's first request while the second is already in flight, it accepts the second: a key's later row
# would be before its earlier one, which is sent again. After a request that it accepted, it rejects such a
# gap.

#: Called with the error of a message that the producer did not accept, and the message.
Refuse = Callable[[KafkaError, Message], None]
#: Passes a message with its callback to the producer; False if it was rejected, which has then been reported.
Put = Callable[[MessageTuple, Callback, Refuse], bool]


class FirstRequests:
    """The messages of one topic, until each of its partitions has accepted one; then it is open.

    Only the first report of a key shows its partition. So a message with a new key waits until no message
    with an unknown partition is in flight for the topic, and all later messages wait after it.
    """

    def __init__(self, partitions: int) -> None:
        """Take the number of partitions of the topic."""
        self._partitions = partitions
        self._waiting: deque[tuple[MessageTuple, Callback, Refuse]] = deque()
        self._keys: set[bytes | None] = {None}
        self._partitions_in_use: set[int] = set()
        self._is_in_flight = False

    def __len__(self) -> int:
        """Return the number of waiting messages."""
        return len(self._waiting)

    @property
    def is_open(self) -> bool:
        """Whether every partition has accepted a message."""
        return len(self._partitions_in_use) >= self._partitions

    def may_send(self, messages: Sequence[MessageTuple]) -> bool:
        """Return whether ``messages`` may be sent now: none waits, and the partition of each key is known."""
        keys = self._keys
        return not self._waiting and all(message[0] in keys for message in messages)

    def add(self, message: MessageTuple, callback: Callback, refuse: Refuse) -> None:
        """Let ``message`` wait for its turn."""
        self._waiting.append((message, callback, refuse))

    def pump(self, put: Put) -> None:
        """Send the messages whose turn has come. Messages without a key have no order, and never wait."""
        waiting = self._waiting
        while waiting:
            message, callback, refuse = waiting[0]
            is_first = not self.is_open and message[0] not in self._keys
            if is_first and self._is_in_flight:
                return
            waiting.popleft()
            if is_first:
                self._is_in_flight = put(message, self._reporting(message[0], callback), refuse)
            else:
                put(message, callback, refuse)

    def _reporting(self, key: bytes | None, callback: Callback) -> Callback:
        def report(error: KafkaError | None, message: Any) -> None:
            self._is_in_flight = False
            if error is None:
                self._keys.add(key)
                self._partitions_in_use.add(message.partition())
            callback(error, message)

        return report


# librdkafka warns about each experimental setting, and this one is used on purpose: see `IN_ORDER`.
log.addFilter(lambda record: "enable.gapless.guarantee" not in record.getMessage())

#: Interval at which a flush checks the messages that wait in the relay.
_FLUSH_SECONDS = 0.05
#: If messages wait longer for others (linger.ms), a stop would end before they are sent.
_LONG_LINGER = 5.0
_CONNECTION_ERRORS = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
    }
)


def open_destination(settings: RelaySettings) -> Destination:
    """Open Kafka and the schema registry; no connection is needed yet. Raises UsageError."""
    return destination_of(settings, KafkaSink(settings))


def open_service(settings: RelaySettings) -> tuple[Sink, SinkService]:
    """Open only Kafka: a registry client takes much memory in a small process. Raises UsageError."""
    sink = KafkaSink(settings)
    return sink, KafkaService(settings, sink)


def destination_of(settings: RelaySettings, sink: "KafkaSink") -> Destination:
    """Return ``sink`` with the other interfaces of Kafka."""
    from bwtui.encode.registry import SchemaRegistry

    service = KafkaService(settings, sink)
    registry = SchemaRegistry(settings.schema_registry, settings.registry_config)
    return Destination(
        sink,
        registry,
        service,
        sink,
        service.reader,
        GroupReader(client_config(settings)),
        settings.broker,
        "Kafka and the schema registry",
    )


def preconditions(settings: RelaySettings) -> Sequence[Precondition]:
    """Return the checks that Kafka and the schema registry respond."""

    def brokers() -> str:
        cluster = TopicAdmin(client_config(settings), DEFAULT_MAX_MESSAGE_BYTES).check()
        count = cluster["brokers"]
        return f"{count} broker{'' if count == 1 else 's'}, cluster {cluster['cluster_id']}"

    def registry() -> str:
        from bwtui.encode.registry import SchemaRegistry

        client = SchemaRegistry(settings.schema_registry, settings.registry_config)
        client.check()
        return client.url_without_user

    return ("Kafka", brokers), ("schema registry", registry)


def present_limits(settings: RelaySettings, topics: Sequence[str]) -> Limits:
    """Return the limits of those of ``topics`` that exist. Raises ConnectionFailed."""
    return TopicAdmin(client_config(settings), DEFAULT_MAX_MESSAGE_BYTES).present(topics)


class KafkaSink(Purgeable):
    """Sends messages to Kafka: a `bwtui.sink.destination.Sink` that can hold back waiting messages."""

    def __init__(self, settings: RelaySettings) -> None:
        """Check the settings and create the producer; no connection is needed yet. Raises UsageError."""
        self._config = producer_config(settings)
        self._in_bulk = producer_config(settings, defaults=IN_BULK)
        self._failures: list[DeliveryFailure] = []
        self._outage: str | None = None
        self._heard_error = False
        #: Number of messages, without those that were discarded.
        self._accepted = 0
        self._counts = MessageCounts()
        self._in_order = True
        #: A dead letter that is rejected is sent again in a shorter form, and no row has to wait for it.
        self._letters = settings.dead_letter_topic
        #: For the topics whose limits were fetched.
        self.partitions: dict[str, int] = {}
        self._first: dict[str, FirstRequests] = {}
        #: Those of them with waiting messages.
        self._held: dict[str, FirstRequests] = {}
        #: Topics of which every partition has accepted a message from this producer.
        self._open: set[str] = set()
        self._outbox = Outbox(self._unanswered)
        self._before_sending: Callable[[], None] = lambda: None
        self._producer = self._new_producer()
        self._produce: Callable[..., None] = self._producer.produce
        self._reports = DeliveryReports(self._failed)
        #: Both are names of one property.
        self.lingers = float(self._config.get("queue.buffering.max.ms", self._config["linger.ms"])) / 1_000
        self.max_message_bytes = int(self._config["message.max.bytes"])
        self._may_be_refused = request_size_note(self.max_message_bytes)

    def send(
        self, topic: str, messages: Sequence[MessageTuple], span: DeliverySpan, receipt: Receipt | None = None
    ) -> None:
        self._before_sending()
        self._accepted += len(messages)
        if self._in_order and not self._outbox.may_go(span, len(messages)):
            span.pending += len(messages)
            self._outbox.put(OutboxEntry(topic, messages, span, receipt))
            return
        self._hand_over(topic, messages, span, receipt)

    def _hand_over(
        self, topic: str, messages: Sequence[MessageTuple], span: DeliverySpan, receipt: Receipt | None
    ) -> None:
        if self._in_order and topic not in self._open:
            first = self._first.setdefault(topic, FirstRequests(self.partitions.get(topic, 1)))
            if first.is_open and not len(first):
                self._open.add(topic)
                del self._first[topic]
            elif not first.may_send(messages):
                self._send_first(first, topic, messages, span, receipt)
                return
        span.pending += len(messages)
        if receipt is not None:
            self._send_recorded(topic, messages, span, receipt)
        else:
            self._send_unrecorded(topic, messages, span)

    def _send_unrecorded(self, topic: str, messages: Sequence[MessageTuple], span: DeliverySpan) -> None:
        """Send with one callback for each run of messages with the same headers."""
        self._counts.add(topic, len(messages))
        place = 0
        while place < len(messages):
            first, report = place, tally(self._failed, topic, span, messages[place][3])
            place, error = hand_over(self._produce, topic, messages, first, report, REFUSALS)
            report.expect(place - first - (error is not None))
            if error is not None:
                self._failed(topic, reason_of(error), Message(*messages[place - 1]), span)

    def _send_recorded(
        self, topic: str, messages: Sequence[MessageTuple], span: DeliverySpan, receipt: Receipt
    ) -> None:
        """Send with a callback for each message, which records where it went."""
        self._counts.add(topic, len(messages))
        callbacks, place = self._reports.take(topic, messages, span, receipt).callbacks, 0
        while place < len(messages):
            place, error = hand_over(self._produce, topic, messages, place, callbacks, REFUSALS)
            if error is not None:
                callbacks[place - 1](reason_of(error), Message(*messages[place - 1]))

    def _send_first(
        self,
        first: FirstRequests,
        topic: str,
        messages: Sequence[MessageTuple],
        span: DeliverySpan,
        receipt: Receipt | None,
    ) -> None:
        """Send to a topic of which not every partition has accepted a message from this producer."""
        span.pending += len(messages)
        if receipt is not None:
            section = self._reports.take(topic, messages, span, receipt)
            for callback, message in zip(section.callbacks, messages, strict=False):
                first.add(message, callback, callback)
        else:
            refuse = partial(self._failed, topic, span=span)
            for message in messages:
                first.add(message, self._report_of_one(topic, message, span), refuse)
        self._held[topic] = first
        self._pump()

    def _pump(self) -> None:
        """Send what need not wait any more, for its turn or for the first message into a partition."""
        self._before_sending()
        if self._produce is held_back:
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
        self._counts.add(topic, 1)
        try:
            self._produce(topic, value, key, -1, callback, None, timestamp, headers)
        except REFUSALS as error:
            refuse(reason_of(error), Message(*message))
            return False
        return True

    def poll(self, timeout: float) -> None:
        self._heard_error = False
        # The number of events includes errors.
        if self._serve(self._producer.poll, timeout) and not self._heard_error:
            self._outage = None
        if self._held or len(self._outbox):
            self._pump()

    def flush(self, timeout: float) -> bool:
        until = time.monotonic() + timeout
        while True:
            if self._produce is held_back:
                # Replies of the broker after the producer's end would stay in its queue forever.
                self._producer.purge(in_flight=False)
            # Not its `flush`, which loses delivery reports if the producer ends meanwhile. But only a flush
            # sends messages that still wait for others.
            call = self._producer.flush if self.lingers > _LONG_LINGER else self._producer.poll
            remaining = max(0.0, until - time.monotonic()) if len(self._producer) else 0.0
            self._serve(call, min(remaining, _FLUSH_SECONDS))
            if not len(self._producer):
                self._outage = None
            self._pump()
            if not self.queued() or time.monotonic() >= until:
                return not self.queued()

    @staticmethod
    def _serve(call: Callable[[float], int], timeout: float) -> int | None:
        """Return the result of ``call``, or None if the producer has just failed fatally.

        A fatal error is raised here, once. The delivery reports show its effect on messages.
        """
        try:
            return call(timeout)
        except KafkaException as error:
            if not error.args[0].fatal():
                raise
            log.warning(
                "librdkafka has ended the producer: %s", error.args[0].str(), extra=event("producer_ended")
            )
            return None

    def take_failures(self) -> list[DeliveryFailure]:
        failures, self._failures = self._failures, []
        return failures

    def refresh(self, topic: str) -> None:
        """Have the producer fetch a topic's partitions now; any thread may call it."""
        self._producer.list_topics(topic, timeout=REQUEST_SECONDS)

    def outage(self) -> str | None:
        # If nothing is to be delivered, nothing would clear the outage, so it counts only while messages
        # wait.
        return self._outage if len(self._producer) else None

    def hold_back(self) -> None:
        self._produce = held_back
        self._producer.purge(in_flight=False)

    def before_sending(self, check: Callable[[], None]) -> None:
        self._before_sending = check

    def handed_over(self, topic: str) -> int:
        return self._counts[topic]

    def message_counts(self) -> MessageCounts:
        return self._counts

    def discard(self, *, in_order: bool) -> None:
        # Notices about brokers count as messages of the producer's queue until they are read.
        self._serve(self._producer.poll, 0)
        answered = self.answered()
        # A new producer also clears whatever made the old one unusable.
        self._in_order = in_order
        self._first.clear()
        self._held.clear()
        self._open.clear()
        self._outbox = Outbox(self._unanswered)
        self._producer.purge()
        self.poll(0)
        self._accepted = answered
        self._producer = self._new_producer()
        self._produce = self._producer.produce
        self._reports = DeliveryReports(self._failed)
        self._failures = []

    def queued(self) -> int:
        return self._unanswered() + len(self._outbox)

    def answered(self) -> int:
        return max(0, self._accepted - self.queued())

    def close(self) -> None:
        """Release the producer, without waiting for messages in flight."""
        self._producer.purge()

    def _new_producer(self) -> Producer:
        config = {**self._config, **IN_ORDER} if self._in_order else self._in_bulk
        return new_client(Producer, {**config, "error_cb": self._noticed})

    def _report_of_one(self, topic: str, message: MessageTuple, span: DeliverySpan) -> Callback:
        report = tally(self._failed, topic, span, message[3])
        report.expect(1)
        return report

    def _failed(
        self,
        topic: str,
        error: KafkaError,
        message: Message,
        span: DeliverySpan,
        receipt: Receipt | None = None,
        index: int = 0,
    ) -> None:
        if self._in_order and topic != self._letters:
            self._produce = held_back
        span.failed += 1
        self._counts.add(topic, -1)
        self._failures.append(delivery_failure(topic, error, message, span, receipt, index))

    def _noticed(self, error: KafkaError) -> None:
        """Record a failed connection; the next delivery clears it."""
        if error.code() in _CONNECTION_ERRORS:
            self._heard_error = True
            if self._outage is not None and error.code() == KafkaError._ALL_BROKERS_DOWN:
                # It follows a more specific error.
                return
            self._outage = f"Kafka can't be reached: {error.str()}{self._may_be_refused}"


class KafkaService(SinkService):
    """The brokers of a `KafkaSink`, and its topics."""

    name = "Kafka"

    def __init__(self, settings: RelaySettings, sink: KafkaSink) -> None:
        """Create the clients; no connection is needed yet. Raises UsageError."""
        self._sink = sink
        self._broker = settings.broker
        self.lingers = sink.lingers
        client = client_config(settings)
        self.reader = KafkaTopicScanner(client)
        self._admin = TopicAdmin(client, sink.max_message_bytes, settings.transaction_topic)
        self._now, self._ends = TopicInspector(client), TopicInspector(client)

    def check(self) -> str:
        # A relay that starts waits for a broker that is restarting.
        return str(self._admin.check(REQUEST_SECONDS)["cluster_id"])

    def outage(self) -> str | None:
        return self._sink.outage()

    def ensure_topics(self, topics: Mapping[str, bool]) -> Limits:
        return self._admin.ensure_all(topics)

    def present_topics(self, topics: Collection[str], *, with_beginnings: bool) -> PresentTopics:
        return self._now.describe(topics, with_beginnings=with_beginnings)

    def compact_command(self, topic: str) -> str:
        which = f"--entity-type topics --entity-name {topic}"
        return f"kafka-configs {self._server_option} --alter {which} --add-config cleanup.policy=compact"

    def delete_command(self, topic: str) -> str:
        return f"kafka-topics {self._server_option} --delete --topic {topic}"

    @property
    def _server_option(self) -> str:
        return f"--bootstrap-server {shlex.quote(self._broker)}"

    def ends(self, topics: Collection[str]) -> dict[str, TopicEnd]:
        return self._ends.ends(topics)

    def cluster_now(self) -> str:
        return self._now.cluster()

    def refresh(self, topic: str) -> None:
        try:
            self._sink.refresh(topic)
        except KafkaException as error:
            # It finds out on its own, within five minutes.
            log.info("topic %s: %s", topic, error, extra=event("topics_unseen"))

    def take_limits(self, limits: Limits) -> None:
        for topic, one in limits.items():
            if isinstance(one, TopicLimits):
                self._sink.partitions[topic] = one.partitions

    def close(self) -> None:
        self._sink.close()
        self.reader.close()
