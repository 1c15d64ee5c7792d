"""Terminal output and HTML page of the three audits."""

import io
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bwtui.audit import classes
from bwtui.audit.classes import DATABASE, RECORDINGS, Question
from bwtui.audit.html_report import page
from bwtui.audit.report import AuditFinding, AuditSummary
from bwtui.audit.terminal import line, show
from bwtui.cli.verify import _write
from bwtui.durable_files import private_file


def report(
    question: Question, classes: dict[str, int], findings: list[AuditFinding], **more: Any
) -> AuditSummary:
    """Return a report with the fields that a test needs."""
    return AuditSummary(
        verdict="anomalies" if classes else "clean",
        window={},
        expected=7,
        actual=8,
        balance={"expected": {}, "actual": {}},
        classes=classes,
        without={},
        findings=findings,
        found=classes,
        by_topic=[],
        by_time=[],
        question=question,
        **more,
    )


def told(one: AuditSummary) -> str:
    """Return the terminal output."""
    console = Console(file=io.StringIO(), width=100)
    show(one, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("question", "names", "sides"),
    [
        ("database", DATABASE, "7 rows in the tables, 8 rows in the topics"),
        ("recordings", RECORDINGS, "7 rows in the first, 8 rows in the second"),
    ],
)
def test_every_class_is_counted_and_shown(question: Question, names: tuple[str, ...], sides: str) -> None:
    findings = [AuditFinding(name, topic="t", partition=1, offset=5, key={"id": 7}) for name in names]
    one = report(question, dict.fromkeys(names, 1), findings)
    text = told(one)
    assert text.startswith(f"anomalies: {len(names)} ({sides})\n")
    shown = page(one)
    assert f"anomalies: {len(names)} ({sides})" in shown
    assert "None." not in shown and "No messages" not in shown
    for name in names:
        assert f"\n{name}: 1\n  t 1@5 · key id=7\n" in text
        assert f"{name}: 1</summary>" in shown


def test_what_is_clean_says_what_was_compared() -> None:
    assert "each key's latest value is its row" in told(report("database", {}, []))
    assert "their changes are equal" in told(report("recordings", {}, []))
    assert "nothing lost, duplicated, changed or out of order" in told(report("recording", {}, []))


def test_the_page_says_when_and_not_how_many_microseconds() -> None:
    one = report(
        "recording", {}, [], details={"seconds": {"audit": 1.5}, "topics": {"t": {"retention_ms": 5}}}
    )
    one.window = {"first_lsn": "0/1", "first_received_us": 1_795_282_327_006_864}
    shown = page(one)
    assert "<td>first_received</td><td>2026-11-21 17:32:07 UTC</td>" in shown
    assert "<td>seconds: audit</td><td>1.5</td>" in shown
    assert "<td>topics: t</td><td>retention_ms 5</td>" in shown


def test_null_is_a_value_and_a_mask_is_none() -> None:
    shown = {"field": "note", "postgresql": "a", "sent": "a", "kafka": None}
    masked = {"field": "note", "postgresql": "…", "kafka": "…"}
    assert line(AuditFinding("corrupted", fields=[shown])) == "differs: note (a → a → NULL)"
    assert line(AuditFinding("corrupted", fields=[masked])) == "differs: note"
    assert line(AuditFinding("corrupted", fields=[{"field": "note"}])) == "differs: note"


def test_a_masked_report_says_so_where_there_is_something_to_mask() -> None:
    finding = AuditFinding("missing_key", key={"id": "…"})
    note = "note: keys and values are masked; use --show-values to show them"
    assert note in told(report("database", {"missing_key": 1}, [finding], details={"masked": True}))
    assert note not in told(report("database", {"missing_key": 1}, [finding], details={"masked": False}))
    assert note not in told(report("database", {}, [], details={"masked": True}))
    assert "<td>masked</td><td>yes</td>" in page(report("database", {}, [], details={"masked": True}))


@pytest.mark.parametrize("before", [None, 0o644])
def test_a_page_is_read_by_its_owner_alone(tmp_path: Path, before: int | None) -> None:
    # The page can contain rows, as the recording does.
    mask = os.umask(0o022)
    try:
        if before is not None:
            (tmp_path / "page.html").write_text("what was there")
            (tmp_path / "page.html").chmod(before)
        assert _write(report("database", {}, []), tmp_path / "page.html") is None
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o600


def test_a_page_into_a_pipe_leaves_its_mode() -> None:
    read, written = os.pipe()
    try:
        before = os.fstat(written).st_mode
        private_file(Path(f"/dev/fd/{written}"))
        assert os.fstat(written).st_mode == before
    finally:
        os.close(read)
        os.close(written)


@pytest.mark.parametrize("question", ["recording", "database", "recordings"])
def test_every_class_that_can_be_wrong_says_what_it_means(question: Question) -> None:
    of_it = [one for one in classes.declared(question) if one.severity != "fine"]
    assert len({one.name for one in of_it}) == len(of_it) > 3
    for one in of_it:
        assert one.meaning.endswith("."), one.name
        assert one.sides or one.count or one.question != "recording", "nothing counts it"
