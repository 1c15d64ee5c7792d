"""All relays in one list: those that answer, freeze, die and come back, in every size."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from textual.pilot import Pilot

from bwtui.errors import ConnectionFailed
from bwtui.model.status import Status
from bwtui.model.verdict import ended, killed
from bwtui.relay.process.control import RelayUnresponsive
from bwtui.tui import fleet as module
from bwtui.tui.fleet import FleetApp, FleetModel, Relays
from bwtui.tui.screens.dialogs import Ending
from bwtui.tui.sources.model import ViewSettings
from bwtui.tui.widgets.grid import ItemList
from tests.tui.doubles import Clock, Stage
from tests.tui.picture import help_cells, lines, text
from tests.tui.pictured import compare
from tests.tui.shop import Shop

SIZES = ((80, 24), (160, 45), (250, 70))


class Machine:
    """Relays that a test starts, freezes and kills."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.shops: dict[str, Shop] = {}
        self.frozen: set[str] = set()
        #: Relays that hold their lock but have no socket.
        self.changing: set[str] = set()
        self.last: dict[str, Status] = {}
        self.asked: list[str] = []
        #: Set to delay answers.
        self.slow: dict[str, asyncio.Event] = {}

    def start(self, name: str, **more: object) -> None:
        self.shops[name] = Shop(name=name, **more)  # type: ignore[arg-type]

    def kill(self, name: str) -> None:
        """End the relay without a final status."""
        status = self.shops.pop(name).status(self.clock())
        self.last[name] = replace(status, state="failed", verdict=killed("streaming", "/log"))

    def stop(self, name: str) -> None:
        """End the relay cleanly."""
        status = self.shops.pop(name).status(self.clock())
        self.last[name] = replace(status, state="stopped", verdict=ended(None, None, confirmed="16/B374D848"))

    async def ask(self, name: str) -> Status:
        self.asked.append(name)
        if name in self.slow:
            await self.slow[name].wait()
        if name in self.frozen:
            raise RelayUnresponsive(
                f"relay {name} runs, but does not answer: its process 4711 is suspended",
                "'kill -CONT 4711' goes on with it",
            )
        if name not in self.shops:
            raise ConnectionFailed(f"no relay called {name} is running", "start one")
        return self.shops[name].status(self.clock())

    def relays(self) -> Relays:
        names = lambda: sorted({*self.shops, *self.last, *self.changing})  # noqa: E731
        likely = lambda name: name in self.shops or name in self.changing  # noqa: E731
        return Relays(names, likely, self.ask, self.last.get, self.changing.__contains__)


class FleetStage:
    """The list of such relays."""

    def __init__(self, selected: str | None = None) -> None:
        self.clock = Clock()
        self.machine = Machine(self.clock)
        self.model = FleetModel(self.machine.relays(), self.clock)
        self.app = FleetApp(self.model, selected)
        self.pilot: Pilot[Ending]
        #: Every notice.
        self.told: list[str] = []

    @asynccontextmanager
    async def run(self, size: tuple[int, int] = (160, 45)) -> AsyncIterator[Pilot[Ending]]:
        """Run the app, with its first picture drawn."""
        self.app.notify = lambda message, **more: self.told.append(message)  # type: ignore[method-assign]
        async with self.app.run_test(size=size) as pilot:
            self.pilot = pilot
            await self.advance(2)
            yield pilot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    async def settle(self) -> None:
        """Wait until the result is drawn."""
        await self.pilot.pause()

    async def advance(self, seconds: int) -> None:
        """Let time pass, with one sample a second."""
        for _ in range(seconds):
            self.clock.now += 1
            await self.app.sample()
            await self.pilot.pause()

    @property
    def words(self) -> str:
        return " ".join(text(self.app).replace("│", " ").split())

    @property
    def names(self) -> list[str]:
        return [row.key for row in self.app.screen.query_one("#relays", ItemList).rows]

    def row(self, name: str) -> list[str]:
        """Return the cells of a relay's row."""
        rows = self.app.screen.query_one("#relays", ItemList).rows
        return next([cell.text for cell in row.cells] for row in rows if row.key == name)


