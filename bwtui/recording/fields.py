"""A recorded change field by field, for display."""

from collections.abc import Sequence

from bwtui.model.status import FieldChange
from bwtui.pgoutput.messages import UNCHANGED, Field, UnchangedToast
from bwtui.recording.change import Change

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
