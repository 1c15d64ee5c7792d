"""Backfills: rows of a table that are sent within the stream. Their requests and their progress."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bwtui.model.from_json import from_json_object

#: Origin of a request: a user, a table that joined the publications, a repair after an audit, an invalidated
#: or missing slot, the first snapshot of a slot, or a user's retry of dead letters.
BackfillReason = Literal["snapshot", "joined", "repair", "heal", "first", "retry"]
BackfillState = Literal["waiting", "running", "paused", "done", "failed", "cancelled"]
#: Commands for a request that is not over.
BackfillCommand = Literal["pause", "resume", "cancel"]
#: The table name of a request whose file is damaged.
UNKNOWN = "?"
#: Requests without which a topic lacks rows.
_REQUIRED: dict[BackfillReason, str] = {
    "first": "rows of the first snapshot",
    "joined": "the rows that the table had when it was added",
    "repair": "rows that an audit found missing or different",
}


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """The rows of one table to backfill: all, those that match ``where``, or those of ``keys``.

    ``table`` is its qualified name, unquoted, as in `bwtui.model.status.Status.tables`. ``where`` is an SQL
    expression over its columns. ``keys`` is the path of a file with one key per line, see
    `bwtui.relay.history.backfill_store`: the current row of each key is sent, or a tombstone if it is gone.
    ``unkeyed`` permits a table without a key, whose rows are then doubled in the topic. ``topic`` and
    ``spelling`` belong to a list of keys: the topic in which they were compared, and their encoding there:
    "json", or the id of their schema; "" if unknown. Nothing is sent to a different topic, or in a different
    encoding. ``key_columns`` are the key columns of a list, in the table's order, if the list was written
    long ago; nothing is sent once the table has a different key.
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
        """Rebuild it from ``dataclasses.asdict``, ignoring keys that this version does not know."""
        request: BackfillRequest = from_json_object(cls, data)
        return request


@dataclass(frozen=True, slots=True)
class BackfillStatus:
    """The progress of one request; immutable, for screens and ``--json``. Times are Unix seconds."""

    #: Short, and unique within a relay.
    id: str
    table: str
    reason: BackfillReason = "snapshot"
    where: str = ""
    state: BackfillState = "waiting"
    #: A short text on what it is waiting for or doing.
    detail: str = ""
    #: Number of rows that Kafka has acknowledged, without tombstones.
    rows: int = 0
    tombstones: int = 0
    #: Number of rows and tombstones skipped because the stream has sent a newer state of their keys.
    left_out: int = 0
    #: Number of rows and tombstones that Kafka or their encoder rejected; each is a dead letter.
    dropped: int = 0
    #: Number of rows (or keys) to read, if known; for a whole table, PostgreSQL's estimate.
    estimate: int | None = None
    #: Number of chunks that Kafka has acknowledged; they are not sent again after a restart.
    chunks: int = 0
    #: Number of chunks read again because the table was altered or truncated, or the session ended.
    again: int = 0
    requested: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    #: Why it failed, and what to do.
    error: str = ""
    hint: str = ""
    #: True if it failed because the relay no longer has the table: then no rows are missing.
    is_gone: bool = False
    #: True if the coverage ledger records that the topic lacks its rows.
    is_noted: bool = False
    #: Rows per second, over the last seconds.
    rows_per_second: float = 0.0

    @property
    def is_over(self) -> bool:
        """Return whether the request has ended."""
        return self.state in ("done", "failed", "cancelled")

    @property
    def lacks(self) -> str:
        """The rows that the topic lacks because the request ended early, and why; "" if there are none."""
        rows = _REQUIRED.get(self.reason, "rows of a request" if self.table == UNKNOWN else "")
        if self.state not in ("failed", "cancelled") or self.is_gone or not rows:
            return ""
        return f"{rows}: {self.error or f'request {self.id} was cancelled'}"

    def is_superseded(self, requests: Iterable["BackfillStatus"]) -> bool:
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
        """Rebuild it from ``dataclasses.asdict``, ignoring keys that this version does not know."""
        request: BackfillStatus = from_json_object(cls, data)
        return request


@dataclass(frozen=True, slots=True)
class FirstSnapshot:
    """An unfinished first snapshot that is sent in chunks within the stream."""

    tables: int
    #: Number of tables of which nothing is left to send.
    done: int = 0

    @property
    def sentence(self) -> str:
        """Its progress in one sentence."""
        are = "is" if self.done == 1 else "are"
        return f"the first snapshot is incomplete: {self.done} of {self.tables} tables {are} done"

    @property
    def remaining_work(self) -> str:
        """The work that a relay leaves for its next start."""
        return f"{self.sentence}; the next start resumes it"

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "FirstSnapshot":
        """Rebuild it from ``dataclasses.asdict``, ignoring keys that this version does not know."""
        request: FirstSnapshot = from_json_object(cls, data)
        return request


def whole_tables(status: Mapping[str, Any], since: float, reasons: Collection[str]) -> set[str]:
    """Return the tables that requests begun after ``since`` (Unix seconds) have sent completely.

    Only requests with one of ``reasons`` count. ``status`` is the status of a relay in a recording.
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
