"""The bottleneck: the stage that takes most of the relay's time, according to the activity clock."""

from collections.abc import Mapping
from typing import Protocol

from bwtui.relay.watch.activity_clock import Activity

#: The stage of each activity; "" is the recording, outside of the pipeline. A COPY is split by its CPU time.
_STAGES: dict[Activity, str] = {
    "work": "encode",
    "registry": "encode",
    "catalog": "encode",
    "read": "read",
    "connect": "read",
    "slot": "read",
    "locks": "read",
    "produce": "produce",
    "topics": "produce",
    "room": "acknowledge",
    "settling": "acknowledge",
    "readback": "acknowledge",
    "ending": "read",
    "ledger": "",
    "disk": "",
}


class ActivityTotals(Protocol):
    """The activity clock's totals at one moment."""

    @property
    def now(self) -> float: ...
    @property
    def totals(self) -> Mapping[Activity, float]: ...
    @property
    def cpu(self) -> float | None: ...


def busy(first: ActivityTotals, last: ActivityTotals, *, idle: bool) -> dict[str, float]:
    """Return the shares (0 to 1) of stages in the time between two moments.

    ``idle``: there is nothing more to read, so waiting for the stream does not count as work.
    """
    seconds = last.now - first.now
    shares: dict[str, float] = {}
    if seconds <= 0:
        return shares
    spent = {name: last.totals.get(name, 0.0) - first.totals.get(name, 0.0) for name in last.totals}
    copying = spent.pop("copy", 0.0) + spent.pop("scan", 0.0)
    if copying > 0:
        # COPY's rows pass one by one through libpq and the encoder: time without CPU use is waiting.
        cpu = copying if first.cpu is None or last.cpu is None else min(copying, last.cpu - first.cpu)
        shares = {"encode": cpu / seconds, "read": (copying - cpu) / seconds}
    for activity, spent_on in spent.items():
        stage = _STAGES.get(activity)
        if stage is not None and not (idle and activity == "read"):
            shares[stage] = shares.get(stage, 0.0) + spent_on / seconds
    return {stage: round(min(max(share, 0.0), 1.0), 2) for stage, share in shares.items()}


def slowest(shares: Mapping[str, float]) -> tuple[str, float]:
    """Return the stage that takes most of the time, and its share."""
    stage = max(shares, key=lambda name: shares[name], default="encode")
    return stage, shares.get(stage, 0.0)
