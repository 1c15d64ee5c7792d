"""Interpret Kafka's delivery errors: is it the message, the set-up or an outage; with hints."""

from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException

from bwtui.kafka.client import MISSING_TOPIC
from bwtui.model.delivery import DeliverySpan, Receipt
from bwtui.sink.base import DeliveryFailure, Message

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
