"""Jump mode, completion, and exports."""

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from textual.events import Resize
from textual.geometry import Size

from bwtui.recording.as_of import TableFold
from bwtui.recording.change import Change
from bwtui.recording.export import change_object
from bwtui.recording.playback import FORMS, SeekContext, parse_target
from bwtui.tui.screens.base import places
from bwtui.tui.screens.dialogs import JumpScreen
from bwtui.tui.widgets.filter_bar import CompletingInput, FilterBar
from bwtui.tui.widgets.transport import SeekBar
from tests.tui.doubles import Stage
from tests.tui.picture import lines, text
from tests.tui.recorded import RecordedStage
from tests.tui.shop import Shop


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write exports into a separate folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Jump mode.


@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
async def test_every_panel_and_every_tab_has_a_letter_that_goes_there(size: tuple[int, int]) -> None:
    stage = Stage(Shop(trouble=True))
    async with stage.run(size):
        for mode in ("overview", "errors"):
            await stage.show(mode)
            screen = stage.app.screen
            panels = [widget for widget in screen.focus_chain if widget.region]
            await stage.press("ctrl+o")
            jump = stage.app.screen
            assert isinstance(jump, JumpScreen)
            letters = list(jump.places)
            assert len(letters) == len(panels) + len(stage.app.MODE_SCREENS)
            shown = lines(stage.app)
            for letter, place in jump.places.items():
                assert shown[place.offset.y][place.offset.x :][:3].strip() == letter
            await stage.press(letters[len(panels) - 1])
            assert stage.app.focused is panels[-1]


async def test_a_tabs_letter_shows_it_and_escape_leaves_everything_as_it_was() -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        focused = stage.app.focused
        await stage.press("ctrl+o", "escape")
        assert stage.app.focused is focused
        await stage.press("ctrl+o", "1", "question_mark", "space")
        jump = stage.app.screen
        assert isinstance(jump, JumpScreen), "other keys do nothing"
        errors = next(
            letter
            for letter, place in jump.places.items()
            # The letter and a blank cover the key and the first letter of "Err".
            if "rr" in lines(stage.app)[0][place.offset.x : place.offset.x + 5]
        )
        await stage.press(errors)
        assert stage.app.current_mode == "errors"


async def test_jump_mode_ends_when_the_terminal_changes() -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        await stage.press("ctrl+o")
        small = Size(80, 24)
        stage.app.screen.post_message(Resize(small, small))
        await stage.settle()
        assert not isinstance(stage.app.screen, JumpScreen)


# Completion.


def bar(stage: Stage | RecordedStage) -> CompletingInput:
    """Return the line in the prompt."""
    typed = stage.app.focused
    assert isinstance(typed, CompletingInput)
    return typed


@pytest.mark.parametrize("key", ["tab", "right"])
async def test_a_filter_is_completed_with_names_of_tables(key: str) -> None:
    stage = Stage()
    async with stage.run():
        await stage.press("slash", "p", "u")
        assert "public.customers" in lines(stage.app)[-2]
        await stage.press(key)
        assert bar(stage).value == "public.customers"
        await stage.press(*["backspace"] * 16, "exclamation_mark", "p", "r", "o")
        assert bar(stage).completion == "!products"
        await stage.press(key, "enter")
        grid = stage.app.screen.query_one(FilterBar).screen.focused
        assert [row.key for row in grid.rows if "products" in row.key] == []  # type: ignore[union-attr]


async def test_tab_moves_on_where_nothing_can_be_completed() -> None:
    stage = Stage()
    async with stage.run():
        await stage.press("slash", "z", "z")
        typed = bar(stage)
        await stage.press("tab")
        assert stage.app.focused is not typed


async def test_a_query_is_completed_word_by_word_and_a_wrong_one_says_the_same() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.press("2", "slash")
        await stage.type("tab")
        await stage.press("tab")
        await stage.type(" ")
        await stage.press("tab")
        await stage.type(" or")
        await stage.press("right")
        assert bar(stage).value == "table = orders"
        await stage.type(" and after.st")
        await stage.press("tab")
        assert bar(stage).value == "table = orders and after.status"
        await stage.type(" foo")
        assert "expected an operator after 'after.status'" in text(stage.app)


async def test_a_place_is_completed_and_each_form_is_one() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.seek("#49")
        await stage.press("colon")
        assert "#1234 (a position)" in text(stage.app)
        await stage.type("x")
        await stage.press("tab")
        change = stage.head.change
        assert change is not None
        assert bar(stage).value == f"xid {change.xid}"
        await stage.press("enter")
        assert not stage.screen.query_one(SeekBar).display
        head = stage.head
        within = SeekContext(head.first_time, head.last_time, head.time, head.length)
        for place in places(head):
            parse_target(place, within)
    assert all(form in FORMS for form in ("+30s", "-5m", "xid", "%", "#", "start", "end"))


