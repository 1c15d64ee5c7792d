"""What the screens see of the demo: its relay, whose stop waits until nothing is on its way any more."""

import asyncio

from bwtui.demo.run import NAME, Demo
from bwtui.relay.process.control import ControlClient


class DemoSource(ControlClient):
    """The relay's control client, except that `stop` first stops the writes and lets the relay catch up.

    So the topics can still be compared with the tables after the user has left the screens.
    """

    def __init__(self, demo: Demo) -> None:
        super().__init__(NAME)
        self._demo = demo

    async def stop(self) -> None:
        """Stop the writes, let the relay catch up, and ask it to stop; the screens go on meanwhile."""
        await asyncio.to_thread(self._demo.settle, quiet=True)
        await super().stop()
