"""The last ten minutes of a relay, second by second, for viewers that connect later.

Times are seconds since the Unix epoch, durations seconds, sizes bytes.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from bwtui.model.from_json import from_json_object

#: Length of the history, and of the rates by table, in seconds.
HISTORY_SECONDS, TREND_SECONDS = 600, 120

#: "start" of the relay; "reconnect": a new session of the stream; "ddl": a table's schema changed.
MarkKind = Literal["start", "reconnect", "ddl", "error", "audit"]


@dataclass(frozen=True, slots=True)
class Second:
    """The metrics of one second; seconds during a suspension are missing and count with the next."""

    time: float
    #: Rows per second from PostgreSQL's stream or the snapshot, and acknowledged messages per second.
    read_per_second: float
    acknowledged_per_second: float
    lag_bytes: int
    lag_seconds: float
    retained_wal_bytes: int
    #: From COMMIT to acknowledgement, of messages acknowledged in this second; None if there were none.
    p50: float | None = None
    p99: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True)
class ChartMark:
    """An event to mark in a chart."""

    time: float
    kind: MarkKind
    text: str


@dataclass(frozen=True, slots=True)
class RelayHistory:
    """Seconds and marks, oldest first."""

    seconds: tuple[Second, ...] = ()
    marks: tuple[ChartMark, ...] = ()
    #: Rows per second of each table that had any, one point per second, the newest last, up to the first
    #: request for the history.
    trends: dict[str, tuple[float, ...]] = field(default_factory=dict)
    #: Distribution of the last minute's times from COMMIT to acknowledgement: lower, upper, number of
    #: messages.
    latency: tuple[tuple[float, float, int], ...] = ()

    def extended(self, later: "RelayHistory") -> "RelayHistory":
        """Return this history extended by later samples; the oldest ones are dropped."""
        # Before the first second every answer has all marks, as after the clock was set back: skip known
        # ones.
        fresh = (mark for mark in later.marks if mark not in self.marks)
        marks = (*self.marks, *fresh)[-HISTORY_SECONDS:]
        seconds = (*self.seconds, *later.seconds)[-HISTORY_SECONDS:]
        return RelayHistory(seconds, marks, later.trends or self.trends, later.latency)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the control socket."""
        # With a thousand tables, `asdict` would take a fifth of a second to copy points.
        return {
            "seconds": [dataclasses.asdict(one) for one in self.seconds],
            "marks": [dataclasses.asdict(mark) for mark in self.marks],
            "trends": self.trends,
            "latency": self.latency,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "RelayHistory":
        """Rebuild a history from `to_json`, ignoring keys that this version does not know."""
        return cls(
            tuple(from_json_object(Second, one) for one in data.get("seconds", ())),
            tuple(from_json_object(ChartMark, one) for one in data.get("marks", ())),
            {table: tuple(points) for table, points in data.get("trends", {}).items()},
            tuple((lower, upper, count) for lower, upper, count in data.get("latency", ())),
        )
