"""A commit of a Kafka transaction counts as done only once Kafka confirms it."""

import threading
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from bwtui.sink.transactions import PendingCommit


class Committing:
    """A producer whose commits end with the given results in turn."""

    def __init__(self, *ends: BaseException | None) -> None:
        self._ends = list(ends)

    def produce(self, *_: Any) -> None:
        """Accept the position."""

    def commit_transaction(self, _: float) -> None:
        """Return or raise the next result."""
        end = self._ends.pop(0)
        if end is not None:
            raise end


def commit(*ends: BaseException | None) -> PendingCommit:
    made = PendingCommit(cast(Producer, Committing(*ends)), "position", b"key", b"value", 0, lambda: True)
    assert made.wait(10)
    # An exception in its thread belongs to this test, and not to the next one.
    for thread in threading.enumerate():
        if thread.name == "commit":
            thread.join(10)
    return made


def test_it_is_made_once_kafka_says_so() -> None:
    slow = KafkaException(KafkaError(KafkaError._TIMED_OUT, "slow", retriable=True))
    assert commit(None).error is None
    assert commit(slow, slow, None).error is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "end",
    [KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True)), MemoryError(), RuntimeError()],
)
def test_whatever_else_ends_it_leaves_it_open(end: BaseException) -> None:
    assert commit(end).error is not None
