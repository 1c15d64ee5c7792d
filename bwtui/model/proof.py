"""Tables whose topic is not proven to equal them."""

from dataclasses import dataclass
from typing import Any

from bwtui.model.from_json import from_json_object
from bwtui.model.lsn import format_lsn, parse_lsn


@dataclass(frozen=True, slots=True)
class UnprovenTable:
    """A table that something happened to while no check could follow it.

    Its topic may lack rows, or keep rows that the table no longer has. Only a clean comparison ends this
    state.
    """

    table: str
    #: From this LSN on the topic may differ from the table.
    since_lsn: int
    #: One sentence without a full stop: what changed, and what may be missing or left over.
    reason: str
    #: What proves the table again: a command, or "" while the relay compares on its own.
    command: str = ""
    #: What a person has to do before the command helps.
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the object of ``status --json``."""
        return {
            "table": self.table,
            "since_lsn": format_lsn(self.since_lsn),
            "reason": self.reason,
            "command": self.command,
            "advice": self.advice,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "UnprovenTable":
        """Rebuild it from `to_json`; keys that this version does not know are ignored."""
        entry: UnprovenTable = from_json_object(cls, {**data, "since_lsn": parse_lsn(data["since_lsn"])})
        return entry
