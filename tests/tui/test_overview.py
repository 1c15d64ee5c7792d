"""The overview in three sizes: its account of the last ten minutes, and of the way to Kafka."""

import re

import pytest

from bwtui.model.history import RelayHistory
from bwtui.tui.widgets.changes import ChangeList
from bwtui.tui.widgets.history import ChartSpan, EventList, area, histogram, levels, rounded_up
from tests.tui.doubles import Stage
from tests.tui.picture import lines, text
from tests.tui.recorded import RecordedStage
from tests.tui.shop import NOON, Shop
from tests.tui.shop_history import history


def stage_with(past: RelayHistory) -> Stage:
    stage = Stage()
    stage.relay.past = past
    return stage


@pytest.mark.parametrize(
    ("size", "parts"),
    [((80, 24), 0), ((100, 40), 1), ((120, 50), 2), ((120, 60), 4), ((160, 45), 5), ((250, 70), 6)],
)
async def test_each_part_is_there_where_it_has_room(size: tuple[int, int], parts: int) -> None:
    stage = stage_with(history(NOON + 62))
    async with stage.run(size):
        shown = text(stage.app)
        titles = (
            "Rows/s, last 10 minutes",
            "Commit → acknowledgement",
            "WAL runway",
            "Consumer groups",
            "Last events",
            "─ Changes",
        )
        assert [title in shown for title in titles] == [True] * parts + [False] * (6 - parts)
        assert "Pipeline" in shown
        assert "public.orders" in shown


async def test_each_stage_says_how_long_it_takes() -> None:
    stage = stage_with(history(NOON + 62))
    async with stage.run((160, 45)):
        shown = text(stage.app)
        for stage_name, p50, p99, longest in (
            ("received", "2.10", "9.45", "18.9"),
            ("encoded", "0.06", "0.27", "0.54"),
            ("produced", "0.08", "0.36", "0.72"),
            ("acknowledged", "10.6", "47.7", "95.4"),
            ("commit → ack", "13.8", "62.1", "124"),
        ):
            assert re.search(rf"{stage_name} +{p50} +{p99} +{longest} ", shown), stage_name
        assert "last minute · 161k messages" in shown
        assert "p50   10.6ms" in shown
        assert "busy    19%" in shown


async def test_what_happened_stands_under_its_time() -> None:
    stage = stage_with(history(NOON + 62))
    async with stage.run((160, 45)):
        await stage.advance(1)
        shown = lines(stage.app)
        place = next(i for i, line in enumerate(shown) if "╵11:5" in line)
        signs = [(m.start(), m.group()) for m in re.finditer("[A-Z]", shown[place - 1][:112])]
        assert [sign for _, sign in signs] == ["S", "D", "E", "R", "A"]
        # The schema was registered 250 seconds before the stream was reopened, the audit was 205 seconds
        # after that.
        at = {sign: where for where, sign in signs}
        assert (at["A"] - at["R"]) * 6 == pytest.approx(205, abs=6)
        assert "E error · R reconnect · S start · D schema · A audit" in shown[place + 1]


async def test_a_burst_is_cut_off_and_told() -> None:
    stage = stage_with(history(NOON + 62, burst=90_000))
    async with stage.run((160, 45)):
        await stage.advance(1)
        shown = text(stage.app)
        assert re.search(r"peak 9\d\.\dk/s at 1", shown)
        upper = next(line for line in shown.splitlines() if re.search(r"│ +10\.0k┤", line))
        assert "▲" in upper


async def test_without_a_history_nothing_is_drawn_as_zero() -> None:
    stage = stage_with(RelayHistory())
    async with stage.run((160, 45)):
        assert "no data yet" in text(stage.app)


async def test_a_recording_has_neither_chart_nor_what_it_does_not_time() -> None:
    stage = RecordedStage()
    async with stage.run((160, 45)):
        shown = text(stage.app)
        assert "last 10 minutes" not in shown
        assert "delivered" in shown
        assert "WAL%" not in shown
        assert "p99" not in shown


