"""Where the screens get their data, and the picture of it that they show.

The screens never ask the relay. A `Model` hands out a frozen `Picture`; that of a relay samples a
`DataSource`, and goes on with the history that the relay itself has kept. Pausing only stops pictures from
reaching the screens: sampling and history go on.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from bwtui.errors import BwtuiError, RefusedError
from bwtui.model.history import History
from bwtui.model.looks import LOOKS, Look, LookName
from bwtui.model.status import ChangeSample, SchemaEntry, Status
from bwtui.recording.change import Change
from bwtui.relay.process.control import DoesNotAnswer, Refused
from bwtui.relay.process.last_status import of_ended
from bwtui.tui.action import Kind
from bwtui.tui.choices.chosen import Choices

#: Points in a sparkline, one a second.
POINTS = 120
#: Changes that the UI keeps; the engine's own sample is smaller.
CHANGES = 2000
#: A status this old is shown as old, in seconds.
STALE_AFTER = 3.0
#: Seconds over which CPU use and the growth of the WAL are averaged.
WINDOW = 10.0

#: How this terminal came to its relay: not from all relays, by name, or out of their list.
Fleet = Literal["no", "named", "listed"]
Link = Literal["connecting", "live", "stale", "gone", "recorded"]
#: What a relay does not do of which no news come; "" while they come.
Absence = Literal["", "does not run", "does not answer"]


class DataSource(Protocol):
    """A relay that runs: whatever can answer these."""

    name: str

    async def status(self) -> Status:
        """Return the status now; raises BwtuiError when the source is gone."""

    async def changes(self, after: int) -> list[ChangeSample]:
        """Return sampled changes with a sequence above ``after``, oldest first."""

    async def schemas(self) -> list[SchemaEntry]:
        """Return every schema that the relay registered or looked up so far."""

    async def history(self, after: float) -> History:
        """Return the last ten minutes after ``after`` (Unix seconds); trends only from 0."""

    async def look(self, name: LookName, about: Sequence[str] = (), *, glance: bool = False) -> Look:
        """Return what a relay is asked only while somebody looks: its last answer, at once.

        A ``glance`` has the services asked more rarely.
        """

    async def stop(self) -> None:
        """Ask the relay to stop cleanly. Raises BwtuiError."""


@dataclass(frozen=True)
class Session:
    """How this terminal looks at its source."""

    #: This terminal started the relay; then leaving it offers to stop the relay first.
    owned: bool = False
    #: From a relay by name F leads to the list of all, and from one out of that list Esc does as well.
    fleet: Fleet = "no"
    #: False where the relay ends with the screens, as in the demo: then leaving offers no detaching.
    detachable: bool = True
    #: Samples a second, 1 to 10.
    rate: float = 4.0
    #: One of bwtui.tui.theme.NAMES.
    theme: str = "dark"
    #: What the user has chosen of the screens.
    choices: Choices = field(default_factory=Choices)
    #: What should be known of a recording, such as that it was never finished.
    remark: str = ""


@dataclass(frozen=True)
class Playhead:
    """Where a recording stands; times in Unix microseconds."""

    position: int
    length: int
    time: int
    first_time: int
    last_time: int
    playing: bool
    speed: float
    #: The length of the idle stretch that is being shortened, in microseconds, or 0.
    skipping: int
    #: The last change that has happened; None at the beginning.
    change: Change | None
    #: How many of the user's commands have been carried out.
    commands: int = 0


@dataclass(frozen=True)
class Picture:
    """Everything the screens show, at one moment."""

    status: Status | None = None
    #: When it arrived, by the UI's clock.
    received: float = 0.0
    rates: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    delivered: tuple[float, ...] = ()
    #: Cores used by the engine, or None before that is known.
    cpu: float | None = None
    #: Bytes of WAL that the server writes a second, or None before that is known.
    wal_rate: float | None = None
    #: The relay's last ten minutes, as the relay itself has kept them.
    history: History = field(default_factory=History)
    changes: tuple[ChangeSample, ...] = ()
    schemas: tuple[SchemaEntry, ...] = ()
    #: What the screens on the services have asked for so far, by name.
    looks: Mapping[LookName, Look] = field(default_factory=dict)
    #: Only of a recording.
    playhead: Playhead | None = None
    #: Why all of this is old.
    absence: Absence = ""

    @property
    def as_of(self) -> float | None:
        """When its figures were true, where they are old; None while they are now."""
        return self.status.time if self.status is not None and self.absence else None

    @property
    def rows(self) -> int:
        """Rows relayed since the engine started, snapshot included."""
        if self.status is None:
            return 0
        tables = self.status.tables.values()
        return sum(t.snapshot_rows + t.backfill_rows + t.inserts + t.updates + t.deletes for t in tables)

    def seconds_left(self) -> float | None:
        """Return the seconds until the server may drop the slot's WAL at the present rate, or None."""
        status = self.status
        if status is None or status.safe_wal_bytes is None or not self.wal_rate:
            return None
        return max(status.safe_wal_bytes, 0) / self.wal_rate


