"""Every key in help does what help says, on a relay; test_recorded_keys.py has the others.

`CHECKS` has one check for every action of the registry; it is run once for every key of that action.
"""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.widgets import Input

from bwtui.tui.audit.report import parse_report
from bwtui.tui.base.actions import Action, actions
from bwtui.tui.base.keys import key_text
from bwtui.tui.screens.audit import ClassGrid
from bwtui.tui.screens.backfills import BackfillsScreen
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.screens.changes import TableScreen
from bwtui.tui.screens.dialogs import HelpScreen, JumpScreen, LeaveScreen
from bwtui.tui.screens.errors import DeadLettersScreen
from bwtui.tui.screens.journey import LiveJourney
from bwtui.tui.screens.registry import VersionsScreen
from bwtui.tui.widgets.filter_bar import FilterBar
from bwtui.tui.widgets.grid import Grid, ItemList
from tests.tui.audited import REPORTS
from tests.tui.doubles import Stage
from tests.tui.picture import help_cells, text
from tests.tui.shop import Shop

Press = Callable[[], Awaitable[None]]
Check = Callable[[Stage, Press], Awaitable[None]]
CHECKS: dict[str, Check] = {}


def check(*names: str) -> Callable[[Check], Check]:
    """Register the check of an action."""

    def register(function: Check) -> Check:
        for name in names:
            CHECKS[name] = function
        return function

    return register


def screen(stage: Stage) -> RelayScreen:
    """Return the current screen."""
    assert isinstance(stage.app.screen, RelayScreen)
    return stage.app.screen


def grid(stage: Stage) -> Grid:
    """Return its main list."""
    return screen(stage).main_grid()


def listing(stage: Stage) -> ItemList:
    """Return its main list, which must be sortable."""
    found = grid(stage)
    assert isinstance(found, ItemList)
    return found


ACTIONS = actions("live")
CASES = [pytest.param(a, key, id=f"{a.name}-{key}") for a in ACTIONS for key in a.keys]


