"""What the screens see of the demo: its relay, whose stop waits until nothing is on its way any more."""

import asyncio

from bwtui.demo.run import NAME, Demo
from bwtui.model.status import ChangeSample, SchemaEntry, Status
from bwtui.relay.process.control import ControlClient


class DemoSource:
    """The relay's control client, except that `stop` first stops the writes and lets the relay catch up.

    So the topics can still be compared with the tables after the user has left the screens.
    """

    name = NAME

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._client = ControlClient(NAME)

    async def status(self) -> Status:
        """Return the relay's status."""
        return await self._client.status()

    async def changes(self, after: int) -> list[ChangeSample]:
        """Return sampled changes with a sequence above ``after``."""
        return await self._client.changes(after)

    async def schemas(self) -> list[SchemaEntry]:
        """Return every schema that the relay knows."""
        return await self._client.schemas()

    async def stop(self) -> None:
        """Stop the writes, let the relay catch up, and ask it to stop; the screens go on meanwhile."""
        await asyncio.to_thread(self._demo.settle, quiet=True)
        await self._client.stop()

    async def close(self) -> None:
        """Let go of the relay."""
        await self._client.close()
