"""The screens of a recording: sizes, the list of the recording, queries, the mouse, damage."""

import re
from dataclasses import asdict
from typing import Any

import pytest

from bwtui.model.backfill import BackfillStatus
from bwtui.recording import playback as window_module
from bwtui.recording.explain import RowKey
from bwtui.tui.recording_app import RecordingApp
from bwtui.tui.screens.journey import RecordedJourney
from bwtui.tui.screens.rows import AsOfScreen
from bwtui.tui.sources.recorded_model import RecordingSource
from bwtui.tui.widgets.changes import BEGINNING, RecordedChanges, RecordedDetail
from bwtui.tui.widgets.transport import QueryBar, Timeline, pointed
from tests.recorded_shop import ORDERS, MemoryRecording, Tape, shop_recording
from tests.tui.picture import lines, text
from tests.tui.recorded import RecordedStage

SIZES = [(80, 24), (200, 60)]


@pytest.mark.parametrize("size", SIZES)
async def test_every_screen_fits_and_says_that_it_is_a_recording(size: tuple[int, int]) -> None:
    stage = RecordedStage()
    async with stage.run(size):
        for keys in ("1", "2", "3", "4", "2T", "2x", "1a"):
            await stage.press(*keys)
            shown = lines(stage.app)
            assert "RECORDING" in shown[0]
            assert "as of 2026-01-15 12:01:25" in shown[1]
            assert not re.search(r"\blive\b", "\n".join(shown), re.IGNORECASE)
            assert "Quit" in shown[-1], keys
            assert "12:01:25.500" in shown[-2]
            last = stage.recording.length - 1
            assert f"position {last} of {last}" in shown[-2]
            panels = [
                p
                for p in stage.app.screen.query(".panel")
                if all(node.display for node in p.ancestors_with_self)
            ]
            assert all(p.outer_size.height >= 4 for p in panels), keys


async def test_the_overview_is_as_of_the_position() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.seek("start")
        assert "no tables yet" in text(stage.app)
        await stage.seek("#7")
        assert [row.key for row in stage.grid.rows] == ["public.orders", "public.products"]
        assert "SNAPSHOT" not in lines(stage.app)[0]
        assert "relay was snapshot" in text(stage.app)
        await stage.seek("end")
        cells = {row.key: [cell.text for cell in row.cells] for row in stage.grid.rows}
        assert cells["public.orders"][4:7] == ["40", "57", "2"]
        assert cells["public.orders"][0] == "✗"


async def test_rates_are_those_of_the_last_recorded_seconds() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.seek("12:00:10")
        snapshot = stage.app.model.snapshot
        assert snapshot.status is not None
        assert 3 < snapshot.status.tables["public.orders"].rows_per_second < 6
        assert len(snapshot.delivered) == 10
        assert max(snapshot.delivered) > 5
        await stage.seek("12:01:00")
        assert stage.app.model.snapshot.status is not None
        assert stage.app.model.snapshot.status.tables["public.orders"].rows_per_second == 0


async def test_the_list_of_changes_is_the_recording() -> None:
    stage = RecordedStage()
    async with stage.run((80, 24)):
        await stage.press("2")
        assert stage.grid.cursor_key == "150"
        await stage.press("up", "k", "left")
        assert (stage.head.position, stage.grid.cursor_key) == (148, "147")
        await stage.press("pageup")
        assert stage.head.position == 148 - (stage.grid.size.height - 1)
        await stage.press("home")
        assert (stage.head.position, stage.grid.cursor_key) == (0, BEGINNING)
        assert "no change before this position" in text(stage.app)
        await stage.press("down")
        assert (stage.head.position, stage.grid.cursor_key) == (1, "0")
        assert stage.grid.fade_behind == stage.grid.cursor_row
        await stage.press("end")
        assert stage.head.position == 151


async def test_only_a_window_is_read_and_the_cursor_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "SIZE", 60)
    stage = RecordedStage(shop_recording(2_000))
    async with stage.run((80, 24)):
        await stage.press("2")
        await stage.seek("#2999")
        assert len(stage.grid.rows) == 120
        for _ in range(60):
            await stage.pilot.press("up")
        await stage.settle()
        assert (stage.head.position, stage.grid.cursor_key) == (2940, "2939")
        top = stage.grid.scroll_offset.y
        assert top < stage.grid.cursor_row < top + stage.grid.size.height - 1


async def test_moving_by_hand_stops_playing() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.press("2", "space")
        await stage.advance(1)
        assert stage.head.playing
        await stage.press("down")
        assert not stage.head.playing


