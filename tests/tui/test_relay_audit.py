"""An audit of the relay on the screens: its tables against its topics."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from bwtui.errors import ConnectionFailed
from bwtui.model.heal import HealStatus
from bwtui.model.status import Status
from bwtui.tui.audit.session import RelayAuditSession
from bwtui.tui.screens.audit import ClassGrid, ComparisonScreen, ReportScreen
from bwtui.tui.screens.dialogs import AskScreen, FormScreen, LeaveScreen
from bwtui.tui.screens.jobs import JobScreen
from bwtui.tui.sources.model import ViewSettings
from tests.tui.audited import REPORTS, FakeKafka
from tests.tui.commands import Commands
from tests.tui.doubles import Stage
from tests.tui.picture import lines, text


class RelayStage(Commands, Stage):
    """The screens of a relay, with commands that a test ends, and a Kafka that has lost everything."""

    def __init__(self, folder: Path, session: ViewSettings | None = None) -> None:
        super().__init__(session=session)
        self.app.audit = RelayAuditSession("shop", lambda: FakeKafka({}))
        self.take_commands(folder)
        self.raw: dict[str, Any] = json.loads((REPORTS / "database.json").read_text())


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_the_tables_are_verified_while_the_relay_runs(tmp_path: Path, size: tuple[int, int]) -> None:
    stage = RelayStage(tmp_path)
    async with stage.run(size):
        await stage.press("5")
        assert "? NOT AUDITED  do the topics equal the tables?" in text(stage.app)
        await stage.press("v")
        assert isinstance(stage.app.screen, FormScreen)
        await stage.press("enter")
        await stage.until_reading()
        assert isinstance(stage.app.screen, JobScreen)
        await stage.press("escape", "1")
        assert "● Verify: reading Kafka 25%" in lines(stage.app)[1]
        await stage.press("v")
        assert isinstance(stage.app.screen, JobScreen), "v shows it again"
        await stage.end(stage.raw, code=1)
        assert isinstance(stage.app.screen, ReportScreen)
        assert "✗ ANOMALIES" in text(stage.app)
        assert "●" not in lines(stage.app)[1]
        assert stage.commands == [
            ("verify", "--database", "--relay", "shop", "--json", "--show-values", "--findings", "10000",
             "--progress-json")
        ]  # fmt: skip
        assert "STREAMING" in lines(stage.app)[0], "the relay is still there"


async def test_tables_can_be_chosen(tmp_path: Path) -> None:
    stage = RelayStage(tmp_path)
    async with stage.run():
        await stage.press("v")
        assert stage.app.screen.query_one(Input).value == r"public\.order_items", "the table that is selected"
        await stage.press(*"orders")
        await stage.press("enter")
        await stage.until_reading()
        assert stage.commands[0][-2:] == ("--table", "orders")
        await stage.end(stage.raw, code=1)


async def test_escape_leads_from_findings_to_classes_to_the_list_of_relays(tmp_path: Path) -> None:
    stage = RelayStage(tmp_path, ViewSettings(fleet="listed"))
    async with stage.run((140, 40)):
        await stage.press("v", "enter")
        await stage.until_reading()
        await stage.end(stage.raw, code=1)
        await stage.press("enter", "escape")
        assert isinstance(stage.app.focused, ClassGrid)
        await stage.pilot.press("escape")
    assert stage.app.return_value == "fleet"


async def test_a_finding_shows_what_the_topic_has(tmp_path: Path) -> None:
    stage = RelayStage(tmp_path)
    async with stage.run((140, 40)):
        await stage.press("v", "enter")
        await stage.until_reading()
        await stage.end(stage.raw, code=1)
        await stage.press("enter", "enter")
        assert isinstance(stage.app.screen, ComparisonScreen)
        assert "Expected: the table's row" in text(stage.app)
        assert "expired" in text(stage.app) or "the log begins after this offset" in text(stage.app)
        await stage.press("escape", "1")
        stage.app.audit = RelayAuditSession("shop", _gone)
        stage.app.audit.take(json.dumps(stage.raw).encode())
        await stage.press("5", "enter", "enter")
        assert "no relay called shop is running" in text(stage.app)


async def test_who_looks_at_something_else_is_told(tmp_path: Path) -> None:
    stage = RelayStage(tmp_path)
    told: list[str] = []
    stage.app.notify = lambda message, *, title="", **more: told.append(f"{title}: {message}")  # type: ignore[method-assign]
    async with stage.run():
        await stage.press("v", "enter")
        await stage.until_reading()
        await stage.press("escape", "2")
        await stage.end(stage.raw, code=1)
        assert stage.app.current_mode == "changes"
        assert "5 shows the report" in told[-1] and "Verified: anomalies" in told[-1]


async def test_leaving_ends_the_audit_first(tmp_path: Path) -> None:
    stage = RelayStage(tmp_path)
    async with stage.run():
        await stage.press("v", "enter")
        await stage.until_reading()
        job = stage.app.audit.job
        assert job is not None
        await stage.press("escape", "q")
        assert isinstance(stage.app.screen, LeaveScreen)
        await stage.pilot.press("d")
        while stage.app.return_value is None:
            await stage.pilot.pause(0.02)
    assert stage.app.return_value in ("detach", "quit")
    assert job.child._process is not None
    assert job.child._process.returncode == 130


def _gone() -> FakeKafka:
    raise ConnectionFailed("no relay called shop is running", "start one with 'bwtui connect'")


async def test_what_differs_is_shown_and_sent_after_a_yes(tmp_path: Path) -> None:
    table = {"table": "public.orders", "rows": 5, "tombstones": 1, "raw_tombstones": 1, "notes": []}
    plan = {"state": "planned", "messages": 7, "tables": [table], **table}
    arguments = (*("repair", "--relay", "shop", "--table", r"public\.orders", "--json", "--progress-json"),)
    stage = RelayStage(tmp_path)
    stage.raw["tables"] = ["public.orders"]
    async with stage.run((140, 40)):
        await stage.press("v", "enter")
        await stage.until_reading()
        await stage.end(stage.raw, code=1)
        await stage.press("M")
        await stage.until_reading()
        await stage.end(plan, code=1)
        assert isinstance(stage.app.screen, AskScreen)
        assert "would send 5 rows and 2 tombstones" in text(stage.app)
        assert "compared again first" in text(stage.app)
        await stage.press("y")
        await stage.until_reading()
        # Meanwhile the stream had sent a part of the plan itself.
        sent = [{"table": "public.orders", "rows": 3, "tombstones": 1, "left_out": 3}]
        ended = {**plan, "state": "done", "verdict": "clean", "sent": sent, "after": {"classes": {}}}
        clean = {**stage.raw, "verdict": "clean", "classes": {}, "findings": [], "findings_total": {}}
        await stage.end({**ended, "report": clean})
        assert "sent 3 rows and 1 tombstones" in text(stage.app)
        assert "for 3 keys the stream had already sent a newer state" in text(stage.app)
        assert "public.orders     3           1              3" in text(stage.app), "not what was planned"
        assert "comparison afterwards: clean" in text(stage.app)
        assert stage.commands[1:] == [(*arguments, "--dry-run"), (*arguments, "--yes")]
        # The report under the result is the new one.
        await stage.press("escape")
        assert "CLEAN" in text(stage.app)
        assert "ANOMALIES" not in text(stage.app)


async def test_a_heal_of_which_nothing_differs_ends_after_a_yes(tmp_path: Path) -> None:
    """It covers all tables, and needs no report."""
    note = "1 offsets are in batches that can't be read"
    table = {"table": "public.orders", "rows": 0, "tombstones": 0, "raw_tombstones": 0, "notes": [note]}
    plan = {"state": "planned", "messages": 0, "ends_heal": True, "tables": [table], **table}
    arguments = ("repair", "--relay", "shop", "--json", "--progress-json")
    stage = RelayStage(tmp_path)
    status = stage.relay.shop.status

    def healing(now: float) -> Status:
        return replace(status(now), heal=HealStatus(0.0, "the slot was dropped", "undecided", lsn="0/1"))

    stage.relay.shop.status = healing  # type: ignore[method-assign]
    async with stage.run((140, 40)):
        await stage.press("5", "M")
        await stage.until_reading()
        await stage.end(plan)
        assert isinstance(stage.app.screen, AskScreen)
        assert "batches that can't be read" in text(stage.app)
        assert "End the heal" in text(stage.app)
        await stage.press("y")
        await stage.until_reading()
        await stage.end({**plan, "state": "nothing to send", "verdict": "clean", "sent": []})
        assert stage.commands == [(*arguments, "--dry-run"), (*arguments, "--yes")]


_ENDED = "bwtui: error: the relay has ended\nhint: it goes on\n"
_GOES_ON = (
    "bwtui: error: interrupted, and the relay goes on with what was asked of it\n"
    "hint: 'bwtui snapshot --cancel 3-orders' ends it\n"
)


@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
async def test_a_repair_that_leaves_something_wrong_or_fails_is_told(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    table = {"table": "public.orders", "rows": 5, "tombstones": 0, "raw_tombstones": 0, "notes": []}
    plan = {"state": "planned", "messages": 5, "tables": [table], **table}
    failed = {"table": "public.orders", "rows": 2, "tombstones": 0, "left_out": 0}
    left = {**plan, "state": "done", "verdict": "anomalies", "sent": [failed]}
    left |= {"after": {"classes": {"missing_row": 3}}, "notes": ["public.orders: Kafka lets nothing in"]}
    stage = RelayStage(tmp_path)
    async with stage.run(size):
        await stage.press("v", "enter")
        await stage.until_reading()
        await stage.end(stage.raw, code=1)
        for output, code, said, says in (
            (left, 1, "", ("sent 2 rows", "anomalies: 3 missing_row", "Kafka lets nothing in")),
            (
                None,
                4,
                "bwtui: error: the relay has ended\nhint: it goes on\n",
                ("✗ the relay has", "→ it goes"),
            ),
            (None, 130, _GOES_ON, ("■ interrupted, and the relay goes on", "→ 'bwtui snapshot --cancel")),
        ):
            await stage.press("M")
            await stage.until_reading()
            await stage.end(plan, code=1)
            await stage.press("y")
            await stage.until_reading()
            if code == 130:
                job = stage.app.audit.job
                assert job is not None
                job.child.cancelled = True
            await stage.end(output, code=code, said=said)
            shown = " ".join(text(stage.app).split())
            assert all(part in shown for part in says), shown
            assert "the command has ended" not in shown
            await stage.press("escape")
