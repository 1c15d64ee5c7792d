"""An observation of a relay at one moment: everything that `bwtui.relay.watch.judge` knows of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bwtui.model.status import State
from bwtui.relay.watch.activity_clock import Activity
from bwtui.source.lag import Blocker


@dataclass(frozen=True, slots=True)
class ServiceNames:
    """Display names, with addresses, of the services and files that a relay may be blocked on."""

    postgresql: str
    sink: str = "Kafka"
    registry: str = "the schema registry"
    recording: str = ""
    #: Seconds that the sink may hold a message back to batch it with others.
    linger: float = 0.0
    state: str = "the relay's state folder"
    slot: str = ""
    #: True if the relay recreates a lost slot, and compares topics with tables.
    heals: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation of a relay; ``now`` and fields that end in ``_since`` or ``_at`` are monotonic times."""

    now: float
    time: float
    phase: State
    detail: str = ""
    activity: Activity = "read"
    activity_since: float = 0.0
    #: When the last of several answers arrived that the activity waits for.
    answered_at: float = 0.0
    totals: Mapping[Activity, float] = field(default_factory=dict)
    #: CPU seconds of the main thread, or None if the system does not report them.
    cpu: float | None = None
    rows: int = 0
    #: Changed rows among ``rows``; the others are rows of snapshots.
    streamed: int = 0
    transactions: int = 0
    durable: int = 0
    in_flight: int = 0
    capacity: int = 1
    oldest_since: float = 0.0
    ledger_since: float = 0.0
    settled_at: float = 0.0
    #: When the stream last delivered something, and when the server was last asked to answer.
    heard_at: float = 0.0
    called_at: float = 0.0
    #: When a part of an incomplete message last arrived.
    partial_at: float = 0.0
    outage: str | None = None
    #: Topics of the relay that Kafka says do not exist.
    missing_topics: tuple[str, ...] = ()
    backlog_bytes: int = 0
    backlog_seconds: float = 0.0
    #: Seconds since the commit of the newest transaction that was read.
    commit_age: float = 0.0
    #: The LSN up to which the server has read its WAL, and the unread rest; None if the role may not see it.
    sent_lsn: int | None = None
    unread_bytes: int | None = None
    #: The age of the last sample of the slot, and why there is no newer one.
    lag_age: float = 0.0
    lag_failure: str = ""
    asking_since: float = 0.0
    asking_is_long: bool = False
    server_waits_for: str | None = None
    #: The server's process that sends the stream.
    sender_pid: int | None = None
    #: Rows that were dropped since the relay started, and whose dead letters are still open.
    dropped: int = 0
    blockers: tuple[Blocker, ...] = ()
    safe_bytes: int | None = None
    safe_seconds: float | None = None
    wal_status: str = ""
    #: True if the server is a standby.
    in_recovery: bool = False
