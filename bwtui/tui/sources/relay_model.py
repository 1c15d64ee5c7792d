"""The data of a running relay: samples a `DataSource`, and extends the history that the relay keeps."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from bwtui.errors import BwtuiError, RefusedError
from bwtui.model.history import RelayHistory
from bwtui.model.service_views import LOOKS, Look, LookName
from bwtui.model.status import ChangeSample, SchemaEntry, Status
from bwtui.relay.process.control import RelayUnresponsive, RequestRefused
from bwtui.relay.process.last_status import of_ended
from bwtui.tui.base.actions import Kind
from bwtui.tui.sources.model import POINTS, Link, Model, ScreenSnapshot

#: Maximum changes that the UI keeps; the engine's own sample is smaller.
CHANGES = 2000
#: Seconds after which a status is shown as stale.
STALE_AFTER = 3.0
#: Seconds over which CPU use and WAL growth are averaged.
WINDOW = 10.0


class DataSource(Protocol):
    """A source of data about a running relay."""

    name: str

    async def status(self) -> Status:
        """Return the present status. Raises BwtuiError if the source is gone."""

    async def changes(self, after: int) -> list[ChangeSample]:
        """Return sampled changes with a sequence above ``after``, oldest first."""

    async def schemas(self) -> list[SchemaEntry]:
        """Return every schema that the relay has registered or looked up so far."""

    async def history(self, after: float) -> RelayHistory:
        """Return the part of the last ten minutes after ``after`` (Unix seconds); trends only if it is 0."""

    async def fetch_view(self, name: LookName, about: Sequence[str] = (), *, glance: bool = False) -> Look:
        """Return the relay's cached service view at once, and request a fresh one.

        With ``glance`` the relay polls its services less often.
        """

    async def stop(self) -> None:
        """Ask the relay to stop cleanly. Raises BwtuiError."""


class RelayModel(Model):
    """Samples a relay."""

    kind: Kind = "live"

    def __init__(self, source: DataSource, clock: Callable[[], float] = time.time) -> None:
        super().__init__(source.name, clock)
        self._source = source
        self._trends = Trends()
        self._changes: deque[ChangeSample] = deque(maxlen=CHANGES)
        self._schema_ids: frozenset[int] = frozenset()

    @property
    def link(self) -> Link:
        if self.live.status is None:
            return "connecting"
        if self.failure is not None:
            return "gone"
        return "stale" if self.age > STALE_AFTER else "live"

    async def stop(self) -> None:
        if self.readonly:
            raise RefusedError(
                "with --readonly, the screens can't stop the relay", f"'bwtui stop {self.name}' stops it"
            )
        await self._source.stop()

    async def sample_status(self) -> None:
        try:
            status = await self._source.status()
        except BwtuiError as error:
            self.failure = error
            self._take_end(error)
            return
        except (ValueError, TypeError, KeyError) as error:
            # A truncated line arrives if an engine dies in the middle of its answer.
            self.failure = BwtuiError(
                f"the relay's answer can't be read: {type(error).__name__}",
                "it may have ended, or run a different version of bwtui; see 'bwtui status'",
            )
            return
        self._restart_if_new(status)
        self.failure = None
        history = await self._sample_history(status)
        self._trends.add(status)
        self.live = replace(
            self.live,
            status=status,
            received=self.clock(),
            rates=self._trends.rates(),
            delivered=tuple(self._trends.delivered),
            cpu=self._trends.per_second("cpu"),
            wal_rate=self._trends.per_second("wal"),
            history=history,
        )

    async def _sample_history(self, status: Status) -> RelayHistory:
        """Return the relay's history: fetch all of it once, then the new part once per second."""
        before, last = self.live.history, self.live.status
        if last is not None and int(last.time) == int(status.time):
            return before
        try:
            fresh = await self._source.history(before.seconds[-1].time if before.seconds else 0.0)
        except (BwtuiError, ValueError, TypeError, KeyError):
            # The next status request reports that the relay is gone.
            return before
        if last is None:
            self._trends.begin(fresh)
        return before.extended(fresh)

    def _take_end(self, error: BwtuiError) -> None:
        """Show how the relay ended: its last status has the reason and its errors."""
        previous = self.live.status
        if previous is None or isinstance(error, RelayUnresponsive):
            return
        last = of_ended(self.name)
        if last is not None and (last.pid, last.started) == (previous.pid, previous.started):
            self.live = replace(self.live, status=last)

    async def sample_changes(self) -> None:
        after = self._changes[-1].sequence if self._changes else 0
        try:
            fresh = await self._source.changes(after)
        except (BwtuiError, ValueError, TypeError, KeyError):
            # The next status request reports that the relay is gone.
            return
        if fresh:
            self._changes.extend(fresh)
            self.live = replace(self.live, changes=tuple(self._changes))

    async def sample_schemas(self) -> None:
        """Fetch the schemas if the status names a schema id that is not cached."""
        ids = _schema_ids(self.live.status)
        if ids <= self._schema_ids and self.live.schemas:
            return
        try:
            schemas = await self._source.schemas()
        except (BwtuiError, ValueError, TypeError, KeyError):
            return
        self._schema_ids = ids
        self.live = replace(self.live, schemas=tuple(schemas))

    async def sample_view(self, name: LookName, about: Sequence[str] = (), *, glance: bool = False) -> None:
        """Fetch a service view for a screen; the configuration only once, as an engine's never changes."""
        if name == "configuration" and name in self.live.views:
            return
        try:
            view = await self._source.fetch_view(name, about, glance=glance)
        except RequestRefused as error:
            view = LOOKS[name](failure=f"{error.message}: {error.hint}")
        except (BwtuiError, ValueError, TypeError, KeyError):
            # The next status request reports that the relay is gone.
            return
        self.live = replace(self.live, views={**self.live.views, name: view})

    def _restart_if_new(self, status: Status) -> None:
        """Discard the data of a former engine, because a new one counts its changes from the start."""
        old = self.live.status
        if old is not None and (old.pid, old.started) != (status.pid, status.started):
            self._trends = Trends()
            self._changes.clear()
            self._schema_ids = frozenset()
            self.live = ScreenSnapshot()


