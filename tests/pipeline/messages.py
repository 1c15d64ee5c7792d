"""Writes messages into topics with every kind of key, value and header, also in transactions."""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer

Config = dict[str, str]

#: key, value, headers
ODD: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]] = [
    (b"k", b"v", None),
    (None, b"no key", [("a", b"1"), ("a", b"2"), ("", b"")]),
    (b"tombstone", None, [("null", None)]),
    (b"", b"", []),
    (None, None, None),
    (bytes(range(256)), bytes(range(255, -1, -1)) * 40, [("\u00e4\u4e16", b"\x00\xff")]),
]


def produce(
    config: Config, topic: str, rows: Iterable[tuple[Any, Any, Any]], *, partition: int = 0, start: int = 0
) -> None:
    """Write ``rows`` into one partition; the timestamps count up from some day in 2026."""
    producer = Producer({**config, "linger.ms": 5})
    for number, (key, value, headers) in enumerate(rows):
        stamp = 1_790_000_000_000 + start + number
        producer.produce(topic, value, key, partition, timestamp=stamp, headers=headers)
    assert producer.flush(30) == 0


class Transactions:
    """A transactional producer."""

    def __init__(self, config: Config, topic: str) -> None:
        self._topic = topic
        self.producer = Producer({**config, "transactional.id": f"of-{topic}"})
        self.producer.init_transactions(30)

    def write(self, *keys: str) -> None:
        """Begin a transaction with a message for each key; they are in the log when this returns."""
        self.producer.begin_transaction()
        for key in keys:
            self.producer.produce(self._topic, key.encode(), key.encode(), 0)
        assert self.producer.flush(30) == 0

    def commit(self, *keys: str) -> None:
        """Write and commit a transaction: its messages and one marker."""
        self.write(*keys)
        self.producer.commit_transaction(30)

    def abort(self, *keys: str) -> None:
        """Write and abort a transaction: its messages and one marker."""
        self.write(*keys)
        self.producer.abort_transaction(30)
