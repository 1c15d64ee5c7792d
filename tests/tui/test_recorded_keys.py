"""Every key of a recording does what help says.

`CHECKS` has one check for every action that only a recording has, or has in its own way; it is run once for
every key of it.
"""

from collections.abc import Awaitable, Callable

import pytest

from bwtui.tui.audit.report import parse_report
from bwtui.tui.base.actions import ACTIONS, Action, actions
from bwtui.tui.base.keys import key_text
from bwtui.tui.screens.audit import ClassGrid
from bwtui.tui.screens.dialogs import FormScreen, HelpScreen
from bwtui.tui.screens.journey import RecordedJourney
from bwtui.tui.screens.rows import AsOfScreen
from bwtui.tui.screens.transactions import TransactionScreen
from bwtui.tui.widgets.transport import SeekBar
from tests.tui.audited import json_recording, report_of
from tests.tui.picture import help_cells, lines, text
from tests.tui.recorded import RecordedStage

Press = Callable[[], Awaitable[None]]
Check = Callable[[RecordedStage, Press], Awaitable[None]]
CHECKS: dict[str, Check] = {}
#: Actions that work differently than on a relay are checked for both.
BOTH = ("show('audit')", "verify", "all_classes", "open_details('journey')", "send_again")
ONLY = [action for action in ACTIONS if action.where == "recording" or action.name in BOTH]


def check(*names: str) -> Callable[[Check], Check]:
    """Register the check of an action."""

    def register(function: Check) -> Check:
        for name in names:
            CHECKS[name] = function
        return function

    return register


@pytest.mark.parametrize(
    ("action", "key"), [pytest.param(a, key, id=f"{a.name}-{key}") for a in ONLY for key in a.keys]
)
async def test_key(action: Action, key: str) -> None:
    stage = RecordedStage()
    async with stage.run():

        async def press() -> None:
            await stage.press(key)

        await CHECKS[action.name](stage, press)


def test_there_is_a_check_for_every_action() -> None:
    assert {action.name for action in ONLY} == set(CHECKS)


def test_no_key_has_two_meanings() -> None:
    keys = [key for action in actions("recording") for key in action.keys]
    twice = {key for key in keys if keys.count(key) > 1}
    assert twice == {"g", "G"}, "the ends of the recording, or of a list of its own"


async def test_help_names_what_a_recording_has_and_nothing_else() -> None:
    stage = RecordedStage()
    async with stage.run((120, 60)):
        await stage.press("question_mark")
        assert isinstance(stage.app.screen, HelpScreen)
        told = help_cells(stage.app)
        assert all(a.help in told and key_text(a) in told for a in actions("recording"))
        assert "Freeze the view" not in " ".join(told)


async def test_the_palette_offers_what_a_recording_has() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.press("ctrl+p")
        await stage.type("slower")
        await stage.pilot.press("enter")
        while stage.head.speed == 1:
            await stage.settle()
        assert stage.head.speed == 0.5


@check("play")
async def _play(stage: RecordedStage, press: Press) -> None:
    await press()
    begun = stage.head
    assert begun.playing
    assert begun.position == 0, "from the end it plays from the beginning"
    await stage.advance(3)
    assert stage.head.position > 10
    assert "▶" in text(stage.app)
    await press()
    assert not stage.head.playing
    before = stage.head.position
    await stage.advance(3)
    assert stage.head.position == before
    assert "❚❚" in text(stage.app)


@check("step(-1)", "step(1)")
async def _step(stage: RecordedStage, press: Press) -> None:
    await stage.seek("#49")
    await press()
    first = stage.head.position
    assert first in (49, 51)
    await press()
    assert stage.head.position - 50 == 2 * (first - 50)
    await stage.app.run_action("show('changes')", stage.screen)
    await stage.settle()
    await press()
    assert stage.head.position - 50 == 3 * (first - 50), "also where a list has the focus"
    assert stage.grid.cursor_key == str(stage.head.position - 1)


@check("step_transaction(-1)", "step_transaction(1)")
async def _step_transaction(stage: RecordedStage, press: Press) -> None:
    await stage.seek("#49")
    await press()
    ends = {stop for p in range(stage.recording.length) for stop in [stage.recording.transaction(p)[1]]}
    assert stage.head.position != 50
    assert stage.head.position in ends


@check("speed(-1)", "speed(1)")
async def _speed(stage: RecordedStage, press: Press) -> None:
    await press()
    assert stage.head.speed in (0.5, 2)
    assert "×½" in text(stage.app) or "×2" in text(stage.app)


