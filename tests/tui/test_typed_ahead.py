"""Keys that are typed before earlier ones have been handled go to what those open."""

from pathlib import Path

import pytest
from textual import events
from textual.command import CommandPalette
from textual.widgets import Input

from bwtui.tui.app import RelayApp
from bwtui.tui.screens.changes import TableScreen
from bwtui.tui.screens.dialogs import LeaveScreen
from bwtui.tui.widgets.changes import ChangeList
from tests.tui.doubles import Stage
from tests.tui.picture import text
from tests.tui.recorded import RecordedStage

NAMES = {"/": "slash", ":": "colon", "\r": "enter", "\x10": "ctrl+p", "\x0f": "ctrl+o", "\x1b": "escape"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write exports into a separate folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def type_at_once(stage: Stage | RecordedStage, keys: str) -> None:
    """Let all keys arrive before the first one is handled."""
    for key in keys:
        stage.app.post_message(events.Key(NAMES.get(key, key), key))
    await stage.settle()


def typed(app: RelayApp) -> str:
    """Return the text of the line that has the focus."""
    assert isinstance(app.focused, Input)
    return app.focused.value


async def test_a_filter_gets_every_letter_and_its_enter_opens_the_filtered_row(folder: Path) -> None:
    stage = Stage()
    async with stage.run():
        await type_at_once(stage, "/eveyq")
        assert typed(stage.app) == "eveyq"
        assert list(folder.iterdir()) == [], "'e' is the key for an export"
        await type_at_once(stage, "\x1b/produ\r\r")
        assert isinstance(stage.app.screen, TableScreen)
        assert stage.app.screen.table == "public.products"


async def test_keys_after_escape_are_for_the_list(folder: Path) -> None:
    stage = Stage()
    async with stage.run():
        await type_at_once(stage, "/x\x1be")
        assert len(list(folder.iterdir())) == 1
        assert stage.app.focused is stage.app.front.main_grid()  # type: ignore[union-attr]


async def test_keys_wait_for_the_screen_that_they_are_for() -> None:
    stage = Stage()
    async with stage.run():
        await type_at_once(stage, "2/eq")
        assert stage.app.current_mode == "changes"
        assert typed(stage.app) == "eq"
        assert stage.app.front.query_one(ChangeList).filter.text == "eq"  # type: ignore[union-attr]


async def test_the_palette_gets_every_letter() -> None:
    stage = Stage()
    async with stage.run():
        await type_at_once(stage, "\x10sleq")
        assert isinstance(stage.app.screen, CommandPalette)
        assert typed(stage.app) == "sleq"


async def test_a_letter_of_jump_mode_is_no_action(folder: Path) -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        await type_at_once(stage, "\x0fa")
        assert len(stage.app.screen_stack) == 1
        await type_at_once(stage, "\x0fe")
        assert list(folder.iterdir()) == []


async def test_a_dialog_gets_its_keys() -> None:
    stage = Stage()
    async with stage.run():
        await type_at_once(stage, "q\x1b4")
        assert not isinstance(stage.app.screen, LeaveScreen)
        assert stage.app.current_mode == "errors"


async def test_the_lines_of_a_recording_get_every_letter(folder: Path) -> None:
    stage = RecordedStage()
    async with stage.run():
        await type_at_once(stage, "2/pass = 1")
        assert typed(stage.app) == "pass = 1"
        await type_at_once(stage, "\x1b:end")
        assert typed(stage.app) == "end"
        await type_at_once(stage, "\r")
        assert stage.head.position == stage.head.length
        assert list(folder.iterdir()) == []
        assert "as of" in text(stage.app)
