"""The report of an audit on the screens, and both sides of one finding."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from bwtui.errors import ConnectionFailed, UsageError
from bwtui.tui.audit.records import SingleRecordReader, TopicRecord
from bwtui.tui.audit.report import AuditReport, class_order, parse_report, read_report, tone_of
from bwtui.tui.audit.session import AuditSession, Connections
from bwtui.tui.recording_app import ReportApp
from bwtui.tui.screens.audit import (
    ClassGrid,
    ComparisonScreen,
    FieldPairs,
    FindingList,
    ReportScreen,
    finding_text,
)
from tests.tui.audited import NOW_MS, REPORTS, AuditedStage, FakeKafka
from tests.tui.doubles import Clock
from tests.tui.picture import lines, text

SIZES = [(80, 24), (200, 60)]


def report_app(name: str) -> ReportApp:
    """Return the app over a report that the program wrote."""
    return ReportApp(f"{name}.json", AuditSession(None, read_report(REPORTS / f"{name}.json")), Clock())


def test_classes_come_the_worst_first() -> None:
    report = read_report(REPORTS / "faults.json")
    order = class_order(report)
    tones = [tone_of(name) for name in order]
    assert order[:3] == ["lost_acked", "lost_unacked", "lost_unsent"]
    assert tones == sorted(tones, key=["bad", "warn", "muted"].index)
    assert (report.wrong, report.missing) == (21, 15)
    assert {tone_of(name) for name in ("missing_key", "said_differs")} == {"bad"}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"verdict": "fine"}', '{"verdict": "clean"}'])
def test_what_is_no_report_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="is not an audit report"):
        read_report(path)


@pytest.mark.parametrize("size", SIZES)
async def test_a_real_report_alone(size: tuple[int, int]) -> None:
    app = report_app("faults")
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        shown = lines(app)
        assert "AUDIT REPORT" in shown[0]
        assert "✗ ANOMALIES  21 in 3,075 messages, 3,063 records" in shown[2]
        assert "15 lost · 1 duplicated" in shown[3]
        assert "Quit" in shown[-1]
        assert "Verify" not in shown[-1], "there is no recording to verify"
        classes = app.screen.query_one(ClassGrid)
        assert [row.key for row in classes.rows][:3] == ["*", "lost_acked", "duplicated"]
        assert "19 empty" in text(app)
        await pilot.press("z")
        assert len(classes.rows) == 27
        await pilot.press("z", "down", "down")
        findings = app.screen.query_one(FindingList)
        assert len(findings.rows) == 1
        assert "A second record of a message" in text(app)
        panels = [p for p in app.screen.query(".panel") if p.display]
        assert all(p.outer_size.height >= 4 for p in panels)


async def test_a_real_finding_says_which_fields_differ() -> None:
    app = report_app("faults")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("down", "down", "down", "enter")
        await pilot.pause()
        assert app.focused is app.screen.query_one(FindingList)
        shown = text(app)
        assert "corrupted" in shown
        assert "(sold out)" in shown
        assert "at fault: the broker" in shown
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, ComparisonScreen)
        shown = text(app)
        assert "position 1,163 of the recording, which is not open here" in shown
        assert "the Kafka brokers are unknown" in shown
        assert app.screen.query_one(FieldPairs).rows[0].cells[3].text.endswith("(sold out)")
        await pilot.press("escape", "escape")
        assert app.focused is app.screen.query_one(ClassGrid)


async def test_findings_are_filtered_and_copied() -> None:
    app = report_app("faults")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("slash", *"customers")
        await pilot.pause()
        findings = app.screen.query_one(FindingList)
        assert {row.cells[1].text for row in findings.rows} == {"duplicated", "regressed", "misrouted"}
        await pilot.press("enter", "down", "down", "y")
        assert "customers" in app.clipboard
        assert app.screen.query(Input)
        await pilot.press("escape")
        assert len(findings.rows) == 21


def test_a_copied_finding_is_exact() -> None:
    raw = json.loads((REPORTS / "faults.json").read_text())
    raw["findings"][0] |= {
        "key": {"id": "a\nb\u200dé", "big": "x" * 9_000},
        "fields": [{"field": "note", "sent": "\x1b" + "y" * 9_000, "kafka": None}],
        "note": "n\to",
    }
    copied = finding_text(parse_report(raw).findings[0], None, "recording")
    assert f"key id=a\nb\u200dé, big={'x' * 9_000}" in copied
    assert f"note: sent=\x1b{'y' * 9_000}, kafka=NULL" in copied
    assert "n\to" in copied
    assert "expected and actual message" not in copied, "a key hint is not part of the finding"


@pytest.mark.parametrize("size", SIZES)
async def test_a_clean_report_says_what_it_rests_on(size: tuple[int, int]) -> None:
    app = report_app("clean")
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        shown = text(app)
        assert "✓ CLEAN  3,075 messages, 3,075 records" in shown
        assert "nothing lost, duplicated, changed or out of order" in shown
        assert "✓ no anomalies" in shown
        assert "3,075 messages also compared with PostgreSQL's data" in shown
        assert "0/1CBC070" in shown
        await pilot.press("enter", "enter")
        assert isinstance(app.screen, ReportScreen), "there is nothing to open"


async def test_findings_that_are_only_counted_are_told() -> None:
    raw = json.loads((REPORTS / "faults.json").read_text())
    raw["findings_total"]["lost_acked"] = 4_711
    raw["verdict"], raw["notes"] = "indeterminate", ["the recording has 1 gaps"]
    app = ReportApp("r", AuditSession(None, parse_report(raw)), Clock())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("down")
        assert "4,696 more are only counted" in text(app)
        assert "▲ INDETERMINATE" in text(app)


# Over a recording.


@pytest.mark.parametrize("size", SIZES)
async def test_both_sides_of_a_message(size: tuple[int, int], tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path)
    async with stage.run(size):
        await stage.press("5", "enter", "down")
        assert "xid 748" in text(stage.app)
        await stage.press("enter")
        pairs = stage.app.screen.query_one(FieldPairs)
        assert [row.cells[0].text for row in pairs.rows] == ["", "≠", ""]
        assert pairs.cursor_row == 1, "what differs is selected"
        shown = text(stage.app)
        assert "acknowledged" in shown
        assert "Audit › corrupted › id=11" in shown
        assert "Kafka has       sold" in shown
        await stage.press("exclamation_mark")
        assert len(pairs.rows) == 1
        await stage.press("p")
        assert stage.app.current_mode == "changes"
        assert stage.head.position == 26
        await stage.press("5")
        assert isinstance(stage.app.screen, ComparisonScreen), "and back to where one was"
        await stage.press("T")
        assert "transaction 748" in text(stage.app)


async def test_a_lost_message_a_copy_and_a_stranger(tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path)
    async with stage.run((140, 40)):
        await stage.press("5", "enter", "enter")
        assert "the log begins after this offset" in text(stage.app)
        await stage.press("escape", "down", "down", "enter")
        shown = text(stage.app)
        assert "duplicate of:" in shown
        assert stage.screen.selected_change() is not None
        assert "≠" not in shown
        await stage.press("escape", "down", "enter")
        shown = text(stage.app)
        assert "no message of the recording has these bytes" in shown
        assert "15 bytes that can't be decoded" in shown
        await stage.press("p")
        assert "no position in the recording" in stage.notices


async def test_a_kafka_that_does_not_answer_is_told(tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path)
    stage.kafka.error = ConnectionFailed("can't reach Kafka at nowhere:1", "check -b")
    async with stage.run():
        await stage.press("5", "enter", "enter")
        assert "can't reach Kafka at nowhere:1: check -b" in text(stage.app)


async def test_the_mouse_chooses_classes_and_opens_findings(tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path)
    async with stage.run((120, 40)) as pilot:
        await stage.press("5")
        classes = stage.app.screen.query_one(ClassGrid).content_region
        await pilot.click(offset=(classes.x + 4, classes.y + 3))
        await stage.settle()
        assert stage.screen.crumbs() == ("Audit", "duplicated")
        findings = stage.grid.content_region
        await pilot.click(offset=(findings.x + 4, findings.y + 1), times=2)
        await stage.settle()
        assert isinstance(stage.app.screen, ComparisonScreen)


async def test_before_the_first_audit(tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path, with_report=False)
    async with stage.run((80, 24)):
        await stage.press("5")
        shown = text(stage.app)
        assert "? NOT AUDITED" in shown
        assert "v verifies" in shown
        await stage.press("M")
        assert "There is no audit yet" in stage.notices


async def test_a_report_of_another_recording_is_not_mixed_with_this_one(tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path)
    stage.audit.report = read_report(REPORTS / "faults.json")
    async with stage.run():
        await stage.press("5", "enter")
        assert stage.screen.selected_change() is None


KEY = '{"type": "record", "name": "Key", "fields": [{"name": "id", "type": ["null", "long"]}]}'
VALUE = (
    '{"type": "record", "name": "Value", "fields": [{"name": "id", "type": ["null", "int"]}, '
    '{"name": "note", "type": ["null", "string"]}, {"name": "status", "type": ["null", "string"]}]}'
)


def framed(number: int, *fields: bytes) -> bytes:
    """Return a key or a value with all its fields."""
    return b"\0" + number.to_bytes(4, "big") + b"".join(b"\2" + one for one in fields)


def string(content: str) -> bytes:
    """Return a short text in Avro's encoding."""
    return bytes([len(content) * 2]) + content.encode()


