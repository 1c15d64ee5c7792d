"""A key's journey, computed without a screen and without services."""

import io
import json
from dataclasses import replace
from typing import Any

import fastavro
import pytest

from bwtui.kafka.key_reader import KeyRecords, StoredRecord
from bwtui.model.latency import Percentiles
from bwtui.model.service_views import GroupEntry, PartitionLag
from bwtui.model.status import ChangeSample, FieldChange
from bwtui.recording.change import differences
from bwtui.recording.explain import RowKey
from bwtui.recording.playback import counted
from bwtui.tui.audit.records import RecordDecoder, same_bytes, same_text
from bwtui.tui.audit.report import ABSENT, AuditReport, AuditSubject, audited, key_of_finding, parse_report
from bwtui.tui.sources.journey import (
    Point,
    compare_with_message,
    compare_with_sample,
    field_ways,
    hole,
    readers_of,
    recorded_path,
    sampled_path,
    transaction_words,
    usual,
    with_before,
)
from bwtui.tui.widgets.journey import lifeline
from tests.recorded_shop import shop_recording
from tests.tui.audited import json_recording, report_of

NOON = 1_768_478_400.0


# -- stages ------


def sample(**more: Any) -> ChangeSample:
    """Return a sampled update whose stages took 3, 1, 0.5 and 4 ms."""
    times = (NOON + 0.003, NOON + 0.004, NOON + 0.0045, NOON + 0.0085)
    fields = (FieldChange("id", "7", "7", "same"), FieldChange("status", "new", "paid", "changed"))
    made = ChangeSample(
        1, NOON + 0.004, NOON, "0/1A", 740, "update", "public.orders", "orders", "id=7", fields,
        passed=times, batch=12,
    )  # fmt: skip
    return replace(made, **more)


def test_a_sampled_change_has_every_stage() -> None:
    way = sampled_path(sample())
    assert [(leg.name, round(leg.seconds or 0, 6)) for leg in way.legs] == [
        ("received", 0.003),
        ("encoded", 0.001),
        ("produced", 0.0005),
        ("acknowledged", 0.004),
    ]
    assert way.total == pytest.approx(0.0085, abs=1e-6)
    assert "times of its batch of 12 messages" in way.remarks[0]


def test_a_change_under_way_says_how_far_it_is() -> None:
    way = sampled_path(sample(passed=(NOON + 0.003, NOON + 0.004, NOON + 0.005, 0.0)))
    assert [leg.seconds is None for leg in way.legs] == [False, False, False, True]
    assert way.total is None
    assert "its batch of 12 messages is not acknowledged yet" in way.remarks[0]
    assert "it is under way" in sampled_path(sample(passed=(0.0, 0.0, 0.0, 0.0), batch=0)).remarks[0]


def test_a_change_of_a_session_that_broke_is_not_under_way() -> None:
    way = sampled_path(sample(passed=(NOON + 0.003, NOON + 0.004, NOON + 0.005, 0.0), is_given_up=True))
    assert "read and sent again" in way.remarks[0]


def test_what_was_not_measured_is_not_guessed() -> None:
    way = sampled_path(sample(passed=()))
    assert way.total is None
    assert all(leg.seconds is None for leg in way.legs)
    assert "unknown" in way.remarks[0]
    assert sampled_path(sample(operation="snapshot")).legs == ()


def test_a_clock_that_is_ahead_is_told() -> None:
    way = sampled_path(sample(commit_time=NOON + 0.010))
    assert way.legs[0].seconds is not None
    assert way.legs[0].seconds < 0
    assert way.remarks[-1] == "PostgreSQL's clock is ahead of the relay's"


def test_a_recorded_change_has_its_own_times_and_those_of_its_second() -> None:
    change = next(shop_recording().changes(20, 21))
    message = replace(change.messages[0], noted=change.received + 8_000)
    way = recorded_path(change, message, usual({"total": Percentiles(1, 0, 0, 0, 0, 0)}, NOON))
    assert [(leg.name, leg.seconds) for leg in way.legs] == [("recorded", 0.08), ("acknowledged", 0.008)]
    latency = dict.fromkeys(("received", "encoded"), Percentiles(9, 0.001, 0.002, 0.003, 0.004, 0.005))
    told = usual(latency, NOON)
    assert told == (
        "all messages of the ten seconds up to 12:00:00, median in ms: received 2.00 (p99 4.00), "
        "encoded 2.00 (p99 4.00)"
    )
    assert recorded_path(change, message, told).remarks[-1] == told