async def test_idle_stretches_are_shortened_and_say_so() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.seek("12:00:22")
        await stage.press("space")
        await stage.advance(1.5)
        assert "nothing for 1 m 00 s, shortened to 2 s" in text(stage.app)
        await stage.advance(3)
        assert "shortened" not in text(stage.app)
        assert stage.head.position > 145


async def test_the_mouse_seeks_steps_and_selects() -> None:
    stage = RecordedStage()
    async with stage.run((120, 36)) as pilot:
        timeline = stage.app.screen.query_one(Timeline)
        region = timeline.content_region
        await pilot.click(offset=(region.x + region.width // 2, region.y))
        await stage.settle()
        middle = (stage.head.first_time + stage.head.last_time) // 2
        assert abs(stage.head.time - middle) < 1_000_000
        await pilot.click(offset=(region.x, region.y))
        await stage.settle()
        assert stage.head.position == 0
        await pilot.click(offset=(region.right - 1, region.y))
        await stage.settle()
        assert stage.head.position == stage.head.length
        await stage.press("2")
        top = stage.grid.content_region
        key = stage.grid.rows[stage.grid.scroll_offset.y + 3].key
        await pilot.click(offset=(top.x + 5, top.y + 4))
        await stage.settle()
        assert stage.head.position == int(key) + 1
        stage.grid.on_mouse_scroll_up()
        await stage.settle()
        assert stage.head.position == int(key) - 2
        await pilot.click(offset=(top.x + 5, top.y + 4), times=2)
        await stage.settle()
        assert stage.app.focused is stage.app.screen.query_one(RecordedDetail)


async def test_the_timeline_marks_errors() -> None:
    stage = RecordedStage()
    async with stage.run((80, 24)):
        assert "✗" in lines(stage.app)[-3]
        await stage.press("4")
        assert "too large" in text(stage.app)
        await stage.seek("12:00:10")
        assert "too large" not in text(stage.app), "it had not happened yet"


async def test_a_change_says_everything_about_itself() -> None:
    stage = RecordedStage()
    async with stage.run((200, 60)):
        await stage.press("2")
        for place, words in {
            "#142": ("tombstone", "partition 0 offset 99", "partition 0 offset 100", "~  id"),
            "#143": ("unchanged, not sent (TOAST)",),
            "#144": ("filled in by the relay", "photo"),
            "#145": ("delete public.orders", "xid 796"),
            "#146": ("no message: dropped by --on-error log",),
            "#147": ("repeated: an earlier pass",),
            "#148": ("without a key has no tombstone",),
            "#149": ("no delivery report before the relay ended",),
            "#150": ("TRUNCATE has no message",),
            "#0": ("row 1 of its table", "key schema 200", "value schema 201"),
        }.items():
            await stage.seek(place)
            shown = re.sub(r"[\s│]+", " ", text(stage.app))
            for word in words:
                assert re.sub(r"\s+", " ", word) in shown, place


async def test_a_query_shows_what_it_finds_and_steps_from_one_to_the_next() -> None:
    stage = RecordedStage()
    async with stage.run((120, 36)):
        await stage.press("2", "slash")
        await stage.type("op = update and after.status = 'packed'")
        await stage.press("enter")
        grid = stage.grid
        assert isinstance(grid, RecordedChanges)
        assert {row.cells[2].text for row in grid.rows if row.key != BEGINNING} == {"~ update"}
        assert "/op = update" in str(grid.border_subtitle)
        before = stage.head.position
        await stage.press("up")
        assert stage.head.position < before
        change = stage.screen.selected_change()
        assert change is not None and change.after is not None
        status = [column.name for column in change.relation.columns].index("status")
        assert change.after[status] == b"packed"
        await stage.press("escape")
        assert len(grid.rows) == stage.recording.length + 1
        assert grid.cursor_key == str(change.position), "the place stays"


async def test_a_query_that_is_wrong_points_at_the_place() -> None:
    stage = RecordedStage()
    async with stage.run((120, 36)):
        await stage.press("2", "slash")
        await stage.type("table = orders and wrong = 1")
        shown = lines(stage.app)
        row = next(i for i, line in enumerate(shown) if line.startswith(" /"))
        assert shown[row + 1].index("^") == shown[row].index("wrong")
        await stage.press("enter")
        assert stage.screen.query_one(QueryBar).display, "it stays open"
        await stage.press("escape")
        assert not stage.screen.query_one(QueryBar).display


def test_the_pointer_finds_room() -> None:
    assert pointed("no", 3, 5, 20) == "     ^ no"
    assert pointed("what is that", 15, 17, 20) == "    what is that ^"
    assert pointed("what is that, please", 95, 120, 40) == "column 96: what is that, please"


async def test_a_search_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "STEP", 10)
    stage = RecordedStage()
    async with stage.run():
        await stage.press("2")
        grid = stage.grid
        assert isinstance(grid, RecordedChanges)
        stopped: list[bool] = []

        def slow(change: object) -> bool:
            stopped.append(grid.stop_searching())
            return False

        grid.set_query("slow", slow)
        await stage.settle()
        assert stopped[0]
        assert len(stopped) <= 10
        assert "search stopped" in str(grid.border_subtitle)
        assert "the search was stopped" in text(stage.app)


async def test_errors_only_in_a_recording() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.press("2", "exclamation_mark")
        assert [row.key for row in stage.grid.rows if row.key != BEGINNING] == ["146", "149"]
        await stage.press("exclamation_mark")
        assert len(stage.grid.rows) > 100


async def test_an_explained_key_shows_the_values_before_and_follows_a_changed_key() -> None:
    stage = RecordedStage()
    async with stage.run((120, 40)):
        stage.app.push_screen(RecordedJourney(stage.app, RowKey("public.orders", ("id",), (b"900",))))
        await stage.settle()
        assert "had a different key before" in text(stage.app)
        await stage.press("down")
        assert re.search(r"~\s+status\s+new\s+paid", text(stage.app)), "from the change before"
        await stage.press("up", "x")
        assert isinstance(stage.app.screen, RecordedJourney)
        assert stage.app.screen.story.key.values == (b"3",)
        assert "has a different key now" in text(stage.app)


async def test_rows_as_of_follow_the_position() -> None:
    stage = RecordedStage()
    async with stage.run((120, 36)):
        await stage.seek("#9")
        await stage.press("2", "a")
        assert isinstance(stage.app.screen, AsOfScreen)
        before = len(stage.grid.rows)
        await stage.press(*["right_square_bracket"] * 4)
        assert len(stage.grid.rows) > before
        await stage.seek("#7")
        shown = text(stage.app)
        assert f"{len(stage.grid.rows)} rows as of" in shown


class PutIn(MemoryRecording):
    """Rows of orders were backfilled, from ``started`` (Unix seconds) on."""

    started = 0.0

    def status(self, position: int) -> dict[str, Any]:
        one = BackfillStatus("1", ORDERS.qualified_name, "first", state="done", started=self.started)
        status = super().status(position)
        return {**status, "backfills": [asdict(one)]} if status else {}


@pytest.mark.parametrize(("later", "is_whole"), [(0.0, True), (-1.0, False)])
async def test_rows_that_were_put_in_while_it_was_recorded_are_all_there(
    later: float, is_whole: bool
) -> None:
    tape = Tape()
    tape.begin()
    tape.add("insert", ORDERS, (b"1", b"new", None))
    recording = PutIn(tape)
    recording.started = recording.first_time / 1_000_000 + later
    stage = RecordedStage(recording)
    async with stage.run((120, 36)):
        await stage.press("end", "a")
        assert ("no snapshot is recorded" not in text(stage.app)) == is_whole


async def test_rows_as_of_without_a_snapshot_say_so() -> None:
    tape = Tape()
    for number in range(1_000):
        tape.begin()
        tape.add("insert", ORDERS, (b"%d" % number, b"new", None))
    stage = RecordedStage(MemoryRecording(tape))
    async with stage.run((120, 36)):
        await stage.press("a")
        assert "no snapshot is recorded, so earlier rows are unknown" in text(stage.app)
        assert "1,000 rows" in text(stage.app)
        await stage.press("end")
        assert "999" in text(stage.app)
        assert len(stage.grid.rows) <= 400
        await stage.press("home", "down")
        assert stage.grid.rows[stage.grid.cursor_row].cells[0].text == "1"
        for _ in range(30):
            await stage.press("pagedown")
        assert int(stage.grid.rows[stage.grid.cursor_row].key) > 400, "beyond what was at hand"


async def test_an_empty_recording() -> None:
    stage = RecordedStage(MemoryRecording(Tape()))
    async with stage.run((80, 24)):
        for key in ("space", "left", "right_square_bracket", "2", "g", "T", "x", "a"):
            await stage.press(key)
        assert "the recording holds no changes" in text(stage.app)
        assert "no changes  beginning" in lines(stage.app)[-2]


async def test_damage_is_told_and_what_is_whole_stays() -> None:
    stage = RecordedStage()
    stage.recording.damaged_at = 100
    async with stage.run((120, 30)):
        assert "the recording is damaged: 00000001.bwj at byte 4711" in text(stage.app)
        await stage.seek("#49")
        assert "is damaged" not in text(stage.app)
        assert stage.head.position == 50
        assert stage.source.damage is not None, "the exit code will say so"


async def test_q_closes_at_once() -> None:
    stage = RecordedStage()
    async with stage.run() as pilot:
        await pilot.press("q")
    assert stage.app.return_value == "quit"


async def test_the_screens_read_and_never_write(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = RecordedStage()
    async with stage.run():
        assert "Stop" not in text(stage.app)
        await stage.press("1", "2")


def test_it_opens_where_it_was_told_to() -> None:
    recording = shop_recording()
    source = RecordingSource(recording, lambda: recording)
    source.player.seek_text("xid 745")
    app = RecordingApp(source)
    assert app.source.player.position == recording.transaction(recording.of_xid(745) or 0)[1]


async def test_rows_as_of_are_filtered_and_sorted() -> None:
    stage = RecordedStage()
    async with stage.run((160, 45)):
        await stage.press("2")
        await stage.seek("#8")
        await stage.press("a")
        assert isinstance(stage.app.screen, AsOfScreen)
        await stage.seek("end")
        grid, every = stage.grid, len(stage.grid.rows)
        await stage.press("slash")
        await stage.type("after.status = paid and key.id > 20")
        await stage.press("enter")
        assert {row.cells[1].text for row in grid.rows} == {"paid"}
        assert all(int(row.cells[0].text) > 20 for row in grid.rows)
        remark = str(grid.border_subtitle)
        assert f"/after.status = paid and key.id > 20 · {len(grid.rows)} of {every} rows as of" in remark
        await stage.press("s", "s", "s")
        totals = [float(row.cells[2].text) for row in grid.rows]
        assert totals == sorted(totals)
        assert grid.sort_mark == ("total", False)
        await stage.press("S")
        assert [float(row.cells[2].text) for row in grid.rows] == sorted(totals, reverse=True)
        # After the last column the key's own order returns.
        await stage.press("s")
        keys = [int(row.cells[0].text) for row in grid.rows]
        assert keys == sorted(keys)
        await stage.press("S")
        assert [int(row.cells[0].text) for row in grid.rows] == sorted(keys, reverse=True)
        assert "sorted by key, descending" in str(grid.border_subtitle)
        await stage.press("S", "escape")
        assert len(grid.rows) == every
        await stage.press("escape")
        assert not isinstance(stage.app.screen, AsOfScreen)


async def test_rows_as_of_stay_filtered_while_the_position_moves() -> None:
    stage = RecordedStage()
    async with stage.run((120, 36)):
        await stage.press("2")
        await stage.seek("#8")
        await stage.press("a", "slash")
        await stage.type("after.status = nowhere")
        await stage.press("enter")
        assert "no row at this position matches; Esc shows all" in text(stage.app)
        await stage.press("slash")
        stage.screen.query_one(QueryBar).query_one("Input").value = ""  # type: ignore[attr-defined]
        await stage.type("position < 12")
        await stage.press("enter")
        few = len(stage.grid.rows)
        await stage.seek("end")
        assert isinstance(stage.app.screen, AsOfScreen)
        assert 0 < len(stage.grid.rows) <= few + 12


async def test_what_only_changes_have_is_refused_for_rows_and_pointed_at() -> None:
    stage = RecordedStage()
    async with stage.run((120, 36)):
        await stage.press("2")
        await stage.seek("#8")
        await stage.press("a", "slash")
        await stage.type("key.id = 1 and op = update")
        shown = lines(stage.app)
        row = next(i for i, line in enumerate(shown) if line.startswith(" /"))
        assert shown[row + 1].index("^") == shown[row].index("op =")
        assert "rows have no field 'op'" in shown[row + 1]


async def test_a_click_on_a_title_sorts_the_rows() -> None:
    stage = RecordedStage()
    async with stage.run((120, 36)) as pilot:
        await stage.press("2")
        await stage.seek("#8")
        await stage.press("a")
        await stage.seek("end")
        region = stage.grid.content_region
        shown = lines(stage.app)[region.y]
        await pilot.click(offset=(shown.index("total"), region.y))
        await stage.settle()
        assert stage.grid.sort_mark == ("total", False)
        await pilot.click(offset=(shown.index("total"), region.y))
        await stage.settle()
        assert stage.grid.sort_mark == ("total", True)
