"""The screens of what the relay learns from its services."""

from dataclasses import replace

import pytest

from bwtui.model.service_views import Consumers, LongRunningTransaction, LookName, SlotEntry, Slots
from bwtui.tui.widgets.grid import ItemList
from tests.tui import services
from tests.tui.doubles import Stage
from tests.tui.picture import text
from tests.tui.recorded import RecordedStage

SIZES = ((80, 24), (160, 45), (250, 70))
KEYS = {"slots": "6", "consumers": "7", "log": "8", "settings": "9"}


def rows(stage: Stage, name: str) -> list[str]:
    """Return the keys of a list's rows, in order."""
    return [row.key for row in stage.app.screen.query_one(f"#{name}", ItemList).rows]


async def shown(stage: Stage, key: str) -> str:
    """Go to a screen, and return its text once the service has answered."""
    await stage.press(key)
    await stage.advance(2)
    return text(stage.app)


@pytest.mark.parametrize("size", SIZES)
async def test_every_screen_answers_its_question_in_every_size(size: tuple[int, int]) -> None:
    stage = Stage()
    async with stage.run(size):
        slots = await shown(stage, "6")
        assert "Slot reporting_2024 retains the most: 37.0 GB (" in " ".join(slots.split())
        for word in ("reporting_2024", "unused 3 d 0 h", "extended", "pid 5120", "31 m 00 s", "standby_b"):
            assert word in slots
        consumers = await shown(stage, "7")
        assert "reporting has the largest lag: ≥ 47.4k messages, 1 h 30 m" in " ".join(consumers.split())
        for word in ("not running", "in time", "caught up", "never", "41000"):
            assert word in consumers
        log = await shown(stage, "8")
        for word in ("HTTP 409", "under way", "212", "2 failed"):
            assert word in log
        settings = await shown(stage, "9")
        for word in ("BWTUI_POSTGRES", "command line", "default", "cdc:***@db", "5 of "):
            assert word in settings
        assert "hunter2" not in settings


async def test_a_relay_is_asked_only_for_what_is_looked_at() -> None:
    stage = Stage()
    async with stage.run():
        await stage.advance(5)
        assert stage.relay.asked_looks == []
        await shown(stage, "6")
        assert set(stage.relay.asked_looks) == {"slots"}
        await shown(stage, "1")
        before = len(stage.relay.asked_looks)
        await stage.advance(5)
        assert len(stage.relay.asked_looks) == before
        # The settings of an engine do not change, so they are requested once.
        await shown(stage, "9")
        await stage.advance(5)
        assert stage.relay.asked_looks.count("configuration") == 1


async def test_lists_are_sorted_and_filtered_where_the_focus_is() -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        await shown(stage, "6")
        assert rows(stage, "slots")[:2] == ["trial", "reporting_2024"]
        await stage.press("tab", "tab")
        await stage.press("slash", *"catchup", "enter")
        assert rows(stage, "standbys") == ["standby_b 10.0.0.8 None"]
        assert len(rows(stage, "slots")) == 4
        await stage.press("escape", "shift+tab", "shift+tab", "exclamation_mark")
        assert rows(stage, "slots") == ["trial", "reporting_2024"]
        assert len(rows(stage, "standbys")) == 2


async def test_a_group_shows_its_partitions() -> None:
    stage = Stage()
    async with stage.run():
        await shown(stage, "7")
        assert rows(stage, "groups") == ["reporting", "search-indexer", "mailer"]
        assert rows(stage, "partitions")[0] == "public.orders[2]"
        await stage.press("down")
        assert rows(stage, "partitions") == ["public.order_items[0]"]
        await stage.press("enter")
        assert stage.app.focused is stage.app.screen.query_one("#partitions")


async def test_what_is_missing_old_or_refused_is_said() -> None:
    stage = Stage()
    async with stage.run((160, 45)):
        stage.relay.views["slots"] = Slots()
        assert "the relay is querying PostgreSQL…" in await shown(stage, "6")
        note = 'PostgreSQL does not tell this role all: GRANT pg_read_all_stats TO "cdc";'
        masked = services.slots(stage.clock.now)
        holders = (replace(masked.holders[0], since=None, state=""),)
        stage.relay.views["slots"] = replace(masked, notes=(note,), holders=holders)
        seen = await shown(stage, "6")
        assert note in seen
        assert "unknown" in seen
        await stage.advance(30)
        assert "PostgreSQL has not answered for 3" in text(stage.app)
        stage.relay.views["consumers"] = Consumers(stage.clock.now, "can't reach Kafka at b:9092: timed out")
        assert "✗ can't reach Kafka at b:9092: timed out" in await shown(stage, "7")
        # The log and the settings are the relay's own, and need no service.
        await stage.advance(60)
        assert "has not answered" not in await shown(stage, "9")


@pytest.mark.parametrize("mode", KEYS)
async def test_a_recording_says_why_it_has_no_such_screen(mode: str) -> None:
    stage = RecordedStage()
    async with stage.run():
        await stage.press(KEYS[mode])
        assert [told.strip().startswith("A recording ") for told in stage.told] == [True]
        assert "'bwtui " in stage.told[0]
        assert stage.app.current_mode == "overview"


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
