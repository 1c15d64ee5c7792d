"""The stream's position in Kafka, which a relay with --exactly-once writes within each Kafka transaction.

It is a record of the position topic: the key names the slot, the value is a JSON object. From it a reader
knows whether the record's Kafka transaction ends within a PostgreSQL transaction (``open``).
"""

import json
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from bwtui.model.lsn import format_lsn, parse_lsn

Phase = Literal["snapshot", "stream"]
#: Progress of backfill requests, by id (see `bwtui.relay.exactly_once.position_store`).
Chunks = dict[str, dict[str, Any]]


class RecordedPosition(NamedTuple):
    """What of a recording is in Kafka: everything that one of its passes has before a position."""

    #: The run's id, in hexadecimal.
    session: str
    pass_number: int
    position: int


_RECORDED = ("session", "pass", "position")


@dataclass(frozen=True, slots=True)
class Position:
    """Exactly what is in Kafka for one slot."""

    system: str
    database: str
    slot: str
    timeline: int = 0
    #: Commit LSN of the newest transaction with rows in Kafka; all that commit before it are there
    #: completely.
    lsn: int = 0
    #: Its last row change in Kafka; None if all are.
    ordinal: int | None = None
    #: Number of Kafka transactions that contain it so far; 0 if it is not split.
    part: int = 0
    #: Everything that commits before this LSN is in Kafka.
    passed: int = 0
    #: "snapshot" if a snapshot at ``passed`` has begun and is not in Kafka.
    phase: Phase = "stream"
    #: The tables that the relay excludes, on which the ordinals depend.
    tables: str = ""
    #: The id of the run that wrote it, in hexadecimal.
    session: str = ""
    chunks: Chunks = field(default_factory=dict)
    #: With --transaction-topic and a split transaction: its messages so far, by table.
    events: dict[str, int] = field(default_factory=dict)
    #: The timelines before ``timeline``, each with the LSN of the fork; empty if none or unknown.
    forks: tuple[tuple[int, int], ...] = ()
    #: Number of row changes of the newest transaction, once all are in Kafka; None from an older relay.
    changes: int | None = None
    #: State of the recording, if the session that wrote it was recorded.
    recorded: RecordedPosition | None = None

    @property
    def key(self) -> bytes:
        """The record's key."""
        return f"{self.system}/{self.database}/{self.slot}".encode()

    def to_json(self) -> bytes:
        """Return the record's value."""
        data: dict[str, Any] = {
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
        return json.dumps(data | {name: value for name, value in more.items() if value}).encode()

    @classmethod
    def from_json(cls, value: bytes) -> "Position":
        """Rebuild a position. Raises ValueError when ``value`` is not one."""
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
                RecordedPosition(str(recorded["session"]), int(recorded["pass"]), int(recorded["position"]))
                if recorded
                else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError("no position") from error
