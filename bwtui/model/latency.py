"""How long rows take from COMMIT in PostgreSQL to the sink's acknowledgement; all durations in seconds."""

from dataclasses import dataclass
from typing import Any

from bwtui.model.from_json import made_of
from bwtui.model.histogram import Histogram

#: Each from the one before: received since the commit, encoded since received, handed to the sink since
#: encoded (with a recording, written to it as well), acknowledged since then; and the whole way.
LATENCY_STAGES = ("received", "encoded", "produced", "acknowledged", "total")
_SHARES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of ``count`` messages: the shortest, the longest, and what half, 90 % and 99 % of them took at most.

    A batch counts as its oldest row does. A percentile is off by at most 1/64 of itself. The commit's time is
    by PostgreSQL's clock: where that is ahead of this machine's, "received" and "total" may be negative.
    """

    count: int
    min: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, histogram: Histogram) -> "Percentiles":
        """Return those of a histogram that is not empty, in whole microseconds."""
        found = histogram.percentiles(_SHARES)
        ends = (histogram.least, *(found[share] for share in _SHARES), histogram.most)
        return cls(histogram.count, *(round(value, 6) for value in ends))


def latency_from_json(data: dict[str, Any]) -> dict[str, Percentiles]:
    """Rebuild the stages' percentiles; keys that this version does not know are left out."""
    return {stage: made_of(Percentiles, figures) for stage, figures in data.items()}
