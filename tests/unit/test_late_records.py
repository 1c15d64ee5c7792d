"""Records that a relay did not send are counted, whatever its own messages do."""

import queue
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from bwtui.encode.registry import LocalRegistry
from bwtui.errors import ConnectionFailed
from bwtui.model.status import ExactlyOnceStatus
from bwtui.relay.history.coverage_ledger import Coverage
from bwtui.relay.history.late_records import LateRecords, RunBounds, TopicEnds
from bwtui.relay.state.run_state import RunState
from bwtui.sink.destination import (
    UNKNOWN_END,
    Destination,
    MessageCounts,
    Offsets,
    PresentTopic,
    PresentTopics,
    Purgeable,
    SinkService,
    TopicEnd,
    TopicScanner,
)
from bwtui.sink.nothing import NoSink


class Topic(SinkService, Purgeable, TopicScanner):
    """One topic with one partition; a log defines which of its offsets are records."""

    begun = 0
    has_leader = True
    is_known = True
    #: The first offset that is still there.
    first = 0
    is_down = False
    once: ExactlyOnceStatus | None = None
    while_counting: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self) -> None:
        self.counts = MessageCounts()
        self.log = [True] * 10

    def send(self, count: int, *, arriving: int | None = None) -> None:
        """Send messages, of which ``arriving`` arrive."""
        self.counts.add("orders", count)
        self.arrive(count if arriving is None else arriving)

    def arrive(self, count: int) -> None:
        self.log += [True] * count

    def commit(self, markers: int = 1) -> None:
        self.begun += 1
        self.log += [False] * markers

    def exactly_once(self) -> ExactlyOnceStatus | None:
        return self.once

    def message_counts(self) -> MessageCounts:
        return self.counts

    def transactions(self, topic: str) -> int:
        return self.begun

    def count(self, topic: str, start: Offsets, end: Offsets, on_wait: Callable[[], None]) -> int:
        self.while_counting()
        return sum(self.log[start[0] : end[0]])

    def ends(self, topics: Collection[str]) -> dict[str, TopicEnd]:
        if self.is_down:
            raise ConnectionFailed("Kafka does not answer", "")
        end = len(self.log) if self.has_leader else UNKNOWN_END
        return {topic: TopicEnd("id", {0: end}) for topic in topics if self.is_known}

    def present_topics(self, topics: Collection[str], *, with_beginnings: bool) -> PresentTopics:
        return {topic: PresentTopic("id", 1, self.first) for topic in topics}

    def handed_over(self, topic: str) -> int:
        return self.counts[topic]


class Marks(Coverage):
    """Keeps the marked tables."""

    def __init__(self) -> None:
        self.tables: list[str] = []
        #: Advice for a person, by mark.
        self.advice: list[str] = []
        #: The error of each check, "" for success.
        self.checks: queue.SimpleQueue[str] = queue.SimpleQueue()

    def mark(
        self,
        table: str,
        reason: str,
        subject: str = "",
        *,
        has_extra: bool | None = None,
        by_hand: bool = False,
        advice: str = "",
    ) -> bool:
        self.tables.append(table)
        self.advice.append(advice)
        return True

    def seen(self, subject: str) -> None:
        self.checks.put("")

    def unseen(self, subject: str, why: str) -> None:
        self.checks.put(why)


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def marks() -> Marks:
    return Marks()


class Run:
    """Consecutive runs of a relay with the same files."""

    def __init__(self, folder: Path, topic: Topic, marks: Marks, *, once: bool = False) -> None:
        destination = Destination(NoSink(), LocalRegistry(), topic, topic, topic)
        report = RunState()
        report.table("public.orders").topic = "orders"
        topic.counts, topic.begun = MessageCounts(), 0
        topic.once = ExactlyOnceStatus("", "", 0, 0.0, None, None) if once else None
        bounds = RunBounds(folder / "sent.json", topic.counts, in_transactions=once)
        ends = TopicEnds(destination, report, folder / "ends", marks, bounds)
        path = folder / "unsettled"
        self.ends = ends
        self.late = LateRecords(
            destination, report, b"", lambda *_: 0, path, marks, bounds, ends, is_fenced=once
        )
        ends.check(lambda: None)
        self.late.resume(ends)
        self.late.begin()


