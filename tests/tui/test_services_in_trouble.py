"""The screens of the services without a relay or without an answer, and the advice that they give."""

from dataclasses import replace

import pytest

from bwtui.model.service_views import Consumers, LongRunningTransaction, LookName, SlotEntry, Slots
from bwtui.tui.widgets.grid import ItemList
from tests.tui import services
from tests.tui.doubles import Stage
from tests.tui.picture import text

MB = 1024**2


def said(stage: Stage) -> str:
    """Return the screen's text in one line."""
    return " ".join(text(stage.app).split())


@pytest.mark.parametrize("key", ["6", "7"])
async def test_a_relay_that_does_not_run_is_not_said_to_ask(key: str) -> None:
    stage = Stage()
    # In this size the overview queries no service.
    async with stage.run((120, 30)):
        stage.relay.gone = True
        await stage.advance(1)
        await stage.press(key)
        await stage.advance(3)
        shown = said(stage)
        assert "not queried: the relay does not run → start it, or: " in shown
        assert "the relay is querying" not in shown
        for listing in stage.app.screen.query(ItemList):
            assert listing.empty_text == "unknown"
            assert listing.remark == ""


@pytest.mark.parametrize("key", ["6", "7"])
async def test_what_a_relay_has_asked_before_it_ended_stands_with_its_time(key: str) -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        await stage.press(key)
        await stage.advance(2)
        stage.relay.gone = True
        await stage.advance(60)
        assert "not queried: the relay does not run; this is its last answer, of 12:01:0" in said(stage)


@pytest.mark.parametrize(
    ("key", "name", "nothing", "who"),
    [("6", "slots", Slots(), "PostgreSQL"), ("7", "consumers", Consumers(), "Kafka")],
)
async def test_a_service_that_does_not_answer_is_named(
    key: str, name: LookName, nothing: Slots | Consumers, who: str
) -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        stage.relay.views[name] = nothing
        await stage.press(key)
        await stage.advance(2)
        assert f"the relay is querying {who}…" in said(stage)
        await stage.advance(10)
        assert f"{who} has not answered for 1" in said(stage)
        # An earlier answer is shown with its age.
        stage.relay.views[name] = services.look(name, stage.clock.now)
        await stage.advance(4)
        assert "has not answered" not in said(stage)
        await stage.advance(3)
        assert f"{who} has not answered for 7.0 s; this is its last answer" in said(stage)


def held_back(now: float) -> Slots:
    """Return this relay's slot, held back by an open transaction, and an inactive slot."""
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
        look = replace(held_back(stage.clock.now), postgres="service=shop")
        stage.relay.views["slots"] = look
        await stage.press("6")
        await stage.advance(1)
        shown = said(stage)
        assert "This relay's slot retains the most: 71.0 MB, because pid 8903 (nightly-report)" in shown
        assert "open for 2 m 27 s (idle in transaction)" in shown
        assert "end it with SELECT pg_terminate_backend(8903);" in shown
        assert "old_report is not in use and retains 24.0 MB: start its consumer, or drop it" in shown
        assert "bwtui slots drop old_report -d service=shop" in shown
        # A transaction is not blamed for positions that the relay itself has not confirmed.
        behind = replace(look.slots[0], confirmed_lsn="0/10000100")
        stage.relay.views["slots"] = replace(look, slots=(behind,))
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
