"""Work per message and per report, in Python and in C: the results are the same, and each counts once."""

import gc
import weakref
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from bwtui.model.delivery import DeliverySpan
from bwtui.settings import RelaySettings
from bwtui.sink import kafka
from bwtui.sink.destination import Message, MessageTuple
from bwtui.sink.kafka import REFUSALS, KafkaSink, PythonDeliveryTally, hand_over_in_python
from tests.compiled_twin import COMPILER, built
from tests.unit.test_delivery_reports import Report

WAYS = ["Python", "C"] if COMPILER else ["Python"]
ERROR = KafkaError(KafkaError._MSG_TIMED_OUT)
#: None, a list shared by many messages, and separate lists.
HEADERS = st.one_of(st.none(), st.just([("session", b"s")]), st.builds(lambda: [("ordinal", b"1")]))


@pytest.fixture(params=WAYS)
def hand_over(request: pytest.FixtureRequest) -> Any:
    return built().hand_over if request.param == "C" else hand_over_in_python


@pytest.fixture(params=WAYS)
def tally_class(request: pytest.FixtureRequest) -> Any:
    return built().Tally if request.param == "C" else PythonDeliveryTally


def messages_of(headers: list[Any]) -> list[MessageTuple]:
    return [(b"k%d" % n, b"v%d" % n, n, each) for n, each in enumerate(headers)]


class Producing:
    """Takes messages as librdkafka does, except for those whose number is in ``refused``."""

    def __init__(self, refused: set[int] | frozenset[int] = frozenset()) -> None:
        self.refused, self.turn = refused, 0
        self.taken: list[tuple[Any, ...]] = []

    def produce(self, *arguments: Any) -> None:
        turn, self.turn = self.turn, self.turn + 1
        if turn in self.refused:
            raise BufferError("full") if turn % 2 else KafkaException(ERROR)
        self.taken.append(arguments)


@given(
    kinds=st.lists(st.sampled_from("nsso"), max_size=12),
    refused=st.frozensets(st.integers(0, 12), max_size=3),
    has_each=st.booleans(),
)
def test_both_hand_over_the_same(kinds: list[str], refused: frozenset[int], has_each: bool) -> None:
    shared = [("session", b"s")]
    messages = messages_of([{"n": None, "s": shared, "o": [("own", b"1")]}[kind] for kind in kinds])
    reports: Any = [object() for _ in range(len(messages) + 2)] if has_each else object()
    found = []
    for way in [hand_over_in_python] + [built().hand_over] * bool(COMPILER):
        one, place, steps = Producing(refused), 0, []
        while place < len(messages):
            place, error = way(one.produce, "t", messages, place, reports, REFUSALS)
            steps.append((place, type(error), str(error)))
        found.append((one.taken, steps))
        assert one.turn == len(messages)
    assert all(each == found[0] for each in found)
    taken, steps = found[0]
    wanted = [
        ("t", value, key, -1, reports[time] if has_each else reports, None, time, headers)
        for key, value, time, headers in messages
        if time not in refused
    ]
    assert taken == wanted
    assert sum(kind is not type(None) for _, kind, _ in steps) == len(refused & set(range(len(messages))))


def test_one_report_is_of_messages_with_the_same_headers(hand_over: Any) -> None:
    one, shared = Producing(), [("h", b"1")]
    messages = messages_of([shared, shared, None, None, [("h", b"1")]])
    places = [0]
    while places[-1] < 5:
        place, error = hand_over(one.produce, "t", messages, places[-1], object(), REFUSALS)
        assert error is None
        places.append(place)
    assert places == [0, 2, 4, 5]


