"""The topic of positions: one record within each Kafka transaction has the stream's position."""

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec

from bwtui.errors import ConnectionFailed, PositionHidden, RefusedError
from bwtui.kafka.client import READING, WITHOUT_LEADER, new_client
from bwtui.model.position import Position
from bwtui.settings import RelaySettings
from bwtui.sink.topics import TopicAdmin

#: Number of offsets to read at the end first, and the factor for each next step: a commit has two offsets.
_STEP, _FACTOR = 200, 32
_WAIT_SECONDS, _PAUSE_SECONDS = 10.0, 0.2
#: Maximum time for which an open transaction may hide a position: the commit of a live relay takes less.
_HIDDEN_SECONDS, _LOOK_SECONDS = 1.0, 0.02
#: One record per commit: small segments, which are compacted soon, keep the topic short.
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"}


def positions_topic(settings: RelaySettings) -> str:
    """Return the topic's name. It has more parts than a table's topic under the same prefix can have."""
    name = f"bwtui.position.{settings.slot}"
    return f"{settings.topic_prefix}.{name}" if settings.topic_prefix else name


class PositionTopic(TopicAdmin):
    """Creates the topic, and reads the last position in it."""

    def __init__(self, settings: RelaySettings, config: Mapping[str, Any]) -> None:
        super().__init__(dict(config), 1_048_576)
        self.topic = positions_topic(settings)
        self._config = {
            **config,
            **READING,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            # A start waits twice for the topic's end, each time half a second by the broker's default.
            "fetch.wait.max.ms": 10,
        }

    def prepare(self) -> None:
        """Create the topic if it is missing. Raises RefusedError and ConnectionFailed."""
        if not self.ensure(self.topic, keyed=True).compacted:
            raise RefusedError(
                f"topic {self.topic} is not compacted: the relay's position in it would expire",
                f"set cleanup.policy=compact on topic {self.topic}",
            )

    def _new(self, topic: str, keyed: bool) -> NewTopic:
        return NewTopic(topic, 1, -1, config=_CONFIG)

    def last(self, key: bytes) -> Position | None:
        """Return the newest committed position of ``key``, or None. Raises ConnectionFailed, RefusedError.

        A leader election is waited for, since it would fail a start. Relays of other servers with the same
        slot name and prefix write to the same partition, and a read_committed consumer sees nothing after the
        first record of an open transaction. Raises PositionHidden if a transaction stays open.
        """
        until = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                return self._last(key)
            except KafkaException as error:
                reason = error.args[0]
                if reason.code() not in WITHOUT_LEADER or time.monotonic() > until:
                    raise self._unreadable(reason) from error
            time.sleep(_PAUSE_SECONDS)

    def _last(self, key: bytes) -> Position | None:
        consumer = new_client(Consumer, self._config)
        place = TopicPartition(self.topic, 0)
        try:
            low, high = self._bounds(consumer, place)
            step = _STEP
            while True:
                start = max(low, high - step)
                value = self._read(consumer, start, key)
                if value is not None or start <= low:
                    return self._position(value)
                step *= _FACTOR
        finally:
            consumer.close()

    def _bounds(self, consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
        """Return the partition's first offset, and an end offset before which every transaction has ended."""
        request = {place: OffsetSpec.latest()}
        level = IsolationLevel.READ_UNCOMMITTED
        futures = self._asked().list_offsets(request, isolation_level=level, request_timeout=_WAIT_SECONDS)
        end = futures[place].result().offset
        until = time.monotonic() + _HIDDEN_SECONDS
        while True:
            low, stable = consumer.get_watermark_offsets(place, _WAIT_SECONDS)
            if stable >= end:
                return low, stable
            if time.monotonic() > until:
                raise PositionHidden(
                    f"an open Kafka transaction of another relay hides the position in topic {self.topic}",
                    "the relay resumes once that transaction ends, after its transaction.timeout.ms at the "
                    "latest; relays of different servers avoid this with different slot names or prefixes",
                )
            time.sleep(_LOOK_SECONDS)

    def _read(self, consumer: Consumer, start: int, key: bytes) -> bytes | None:
        """Return the newest committed value of ``key`` from offset ``start`` on."""
        consumer.assign([TopicPartition(self.topic, 0, start)])
        value = None
        while (record := consumer.poll(_WAIT_SECONDS)) is not None:
            error = record.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return value
            if error is not None:
                raise KafkaException(error)
            if record.key() == key:
                value = record.value()
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _position(self, value: bytes | None) -> Position | None:
        try:
            return Position.from_json(value) if value is not None else None
        except ValueError as error:
            raise RefusedError(
                f"the last record of topic {self.topic} is not a position of this relay",
                "choose a different slot or --topic-prefix, or omit --exactly-once",
            ) from error

    def _unreadable(self, error: KafkaError) -> ConnectionFailed:
        return ConnectionFailed(
            f"topic {self.topic} can't be read: {error.str()}",
            "the relay reads its position back: grant its user READ, and check that the brokers are up",
        )
