"""Queries for `bwtui replay` that select the messages of a key in a recording."""

from collections.abc import Iterable

from bwtui.model.sql import quote_identifier
from bwtui.recording.query.rows import as_text
from bwtui.recording.reading.explain import HistoryStep, RowKey


def query_of(key: RowKey, position: int | None = None) -> str | None:
    """Return a query for the messages of a key, or of one change; None if no query can find the key.

    That is the case if the key has an unchanged TOAST value, because its text is unknown.
    """
    parts = [f"table = {_quoted(key.table)}"]
    for name, value in zip(key.columns, key.values, strict=True):
        text = as_text(value)
        if not isinstance(text, str):
            return None
        parts.append(f"key.{quote_identifier(name)} = {_quoted(text)}")
    if position is not None:
        parts.append(f"position = {position}")
    return " and ".join(parts)


def newest_of(steps: Iterable[HistoryStep]) -> HistoryStep | None:
    """Return the newest change of a key with a message that Kafka did not refuse; repeats do not count."""
    sent = [step for step in steps if step.topic and step.state != "refused" and not step.is_repeat]
    return sent[-1] if sent else None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
