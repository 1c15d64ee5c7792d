"""Find where a log is readable again after a damaged batch.

A batch has one checksum. librdkafka reports where a batch with a wrong checksum begins, and the rest of the
broker's answer is unusable. The broker sends the batch again for every offset within it; so the batch ends at
the first offset for which it does not. The search for that offset doubles its steps, then halves them, with a
new assignment for each.
"""

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from bwtui.kafka.splits import Split

#: librdkafka's errors for bytes that are not a batch, and a broker's error for a log that it can't read
#: itself.
_DAMAGE = frozenset(
    {
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError._UNDERFLOW,
        KafkaError.INVALID_MSG,
    }
)
_WAIT_SECONDS = 0.1
#: For a batch of an unknown version librdkafka reports nothing, except for its first offset.
_SILENCE_SECONDS = 1.5
#: Timeout for a broker to report that nothing follows the log's end.
_ANSWER_SECONDS = 10.0
#: Maximum requests for an offset that the broker claims not to have.
_ASTRAY = 3


def is_damage(event: Message) -> bool:
    """Return whether ``event`` reports an unreadable batch."""
    error = event.error()
    return error is not None and error.code() in _DAMAGE


def begins(event: Message) -> int | None:
    """Return where the damaged batch of ``event`` begins, or None if unknown."""
    error = event.error()
    known = error is not None and error.code() in (KafkaError._BAD_MSG, KafkaError._NOT_IMPLEMENTED)
    return event.offset() if known else None


def is_always_reported(event: Message) -> bool:
    """Return whether requests for any offset of the damaged batch of ``event`` report the damage."""
    error = event.error()
    return error is not None and error.code() == KafkaError._BAD_MSG


def readable_after(
    consumer: Consumer, split: Split, at: int, batch: int | None, *, always_told: bool = False
) -> int:
    """Return where the batch that begins at ``batch`` and has offset ``at`` ends, at most ``split.high``.

    ``batch`` may be unknown; then the result covers all damage from ``at`` on, until a different batch
    begins. Raises TimeoutError when the broker is silent; if the damage is ``always_told``, silence does not
    count as damage.
    """

    def holds(offset: int) -> bool:
        event = _answer(consumer, split, offset, always_told=always_told)
        if event is None:
            return True
        start = begins(event)
        if batch is not None:
            # The damage of a different batch means that this one has ended.
            return is_damage(event) and start in (None, batch)
        # An event after the requested offset follows a gap, or is the report of the damage.
        return is_damage(event) and not (start is not None and at < start <= offset)

    low, step = at, 1
    while (high := min(at + step, split.high)) < split.high and holds(high):
        low, step = high, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return high


def is_within(consumer: Consumer, split: Split, offset: int) -> bool:
    """Return whether the broker answers a request for ``offset`` with a damaged batch.

    Raises TimeoutError when it does not answer.
    """
    event = _answer(consumer, split, offset, always_told=False)
    return event is None or is_damage(event)


def _answer(consumer: Consumer, split: Split, offset: int, *, always_told: bool) -> Message | None:
    """Return the event for ``offset``; None if there is none although the broker reports the log's end."""
    event = _first_event(consumer, split, offset, _ANSWER_SECONDS if always_told else _SILENCE_SECONDS)
    if event is not None:
        return event
    if always_told:
        raise TimeoutError
    place = TopicPartition(split.topic, split.partition)
    try:
        _, end = consumer.get_watermark_offsets(place, _ANSWER_SECONDS)
    except KafkaException as error:
        raise TimeoutError from error
    if _first_event(consumer, split, end, _ANSWER_SECONDS) is None:
        raise TimeoutError
    return None


def _first_event(consumer: Consumer, split: Split, offset: int, seconds: float) -> Message | None:
    """Return the record at ``offset``, or the event for the log's end; None when the broker sends nothing."""
    place = TopicPartition(split.topic, split.partition, offset)
    consumer.assign([place])
    deadline, astray = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        for event in consumer.consume(1, _WAIT_SECONDS):
            error = event.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF or is_damage(event):
                return event
            if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                # The answer to an earlier assignment may have moved the position to an offset that never
                # existed.
                astray += 1
                if astray > _ASTRAY:
                    return event
                consumer.assign([place])
            elif not error.retriable():
                raise KafkaException(error)
    return None
