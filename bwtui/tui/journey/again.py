"""Sending a key again: which messages of a recording that are, as a query of `bwtui replay`."""

from collections.abc import Iterable

from bwtui.model.sql import quote_identifier
from bwtui.recording.query.rows import as_text
from bwtui.recording.reading.explain import Key, Step


def query_of(key: Key, position: int | None = None) -> str | None:
    """Return a query that finds the messages of a key, or the one of a change; None where none can.

    An unchanged large value in a key is not known.
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


def newest_of(steps: Iterable[Step]) -> Step | None:
    """Return the newest change of a key that has a message which Kafka did not refuse; a repeat is none."""
    sent = [step for step in steps if step.topic and step.state != "refused" and not step.is_repeat]
    return sent[-1] if sent else None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