@pytest.mark.parametrize(("action", "key"), CASES)
async def test_key(action: Action, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stage = Stage(Shop(trouble=True))
    async with stage.run():

        async def press() -> None:
            await stage.press(key)

        await CHECKS[action.name](stage, press)


def test_there_is_a_check_for_every_action() -> None:
    assert {action.name for action in ACTIONS} == set(CHECKS)


def test_no_key_has_two_meanings() -> None:
    keys = [key for action in ACTIONS for key in action.keys]
    assert len(keys) == len(set(keys))


async def test_every_action_is_in_the_palette_and_runs_from_there() -> None:
    stage = Stage()
    async with stage.run() as pilot:
        await pilot.press("ctrl+p", *"registry")
        while not (
            isinstance(stage.app.screen, CommandPalette) and stage.app.screen.query("OptionList").first()
        ):
            await pilot.pause()
        await pilot.press("enter")
        while stage.app.current_mode != "registry":
            await pilot.pause()


@check(*(action.name for action in ACTIONS if action.name.startswith("show(")))
async def _show(stage: Stage, press: Press) -> None:
    mode = None
    for start in ("errors", "overview"):
        await stage.show(start)
        await press()
        mode = mode or stage.app.current_mode
        assert stage.app.current_mode == mode
        assert screen(stage).mode == mode


@check("verify")
async def _verify(stage: Stage, press: Press) -> None:
    await press()
    assert "Verify the tables" in text(stage.app)
    await stage.press("escape")
    assert stage.app.current_mode == "overview"


@check("open_details('versions')")
async def _versions(stage: Stage, press: Press) -> None:
    await stage.show("registry")
    await press()
    assert isinstance(stage.app.screen, VersionsScreen)
    assert stage.app.screen.subject == "audit-value"
    # There it pins the selected version, and releases it.
    for mark in ("held", ""):
        await press()
        assert listing(stage).rows[0].cells[0].text == mark


@check("open_details('letters')")
async def _letters(stage: Stage, press: Press) -> None:
    await press()
    assert isinstance(stage.app.screen, DeadLettersScreen)


@check("try_ddl")
async def _try_ddl(stage: Stage, press: Press) -> None:
    await press()
    assert "Try a DDL file" in text(stage.app)
    await stage.press("escape")
    assert stage.app.current_mode == "overview"


@check("send_all_again")
async def _send_all_again(stage: Stage, press: Press) -> None:
    await stage.press("l")
    await press()
    assert [one.message for one in stage.app._notifications] == ["There are no dead letters"]


@check("open_details('backfills')")
async def _backfills(stage: Stage, press: Press) -> None:
    await press()
    assert isinstance(stage.app.screen, BackfillsScreen)


@check("snapshot_table")
async def _snapshot_table(stage: Stage, press: Press) -> None:
    await press()
    assert "Send public.order_items again" in text(stage.app)
    await stage.press("escape")
    assert stage.app.current_mode == "overview"


@check("pause_sending", "cancel_sending")
async def _control_sending(stage: Stage, press: Press) -> None:
    await stage.press("b")
    await press()
    assert [one.message for one in stage.app._notifications] == ["No request is selected"]


@check("all_classes")
async def _all_classes(stage: Stage, press: Press) -> None:
    stage.app.audit.report = parse_report(json.loads((REPORTS / "database.json").read_text()))
    await stage.show("audit")
    classes = stage.app.screen.query_one(ClassGrid)
    few = len(classes.rows)
    await press()
    assert len(classes.rows) > few
    await press()
    assert len(classes.rows) == few


@check("repair")
async def _repair(stage: Stage, press: Press) -> None:
    await stage.show("audit")
    await press()
    assert [one.message for one in stage.app._notifications] == [
        "There is no audit yet; verify the tables first"
    ]


@check("drill")
async def _drill(stage: Stage, press: Press) -> None:
    await press()
    assert isinstance(stage.app.screen, TableScreen)
    assert stage.app.screen.table == "public.order_items"
    assert screen(stage).crumbs() == ("Overview", "public.order_items")
    await stage.show("registry")
    await press()
    assert stage.app.focused is stage.app.screen.query_one("#schema")


@check("back")
async def _back(stage: Stage, press: Press) -> None:
    grid(stage).action_drill()
    await stage.advance(1)
    opened = stage.app.screen
    assert isinstance(opened, TableScreen)
    await press()
    assert not isinstance(stage.app.screen, TableScreen)
    screen(stage).action_filter()
    await stage.app.workers.wait_for_complete()
    stage.app.screen.query_one(Input).value = "orders"
    await press()
    assert not stage.app.screen.query_one(FilterBar).display
    assert not listing(stage).filter
    screen(stage).action_maximise()
    await press()
    assert not screen(stage).has_class("-maximised")


@check("pause")
async def _pause(stage: Stage, press: Press) -> None:
    await press()
    cell = grid(stage).rows[0].cells
    await stage.advance(5)
    assert grid(stage).rows[0].cells == cell
    text = str(stage.app.screen.query_one("#sentence").render())
    assert "PAUSED VIEW 5.0 s" in text
    assert "rows" in text
    await press()
    await stage.advance(1)
    assert grid(stage).rows[0].cells != cell


@check("filter")
async def _filter(stage: Stage, press: Press) -> None:
    await press()
    assert stage.app.screen.query_one(FilterBar).display
    assert stage.app.focused is stage.app.screen.query_one("FilterBar Input")


@check("errors_only")
async def _errors_only(stage: Stage, press: Press) -> None:
    await press()
    assert [row.key for row in grid(stage).rows] == ["public.products"]
    await press()
    assert len(grid(stage).rows) == 6
    await stage.show("errors")
    await press()
    assert len(grid(stage).rows) == 2, "warnings are hidden"
    await stage.show("registry")
    await press()
    assert [row.key for row in grid(stage).rows] == ["products-key 3", "products-value 4"]
    await stage.show("changes")
    await press()
    assert {row.cells[2].text for row in grid(stage).rows} == {"public.products"}
    await press()
    assert len({row.cells[2].text for row in grid(stage).rows}) > 1


@check("maximise")
async def _maximise(stage: Stage, press: Press) -> None:
    await press()
    assert not stage.app.screen.query_one("Pipeline").display
    assert grid(stage).outer_size.height == 27
    await press()
    assert stage.app.screen.query_one("Pipeline").display
    stage.app.push_screen(TableScreen(stage.app, "public.orders"))
    await stage.advance(1)
    await press()
    assert not stage.app.screen.query_one("#facts").display
    assert grid(stage).outer_size.height > 20


@check("next_panel", "previous_panel")
async def _panels(stage: Stage, press: Press) -> None:
    await stage.show("errors")
    first = stage.app.focused
    await press()
    assert stage.app.focused is stage.app.screen.query_one("#error")
    await press()
    assert stage.app.focused is first


@check("theme")
async def _theme(stage: Stage, press: Press) -> None:
    seen = [stage.app.theme]
    for _ in range(3):
        await press()
        seen.append(stage.app.theme)
    assert seen == ["bwtui-dark", "bwtui-light", "bwtui-high-contrast", "bwtui-dark"]


@check("sort")
async def _sort(stage: Stage, press: Press) -> None:
    await press()
    assert listing(stage).sort_column == "rate"
    at = [column.key for column in listing(stage).columns].index("rate")
    rates = [row.cells[at].rank for row in listing(stage).rows]
    assert rates == sorted(rates, reverse=True)
    seen = {"rate"}
    while listing(stage).sort_column != "table":
        await press()
        seen.add(listing(stage).sort_column)
    assert {"errors", "table"} <= seen


@check("reverse")
async def _reverse(stage: Stage, press: Press) -> None:
    names = [row.key for row in grid(stage).rows]
    await press()
    assert [row.key for row in grid(stage).rows] == names[::-1]


@check("copy")
async def _copy(stage: Stage, press: Press) -> None:
    await press()
    assert "public.order_items" in stage.app.clipboard
    await stage.show("changes")
    await press()
    assert " → " in stage.app.clipboard
    assert "lsn=16/" in stage.app.clipboard
    await stage.show("errors")
    await press()
    assert "hint: " in stage.app.clipboard
    await stage.show("registry")
    await press()
    assert '"record"' in stage.app.clipboard


@check("up", "down")
async def _step(stage: Stage, press: Press) -> None:
    grid(stage).move_to(3)
    await press()
    assert grid(stage).cursor_row in (2, 4)
    before = grid(stage).cursor_row
    await press()
    assert abs(grid(stage).cursor_row - 3) == 2
    assert grid(stage).cursor_row != before


@check("page_up", "page_down")
async def _page(stage: Stage, press: Press) -> None:
    stage.relay.shop.extra = 60
    await stage.advance(3)
    grid(stage).move_to(33)
    await press()
    page = grid(stage).size.height - 1
    assert abs(grid(stage).cursor_row - 33) == page


@check("first")
async def _first(stage: Stage, press: Press) -> None:
    grid(stage).move_to(4)
    await press()
    assert grid(stage).cursor_row == 0


@check("last")
async def _last(stage: Stage, press: Press) -> None:
    await press()
    assert grid(stage).cursor_row == 5
    await stage.show("changes")
    grid(stage).action_up()
    await stage.advance(1)
    assert "new" in str(grid(stage).border_subtitle)
    await press()
    assert grid(stage).border_subtitle == "following"


@check("jump")
async def _jump(stage: Stage, press: Press) -> None:
    await stage.show("errors")
    await press()
    assert isinstance(stage.app.screen, JumpScreen)
    await stage.press("s")
    assert stage.app.focused is stage.app.screen.query_one("#error")


@check("export")
async def _export(stage: Stage, press: Press) -> None:
    await press()
    (line,) = exported(stage)
    assert line["Table"] == "public.order_items"


@check("export_all")
async def _export_all(stage: Stage, press: Press) -> None:
    await press()
    assert len(exported(stage)) == len(grid(stage).rows) == 6


def exported(stage: Stage) -> list[dict[str, str]]:
    """Return the text of the file written into the current folder."""
    (path,) = Path().glob("bwtui-shop-Overview-*.jsonl")
    assert f"./{path}" in stage.told[-1]
    return [json.loads(line) for line in path.read_text().splitlines()]


@check("help")
async def _help(stage: Stage, press: Press) -> None:
    await press()
    assert isinstance(stage.app.screen, HelpScreen)
    told = help_cells(stage.app)
    assert all(action.help in told and key_text(action) in told for action in ACTIONS)
    await press()
    assert not isinstance(stage.app.screen, HelpScreen)


@check("palette")
async def _palette(stage: Stage, press: Press) -> None:
    await press()
    assert isinstance(stage.app.screen, CommandPalette)


@check("leave")
async def _leave(stage: Stage, press: Press) -> None:
    await press()
    assert isinstance(stage.app.screen, LeaveScreen)


@check("open_details('journey')")
async def _journey(stage: Stage, press: Press) -> None:
    await press()
    assert not isinstance(stage.app.screen, LiveJourney)
    await stage.press("2", "home")
    while stage.app.screen.selected_sample().table == "public.audit":  # type: ignore[attr-defined]
        await stage.press("down")
    await press()
    assert isinstance(stage.app.screen, LiveJourney)
    assert "COMMIT" in text(stage.app)
    await stage.press("escape")
    assert stage.app.current_mode == "changes"


@check("send_again")
async def _send_again(stage: Stage, press: Press) -> None:
    await stage.press("2", "home")
    while stage.app.screen.selected_sample().table == "public.audit":  # type: ignore[attr-defined]
        await stage.press("down")
    await press()
    assert not stage.app._notifications, "it is of a key's journey"
    await stage.press("x")
    await press()
    assert any("A relay sends each change once" in one.message for one in stage.app._notifications)


@check("fleet")
async def _fleet(stage: Stage, press: Press) -> None:
    told: list[str] = []
    stage.app.notify = lambda message, **more: told.append(message)  # type: ignore[method-assign]
    await press()
    assert ["lists all relays" in one for one in told] == [True]
    assert stage.app.is_running