def test_a_recorded_change_without_word_of_its_delivery() -> None:
    change = next(shop_recording().changes(20, 21))
    unknown = replace(change.messages[0], state="unknown", partition=None, offset=None, noted=None)
    assert recorded_path(change, unknown).legs[-1].seconds is None
    unsent = replace(unknown, state="unsent")
    assert [leg.name for leg in recorded_path(change, unsent).legs] == ["recorded"]
    assert [leg.name for leg in recorded_path(change, None).legs] == ["recorded"]
    assert recorded_path(next(shop_recording().changes(0, 1)), None).begin == "snapshot"


# -- consumer groups ------


def group(name: str, committed: int | None, members: int | None = 1, partition: int = 2) -> GroupEntry:
    lag = PartitionLag("orders", partition, committed, 20)
    return GroupEntry(name, "stable", members, ("orders",), partitions=(lag,))


def test_groups_are_told_by_what_they_last_committed() -> None:
    groups = [
        group("past", 11), group("at", 10), group("behind", 7, 0), group("never", None),
        group("elsewhere", 5, partition=1), replace(group("other", 5), topics=("items",)),
    ]  # fmt: skip
    found = {one.name: (one.tone, one.text) for one in readers_of(groups, "orders", 2, 10)}
    assert found == {
        "past": ("good", "has read it; committed offset 11"),
        "at": ("warn", "has not read it: 1 to go from offset 10"),
        "behind": ("warn", "has not read it: 4 to go from offset 7, not running"),
        "never": ("muted", "has never committed in this partition"),
        "elsewhere": ("muted", "unknown position in this partition"),
    }
    assert readers_of(groups, "orders", 2, 10)[-1].name == "past", "who has not read it comes first"


# -- the audit ------


def subject(**more: Any) -> AuditSubject:
    """Return the change at position 20 of the shop's recording."""
    change = next(json_recording().changes(20, 21))
    made = AuditSubject("public.orders", {"id": "9"}, 5, "shop", change.position, ("orders", 0, 20))
    return replace(made, **more)


def report(**more: Any) -> AuditReport:
    raw = report_of(json_recording())
    return parse_report(raw | {"window": raw["window"] | {"last_lsn": "0/FF"}} | more)


def test_a_finding_of_the_change_is_a_cross() -> None:
    said = audited(report(), subject(), NOON)
    assert said.tone == "bad"
    assert said.text.startswith("lost_acked: no record is at its offset")


def test_a_change_without_a_finding_has_a_tick() -> None:
    assert audited(report(), subject(position=21, key={"id": "77"}, place=None), NOON).tone == "good"
    said = audited(report(), subject(position=21, place=None), NOON)
    assert (said.tone, "other findings of this key: 1" in said.text) == ("good", True)


@pytest.mark.parametrize(
    ("more", "changed", "words"),
    [
        ({}, {"lsn": 0x100}, "committed after the last audit"),
        ({}, {"lsn": None}, "possibly committed after the last audit"),
        ({}, {"lsn": None, "time": NOON + 1}, "committed after the last audit"),
        ({}, {"lsn": None, "time": NOON - 1}, "if the record is older than that audit"),
        ({"recording_id": "another"}, {}, "the last audit covered a different recording"),
        ({"question": "recordings"}, {}, "compared recordings"),
        ({"findings": [], "findings_total": {"lost_acked": 9}}, {}, "only counts 9 more"),
        ({"findings": [], "findings_total": {}, "verdict": "indeterminate"}, {}, "indeterminate"),
    ],
)
def test_no_tick_without_a_reason(more: dict[str, Any], changed: dict[str, Any], words: str) -> None:
    said = audited(report(**more), subject(**changed, position=21, place=None, key={"id": "77"}), NOON)
    assert words in said.text
    assert said.tone != "good"


def test_an_audit_of_another_day_names_it() -> None:
    said = subject(position=21, key={"id": "77"}, place=None)
    assert audited(report(), said, NOON + 60).text.endswith("(12:00:00)")
    assert audited(report(), said, NOON + 86_400).text.endswith("(2026-01-15 12:00:00)")


def test_an_audit_of_tables_is_about_the_latest_value() -> None:
    raw: dict[str, Any] = dict(report().raw) | {
        "question": "database", "tables": ["public.orders"], "window": {"fences": ["0/F0", "0/FF"]},
        "findings": [], "findings_total": {},
    }  # fmt: skip
    said = audited(parse_report(raw), subject(recording=None, position=None), NOON)
    assert (said.tone, said.text) == ("good", "the topic's latest value is correct")
    assert audited(parse_report(raw), subject(table="public.items"), NOON).tone == "muted"
    finding = {"class": "different_row", "table": "public.orders", "key": {"id": "9"}}
    bad = audited(parse_report(raw | {"findings": [finding]}), subject(), NOON)
    assert (bad.tone, bad.text) == ("bad", "different_row")


