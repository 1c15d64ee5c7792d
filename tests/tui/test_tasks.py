"""Fifteen questions of an incident, each answered within eight key presses from the overview.

A text typed into a prompt counts as one press, and so does the Enter that follows.
"""

import re
from pathlib import Path

import pytest

from bwtui.tui.screens.dialogs import AskScreen
from tests.tui.doubles import Stage
from tests.tui.picture import text
from tests.tui.recorded import RecordedStage
from tests.tui.shop import NOON, Shop
from tests.tui.shop_history import history
from tests.tui.test_journey import JourneyStage
from tests.tui.test_live_journey import LiveStage

MOST_PRESSES = 8
#: Question → size of the terminal, keys or text on the overview, and the expected answer.
TASKS: dict[str, tuple[tuple[int, int], tuple[str, ...], str]] = {
    "the table that grows the WAL": ((120, 36), (), r"WAL/s↓.*\n.*public\.order_items +354 kB +45%"),
    "why a row was refused": ((120, 36), ("4",), r"larger than the broker takes \(1,048,576 bytes\)"),
    "the time to slot loss": ((80, 24), (), r"safe ≈ 7 h 16 m if the relay stopped now"),
    "two schema versions' difference": (
        (120, 40),
        ("3", "slash", "*^orders-value", "enter", "D"),
        r"total +type +decimal\(10,2\) +string +✗ breaks BACKWARD",
    ),
    "the largest transaction": ((120, 36), ("0",), r"› +11:53:03\.000 +39001 +1\.20M"),
    "which consumer is behind": ((120, 36), ("7",), r"reporting has the largest lag: .*1 h 30 m"),
    "p99 from commit to ack": ((160, 45), (), r"commit → ack +13\.8 +62\.1"),
    "statements executed": ((120, 36), ("8",), r"212 PostgreSQL .* copy \(select \"photo\""),
    "other slots": ((120, 36), ("6",), r"reporting_2024 +unused 3 d 0 h +37\.0 GB"),
    "a setting's origin": ((120, 36), ("9", "slash", "*on-error", "enter"), r"from: \./bwtui\.toml \[prof"),
}


async def press(stage: Stage, presses: tuple[str, ...]) -> None:
    """Press keys, or type the texts that begin with a star."""
    assert len(presses) <= MOST_PRESSES
    for one in presses:
        await stage.press(*(one[1:] if one.startswith("*") else (one,)))


@pytest.mark.parametrize("task", TASKS)
async def test_a_question_to_a_relay(task: str) -> None:
    size, presses, answer = TASKS[task]
    stage = Stage(Shop(trouble=True))
    stage.relay.past = history(NOON + 62)
    async with stage.run(size):
        await press(stage, presses)
        await stage.advance(1)
        assert re.search(answer, text(stage.app)), text(stage.app)


async def test_the_bottleneck() -> None:
    stage = Stage(Shop(slow="encode"))
    async with stage.run((80, 24)):
        assert "┏━ encode ━━━━┓" in (shown := text(stage.app)), shown
        assert "▲ SLOW" in shown
        assert "▲ encode can't keep up" in shown


@pytest.mark.parametrize("answer", [r"~ update +status", r"orders partition 0 offset 1"])
async def test_a_key_s_history_and_where_its_change_lies(answer: str) -> None:
    stage = LiveStage()
    async with stage.run((120, 40)):
        await press(stage, ("2", "x"))
        await stage.advance(2)
        assert re.search(answer, text(stage.app)), text(stage.app)


async def test_what_happened_at_a_time() -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.press("2")
        await stage.seek("12:00:30")
        assert "as of 2026-01-15 12:00:30" in (shown := text(stage.app)), shown
        assert re.search(r"› +12:00:22\.320 ~ update +public\.orders +id=45", shown), shown


async def test_a_key_is_sent_again(tmp_path: Path) -> None:
    stage = JourneyStage(tmp_path)
    plan = {"messages": 1, "bytes": 47, "topics": {"orders": {"messages": 1, "bytes": 47, "existed": False}}}
    async with stage.run((160, 45)):
        await stage.press("2")
        await stage.seek("#21")
        await stage.press("x", "R", "enter")
        await stage.until_reading()
        assert stage.commands[0][-1] == "--dry-run"
        await stage.end(plan)
        assert isinstance(stage.app.screen, AskScreen)
