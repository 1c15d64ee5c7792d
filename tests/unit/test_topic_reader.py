"""Reading topics back: a new topic has no leader for a moment, which is not a permission problem."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from bwtui.errors import ConnectionFailed
from bwtui.sink import topics
from bwtui.sink.topics import KafkaTopicScanner


class Broker:
    """Answers with errors first."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        if self.codes:
            raise KafkaException(KafkaError(self.codes.pop(0)))
        return 3, 7


def read(broker: Broker) -> Any:
    reader = KafkaTopicScanner({"bootstrap.servers": "127.0.0.1:1"})
    vars(reader)["_consumer"] = broker
    return reader._watermarks("t", 0, lambda: None)


def test_a_partition_without_a_leader_is_asked_again() -> None:
    new = KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._TIMED_OUT
    assert read(Broker(*new)) == (3, 7)


def test_a_right_that_is_missing_is_told_at_once() -> None:
    broker = Broker(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ConnectionFailed, match="topic t can't be read"):
        read(broker)
    assert broker.codes == []


def test_a_partition_that_gets_no_leader_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_REQUEST_SECONDS", 0.25)
    with pytest.raises(ConnectionFailed, match="topic t can't be read"):
        read(Broker(*[KafkaError.NOT_LEADER_FOR_PARTITION] * 100))
