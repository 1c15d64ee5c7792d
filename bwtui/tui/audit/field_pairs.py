"""The expected and the actual side of a message, field by field."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bwtui.pgoutput.messages import UNCHANGED
from bwtui.recording.change import Change, SentMessage
from bwtui.recording.fields import as_text
from bwtui.tui.audit.kafka_records import DecodedPart
from bwtui.tui.audit.report import ReportFinding

#: Shown for a field that a side lacks.
ABSENT = "–"
#: Shown for a value of a table's row that the report omits because it equals the topic's.
SAME = "no difference"


@dataclass(frozen=True, slots=True)
class FieldPair:
    """One field: PostgreSQL's value, the sent value, and Kafka's value; None is NULL.

    In an audit of tables, ``sent`` is the table's value, and ``postgresql`` is absent.
    """

    name: str
    postgresql: str | None
    sent: str | None
    kafka: str | None
    #: The sent value differs from PostgreSQL's.
    miscoded: bool = False
    #: True or False if the report says whether the sides differ: their values may be masked or written
    #: differently.
    judged: bool | None = None

    @property
    def differs(self) -> bool:
        """Whether Kafka's value differs from the sent one; with only one side, nothing differs."""
        return self.sent != self.kafka if self.judged is None else self.judged


def pairs(
    postgresql: Mapping[str, str | None] | None,
    sent: DecodedPart | None,
    kafka: DecodedPart | None,
    miscoded: Collection[str] = (),
) -> list[FieldPair]:
    """Return every field that a side has, in the order of the message; none for what is not a row."""
    sides = [
        postgresql,
        *(None if side is None or side.state != "row" else side.fields for side in (sent, kafka)),
    ]
    names = dict.fromkeys(name for side in (*sides[1:], sides[0]) if side is not None for name in side)
    every = []
    for name in names:
        texts = [ABSENT if side is None else side.get(name, ABSENT) for side in sides]
        every.append(FieldPair(name, texts[0], texts[1], texts[2], name in miscoded))
    return every


def table_pairs(finding: ReportFinding, kafka: DecodedPart | None) -> list[FieldPair]:
    """Return the fields of a row in the table and in the topic, as far as report and record have them."""
    row = kafka.fields if kafka is not None and kafka.state == "row" else {}
    listed = {str(field.get("field")): field for field in finding.fields}
    if not row and not listed:
        key = (finding.key or {}).items()
        if finding.name == "extra_key":
            # The record's own fields are more informative, or explain why they can't be read.
            return [FieldPair(name, ABSENT, ABSENT, value) for name, value in key] if kafka is None else []
        return [FieldPair(name, ABSENT, value, ABSENT) for name, value in key]
    unlisted = SAME if finding.name == "different_row" else ABSENT
    every = []
    for name in dict.fromkeys((*row, *listed)):
        if (field := listed.get(name)) is None:
            every.append(FieldPair(name, ABSENT, unlisted, row[name], judged=False))
        else:
            there = row.get(name, field.get("kafka"))
            every.append(FieldPair(name, ABSENT, field.get("postgresql"), there, judged=True))
    return every


def postgresql_texts(change: Change, message: SentMessage) -> dict[str, str | None] | None:
    """Return PostgreSQL's texts of the row of a message; None for a tombstone."""
    if message.value is None or change.after is None:
        return None
    columns = change.relation.columns
    return {
        column.name: as_text(value)
        for column, value in zip(columns, change.after, strict=False)
        if value is not UNCHANGED
    }


def full_texts(change: Change) -> dict[str, str | None]:
    """Return the new row's texts as PostgreSQL sent them, uncut; omit columns without a text."""
    columns = zip(change.relation.columns, change.after or (), strict=False)
    return {
        column.name: None if value is None else value.decode("utf-8", "replace")
        for column, value in columns
        if value is None or isinstance(value, bytes)
    }


def message_of(change: Change, part: int) -> SentMessage | None:
    """Return a message of a change by its number."""
    return next((message for message in change.messages if message.part == part), None)
