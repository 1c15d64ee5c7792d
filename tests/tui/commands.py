"""Commands that run in the background of the screens and end when a test says so."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.pilot import Pilot

from bwtui.tui.app import RelayApp
from bwtui.tui.audit.session import CommandProcess
from bwtui.tui.screens.dialogs import Ending

#: Reports its progress, waits until the test says how to end, and ends so, or by Ctrl-C.
_COMMAND = """
import json, sys
told = {"phase": "reading Kafka: 400 offsets"}
for line in ({"phase": "starting Spark"}, told, {**told, "done": 100, "total": 400}):
    print(json.dumps(line), file=sys.stderr, flush=True)
try:
    with open(sys.argv[1]) as ending:
        end = json.load(ending)
except KeyboardInterrupt:
    print("bwtui: error: interrupted", file=sys.stderr)
    sys.exit(130)
sys.stderr.write(end["err"])
sys.stdout.write(end["out"])
sys.exit(end["code"])
"""


class Commands:
    """A stage whose app runs such commands."""

    app: RelayApp
    pilot: Pilot[Ending]

    def take_commands(self, folder: Path) -> None:
        """Run such commands from now on, and keep their arguments."""
        self.commands: list[tuple[str, ...]] = []
        self._folder = folder
        self.app.child = self._child  # type: ignore[method-assign]

    if TYPE_CHECKING:

        async def settle(self) -> None:
            """Wait until the stage is idle; each kind of stage has its own way."""

    def _child(self, arguments: tuple[str, ...]) -> CommandProcess:
        self.commands.append(arguments)
        os.mkfifo(self._ending)
        return CommandProcess(arguments, (sys.executable, "-c", _COMMAND, str(self._ending)))

    @property
    def _ending(self) -> Path:
        return self._folder / f"ending-{len(self.commands)}"

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds."""
        while not condition():
            await self.pilot.pause(0.02)
            await self.app.sample()
        await self.settle()

    async def until_reading(self) -> None:
        """Wait until the command has reported its progress."""
        job = self.app.audit.job
        assert job is not None
        await self.until(lambda: job.child.progress.share == 0.25)
        # The app takes the reported progress with its next sample.
        await self.app.sample()
        await self.settle()

    async def end(self, output: Any = None, *, code: int = 0, said: str = "") -> None:
        """End the command."""
        job = self.app.audit.job
        assert job is not None
        ending = {"code": code, "err": said, "out": "" if output is None else json.dumps(output)}
        await self.until(lambda: self._tell(json.dumps(ending)))
        await self.until(lambda: job.ended is not None)

    def _tell(self, text: str) -> bool:
        """Write to the command, once it listens."""
        with suppress(OSError):
            pipe = os.open(self._ending, os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, text.encode())
            os.close(pipe)
            return True
        return False
