"""Rows of a table that are put into the stream beside its changes: what is asked for, and how far it is."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bwtui.model.from_json import made_of

#: Who asked: a person, a table that has joined the publications, a repair of what an audit found, a slot
#: that was lost, the first snapshot of a slot, or a person on dead letters.
BackfillReason = Literal["snapshot", "joined", "repair", "heal", "first", "retry"]
BackfillState = Literal["waiting", "running", "paused", "done", "failed", "cancelled"]
#: What may be asked of one that is not over.
BackfillCommand = Literal["pause", "resume", "cancel"]
#: The table of a request whose file is damaged.
UNKNOWN = "?"
#: Requests whose rows a topic lacks unless they are sent.
_REQUIRED: dict[BackfillReason, str] = {
    "first": "rows of the first snapshot",
    "joined": "the rows that the table had when it joined",
    "repair": "rows that an audit found missing or different",
}


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """Which rows of one table to put into the stream: all, those that ``where`` chooses, or those of keys.

    ``table`` is its qualified name, unquoted, as `bwtui.model.status.Status.tables` has it. ``where`` is an
    SQL expression over its columns. ``keys`` is the path of a file with one key a line, see
    `bwtui.relay.backfill.keys`: of each the row as it is is sent, or a tombstone where there is none.
    ``unkeyed``: a table without a key may be sent, which doubles its rows in the topic. ``topic`` and
    ``spelling``: of a list, where its keys were compared, and how they are written there: "json", or the id
    of their schema; "" where nobody knows. Nothing is sent to another topic, or in other bytes.
    ``key_columns``: the columns that the keys of a list are of, in the table's order, where they were written
    down long ago; nothing is sent once the table has another key.
    """

    table: str
    where: str = ""
    keys: str = ""
    reason: BackfillReason = "snapshot"
    unkeyed: bool = False
    topic: str = ""
    spelling: str = ""
    key_columns: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "BackfillRequest":
        """Rebuild it from ``dataclasses.asdict``; what this version does not know is left out."""
        made: BackfillRequest = made_of(cls, data)
        return made


@dataclass(frozen=True, slots=True)
class BackfillStatus:
    """How far one request is; immutable, for screens and ``--json``. Times are Unix seconds."""

    #: Short, and unique in one relay.
    id: str
    table: str
    reason: BackfillReason = "snapshot"
    where: str = ""
    state: BackfillState = "waiting"
    #: What is waited for, or what is under way, in a few words.
    detail: str = ""
    #: Rows that Kafka has acknowledged, tombstones not counted.
    rows: int = 0
    tombstones: int = 0
    #: Rows and tombstones that were left out, since the stream has sent a newer state of their keys.
    left_out: int = 0
    #: Rows and tombstones that Kafka or their encoder refused; each is a dead letter.
    dropped: int = 0
    #: Rows (or keys) to be looked at, as far as it is known; PostgreSQL's estimate of a whole table.
    estimate: int | None = None
    #: Chunks that Kafka has acknowledged, and which are not sent again after a restart.
    chunks: int = 0
    #: Chunks that were read again, since the table was altered or truncated meanwhile, or the session broke.
    again: int = 0
    requested: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    #: Why it has failed, and what helps.
    error: str = ""
    hint: str = ""
    #: Whether it failed since the relay has no such table any more: then no rows are missing.
    is_gone: bool = False
    #: Whether the coverage ledger records that the topic lacks its rows.
    is_noted: bool = False
    #: Rows a second, over the last seconds.
    rows_per_second: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in ("done", "failed", "cancelled")

    @property
    def lacks(self) -> str:
        """What the topic lacks since the request ended, and why; "" if it lacks nothing."""
        rows = _REQUIRED.get(self.reason, "rows of a request" if self.table == UNKNOWN else "")
        if self.state not in ("failed", "cancelled") or self.is_gone or not rows:
            return ""
        return f"{rows}: {self.error or f'request {self.id} was cancelled'}"

    def is_made_good(self, requests: Iterable["BackfillStatus"]) -> bool:
        """Return whether one of ``requests`` has sent its rows since."""
        return any(
            one.table == self.table
            and one.state == "done"
            and not one.where
            and one.reason in (self.reason, "snapshot", "joined")
            and one.started >= self.ended
            for one in requests
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "BackfillStatus":
        """Rebuild it from ``dataclasses.asdict``; what this version does not know is left out."""
        made: BackfillStatus = made_of(cls, data)
        return made


@dataclass(frozen=True, slots=True)
class FirstSnapshot:
    """A first snapshot that is taken chunk by chunk beside the stream, as long as it is not through."""

    tables: int
    #: Tables of which all is sent, or of which nothing is left to send.
    done: int = 0

    @property
    def sentence(self) -> str:
        """How far it is, in one sentence."""
        are = "is" if self.done == 1 else "are"
        return f"the first snapshot is not through: {self.done} of {self.tables} tables {are}"

    @property
    def left(self) -> str:
        """What a relay that has ended leaves."""
        return f"{self.sentence}; the next start goes on with it"

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "FirstSnapshot":
        """Rebuild it from ``dataclasses.asdict``; what this version does not know is left out."""
        made: FirstSnapshot = made_of(cls, data)
        return made


def whole_tables(status: Mapping[str, Any], since: float, reasons: Collection[str]) -> set[str]:
    """Return tables whose rows were all put in, for one of these reasons, by requests begun after ``since``.

    ``status`` is that of a relay as a recording has it; ``since`` in Unix seconds.
    """
    requests = (BackfillStatus.from_json(data) for data in status.get("backfills", ()))
    return {
        one.table
        for one in requests
        if one.state == "done" and not one.where and one.reason in reasons and one.started >= since
    }


def to_json(status: BackfillStatus) -> dict[str, Any]:
    """Return the JSON object of ``status --json`` and ``snapshot --json``."""
    return dataclasses.asdict(status)
