"""Latency of rows from COMMIT in PostgreSQL to the sink's acknowledgement; all durations in seconds."""

from dataclasses import dataclass
from typing import Any

from bwtui.model.from_json import from_json_object
from bwtui.model.histogram import Histogram

#: Each stage is measured from the one before: received since the commit, encoded since received, handed to
#: the sink since encoded (with a recording, also written to it), acknowledged since then; and the total.
LATENCY_STAGES = ("received", "encoded", "produced", "acknowledged", "total")
_SHARES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Minimum, maximum and percentiles of ``count`` messages.

    A batch counts with the time of its oldest row. A percentile has an error of at most 1/64. The commit time
    is by PostgreSQL's clock: if that is ahead of this machine's, "received" and "total" may be negative.
    """

    count: int
    min: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, histogram: Histogram) -> "Percentiles":
        """Return the percentiles of a non-empty histogram, in whole microseconds."""
        percentiles = histogram.percentiles(_SHARES)
        ends = (histogram.least, *(percentiles[share] for share in _SHARES), histogram.most)
        return cls(histogram.count, *(round(value, 6) for value in ends))


def latency_from_json(data: dict[str, Any]) -> dict[str, Percentiles]:
    """Rebuild the stages' percentiles, ignoring keys that this version does not know."""
    return {stage: from_json_object(Percentiles, figures) for stage, figures in data.items()}
