"""Callbacks of recorded batches are reused, but no report may end up in another batch's receipt."""

import gc
import weakref
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaError

from bwtui.model.delivery import UNKNOWN, DeliverySpan, Receipt
from bwtui.settings import RelaySettings
from bwtui.sink import delivery
from bwtui.sink.delivery import DeliveryReports, ReceiptSection, delivery_failure
from bwtui.sink.destination import Message, MessageTuple
from bwtui.sink.kafka import KafkaSink
from tests.compiled_twin import COMPILER, built
from tests.waiting import eventually


class Report:
    """A delivery report of librdkafka for one message."""

    def __init__(self, message: MessageTuple, partition: int = 0, offset: int | None = 0) -> None:
        self._message, self._partition, self._offset = message, partition, offset

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int | None:
        return self._offset

    def key(self) -> bytes | None:
        return self._message[0]

    def value(self) -> bytes | None:
        return self._message[1]

    def timestamp(self) -> tuple[int, int]:
        return 1, self._message[2]


class Producing:
    """Sections in use, and their failures."""

    def __init__(self) -> None:
        self.failures: list[tuple[Any, ...]] = []
        self.reports = DeliveryReports(lambda *failure: self.failures.append(failure))
        self.batch = 0

    def take(self, count: int, headers: list[tuple[str, bytes]] | None = None) -> "Taken":
        self.batch += 1
        messages: list[MessageTuple] = [(b"k%d" % i, b"v%d" % i, 1000 + i, headers) for i in range(count)]
        return Taken(self.reports, messages, Receipt(self.batch, 0, count))


class Taken:
    def __init__(self, reports: DeliveryReports, messages: list[MessageTuple], receipt: Receipt) -> None:
        self.messages, self.receipt, self.span = messages, receipt, DeliverySpan()
        self.span.pending = len(messages)
        self.section: ReceiptSection = reports.take("t", messages, self.span, receipt)
        self.callbacks = list(self.section.callbacks[: len(messages)])

    def deliver(self, *indexes: int, first_offset: int = 100) -> None:
        for index in indexes or range(len(self.messages)):
            report = Report(self.messages[index], index % 3, first_offset + index)
            self.callbacks[index](None, report)


@pytest.fixture(params=["Python", "C"] if COMPILER else ["Python"])
def producing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Producing:
    places = built().Places if request.param == "C" else delivery.OffsetRecorder
    monkeypatch.setattr(delivery, "places_class", places)
    return Producing()


def test_each_report_stands_where_its_message_stands(producing: Producing) -> None:
    one = producing.take(5)
    one.deliver(3, 0, 4)
    assert list(one.receipt.partitions) == [0, UNKNOWN, UNKNOWN, 0, 1]
    assert list(one.receipt.offsets) == [100, -1, -1, 103, 104]
    # The pending count is not updated for each message of a batch.
    assert one.span.pending == 5
    one.deliver(1, 2)
    assert one.span.pending == 0


def test_the_callbacks_of_a_section_that_has_arrived_serve_the_next(producing: Producing) -> None:
    one = producing.take(4)
    one.deliver()
    before = list(one.receipt.offsets)
    two = producing.take(6)
    assert two.section is one.section
    two.deliver(first_offset=200)
    assert list(two.receipt.offsets) == [200, 201, 202, 203, 204, 205]
    assert list(one.receipt.offsets) == before
    assert (one.span.pending, two.span.pending) == (0, 0)


def test_a_section_under_way_keeps_its_callbacks(producing: Producing) -> None:
    one, two = producing.take(3), producing.take(3)
    one.deliver(0, 1)
    three = producing.take(3)
    assert len({id(taken.section) for taken in (one, two, three)}) == 3
    three.deliver(first_offset=300)
    two.deliver(first_offset=200)
    one.deliver(2)
    assert list(one.receipt.offsets) == [100, 101, 102]
    assert list(two.receipt.offsets) == [200, 201, 202]
    assert list(three.receipt.offsets) == [300, 301, 302]