def test_what_is_no_refusal_is_raised(hand_over: Any) -> None:
    def produce(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hand_over(produce, "t", messages_of([None]), 0, object(), REFUSALS)
    with pytest.raises((TypeError, IndexError)):
        hand_over(Producing().produce, "t", messages_of([None, None]), 0, [object()], REFUSALS)


def test_a_list_that_is_emptied_meanwhile_ends(hand_over: Any) -> None:
    messages = messages_of([None] * 3)

    def produce(*_: Any) -> None:
        messages.clear()

    if hand_over is hand_over_in_python:
        with pytest.raises(IndexError):
            hand_over(produce, "t", messages, 0, object(), REFUSALS)
    else:
        assert hand_over(produce, "t", messages, 0, object(), REFUSALS) == (1, None)


def counted(tally_class: Any) -> tuple[Any, list[Any], list[int]]:
    failures: list[Any] = []
    over: list[int] = []
    return tally_class(lambda *failure: failures.append(failure), over.append), failures, over


def test_a_tally_ends_once_behind_the_last_report(tally_class: Any) -> None:
    tally, failures, over = counted(tally_class)
    tally.expect(3)
    tally(None, "a")
    tally(ERROR, "b")
    assert over == []
    tally(None, "c")
    assert over == [2]
    assert failures == [(ERROR, "b")]


def test_reports_may_come_before_it_is_known_how_many_there_are(tally_class: Any) -> None:
    tally, _, over = counted(tally_class)
    tally(None, "a")
    tally(None, "b")
    assert over == []
    tally.expect(2)
    assert over == [2]


def test_a_report_of_which_nobody_could_be_told_is_not_counted(tally_class: Any) -> None:
    over: list[int] = []

    def fail(*_: Any) -> None:
        raise RuntimeError("no word")

    tally = tally_class(fail, over.append)
    tally.expect(1)
    with pytest.raises(RuntimeError, match="no word"):
        tally(ERROR, "a")
    assert over == []
    for arguments in ((), ("a",), (None, "a", "b")):
        with pytest.raises(TypeError):
            tally(*arguments)


def test_a_tally_is_let_go_with_what_it_calls(tally_class: Any) -> None:
    class Owner:
        def __init__(self) -> None:
            self.tally = tally_class(self.failed, self.over)

        def failed(self, *_: Any) -> None: ...

        def over(self, *_: Any) -> None: ...

    weak = weakref.ref(Owner())
    gc.collect()
    assert weak() is None


@pytest.mark.parametrize("way", WAYS)
@given(data=st.data())
def test_each_message_of_a_sink_is_delivered_or_has_failed_with_its_headers(
    way: str, data: st.DataObject
) -> None:
    shared = [("session", b"s")]
    make: dict[str, Callable[[], Any]] = {"n": lambda: None, "s": lambda: shared, "o": lambda: [("o", b"1")]}
    kinds = data.draw(
        st.lists(st.sampled_from(data.draw(st.sampled_from(["n", "s", "o", "nso"]))), max_size=9)
    )
    turns = st.frozensets(st.integers(0, 8), max_size=3)
    refused, lost = data.draw(turns), data.draw(turns)
    messages = messages_of([make[kind]() for kind in kinds])
    with (
        pytest.MonkeyPatch.context() as patch,
        closing(KafkaSink(RelaySettings(broker="127.0.0.1:1"))) as sink,
    ):
        patch.setattr(kafka, "hand_over", built().hand_over if way == "C" else hand_over_in_python)
        patch.setattr(kafka, "tally_class", built().Tally if way == "C" else PythonDeliveryTally)
        sink._in_order = False
        one, span = Producing(refused), DeliverySpan()
        sink._produce = one.produce
        sink.send("t", messages, span)
        assert (span.pending, span.failed) == (len(messages), len(refused & set(range(len(messages)))))
        for topic, value, key, _, report, _, time, _ in one.taken:
            assert (topic, messages[time][:2]) == ("t", (key, value))
            report(ERROR if time in lost else None, Report(messages[time]))
        failures = [failure.message for failure in sink.take_failures() if failure.message is not None]
    gone = (refused | lost) & set(range(len(messages)))
    assert sorted(failures, key=lambda one: one.timestamp) == [Message(*messages[n]) for n in sorted(gone)]
    assert all(failure.headers is messages[failure.timestamp][3] for failure in failures)
    assert (span.pending, span.failed) == (len(gone), len(gone))
