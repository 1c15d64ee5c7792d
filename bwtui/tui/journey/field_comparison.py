"""A change field by field: before, after, and Kafka's present records of it and of its key."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bwtui.model.status import FieldChange
from bwtui.recording.change import Change, SentMessage
from bwtui.recording.fields import LIMIT
from bwtui.tui.audit.field_pairs import ABSENT
from bwtui.tui.audit.kafka_records import HOLES, DecodedPart, RecordDecoder
from bwtui.tui.journey.audit_result import AuditResult

if TYPE_CHECKING:
    from bwtui.kafka.key_reader import StoredRecord


@dataclass(frozen=True, slots=True)
class FieldComparison:
    """One field; None is NULL, and `ABSENT` is a value that a side lacks."""

    name: str
    mark: str
    before: str | None
    after: str | None
    kafka: str | None
    newest: str | None
    #: Kafka's value is not PostgreSQL's, or not the one that was sent.
    differs: bool = False


def field_ways(
    fields: Sequence[FieldChange],
    kafka: DecodedPart | None,
    newest: DecodedPart | None,
    wrong: Collection[str] = (),
) -> list[FieldComparison]:
    """Return every field that a side has, in the order of the table."""
    here, now = _row(kafka), _row(newest)
    by_name = {field.name: field for field in fields}
    ways = []
    for name in dict.fromkeys((*by_name, *here, *now)):
        field = by_name.get(name)
        sides = (ABSENT, ABSENT) if field is None else _sides(field)
        mark = "" if field is None else field.mark
        held = (here.get(name, ABSENT), now.get(name, ABSENT))
        ways.append(FieldComparison(name, mark, *sides, *held, name in wrong))
    return ways


def _row(side: DecodedPart | None) -> Mapping[str, str | None]:
    return {} if side is None or side.state != "row" else side.fields


def _sides(field: FieldChange) -> tuple[str | None, str | None]:
    """Return the known values of a field before and after."""
    is_known = field.mark in ("same", "changed", "gone") or field.before is not None
    before = field.before if is_known else ABSENT
    return before, ABSENT if field.mark == "gone" else field.after


def texts_of(change: Change) -> dict[str, str | None]:
    """Return the new row's texts that a record can be compared with: those that PostgreSQL sent as text."""
    texts: dict[str, str | None] = {}
    for column, value in zip(change.relation.columns, change.after or (), strict=False):
        if value is None:
            texts[column.name] = None
        elif isinstance(value, bytes):
            try:
                texts[column.name] = value.decode()
            except UnicodeDecodeError:
                continue
    return texts


def texts_of_sample(fields: Sequence[FieldChange]) -> dict[str, str | None]:
    """Return the same for a sampled change, without long values, which were cut."""
    return {
        field.name: field.after
        for field in fields
        if field.mark not in ("gone", "unchanged TOAST")
        and (field.after is None or (len(field.after.encode()) < LIMIT and "\ufffd" not in field.after))
    }


def sent_against(
    message: SentMessage, change: Change, stored: "StoredRecord", reader: RecordDecoder
) -> tuple[AuditResult, set[str]]:
    """Compare the record at a message's place with the message; return the result and differing fields."""
    if (stored.key, stored.value) == (message.key, message.value):
        wrong = reader.miscoded(stored.value, texts_of(change)) if message.value is not None else frozenset()
        if wrong:
            return AuditResult("bad", f"as it was sent, and {_fields(wrong)} not what PostgreSQL said"), set(
                wrong
            )
        return AuditResult("good", "as it was sent, byte for byte"), set()
    sent, held = reader.row(message.value), reader.row(stored.value)
    wrong_fields = {name for name in _row(sent) if _row(sent)[name] != _row(held).get(name, ABSENT)}
    if stored.key != message.key:
        return AuditResult("bad", "the record here has a different key than the sent message"), wrong_fields
    if message.value is None or stored.value is None:
        what = (
            "a tombstone where a row was sent" if stored.value is None else "a row where a tombstone was sent"
        )
        return AuditResult("bad", what), wrong_fields
    return AuditResult("bad", f"not what was sent: {_fields(wrong_fields)} different"), wrong_fields


def said_against(
    fields: Sequence[FieldChange], stored: "StoredRecord", reader: RecordDecoder, renamed: str = ""
) -> tuple[AuditResult, set[str]]:
    """Compare a record with PostgreSQL's values of a sampled change whose message is not available.

    ``renamed`` is as in `bwtui.tui.journey.key_history.KeyHistoryEntry`: a change of the key deletes the
    row's former key.
    """
    is_gone = renamed == "to" or (bool(fields) and all(field.mark == "gone" for field in fields))
    if is_gone or stored.value is None:
        if is_gone and stored.value is None:
            why = "the row has another key since" if renamed == "to" else "its row was deleted"
            return AuditResult("good", f"a tombstone, as {why}"), set()
        return AuditResult(
            "bad", "a row, but a tombstone was expected" if is_gone else "a tombstone, but a row was expected"
        ), set()
    held = reader.row(stored.value)
    if held.state == "unreadable":
        return AuditResult("warn", held.problem), set()
    if held.schema_id is None:
        return AuditResult("muted", "JSON is shown, and not judged field by field"), set()
    wrong = reader.miscoded(stored.value, texts_of_sample(fields))
    if wrong:
        return AuditResult("bad", f"{_fields(wrong)} not what PostgreSQL said"), set(wrong)
    return AuditResult("good", "what PostgreSQL said, field by field"), set()


def with_before(
    fields: Sequence[FieldChange], earlier: "StoredRecord", reader: RecordDecoder
) -> Sequence[FieldChange]:
    """Return an updated row's fields, with missing old values from an earlier record.

    PostgreSQL may not send the old values. Nothing is taken from JSON, because it has no types with which its
    texts could be compared with PostgreSQL's.
    """
    row = reader.row(earlier.value)
    if row.state != "row" or row.schema_id is None:
        return fields
    texts = texts_of_sample(fields)
    changed = reader.miscoded(earlier.value, texts)
    known = {
        field.name: replace(
            field, before=row.fields[field.name], mark="changed" if field.name in changed else "same"
        )
        for field in fields
        if field.mark == "unknown before" and field.name in row.fields and field.name in texts
    }
    return [known.get(field.name, field) for field in fields]


def hole(kind: str) -> AuditResult:
    """Return what a missing record at a message's place means."""
    return AuditResult("warn" if kind in ("gap", "expired") else "bad", HOLES.get(kind, kind))


def _fields(names: Collection[str]) -> str:
    few = sorted(names)
    if len(few) == 1:
        return f"{few[0]} is"
    return f"{len(few)} fields are" if len(few) > 3 else f"{', '.join(few)} are"
