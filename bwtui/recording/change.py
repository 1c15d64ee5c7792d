"""A recorded change: the rows from PostgreSQL, the messages made of them, and their delivery reports."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bwtui.model.lsn import format_lsn
from bwtui.model.status import FieldChange
from bwtui.pgoutput.messages import UNCHANGED, Field, Relation, UnchangedToast

#: snapshot: a row of a snapshot. backfill: a backfilled row. cleanup: a tombstone for a key without a row in
#: the table, sent after an unfinished snapshot or as part of a backfill.
Operation = Literal["snapshot", "insert", "update", "delete", "truncate", "cleanup", "backfill"]
#: The op of a sealed recording's row for the tombstone of a changed key. The change itself is an update.
KEY_CHANGE = "key_change"
#: Operations that occur in the stream's transactions: ``(lsn, ordinal)`` identifies their changes.
OF_TRANSACTIONS: frozenset[Operation] = frozenset(("insert", "update", "delete", "truncate"))
#: acknowledged: Kafka reported the message's offset. refused: Kafka rejected it, and --on-error log dropped
#: the row. unknown: the relay ended before a delivery report; the message may be in the topic. unsent:
#: recorded without Kafka.
DeliveryState = Literal["acknowledged", "refused", "unknown", "unsent"]


#: The table counter that each operation increments.
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
    """One message of a change; ``value`` is None for a tombstone, ``key`` for a table without a key."""

    #: Number of the message within its change: an update of the key sends a tombstone, then the row.
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
    #: When the relay recorded that its whole batch was acknowledged, in Unix microseconds; otherwise None.
    noted: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one row, or one TRUNCATE of one or more tables.

    ``(lsn, ordinal)`` identifies a change of a transaction. A snapshot row is identified by its consistent
    point, its table and its key. Backfilled rows may have the LSN of the transaction that follows them.
    """

    #: Number of the change within the recording, from 0.
    position: int
    #: The pass (a snapshot or one run of the stream) that sent it. Each pass starts at the confirmed LSN.
    pass_number: int
    #: The LSN at which the transaction commits, or the snapshot's consistent point. For backfilled rows,
    #: their position in the stream: all earlier commits were sent before them.
    lsn: int
    #: Number among the row changes of its transaction, from 1; for other rows, among those of their table.
    ordinal: int
    xid: int
    #: Microseconds since the Unix epoch: when the transaction committed, and when the relay recorded the
    #: change.
    commit_time: int
    received: int
    operation: Operation
    relation: Relation
    #: All tables that a TRUNCATE names; otherwise the one table.
    tables: tuple[str, ...]
    key_columns: tuple[str, ...]
    #: The old row as PostgreSQL sent it: complete under REPLICA IDENTITY FULL, only the key, or None.
    before: tuple[Field, ...] | None
    before_is_key: bool
    #: The new row, with the unchanged TOAST values that the relay filled in; the others are UNCHANGED.
    after: tuple[Field, ...] | None
    #: Columns of ``after`` that PostgreSQL did not send and the relay filled in.
    filled: tuple[str, ...]
    messages: tuple[SentMessage, ...]
    #: Why there is no message (dropped, superseded, unkeyed, truncated), or None.
    without: str | None
    #: True if an earlier pass recorded the same change.
    is_repeat: bool
    #: The relations that a TRUNCATE names. ``tables`` is ambiguous if a schema's name contains a dot.
    truncated: tuple[Relation, ...] = ()

    @property
    def table(self) -> str:
        """``schema.table``."""
        return self.relation.qualified_name

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction made the change, rather than a snapshot or a backfill."""
        return self.operation in OF_TRANSACTIONS

    @property
    def lsn_text(self) -> str:
        """The commit LSN in PostgreSQL's notation."""
        return format_lsn(self.lsn)

    @property
    def message_bytes(self) -> int:
        """Total size of the keys and values of its messages in bytes."""
        return sum(len(message.key or b"") + len(message.value or b"") for message in self.messages)

    @property
    def key(self) -> tuple[Field, ...]:
        """The key's values, from the new row if there is one, otherwise from the old row."""
        row = self.after if self.after is not None else self.before
        if row is None:
            return ()
        names = [column.name for column in self.relation.columns]
        return tuple(row[names.index(name)] for name in self.key_columns if name in names)


# A recorded change field by field, for display.

#: Maximum length of a displayed value in bytes.
LIMIT = 4_096
_NOT_SENT = "(unchanged TOAST value, not sent)"


def as_text(value: Field) -> str | None:
    """Return a field's text for display; None is NULL."""
    if value is None:
        return None
    if isinstance(value, UnchangedToast):
        return _NOT_SENT
    if len(value) > LIMIT:
        return value[:LIMIT].decode("utf-8", "replace") + f"… ({len(value):,} bytes)"
    return value.decode("utf-8", "replace")


def key_text(change: Change) -> str:
    """Return the key as ``id=7``, or an empty string for a table without a key."""
    pairs = zip(change.key_columns, change.key, strict=False)
    return ", ".join(f"{name}={_short(value)}" for name, value in pairs)


def old_key(change: Change) -> tuple[Field, ...] | None:
    """Return the old key of an update that changed the key; None if it did not, or the old key is unknown."""
    if change.operation != "update" or change.before is None or change.after is None:
        return None
    places = [i for i, column in enumerate(change.relation.columns) if column.name in change.key_columns]
    before, after = ([row[i] for i in places] for row in (change.before, change.after))
    # An unchanged TOAST value in a key means the same key.
    if all(a == b or b is UNCHANGED for a, b in zip(before, after, strict=True)):
        return None
    by_name = {change.relation.columns[i].name: change.before[i] for i in places}
    return tuple(by_name[name] for name in change.key_columns if name in by_name)


def old_row(change: Change) -> tuple[Field, ...] | None:
    """Return the old row if PostgreSQL sent all of it."""
    return None if change.before_is_key else change.before


def differences(change: Change, before: Sequence[Field] | None = None) -> tuple[FieldChange, ...]:
    """Return every column of a change with its mark.

    ``before`` is the old row as reconstructed from the recording, in the order of the change's columns; the
    default is the old row that PostgreSQL sent.
    """
    row = before if before is not None else old_row(change)
    fields = []
    for index, column in enumerate(change.relation.columns):
        sent_key = change.before_is_key and column.name in _identity(change)
        old = row[index] if row is not None else change.before[index] if sent_key and change.before else None
        is_known = row is not None or (sent_key and change.before is not None)
        if change.after is None:
            if is_known:
                fields.append(FieldChange(column.name, as_text(old), None, "gone"))
            continue
        new = change.after[index]
        mark = mark_of(change.operation, is_known, old, new)
        fields.append(FieldChange(column.name, as_text(old) if is_known else None, as_text(new), mark))
    return tuple(fields)


def mark_of(operation: str, is_known: bool, old: Field, new: Field) -> str:
    """Return the mark of a column of the new row; ``is_known`` says whether ``old`` was sent."""
    if isinstance(new, UnchangedToast):
        return "unchanged TOAST"
    if operation != "update":
        return "new"
    if not is_known or isinstance(old, UnchangedToast):
        return "unknown before"
    return "same" if old == new else "changed"


def _identity(change: Change) -> set[str]:
    flagged = {column.name for column in change.relation.columns if column.is_key}
    return flagged or set(change.key_columns)


def _short(value: Field) -> str:
    text = as_text(value)
    if text is None:
        return "NULL"
    return text if len(text) <= 80 else text[:79] + "…"
