"""Find where a log can be read after a damaged batch, with a slow broker and with two damaged batches."""

import time
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from bwtui.kafka import scan as kafka_damage
from bwtui.kafka.scan import Split, readable_after

_HIGH = 100


class _Log:
    """Answers like a consumer: with an error and its batch, or a message; in time, or late."""

    def __init__(self, damage: dict[range, tuple[int, int]], late: int = 0) -> None:
        self._damage = damage
        self._late = late
        self._at = self._left = 0

    def assign(self, places: list[TopicPartition]) -> None:
        self._at, self._left = places[0].offset, self._late

    def get_watermark_offsets(self, *_: object) -> tuple[int, int]:
        return 0, _HIGH

    def consume(self, *_: object) -> list[Message]:
        self._left -= 1
        if self._at == _HIGH:
            return [Message("t", 0, _HIGH, error=KafkaError(KafkaError._PARTITION_EOF, ""))]
        if self._left >= 0:
            time.sleep(0.1)
            return []
        for offsets, (code, begin) in self._damage.items():
            if self._at in offsets:
                return [Message("t", 0, begin, error=KafkaError(code, ""))]
        return [Message("t", 0, self._at)]


def _end(log: _Log, batch: int | None, *, always_reported: bool = False) -> int:
    return readable_after(
        cast(Consumer, log), Split("t", 0, 0, _HIGH), 30, batch, always_reported=always_reported
    )


def test_a_slow_answer_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_damage, "_SILENCE_SECONDS", 0.15)
    log = _Log({range(30, 33): (KafkaError._BAD_MSG, 30)}, late=3)
    assert _end(log, 30, always_reported=True) == 33


def test_no_answer_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_damage, "_ANSWER_SECONDS", 0.2)
    with pytest.raises(TimeoutError):
        _end(_Log({}, late=1000), 30, always_reported=True)


@pytest.mark.parametrize(
    ("code", "begin", "end"),
    [(KafkaError._BAD_MSG, 33, 33), (KafkaError._NOT_IMPLEMENTED, 1 << 40, 40)],
    ids=["another batch", "the same, with a wild offset"],
)
def test_where_a_batch_of_unknown_beginning_ends(code: int, begin: int, end: int) -> None:
    log = _Log({range(30, 33): (KafkaError._UNDERFLOW, 0), range(33, 40): (code, begin)})
    assert _end(log, None) == end