@check("travel(0)", "travel(1)")
async def _travel(stage: RecordedStage, press: Press) -> None:
    await stage.seek("#49")
    await press()
    end = stage.head.position
    assert end in (0, stage.recording.length)
    await stage.seek("#49")
    await stage.press("2")
    await press()
    assert stage.head.position == end, "the same where the recording itself is the list"
    await stage.seek("#99")
    await stage.press("T")
    start, stop = stage.recording.transaction(99)
    await press()
    assert stage.head.position == (stop if end else start + 1), "and a transaction's own ends there"


@check("seek")
async def _seek(stage: RecordedStage, press: Press) -> None:
    await press()
    assert stage.screen.query_one(SeekBar).display
    await stage.type("#11")
    await stage.press("enter")
    assert stage.head.position == 12
    assert not stage.screen.query_one(SeekBar).display
    assert stage.app.focused is stage.grid
    await press()
    await stage.type("nowhere")
    await stage.press("enter")
    assert "is not a valid position in a recording" in text(stage.app)
    assert stage.head.position == 12
    await stage.press("escape")
    assert not stage.screen.query_one(SeekBar).display


@check("error(-1)", "error(1)")
async def _error(stage: RecordedStage, press: Press) -> None:
    error = round(stage.recording.errors(stage.recording.length)[0].time * 1_000_000)
    for start in ("start", "end"):
        await stage.seek(start)
        await press()
        if stage.head.time == error:
            break
    assert stage.head.time == error
    await press()
    assert "no error or warning" in "".join(stage.told)


@check("open_details('transaction')")
async def _transaction(stage: RecordedStage, press: Press) -> None:
    await stage.seek("xid 745")
    await press()
    assert isinstance(stage.app.screen, TransactionScreen)
    start, stop = stage.recording.transaction(stage.head.position - 1)
    assert [row.key for row in stage.grid.rows] == [str(p) for p in range(start, stop)]
    shown = text(stage.app)
    assert "transaction 745" in shown
    assert f"positions {start} to {stop - 1}" in shown, "as queries count"
    await stage.press("escape")
    assert stage.app.current_mode == "overview"


@check("open_details('journey')")
async def _explain(stage: RecordedStage, press: Press) -> None:
    await stage.seek("#145")
    await stage.press("2")
    await press()
    assert isinstance(stage.app.screen, RecordedJourney)
    assert [row.cells[2].text for row in stage.grid.rows] == ["· snapshot", "- delete", "- delete"]
    assert "public.orders id=1" in text(stage.app)
    assert "3 changes" in text(stage.app)
    await stage.press("escape")
    assert stage.app.current_mode == "changes"


@check("open_details('rows')")
async def _as_of(stage: RecordedStage, press: Press) -> None:
    await stage.press("down")
    await press()
    assert isinstance(stage.app.screen, AsOfScreen)
    assert stage.screen.selected_table() == "public.orders"
    assert "44 rows as of 12:01:25.500" in text(stage.app)
    await stage.press("g")
    assert "no rows at this position" in text(stage.app)
    await stage.press("escape")
    assert stage.app.current_mode == "overview"


@check("show('audit')")
async def _show_audit(stage: RecordedStage, press: Press) -> None:
    await press()
    assert stage.app.current_mode == "audit"
    assert "NOT AUDITED" in text(stage.app)


@check("verify")
async def _verify(stage: RecordedStage, press: Press) -> None:
    await press()
    assert "Verify this recording" in text(stage.app)
    await stage.press("escape")
    assert stage.app.current_mode == "overview"


@check("replay")
async def _replay(stage: RecordedStage, press: Press) -> None:
    await press()
    assert "Replay this recording" in text(stage.app)
    assert "A dry run first shows" in text(stage.app)


async def _with_report(stage: RecordedStage, press: Press) -> None:
    """Show a report; before that the key does nothing."""
    before = lines(stage.app)[2:-3]
    await press()
    assert lines(stage.app)[2:-3] == before
    stage.app.audit.report = parse_report(report_of(json_recording()))
    await stage.press("5")
    await press()


@check("place")
async def _place(stage: RecordedStage, press: Press) -> None:
    await _with_report(stage, press)
    assert stage.app.current_mode == "changes"
    assert stage.head.position == 21


@check("mend")
async def _mend(stage: RecordedStage, press: Press) -> None:
    await _with_report(stage, press)
    assert "Replay missing messages" in text(stage.app)


@check("all_classes")
async def _all_classes(stage: RecordedStage, press: Press) -> None:
    await _with_report(stage, press)
    classes = stage.screen.query_one(ClassGrid)
    assert len(classes.rows) > 20
    await press()
    assert len(classes.rows) == 6


@check("send_again")
async def _send_again(stage: RecordedStage, press: Press) -> None:
    await stage.seek("#145")
    await stage.press("2")
    await press()
    assert not isinstance(stage.app.screen, FormScreen), "it is of a key's journey"
    await stage.press("x")
    await press()
    assert isinstance(stage.app.screen, FormScreen)
    assert "public.orders id=1" in text(stage.app)
