"""The first picture has figures, or names what the app waits for; keys in the last line can be clicked."""

import asyncio
import tomllib
from pathlib import Path

import pytest
from textual._compositor import Compositor

from bwtui.model.status import Status
from bwtui.tui import app as tui_app
from bwtui.tui.screens.dialogs import HelpScreen
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
