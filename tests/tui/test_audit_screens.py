"""The report of an audit: the real one alone, and one over a recording with both sides of its messages."""

import json
from pathlib import Path

import pytest
from textual.widgets import Input

from bwtui.errors import ConnectionFailed, UsageError
from bwtui.tui.audit.report import class_order, parse_report, read_report, tone_of
from bwtui.tui.audit.session import AuditSession
from bwtui.tui.recording_app import ReportApp
from bwtui.tui.screens.audit import (
    ClassGrid,
    ComparisonScreen,
    FieldPairs,
    FindingList,
    ReportScreen,
    finding_text,
)
from tests.tui.audited import REPORTS, AuditedStage
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
