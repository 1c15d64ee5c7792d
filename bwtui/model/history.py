"""The last ten minutes of a relay, second by second, for whoever looks at it later.

Times are seconds since the Unix epoch, durations seconds, sizes bytes.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from bwtui.model.from_json import made_of

#: So many seconds of a relay are kept, and of the rate of each table.
HISTORY_SECONDS, TREND_SECONDS = 600, 120

#: "start" of the relay; "reconnect": another session of the stream; "ddl": a table has another schema.
MarkKind = Literal["start", "reconnect", "ddl", "error", "audit"]


@dataclass(frozen=True, slots=True)
class Second:
    """What one second was like; one that is missing was slept through, and counts with the next."""

    time: float
    #: Rows that PostgreSQL's stream, or the snapshot, brought, and messages that were acknowledged.
    read_per_second: float
    acknowledged_per_second: float
    lag_bytes: int
    lag_seconds: float
    retained_wal_bytes: int
    #: From COMMIT to acknowledgement, of what was acknowledged in this second; None where nothing was.
    p50: float | None = None
    p99: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened, for a chart."""

    time: float
    kind: MarkKind
    text: str


@dataclass(frozen=True, slots=True)
class History:
    """Seconds and marks, oldest first."""

    seconds: tuple[Second, ...] = ()
    marks: tuple[Mark, ...] = ()
    #: Rows a second of each table that had some, one point a second, the newest last; up to when the history
    #: was first asked for.
    trends: dict[str, tuple[float, ...]] = field(default_factory=dict)
    #: How long the last minute's messages took from COMMIT to acknowledgement: from, to, how many.
    latency: tuple[tuple[float, float, int], ...] = ()

    def extended(self, later: "History") -> "History":
        """Return this history with what was sampled later; the oldest is left out."""
        # Before there is a second, each answer begins anew; and a clock that was set back has all marks told.
        fresh = (mark for mark in later.marks if mark not in self.marks)
        marks = (*self.marks, *fresh)[-HISTORY_SECONDS:]
        seconds = (*self.seconds, *later.seconds)[-HISTORY_SECONDS:]
        return History(seconds, marks, later.trends or self.trends, later.latency)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the control socket."""
        # Of a thousand tables, `asdict` would copy points for a fifth of a second.
        return {
            "seconds": [dataclasses.asdict(one) for one in self.seconds],
            "marks": [dataclasses.asdict(mark) for mark in self.marks],
            "trends": self.trends,
            "latency": self.latency,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "History":
        """Rebuild a history from `to_json`; keys that this version does not know are left out."""
        return cls(
            tuple(made_of(Second, one) for one in data.get("seconds", ())),
            tuple(made_of(Mark, one) for one in data.get("marks", ())),
            {table: tuple(points) for table, points in data.get("trends", {}).items()},
            tuple((lower, upper, count) for lower, upper, count in data.get("latency", ())),
        )