@pytest.fixture
def late(tmp_path: Path, topic: Topic, marks: Marks) -> LateRecords:
    return Run(tmp_path, topic, marks).late


def test_messages_that_never_arrive_hide_no_others(late: LateRecords, topic: Topic, marks: Marks) -> None:
    topic.send(3, arriving=0)
    late.look()
    late.look()
    assert not marks.tables
    topic.arrive(1)
    late.look()
    assert marks.tables == ["public.orders"]


def test_records_of_a_repair_may_arrive_after_the_next_poll(
    late: LateRecords, topic: Topic, marks: Marks
) -> None:
    late.look()
    late.expect_beside("orders", 5)
    late.look()
    topic.arrive(5)
    late.look()
    assert not marks.tables


def test_a_killed_run_has_sent_what_is_in_the_topic(tmp_path: Path, topic: Topic, marks: Marks) -> None:
    for _ in range(3):
        late = Run(tmp_path, topic, marks).late
        topic.send(7)
        late.look()
        late.expect_beside("orders", 5)
        topic.arrive(5)
    Run(tmp_path, topic, marks)
    assert not marks.tables
    topic.arrive(1)
    Run(tmp_path, topic, marks)
    assert marks.tables == ["public.orders"]


def test_what_a_killed_run_sent_may_arrive_late(tmp_path: Path, topic: Topic, marks: Marks) -> None:
    Run(tmp_path, topic, marks)
    topic.send(7, arriving=3)
    Run(tmp_path, topic, marks)
    topic.arrive(2)
    late = Run(tmp_path, topic, marks).late
    topic.arrive(2)
    late.look()
    assert not marks.tables
    topic.arrive(1)
    late.look()
    assert marks.tables == ["public.orders"]


def test_another_producer_is_named_once(tmp_path: Path, topic: Topic, marks: Marks) -> None:
    late = Run(tmp_path, topic, marks).late
    topic.arrive(4)
    late.look()
    late.look()
    Run(tmp_path, topic, marks).late.look()
    assert marks.tables == ["public.orders"]


def test_a_run_with_records_of_unknown_number_is_not_judged(
    tmp_path: Path, topic: Topic, marks: Marks
) -> None:
    """The killed snapshot worker did not report the number of its messages."""
    Run(tmp_path, topic, marks).late.expect()
    topic.arrive(4)
    Run(tmp_path, topic, marks).late.look()
    assert not marks.tables


def test_a_restart_of_the_machine_makes_counts_unknown(tmp_path: Path, topic: Topic, marks: Marks) -> None:
    Run(tmp_path, topic, marks)
    path = tmp_path / "sent.json"
    path.write_text(path.read_text().replace('"boot": "', '"boot": "x'))
    topic.arrive(4)
    Run(tmp_path, topic, marks)
    assert not marks.tables