def test_the_key_of_a_finding() -> None:
    found = report().findings
    assert key_of_finding(found[0]) == RowKey("public.orders", ("id",), (b"9",))
    assert key_of_finding(found[3]) == "The finding names no key"
    masked = parse_report(
        dict(report().raw) | {"findings": [dict(report().raw["findings"][0], key={"id": "…"})]}
    )
    assert "--show-values" in str(key_of_finding(masked.findings[0]))
    assert audited(None, subject(), NOON).text == "not audited; v runs an audit"


# -- records in Kafka ------

READER = RecordDecoder("json", {}, lambda number: None)


def stored(value: dict[str, Any] | None, key: bytes = b'{"id": "9"}') -> StoredRecord:
    """Return a record in JSON."""
    return StoredRecord(0, 20, 0, key, None if value is None else json.dumps(value).encode())


def test_a_record_is_judged_by_the_message_that_was_sent() -> None:
    change = next(json_recording().changes(20, 21))
    message = change.messages[0]
    there = StoredRecord(0, 20, 0, message.key, message.value)
    assert compare_with_message(message, change, there, READER)[0].tone == "good"
    assert message.value is not None
    other = json.loads(message.value) | {"status": "sold"}
    said, wrong = compare_with_message(
        message, change, there._replace(value=json.dumps(other).encode()), READER
    )
    assert (said.tone, wrong) == ("bad", {"status"})
    spaced = there._replace(value=json.dumps(json.loads(message.value), indent=2).encode())
    said, wrong = compare_with_message(message, change, spaced, READER)
    assert (said.text, wrong) == ("the bytes are not as sent", set())
    assert (
        "a different key" in compare_with_message(message, change, there._replace(key=b"x"), READER)[0].text
    )
    assert (
        "a tombstone, but"
        in compare_with_message(message, change, there._replace(value=None), READER)[0].text
    )
    assert hole("expired").tone == "warn"
    assert hole("truncated").tone == "bad"


def test_a_tombstone_is_what_a_delete_asks_for() -> None:
    gone = (FieldChange("id", "9", None, "gone"),)
    assert compare_with_sample(gone, stored(None), READER)[0].tone == "good"
    assert compare_with_sample(gone, stored({"id": "9"}), READER)[0].tone == "bad"
    moved = (FieldChange("id", "9", "10", "changed"),)
    assert compare_with_sample(moved, stored(None), READER, "to")[0].tone == "good"
    assert compare_with_sample(moved, stored({"id": "9"}), READER, "to")[0].tone == "bad"
    assert compare_with_sample(moved, stored(None), READER, "from")[0].tone == "bad"
    there = (FieldChange("id", None, "9", "new"),)
    assert compare_with_sample(there, stored(None), READER)[0].tone == "bad"
    assert compare_with_sample(there, stored({"id": "9"}), READER)[0].tone == "muted", "JSON is not judged"


def test_every_side_has_its_fields() -> None:
    recording = json_recording()
    change = next(recording.changes(145, 146))
    fields = differences(change)
    there, now = READER.read(b'{"id": "9", "extra": null}'), READER.read(None)
    ways = {way.name: way for way in field_ways(fields, there, now, {"id"})}
    assert ways["extra"].kafka is None
    assert (ways["extra"].before, ways["extra"].after, ways["extra"].newest) == (ABSENT,) * 3
    assert ways["id"].differs
    assert field_ways((), None, None) == []


def test_a_key_is_known_by_its_bytes_under_any_schema() -> None:
    is_key = same_bytes(b"\0\0\0\0\x07\x0e")
    assert is_key(b"\0\0\0\0\x63\x0e")
    assert not is_key(b"\0\0\0\0\x07\x10")
    assert not is_key(b"\x01\0\0\0\x07\x0e")
    assert same_bytes(b'{"id": 7}')(b'{"id": 7}')
    assert not same_bytes(b"")(b"x")
    by_text = same_text(RowKey("public.orders", ("id",), (b"9",)), READER)
    assert by_text(b'{"id": "9"}')
    assert by_text(b'{"id": "9"}'), "also the second time"
    assert not by_text(b'{"id": "9", "line": "1"}')
    assert not by_text(b"\xff no key at all")


