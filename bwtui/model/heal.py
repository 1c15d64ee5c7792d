"""A slot that was lost and made anew: what is known of the comparison that makes the loss good."""

from dataclasses import dataclass
from typing import Any, Literal

from bwtui.model.from_json import made_of

#: The slot is being made; topics are compared with tables, and what differs is sent; it is tried again later;
#: the comparison can't be trusted, so that somebody has to decide.
HealState = Literal["slot", "comparing", "waiting", "undecided"]


@dataclass(frozen=True, slots=True)
class HealStatus:
    """A heal that is due: topics may differ from tables until a comparison is clean."""

    since: float
    #: How the slot was lost.
    reason: str
    state: HealState = "slot"
    #: Where the new slot begins; "" while there is none. It tells one heal from the next.
    lsn: str = ""
    #: What is under way, or why it is not done yet; and what helps.
    detail: str = ""
    hint: str = ""
    #: Comparisons that ended without being clean.
    tries: int = 0

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "HealStatus":
        """Rebuild it from ``dataclasses.asdict``; what this version does not know is left out."""
        made: HealStatus = made_of(cls, data)
        return made
