"""The screens' view of the demo: its relay, whose stop waits until nothing is in flight any more."""

import asyncio
from dataclasses import replace

from bwtui.demo.run import NAME, Demo
from bwtui.errors import BwtuiError
from bwtui.model.status import ErrorEntry, Status
from bwtui.relay.process.control import ControlClient


class DemoSource(ControlClient):
    """The relay's control client, except that `stop` first stops the writes and lets the relay catch up.

    So the topics can still be compared with the tables after the user has left the screens.
    """

    def __init__(self, demo: Demo) -> None:
        super().__init__(NAME)
        self._demo = demo
        self._ended: ErrorEntry | None = None

    async def status(self) -> Status:
        """Return the relay's status, which also reports that the writes have ended on their own."""
        status = await super().status()
        try:
            self._demo.check_writes()
        except BwtuiError as error:
            if self._ended is None:
                self._ended = ErrorEntry(status.time, "workload", None, error.message, error.hint)
            return replace(status, detail=error.message, errors=(*status.errors, self._ended))
        return status

    async def stop(self) -> None:
        """Stop the writes, let the relay catch up, and ask it to stop; the screens stay responsive."""
        await asyncio.to_thread(self._demo.settle, quiet=True)
        await super().stop()
