"""The rows that a query is evaluated for: one per message of a change, as in a sealed recording.

A change without a message is one row. A TRUNCATE is one row per table.
"""

from collections.abc import Iterator
from dataclasses import replace

from bwtui.pgoutput.messages import UNCHANGED, Field, Relation, UnchangedToast
from bwtui.recording.change import Change, SentMessage


class UnknownValue:
    """The value of a column that the table lacks, or that PostgreSQL did not send: it is unknown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOT_THERE"


NOT_THERE = UnknownValue()
#: The text of a value; None is null.
ColumnText = str | UnchangedToast | UnknownValue | None


def rows(change: Change) -> Iterator[tuple[Change, SentMessage | None]]:
    """Yield a pair for each row; the rows of a TRUNCATE have changes with one table each."""
    if len(change.tables) > 1:
        yield from _truncated(change)
    elif change.messages:
        for message in change.messages:
            yield change, message
    else:
        yield change, None


def _truncated(change: Change) -> Iterator[tuple[Change, SentMessage | None]]:
    # The key of a TRUNCATE's message is the table's name.
    remaining = list(change.messages)
    for table in change.truncated:
        named = table.qualified_name.encode()
        message = next((message for message in remaining if message.key == named), None)
        if message is not None:
            remaining.remove(message)
        yield _of_table(change, table), message
    for message in remaining:
        yield change, message


def _of_table(change: Change, table: Relation) -> Change:
    if table == change.relation:
        return change
    # A TRUNCATE does not describe the table's columns.
    alone = Relation(0, table.namespace, table.name, "n", ())
    return replace(change, relation=alone, tables=(table.qualified_name,), truncated=())


def as_text(value: Field) -> str | UnchangedToast | None:
    """Return a value as text; bytes that are not UTF-8 become ``\\x`` and hexadecimal digits."""
    if value is None or isinstance(value, UnchangedToast):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"\\x{value.hex()}"


def sent_value(change: Change, index: int, *, old: bool) -> Field | UnknownValue:
    """Return the value of the column at ``index``, if PostgreSQL sent it."""
    row = change.before if old else change.after
    if row is None:
        return NOT_THERE
    value = row[index]
    if value is None and old and change.before_is_key and not change.relation.columns[index].is_key:
        return NOT_THERE
    return value


def key_is_old(change: Change, message: SentMessage | None) -> bool:
    """Return whether the key is the old row's, as for a delete or for the tombstone of a changed key."""
    if change.after is None:
        return True
    is_tombstone = message is not None and message.value is None
    return is_tombstone and change.before is not None


def row_texts(change: Change, *, old: bool) -> dict[str, str | None] | None:
    """Return the known texts of a row by column, without unchanged values; None if there is no such row."""
    if (change.before if old else change.after) is None:
        return None
    texts: dict[str, str | None] = {}
    for index, column in enumerate(change.relation.columns):
        value = sent_value(change, index, old=old)
        if not isinstance(value, UnknownValue | UnchangedToast):
            text = as_text(value)
            assert not isinstance(text, UnchangedToast)
            texts[column.name] = text
    return texts


def key_texts(change: Change, message: SentMessage | None) -> dict[str, str] | None:
    """Return the texts of the message's key by column; None if the key is unknown."""
    old = key_is_old(change, message)
    if (change.before if old else change.after) is None or not change.key_columns:
        return None
    places = {column.name: index for index, column in enumerate(change.relation.columns)}
    texts = {}
    for name in change.key_columns:
        value = sent_value(change, places[name], old=old) if name in places else NOT_THERE
        text = None if isinstance(value, UnknownValue) else as_text(value)
        if not isinstance(text, str):
            return None
        texts[name] = text
    return texts


def unchanged_columns(change: Change) -> list[str]:
    """Return the columns of the new row whose unchanged TOAST values PostgreSQL did not send."""
    if change.after is None:
        return []
    columns = change.relation.columns
    return [columns[index].name for index, value in enumerate(change.after) if value is UNCHANGED]