def test_a_producer_that_continues_is_left_to_a_person(
    late: LateRecords, topic: Topic, marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two relays would otherwise overwrite each other's records endlessly."""
    now = 1000.0
    monkeypatch.setattr("bwtui.relay.history.late_records.time.monotonic", lambda: now)
    for seconds in (0, 15, 15):
        now += seconds
        topic.arrive(1)
        late.look()
    assert marks.advice == ["", "", "stop the other producer of topic orders"]


@pytest.mark.parametrize("markers", [1, 3])
def test_markers_of_transactions_are_no_records(
    tmp_path: Path, topic: Topic, marks: Marks, markers: int
) -> None:
    """A coordinator elected in the middle writes them twice; there may be several partitions."""
    late = Run(tmp_path, topic, marks, once=True).late
    for _ in range(40):
        topic.send(7)
        topic.commit(markers)
        late.look()
    # The marker belongs to a transaction that is aborted later, whose other messages never arrive.
    topic.send(7, arriving=2)
    topic.commit(markers)
    late.look()
    late.look()
    assert not marks.tables
    topic.arrive(1)
    late.look()
    assert marks.tables == ["public.orders"]


def test_a_killed_run_with_transactions_before_one_without(
    tmp_path: Path, topic: Topic, marks: Marks
) -> None:
    Run(tmp_path, topic, marks, once=True)
    topic.send(5)
    late = Run(tmp_path, topic, marks).late
    # Kafka aborts the open transaction after a timeout.
    topic.commit()
    late.look()
    assert not marks.tables


def test_transactions_of_a_killed_run(tmp_path: Path, topic: Topic, marks: Marks) -> None:
    for _ in range(3):
        late = Run(tmp_path, topic, marks, once=True).late
        topic.send(7)
        topic.commit()
        late.look()
        topic.send(5)
        topic.commit()
    Run(tmp_path, topic, marks, once=True)
    assert not marks.tables
    topic.arrive(1)
    Run(tmp_path, topic, marks, once=True)
    assert marks.tables == ["public.orders"]


@pytest.mark.parametrize("once", [False, True])
def test_a_partition_without_a_leader_is_judged_once_it_has_one(
    tmp_path: Path, topic: Topic, marks: Marks, once: bool
) -> None:
    topic.has_leader = False
    late = Run(tmp_path, topic, marks, once=once).late
    for has_leader in (True, False, False, True, True):
        topic.has_leader = has_leader
        late.look()
        topic.send(3)
    late.look()
    topic.has_leader = False
    Run(tmp_path, topic, marks, once=once)
    topic.has_leader = True
    late = Run(tmp_path, topic, marks, once=once).late
    late.look()
    late.look()
    assert not marks.tables
    topic.arrive(100)
    late.look()
    assert marks.tables == ["public.orders"]


def test_records_of_a_repair_are_announced_during_a_count(tmp_path: Path, topic: Topic, marks: Marks) -> None:
    late = Run(tmp_path, topic, marks, once=True).late
    topic.send(1)
    topic.commit(2)
    topic.while_counting = lambda: late.expect_beside("orders", 5)
    late.look()
    topic.while_counting = lambda: None
    topic.arrive(5)
    late.look()
    assert not marks.tables


@pytest.mark.parametrize("once", [False, True])
def test_a_topic_that_ends_earlier_has_lost_records(
    tmp_path: Path, topic: Topic, marks: Marks, once: bool
) -> None:
    late = Run(tmp_path, topic, marks, once=once).late
    topic.send(7)
    late.look()
    del topic.log[-2:]
    late.look()
    assert marks.tables == ["public.orders"]
    late.look()
    topic.send(3)
    late.look()
    del topic.log[-2:]
    # The loss is also found after a kill, and only once.
    for _ in range(2):
        Run(tmp_path, topic, marks, once=once)
        assert marks.tables == ["public.orders"] * 2


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_loss_is_noticed_once_a_partition_has_a_leader_again(
    tmp_path: Path, topic: Topic, marks: Marks, is_killed: bool, once: bool
) -> None:
    """A broker that was just restored has no leaders yet when the relay starts."""
    run = Run(tmp_path, topic, marks, once=once)
    topic.send(7)
    run.late.look()
    if not is_killed:
        run.ends.store()
    del topic.log[-2:]
    topic.has_leader = False
    late = Run(tmp_path, topic, marks, once=once).late
    assert not marks.tables
    topic.has_leader = True
    late.look()
    assert marks.tables == ["public.orders"]
    late.look()
    assert marks.tables == ["public.orders"]


def test_a_loss_is_noticed_in_a_topic_that_no_broker_knows_yet(
    tmp_path: Path, topic: Topic, marks: Marks
) -> None:
    run = Run(tmp_path, topic, marks)
    topic.send(7)
    run.late.look()
    del topic.log[-2:]
    topic.is_known = False
    late = Run(tmp_path, topic, marks).late
    topic.is_known = True
    late.take(["orders"])
    assert marks.tables == ["public.orders"]
    topic.send(3)
    late.look()
    assert marks.tables == ["public.orders"]


def test_a_loss_is_noticed_after_the_slot_was_recreated(tmp_path: Path, topic: Topic, marks: Marks) -> None:
    """A heal begins from the present ends, before any partition has a leader again."""
    run = Run(tmp_path, topic, marks)
    topic.send(7)
    run.late.look()
    del topic.log[-2:]
    topic.has_leader = False
    late = Run(tmp_path, topic, marks).late
    topic.has_leader = True
    late.begin()
    assert marks.tables == ["public.orders"]
    late.look()
    assert marks.tables == ["public.orders"]


def test_a_topic_without_a_leader_is_not_checked(late: LateRecords, topic: Topic, marks: Marks) -> None:
    topic.has_leader = False
    late.look()
    assert marks.checks.get(timeout=0) == "partitions have no leader, of topics orders"


@pytest.mark.parametrize(("first", "is_marked"), [(0, True), (9, True), (10, False)])
def test_a_table_joins_with_a_topic_that_has_records(
    tmp_path: Path, topic: Topic, marks: Marks, first: int, is_marked: bool
) -> None:
    """A topic whose records were all deleted is as good as a new one."""
    topic.is_known = False
    late = Run(tmp_path, topic, marks).late
    topic.is_known, topic.first = True, first
    late.take(["orders"], first_used={"orders"})
    assert marks.tables == ["public.orders"] * is_marked


def test_another_producers_records_are_noticed_in_a_topic_that_had_no_leader_yet(
    tmp_path: Path, topic: Topic, marks: Marks
) -> None:
    topic.is_known = False
    late = Run(tmp_path, topic, marks).late
    topic.is_known, topic.has_leader = True, False
    late.take(["orders"], created={"orders"})
    topic.has_leader = True
    topic.send(7)
    topic.arrive(3)
    late.look()
    assert marks.tables == ["public.orders"]


@pytest.mark.parametrize("once", [False, True])
def test_another_producers_records_are_noticed_once_a_partition_has_a_leader(
    tmp_path: Path, topic: Topic, marks: Marks, once: bool
) -> None:
    run = Run(tmp_path, topic, marks, once=once)
    topic.send(7)
    run.late.look()
    run.late.settle()
    run.ends.store()
    topic.arrive(3)
    topic.has_leader = False
    late = Run(tmp_path, topic, marks, once=once).late
    topic.has_leader = True
    late.look()
    assert marks.tables == ["public.orders"]
    late.look()
    assert marks.tables == ["public.orders"]


def test_a_loss_right_before_a_stop_is_noticed(tmp_path: Path, topic: Topic, marks: Marks) -> None:
    run = Run(tmp_path, topic, marks)
    topic.send(7)
    run.late.look()
    del topic.log[-2:]
    run.ends.store()
    assert marks.tables == ["public.orders"]


def test_ends_of_an_earlier_version_prove_no_loss(tmp_path: Path, topic: Topic, marks: Marks) -> None:
    (tmp_path / "ends").write_text('{"orders": {"0": 99}}')
    Run(tmp_path, topic, marks)
    assert not marks.tables


def test_an_outage_is_reported_and_its_end_is_checked_at_once(
    late: LateRecords, topic: Topic, marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka may return without some of its records, and the next regular check is 15 s away."""
    monkeypatch.setattr("bwtui.relay.history.late_records._FIRST_SECONDS", 0.01)
    topic.is_down = True
    with late:
        assert marks.checks.get(timeout=10) == "Kafka does not answer"
        topic.is_down = False
        assert any(not marks.checks.get(timeout=10) for _ in range(100))
