"""The interface of the screens to their data, and the status snapshot that they show.

The screens never query the relay. A `Model` provides a frozen `ScreenSnapshot`: `RelayModel` from a running
relay, `RecordedModel` as of a position of a recording. Pausing only keeps new snapshots from the screens:
sampling and history continue.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from bwtui.errors import BwtuiError
from bwtui.model.history import RelayHistory
from bwtui.model.service_views import Look, LookName
from bwtui.model.status import ChangeSample, SchemaEntry, Status
from bwtui.recording.change import Change
from bwtui.relay.process.control import RelayUnresponsive
from bwtui.tui.base.actions import Kind
from bwtui.tui.base.choices import Choices

#: Points in a sparkline, one per second.
POINTS = 120
#: How this terminal reached its relay: it started the relay, attached by name, or chose it from the list of
#: all.
Fleet = Literal["no", "named", "listed"]
Link = Literal["connecting", "live", "stale", "gone", "recorded"]
#: Why no statuses arrive from a relay; "" while they do.
Absence = Literal["", "does not run", "does not answer"]


@dataclass(frozen=True)
class ViewSettings:
    """How this terminal shows its source."""

    #: This terminal started the relay; leaving it then offers to stop the relay first.
    owned: bool = False
    #: With "named" F leads to the list of all relays; with "listed" Esc does as well.
    fleet: Fleet = "no"
    #: False if the relay ends with the screens, as in the demo: leaving then offers no detaching.
    detachable: bool = True
    #: Samples per second, 1 to 10.
    rate: float = 4.0
    #: One of bwtui.tui.base.theme.NAMES.
    theme: str = "dark"
    #: The user's settings of the screens.
    choices: Choices = field(default_factory=Choices)
    #: A note about a recording, such as that it was never finished.
    remark: str = ""


@dataclass(frozen=True)
class Playhead:
    """The position of a recording's player; times in Unix microseconds."""

    position: int
    length: int
    time: int
    first_time: int
    last_time: int
    playing: bool
    speed: float
    #: The length of the idle stretch that is being shortened, in microseconds, or 0.
    skipping: int
    #: The last change at or before the position; None at the beginning.
    change: Change | None
    #: Number of the user's commands that have been carried out.
    commands: int = 0


V = TypeVar("V", bound=Look)


@dataclass(frozen=True)
class ScreenSnapshot:
    """A status snapshot: everything the screens show, at one moment."""

    status: Status | None = None
    #: When it arrived, by the UI's clock.
    received: float = 0.0
    rates: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    delivered: tuple[float, ...] = ()
    #: Cores used by the engine, or None before that is known.
    cpu: float | None = None
    #: Bytes of WAL that the server writes per second, or None before that is known.
    wal_rate: float | None = None
    #: The relay's last ten minutes, as the relay itself recorded them.
    history: RelayHistory = field(default_factory=RelayHistory)
    changes: tuple[ChangeSample, ...] = ()
    schemas: tuple[SchemaEntry, ...] = ()
    #: The service views that the screens have requested so far, by name.
    views: Mapping[LookName, Look] = field(default_factory=dict)
    #: Set only for a recording.
    playhead: Playhead | None = None
    #: Why the data is old.
    absence: Absence = ""

    def view(self, kind: type[V]) -> V:
        """Return the service view of a kind; an empty one before it has arrived."""
        return next((one for one in self.views.values() if isinstance(one, kind)), kind())

    @property
    def as_of(self) -> float | None:
        """The time of its figures if they are old; None while they are current."""
        return self.status.time if self.status is not None and self.absence else None

    @property
    def rows(self) -> int:
        """Rows relayed since the engine started, including the snapshot."""
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
    """Holds the live status snapshot and the one that is shown; subclasses sample their source."""

    kind: Kind
    #: The process that runs in the background, for the second line of every screen.
    background = ""
    #: A note about the source.
    remark = ""
    #: The screens are read-only: they change nothing.
    readonly = False

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.name = name
        self.clock = clock
        self.live = ScreenSnapshot()
        self.paused: ScreenSnapshot | None = None
        self.paused_at = 0.0
        self.failure: BwtuiError | None = None

    @property
    def recorded(self) -> bool:
        """True if the source is a recording."""
        return self.kind == "recording"

    @property
    def snapshot(self) -> ScreenSnapshot:
        """The status snapshot to show, live or frozen; its ``absence`` is set if it is old."""
        snapshot, absence = self.paused or self.live, self.absence
        return replace(snapshot, absence=absence) if absence else snapshot

    @property
    def absence(self) -> Absence:
        """Why no statuses arrive from a relay; "" while they do."""
        if self.link in ("gone", "connecting") and self.failure is not None:
            return "does not answer" if isinstance(self.failure, RelayUnresponsive) else "does not run"
        return "does not answer" if self.link == "stale" else ""

    @property
    def age(self) -> float:
        """Seconds since the last status arrived, or since the engine created it if that is longer ago."""
        status = self.live.status
        if status is None:
            return 0.0
        return max(self.clock() - max(min(status.time, self.live.received), 0.0), 0.0)

    @property
    def link(self) -> Link:
        """The state of the connection; recordings and reports are neither live nor gone."""
        return "recorded"

    def toggle_pause(self) -> None:
        """Freeze the view, or resume it."""
        self.paused = None if self.paused else self.live
        self.paused_at = self.clock()

    async def sample_status(self) -> None:
        """Take the next snapshot; a failure is stored in ``failure``, not raised."""

    async def sample_changes(self) -> None:
        """Fetch new changes, unless they come with the snapshot."""

    async def sample_schemas(self) -> None:
        """Fetch the schemas, unless they come with the snapshot."""

    async def sample_view(self, name: LookName, about: Sequence[str] = (), *, glance: bool = False) -> None:
        """Fetch a service view for a screen; only a relay has any."""

    async def stop(self) -> None:
        """Ask a relay to stop cleanly; do nothing for other sources. Raises BwtuiError."""
