"""Numbers, judgements, filters and columns: pure functions."""

import dataclasses
import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bwtui.cli.output import table
from bwtui.model.status import ErrorEntry, StageStatus, Status, TableStatus
from bwtui.tui.base import assessment, figures
from bwtui.tui.widgets.filter_bar import Filter
from bwtui.tui.widgets.grid import GridColumn, fit_text, place
from tests.tui.shop import NOON, Shop


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00k"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (1.5e9, "1.50G"),
    ],
)
def test_count(number: float, text: str) -> None:
    assert figures.count(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1.00 kB"),
        (1_258_291, "1.20 MB"),
        (1024**3, "1.00 GB"),
        (1020 * 1024**2, "1.00 GB"),
    ],
)
def test_size(number: float, text: str) -> None:
    assert figures.size(number) == text


@given(st.integers(min_value=0, max_value=2**63))
def test_no_count_or_size_is_wider_than_its_column(number: int) -> None:
    assert len(figures.count(number)) <= 7 if number > 10**18 else len(figures.count(number)) <= 5
    assert len(figures.size(number)) <= 8 if number > 2**60 else len(figures.size(number)) <= 7


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (0.34, "0.3 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (185, "3 m 05 s"),
        (7500, "2 h 05 m"),
        (273_600, "3 d 4 h"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert figures.duration(seconds) == text


def test_rate_has_a_decimal_only_where_it_matters() -> None:
    assert [figures.rate(n) for n in (0, 0.4, 9.94, 9.96, 12.3)] == ["0", "0.4", "9.9", "10", "12"]


@given(st.lists(st.floats(min_value=0, max_value=1e9), max_size=200), st.integers(1, 120))
@example([1.0, 5e-324, 5e-324, 5e-324], 4)
def test_sparkline_has_a_fixed_width(values: list[float], width: int) -> None:
    assert len(figures.sparkline(values, width)) == width


def test_one_burst_flattens_no_chart() -> None:
    usual = [100.0, 50.0, 200.0] * 10
    assert figures.ceiling([*usual, 100_000.0]) == 300.0
    assert figures.sparkline([*usual, 100_000.0], 4) == "▃▂▆█"
    assert figures.sparkline(usual, 3) == "▅▃█"


@given(st.lists(st.floats(min_value=0, max_value=1e9), max_size=200))
def test_what_is_usual_is_never_cut_off(values: list[float]) -> None:
    top = figures.ceiling(values)
    assert top <= max(values, default=0.0)
    assert sum(value > top for value in values) <= max(len(values) / 10, 1)


@given(st.floats(min_value=0, max_value=1), st.integers(1, 40))
def test_gauge_has_a_fixed_width_and_shows_that_there_is_something(share: float, width: int) -> None:
    bar = figures.gauge(share, width)
    assert len(bar) == width
    assert ("▰" in bar) == (share > 0)


@given(st.text(), st.integers(1, 40), st.sampled_from(["left", "right"]))
def test_cells_have_a_fixed_width_whatever_is_in_them(text: str, width: int, align: str) -> None:
    from rich.cells import cell_len

    assert cell_len(fit_text(text, width, align)) == width


def test_the_slow_stage_is_the_verdicts_and_no_queues() -> None:
    status = Shop().status(NOON + 60)
    full = StageStatus(queue=1024, capacity=1024)
    far = dataclasses.replace(status, wal_lag_seconds=11.0, stages=dict.fromkeys(status.stages, full))
    assert assessment.slow_stage(far) is None
    for name in ("read", "encode", "acknowledge"):
        assert assessment.slow_stage(Shop(slow=name).status(NOON + 60)) == name


@pytest.mark.parametrize(
    ("seconds", "size", "word"),
    [(9.9, 0, "in time"), (10, 0, "lagging"), (0, 1024**3 - 1, "in time"), (0, 1024**3, "lagging")],
)
def test_lag_thresholds(seconds: float, size: int, word: str) -> None:
    status = Status("streaming", "a", "b", wal_lag_seconds=seconds, wal_lag_bytes=size)
    verdict = assessment.of_lag(status)
    assert verdict.word == word
    assert verdict.mark == ("✓" if word == "in time" else "▲")


def test_every_verdict_is_told_without_colour() -> None:
    words = [
        assessment.of_state(s) for s in ("starting", "snapshot", "streaming", "paused", "stopped", "failed")
    ]
    assert len({v.word for v in words}) == 6
    walls = [assessment.of_wal_status(s) for s in ("reserved", "extended", "unreserved", "lost", "")]
    assert [v.mark for v in walls] == ["✓", "▲", "✗", "✗", "·"]


def test_what_postgresql_was_not_asked_for_yet_is_not_zero() -> None:
    assert assessment.retained(Status("snapshot", "a", "b")) == figures.NONE
    assert assessment.retained(Status("snapshot", "a", "b", wal_status="reserved")) == "0 B"


def test_a_running_snapshot_never_claims_to_be_done() -> None:
    table = TableStatus(snapshot_state="running", snapshot_rows=200, snapshot_estimate=100)
    assert assessment.snapshot_share(table) == 0.99
    assert assessment.snapshot_share(dataclasses.replace(table, snapshot_estimate=-1)) is None
    assert assessment.snapshot_share(dataclasses.replace(table, snapshot_state="done")) == 1


def test_a_queue_without_a_bound_is_never_full() -> None:
    assert assessment.fullness(StageStatus(queue=10**9)) == 0


def test_warnings_are_told_from_errors() -> None:
    assert assessment.is_warning(ErrorEntry(0, "Warning", None, "x"))
    assert not assessment.is_warning(ErrorEntry(0, "broker", None, "x"))


@pytest.mark.parametrize(
    ("text", "passing"),
    [
        ("", {"public.orders", "public.order_items", "public.audit"}),
        ("ord", {"public.orders", "public.order_items"}),
        ("ORD", set()),
        ("orders$", {"public.orders"}),
        ("!ord", {"public.audit"}),
        ("!", {"public.orders", "public.order_items", "public.audit"}),
        ("[oi", {"public.order_items"} - {"public.order_items"}),
        ("a(t", set()),
    ],
)
def test_filter(text: str, passing: set[str]) -> None:
    names = ("public.orders", "public.order_items", "public.audit")
    assert {name for name in names if Filter.parse(text).passes(name)} == passing


def test_a_text_that_is_no_regex_matches_letters_in_order_and_says_so() -> None:
    parsed = Filter.parse("p(k")
    assert parsed.mode == "fuzzy"
    assert "letters in order" in parsed.complaint
    assert parsed.passes("point (key)")
    assert not parsed.passes("(kp")


@given(st.text())
@example("[[")
@example("[a--b]")
def test_any_text_is_a_filter(text: str) -> None:
    Filter.parse(text).passes("public.orders")


@given(st.integers(0, 250), st.dictionaries(st.integers(0, 7), st.integers(0, 60)))
def test_columns_never_overlap_and_fill_no_more_than_there_is(width: int, needs: dict[int, int]) -> None:
    columns = [GridColumn(str(i), str(i), 5 + i, drop=i, grow=12) for i in range(8)]
    placed = place(columns, width, needs)
    assert placed[0].column == 0
    for left, right in itertools.pairwise(placed):
        assert right.x == left.x + left.width + 1
    if width >= 8:
        assert placed[-1].x + placed[-1].width <= width


def test_a_text_that_would_be_cut_has_room_before_empty_space() -> None:
    columns = [GridColumn("table", "Table", 10, grow=40), GridColumn("key", "Key", 10, grow=20)]
    widths = [placed.width for placed in place(columns, 64, {0: 12, 1: 45})]
    assert widths == [15, 45]
    assert [placed.width for placed in place(columns, 64)] == [40, 20]


@pytest.mark.parametrize("number", [0, 999, 2048, 5 << 20, 7 << 30])
def test_status_and_screens_use_the_same_units(number: int) -> None:
    assert table.size(number).split()[1] == figures.size(number).split()[1]
