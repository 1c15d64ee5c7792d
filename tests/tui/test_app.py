"""The app: its start, its tasks, and keys that are typed ahead."""

import asyncio
import tomllib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual._compositor import Compositor
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import Input

from bwtui.model.status import Status
from bwtui.tui import app as tui_app
from bwtui.tui.app import RelayApp
from bwtui.tui.screens.changes import TableScreen
from bwtui.tui.screens.dialogs import HelpScreen, LeaveScreen
from bwtui.tui.widgets.changes import ChangeList
from bwtui.tui.widgets.line import KeyLine
from tests.tui.doubles import Stage
from tests.tui.picture import lines, text
from tests.tui.recorded import RecordedStage


@pytest.mark.parametrize("kind", [Stage, RecordedStage])
async def test_the_first_picture_has_figures(kind: type[Stage] | type[RecordedStage]) -> None:
    stage = kind()
    stage.app.tick = lambda: None  # type: ignore[method-assign]
    async with stage.app.run_test(size=(160, 45)) as pilot:
        await pilot.pause()
        assert "public." in text(stage.app)


async def test_a_relay_that_is_slow_to_answer_keeps_nobody_from_the_screens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tui_app, "FIRST_SECONDS", 0.02)
    stage, answers = Stage(), asyncio.Event()
    status = stage.relay.status

    async def late() -> Status:
        await answers.wait()
        return await status()

    stage.relay.status = late  # type: ignore[method-assign]
    async with stage.app.run_test(size=(160, 45)) as pilot:
        assert "querying the relay's status" in text(stage.app)
        assert "Pipeline" in text(stage.app)
        answers.set()
        while "public.orders" not in text(stage.app):
            stage.clock.now += 1
            await pilot.pause(0.01)


async def test_a_key_in_the_last_line_can_be_clicked() -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        place = lines(stage.app)[-1].index("? Help")
        await stage.pilot.click(KeyLine, offset=(place, 0))
        await stage.settle()
        assert isinstance(stage.app.screen, HelpScreen)


def test_textual_is_of_a_version_whose_private_parts_are_known() -> None:
    # bwtui.tui.screens.base.PartialCompositor overrides two methods of Textual's private compositor.
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "textual>=8,<9" in pyproject["project"]["dependencies"]
    assert {"render_partial_update", "_get_renders"} <= vars(Compositor).keys()
    assert Compositor()._dirty_regions == set()


async def test_tasks_begin_at_the_loops_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a widget is mounted before its screen is on the stack, which ended the app."""

    def eager(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **more: Any) -> Any:
        return asyncio.Task(coro, loop=loop, **more)

    monkeypatch.setattr(asyncio, "eager_task_factory", eager, raising=False)
    found: list[object] = []

    async def look(pilot: Pilot[Any]) -> None:
        found.append(asyncio.get_running_loop().get_task_factory())
        pilot.app.exit()

    before = asyncio.get_running_loop().get_task_factory()
    try:
        await Stage().app.run_async(headless=True, auto_pilot=look)
    finally:
        asyncio.get_running_loop().set_task_factory(before)
    assert found == [None]


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