@pytest.mark.parametrize("size", SIZES)
async def test_every_relay_has_a_row_and_what_needs_somebody_comes_first(size: tuple[int, int]) -> None:
    stage = FleetStage()
    stage.machine.start("billing")
    stage.machine.start("shop", trouble=True)
    stage.machine.start("frozen")
    stage.machine.frozen.add("frozen")
    async with stage.run(size):
        await stage.advance(3)
        assert stage.names[0] == "frozen"
        assert set(stage.names) == {"billing", "shop", "frozen"}
        assert stage.row("frozen")[2] == "NO ANSWER"
        assert stage.row("billing")[2] == "STREAMING"
        seen = stage.words
        assert "ALL RELAYS" in lines(stage.app)[0]
        assert "3 running, 1 without an answer" in seen
        assert "its process 4711 is suspended" in seen
        assert "→ 'kill -CONT 4711' goes on with it" in seen
        for title in ("Rows/s", "Behind", "Lag", "Retains", "Since"):
            assert title in seen
        await compare(stage, f"fleet-{size[0]}x{size[1]}")


async def test_a_relay_that_is_killed_or_stops_stands_there_with_its_truth() -> None:
    stage = FleetStage()
    for name in ("a", "b", "c"):
        stage.machine.start(name)
    async with stage.run():
        assert [stage.row(name)[2] for name in "abc"] == ["STREAMING"] * 3
        stage.machine.kill("a")
        stage.machine.stop("b")
        await stage.advance(2)
        assert [stage.row(name)[2] for name in "abc"] == ["KILLED", "STOPPED", "STREAMING"]
        assert stage.row("a")[3] == "–", "rates of then are none of now"
        assert "1 running, 2 not running" in stage.words
        await stage.press("enter")
        assert stage.app.chosen is None
        assert stage.told == ["a is not running, so there is nothing to attach to"]
        stage.machine.start("a")
        await stage.advance(2)
        assert stage.row("a")[2] == "STREAMING"


async def test_one_that_freezes_and_goes_on_is_followed() -> None:
    stage = FleetStage()
    stage.machine.start("a")
    stage.machine.start("b")
    async with stage.run():
        stage.machine.frozen.add("b")
        await stage.advance(2)
        assert stage.row("b")[2] == "NO ANSWER"
        stage.machine.frozen.clear()
        await stage.advance(2)
        assert stage.row("b")[2] == "STREAMING"


async def test_a_slow_answer_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 0.01)
    stage = FleetStage()
    stage.machine.start("a")
    stage.machine.start("b")
    stage.machine.slow["b"] = asyncio.Event()
    async with stage.run():
        before = stage.machine.asked.count("a")
        for _ in range(100):
            await stage.advance(1)
            if stage.machine.asked.count("a") >= before + 5:
                break
        assert stage.machine.asked.count("a") >= before + 5
        assert stage.machine.asked.count("b") == 1, "it is asked once until it has answered"
        stage.machine.slow["b"].set()
        for _ in range(100):
            await stage.advance(1)
            if "b" in stage.names:
                break
        assert stage.row("b")[2] == "STREAMING"


async def test_one_that_is_starting_or_ending_is_not_called_killed() -> None:
    stage = FleetStage()
    stage.machine.start("a")
    stage.machine.start("b")
    async with stage.run():
        stage.machine.kill("b")
        stage.machine.changing.add("b")
        await stage.advance(2)
        assert stage.row("b")[2] == "CHANGING"
        assert "relay b is starting or ending" in stage.words


