"""The texts of a recording's screens: numbers as in queries, searches, prompts, and the footer."""

import re
import threading
from dataclasses import replace

import pytest
from textual.widgets import Input

from bwtui.recording import playback as window_module
from bwtui.tui.audit.report import parse_report
from bwtui.tui.screens.audit import ComparisonScreen
from bwtui.tui.screens.journey import RecordedJourney
from bwtui.tui.screens.overview import Pipeline
from bwtui.tui.widgets.changes import BEGINNING, RecordedChanges
from bwtui.tui.widgets.transport import SeekBar
from tests.recorded_shop import shop_recording
from tests.tui.audited import json_recording, report_of
from tests.tui.picture import lines, text
from tests.tui.recorded import RecordedStage

MODES = ("1", "2", "3", "4", "5")


async def test_a_position_is_the_number_that_a_query_finds() -> None:
    stage = RecordedStage()
    async with stage.run((120, 40)):
        await stage.press("2", "slash")
        await stage.type("position = 20")
        await stage.press("enter", "home", "down")
        assert stage.screen.selected_change() is stage.recording._changes[20]
        assert "Change at position 20 " in text(stage.app)
        assert "position  20 of 150" in lines(stage.app)[-2]
        await stage.press("escape", "G")
        await stage.seek("#20")
        assert "Change at position 20 " in text(stage.app)
        assert "position  20 of 150" in lines(stage.app)[-2]
        await stage.seek("#0")
        await stage.press("T")
        assert re.search(r"changes +1, position 0\b", text(stage.app)), "a row of the snapshot is on its own"


async def test_a_row_says_at_which_position_it_was_left() -> None:
    stage = RecordedStage()
    async with stage.run((120, 40)):
        await stage.seek("#2")
        await stage.press("2", "a")
        await stage.press("down", "down")
        assert "as of the change at position 2" in text(stage.app)


async def test_while_it_searches_it_says_so_and_only_then_that_there_is_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(window_module, "STEP", 10)
    stage = RecordedStage()
    async with stage.run((120, 36)):
        await stage.press("2")
        grid = stage.grid
        assert isinstance(grid, RecordedChanges)
        grid.set_query("nothing", lambda change: False)
        await stage.settle()
        assert text(stage.app).count("no change matches the query") == 2, "in the list, and in the detail"
        begun, go_on = threading.Event(), threading.Event()

        def slow(change: object) -> bool:
            if grid._read[0]:
                begun.set()
                go_on.wait(60)
            return False

        for was_empty in (True, False):
            begun.clear()
            go_on.clear()
            grid.set_query("slow", slow)
            while not begun.is_set():
                await stage.pilot.pause(0.01)
            await stage.app.sample()
            await stage.pilot.pause()
            shown = text(stage.app)
            assert not grid.rows, was_empty
            assert re.search(r"searching, \d+% read · Esc stops", shown)
            assert shown.count("searching…") == 2, "in the list, and in the detail"
            assert "no change matches" not in shown
            assert "no change before" not in shown
            go_on.set()
            await stage.settle()
            assert text(stage.app).count("no change matches the query") == 2
            grid.set_query("", None)
            await stage.settle()
            assert grid.rows


async def test_before_the_first_match_the_detail_says_where_it_is() -> None:
    stage = RecordedStage()
    async with stage.run((120, 36)):
        await stage.press("2", "slash")
        await stage.type("op = update")
        await stage.press("enter", "home")
        assert stage.grid.cursor_key == BEGINNING
        assert "no matching change before this position; ↓ goes to the first one" in text(stage.app)


async def test_truncate_has_no_row_to_explain() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.seek("#150")
        await stage.press("x")
        assert not isinstance(stage.app.screen, RecordedJourney)
        (said,) = stage.told
        assert "TRUNCATE" in said
        assert "has no key" not in said


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_what_was_sent_nowhere_is_recorded_only(size: tuple[int, int]) -> None:
    recording = shop_recording()
    recording.source = replace(recording.source, broker="", cluster="", registry="")
    status = recording.status
    recording.status = lambda position: status(position) | {"broker": "", "registry": ""}  # type: ignore[method-assign]
    stage = RecordedStage(recording)
    async with stage.run(size):
        shown = "\n".join(lines(stage.app)[2:-3])
        assert "recorded only" in shown
        assert "▶ Kafka" not in shown
        assert "─ Kafka" not in shown


