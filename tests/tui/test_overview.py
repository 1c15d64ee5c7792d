"""The overview: its parts in every size, history, latencies, and the panels of services."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.strip import Strip

from bwtui.model.history import RelayHistory
from bwtui.model.service_views import Consumers, GroupEntry, SlotEntry, Slots
from bwtui.model.status import Status
from bwtui.tui.screens.overview import _LATEST, _TABLES, _VAST, GroupsPanel, PanelHeights, RetainedWalPanel
from bwtui.tui.widgets.changes import ChangeList
from bwtui.tui.widgets.history import (
    ChartSpan,
    EventList,
    LatencyPanel,
    RateChart,
    area,
    histogram,
    levels,
    rounded_up,
)
from tests.tui import services
from tests.tui.doubles import FakeRelay, Stage
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


SIZES = ((160, 45), (250, 70))


def panel(stage: Stage, kind: type[RetainedWalPanel] | type[GroupsPanel]) -> list[str]:
    """Return the lines of a panel."""
    region = stage.app.screen.query_one(kind).content_region
    shown = [line.ljust(region.right) for line in lines(stage.app)]
    return [line[region.x : region.right].rstrip() for line in shown[region.y : region.bottom]]


@pytest.mark.parametrize("size", SIZES)
async def test_runway_and_groups_say_who_is_behind(size: tuple[int, int]) -> None:
    stage = Stage()
    async with stage.run(size):
        await stage.advance(12)
        runway = panel(stage, RetainedWalPanel)
        assert runway[0].startswith("retained 16.1 MB of 10.0 GB")
        assert runway[0].endswith("<1%")
        assert set(runway[1]) == {"▰", "▱"}
        assert "safe ≈ 7 h 16 m if the relay stopped now" in runway
        assert "✗ trial lost its WAL 9 d 0 h" in runway
        assert "▲ reporting_2024 37.0 GB, not in use 3 d 0 h" in runway
        assert "trial" in runway[4], "what is lost comes first"
        groups = panel(stage, GroupsPanel)
        assert [line.split()[1] for line in groups[1:4]] == ["reporting", "search-indexer", "mailer"]
        assert groups[1].split()[-5:] == ["47.4k", "1", "h", "30", "m"]
        assert "caught up" in groups[3]
        assert "1 of 3 late" in text(stage.app)


async def test_services_are_asked_every_few_seconds_and_only_where_they_are_shown() -> None:
    small, large = Stage(), Stage()
    async with small.run((80, 24)):
        await small.advance(20)
        assert small.relay.glanced == []
    async with large.run((160, 45)):
        await large.advance(60, step=0.5)
        assert large.relay.asked_looks == []
        assert 11 <= large.relay.glanced.count("consumers") <= 14
        assert 11 <= large.relay.glanced.count("slots") <= 14
        await large.press("2")
        before = len(large.relay.glanced)
        await large.advance(20)
        assert len(large.relay.glanced) == before


async def test_until_there_is_an_answer_it_is_asked_for_each_second() -> None:
    stage = Stage()
    stage.relay.views = {"slots": Slots(), "consumers": Consumers()}
    async with stage.run((160, 45)):
        assert "the relay is querying Kafka…" in text(stage.app)
        assert "the relay is querying the other slots…" in text(stage.app)
        before = len(stage.relay.glanced)
        await stage.advance(4)
        assert len(stage.relay.glanced) >= before + 6


async def test_failures_and_old_answers_are_told_whole() -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        refused = "Kafka refuses to list its groups: the user may not DESCRIBE the cluster, ask its admin"
        stage.relay.views["consumers"] = Consumers(stage.clock.now + 6, f"{refused}")
        stage.relay.views["slots"] = replace(services.slots(stage.clock.now), slots=())
        await stage.advance(8)
        assert refused in " ".join(line.strip() for line in panel(stage, GroupsPanel))
        assert "✓ there is no other slot" in panel(stage, RetainedWalPanel)
        await stage.advance(30)
        assert any("▲ no answer for 3" in line for line in panel(stage, RetainedWalPanel))
        # After another screen the figures are old, which is not shown as a fault.
        await stage.press("2")
        await stage.advance(60)
        await stage.press("1")
        assert any(line.startswith("· 1 m") for line in panel(stage, RetainedWalPanel))


class Held(FakeRelay):
    """A relay with a slot that differs from the usual one in one field."""

    changes_to: dict[str, object]

    async def status(self) -> Status:
        return replace(await super().status(), **self.changes_to)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"safe_wal_bytes": None}, "no limit is set (max_slot_wal_keep_size): an unused slot"),
        ({"wal_status": "lost", "safe_wal_bytes": None}, "✗ the slot has lost WAL that it needs"),
        ({"wal_status": "unreserved", "safe_wal_bytes": -5}, "✗ the slot is about to be lost"),
    ],
)
async def test_a_slot_in_danger_says_so(changes: dict[str, object], told: str) -> None:
    stage = Stage()
    relay = Held(stage.relay.shop, stage.clock)
    relay.changes_to = changes
    stage.app.model._source = relay  # type: ignore[attr-defined]
    async with stage.run((160, 45)):
        await stage.advance(6)
        assert told in " ".join(line.strip() for line in panel(stage, RetainedWalPanel))


async def test_more_than_there_is_room_for_is_counted() -> None:
    stage = Stage()
    groups = tuple(GroupEntry(f"group-{number:02}\x1b[31m", "stable", 1) for number in range(40))
    slots = tuple(SlotEntry(f"slot_{number:02}", "logical") for number in range(40))
    async with stage.run((160, 45)):
        now = stage.clock.now
        stage.relay.views = {"slots": Slots(now, slots=slots), "consumers": Consumers(now, groups=groups)}
        await stage.advance(8)
        assert panel(stage, GroupsPanel)[-1] == "and 36 more; Enter shows all"
        assert panel(stage, RetainedWalPanel)[-1] == "and 39 more; Enter shows all"
        assert "\\x1b" in "".join(panel(stage, GroupsPanel))


@pytest.mark.parametrize(("kind", "mode"), [(RetainedWalPanel, "slots"), (GroupsPanel, "consumers")])
async def test_enter_goes_to_the_screen_that_has_more(
    kind: type[RetainedWalPanel] | type[GroupsPanel], mode: str
) -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        stage.app.screen.query_one(kind).focus()
        await stage.press("enter")
        assert stage.app.current_mode == mode


def shapes(shown: list[str]) -> list[str]:
    """Return lines without their figures."""
    return [re.sub(r"[0-9.]+", "0", " ".join(line.split())) for line in shown]


@pytest.mark.parametrize("size", [(100, 40), (160, 45), (250, 70)])
async def test_the_chart_and_the_latencies_can_have_the_whole_screen(size: tuple[int, int]) -> None:
    stage = Stage()
    stage.relay.past = history(NOON + 62)
    async with stage.run(size):
        await stage.advance(1)
        before = lines(stage.app)[2:-1]
        await stage.press("shift+tab")
        kinds = [RateChart] if size[0] < 150 else [LatencyPanel, RateChart]
        for kind in kinds:
            alone = stage.app.screen.query_one(kind)
            assert stage.app.focused is alone
            await stage.press("m")
            assert alone.region.size == (size[0], size[1] - 3)
            assert "Pipeline" not in text(stage.app)
            assert "Tables" not in text(stage.app)
            body = lines(stage.app)[2:-1]
            assert sum(not line.strip("│ ") for line in body) < 6, "it uses the room"
            await stage.press("escape")
            await stage.press("shift+tab")
        # A panel that got its old width back is redrawn with the next figures.
        await stage.advance(1)
        assert shapes(lines(stage.app)[2:5]) == shapes(before[:3])
        assert "Tables" in text(stage.app)


@given(st.integers(80, 320), st.integers(24, 120), st.integers(0, 4), st.integers(0, 300))
def test_what_is_shown_has_room(width: int, height: int, trouble: int, tables: int) -> None:
    body = height - 3 - trouble
    rooms = PanelHeights.of(width, height, body, tables)
    pipeline = 12 if width >= 150 else 8
    used = rooms.chart + rooms.latency + (rooms.tables or _TABLES) + rooms.latest
    if rooms.chart:
        assert pipeline + used <= body
    if rooms.latest:
        assert rooms.latest >= _LATEST
        assert pipeline + used == body
        assert rooms.latest >= _VAST or height < 70 or width < 150 or tables > 6


async def test_what_is_painted_in_part_is_what_would_be_painted_as_a_whole() -> None:
    stage = Stage()
    stage.relay.past = history(NOON + 90)
    async with stage.run((160, 45)):
        compositor = stage.app.screen._compositor
        whole, parts = compositor.render_strips(), 0
        # Nothing else redraws meanwhile.
        with stage.app.batch_update():
            for _ in range(6):
                stage.clock.now += 0.5
                await stage.app.sample()
                compositor.update_widgets(set(compositor.visible_widgets))
                update = compositor.render_partial_update()
                if update is None:
                    continue
                parts += 1
                fresh = compositor.render_strips()
                painted = {(y, x) for y, left, right in update.spans for x in range(left, right)}
                for y, (before, after) in enumerate(zip(whole, fresh, strict=True)):
                    differ = {
                        (y, x)
                        for x, (a, b) in enumerate(zip(_cells(before), _cells(after), strict=True))
                        if a != b
                    }
                    assert differ <= painted
                for y, left, right in update.spans:
                    for x, strip in update.chops[y].items():
                        if strip is not None and left <= x and x + strip.cell_length <= right:
                            assert _cells(strip) == _cells(fresh[y])[x : x + strip.cell_length]
                whole = fresh
        assert parts


def _cells(strip: Strip) -> list[tuple[str, object]]:
    return [(character, segment.style) for segment in strip for character in segment.text]
