"""An app over a recording in memory, with methods to let time pass in it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from textual.pilot import Pilot

from bwtui.tui.recording_app import RecordingApp
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.screens.dialogs import Ending
from bwtui.tui.sources.model import Playhead, ViewSettings
from bwtui.tui.sources.recorded_model import RecordingSource
from bwtui.tui.widgets.grid import Grid
from tests.recorded_shop import MemoryRecording, shop_recording
from tests.tui.doubles import Clock


class RecordedStage:
    """A stage that redraws when a test says so, and after every key."""

    def __init__(self, recording: MemoryRecording | None = None, session: ViewSettings | None = None) -> None:
        self.recording = recording or shop_recording()
        self.clock = Clock()
        self.source = RecordingSource(self.recording, lambda: self.recording, self.clock)
        self.app = RecordingApp(self.source, session, self.clock)
        self.pilot: Pilot[Ending]
        #: Title and text of every notice; the app forgets each after some seconds.
        self.told: list[str] = []

    @asynccontextmanager
    async def run(self, size: tuple[int, int] = (120, 36)) -> AsyncIterator[Pilot[Ending]]:
        """Run the app in a terminal of this size."""
        notify = self.app.notify

        def keep(message: str, *, title: str = "", **more: Any) -> None:
            self.told.append(f"{title} {message}")
            notify(message, title=title, **more)

        self.app.notify = keep  # type: ignore[method-assign]
        async with self.app.run_test(size=size) as pilot:
            self.pilot = pilot
            await self.settle()
            yield pilot

    @property
    def head(self) -> Playhead:
        """Return the recording's playhead."""
        head = self.app.model.snapshot.playhead
        assert head is not None
        return head

    @property
    def screen(self) -> RelayScreen:
        """Return the current screen."""
        assert isinstance(self.app.screen, RelayScreen)
        return self.app.screen

    @property
    def grid(self) -> Grid:
        """Return its main list."""
        return self.screen.main_grid()

    async def press(self, *keys: str) -> None:
        """Press keys, and wait until the result is shown."""
        for key in keys:
            await self.pilot.press(key)
            await self.settle()

    async def type(self, text: str) -> None:
        """Type a text."""
        names = {" ": "space"}
        await self.pilot.press(*(names.get(c, c) for c in text))
        await self.settle()

    async def seek(self, text: str) -> None:
        """Go to a place with the prompt."""
        await self.press("colon")
        await self.type(text)
        await self.press("enter")

    async def advance(self, seconds: float, step: float = 0.25) -> None:
        """Let time pass."""
        for _ in range(round(seconds / step)):
            self.clock.now += step
            await self.app.sample()
        await self.settle()

    async def settle(self) -> None:
        """Wait until the app is idle and every command has been carried out."""
        for _ in range(3):
            await self._idle()
            await self.app.sample()
            while self.app.front is not None and not self.app.front.ready:
                await self.pilot.pause()
            await self.pilot.pause()
        await self._idle()

    async def _idle(self) -> None:
        """Wait for every worker except that of a background command."""
        if workers := [worker for worker in self.app.workers if worker.group != "job"]:
            await self.app.workers.wait_for_complete(workers)
        await self.pilot.pause()