# Exports.


def files() -> list[Path]:
    return sorted(Path().iterdir())


def objects(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_an_export_never_overwrites_and_says_where_it_went() -> None:
    stage = Stage()
    async with stage.run():
        for count in (1, 2, 3):
            await stage.press("E")
            assert len(files()) == count
            assert f"./{max(files(), key=lambda path: path.stat().st_mtime_ns)}" in stage.told[-1]
        assert len({path.read_text() for path in files()}) == 1
        assert all(re.fullmatch(r"bwtui-shop-Overview-\d{8}-\d{6}(-[23])?\.jsonl", p.name) for p in files())
        assert all(path.stat().st_mode & 0o077 == 0 for path in files()), "rows are nobody else's business"


async def test_what_is_exported_is_what_passes_the_filter() -> None:
    stage = Stage()
    async with stage.run():
        await stage.press("slash", *"products", "enter", "E")
        (path,) = files()
        assert [one["Table"] for one in objects(path)] == ["public.products"]
        assert "/products" in stage.told[-1], "and the notice says so"


async def test_every_list_can_be_exported() -> None:
    stage = Stage(Shop(trouble=True))
    async with stage.run():
        for mode in ("changes", "registry", "errors", "slots", "consumers", "log", "settings", "audit"):
            await stage.show(mode)
            rows = stage.app.screen.main_grid().rows  # type: ignore[attr-defined]
            before = set(files())
            await stage.press("E")
            new = set(files()) - before
            assert len(new) == bool(rows), mode
            if rows:
                assert len(objects(new.pop())) == len(rows)


async def test_a_folder_that_can_not_be_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    stage = Stage()
    async with stage.run():
        await stage.press("E")
        assert "can't write" in stage.told[-1]


async def test_all_changes_that_a_query_finds_are_exported_exactly() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.press("2", "slash")
        await stage.type("op = delete")
        await stage.press("enter", "E")
        (path,) = files()
        found = objects(path)
        wanted = [c.position for c in stage.recording.changes() if c.operation == "delete"]
        assert [one["position"] for one in found] == wanted
        assert len(wanted) > 1
        await stage.press("escape", "e")
        (one,) = objects(next(p for p in files() if p != path))
        assert one["position"] == stage.head.position - 1


async def test_an_export_whose_screen_is_left_says_so_and_makes_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def held(change: Change) -> dict[str, Any]:
        begun.set()
        assert goes_on.wait(60)
        return change_object(change)

    monkeypatch.setattr("bwtui.tui.screens.changes.change_object", held)
    stage = RecordedStage()
    async with stage.run():
        await stage.seek("#99")
        await stage.press("T")
        await stage.pilot.press("E")
        await asyncio.to_thread(begun.wait, 60)
        left = stage.screen
        await stage.pilot.press("escape")
        await stage.pilot.pause()
        assert not left.is_attached
        goes_on.set()
        await stage.settle()
        assert any("the export was stopped because its screen was closed" in told for told in stage.told)
        assert files() == []


async def test_rows_that_are_worked_out_for_a_screen_that_is_left_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, goes_on, closed = threading.Event(), threading.Event(), threading.Event()
    advance, close = TableFold.advance, TableFold.close

    def held(fold: TableFold, *more: Any) -> bool:
        begun.set()
        assert goes_on.wait(60)
        return advance(fold, *more)

    def noted(fold: TableFold) -> None:
        closed.set()
        close(fold)

    monkeypatch.setattr(TableFold, "advance", held)
    monkeypatch.setattr(TableFold, "close", noted)
    stage = RecordedStage()
    async with stage.run():
        await stage.press("down")
        await stage.pilot.press("a")
        await asyncio.to_thread(begun.wait, 60)
        await stage.pilot.press("escape")
        await stage.pilot.pause()
        assert not closed.is_set(), "its thread still reads them"
        goes_on.set()
        await stage.settle()
        assert closed.is_set()


async def test_a_transaction_and_a_table_are_exported_alone() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.seek("#99")
        await stage.press("T", "E")
        start, stop = stage.recording.transaction(99)
        (path,) = files()
        assert [one["position"] for one in objects(path)] == list(range(start, stop))


async def test_all_rows_as_of_a_moment_are_exported_not_only_those_at_hand() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.press("down", "a", "E")
        (path,) = files()
        assert len(objects(path)) == 44
        assert "44 rows as of" in stage.told[-1]


async def test_nothing_to_export_makes_no_file() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.press("2", "slash")
        await stage.type("xid = 1")
        await stage.press("enter", "E")
        assert files() == []
        assert "nothing to export" in "".join(stage.told)
