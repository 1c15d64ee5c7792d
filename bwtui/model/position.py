"""How far the stream stands in Kafka, as a relay with --exactly-once writes it within each transaction.

A record of the positions' topic: the key names the slot, the value is a JSON object. A reader finds in it
whether the Kafka transaction that it belongs to ends within a transaction of PostgreSQL (``open``).
"""

import json
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from bwtui.model.lsn import format_lsn, parse_lsn

Phase = Literal["snapshot", "stream"]
#: How far requests to put rows into the stream are, by their id: see `bwtui.relay.exactly.chunks`.
Chunks = dict[str, dict[str, Any]]


class Recorded(NamedTuple):
    """Up to where a recording is in Kafka: all that one of its passes has before one of its positions."""

    #: The run, in hexadecimal.
    session: str
    pass_number: int
    position: int


_RECORDED = ("session", "pass", "position")


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
    #: With --transaction-topic, of a transaction that is split: its messages so far, by table.
    events: dict[str, int] = field(default_factory=dict)
    #: The timelines before ``timeline``, each with the LSN at which it was left; empty: none, or not known.
    forks: tuple[tuple[int, int], ...] = ()
    #: Where all row changes of the newest transaction are in, how many it has; None: an older relay wrote it.
    changes: int | None = None
    #: Of the session of the stream that wrote it, if that was recorded.
    recorded: Recorded | None = None

    @property
    def key(self) -> bytes:
        """The record's key."""
        return f"{self.system}/{self.database}/{self.slot}".encode()

    def to_json(self) -> bytes:
        """Return the record's value."""
        said: dict[str, Any] = {
            "system_identifier": self.system,
            "database": self.database,
            "slot": self.slot,
            "timeline": self.timeline,
            "forks": [(timeline, format_lsn(lsn)) for timeline, lsn in self.forks],
            "lsn": format_lsn(self.lsn),
            "ordinal": self.ordinal,
            "changes": self.changes,
            "part": self.part,
            "open": self.ordinal is not None,
            "passed": format_lsn(self.passed),
            "phase": self.phase,
            "tables": self.tables,
            "session": self.session,
        }
        recorded = dict(zip(_RECORDED, self.recorded or (), strict=False))
        more = {"chunks": self.chunks, "events": self.events, "recorded": recorded}
        return json.dumps(said | {name: value for name, value in more.items() if value}).encode()

    @classmethod
    def from_json(cls, value: bytes) -> "Position":
        """Rebuild a position. Raises ValueError for what is none."""
        try:
            data = json.loads(value)
            ordinal, changes, recorded = data["ordinal"], data.get("changes"), data.get("recorded")
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
                {str(table): int(count) for table, count in data.get("events", {}).items()},
                tuple((int(timeline), parse_lsn(lsn)) for timeline, lsn in data.get("forks", ())),
                None if changes is None else int(changes),
                Recorded(str(recorded["session"]), int(recorded["pass"]), int(recorded["position"]))
                if recorded
                else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError("no position") from error