def kafka() -> FakeKafka:
    """Return the topics' records for the report."""
    found = FakeKafka(
        {
            ("shop.orders", 2, 21): TopicRecord(
                framed(1, b"\4"), framed(2, b"\6", string("note 3"), string("new")), NOW_MS
            ),
            ("shop.orders", 1, 12): TopicRecord(
                framed(1, b"\x90\x4e"), framed(2, b"\x08", string("note 4"), string("new")), NOW_MS
            ),
            ("shop.orders", 2, 22): TopicRecord(b"what", b"\0\0", NOW_MS),
            ("shop.orders", 1, 11): TopicRecord(framed(1, b"\2"), None, NOW_MS),
        }
    )
    found.ask = {1: KEY, 2: VALUE}.get
    return found


def app_of(report: AuditReport, side: SingleRecordReader | None = None) -> ReportApp:
    connections = None if side is None else Connections("", "", (), lambda broker, registry: side)
    return ReportApp("report.json", AuditSession(connections, report), Clock())


async def opened(report: AuditReport, at: int, check: Callable[[ReportApp], None]) -> None:
    """Open both sides of a finding, and check the screen."""
    app = app_of(report, kafka())
    async with app.run_test(size=(130, 36)) as pilot:
        await pilot.press("enter", *["down"] * at, "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert isinstance(app.screen, ComparisonScreen)
        check(app)


def rows(app: ReportApp) -> list[list[str]]:
    """Return the marks, names and values of the fields."""
    return [[cell.text for cell in row.cells] for row in app.screen.query_one(FieldPairs).rows]


def read(name: str, **changed: Any) -> AuditReport:
    """Return a report that the program wrote."""
    return parse_report(json.loads((REPORTS / f"{name}.json").read_text()) | changed)


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_a_database_is_told_in_its_own_words(size: tuple[int, int]) -> None:
    app = app_of(read("database"))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        shown = text(app)
        assert lines(app)[1] == " Audit  only the report", "there is no recording that could be open"
        assert "✗ ANOMALIES  4 in 40 rows in the tables, 41 rows in the topics" in shown
        assert "masked" not in shown
        await pilot.press("enter")
        await pilot.pause()
        assert "Differs  Table has  Topic has" in text(app)
        clean = read("database", verdict="clean", classes={"missing_key": 0}, findings=[], findings_total={})
        app.audit.report = clean
        app.refresh_screens()
        await pilot.pause()
        shown = text(app)
        assert "each key's latest value is its row" in shown
        assert "tables     public.orders" in shown
        assert "message" not in shown.replace("messages without", "")


async def test_a_row_that_differs() -> None:
    def check(app: ReportApp) -> None:
        shown = text(app)
        assert "Expected: the table's row" in shown and "Actual: the topic's latest value" in shown
        assert "shop.orders 2@21  key id=2" in shown
        assert "Table has" in shown and "Topic has" in shown
        assert "Sent" not in shown and "PostgreSQL said" not in shown and "recording" not in shown
        assert rows(app)[:2] == [["≠", "id", "2", "3"], ["≠", "note", "note 2", "note 3"]]
        # The report names the differing values; a value that it does not name is not made up.
        assert ["", "status", "no difference", "new"] in rows(app)

    await opened(read("database"), 0, check)


async def test_the_key_that_no_row_has_is_decoded() -> None:
    def check(app: ReportApp) -> None:
        shown = text(app)
        assert "shop.orders 1@12  key id=5000" in shown
        assert "the table has no such row" in shown
        assert rows(app)[1] == ["", "note", "–", "note 4"]

    await opened(read("database"), 1, check)
    await opened(read("database-masked"), 1, check)


async def test_a_key_that_can_not_be_decoded_says_why() -> None:
    def check(app: ReportApp) -> None:
        assert "✗ key: 4 bytes that can't be decoded: it does not start" in text(app)
        assert rows(app) == []

    await opened(read("database"), 2, check)


async def test_json_needs_no_word_of_it() -> None:
    report = read("database")

    def check(app: ReportApp) -> None:
        assert "key id=2" in text(app)
        assert ["≠", "note", "note 2", "three"] in rows(app)

    side = kafka()
    side.records["shop.orders", 2, 21] = TopicRecord(b'{"id":2}', b'{"id": 3, "note": "three"}', NOW_MS)
    app = app_of(report, side)
    async with app.run_test(size=(130, 36)) as pilot:
        await pilot.press("enter", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        check(app)


async def test_a_row_that_is_missing() -> None:
    def check(app: ReportApp) -> None:
        shown = text(app)
        assert "a tombstone: it has no fields" in shown
        assert "the table has the row; the report has only its key" in shown
        assert rows(app) == [["", "id", "1", "–"]]

    await opened(read("database"), 3, check)


async def test_a_row_without_a_key_and_one_that_is_undecided() -> None:
    report = read("database")
    finding = replace(
        report.findings[0], name="missing_row", partition=None, offset=None, fields=(), key={"a": "1"},
        note="2 in the table, 1 in the topic",
    )  # fmt: skip

    def check(app: ReportApp) -> None:
        shown = text(app)
        assert "2 in the table, 1 in the topic" in shown
        assert "the topic has no record of this key" in shown
        assert rows(app) == [["", "a", "1", "–"]]

    await opened(replace(report, findings=(finding,)), 0, check)

    def outside(app: ReportApp) -> None:
        shown = text(app)
        assert "the relay sends no rows of the table" in shown
        assert "public.bare" in shown

    lacking = replace(finding, name="not_captured", topic=None, table="public.bare", key=None)
    await opened(replace(report, findings=(lacking,)), 0, outside)

    def undecided(app: ReportApp) -> None:
        assert "it was written during every comparison" in text(app)

    unknown = replace(report.findings[0], name="indeterminate")
    await opened(replace(report, findings=(unknown,)), 0, undecided)


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_a_masked_report_says_so(size: tuple[int, int]) -> None:
    app = app_of(read("database-masked"))
    async with app.run_test(size=size) as pilot:
        await pilot.press("enter")
        await pilot.pause()
        shown = text(app)
        assert "values are masked · 1 missing_key" in lines(app)[3]
        assert "values are masked; use 'bwtui verify --show-values'" in shown
        await pilot.press("enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "values are masked" in text(app)
        assert rows(app)[0] == ["≠", "id", "…", "…"], "that they differ is known"


def test_what_is_masked() -> None:
    assert read("database-masked").masked
    # A key that can't be decoded is masked, whatever was requested.
    assert not read("database").masked
    old = {"masked": None}
    assert read("database-masked", **old).masked and not read("database", **old).masked
    assert not read("faults").masked and not read("recordings").masked
    assert not read("database-masked", findings=[]).masked, "there is nothing to mask"


async def test_two_recordings() -> None:
    def missing(app: ReportApp) -> None:
        shown = text(app)
        assert "Expected: the first recording" in shown and "Actual: the second recording" in shown
        assert "First has" in shown and "Second has" in shown and "Kafka" not in shown
        assert "it has the row, at position 40" in shown and "it does not have the row" in shown
        assert "bwtui open recordings/a --at 0/" in shown and "bwtui open recordings/b" not in shown
        assert rows(app) == []

    def differs(app: ReportApp) -> None:
        shown = text(app)
        assert "it has the row, at position 42" in shown and "the same change has a different row" in shown
        assert "bwtui open recordings/b --at 0/" in shown

    report = read("recordings")
    await opened(report, 0, missing)
    await opened(report, 2, differs)

    def extra(app: ReportApp) -> None:
        first, _, second = next(line for line in lines(app) if "it does not" in line).partition("││")
        assert "it does not have the row" in first
        assert "it has the row, at position 40" in second

    turned = replace(report, findings=(replace(report.findings[0], name="extra"),))
    await opened(turned, 0, extra)


def test_a_report_of_old_is_of_a_recording() -> None:
    assert read_report(REPORTS / "faults.json").question == "recording"
    assert read("recordings").question == "recordings"


# Enter, from every screen that leads there.


@pytest.mark.parametrize(
    ("with_report", "keys"),
    [(True, ("5",)), (True, ("4", "5")), (False, ("v", "enter")), (False, ("5", "enter", "v", "enter"))],
)
async def test_enter_on_a_class_goes_to_its_findings(
    with_report: bool, keys: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    stage = AuditedStage(tmp_path, with_report=with_report)
    async with stage.run((100, 30)):
        await stage.press(*keys)
        if not with_report:
            await stage.until_reading()
            await stage.end(stage.raw, code=1)
        focused = stage.app.focused
        assert isinstance(focused, ClassGrid)
        await stage.press("down", "enter")
        listed = stage.app.focused
        assert isinstance(listed, FindingList)
        assert stage.screen.crumbs() == ("Audit", "lost_acked")
        await stage.press("enter")
        assert isinstance(stage.app.screen, ComparisonScreen)
        await stage.press("escape", "escape")
        assert isinstance(stage.app.focused, ClassGrid)
