"""Records that a relay did not send are counted, whatever its own messages do."""

from collections.abc import Collection
from pathlib import Path

import pytest

from bwtui.encode.local_registry import LocalRegistry
from bwtui.relay.coverage.ledger import Coverage
from bwtui.relay.divergence.late_records import LateRecords
from bwtui.relay.run_state import RunState
from bwtui.sink.destination import Destination, Purgeable, SinkService, TopicEnd
from bwtui.sink.nothing import NoSink


class Topic(SinkService, Purgeable):
    """One topic with one partition."""

    end, sent = 10, 0

    def ends(self, topics: Collection[str]) -> dict[str, TopicEnd]:
        return {topic: TopicEnd("id", {0: self.end}) for topic in topics}

    def handed_over(self, topic: str) -> int:
        return self.sent


class Marks(Coverage):
    """Keeps the marked tables."""

    def __init__(self) -> None:
        self.tables: list[str] = []

    def mark(
        self, table: str, reason: str, what: str = "", *, has_extra: bool | None = None, by_hand: bool = False
    ) -> bool:
        self.tables.append(table)
        return True


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def marks() -> Marks:
    return Marks()


@pytest.fixture
def late(tmp_path: Path, topic: Topic, marks: Marks) -> LateRecords:
    destination = Destination(NoSink(), LocalRegistry(), topic, topic)
    report = RunState()
    report.table("public.orders").topic = "orders"
    made = LateRecords(destination, report, b"", lambda *_: 0, tmp_path / "unsettled", marks)
    made.begin()
    return made


def test_messages_that_never_arrive_hide_no_others(late: LateRecords, topic: Topic, marks: Marks) -> None:
    topic.sent += 3
    late.look()
    late.look()
    assert not marks.tables
    topic.end += 1
    late.look()
    assert marks.tables == ["public.orders"]


def test_records_of_a_repair_may_arrive_after_the_next_poll(
    late: LateRecords, topic: Topic, marks: Marks
) -> None:
    late.look()
    late.expect_beside("orders", 5)
    late.look()
    topic.end += 5
    late.look()
    assert not marks.tables
