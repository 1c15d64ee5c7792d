"""The state of every relay: running, not answering, ended or killed."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from bwtui.errors import BwtuiError, ConnectionFailed
from bwtui.model.status import Status
from bwtui.relay.process import last_status
from bwtui.relay.process.control import ControlClient, RelayUnresponsive, does_not_answer, is_likely
from bwtui.relay.process.lock import is_held
from bwtui.state_folder import relay_names
from bwtui.tui.action import Kind
from bwtui.tui.state import Model

#: Timeout in seconds after which a relay counts as not answering.
PATIENCE = 2.0
#: Maximum seconds that a snapshot waits for answers; later answers are in the next one.
_AT_ONCE = 0.3
#: Seconds for which a relay is shown that failed or was killed before this list saw it running.
RECENT = 86_400.0


@dataclass(frozen=True, slots=True)
class RelayEntry:
    """One relay and its last known status."""

    name: str
    #: Its present status, the last one received, or the final one of a relay that has ended.
    status: Status | None = None
    runs: bool = False
    #: Why a running relay gives no status.
    silence: BwtuiError | None = None


async def status_of(name: str) -> Status:
    """Request a relay's status. Raises RelayUnresponsive, or ConnectionFailed if it is not running."""
    client = ControlClient(name)
    try:
        return await asyncio.wait_for(client.status(), PATIENCE)
    except TimeoutError as error:
        raise does_not_answer(name) from error
    finally:
        await client.close()


@dataclass(frozen=True, slots=True)
class Relays:
    """Functions that find relays and their states; tests replace them."""

    names: Callable[[], list[str]] = relay_names
    #: Returns whether a relay may be running; others are not polled.
    is_likely: Callable[[str], bool] = is_likely
    ask: Callable[[str], Awaitable[Status]] = status_of
    #: The final status of a relay that has ended.
    ended: Callable[[str], Status | None] = last_status.of_ended
    #: Returns whether a relay's process exists, with or without a socket.
    is_held: Callable[[str], bool] = is_held


class FleetModel(Model):
    """Polls every relay once per second; a slow one does not delay the others."""

    kind: Kind = "fleet"

    def __init__(self, relays: Relays | None = None, clock: Callable[[], float] = time.time) -> None:
        super().__init__("relays", clock)
        self._relays = relays or Relays()
        self._asking: dict[str, asyncio.Task[RelayEntry]] = {}
        self._found: dict[str, RelayEntry] = {}
        #: Relays that were not running when they were first polled; None if there is nothing to show.
        self._old: dict[str, RelayEntry | None] = {}

    @property
    def relays(self) -> list[RelayEntry]:
        """Return the relays found so far, by name."""
        old = (entry for entry in self._old.values() if entry is not None)
        return sorted([*self._found.values(), *old], key=lambda entry: entry.name)

    async def sample_status(self) -> None:
        """Poll the relays that have no pending request; collect the answers that have arrived."""
        for name in self._relays.names():
            if name in self._asking:
                continue
            if name in self._found or self._relays.is_likely(name):
                self._asking[name] = asyncio.create_task(self._ask(name))
            elif name not in self._old:
                self._old[name] = self._recently_ended(name)
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=_AT_ONCE)
        for name, task in list(self._asking.items()):
            if task.done():
                del self._asking[name]
                self._take(task.result())
        self.remark = self._summary()
        self.live = replace(self.live, received=self.clock())

    def close(self) -> None:
        """Cancel all requests."""
        for task in self._asking.values():
            task.cancel()

    async def _ask(self, name: str) -> RelayEntry:
        before = self._found.get(name)
        try:
            return RelayEntry(name, await self._relays.ask(name), runs=True)
        except RelayUnresponsive as error:
            return RelayEntry(name, before.status if before else None, runs=True, silence=error)
        except (BwtuiError, ValueError, TypeError, KeyError):
            if self._relays.is_held(name):
                # A relay that is ending may leave a truncated answer.
                changing = f"relay {name} is starting or ending: it takes no questions now"
                silence = ConnectionFailed(changing, "it is asked again every second")
                return RelayEntry(name, before.status if before else None, runs=True, silence=silence)
            return RelayEntry(name, self._relays.ended(name))

    def _take(self, entry: RelayEntry) -> None:
        if not entry.runs and entry.name not in self._found and self._recently_ended(entry.name) is None:
            # The socket is a leftover of a relay that ended long ago.
            self._old[entry.name] = None
            return
        self._old.pop(entry.name, None)
        self._found[entry.name] = entry

    def _recently_ended(self, name: str) -> RelayEntry | None:
        """Return a relay that failed or was killed recently; a stopped one needs no attention."""
        status = self._relays.ended(name)
        if status is None or status.state == "stopped" or self.clock() - status.time > RECENT:
            return None
        return RelayEntry(name, status)

    def _summary(self) -> str:
        running = [entry for entry in self._found.values() if entry.runs]
        silent = sum(entry.silence is not None for entry in running)
        stalled = sum(
            entry.silence is None and entry.status is not None and entry.status.state == "stalled"
            for entry in running
        )
        ended = len(self.relays) - len(running)
        counts = (
            (len(running), "running"),
            (stalled, "stalled"),
            (silent, "without an answer"),
            (ended, "not running"),
        )
        return ", ".join(f"{number} {what}" for number, what in counts if number) or "no relay is running"
