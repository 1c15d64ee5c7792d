"""The gate before a topic's partitions: one message of unknown partition at a time, and in order."""

import random
from typing import Any

from confluent_kafka import KafkaError

from bwtui.sink.delivery import Callback
from bwtui.sink.destination import Message, MessageTuple
from bwtui.sink.kafka import FirstRequests, Refuse

FATAL = KafkaError(KafkaError._FATAL)


class Delivered:
    """A delivery report's message."""

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def partition(self) -> int:
        return self._partition


class Producer:
    """Accepts messages, and reports them on request."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.under_way: list[tuple[MessageTuple, Callback]] = []
        self.taken: list[MessageTuple] = []
        self.works = True

    def put(self, message: MessageTuple, callback: Callback, refuse: Refuse) -> bool:
        if not self.works:
            refuse(FATAL, Message(*message))
            return False
        self.under_way.append((message, callback))
        return True

    def report(self, error: KafkaError | None = None) -> None:
        """Report the oldest pending message."""
        message, callback = self.under_way.pop(0)
        if error is None:
            self.taken.append(message)
        callback(error, Delivered(self.partition(message[0])))

    def partition(self, key: bytes | None) -> int:
        return sum(key or b"") % self.partitions


def message(key: int | None, n: int = 0) -> MessageTuple:
    return (None if key is None else bytes([key]), b"%d" % n, n, None)


def nothing(*args: Any) -> None:
    """A callback that does nothing."""


def refused(error: KafkaError, message: Message) -> None:
    raise AssertionError("nothing is refused here")


def test_a_key_of_unknown_partition_goes_alone() -> None:
    producer, first = Producer(2), FirstRequests(2)
    for key in (2, 4, 2, 1, 3):
        first.add(message(key), nothing, refused)
    sizes = []
    while producer.under_way or len(first):
        first.pump(producer.put)
        sizes.append([m[0] for m, _ in producer.under_way])
        producer.report()
    # Key 4 is in the same partition as key 2, but the gate can't know that. The second key 2 is sent with it.
    assert sizes[:3] == [[b"\2"], [b"\4", b"\2"], [b"\2", b"\1"]]
    assert first.is_open
    assert [m[0] for m in producer.taken] == [bytes([key]) for key in (2, 4, 2, 1, 3)]


def test_messages_without_a_key_have_no_order() -> None:
    producer, first = Producer(2), FirstRequests(2)
    for _ in range(3):
        first.add(message(None), nothing, refused)
    first.pump(producer.put)
    assert len(producer.under_way) == 3
    assert not len(first)


def test_keys_of_known_partitions_need_not_wait() -> None:
    producer, first = Producer(2), FirstRequests(2)
    assert first.may_send([message(None), message(None)])
    assert not first.may_send([message(None), message(4)])
    first.add(message(4), nothing, refused)
    first.pump(producer.put)
    first.add(message(6), nothing, refused)
    producer.report()
    # Key 4's partition is known now, but another message with that key waits, which may be older.
    assert not first.may_send([message(4)])
    first.pump(producer.put)
    assert first.may_send([message(4), message(None)]) and not first.may_send([message(6)])
    assert not first.is_open


def test_at_most_one_request_into_a_partition_that_has_taken_none() -> None:
    for seed in range(200):
        choice = random.Random(seed)
        partitions = choice.randint(1, 6)
        producer, first = Producer(partitions), FirstRequests(partitions)
        wanted = [message(choice.choice([None, *range(1, 9)]), n) for n in range(40)]
        rest = list(wanted)
        seen: set[int] = set()
        while rest or producer.under_way or len(first):
            if rest and choice.random() < 0.5:
                first.add(rest.pop(0), nothing, refused)
            first.pump(producer.put)
            waiting = [producer.partition(m[0]) for m, _ in producer.under_way if m[0] is not None]
            fresh = [partition for partition in waiting if partition not in seen]
            assert len(fresh) <= 1 or first.is_open, seed
            if producer.under_way and choice.random() < 0.7:
                key = producer.under_way[0][0][0]
                seen |= {producer.partition(key)} if key is not None else set()
                producer.report()
        assert producer.taken == wanted, seed


def test_behind_a_failure_everything_is_refused() -> None:
    producer, first = Producer(2), FirstRequests(2)
    refusals: list[Message] = []
    for key in (1, 2, 3):
        first.add(message(key), nothing, lambda error, m: refusals.append(m))
    first.pump(producer.put)
    producer.works = False
    producer.report(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    first.pump(producer.put)
    assert [m.key for m in refusals] == [b"\2", b"\3"]
    assert not len(first)
