"""A recording with its audit report, and a Kafka in memory."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from bwtui.errors import BwtuiError
from bwtui.recording.change import Change
from bwtui.tui.audit.records import SingleRecordReader, TopicRecord
from bwtui.tui.audit.report import AuditReport, parse_report
from bwtui.tui.audit.session import Connections, RecordingAuditSession
from bwtui.tui.recording_app import RecordingApp
from bwtui.tui.sources.recorded_model import RecordingSource
from tests.recorded_shop import MemoryRecording, Tape, shop_tape
from tests.tui.commands import Commands
from tests.tui.recorded import RecordedStage

REPORTS = Path(__file__).parent / "reports"
NOW_MS = 1_768_478_400_000


class FakeKafka(SingleRecordReader):
    """Records by place; a missing place is a hole."""

    def __init__(self, records: dict[tuple[str, int, int], TopicRecord]) -> None:
        super().__init__({}, lambda number: None)
        self.records = records
        self.error: BwtuiError | None = None

    def fetch(self, topic: str, partition: int, offset: int) -> TopicRecord | str:
        if self.error is not None:
            raise self.error
        return self.records.get((topic, partition, offset), "expired")


def json_recording(tape: Tape | None = None) -> MemoryRecording:
    """Return the shop's recording with JSON messages, which can be decoded without a registry."""
    tape = tape or shop_tape()
    tape.changes[:] = [_with_json(change) for change in tape.changes]
    recording = MemoryRecording(tape)
    recording.source = replace(recording.source, output_format="json")
    return recording


def _with_json(change: Change) -> Change:
    names = [column.name for column in change.relation.columns]
    row = None if change.after is None else _json(dict(zip(names, change.after, strict=False)))
    key = _json({"id": change.key[0]}) if change.key else None
    messages = tuple(
        replace(message, key=key if message.key is not None else None, value=row if message.value else None)
        for message in change.messages
    )
    return replace(change, messages=messages)


def _json(row: dict[str, Any]) -> bytes:
    texts = {name: value.decode() if isinstance(value, bytes) else None for name, value in row.items()}
    return json.dumps(texts).encode()


def report_of(recording: MemoryRecording) -> dict[str, Any]:
    """Return a report: one lost message, one with a different row, one duplicate, one foreign record."""
    lost, corrupted, copied = (next(recording.changes(at, at + 1)) for at in (20, 25, 30))
    raw: dict[str, Any] = json.loads((REPORTS / "faults.json").read_text())
    found = {"lost_acked": 1, "corrupted": 1, "duplicated": 1, "foreign": 1}
    return raw | {
        "recording": "shop",
        "recording_id": recording.source.recording,
        "window": raw["window"] | {"now_ms": NOW_MS},
        "classes": dict.fromkeys(raw["classes"], 0) | found | {"compacted": 7},
        "findings_total": found,
        "findings": [
            _finding("lost_acked", lost, key={"id": "9"}, note="no record is at its offset", hop="broker"),
            _finding("corrupted", corrupted, key={"id": "11"}, hop="broker",
                     fields=[{"field": "status", "sent": "new", "postgresql": "new", "kafka": "sold"}]),
            _finding("duplicated", None, topic=copied.messages[0].topic, offset=900, hop="other"),
            _finding("foreign", None, topic="orders", offset=901, hop="other"),
        ],
    }  # fmt: skip


def _finding(name: str, change: Change | None, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"class": name, "partition": 0, "offset": None, "fields": [], **more}
    if change is not None:
        message = change.messages[0]
        given |= {"topic": message.topic, "partition": message.partition, "offset": message.offset}
        given |= {"lsn": change.lsn_text, "ordinal": change.ordinal, "position": change.position, "part": 0}
        given |= {"table": change.table, "operation": change.operation}
    return given


def kafka_of(recording: MemoryRecording) -> FakeKafka:
    """Return Kafka's records according to that report."""
    corrupted, copied = (next(recording.changes(at, at + 1)).messages[0] for at in (25, 30))
    assert corrupted.value is not None and corrupted.offset is not None and corrupted.partition is not None
    other = json.dumps(json.loads(corrupted.value) | {"status": "sold"}).encode()
    return FakeKafka(
        {
            (corrupted.topic, corrupted.partition, corrupted.offset): TopicRecord(
                corrupted.key, other, NOW_MS
            ),
            (copied.topic, 0, 900): TopicRecord(copied.key, copied.value, NOW_MS),
            ("orders", 0, 901): TopicRecord(b"hello", b"nobody knows me", NOW_MS, (("who", b"me"),)),
        }
    )


class AuditedStage(Commands, RecordedStage):
    """The screens over that recording; background commands end when a test says so."""

    app: RecordingApp

    def __init__(self, folder: Path, *, with_report: bool = True, tape: Tape | None = None) -> None:
        super().__init__(json_recording(tape))
        self.kafka = kafka_of(self.recording)
        self.raw = report_of(self.recording)
        report: AuditReport | None = parse_report(self.raw, folder / "report.json") if with_report else None
        connections = Connections("", "", ("-C", "client.id=me"), lambda broker, registry: self.kafka)
        self.audit = RecordingAuditSession(Path("shop"), connections, report)
        self.source = RecordingSource(self.recording, lambda: self.recording, self.clock)
        self.app = RecordingApp(self.source, None, self.clock, self.audit)
        self.take_commands(folder)

    @property
    def notices(self) -> str:
        """Return the text of all notices."""
        return "\n".join(self.told)