def test_a_failure_says_what_has_failed_and_its_callbacks_are_not_used_again(producing: Producing) -> None:
    headers = [("h", b"x")]
    one = producing.take(3, headers)
    error = KafkaError(KafkaError._MSG_TIMED_OUT)
    one.deliver(0, 2)
    one.callbacks[1](error, Report(one.messages[1]))
    message = Message(b"k1", b"v1", 1001, headers)
    assert producing.failures == [("t", error, message, one.span, one.receipt, 1)]
    assert one.span.pending == 1
    assert producing.take(3).section is not one.section


def test_a_message_that_was_never_taken_holds_up_nothing(producing: Producing) -> None:
    one = producing.take(2)
    error = KafkaError(KafkaError._QUEUE_FULL)
    one.callbacks[0](error, Message(*one.messages[0]))
    assert producing.failures == [("t", error, Message(*one.messages[0]), one.span, one.receipt, 0)]
    assert one.span.pending == 2
    one.deliver(1)
    assert one.span.pending == 1
    two = producing.take(2)
    assert two.section is not one.section
    two.deliver()
    assert producing.take(2).section is two.section


def test_a_message_whose_offset_the_broker_has_forgotten(producing: Producing) -> None:
    one = producing.take(2)
    one.deliver(0)
    one.callbacks[1](None, Report(one.messages[1], 1, None))
    assert one.span.pending == 0
    assert (list(one.receipt.partitions), list(one.receipt.offsets)) == ([0, UNKNOWN], [100, -1])
    # Each of its messages has its report, so none of its callbacks is called again.
    assert producing.take(2).section is one.section


def test_what_is_said_after_an_error_is_not_lost(producing: Producing) -> None:
    """Reading a message can raise: the exception reaches the poller, as with any callback."""

    class Mute(Report):
        def partition(self) -> int:
            raise RuntimeError("no word")

    one = producing.take(1)
    with pytest.raises(RuntimeError, match="no word"):
        one.callbacks[0](None, Mute(one.messages[0]))
    assert one.span.pending == 1


def test_sections_are_let_go_with_their_callbacks(producing: Producing) -> None:
    """Callbacks form reference cycles with their creator, but those of a discarded producer are freed too."""
    weak = [weakref.ref(producing.take(3).section) for _ in range(5)]
    producing.take(3).deliver()
    del producing.reports
    gc.collect()
    assert [section() for section in weak] == [None] * 5


def test_sections_of_two_sizes_keep_their_callbacks(producing: Producing) -> None:
    first = [producing.take(size) for size in (1_000, 10)]
    for one in first:
        one.deliver()
    again = [producing.take(size) for size in (900, 12)]
    assert [one.section for one in again] == [one.section for one in first]


def test_a_receipt_of_another_size_is_none(producing: Producing) -> None:
    """Otherwise a missing report would make a message count as delivered that Kafka lacks."""
    with pytest.raises(ValueError, match="a receipt for 1 of 2 messages"):
        producing.reports.take("t", [(b"k", b"v", 0, None)] * 2, DeliverySpan(), Receipt(1, 0, 1))


def test_few_callbacks_are_idle(producing: Producing) -> None:
    large = producing.take(1_000)
    large.deliver()
    small = producing.take(10)
    assert small.section is not large.section
    assert len(small.section.callbacks) == 10


def test_what_librdkafka_says_of_brokers_is_no_message() -> None:
    """librdkafka's queue also counts events: a new producer would start with a negative message count."""
    with closing(KafkaSink(RelaySettings(broker="127.0.0.1:1"))) as sink:
        eventually("it has said that nobody answers", lambda: len(sink._producer))
        assert sink.answered() == 0
        sink.discard(in_order=True)
        sink.flush(0.01)
        assert sink.answered() == sink._accepted == 0


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC])
def test_a_message_to_a_deleted_topic_names_the_topic_and_no_refusal(code: int) -> None:
    failure = delivery_failure("orders", KafkaError(code), Message(b"1", b"row", 0), DeliverySpan(), None, 0)
    assert failure.reason.startswith("topic orders does not exist: ")
    assert (failure.is_outage, failure.is_final) == (True, True), "the relay tries again as before"
    assert failure.hint.startswith("topic orders was deleted; the relay recreates it")