def _schema_ids(status: Status | None) -> frozenset[int]:
    tables = status.tables.values() if status else ()
    ids = {i for t in tables for i in (t.key_schema_id, t.value_schema_id)}
    return frozenset(i for i in ids if i is not None)


class Trends:
    """The data of the sparklines, one point per second whatever the sampling rate."""

    def __init__(self) -> None:
        self.delivered: deque[float] = deque(maxlen=POINTS)
        self._tables: dict[str, deque[float]] = {}
        self._rates: dict[str, tuple[float, ...]] = {}
        self._second: int | None = None
        self._window: deque[tuple[float, dict[str, float]]] = deque()

    def begin(self, history: RelayHistory) -> None:
        """Start with the points that the relay recorded before the UI was attached."""
        self.delivered.extend(second.acknowledged_per_second for second in history.seconds)
        for name, points in history.trends.items():
            self._tables[name] = deque(points, maxlen=POINTS)
        self._rates = {name: tuple(points) for name, points in self._tables.items()}
        if history.seconds:
            self._second = int(history.seconds[-1].time)

    def add(self, status: Status) -> None:
        """Add a status; only the first one of every second becomes a point."""
        second = int(status.time)
        if second == self._second:
            return
        self._second = second
        stage = status.stages.get("acknowledge")
        self.delivered.append(stage.per_second if stage else 0.0)
        for name, table in status.tables.items():
            self._tables.setdefault(name, deque(maxlen=POINTS)).append(table.rows_per_second)
        self._rates = {name: tuple(points) for name, points in self._tables.items()}
        self._window.append((status.time, {"cpu": status.cpu_seconds, "wal": float(status.server_lsn)}))
        while status.time - self._window[0][0] > WINDOW:
            self._window.popleft()

    def rates(self) -> Mapping[str, tuple[float, ...]]:
        """Return the points of every table."""
        return self._rates

    def per_second(self, name: str) -> float | None:
        """Return how fast "cpu" or "wal" grows per second, or None before there are two points."""
        if len(self._window) < 2:
            return None
        (start, first), (end, last) = self._window[0], self._window[-1]
        return max(last[name] - first[name], 0.0) / (end - start)
