"""How far the stream stands in Kafka, as a relay with --exactly-once writes it within each transaction.

A record of the positions' topic: the key names the slot, the value is a JSON object. A reader finds in it
whether the Kafka transaction that it belongs to ends within a transaction of PostgreSQL (``open``).
"""

import json
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from bwtui.model.lsn import format_lsn, parse_lsn

Phase = Literal["snapshot", "stream"]
#: How far requests to put rows into the stream are, by their id: see `bwtui.relay.exactly.chunks`.
Chunks = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Position:
    """What of one slot is in Kafka, wholly: no more, and no less."""

    system: str
    database: str
    slot: str
    timeline: int = 0
    #: Where the newest transaction commits of which rows are in; those that commit before it are in.
    lsn: int = 0
    #: The last of its row changes that is in; None: all of them are.
    ordinal: int | None = None
    #: How many Kafka transactions hold it so far; 0: it is not split.
    part: int = 0
    #: Everything that commits before this LSN is in.
    passed: int = 0
    #: "snapshot": a snapshot at ``passed`` was begun, and is not in.
    phase: Phase = "stream"
    #: What the ordinals rest on: which tables the relay leaves out.
    tables: str = ""
    #: The run that wrote it, in hexadecimal.
    session: str = ""
    chunks: Chunks = field(default_factory=dict)

    @property
    def key(self) -> bytes:
        """The record's key."""
        return f"{self.system}/{self.database}/{self.slot}".encode()

    def limited(self, end: int) -> "Position":
        """Return it as of a history that parts at ``end``: what commits there or later is not in."""
        return replace(self, lsn=end - 1, ordinal=None, part=0) if self.lsn >= end else self

    def to_json(self) -> bytes:
        """Return the record's value."""
        said: dict[str, Any] = {
            "system_identifier": self.system,
            "database": self.database,
            "slot": self.slot,
            "timeline": self.timeline,
            "lsn": format_lsn(self.lsn),
            "ordinal": self.ordinal,
            "part": self.part,
            "open": self.ordinal is not None,
            "passed": format_lsn(self.passed),
            "phase": self.phase,
            "tables": self.tables,
            "session": self.session,
        }
        return json.dumps(said | ({"chunks": self.chunks} if self.chunks else {})).encode()

    @classmethod
    def from_json(cls, value: bytes) -> "Position":
        """Rebuild a position. Raises ValueError for what is none."""
        try:
            data = json.loads(value)
            ordinal = data["ordinal"]
            return cls(
                str(data["system_identifier"]),
                str(data["database"]),
                str(data["slot"]),
                int(data["timeline"]),
                parse_lsn(data["lsn"]),
                None if ordinal is None else int(ordinal),
                int(data["part"]),
                parse_lsn(data["passed"]),
                "snapshot" if data["phase"] == "snapshot" else "stream",
                str(data["tables"]),
                str(data["session"]),
                dict(data.get("chunks", {})),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError("no position") from error
