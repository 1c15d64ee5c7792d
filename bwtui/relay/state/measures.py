"""Counts and measurements of a relay for metrics scrapers; the rest is in its status."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bwtui.model.histogram import Distribution
from bwtui.model.status import Status
from bwtui.relay.state.activity_clock import MainThreadActivity


@dataclass(frozen=True, slots=True)
class Measures:
    """The measurements of a relay at one moment; durations in seconds, times in Unix seconds."""

    status: Status
    #: Latency at each of `bwtui.model.latency.LATENCY_STAGES` since the start; empty before the first value.
    latency: Mapping[str, Distribution] = field(default_factory=dict)
    #: Number of errors since the start, by kind, and number of times that the stream was opened.
    errors: Mapping[str, int] = field(default_factory=dict)
    sessions: int = 0
    #: Snapshot rows that earlier runs sent, by table; the status counts them too.
    copied_before: Mapping[str, int] = field(default_factory=dict)
    #: Audits of the tables reported to this run, by verdict, and when the last one ended (0: never).
    audits: Mapping[str, int] = field(default_factory=dict)
    audited_at: float = 0.0
    #: Schemas that were registered or looked up, by part: "key" or "value".
    schemas: Mapping[str, int] = field(default_factory=dict)
    #: Seconds of the main thread by activity; see `bwtui.relay.state.activity_clock.Activity`.
    activities: Mapping[str, float] = field(default_factory=dict)
    #: The main thread's current activity.
    turn: MainThreadActivity = field(default_factory=MainThreadActivity)
    #: Seconds since PostgreSQL last reported on the slot; None if it has not yet.
    slot_age: float | None = None
    #: True after a stop was requested.
    is_stopping: bool = False
