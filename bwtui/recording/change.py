"""A recorded change: what PostgreSQL said, what the relay made of it, and what became of that."""

from dataclasses import dataclass
from typing import Literal

from bwtui.model.lsn import format_lsn
from bwtui.pgoutput.messages import Field, Relation

#: snapshot: a row of one. backfill: a row of a table that was put into the stream. cleanup: a tombstone for a
#: key of which the table has no row, behind an unfinished snapshot or put into the stream.
Operation = Literal["snapshot", "insert", "update", "delete", "truncate", "cleanup", "backfill"]
#: The op of a sealed recording's row that is the tombstone of a changed key; the change itself is an update.
KEY_CHANGE = "key_change"
#: Operations of the stream's transactions: ``(lsn, ordinal)`` identifies their changes.
OF_TRANSACTIONS: frozenset[Operation] = frozenset(("insert", "update", "delete", "truncate"))
#: acknowledged: Kafka said where it is. refused: Kafka refused it, and the row was dropped by --on-error log.
#: unknown: no word came before the relay ended; it may be in the topic. unsent: recorded without Kafka.
DeliveryState = Literal["acknowledged", "refused", "unknown", "unsent"]


#: The counter of its table that each operation adds one to.
COUNTERS: dict[Operation, str] = {
    "snapshot": "snapshot_rows",
    "insert": "inserts",
    "update": "updates",
    "delete": "deletes",
    "truncate": "truncates",
    "cleanup": "cleanups",
    "backfill": "backfill_rows",
}


@dataclass(frozen=True, slots=True)
class SentMessage:
    """One message of a change; a ``value`` of None is a tombstone, a ``key`` of None an unkeyed table's."""

    #: Its number among the messages of its change: an update of the key sends a tombstone, then the row.
    part: int
    topic: str
    key: bytes | None
    value: bytes | None
    key_schema_id: int | None
    value_schema_id: int | None
    state: DeliveryState
    partition: int | None = None
    offset: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    #: When the relay noted that all of its batch was acknowledged, in Unix microseconds; None unless it was.
    noted: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one row, or one TRUNCATE of one or more tables.

    ``(lsn, ordinal)`` identifies a change of a transaction; a row of a snapshot is identified by its
    consistent point, its table and its key. What was put into the stream may have the LSN of the transaction
    that follows it.
    """

    #: Its number among the changes of the recording, from 0.
    position: int
    #: The snapshot, or the stretch of streaming, that it came with; each begins anew from the confirmed LSN.
    pass_number: int
    #: Where the transaction commits; in a snapshot, its consistent point; of what was put into the stream,
    #: where that stood: what commits before was sent before.
    lsn: int
    #: Among the row changes of its transaction, from 1; of other rows, among those of its table.
    ordinal: int
    xid: int
    #: Microseconds since the Unix epoch: the commit's, and when the relay recorded it.
    commit_time: int
    received: int
    operation: Operation
    relation: Relation
    #: Every table that a TRUNCATE names; otherwise the one.
    tables: tuple[str, ...]
    key_columns: tuple[str, ...]
    #: The old row as far as PostgreSQL sent it: all of it under REPLICA IDENTITY FULL, the key, or nothing.
    before: tuple[Field, ...] | None
    before_is_key: bool
    #: The new row; unchanged TOAST values that the relay put in stand in it, those it did not are UNCHANGED.
    after: tuple[Field, ...] | None
    #: Columns of ``after`` that PostgreSQL did not send, and the relay put in.
    filled: tuple[str, ...]
    messages: tuple[SentMessage, ...]
    #: Why there is no message: dropped, superseded, unkeyed, truncated; or None.
    without: str | None
    #: Whether an earlier pass has recorded the same change already.
    is_repeat: bool
    #: Of a TRUNCATE the same tables: ``tables`` can't tell a dot in a schema's name from the one after it.
    truncated: tuple[Relation, ...] = ()

    @property
    def table(self) -> str:
        """``schema.table``."""
        return self.relation.qualified_name

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has made it: neither a row of a table as it was, nor a tombstone beside."""
        return self.operation in OF_TRANSACTIONS

    @property
    def lsn_text(self) -> str:
        """The commit LSN as PostgreSQL writes it."""
        return format_lsn(self.lsn)

    @property
    def message_bytes(self) -> int:
        """How many bytes the keys and values of its messages have."""
        return sum(len(message.key or b"") + len(message.value or b"") for message in self.messages)

    @property
    def key(self) -> tuple[Field, ...]:
        """The key's values: of the new row, or of the old one where there is no new one."""
        row = self.after if self.after is not None else self.before
        if row is None:
            return ()
        names = [column.name for column in self.relation.columns]
        return tuple(row[names.index(name)] for name in self.key_columns if name in names)
