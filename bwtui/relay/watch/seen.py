"""What is seen of a relay at one moment: all that `bwtui.relay.watch.judge` knows of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bwtui.model.status import State
from bwtui.relay.watch.account import Activity
from bwtui.source.lag import Blocker


@dataclass(frozen=True, slots=True)
class Names:
    """What those are called that a relay may wait for, with their addresses."""

    postgresql: str
    sink: str = "Kafka"
    registry: str = "the schema registry"
    recording: str = ""
    #: Seconds that a message waits for others before the sink sends it.
    linger: float = 0.0
    state: str = "the relay's state folder"
    slot: str = ""
    #: Whether the relay recreates a slot that is lost, and compares topics with tables.
    heals: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What is seen of a relay at one moment; ``now`` and what ends in ``_since`` or ``_at`` are monotonic."""

    now: float
    time: float
    phase: State
    detail: str = ""
    activity: Activity = "read"
    activity_since: float = 0.0
    #: When the last of many answers was there that the activity waits for.
    answered_at: float = 0.0
    totals: Mapping[Activity, float] = field(default_factory=dict)
    #: Seconds of processor time of the main thread, or None where the system does not tell.
    cpu: float | None = None
    rows: int = 0
    #: Of them, rows that were changed; the others are those of snapshots.
    streamed: int = 0
    transactions: int = 0
    durable: int = 0
    in_flight: int = 0
    capacity: int = 1
    oldest_since: float = 0.0
    ledger_since: float = 0.0
    settled_at: float = 0.0
    #: When the stream last said anything, and when it was last asked to.
    heard_at: float = 0.0
    called_at: float = 0.0
    #: When a part of a message came that is not whole yet.
    partial_at: float = 0.0
    outage: str | None = None
    #: Topics of the relay that Kafka says do not exist.
    missing_topics: tuple[str, ...] = ()
    backlog_bytes: int = 0
    backlog_seconds: float = 0.0
    #: How long ago the newest transaction was committed that was read.
    commit_age: float = 0.0
    #: Up to where the server has read its WAL, and how much it has not; None where we may not know.
    sent_lsn: int | None = None
    unread_bytes: int | None = None
    #: How old the last look at the slot is, and why there was no newer one.
    lag_age: float = 0.0
    lag_failure: str = ""
    asking_since: float = 0.0
    asking_is_long: bool = False
    server_waits_for: str | None = None
    #: The server's process that sends the stream.
    sender_pid: int | None = None
    #: Rows that were dropped since the relay began.
    dropped: int = 0
    blockers: tuple[Blocker, ...] = ()
    safe_bytes: int | None = None
    safe_seconds: float | None = None
    wal_status: str = ""
    #: Whether the server is a standby.
    in_recovery: bool = False