async def test_what_was_sent_names_kafka() -> None:
    stage = RecordedStage()
    async with stage.run((120, 36)):
        assert "recorded only" not in text(stage.app)
        assert "▶ Kafka 127.0.0.1" in str(stage.app.screen.query_one(Pipeline).query_one("#ends").render())


@pytest.mark.parametrize("width", [80, 100, 120, 140, 160])
async def test_the_footer_is_never_cut(width: int) -> None:
    stage = RecordedStage()
    async with stage.run((width, 30)):
        stage.app.audit.report = parse_report(report_of(json_recording()))
        for keys in ("1", "a", "2", "T", "3", "4", "5"):
            await stage.press(*keys)
            shown = lines(stage.app)[-1]
            assert shown.endswith("? Help q Quit"), keys
            assert shown.startswith("Enter Open"), keys
            if keys in "aT":
                await stage.press("escape")


async def test_while_one_types_the_footer_says_what_the_line_can_do() -> None:
    stage = RecordedStage()
    async with stage.run((80, 24)):
        await stage.press("2", "colon")
        assert lines(stage.app)[-1] == "Enter Go Esc Close"
        await stage.press("escape", "slash")
        assert lines(stage.app)[-1] == "Enter Search Esc Clear"
        await stage.press("escape", "1", "slash")
        assert lines(stage.app)[-1] == "Enter Keep Esc Clear"
        await stage.press("escape")
        assert "/ Filter" in lines(stage.app)[-1]


@pytest.mark.parametrize("width", [80, 120])
async def test_the_prompt_for_a_place_shows_every_form_and_whole_errors(width: int) -> None:
    stage = RecordedStage()
    async with stage.run((width, 24)):
        await stage.press("colon")
        assert re.search(
            r"12:04\[:05\],.*#1234\s+\(a\s+position\),\s+start\s+or end", text(stage.app), re.DOTALL
        )
        await stage.type("the day before yesterday, at noon")
        await stage.press("enter")
        shown = re.sub(r"\s+", " ", "\n".join(lines(stage.app)))
        assert "is not a valid position in a recording: write 12:04[:05], " in shown
        assert "xid 742, 45%, #1234 (a position), start or end" in shown
        bar = stage.screen.query_one(SeekBar)
        assert stage.app.focused is bar.query_one(Input)
        await stage.press("backspace")
        assert "is not a valid position" not in text(stage.app)


async def test_keys_that_mean_nothing_on_a_screen_are_not_offered() -> None:
    stage = RecordedStage()
    async with stage.run((200, 40)):
        stage.app.audit.report = parse_report(report_of(json_recording()))
        await stage.press("5")
        assert "! Errors only" not in lines(stage.app)[-1], "findings are errors"
        assert "/ Filter" in lines(stage.app)[-1]
        await stage.press("enter", "enter")
        assert isinstance(stage.app.screen, ComparisonScreen)
        assert "! Errors only" in lines(stage.app)[-1], "fields that differ"
        await stage.press("2")
        await stage.seek("#18")
        await stage.press("x")
        assert not re.search("Filter|Errors only|Sort", lines(stage.app)[-1])
        await stage.press("slash")
        assert stage.app.focused is stage.grid
        await stage.press("escape", "2")
        await stage.seek("#18")
        await stage.press("a")
        assert "Errors only" not in lines(stage.app)[-1], "no row as of a moment is an error"


async def test_a_row_that_was_put_into_the_stream_is_of_no_transaction() -> None:
    recording = shop_recording()
    put = replace(recording._changes[20], operation="backfill", xid=0, ordinal=7)
    recording._changes[20] = put
    stage = RecordedStage(recording)
    async with stage.run((160, 40)):
        await stage.press("2", "slash")
        await stage.type("op = backfill")
        await stage.press("enter", "home", "down")
        assert stage.screen.selected_change() == put
        shown = text(stage.app)
        assert "· backfill public.orders" in shown and "xid backfill" in shown and "of its table" in shown
        await stage.press("T")
        assert "Changes › backfilled row" in text(stage.app)
        await stage.press("escape", "x")
        assert "added to the stream at LSN" in text(stage.app)
