"""The screens on the services when nobody asks or answers, and what they say to do about it."""

from dataclasses import replace

import pytest

from bwtui.model.service_views import Consumers, LongRunningTransaction, LookName, SlotEntry, Slots
from bwtui.tui.widgets.item_list import ItemList
from tests.tui import services
from tests.tui.doubles import Stage
from tests.tui.picture import text

MB = 1024**2


def said(stage: Stage) -> str:
    """What is on the screen, its lines in one."""
    return " ".join(text(stage.app).split())


@pytest.mark.parametrize("key", ["6", "7"])
async def test_a_relay_that_does_not_run_is_not_said_to_ask(key: str) -> None:
    stage = Stage()
    # Where the overview glances at no service.
    async with stage.run((120, 30)):
        stage.relay.gone = True
        await stage.advance(1)
        await stage.press(key)
        await stage.advance(3)
        shown = said(stage)
        assert "not asked: the relay does not run → start it, or: " in shown
        assert "the relay asks" not in shown
        for listing in stage.app.screen.query(ItemList):
            assert listing.empty_text == "not known"
            assert listing.remark == ""


@pytest.mark.parametrize("key", ["6", "7"])
async def test_what_a_relay_has_asked_before_it_ended_stands_with_its_time(key: str) -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        await stage.press(key)
        await stage.advance(2)
        stage.relay.gone = True
        await stage.advance(60)
        assert "not asked: the relay does not run; this is how it was at 12:01:0" in said(stage)


@pytest.mark.parametrize(
    ("key", "name", "nothing", "who"),
    [("6", "slots", Slots(), "PostgreSQL"), ("7", "consumers", Consumers(), "Kafka")],
)
async def test_a_service_that_does_not_answer_is_named(
    key: str, name: LookName, nothing: Slots | Consumers, who: str
) -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        stage.relay.looks[name] = nothing
        await stage.press(key)
        await stage.advance(2)
        assert f"the relay asks {who}…" in said(stage)
        await stage.advance(10)
        assert f"{who} has not answered for 1" in said(stage)
        # An answer that came before is shown with its age.
        stage.relay.looks[name] = services.look(name, stage.clock.now)
        await stage.advance(4)
        assert "has not answered" not in said(stage)
        await stage.advance(3)
        assert f"{who} has not answered for 7.0 s: this is how it was then" in said(stage)


def held_back(now: float) -> Slots:
    """This relay's slot, whose restart_lsn an open transaction holds back, and one that nobody reads."""
    own = SlotEntry(
        "bottledwater",
        "logical",
        "pgoutput",
        "shop",
        active=True,
        active_pid=4712,
        wal_status="reserved",
        restart_lsn="0/10000000",
        confirmed_lsn="0/14700000",
        retained_wal_bytes=71 * MB,
    )
    old = SlotEntry("old_report", "logical", "pgoutput", "shop", retained_wal_bytes=24 * MB)
    holder = LongRunningTransaction(
        "pid 8903", "batch", "shop", "nightly-report", "idle in transaction", now - 147, True, 1
    )
    return Slots(now, slots=(own, old), holders=(holder,))


async def test_the_sentence_says_why_a_slot_keeps_much_and_what_to_do() -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        look = held_back(stage.clock.now)
        stage.relay.looks["slots"] = look
        await stage.press("6")
        await stage.advance(1)
        shown = said(stage)
        assert "most is kept by this relay's slot: 71.0 MB, since pid 8903 (nightly-report)" in shown
        assert "open for 2 m 27 s (idle in transaction)" in shown
        assert "end it with SELECT pg_terminate_backend(8903);" in shown
        assert "old_report, which nobody reads, keeps 24.0 MB: read it, or drop it" in shown
        assert "bwtui slots drop old_report" in shown
        # What the relay itself has not confirmed is no transaction's fault.
        behind = replace(look.slots[0], confirmed_lsn="0/10000100")
        stage.relay.looks["slots"] = replace(look, slots=(behind,))
        await stage.advance(2)
        assert "pg_terminate_backend" not in said(stage)


async def test_enter_shows_all_of_a_row() -> None:
    stage = Stage()
    async with stage.run((80, 24)):
        await stage.press("6")
        await stage.advance(1)
        assert "wal_removed" not in text(stage.app)
        await stage.press("enter")
        shown = text(stage.app)
        assert "trial" in shown
        assert "wal_removed" in shown
        await stage.press("escape")
        assert "wal_removed" not in text(stage.app)
