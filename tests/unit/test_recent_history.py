"""The last ten minutes of a relay, and their notable events."""

import time

import pytest

from bwtui.errors import RefusedError
from bwtui.model.history import HISTORY_SECONDS, TREND_SECONDS, RelayHistory
from bwtui.model.status import SchemaEntry
from bwtui.relay.state.recent_history import RecentHistory, SlotLag
from bwtui.relay.state.run_state import RunState
from tests.waiting import eventually


class Clocked:
    """A report that is sampled at each second of its own clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr("bwtui.relay.state.recent_history.time.monotonic", lambda: self.now)
        monkeypatch.setattr("bwtui.relay.state.recent_history.time.time", lambda: self.now + 1_000_000)
        self.report = RunState()
        self.recent = RecentHistory(self.report, lambda: SlotLag(500, 1.5, 2_000))

    def second(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.recent.sample()

    def rows(self, table: str, rows: int, size: int) -> None:
        counters = self.report.table(table)
        counters.inserts += rows
        counters.messages += rows
        counters.bytes += rows * size
        self.report.rows_read += rows
        self.report.durable += rows


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Clocked:
    return Clocked(monkeypatch)


def test_a_second_says_what_it_brought(clocked: Clocked) -> None:
    clocked.rows("public.orders", 100, 50)
    clocked.second()
    clocked.rows("public.orders", 60, 50)
    clocked.second(2.0)
    one, two = clocked.recent.history().seconds
    assert (one.read_per_second, one.acknowledged_per_second) == (100.0, 100.0)
    assert (two.read_per_second, two.acknowledged_per_second) == (30.0, 30.0)
    assert (one.lag_bytes, one.lag_seconds, one.retained_wal_bytes) == (500, 1.5, 2_000)
    assert one.p50 is one.p99 is one.max is None
    assert clocked.recent.history(one.time).seconds == (two,)
    assert clocked.recent.history().trends == {"public.orders": (100.0, 30.0)}


def test_ten_minutes_are_kept_and_two_of_each_table(clocked: Clocked) -> None:
    clocked.rows("public.once", 1, 1)
    for _ in range(HISTORY_SECONDS + 50):
        clocked.rows("public.orders", 1, 1)
        clocked.second()
    history = clocked.recent.history()
    assert len(history.seconds) == HISTORY_SECONDS
    assert {table: len(points) for table, points in history.trends.items()} == {
        "public.orders": TREND_SECONDS
    }


def test_a_table_that_begins_late_has_had_nothing_before(clocked: Clocked) -> None:
    for _ in range(3):
        clocked.second()
    clocked.rows("public.orders", 5, 1)
    clocked.second()
    assert clocked.recent.history().trends == {"public.orders": (0.0, 0.0, 0.0, 5.0)}


def test_the_wal_is_shared_out_by_rows_and_bytes(clocked: Clocked) -> None:
    clocked.rows("public.wide", 100, 1_080)
    clocked.rows("public.narrow", 100, 80)
    clocked.second()
    wide, narrow = (clocked.recent.tables[f"public.{name}"] for name in ("wide", "narrow"))
    assert (wide.bytes_per_second, narrow.bytes_per_second) == (108_000.0, 8_000.0)
    assert wide.wal_share + narrow.wal_share == pytest.approx(1.0)
    assert wide.wal_share == pytest.approx(1_200 / 1_400, abs=0.001)
    assert (wide.wal_bytes_per_second, narrow.wal_bytes_per_second) == (120_000.0, 20_000.0)
    for _ in range(10):
        clocked.second()
    assert clocked.recent.tables == {}


def test_marks_tell_of_errors_new_schemas_and_another_session(clocked: Clocked) -> None:
    report = clocked.report
    report.sessions = 1
    report.schema(SchemaEntry("orders-value", 1, 1, "public.orders", "orders", "value", "{}", 7.0))
    report.error("notice", RefusedError("not worth a mark", "none"))
    clocked.second()
    assert [mark.kind for mark in clocked.recent.history().marks] == ["start"]
    report.sessions = 2
    report.schema(SchemaEntry("orders-value", 2, 2, "public.orders", "orders", "value", "{}", 8.0))
    for _ in range(3):
        report.error("outage", RefusedError("Kafka is away", "none"))
        clocked.second()
    marks = clocked.recent.history().marks
    assert [mark.kind for mark in marks] == ["start", "reconnect", "error", "ddl"]
    assert marks[2].text == "Kafka is away" and marks[3].text.startswith("public.orders ")
    assert clocked.recent.tables["public.orders"].value_schema_version == 2


def test_the_same_error_a_minute_later_is_another_mark(
    clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bwtui.relay.state.run_state.time.time", lambda: clocked.now)
    for wait in (1.0, 30.0, 31.0):
        clocked.report.error("outage", RefusedError("Kafka is away", "none"))
        clocked.second(wait)
    clocked.report.error("outage", RefusedError("Kafka is away", "none"))
    clocked.second()
    assert [mark.kind for mark in clocked.recent.history().marks] == ["start", "error", "error"]


def test_it_samples_by_itself_and_stops() -> None:
    report = RunState()
    recent = RecentHistory(report, lambda: SlotLag(0, 0.0, 0))
    recent.start()
    report.rows_read = 10
    eventually("two samples", lambda: len(recent.history().seconds) >= 2)
    recent.stop()
    seconds = recent.history().seconds
    assert seconds[0].read_per_second > 0
    assert seconds[1].time - seconds[0].time == pytest.approx(1.0, abs=0.9)
    assert RelayHistory.from_json(recent.history().to_json()) == recent.history()
    assert abs(seconds[-1].time - time.time()) < 60


def test_a_clock_that_is_set_back_hides_no_second(clocked: Clocked, monkeypatch: pytest.MonkeyPatch) -> None:
    clocked.second()
    (before,) = clocked.recent.history().seconds
    clocked.report.started -= 3_600
    monkeypatch.setattr("bwtui.relay.state.recent_history.time.time", lambda: clocked.now + 1_000_000 - 3_600)
    clocked.recent.mark("audit", "it ended")
    clocked.second()
    later = clocked.recent.history(before.time)
    assert [one.time for one in later.seconds] == [before.time - 3_599]
    assert "audit" in [mark.kind for mark in later.marks]


def test_whoever_asks_before_the_first_second_has_each_mark_once(clocked: Clocked) -> None:
    history = RelayHistory()
    for _ in range(3):
        history = history.extended(clocked.recent.history(0.0))
    assert [mark.kind for mark in history.marks] == ["start"]