def test_the_newest_record_is_that_of_the_latest_time() -> None:
    records = KeyRecords()
    records.records.extend([StoredRecord(0, 9, 100, b"k", b"v"), StoredRecord(1, 3, 200, b"k", b"v")])
    assert records.newest == StoredRecord(1, 3, 200, b"k", b"v")
    assert records.at(0, 9) == StoredRecord(0, 9, 100, b"k", b"v")
    assert records.at(0, 3) is None
    assert KeyRecords().newest is None


# -- the timeline and the transaction ------


def test_the_line_of_time_has_a_mark_for_each_change() -> None:
    points = [Point(NOON, "insert"), Point(NOON + 5, "update"), Point(NOON + 10, "delete")]
    top, below = lifeline(points, 1, 80).plain.split("\n")
    assert len(top) == 80
    assert top.startswith(" 12:00:00.000 ├+─")
    assert top.rstrip().endswith("─-┤ 12:00:10.000")
    assert below.index("▲") == top.index("~")
    assert below.endswith("2 of 3, 12:00:05.000")
    assert lifeline(points, 2, 80).plain.split("\n")[1].endswith("12:00:10.000 ▲")


def test_many_changes_share_a_cell_and_the_worst_is_seen() -> None:
    points = [Point(NOON + n / 1000, "update", is_bad=n == 4_000) for n in range(10_000)]
    top = lifeline(points, 9_999, 80).plain.split("\n")[0]
    assert top.count("✗") == 1
    assert top.count("█") > 40
    assert len(top) == 80
    assert lifeline([], None, 80).plain == ""
    same = [Point(NOON, "insert"), Point(NOON, "update"), Point(NOON, "delete")]
    assert lifeline(same, 0, 60).plain.count("▒") == 1
    assert len(lifeline(same, 0, 10).plain.split("\n")[0]) < 60


def test_what_a_transaction_did_is_told_in_words() -> None:
    recording = shop_recording()
    start, stop = recording.transaction(20)
    words = transaction_words(stop - start, counted(recording, start, stop))
    assert words == "3 changes: 1 insert, 1 update in public.orders, 1 insert in public.audit"


# -- Avro ------

SCHEMA = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "id", "type": ["null", "int"], "pgType": "int4", "pgName": "id"},
        {"name": "odd_x20_name", "type": ["null", "string"], "pgType": "text", "pgName": "odd name"},
    ],
}


def avro(row: dict[str, Any]) -> bytes:
    """Return a message under that schema, whose id is 1."""
    stream = io.BytesIO(b"\0\0\0\0\x01")
    stream.seek(5)
    fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMA), row)
    return stream.getvalue()


AVRO = RecordDecoder("avro", {1: json.dumps(SCHEMA)}, lambda number: None)


def test_fields_are_called_as_their_columns_are() -> None:
    row = AVRO.row(avro({"id": 7, "odd_x20_name": "x"}))
    assert dict(row.fields) == {"id": "7", "odd name": "x"}
    is_key = same_text(RowKey("public.odd", ("id", "odd name"), (b"7", b"x")), AVRO)
    assert is_key(avro({"id": 7, "odd_x20_name": "x"}))
    assert not is_key(avro({"id": 8, "odd_x20_name": "x"}))


def test_what_was_before_is_known_from_the_record_before() -> None:
    fields = (
        FieldChange("id", None, "7", "unknown before"),
        FieldChange("odd name", None, "y", "unknown before"),
    )
    earlier = StoredRecord(0, 3, 0, b"7", avro({"id": 7, "odd_x20_name": "x"}))
    assert [(one.before, one.mark) for one in with_before(fields, earlier, AVRO)] == [
        ("7", "same"),
        ("x", "changed"),
    ]
    sent = (FieldChange("odd name", "z", "y", "changed"),)
    assert list(with_before(sent, earlier, AVRO)) == list(sent), "what PostgreSQL sent stays"
    assert with_before(fields, earlier._replace(value=b'{"id": "7"}'), AVRO) is fields
    assert with_before(fields, earlier._replace(value=b"\0\0\0\0\x09?"), AVRO) is fields


def test_a_record_of_a_sampled_change_is_judged_field_by_field() -> None:
    fields = (FieldChange("id", None, "7", "new"), FieldChange("odd name", None, "y", "new"))
    right, wrong = (StoredRecord(0, 3, 0, b"7", avro({"id": 7, "odd_x20_name": text})) for text in "yx")
    assert compare_with_sample(fields, right, AVRO)[0].tone == "good"
    said, names = compare_with_sample(fields, wrong, AVRO)
    assert (said.tone, names) == ("bad", {"odd name"})
    cut = (fields[0], FieldChange("odd name", None, "y" * 4_096, "new"))
    assert compare_with_sample(cut, wrong, AVRO)[0].tone == "good", "what was cut is not judged"
