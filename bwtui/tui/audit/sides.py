"""The two sides of a message, field by field."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bwtui.pgoutput.messages import UNCHANGED
from bwtui.recording.change import Change, SentMessage
from bwtui.recording.fields import as_text
from bwtui.tui.audit.kafka import Decoded

#: Stands for a field that a side does not have at all.
ABSENT = "–"


@dataclass(frozen=True, slots=True)
class FieldPair:
    """One field as PostgreSQL said it, as it was sent, and as Kafka has it; None is NULL."""

    name: str
    said: str | None
    sent: str | None
    found: str | None
    #: What was sent is not what PostgreSQL said.
    miscoded: bool = False

    @property
    def differs(self) -> bool:
        """Whether Kafka has something else than was sent; with one side only, nothing differs."""
        return self.sent != self.found


def pairs(
    said: Mapping[str, str | None] | None,
    sent: Decoded | None,
    found: Decoded | None,
    miscoded: Collection[str] = (),
) -> list[FieldPair]:
    """Return every field that a side has, in the order of the message; for what is no row, none."""
    sides = [said, *(None if one is None or one.state != "row" else one.fields for one in (sent, found))]
    names = dict.fromkeys(name for side in (*sides[1:], sides[0]) if side is not None for name in side)
    every = []
    for name in names:
        texts = [ABSENT if side is None else side.get(name, ABSENT) for side in sides]
        every.append(FieldPair(name, texts[0], texts[1], texts[2], name in miscoded))
    return every


def said_by(change: Change, message: SentMessage) -> dict[str, str | None] | None:
    """Return what PostgreSQL said of the row that a message is about; None for a tombstone."""
    if message.value is None or change.after is None:
        return None
    columns = change.relation.columns
    return {
        column.name: as_text(value)
        for column, value in zip(columns, change.after, strict=False)
        if value is not UNCHANGED
    }


def full_texts(change: Change) -> dict[str, str | None]:
    """Return the new row's texts as PostgreSQL sent them, uncut; what is no text is left out."""
    columns = zip(change.relation.columns, change.after or (), strict=False)
    return {
        column.name: None if value is None else value.decode("utf-8", "replace")
        for column, value in columns
        if value is None or isinstance(value, bytes)
    }


def message_of(change: Change, part: int) -> SentMessage | None:
    """Return a message of a change by its number."""
    return next((one for one in change.messages if one.part == part), None)
