"""Text that fits is shown completely, and no element covers another."""

import re

import pytest
from textual.geometry import Size

from bwtui.tui.widgets.grid import ItemList
from tests.tui.doubles import Stage
from tests.tui.picture import lines, text
from tests.tui.recorded import RecordedStage


@pytest.mark.parametrize("size", [(80, 24), (160, 45), (250, 70)])
async def test_the_runway_is_no_countdown(size: tuple[int, int]) -> None:
    stage = Stage()
    async with stage.run(size):
        await stage.advance(12)
        shown = text(stage.app)
        # 10 GB at 410 kB a second.
        assert "safe ≈ 7 h 16 m if the relay stopped now" in shown
        assert re.search("safe +10.0 GB", shown)
        assert "retained" in shown
        assert "kept" not in shown


async def test_no_text_is_cut_beside_empty_space() -> None:
    stage = RecordedStage()
    async with stage.run((160, 45)):
        assert "unkeyed: messages have no key" in text(stage.app)
        await stage.press("2")
        assert "…" not in "".join(line[: line.rfind("│", 0, 100)] for line in lines(stage.app)[3:-5])


async def test_the_first_picture_of_a_new_size_is_laid_out_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        await stage.show("registry")
        grid = stage.app.screen.query_one(ItemList)
        # The state after a layout whose message has not arrived yet.
        monkeypatch.setattr(ItemList, "size", Size(40, 20))
        line = grid.render_line(1).text.rstrip()
        assert len(line) <= 40
        last = grid._placed[-1]
        assert last.x + last.width <= 40


async def test_help_wraps_under_its_own_column() -> None:
    stage = RecordedStage()
    async with stage.run((80, 24)):
        await stage.press("question_mark")
        groups = {"Screens", "Recording", "Audit", "View", "Lists", "This terminal"}
        box = [line.split("│")[1].rstrip("▁▂▃▄▅▆▇█ ") for line in lines(stage.app) if line.count("│") >= 2]
        told = [line[2:] for line in box if line.strip() and line.strip() not in groups]
        assert len(told) > 10
        assert all(line.startswith("  ") for line in told)
        assert any(line.startswith(" " * 20) for line in told), "something wraps"


async def test_a_notice_leaves_the_transport_alone() -> None:
    stage = RecordedStage()
    async with stage.app.run_test(size=(80, 24), notifications=True) as stage.pilot:
        await stage.settle()
        before = lines(stage.app)[-3:]
        stage.app.notify("Something that is told in\nthree\nlines", timeout=60)
        await stage.settle()
        assert "three" in text(stage.app)
        assert lines(stage.app)[-3:] == before


async def test_a_key_for_recordings_says_so_live() -> None:
    stage = Stage()
    async with stage.run((120, 30)):
        for key, word in (("left", "Back one"), ("T", "Transaction")):
            await stage.press(key)
            told = [notice.message for notice in stage.app._notifications]
            assert any(message.startswith(f"{word}: available only in a recording") for message in told)
        await stage.press("slash", *"xyz")
        assert stage.app.screen.query_one("FilterBar Input").value == "xyz"  # type: ignore[attr-defined]


async def test_a_recording_that_stands_still_takes_no_pictures() -> None:
    stage = RecordedStage()
    async with stage.run((160, 45)):
        taken = 0
        next_snapshot = stage.source.next_snapshot

        async def counted():  # type: ignore[no-untyped-def]
            nonlocal taken
            taken += 1
            return await next_snapshot()

        stage.source.next_snapshot = counted  # type: ignore[method-assign]
        for _ in range(20):
            stage.app.tick()
            await stage.pilot.pause()
        assert taken == 0
        await stage.press("g", "space")
        taken = 0
        for _ in range(20):
            stage.clock.now += 0.1
            stage.app.tick()
            await stage.pilot.pause()
        assert taken > 5
