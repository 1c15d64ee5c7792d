"""With --readonly the screens change nothing, and say so; each action declares its changes."""

import re

import pytest

from bwtui.errors import RefusedError
from bwtui.tui.app import ActionProvider
from bwtui.tui.audit.session import BackgroundJob, CommandProcess
from bwtui.tui.base.actions import ACTIONS, actions
from bwtui.tui.base.choices import Choices
from bwtui.tui.screens.dialogs import LeaveScreen
from bwtui.tui.sources.model import ViewSettings
from tests.tui.doubles import Stage
from tests.tui.picture import help_cells, lines
from tests.tui.recorded import RecordedStage

READONLY = ViewSettings(choices=Choices(readonly=True))
CHANGING = [action for action in ACTIONS if action.changes]
#: An action whose text has one of these words changes something, unless `NOT` gives the reason why not.
WORDS = re.compile(r"\b(send|write|replay|retry|drop|stop|mend|register|apply|delete|reset)", re.IGNORECASE)
NOT = {
    "leave": "it asks first, and with --readonly it never stops anything",
    "open_details('letters')": "a list of what was dropped",
}


def test_every_action_says_what_it_changes() -> None:
    assert [action.name for action in ACTIONS if action.changes is None] == []
    assert {"replay", "mend"} <= {action.name for action in CHANGING}


def test_what_sounds_like_a_change_is_one() -> None:
    silent = {a.name for a in ACTIONS if WORDS.search(f"{a.label} {a.help}") and not a.changes}
    assert silent <= NOT.keys(), "say in Action.changes what it would change, or here why it changes nothing"


@pytest.mark.parametrize("size", [(80, 24), (160, 45), (250, 70)])
async def test_the_header_says_so(size: tuple[int, int]) -> None:
    for stage in (Stage(session=READONLY), RecordedStage(session=READONLY)):
        async with stage.run(size):
            assert "READONLY" in lines(stage.app)[1]


@pytest.mark.parametrize(
    ("name", "key"), [(a.name, key) for a in actions("recording") if a.changes for key in a.keys]
)
async def test_a_key_that_would_change_something_says_why_it_does_not(name: str, key: str) -> None:
    stage = RecordedStage(session=READONLY)
    async with stage.run():
        before = len(stage.app.screen_stack)
        await stage.press(key)
        assert len(stage.app.screen_stack) == before
        assert "the screens are --readonly" in stage.told[-1]
        action = next(action for action in ACTIONS if action.name == name)
        assert action.label not in lines(stage.app)[-1]
        await stage.press("question_mark")
        assert action.help not in help_cells(stage.app)


async def test_the_palette_does_not_offer_it() -> None:
    offered = {}
    for session in (READONLY, ViewSettings()):
        stage = RecordedStage(session=session)
        async with stage.run():
            provider = ActionProvider(stage.app.screen)
            offered[session.choices.readonly] = {action.name for action in provider._actions()}
    assert offered[False] - offered[True] == {a.name for a in CHANGING if a.where != "live"}


async def test_no_command_that_changes_something_can_be_started() -> None:
    stage = RecordedStage(session=READONLY)
    async with stage.run():
        stage.app.start_job(
            BackgroundJob("Replay", CommandProcess(("replay", "x", "--yes")), lambda *_: None)
        )
        await stage.settle()
        assert stage.app.audit.job is None
        assert "with --readonly" in stage.told[-1]
    for arguments, looks in (
        (("verify", "x"), True),
        (("replay", "x", "--dry-run"), True),
        (("snapshot", "orders"), False),
    ):
        assert CommandProcess(arguments).is_read_only is looks


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
async def test_leaving_only_detaches(key: str) -> None:
    stage = Stage(session=ViewSettings(owned=True, choices=Choices(readonly=True)))
    async with stage.run() as pilot:
        await pilot.press(key)
        await pilot.pause()
        assert not isinstance(stage.app.screen, LeaveScreen)
    assert stage.app.return_value == "detach"
    assert stage.relay.stops == 0


async def test_the_model_stops_nothing_either() -> None:
    stage = Stage(session=READONLY)
    async with stage.run():
        with pytest.raises(RefusedError, match="can't stop the relay"):
            await stage.app.model.stop()
    assert stage.relay.stops == 0
