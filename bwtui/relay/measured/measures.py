"""What is counted and measured of a relay for those that scrape it; the rest of it is in its status."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bwtui.model.histogram import Distribution
from bwtui.model.status import Status
from bwtui.relay.watch.account import Turn


@dataclass(frozen=True, slots=True)
class Measures:
    """One moment of a relay; durations in seconds, times in Unix seconds."""

    status: Status
    #: How long messages took to each of `bwtui.model.latency.LATENCY_STAGES` since the start; empty before
    #: anything is measured.
    latency: Mapping[str, Distribution] = field(default_factory=dict)
    #: Errors since the start, by kind, and how often the stream was opened.
    errors: Mapping[str, int] = field(default_factory=dict)
    sessions: int = 0
    #: Of these rows of a snapshot, those that earlier runs have sent, by table.
    copied_before: Mapping[str, int] = field(default_factory=dict)
    #: Audits of the tables that this run was told of, by verdict, and when the last one ended; 0: none.
    audits: Mapping[str, int] = field(default_factory=dict)
    audited_at: float = 0.0
    #: Schemas that were registered or looked up, by part: "key" or "value".
    schemas: Mapping[str, int] = field(default_factory=dict)
    #: How much of the main thread's time went where; see `bwtui.relay.watch.account.Activity`.
    activities: Mapping[str, float] = field(default_factory=dict)
    #: What the main thread is at.
    turn: Turn = field(default_factory=Turn)
    #: How long ago PostgreSQL last told of the slot; None: not yet.
    slot_age: float | None = None
    #: A stop was asked for.
    is_stopping: bool = False
