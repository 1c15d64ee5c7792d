"""A clock that a test controls, and a relay that is a function of it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from textual.pilot import Pilot

from bwtui.errors import ConnectionFailed
from bwtui.model.history import RelayHistory
from bwtui.model.service_views import Look, LookName
from bwtui.model.status import ChangeSample, SchemaEntry, Status
from bwtui.tui.app import RelayApp
from bwtui.tui.screens.dialogs import Ending
from bwtui.tui.sources.model import ViewSettings
from bwtui.tui.sources.relay_model import RelayModel
from tests.tui import services
from tests.tui.shop import NOON, Shop


class Clock:
    """Time that moves only when a test moves it."""

    def __init__(self, now: float = NOON + 60) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class FakeRelay:
    """A data source over a `Shop`."""

    def __init__(self, shop: Shop, clock: Clock) -> None:
        self.name = shop.name
        self.shop = shop
        self.clock = clock
        self.gone = False
        #: The history from before the screens were opened.
        self.past = RelayHistory()
        #: Set to freeze the status, like that of an engine whose loop hangs.
        self.frozen_at: float | None = None
        self.stops = 0
        #: Answers that differ from the usual ones, and the requests received.
        self.views: dict[LookName, Look] = {}
        self.asked_looks: list[LookName] = []
        self.glanced: list[LookName] = []
        self.asked_changes = self.asked_history = 0

    async def status(self) -> Status:
        self._check()
        return self.shop.status(self.frozen_at if self.frozen_at is not None else self.clock.now)

    async def changes(self, after: int) -> list[ChangeSample]:
        self._check()
        self.asked_changes += 1
        return self.shop.changes(self.clock.now, after)

    async def schemas(self) -> list[SchemaEntry]:
        self._check()
        return self.shop.schemas()

    async def history(self, after: float) -> RelayHistory:
        self._check()
        self.asked_history += 1
        past = self.past
        return RelayHistory(
            tuple(second for second in past.seconds if after < second.time <= self.clock.now),
            tuple(mark for mark in past.marks if after < mark.time <= self.clock.now),
            past.trends,
            past.latency,
        )

    async def fetch_view(self, name: LookName, about: Sequence[str] = (), *, glance: bool = False) -> Look:
        self._check()
        (self.glanced if glance else self.asked_looks).append(name)
        return self.views.get(name) or services.look(name, self.clock.now, about)

    async def stop(self) -> None:
        self._check()
        self.stops += 1

    def _check(self) -> None:
        if self.gone:
            raise ConnectionFailed(
                f"no relay called {self.name} is running", "start one with 'bwtui connect'"
            )


class Stage:
    """An app over a fake relay, with methods to let time pass in it."""

    def __init__(self, shop: Shop | None = None, session: ViewSettings | None = None) -> None:
        self.clock = Clock()
        self.relay = FakeRelay(shop or Shop(), self.clock)
        self.pilot: Pilot[Ending]
        self.app = RelayApp(RelayModel(self.relay, self.clock), session)
        #: Title and text of every notice; the app forgets each after some seconds.
        self.told: list[str] = []

    @asynccontextmanager
    async def run(self, size: tuple[int, int] = (120, 30)) -> AsyncIterator[Pilot[Ending]]:
        """Run the app in a terminal of this size, with its first picture drawn."""
        notify = self.app.notify

        def keep(message: str, *, title: str = "", **more: Any) -> None:
            self.told.append(f"{title} {message}")
            notify(message, title=title, **more)

        self.app.notify = keep  # type: ignore[method-assign]
        async with self.app.run_test(size=size) as pilot:
            self.pilot = pilot
            await self.advance(2)
            yield pilot

    async def press(self, *keys: str) -> None:
        """Press keys and wait until the app is idle."""
        await self.pilot.press(*keys)
        await self.settle()

    async def show(self, mode: str) -> None:
        """Go to a screen, and wait until it has its data."""
        self.app.show_mode(mode)
        await self.settle()
        await self.advance(1)

    async def settle(self) -> None:
        """Wait until only background commands run and the screen can be read."""
        if workers := [worker for worker in self.app.workers if worker.group != "job"]:
            await self.app.workers.wait_for_complete(workers)
        await self.pilot.pause()
        while self.app.front is not None and not self.app.front.ready:
            await self.pilot.pause()
        # A scrollbar that appears or disappears needs a second layout.
        while self.app.screen._layout_required or self.app.screen._scroll_required:
            await self.pilot.pause()
        await self.pilot.pause()

    async def advance(self, seconds: float, step: float = 1.0) -> None:
        """Let time pass, and take a sample at every step."""
        await self.settle()
        end = self.clock.now + seconds
        while self.clock.now < end - 1e-9:
            self.clock.now = min(self.clock.now + step, end)
            await self.app.sample()
        await self.settle()