async def test_what_failed_lately_is_shown_and_what_was_stopped_long_ago_is_not() -> None:
    stage = FleetStage()
    for name in ("failed", "old", "stopped"):
        stage.machine.start(name)
        stage.machine.stop(name)
    dead = stage.machine.last
    failure = ended("slot shop is lost", "drop it")
    dead["failed"] = replace(dead["failed"], state="failed", verdict=failure)
    dead["old"] = replace(dead["failed"], time=stage.clock.now - 2 * module.RECENT)
    stage.machine.start("now")
    async with stage.run():
        assert set(stage.names) == {"failed", "now"}
        assert stage.row("failed")[2] == "FAILED"
        assert "slot shop is lost" in stage.words
        assert "→ drop it" in stage.words


async def test_enter_attaches_and_it_begins_where_one_came_from() -> None:
    stage = FleetStage("b")
    for name in ("a", "b", "c"):
        stage.machine.start(name)
    async with stage.run():
        assert stage.app.screen.query_one("#relays", ItemList).cursor_key == "b"
        await stage.press("down", "enter")
    assert (stage.app.chosen, stage.app.return_value) == ("c", "attach")


async def test_a_frozen_relay_is_not_attached_to() -> None:
    stage = FleetStage()
    stage.machine.start("a")
    stage.machine.frozen.add("a")
    async with stage.run():
        await stage.press("enter")
        assert stage.app.chosen is None
        assert [told.endswith("'kill -CONT 4711' goes on with it") for told in stage.told] == [True]


async def test_it_filters_sorts_helps_and_leaves() -> None:
    stage = FleetStage()
    for name in ("a", "b", "c"):
        stage.machine.start(name)
    async with stage.run():
        await stage.press("slash", "circumflex_accent", "b", "enter")
        assert stage.names == ["b"]
        await stage.press("escape", "s", "S")
        assert stage.names == ["c", "b", "a"]
        await stage.press("question_mark")
        cells = help_cells(stage.app)
        assert "s" in cells
        assert "F" not in cells
        await stage.press("escape", "q")
    assert (stage.app.chosen, stage.app.return_value) == (None, "quit")


async def test_without_a_relay_it_says_what_to_do() -> None:
    stage = FleetStage()
    async with stage.run((80, 24)):
        assert "no relay is running: start one with 'bwtui connect'; q quits" in stage.words


async def test_a_hundred_relays_fit() -> None:
    stage = FleetStage()
    for number in range(100):
        stage.machine.start(f"relay_{number:03}")
    async with stage.run((80, 24)):
        await stage.advance(2)
        assert len(stage.names) == 100
        assert "100 running" in stage.words


# -- from a relay to the list and back ---------------------------------------------------


@pytest.mark.parametrize(("fleet", "key"), [("named", "F"), ("listed", "F"), ("listed", "escape")])
async def test_f_leads_to_the_list_and_escape_back_to_it(fleet: str, key: str) -> None:
    stage = Stage(session=ViewSettings(fleet=fleet))  # type: ignore[arg-type]
    async with stage.run():
        await stage.press("2")
        await stage.pilot.press(key)
    assert stage.app.return_value == "fleet"


async def test_escape_undoes_what_there_is_first_and_leads_nowhere_from_a_named_relay() -> None:
    stage = Stage(session=ViewSettings(fleet="listed"))
    async with stage.run():
        await stage.press("enter", "escape")
        assert stage.app.is_running
        await stage.press("slash", "o", "enter", "escape")
        assert stage.app.is_running
    named = Stage(session=ViewSettings(fleet="named"))
    async with named.run():
        await named.press("escape", "escape")
        assert named.app.is_running


async def test_who_started_the_relay_is_told_where_the_list_is() -> None:
    stage = Stage(session=ViewSettings(owned=True))
    async with stage.run():
        told: list[str] = []
        stage.app.notify = lambda message, **more: told.append(message)  # type: ignore[method-assign]
        await stage.press("F")
        assert stage.app.is_running
        assert ["'bwtui attach' lists all relays" in one for one in told] == [True]
