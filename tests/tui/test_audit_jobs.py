"""Commands in the background of the screens: started, watched, hidden, cancelled, failed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bwtui.tui.audit.report import parse_report
from bwtui.tui.audit.session import CommandProcess, CommandProgress
from bwtui.tui.screens.audit import ReportScreen
from bwtui.tui.screens.dialogs import AskScreen, FormScreen
from bwtui.tui.screens.jobs import JobScreen
from tests.tui.audited import AuditedStage
from tests.tui.doubles import Clock
from tests.tui.picture import lines, text

PLAN: dict[str, Any] = {
    "state": "planned", "messages": 151, "bytes": 4096, "schemas": [{"new": True}, {"new": False}],
    "topics": {"orders": {"recorded": "orders", "messages": 151, "bytes": 4096, "existed": True,
                          "held": {"0": 140}}},
    "notes": ["keys move"], "missing": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep reports in a separate folder."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_verify_shows_how_far_it_is_and_opens_the_report(tmp_path: Path, size: tuple[int, int]) -> None:
    stage = AuditedStage(tmp_path, with_report=False)
    async with stage.run(size):
        await stage.press("v")
        assert isinstance(stage.app.screen, FormScreen)
        assert "127.0.0.1:59092" in text(stage.app), "the recording's own brokers are proposed"
        assert "[ ] also compare" in text(stage.app)
        await stage.press("enter")
        await stage.until_reading()
        assert isinstance(stage.app.screen, JobScreen)
        stage.app.screen.refresh_progress()
        await stage.pilot.pause()
        shown = text(stage.app)
        assert "✓ starting Spark" in shown
        assert "▸ reading Kafka" in shown
        assert "25%" in shown
        assert "100 of 400" in shown
        await stage.end(stage.raw, code=1)
        assert isinstance(stage.app.screen, ReportScreen)
        assert "✗ ANOMALIES" in text(stage.app)
        assert stage.commands == [
            ("verify", "shop", "-b", "127.0.0.1:59092", "-r", "http://127.0.0.1:58081", "-C", "client.id=me",
             "--json", "--show-values", "--findings", "10000", "--progress-json")
        ]  # fmt: skip
        kept = next((tmp_path / "state" / "audits").glob("*.json"))
        assert kept.stat().st_mode & 0o077 == 0, "it shows rows"
        assert stage.audit.report is not None
        assert stage.audit.report.path == kept


async def test_in_the_background_every_screen_says_what_runs(tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path, with_report=False)
    async with stage.run():
        await stage.press("v", "enter")
        await stage.until_reading()
        await stage.press("escape", "2")
        assert "● Verify: reading Kafka 25%" in lines(stage.app)[1]
        await stage.press("v")
        assert isinstance(stage.app.screen, JobScreen), "v shows it again"
        await stage.press("escape")
        await stage.end(stage.raw, code=1)
        assert "Verified: anomalies: 4" in stage.notices
        assert stage.app.current_mode == "changes", "nobody is torn away from what he reads"
        assert "●" not in lines(stage.app)[1]
        await stage.press("5")
        assert "✗ ANOMALIES" in text(stage.app)


async def test_a_cancelled_command_ends(tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path)
    async with stage.run():
        await stage.press("v", "enter")
        await stage.until_reading()
        job = stage.audit.job
        assert job is not None
        await stage.press("c")
        await stage.until(lambda: job.ended is not None)
        assert "cancelled: the command has ended" in text(stage.app)
        assert job.ended is not None
        assert job.ended.code == 130
        await stage.press("escape")
        assert stage.audit.job is None


async def test_a_command_that_ended_before_it_was_cancelled_shows_its_result(tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path, with_report=False)
    async with stage.run():
        await stage.press("v", "enter")
        await stage.until_reading()
        job = stage.audit.job
        assert job is not None
        job.child.cancelled = True
        await stage.end(stage.raw, code=1)
        assert isinstance(stage.app.screen, ReportScreen)
        assert "✗ ANOMALIES" in text(stage.app)


async def test_a_failure_is_one_sentence_and_a_hint(tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path)
    said = "bwtui: error: can't reach Kafka at [nowhere]:1\nhint: check that the broker runs\n"
    async with stage.run():
        await stage.press("v", "enter")
        await stage.until_reading()
        await stage.end(code=4, said=said)
        shown = text(stage.app)
        assert "✗ can't reach Kafka at [nowhere]:1" in shown
        assert "→ check that the broker runs" in shown
        await stage.press("escape", "v", "enter")
        await stage.until_reading()
        await stage.press("escape")
        await stage.end(code=4, said=said)
        assert "Verify failed can't reach Kafka at [nowhere]:1" in stage.notices
        await stage.press("5")
        shown = text(stage.app)
        assert "✗ AUDIT FAILED  can't reach Kafka at [nowhere]:1" in shown
        assert "→ check that the broker runs" in shown
        assert "NOT AUDITED" not in shown


async def test_leaving_ends_what_runs_after_a_question(tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path)
    async with stage.run():
        await stage.press("v", "enter")
        await stage.until_reading()
        job = stage.audit.job
        assert job is not None
        await stage.press("escape", "q")
        assert isinstance(stage.app.screen, AskScreen)
        await stage.press("escape")
        assert job.ended is None, "Esc stays"
        await stage.press("q")
        await stage.pilot.press("y")
        # A separate task reports the command's end to the screens before they close.
        while stage.app.return_value is None:
            await stage.pilot.pause(0.02)
    assert stage.app.return_value == "quit"
    assert job.child._process is not None
    assert job.child._process.returncode == 130


async def test_a_replay_is_looked_at_before_it_is_sent(tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path)
    async with stage.run((100, 30)):
        await stage.press("r", "shift+tab", "shift+tab", "shift+tab")
        await stage.type("again")
        await stage.press("enter")
        await stage.until_reading()
        assert stage.commands[-1][-1] == "--dry-run"
        assert "--topic-prefix again --json" in " ".join(stage.commands[-1])
        await stage.end(PLAN)
        shown = text(stage.app)
        assert "would send 151 messages, 4.00 kB" in shown
        assert "may already contain 140 of these messages" in shown
        assert "▲ keys move" in shown
        assert "2 schemas, 1 to be registered" in shown
        await stage.press("enter")
        assert len(stage.commands) == 1, "Enter sends nothing: the name is not typed"
        await stage.press("escape", "r", "enter")
        await stage.until_reading()
        await stage.end(PLAN)
        assert "type orders to continue" in text(stage.app), "the topic exists: it can't be undone"
        await stage.press("y", "enter")
        assert stage.audit.job is None
        assert len(stage.commands) == 2, "y is not its name"
        assert "The typed name is not orders" in stage.notices
        await stage.press("backspace")
        await stage.type("orders")
        await stage.press("enter")
        await stage.until_reading()
        assert stage.commands[-1][-1] == "--yes"
        await stage.end({**PLAN, "state": "done", "sent": 151, "seconds": 0.5})
        assert "sent 151 messages in 0.5 s (302/s)" in text(stage.app)


async def test_a_dry_run_in_the_background_waits_to_be_looked_at(tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path)
    async with stage.run((100, 30)):
        await stage.press("r", "enter")
        await stage.until_reading()
        await stage.press("escape")
        await stage.end(PLAN)
        assert "The dry run has finished" in stage.notices
        await stage.press("r")
        assert "would send 151 messages" in text(stage.app)


async def test_mending_replays_what_the_report_misses(tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path)
    async with stage.run((100, 30)):
        await stage.press("5", "M", "enter")
        await stage.until_reading()
        command = " ".join(stage.commands[-1])
        assert f"--only-missing {tmp_path / 'report.json'}" in command
        assert "--topic-prefix" not in command
        await stage.end(PLAN | {"missing": {"messages": 1, "late": 1}})
        assert "1 missing message will be appended to its partition" in text(stage.app)
        await stage.press("escape")
        stage.audit.report = parse_report(stage.raw | {"classes": {"lost_acked": 0}})
        await stage.press("M")
        assert "nothing to replay" in stage.notices


async def test_a_plan_to_mend_ends_with_the_report_that_it_is_of(tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path)
    async with stage.run((100, 30)):
        await stage.press("5", "M", "enter")
        await stage.until_reading()
        await stage.press("escape")
        await stage.end(PLAN | {"missing": {"messages": 1, "late": 1}})
        assert stage.audit.plan is not None
        await stage.press("v", "enter")
        await stage.until_reading()
        await stage.end(stage.raw, code=1)
        # The plan belongs to the previous report, so M opens the form again.
        await stage.press("M")
        assert isinstance(stage.app.screen, FormScreen)


# Progress.


def test_rate_and_time_left() -> None:
    clock = Clock(100.0)
    progress = CommandProgress(clock)
    assert progress.take('{"phase": "starting Spark"}')
    assert (progress.rate, progress.left, progress.share) == (None, None, None)
    progress.take('{"phase": "reading"}')
    for seconds, done in ((1, 1_000), (2, 3_000)):
        clock.now = 100.0 + seconds
        progress.take(f'{{"phase": "reading", "done": {done}, "total": 9000}}')
    assert progress.rate == 1_500
    assert progress.left == 4
    assert not progress.take("bwtui: error: no")
    assert not progress.take('{"other": 1}')
    assert [phase.name for phase in progress.phases] == ["starting Spark", "reading"]


async def test_what_says_nothing_is_told_with_its_exit_code() -> None:
    import sys

    ended = await CommandProcess((), (sys.executable, "-c", "raise SystemExit(7)")).run()
    assert ended.error == "the command ended with exit code 7 and without an error message"
    ended = await CommandProcess((), (sys.executable, "-c", "print('[1]')")).run()
    assert (ended.code, ended.output, ended.error) == (0, b"[1]\n", "")


async def test_a_command_line_that_everybody_sees_has_no_password() -> None:
    child = CommandProcess(("status", "--registry", "http://me:hunter2@registry"))
    running = asyncio.create_task(child.run())
    while child._process is None:
        await asyncio.sleep(0)
    seen = Path(f"/proc/{child._process.pid}/cmdline").read_bytes()
    ended = await running
    assert b"bwtui" in seen and b"hunter2" not in seen
    # It still has its arguments.
    assert (ended.code, ended.error) == (2, "no such option --registry")


async def test_a_replay_into_topics_that_it_makes_needs_no_name(tmp_path: Path) -> None:
    stage = AuditedStage(tmp_path)
    new = {
        "again.orders": {"recorded": "orders", "messages": 151, "bytes": 4096, "existed": False, "held": {}}
    }
    async with stage.run((100, 30)):
        await stage.press("r", "enter")
        await stage.until_reading()
        await stage.end(PLAN | {"topics": new})
        assert "to continue" not in text(stage.app)
        await stage.press("y")
        await stage.until_reading()
        assert stage.commands[-1][-1] == "--yes"
        await stage.end({**PLAN, "state": "done", "sent": 151, "seconds": 0.5})