async def test_tables_can_be_sorted_by_their_share_of_the_wal_and_by_p99() -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        grid = stage.app.screen.query_one("#tables")
        assert grid.rows[0].key == "public.order_items"  # type: ignore[attr-defined]
        assert "WAL/s↓" in text(stage.app)
        await stage.press("s")
        assert "Rows/s↓" in text(stage.app)
        await stage.press("s")
        assert grid.rows[0].key == "warehouse.stock"  # type: ignore[attr-defined]
        assert "p99 ms↓" in text(stage.app)
        assert re.search(r"public\.orders .* 6 v2 ", text(stage.app))


async def test_the_chart_is_painted_once_a_second() -> None:
    stage = stage_with(history(NOON + 90))
    async with stage.run((160, 45)):
        chart = stage.app.screen.query_one("#rates")
        put, count = chart.put, 0  # type: ignore[attr-defined]

        def counted(*args: object) -> None:
            nonlocal count
            count += 1
            put(*args)

        chart.put = counted  # type: ignore[attr-defined]
        await stage.advance(5, step=0.25)
        assert count == 5


def test_columns_stand_still_while_time_goes_by() -> None:
    one, later = ChartSpan.until(1_000_000.0, 600, 105), ChartSpan.until(1_000_002.0, 600, 105)
    assert (one.step, one.columns) == (3, 200)
    assert (one.first + one.columns) * 3 > 1_000_000
    assert later.first - one.first in (0, 1)
    assert one.column(1_000_001.0 - 700) is None
    means = one.means([(1_000_000.0, 4.0), (1_000_000.5, 8.0)])
    assert means[-1] == 6.0
    assert means[0] is None


def test_what_is_zero_is_not_what_is_not_known() -> None:
    assert levels([None, 0.0, 0.1, 10.0, 99.0], 10.0, 2) == [0, 1, 2, 8, 8]
    assert area([0, 1, 2, 8], 2) == [" ⢸", "⢀⣼"]
    assert area([0, 1, 2, 8], 2, hanging=True) == ["⠈⢻", " ⢸"]


def test_an_axis_ends_in_a_round_number() -> None:
    assert [rounded_up(v) for v in (0, 10, 11, 49, 51, 700, 4_940)] == [10, 10, 20, 50, 100, 1000, 5000]


def test_a_histogram_has_an_axis_of_powers_of_ten() -> None:
    buckets = [(0.009, 0.0091, 5), (0.09, 0.091, 1), (-0.01, -0.009, 1)]
    drawn = [line.plain for line in histogram(buckets, 40, 2)]
    assert drawn[-1].split() == ["1", "ms", "10", "ms", "100", "ms"]
    assert drawn[-1].index("10 ms") == 20
    # Negative latencies are drawn, too.
    assert [place for place, bar in enumerate(drawn[1]) if bar != " "] == [0, 19, 39]


async def test_the_largest_terminal_shows_what_happened_and_what_goes_by() -> None:
    stage = stage_with(history(NOON + 62))
    stage.relay.shop = Shop(trouble=True)
    async with stage.run((250, 70)):
        await stage.advance(4)
        events = [row.cells for row in stage.app.screen.query_one(EventList).rows]
        assert [cells[1].text for cells in events] == [
            *("✗ error", "✗ error", "▲ warning"),
            *("A audit", "R reconnect", "D schema", "S start"),
        ]
        assert events[0][2].text.startswith("17 times: a message for topic products is larger")
        assert [cells[0].text for cells in events] == sorted((c[0].text for c in events), reverse=True)
        shown = lines(stage.app)
        # Panels in one row fill the lines, and none is cut off.
        assert all(line[-1] in "│╮╯" for line in shown[2:-1])
        assert stage.app.screen.wants_changes  # type: ignore[attr-defined]
        assert sum(" update " in line for line in shown) > 3
        assert sum(not line.strip("│ ") for line in shown) < 20
        stage.app.screen.query_one(ChangeList).focus()
        await stage.press("enter")
        assert stage.app.current_mode == "changes"
