"""The status of a heal: the comparison of topics and tables after a slot was recreated."""

from dataclasses import dataclass
from typing import Any, Literal

from bwtui.model.from_json import from_json_object

#: The slot is being created; topics and tables are compared and differences sent; a retry is due later; the
#: comparison can't be trusted, so the user must decide.
HealState = Literal["slot", "comparing", "waiting", "undecided"]


@dataclass(frozen=True, slots=True)
class HealStatus:
    """A heal in progress: topics may differ from tables until a comparison is clean."""

    since: float
    #: Why the slot had to be recreated.
    reason: str
    state: HealState = "slot"
    #: Start of the new slot; "" before it exists. It identifies the heal.
    lsn: str = ""
    #: Its current work, or why it is not done yet; and what to do.
    detail: str = ""
    hint: str = ""
    #: Number of comparisons that were not clean.
    tries: int = 0

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "HealStatus":
        """Rebuild it from ``dataclasses.asdict``, ignoring keys that this version does not know."""
        status: HealStatus = from_json_object(cls, data)
        return status
