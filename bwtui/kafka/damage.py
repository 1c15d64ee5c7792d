"""Where a log can be read again after a damaged batch.

A batch has one checksum. librdkafka says where one begins that does not match, and what it reads after it
in the same answer of the broker makes no sense. Whatever offset within the batch is asked for, the broker
sends it again; so its end is the first offset for which it does not. That is looked for in steps that
double, and then halve, each with a new assignment.
"""

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from bwtui.kafka.splits import Split

#: What librdkafka says of bytes that are no batch, and a broker of a log that it can't read itself.
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
#: Of a batch of no known version librdkafka says nothing, unless it is asked for its first offset.
_SILENCE_SECONDS = 1.5
#: How long a broker may take to say that there is nothing after the log's end.
_ANSWER_SECONDS = 10.0
#: So often is an offset asked for that the broker says it does not have.
_ASTRAY = 3


def is_damage(event: Message) -> bool:
    """Whether ``event`` says that a batch can't be read."""
    error = event.error()
    return error is not None and error.code() in _DAMAGE


def begins(event: Message) -> int | None:
    """Return where the damaged batch of ``event`` begins, or None where that is not known."""
    error = event.error()
    known = error is not None and error.code() in (KafkaError._BAD_MSG, KafkaError._NOT_IMPLEMENTED)
    return event.offset() if known else None


def is_always_told(event: Message) -> bool:
    """Whether asking for any offset of the damaged batch of ``event`` brings the same answer."""
    error = event.error()
    return error is not None and error.code() == KafkaError._BAD_MSG


def readable_behind(
    consumer: Consumer, split: Split, at: int, batch: int | None, *, always_told: bool = False
) -> int:
    """Return where the batch ends that begins at ``batch`` and holds offset ``at``: ``split.high`` at most.

    Where it begins may be unknown; then it is all that is damaged from ``at`` on, up to where another batch
    begins. Raises TimeoutError when the broker is silent; of a batch that is ``always_told`` of, silence
    is no answer.
    """

    def holds(offset: int) -> bool:
        event = _answer(consumer, split, offset, always_told=always_told)
        if event is None:
            return True
        start = begins(event)
        if batch is not None:
            # Where another batch that is damaged begins, this one has ended.
            return is_damage(event) and start in (None, batch)
        # One after what was asked for stands after a gap, or it is the damage that says so.
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
    """Whether the broker answers with a damaged batch when it is asked for ``offset``.

    Raises TimeoutError when it does not answer.
    """
    event = _answer(consumer, split, offset, always_told=False)
    return event is None or is_damage(event)


def _answer(consumer: Consumer, split: Split, offset: int, *, always_told: bool) -> Message | None:
    """Return what comes for ``offset``; None when nothing does, though the broker tells the log's end."""
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
    """Return what the broker sends of ``offset``, or that it is the log's end; None when it sends nothing."""
    place = TopicPartition(split.topic, split.partition, offset)
    consumer.assign([place])
    deadline, astray = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        for event in consumer.consume(1, _WAIT_SECONDS):
            error = event.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF or is_damage(event):
                return event
            if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                # What it made of the answer before may still have moved it, to an offset that never was.
                astray += 1
                if astray > _ASTRAY:
                    return event
                consumer.assign([place])
            elif not error.retriable():
                raise KafkaException(error)
    return None
