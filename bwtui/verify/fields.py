"""Add the key and the differing fields to findings, with values only on request."""

from collections.abc import Mapping, Sequence
from typing import Any

from bwtui.audit.core import PARTS, RecordPlace
from bwtui.audit.decoding import UndecodableMessage
from bwtui.audit.postgresql_text import ESCAPED, parse_row, written
from bwtui.audit.report import AuditFinding
from bwtui.verify.byte_reader import KafkaByteReader, KafkaRecord, RowReader

#: Replaces a value that is not shown.
MASKED = "…"
_MOST = 1_000
_DIFFERING = ("corrupted", "regressed", "resurrected", "misrouted", "duplicated", "phantom", "foreign")


def add_fields(
    findings: Sequence[AuditFinding],
    bytes_of: KafkaByteReader,
    reader: RowReader,
    topics: Sequence[str],
    *,
    show_values: bool,
) -> None:
    """Read both sides of the first findings."""
    shown = findings[:_MOST]
    ids = {
        id(finding): finding.position * PARTS + (finding.part or 0)
        for finding in shown
        if finding.position is not None
    }
    messages = bytes_of.messages(sorted(set(ids.values())))
    places = {
        id(finding): RecordPlace(topics.index(finding.topic), finding.partition, finding.offset)
        for finding in shown
        if finding.name in _DIFFERING
        and finding.topic is not None
        and finding.partition is not None
        and finding.offset is not None
    }
    records = bytes_of.records(sorted(set(places.values())))
    for finding in shown:
        message = messages.get(ids.get(id(finding), -1))
        record = records.get(places[id(finding)]) if id(finding) in places else None
        _describe(finding, message, record, reader, show_values=show_values)


def _describe(
    finding: AuditFinding,
    message: tuple[bytes | None, bytes | None, dict[str, Any]] | None,
    record: KafkaRecord | None,
    reader: RowReader,
    *,
    show_values: bool,
) -> None:
    def shown(value: Any) -> Any:
        return value if show_values or value is None else MASKED

    if message is not None:
        key = parse_row(message[2]["key"])
        finding.key = {name: shown(value) for name, value in key.items()} or None
    elif record is not None:
        decoded = _row(reader, record.key)
        finding.key = None if decoded is None else {name: shown(value) for name, value in decoded.items()}
    if message is None or record is None or finding.name not in ("corrupted", "regressed", "resurrected"):
        return
    expected, actual = parse_row(message[2]["after"]), _row(reader, record.value)
    if actual is None:
        contents = "a tombstone" if record.value is None else f"{len(record.value)} bytes that can't be read"
        finding.note = f"{finding.note or ''}; Kafka has {contents}".lstrip("; ")
        return
    if message[1] is None:
        finding.note = f"{finding.note or ''}; a tombstone was sent, but Kafka has a row".lstrip("; ")
    sent = _row(reader, message[1])
    finding.fields = [
        {
            "field": name,
            "sent": shown(sent_value),
            "postgresql": shown(expected.get(name)),
            "kafka": shown(kafka_value),
        }
        for name in sorted({*(sent or {}), *actual})
        for sent_value, kafka_value in [((sent or {}).get(name), actual.get(name))]
        if sent_value != kafka_value
    ]


def _row(reader: RowReader, data: bytes | None) -> Mapping[str, Any] | None:
    try:
        row = reader.row(data)
    except UndecodableMessage:
        return None
    if row is None:
        return None
    return {
        name: None if value is None else written(value) or str(value)
        for name, value in row.items()
        if name != ESCAPED or value
    }