class Model:
    """Holds the live picture and the one that is shown; a subclass samples what there is to sample."""

    kind: Kind
    #: What runs in the background, for the second line of every screen.
    background = ""
    #: What should be known of it.
    remark = ""
    #: The screens only look: nothing is changed from here.
    readonly = False

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.name = name
        self.clock = clock
        self.live = Picture()
        self.paused: Picture | None = None
        self.paused_at = 0.0
        self.failure: BwtuiError | None = None

    @property
    def recorded(self) -> bool:
        """Whether the source is a recording."""
        return self.kind == "recording"

    @property
    def picture(self) -> Picture:
        """The picture to show: the live one, or the one that was frozen; it says whether it is old."""
        shown, absence = self.paused or self.live, self.absence
        return replace(shown, absence=absence) if absence else shown

    @property
    def absence(self) -> Absence:
        """Why no news come of a relay, where none do."""
        if self.link in ("gone", "connecting") and self.failure is not None:
            return "does not answer" if isinstance(self.failure, DoesNotAnswer) else "does not run"
        return "does not answer" if self.link == "stale" else ""

    @property
    def age(self) -> float:
        """Seconds since the last status arrived, or since the engine made it if that is longer ago."""
        status = self.live.status
        if status is None:
            return 0.0
        return max(self.clock() - max(min(status.time, self.live.received), 0.0), 0.0)

    @property
    def link(self) -> Link:
        """How things stand with what is shown; a recording and a report are neither live nor gone."""
        return "recorded"

    def toggle_pause(self) -> None:
        """Freeze the view, or let it run again."""
        self.paused = None if self.paused else self.live
        self.paused_at = self.clock()

    async def sample_status(self) -> None:
        """Take the next picture; a failure is remembered, not raised."""

    async def sample_changes(self) -> None:
        """Fetch the changes not seen yet, where they don't come with the picture."""

    async def sample_schemas(self) -> None:
        """Fetch the schemas, where they don't come with the picture."""

    async def sample_look(self, name: LookName, about: Sequence[str] = (), *, glance: bool = False) -> None:
        """Fetch what a screen shows of the services; only a relay has any."""

    async def stop(self) -> None:
        """Ask a relay to stop cleanly; nothing else has anything to stop. Raises BwtuiError."""


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
        """How things stand with the relay."""
        if self.live.status is None:
            return "connecting"
        if self.failure is not None:
            return "gone"
        return "stale" if self.age > STALE_AFTER else "live"

    async def stop(self) -> None:
        """Ask the relay to stop cleanly. Raises BwtuiError."""
        if self.readonly:
            raise RefusedError(
                "with --readonly the screens stop no relay", f"'bwtui stop {self.name}' stops it"
            )
        await self._source.stop()

    async def sample_status(self) -> None:
        """Ask for the status; a failure is remembered, not raised."""
        try:
            status = await self._source.status()
        except BwtuiError as error:
            self.failure = error
            self._take_end(error)
            return
        except (ValueError, TypeError, KeyError) as error:
            # Half a line arrives when an engine dies in the middle of its answer.
            self.failure = BwtuiError(
                f"the relay's answer can't be read: {type(error).__name__}",
                "it may have ended, or be another version of bwtui: 'bwtui status' says",
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

    async def _sample_history(self, status: Status) -> History:
        """Return what the relay has kept: all of it once, and once a second what is new."""
        before, last = self.live.history, self.live.status
        if last is not None and int(last.time) == int(status.time):
            return before
        try:
            fresh = await self._source.history(before.seconds[-1].time if before.seconds else 0.0)
        except (BwtuiError, ValueError, TypeError, KeyError):
            # The next status says that the relay is gone.
            return before
        if last is None:
            self._trends.begin(fresh)
        return before.extended(fresh)

    def _take_end(self, error: BwtuiError) -> None:
        """Show how the relay ended that was shown: its last status says why, and lists its errors."""
        shown = self.live.status
        if shown is None or isinstance(error, DoesNotAnswer):
            return
        last = of_ended(self.name)
        if last is not None and (last.pid, last.started) == (shown.pid, shown.started):
            self.live = replace(self.live, status=last)

    async def sample_changes(self) -> None:
        """Fetch the changes not seen yet."""
        after = self._changes[-1].sequence if self._changes else 0
        try:
            fresh = await self._source.changes(after)
        except (BwtuiError, ValueError, TypeError, KeyError):
            # The next status says that the relay is gone.
            return
        if fresh:
            self._changes.extend(fresh)
            self.live = replace(self.live, changes=tuple(self._changes))

    async def sample_schemas(self) -> None:
        """Fetch the schemas when the status names an id that none of those at hand has."""
        ids = _schema_ids(self.live.status)
        if ids <= self._schema_ids and self.live.schemas:
            return
        try:
            schemas = await self._source.schemas()
        except (BwtuiError, ValueError, TypeError, KeyError):
            return
        self._schema_ids = ids
        self.live = replace(self.live, schemas=tuple(schemas))

    async def sample_look(self, name: LookName, about: Sequence[str] = (), *, glance: bool = False) -> None:
        """Fetch what a screen shows of the services; what an engine was started with never changes."""
        if name == "configuration" and name in self.live.looks:
            return
        try:
            look = await self._source.look(name, about, glance=glance)
        except Refused as error:
            look = LOOKS[name](failure=f"{error.message}: {error.hint}")
        except (BwtuiError, ValueError, TypeError, KeyError):
            # The next status says that the relay is gone.
            return
        self.live = replace(self.live, looks={**self.live.looks, name: look})

    def _restart_if_new(self, status: Status) -> None:
        """Forget what belongs to a former engine: another one counts its changes from the start."""
        old = self.live.status
        if old is not None and (old.pid, old.started) != (status.pid, status.started):
            self._trends = Trends()
            self._changes.clear()
            self._schema_ids = frozenset()
            self.live = Picture()


def _schema_ids(status: Status | None) -> frozenset[int]:
    tables = status.tables.values() if status else ()
    ids = {i for t in tables for i in (t.key_schema_id, t.value_schema_id)}
    return frozenset(i for i in ids if i is not None)


class Trends:
    """One point a second of what the sparklines show, whatever the rate of sampling."""

    def __init__(self) -> None:
        self.delivered: deque[float] = deque(maxlen=POINTS)
        self._tables: dict[str, deque[float]] = {}
        self._rates: dict[str, tuple[float, ...]] = {}
        self._second: int | None = None
        self._window: deque[tuple[float, dict[str, float]]] = deque()

    def begin(self, history: History) -> None:
        """Take what the relay has kept from before anybody looked."""
        self.delivered.extend(second.acknowledged_per_second for second in history.seconds)
        for name, points in history.trends.items():
            self._tables[name] = deque(points, maxlen=POINTS)
        self._rates = {name: tuple(points) for name, points in self._tables.items()}
        if history.seconds:
            self._second = int(history.seconds[-1].time)

    def add(self, status: Status) -> None:
        """Take a status in; only the first one of every second makes a point."""
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
        """Return how fast "cpu" or "wal" grows, or None before two points are known."""
        if len(self._window) < 2:
            return None
        (start, first), (end, last) = self._window[0], self._window[-1]
        return max(last[name] - first[name], 0.0) / (end - start)
